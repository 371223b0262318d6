"""Answering only when sure: the risk among the surest examples, and the area under that curve."""

from dataclasses import dataclass

import torch
from torch import Tensor

from bndl.errors import InputError
from bndl.metrics.inputs import as_flags, as_rows, as_scores
from bndl.metrics.ranking import before, expected_sum, rank

__all__ = ["RiskCoverage", "aurc", "check_coverage", "risk_at_coverage", "risk_coverage"]


@dataclass(frozen=True)
class RiskCoverage:
    """The risk-coverage curve: ``risk`` is the share of errors among the surest ``coverage`` of the examples."""

    coverage: tuple[float, ...]
    risk: tuple[float, ...]


def aurc(uncertainty: Tensor, correct: Tensor, *, weights: Tensor | None = None) -> Tensor:
    r"""Area under the risk-coverage curve: the mean over n of the share of errors among the n surest.

    .. math:: \mathrm{AURC} = \frac{1}{N} \sum_{n=1}^N \frac{1}{n} \sum_{i \le n} [\text{i-th surest is wrong}]

    Ties count by their expected value over all orders, so the order of the input does not matter. A group of w examples
    with e errors, after A examples with E errors, adds
    :math:`e + (E - A e / w)\,\bigl(\psi(A + w + 1) - \psi(A + 1)\bigr)`. A weight of w is w such examples.

    Args:
        uncertainty: (N,) larger is less sure.
        correct: (N,) bool.
        weights: (R, N) how often each example counts, a row a bootstrap resample.
    Returns:
        float64, dims (), or (R,) with weights.
    """
    count, wrong = _curve(uncertainty, correct, weights)
    start, held = before(count), before(wrong)
    errors = wrong - held
    rate = errors / (count - start).clamp_min(torch.finfo(torch.float64).tiny)
    psi = torch.digamma(count + 1)
    first = torch.digamma(count.new_ones(len(count), 1))
    harmonic = psi - torch.cat([first, psi[:, :-1]], dim=1)
    area = (errors + (held - rate * start) * harmonic).sum(dim=1) / count[:, -1]
    return area[0] if weights is None else area


def risk_at_coverage(uncertainty: Tensor, correct: Tensor, *, coverage: float, weights: Tensor | None = None) -> Tensor:
    r"""Share of errors among the :math:`\lceil \text{coverage} \cdot N \rceil` surest; ties by their expected value.

    Args:
        uncertainty: (N,) larger is less sure.
        correct: (N,) bool.
        coverage: share of the examples that get an answer, in (0, 1].
        weights: (R, N) how often each example counts, a row a bootstrap resample.
    Returns:
        float64, dims (), or (R,) with weights.
    """
    check_coverage(coverage)
    count, wrong = _curve(uncertainty, correct, weights)
    total = count[:, -1:]
    first = torch.minimum((coverage * total * (1 - 1e-12)).ceil(), total)
    risk = (expected_sum(count, wrong, first) / first)[:, 0]
    return risk[0] if weights is None else risk


def risk_coverage(uncertainty: Tensor, correct: Tensor, *, num_points: int = 100) -> RiskCoverage:
    """The curve at evenly spaced coverages, the last of which is 1; ties by their expected value.

    Args:
        uncertainty: (N,) larger is less sure.
        correct: (N,) bool.
        num_points: number of points; fewer where there are fewer examples.
    """
    if num_points < 1:
        raise InputError(f"num_points must be at least 1, got {num_points}.")
    count, wrong = _curve(uncertainty, correct, None)
    num_examples = len(uncertainty)
    points = torch.arange(1, num_points + 1, device=count.device)
    first = (points * num_examples).add(num_points - 1).div(num_points, rounding_mode="floor").unique().double()
    risk = expected_sum(count, wrong, first[None])[0] / first
    return RiskCoverage(tuple((first / num_examples).tolist()), tuple(risk.tolist()))


def check_coverage(coverage: float) -> None:
    """Refuse what is no share."""
    if not 0 < coverage <= 1:
        raise InputError(f"coverage is a share of the examples, above 0 and at most 1, got {coverage}.")


def _curve(uncertainty: Tensor, correct: Tensor, weights: Tensor | None) -> tuple[Tensor, Tensor]:
    """Number of examples and of errors (R, G) up to each group of equal uncertainty, the surest first."""
    uncertainty = as_scores("uncertainty", uncertainty)
    wrong = ~as_flags("correct", correct, num_examples=len(uncertainty)).to(uncertainty.device)
    rows = as_rows(weights, len(uncertainty), device=uncertainty.device)
    count, errors = rank(uncertainty).cumulate(rows, wrong.double())
    return count, errors

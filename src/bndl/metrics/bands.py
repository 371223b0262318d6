r"""Curves with intervals: accuracy by confidence and by uncertainty, and risk by coverage.

A group of examples has a plain share of right decisions, and Wilson's interval of it, which is sound for the many groups
without a single error, where a bootstrap has nothing to resample:

.. math:: \frac{p + \frac{z^2}{2n} \pm z \sqrt{\frac{p (1 - p)}{n} + \frac{z^2}{4 n^2}}}{1 + \frac{z^2}{n}}
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import NormalDist

import torch
from torch import Tensor

from bndl.metrics.bootstrap import Figure, Statistic, resamples
from bndl.metrics.calibration import reliability
from bndl.metrics.deciles import accuracy_by_decile
from bndl.metrics.inputs import as_flags, as_rows, as_scores
from bndl.metrics.ranking import expected_sum, rank
from bndl.metrics.selective import risk_coverage

__all__ = ["Bins", "Curve", "Groups", "bins_of", "curve_of", "drawn", "figures_from", "groups_of", "wilson"]

_LEVEL = 0.95


@dataclass(frozen=True)
class Bins:
    """A reliability diagram: one entry a bin of the confidence, the least confident first; NaN where a bin is empty."""

    lower: tuple[float, ...]
    count: tuple[int, ...]
    confidence: tuple[float, ...]
    accuracy: tuple[Figure, ...]


@dataclass(frozen=True)
class Groups:
    """Groups of equal size by uncertainty, the surest first: mean uncertainty, accuracy and size of each."""

    uncertainty: tuple[float, ...]
    accuracy: tuple[Figure, ...]
    count: tuple[int, ...]


@dataclass(frozen=True)
class Curve:
    """The risk-coverage curve: ``risk`` is the share of errors among the surest ``coverage`` of the examples."""

    coverage: tuple[float, ...]
    risk: tuple[Figure, ...]


def wilson(share: float, count: float, *, level: float = _LEVEL) -> Figure:
    """A share of ``count`` examples with Wilson's interval; all NaN where there are none."""
    if not count > 0 or math.isnan(share):
        return Figure(math.nan, math.nan, math.nan)
    square = NormalDist().inv_cdf((1 + level) / 2) ** 2 / count
    middle = (share + square / 2) / (1 + square)
    half = math.sqrt(square * (share * (1 - share) + square / 4)) / (1 + square)
    return Figure(share, max(0.0, min(share, middle - half)), min(1.0, max(share, middle + half)))


def bins_of(confidence: Tensor, correct: Tensor, *, num_bins: int = 15) -> Bins:
    """:func:`bndl.metrics.reliability` with intervals.

    Args:
        confidence: (N,) probability of the decision.
        correct: (N,) bool.
        num_bins: number of bins of (0, 1].
    """
    plain = reliability(confidence, correct, num_bins=num_bins)
    accuracy = tuple(wilson(share, count) for share, count in zip(plain.accuracy, plain.count, strict=True))
    return Bins(plain.lower, plain.count, plain.confidence, accuracy)


def groups_of(uncertainty: Tensor, correct: Tensor, *, num_groups: int = 10) -> Groups:
    """:func:`bndl.metrics.accuracy_by_decile` with intervals, and the mean uncertainty of each group.

    Args:
        uncertainty: (N,) larger is less sure.
        correct: (N,) bool.
        num_groups: number of groups; empty ones are left out when there are fewer examples.
    """
    plain = accuracy_by_decile(uncertainty, correct, num_groups=num_groups)
    means = [float(group.mean()) for group in uncertainty.double().sort().values.split(plain.count)]
    accuracy = tuple(wilson(share, count) for share, count in zip(plain.accuracy, plain.count, strict=True))
    return Groups(tuple(means), accuracy, plain.count)


def curve_of(
    uncertainty: Tensor, correct: Tensor, *, num_points: int = 100, num_resamples: int = 1000, seed: int = 0
) -> Curve:
    """:func:`bndl.metrics.risk_coverage` with bootstrap intervals.

    Args:
        uncertainty: (N,) larger is less sure.
        correct: (N,) bool.
        num_points: number of coverages; fewer where there are fewer examples.
        num_resamples: bootstrap resamples.
        seed: the same seed gives the same intervals.
    """
    plain = risk_coverage(uncertainty, correct, num_points=num_points)
    uncertainty = as_scores("uncertainty", uncertainty)
    wrong = (~as_flags("correct", correct, num_examples=len(uncertainty))).double()
    ranking, num_examples = rank(uncertainty), len(uncertainty)
    first = (torch.tensor(plain.coverage, dtype=torch.float64) * num_examples).round()

    def risk(weights: Tensor | None) -> Tensor:
        rows = as_rows(weights, num_examples)
        count, errors = ranking.cumulate(rows, wrong)
        return expected_sum(count, errors, first.expand(len(rows), -1).contiguous()) / first

    found = drawn(risk, num_examples, num_resamples=num_resamples, seed=seed)
    return Curve(plain.coverage, figures_from(plain.risk, found))


def drawn(
    function: Statistic | Callable[[Tensor], Tensor], num_examples: int, *, num_resamples: int = 1000, seed: int = 0
) -> Tensor:
    """What a function of weights (R, N) makes of all resamples, (R, ...) with R = ``num_resamples``.

    The same seed and number of examples give the same resamples, so that what is drawn of two data sets with the same
    examples in the same order is paired.
    """
    return torch.cat([function(weights) for weights in resamples(num_examples, num_resamples=num_resamples, seed=seed)])


def figures_from(
    values: Sequence[float], found: Tensor, *, centred: Sequence[bool] = (), level: float = _LEVEL
) -> tuple[Figure, ...]:
    """Percentile intervals of P values from what was drawn of them (R, P).

    Args:
        values: P of them.
        found: (R, P) the same on resamples.
        centred: for which of them the interval is moved to where the value is, see :func:`bndl.metrics.estimate`.
        level: share of the resamples within the interval.
    """
    found = found.double()
    if centred:
        off = torch.tensor(values, dtype=torch.float64) - found.mean(dim=0)
        found = found + torch.where(torch.tensor(centred), off, 0.0)
    ends = torch.tensor([(1 - level) / 2, (1 + level) / 2], dtype=torch.float64)
    low, high = found.quantile(ends, dim=0).tolist()
    return tuple(Figure(v, a, b) for v, a, b in zip(values, low, high, strict=True))

"""Whether probabilities mean what they say: calibration error, with bins of equal width or equal mass."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from bndl.errors import InputError
from bndl.metrics.inputs import as_flags, as_probs, as_rows, as_scores
from bndl.metrics.ranking import before, rank

__all__ = [
    "Reliability",
    "calibration_error",
    "calibration_floor",
    "check_num_bins",
    "confidence_of",
    "equal_width_bins",
    "expected_calibration_error",
    "reliability",
]


@dataclass(frozen=True)
class Reliability:
    """A reliability diagram: one entry a bin of equal width, the least confident first; NaN where a bin is empty."""

    lower: tuple[float, ...]
    count: tuple[int, ...]
    confidence: tuple[float, ...]
    accuracy: tuple[float, ...]


def calibration_error(
    confidence: Tensor, correct: Tensor, *, num_bins: int = 15, adaptive: bool = False, weights: Tensor | None = None
) -> Tensor:
    r"""Mean gap between confidence and accuracy over bins of the confidence.

    .. math:: \mathrm{ECE} = \sum_b \frac{n_b}{N}\,\bigl|\mathrm{acc}(b) - \mathrm{conf}(b)\bigr|

    It is never negative, so noise only adds to it: the fewer examples, and in a resample of them, the larger it is.

    Args:
        confidence: (N,) probability of the decision.
        correct: (N,) bool.
        num_bins: number of bins.
        adaptive: bins of equal mass in place of equal width. Equal confidences go together, into the bin that holds the
            middle of their mass. A resample has bins of its own.
        weights: (R, N) how often each example counts, a row a bootstrap resample.
    Returns:
        float64, dims (), or (R,) with weights.
    """
    confidence = as_scores("confidence", confidence, low=0.0, high=1.0 + 1e-6)
    gap = as_flags("correct", correct, num_examples=len(confidence)).to(confidence.device).double() - confidence
    check_num_bins(num_bins)
    rows = as_rows(weights, len(gap), device=gap.device)
    if adaptive:
        gaps = _gaps_of_equal_mass(confidence, gap, rows, num_bins)
    else:
        table = gap.new_zeros(len(gap), num_bins)
        table.scatter_(1, equal_width_bins(confidence, num_bins)[:, None], gap[:, None])
        gaps = rows @ table
    error = gaps.abs().sum(dim=1) / rows.sum(dim=1)
    return error[0] if weights is None else error


def calibration_floor(confidence: Tensor, *, num_bins: int = 15) -> Tensor:
    r"""The :func:`calibration_error` that chance alone gives a model whose probabilities are exactly right.

    .. math:: \frac{1}{N} \sum_b \mathbb{E}\Bigl|\sum_{i \in b} (y_i - c_i)\Bigr|
        \approx \frac{1}{N} \sum_b \min\bigl(\sqrt{2 v_b / \pi},\, 2 v_b\bigr),
        \qquad v_b = \sum_{i \in b} c_i (1 - c_i), \quad y_i \sim \mathrm{Bernoulli}(c_i):

    a sum that is nearly normal where a bin expects an error or more, and hardly ever more than one where it expects far
    fewer. It is a mean: from one set of some thousand examples to the next the error of such a model moves by about a third
    of it. An error near it shows no fault, and of two models near it neither is shown to be the better one.

    Args:
        confidence: (N,) probability of the decision.
        num_bins: number of bins of equal width.
    Returns:
        float64, dims ().
    """
    confidence = as_scores("confidence", confidence, low=0.0, high=1.0 + 1e-6).clamp(max=1.0)
    check_num_bins(num_bins)
    variance = equal_width_bins(confidence, num_bins).bincount(confidence * (1 - confidence), minlength=num_bins)
    floor: Tensor = torch.minimum((variance * (2 / math.pi)).sqrt(), 2 * variance).sum() / len(confidence)
    return floor


def expected_calibration_error(
    probs: Tensor, labels: Tensor, *, num_bins: int = 15, adaptive: bool = False, weights: Tensor | None = None
) -> Tensor:
    """:func:`calibration_error` of the largest probability.

    Args:
        probs: (N, C), rows sum to 1.
        labels: (N,) true classes.
        num_bins: number of bins of (0, 1].
        adaptive: bins of equal mass in place of equal width.
        weights: (R, N) how often each example counts, a row a bootstrap resample.
    Returns:
        float64, dims (), or (R,) with weights.
    """
    confidence, correct = confidence_of(probs, labels)
    return calibration_error(confidence, correct, num_bins=num_bins, adaptive=adaptive, weights=weights)


def reliability(confidence: Tensor, correct: Tensor, *, num_bins: int = 15) -> Reliability:
    """Count, mean confidence and accuracy of each bin of equal width.

    Args:
        confidence: (N,) probability of the decision.
        correct: (N,) bool.
        num_bins: number of bins of (0, 1].
    """
    confidence = as_scores("confidence", confidence, low=0.0, high=1.0 + 1e-6)
    correct = as_flags("correct", correct, num_examples=len(confidence)).to(confidence.device)
    check_num_bins(num_bins)
    bins = equal_width_bins(confidence, num_bins)
    count = bins.bincount(minlength=num_bins)
    means = [bins.bincount(v, minlength=num_bins) / count for v in (confidence, correct.double())]
    return Reliability(
        lower=tuple(b / num_bins for b in range(num_bins)),
        count=tuple(count.tolist()),
        confidence=tuple(means[0].tolist()),
        accuracy=tuple(means[1].tolist()),
    )


def confidence_of(probs: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """The largest probability (N,), and whether its class is the true one (N,)."""
    probs, labels = as_probs(probs, labels)
    confidence, predicted = probs.max(dim=1)
    return confidence, predicted == labels


def equal_width_bins(confidence: Tensor, num_bins: int) -> Tensor:
    """Which of the bins (b / num_bins, (b + 1) / num_bins] holds each float64 confidence (N,); 0 goes to the first."""
    return (confidence * num_bins).ceil().long().clamp(1, num_bins) - 1


def check_num_bins(num_bins: int) -> None:
    """Refuse fewer than one bin."""
    if num_bins < 1:
        raise InputError(f"num_bins must be at least 1, got {num_bins}.")


def _gaps_of_equal_mass(confidence: Tensor, gap: Tensor, rows: Tensor, num_bins: int) -> Tensor:
    """Sum of the gaps in each bin (R, num_bins), the bins made for each row."""
    count, total = rank(confidence).cumulate(rows, gap)
    middle = (before(count) + count) / 2
    bins = (middle * num_bins / count[:, -1:]).nan_to_num().long().clamp_max(num_bins - 1)
    return gap.new_zeros(len(rows), num_bins).scatter_add_(1, bins, total - before(total))

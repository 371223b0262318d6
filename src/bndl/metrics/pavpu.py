"""PAvPU: how often a model is sure and right, or unsure and wrong; always next to its counts and its baseline."""

from dataclasses import dataclass

import torch
from torch import Tensor

from bndl.errors import InputError
from bndl.metrics.inputs import as_flags, as_scores, weighted_mean

__all__ = ["PAvPUCounts", "best_threshold", "certain_at", "check_level", "pavpu", "pavpu_score"]


@dataclass(frozen=True)
class PAvPUCounts:
    """The four counts of (accurate, inaccurate) x (certain, uncertain) decisions."""

    accurate_certain: int
    accurate_uncertain: int
    inaccurate_certain: int
    inaccurate_uncertain: int

    @property
    def total(self) -> int:
        """Number of decisions."""
        return self.accurate_certain + self.accurate_uncertain + self.inaccurate_certain + self.inaccurate_uncertain

    @property
    def value(self) -> float:
        """(accurate and certain + inaccurate and uncertain) / all."""
        return (self.accurate_certain + self.inaccurate_uncertain) / self.total

    @property
    def baseline(self) -> float:
        """PAvPU of calling everything certain: the accuracy. A value that does not beat it means nothing."""
        return (self.accurate_certain + self.accurate_uncertain) / self.total


def certain_at(p_value: Tensor, *, level: float) -> Tensor:
    """Which decisions are certain, ``p_value <= level`` (N,) bool.

    A NaN is uncertain: it is the p-value of a difference that is exactly zero in every draw.

    Args:
        p_value: (N,) of the decision test. It means something only with the number S of draws of its test; those of
            :func:`bndl.predict` are at S = 20.
        level: significance, strictly between 0 and 1.
    """
    check_level(level)
    return p_value <= level


def pavpu(correct: Tensor, certain: Tensor) -> PAvPUCounts:
    """Count decisions.

    Args:
        correct: (N,) bool, whether the decision was right.
        certain: (N,) bool, whether it was made with certainty, such as ``Prediction.certain`` or :func:`certain_at`.
    """
    correct = as_flags("correct", correct)
    certain = as_flags("certain", certain, num_examples=len(correct)).to(correct.device)
    return PAvPUCounts(
        accurate_certain=int((correct & certain).sum()),
        accurate_uncertain=int((correct & ~certain).sum()),
        inaccurate_certain=int((~correct & certain).sum()),
        inaccurate_uncertain=int((~correct & ~certain).sum()),
    )


def pavpu_score(correct: Tensor, certain: Tensor, *, weights: Tensor | None = None) -> Tensor:
    """``pavpu(correct, certain).value``, for a bootstrap: the share of decisions where right and certain agree.

    Args:
        correct: (N,) bool.
        certain: (N,) bool.
        weights: (R, N) how often each example counts, a row a bootstrap resample.
    Returns:
        float64, dims (), or (R,) with weights.
    """
    correct = as_flags("correct", correct)
    certain = as_flags("certain", certain, num_examples=len(correct)).to(correct.device)
    return weighted_mean((correct == certain).double(), weights)


def check_level(level: float) -> None:
    """Refuse what is no significance."""
    if not 0 < level < 1:
        raise InputError(f"level is a significance strictly between 0 and 1, got {level}.")


def best_threshold(margin: Tensor, correct: Tensor) -> float:
    """The threshold with the best PAvPU when decisions with ``margin >= threshold`` are certain; the least of equals.

    Args:
        margin: (N,) how clear each decision is, such as ``Examples.margin``; of held-out data, not of those reported on.
        correct: (N,) bool.
    """
    margin, correct = as_scores("margin", margin), as_flags("correct", correct, num_examples=len(margin))
    values, group = margin.unique(return_inverse=True)  # ascending
    gain = torch.zeros(len(values), dtype=torch.float64)
    gain.index_add_(0, group, 2 * correct.double() - 1)
    certain = gain.flip(0).cumsum(0).flip(0)  # of calling this value and all larger ones certain
    best = int(certain.argmax())
    return torch.inf if certain[best] < 0 else float(values[best])

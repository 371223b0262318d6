"""PAvPU: how often a model is sure and right, or unsure and wrong; always next to its counts and its baseline."""

from dataclasses import dataclass

from torch import Tensor

__all__ = ["PAvPU", "pavpu"]


@dataclass(frozen=True)
class PAvPU:
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


def pavpu(correct: Tensor, certain: Tensor) -> PAvPU:
    """Count decisions.

    Args:
        correct: (B,) bool, whether the decision was right.
        certain: (B,) bool, whether it was made with certainty, such as ``Prediction.certain``.
    """
    return PAvPU(
        accurate_certain=int((correct & certain).sum()),
        accurate_uncertain=int((correct & ~certain).sum()),
        inaccurate_certain=int((~correct & certain).sum()),
        inaccurate_uncertain=int((~correct & ~certain).sum()),
    )

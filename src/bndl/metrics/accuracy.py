"""Accuracy: the share of decisions that are right."""

from torch import Tensor

from bndl.metrics.inputs import as_flags, weighted_mean

__all__ = ["accuracy"]


def accuracy(correct: Tensor, *, weights: Tensor | None = None) -> Tensor:
    """Share of right decisions.

    Args:
        correct: (N,) bool, such as ``prediction.labels == truth``.
        weights: (R, N) how often each example counts, a row a bootstrap resample.
    Returns:
        float64, dims (), or (R,) with weights.
    """
    return weighted_mean(as_flags("correct", correct).double(), weights)

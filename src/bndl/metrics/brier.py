"""Brier score: squared distance of the probabilities from the truth."""

import torch
from torch import Tensor

from bndl.metrics.inputs import as_probs, weighted_mean

__all__ = ["brier_score", "squared_distance"]

_ROWS = 4096  # at once, so that a large (N, C) is never copied whole


def squared_distance(probs: Tensor, labels: Tensor) -> Tensor:
    r"""Each example's :math:`\sum_c (p_c - [c = y])^2 = \sum_c p_c^2 - 2 p_y + 1` (N,), float64.

    Args:
        probs: (N, C), rows sum to 1.
        labels: (N,) true classes.
    """
    probs, labels = as_probs(probs, labels)
    squares = torch.cat([part.double().square().sum(dim=1) for part in probs.split(_ROWS)])
    return (squares - 2 * probs.gather(1, labels[:, None])[:, 0].double() + 1).clamp_min(0)


def brier_score(probs: Tensor, labels: Tensor, *, weights: Tensor | None = None) -> Tensor:
    r"""Mean over examples of the squared distance, summed over classes: 0 is best, 2 is worst.

    .. math:: \mathrm{Brier} = \frac{1}{N} \sum_n \sum_c \bigl(p_n(c) - [c = y_n]\bigr)^2

    Args:
        probs: (N, C), rows sum to 1.
        labels: (N,) true classes.
        weights: (R, N) how often each example counts, a row a bootstrap resample.
    Returns:
        float64, dims (), or (R,) with weights.
    """
    return weighted_mean(squared_distance(probs, labels), weights)

"""Negative log-likelihood: what the probability of the true class is worth, in nats."""

import torch
from torch import Tensor

from bndl.metrics.inputs import as_probs, weighted_mean

__all__ = ["log_likelihood", "negative_log_likelihood"]


def log_likelihood(probs: Tensor, labels: Tensor) -> Tensor:
    """ln p(true class) of each example (N,), float64; a probability of 0 counts as the smallest normal of its dtype.

    Args:
        probs: (N, C), rows sum to 1.
        labels: (N,) true classes.
    """
    probs, labels = as_probs(probs, labels)
    return probs.gather(1, labels[:, None])[:, 0].clamp_min(torch.finfo(probs.dtype).tiny).double().log()


def negative_log_likelihood(probs: Tensor, labels: Tensor, *, weights: Tensor | None = None) -> Tensor:
    r"""Mean of -ln p(true class), in nats.

    .. math:: \mathrm{NLL} = -\frac{1}{N} \sum_n \ln p_n(y_n)

    Args:
        probs: (N, C), rows sum to 1.
        labels: (N,) true classes.
        weights: (R, N) how often each example counts, a row a bootstrap resample.
    Returns:
        float64, dims (), or (R,) with weights.
    """
    return weighted_mean(-log_likelihood(probs, labels), weights)

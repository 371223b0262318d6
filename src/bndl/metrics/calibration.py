"""Whether probabilities mean what they say: negative log-likelihood and expected calibration error."""

import torch
from torch import Tensor

__all__ = ["expected_calibration_error", "negative_log_likelihood"]


def negative_log_likelihood(probs: Tensor, labels: Tensor) -> float:
    """Mean of -ln p(true class), in nats.

    Args:
        probs: (B, C), rows sum to 1.
        labels: (B,) true classes.
    """
    chosen = probs.gather(1, labels[:, None]).clamp_min(torch.finfo(probs.dtype).tiny)
    return float(-chosen.log().mean())


def expected_calibration_error(probs: Tensor, labels: Tensor, *, num_bins: int = 15) -> float:
    r"""Mean gap between confidence and accuracy over equal-width bins of the largest probability.

    .. math:: \mathrm{ECE} = \sum_b \frac{n_b}{N}\,\bigl|\mathrm{acc}(b) - \mathrm{conf}(b)\bigr|

    Args:
        probs: (B, C), rows sum to 1.
        labels: (B,) true classes.
        num_bins: number of bins of (0, 1].
    """
    confidence, predicted = probs.double().max(dim=1)
    bins = (confidence * num_bins).ceil().long().clamp(1, num_bins) - 1
    gap = torch.zeros(num_bins, dtype=torch.float64, device=probs.device)
    gap.index_add_(0, bins, (predicted == labels).double() - confidence)
    return float(gap.abs().sum() / len(labels))

"""How well a score finds what it should: errors (score: uncertainty, positive: wrong), or data of another kind (OOD).

Where only one class is present nothing can be told apart and the answer is NaN, also in a single bootstrap resample.
"""

import torch
from torch import Tensor

from bndl.errors import InputError
from bndl.metrics.inputs import as_flags, as_rows, as_scores
from bndl.metrics.ranking import before, rank

__all__ = ["auroc", "average_precision", "fpr_at_tpr"]


def auroc(score: Tensor, positive: Tensor, *, weights: Tensor | None = None) -> Tensor:
    r"""Area under the ROC curve.

    .. math:: P(s_+ > s_-) + \tfrac{1}{2} P(s_+ = s_-)

    Args:
        score: (N,) larger speaks for positive.
        positive: (N,) bool.
        weights: (R, N) how often each example counts, a row a bootstrap resample.
    Returns:
        float64, dims (), or (R,) with weights; NaN where only one class is present.
    """
    true, false = _found(score, positive, weights)
    area = ((false - before(false)) * (true + before(true))).sum(dim=1) / 2
    result = area / (true[:, -1] * false[:, -1])
    return result[0] if weights is None else result


def average_precision(score: Tensor, positive: Tensor, *, weights: Tensor | None = None) -> Tensor:
    r"""Area under the precision-recall curve (AUPR), as a sum over thresholds g from the highest score down.

    .. math:: \sum_g (\mathrm{recall}_g - \mathrm{recall}_{g-1})\,\mathrm{precision}_g

    Args:
        score: (N,) larger speaks for positive.
        positive: (N,) bool.
        weights: (R, N) how often each example counts, a row a bootstrap resample.
    Returns:
        float64, dims (), or (R,) with weights; NaN where only one class is present.
    """
    true, false = _found(score, positive, weights)
    precision = true / (true + false).clamp_min(torch.finfo(torch.float64).tiny)
    area = ((true - before(true)) * precision).sum(dim=1) / true[:, -1]
    result = torch.where(false[:, -1] > 0, area, torch.nan)
    return result[0] if weights is None else result


def fpr_at_tpr(score: Tensor, positive: Tensor, *, tpr: float = 0.95, weights: Tensor | None = None) -> Tensor:
    """Share of negatives that pass the highest threshold which at least ``tpr`` of the positives pass.

    Args:
        score: (N,) larger speaks for positive.
        positive: (N,) bool.
        tpr: share of the positives that has to be found, in (0, 1].
        weights: (R, N) how often each example counts, a row a bootstrap resample.
    Returns:
        float64, dims (), or (R,) with weights; NaN where only one class is present.
    """
    if not 0 < tpr <= 1:
        raise InputError(f"tpr is a share of the positives, above 0 and at most 1, got {tpr}.")
    true, false = _found(score, positive, weights)
    needed = tpr * true[:, -1:] * (1 - 1e-12)
    threshold = torch.searchsorted(true, needed).clamp_max(true.size(1) - 1)
    share = false.gather(1, threshold)[:, 0] / false[:, -1]
    result = torch.where(true[:, -1] > 0, share, torch.nan)
    return result[0] if weights is None else result


def _found(score: Tensor, positive: Tensor, weights: Tensor | None) -> tuple[Tensor, Tensor]:
    """True and false positives (R, G) at each threshold, the highest score first."""
    score = as_scores("score", score)
    positive = as_flags("positive", positive, num_examples=len(score)).to(score.device)
    rows = as_rows(weights, len(score), device=score.device)
    count, true = rank(score, descending=True).cumulate(rows, positive.double())
    return true, count - true

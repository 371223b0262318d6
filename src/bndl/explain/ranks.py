"""How alike two orders are: ranks with ties, Spearman's correlation, overlap of the largest."""

import torch
from torch import Tensor

__all__ = ["overlap", "ranks", "spearman"]


def ranks(values: Tensor) -> Tensor:
    """Ranks from 1 along the last dim, in float64; equal values share the mean of their ranks."""
    ordered = values.sort(dim=-1).values.contiguous()
    first = torch.searchsorted(ordered, values.contiguous(), right=False)
    last = torch.searchsorted(ordered, values.contiguous(), right=True)
    return (first + last + 1).double() / 2


def spearman(first: Tensor, second: Tensor) -> Tensor:
    """Rank correlation along the last dim, (..., M) and (..., M) -> (...,); NaN where one of them is constant."""
    a, b = (own - own.mean(dim=-1, keepdim=True) for own in (ranks(first), ranks(second)))
    return (a * b).sum(dim=-1) / (a.square().sum(dim=-1) * b.square().sum(dim=-1)).sqrt()


def overlap(first: Tensor, second: Tensor, *, top: int = 10) -> Tensor:
    """Share of the ``top`` largest of (..., M) that are among the ``top`` largest of the other too: (...,) in [0, 1]."""
    count = min(top, first.size(-1))
    chosen = torch.zeros_like(first, dtype=torch.bool).scatter(-1, first.topk(count, dim=-1).indices, True)
    return chosen.gather(-1, second.topk(count, dim=-1).indices).double().mean(dim=-1)

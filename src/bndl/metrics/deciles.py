"""Accuracy by uncertainty decile: ten groups of equal size, from the surest to the least sure."""

from dataclasses import dataclass

import torch
from torch import Tensor

from bndl.errors import InputError
from bndl.metrics.inputs import as_flags, as_rows, as_scores
from bndl.metrics.ranking import expected_sum, rank

__all__ = ["Deciles", "accuracy_by_decile"]


@dataclass(frozen=True)
class Deciles:
    """Accuracy and size of each group, the surest first."""

    accuracy: tuple[float, ...]
    count: tuple[int, ...]


def accuracy_by_decile(uncertainty: Tensor, correct: Tensor, *, num_groups: int = 10) -> Deciles:
    """Accuracy in groups of equal count (they differ by one at most), ordered by uncertainty.

    Where examples of equal uncertainty lie on both sides of an edge, each side counts their mean, so the order of the
    input does not matter.

    Args:
        uncertainty: (N,) larger is less sure, such as ``Prediction.flip_probability``.
        correct: (N,) bool.
        num_groups: number of groups; empty ones are left out when there are fewer examples.
    """
    if num_groups < 1:
        raise InputError(f"num_groups must be at least 1, got {num_groups}.")
    uncertainty = as_scores("uncertainty", uncertainty)
    right = as_flags("correct", correct, num_examples=len(uncertainty)).to(uncertainty.device).double()
    count, total = rank(uncertainty).cumulate(as_rows(None, len(right), device=right.device), right)
    sizes = [len(group) for group in torch.tensor_split(right, num_groups) if len(group)]
    size = torch.tensor(sizes, dtype=torch.float64, device=right.device)
    sums = expected_sum(count, total, size.cumsum(dim=0)[None])[0]
    return Deciles(tuple((sums.diff(prepend=sums.new_zeros(1)) / size).tolist()), tuple(sizes))

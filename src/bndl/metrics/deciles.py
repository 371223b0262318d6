"""Accuracy by uncertainty decile: ten groups of equal size, from the surest to the least sure."""

from dataclasses import dataclass

import torch
from torch import Tensor

__all__ = ["Deciles", "accuracy_by_decile"]


@dataclass(frozen=True)
class Deciles:
    """Accuracy and size of each group, the surest first."""

    accuracy: tuple[float, ...]
    count: tuple[int, ...]


def accuracy_by_decile(uncertainty: Tensor, correct: Tensor, *, num_groups: int = 10) -> Deciles:
    """Accuracy in groups of equal count (they differ by one at most), ordered by uncertainty.

    Args:
        uncertainty: (B,) larger is less sure, such as ``Prediction.flip_probability``.
        correct: (B,) bool.
        num_groups: number of groups; empty ones are left out when there are fewer examples.
    """
    ordered = correct[uncertainty.argsort(stable=True)].double()
    groups = [group for group in torch.tensor_split(ordered, num_groups) if len(group)]
    return Deciles(tuple(float(group.mean()) for group in groups), tuple(len(group) for group in groups))

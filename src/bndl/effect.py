"""What a change of the decision layer does to a data set: which examples it fixes, and which it breaks."""

from dataclasses import dataclass

import torch
from torch import Tensor

from bndl.errors import InputError
from bndl.features import FeatureSet, evaluating
from bndl.layer import DecisionLayer

__all__ = ["ClassEffect", "Effect", "compared"]

_ROWS = 4096  # examples a product


@dataclass(frozen=True)
class ClassEffect:
    """Of one class's examples: how many there are, how many were and are right, how many are fixed and broken."""

    index: int
    count: int
    right_before: int
    right_after: int
    fixed: int
    broken: int


@dataclass(frozen=True)
class Effect:
    """What edits do to a labelled data set.

    Attributes:
        num_examples: N.
        accuracy_before: share of right decisions before.
        accuracy_after: and after.
        fixed: (M,) int64 examples that were wrong and are right.
        broken: (M,) int64 examples that were right and are wrong.
        changed: (M,) int64 examples with another decision, right or wrong.
        before: (N,) int64 decisions before.
        after: (N,) int64 decisions after.
        by_class: by true class.
    """

    num_examples: int
    accuracy_before: float
    accuracy_after: float
    fixed: Tensor
    broken: Tensor
    changed: Tensor
    before: Tensor
    after: Tensor
    by_class: tuple[ClassEffect, ...]

    def text(self) -> str:
        """In one sentence."""
        return (
            f"fixes {len(self.fixed)} and breaks {len(self.broken)} of {self.num_examples:,} decisions, changes "
            f"{len(self.changed)}; accuracy {self.accuracy_before:.2%} -> {self.accuracy_after:.2%}"
        )


def compared(before: DecisionLayer, after: DecisionLayer, data: FeatureSet) -> Effect:
    """What becomes of the decisions when one layer takes the place of another.

    Args:
        before: the one.
        after: the other, on the same features.
        data: what enters them, and the true classes.
    """
    if not len(data):
        raise InputError("there is nothing to decide: the data are empty.")
    first, second, truth = _decisions(before, data), _decisions(after, data), data.labels.cpu()
    was, is_now = first == truth, second == truth
    fixed, broken = ~was & is_now, was & ~is_now
    counts = [truth[mask].bincount(minlength=before.out_features).tolist() for mask in (was, is_now, fixed, broken)]
    total = truth.bincount(minlength=before.out_features).tolist()
    return Effect(
        num_examples=len(truth),
        accuracy_before=float(was.double().mean()),
        accuracy_after=float(is_now.double().mean()),
        fixed=fixed.nonzero().flatten(),
        broken=broken.nonzero().flatten(),
        changed=(first != second).nonzero().flatten(),
        before=first,
        after=second,
        by_class=tuple(ClassEffect(c, *numbers) for c, numbers in enumerate(zip(total, *counts, strict=True))),
    )


def _decisions(layer: DecisionLayer, data: FeatureSet) -> Tensor:
    """The class (N,) with the largest mean logit."""
    weight = layer.phi().mean
    with evaluating(layer):
        parts = [layer(rows.to(weight)).argmax(dim=1).cpu() for rows in data.features.split(_ROWS)]
    return torch.cat(parts)

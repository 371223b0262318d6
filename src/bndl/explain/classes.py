"""What a class is made of: a short list of features with weights and intervals; and how two classes differ."""

from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import nn

from bndl.convert import find_layer
from bndl.errors import InputError
from bndl.explain.arguments import whole
from bndl.explain.intervals import difference_interval, weight_interval
from bndl.layer import ACTIVE_ABOVE, DecisionLayer

__all__ = ["ClassDifference", "ClassWeight", "class_features", "compare_classes", "feature_name"]


@dataclass(frozen=True)
class ClassWeight:
    """A feature that speaks for a class, the mean of its weight Phi_kc and the weight's interval."""

    feature: int
    weight: float
    low: float
    high: float

    def to_dict(self) -> dict[str, Any]:
        """As JSON takes it."""
        return asdict(self)


@dataclass(frozen=True)
class ClassDifference:
    """A feature that speaks for one class more than for another.

    Attributes:
        feature: its number among all features.
        first: its weight for the first class.
        second: its weight for the second.
        difference: ``first - second``; below 0 it speaks for the second.
        low: of the difference's interval.
        high: of the difference's interval.
    """

    feature: int
    first: float
    second: float
    difference: float
    low: float
    high: float

    def to_dict(self) -> dict[str, Any]:
        """As JSON takes it."""
        return asdict(self)


@torch.no_grad()
def class_features(
    layer: nn.Module, target: int, *, top: int | None = None, level: float = 0.9
) -> tuple[ClassWeight, ...]:
    """The features that a class has a weight for, the largest first.

    Args:
        layer: the decision layer, or a model that has one.
        target: the class.
        top: how many at most; None for all. Weights up to 1e-5 count as none.
        level: of the intervals, by the weight's own posterior.
    """
    layer = find_layer(layer)
    target, top = _class(layer, target), _most(top)
    phi = layer.phi()
    weights = phi.mean[target].cpu()
    shape = phi.shape.expand(phi.mean.size())[target].cpu()
    order = weights.argsort(descending=True, stable=True)
    order = order[weights[order] > ACTIVE_ABOVE][:top]
    interval = weight_interval(weights[order], shape[order], level=level)
    columns = (layer.feature_ids.cpu()[order], weights[order], interval.low, interval.high)
    return tuple(ClassWeight(*row) for row in zip(*(column.tolist() for column in columns), strict=True))


@torch.no_grad()
def compare_classes(
    layer: nn.Module, first: int, second: int, *, top: int | None = None, level: float = 0.9
) -> tuple[ClassDifference, ...]:
    """The difference of two classes' lists, the largest difference of either sign first.

    Args:
        layer: the decision layer, or a model that has one.
        first: the one class.
        second: the other.
        top: how many at most; None for all that have a weight for either.
        level: of the intervals.
    """
    layer = find_layer(layer)
    first, second, top = _class(layer, first), _class(layer, second), _most(top)
    phi = layer.phi()
    a, b = phi.mean[first].cpu(), phi.mean[second].cpu()
    shape = phi.shape.expand(phi.mean.size()).cpu()
    order = (a - b).abs().argsort(descending=True, stable=True)
    order = order[torch.maximum(a, b)[order] > ACTIVE_ABOVE][:top]
    interval = difference_interval(a[order], b[order], shape[first, order], shape[second, order], level=level)
    numbers = layer.feature_ids.cpu()[order]
    columns = (numbers, a[order], b[order], (a - b)[order], interval.low, interval.high)
    return tuple(ClassDifference(*row) for row in zip(*(column.tolist() for column in columns), strict=True))


def feature_name(feature: int, in_features: int) -> str:
    """What a feature is called: ``f12``, or ``f12-`` for the negative part of input 12 in a signed layer."""
    return f"f{feature}" if feature < in_features else f"f{feature - in_features}-"


def _class(layer: DecisionLayer, target: int) -> int:
    target = whole(target, name="a class's number", least=0)
    if target >= layer.out_features:
        raise InputError(f"classes are numbered 0..{layer.out_features - 1}, got {target}.")
    return target


def _most(top: int | None) -> int | None:
    return None if top is None else whole(top, name="top", least=1)

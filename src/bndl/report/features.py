"""What a feature means: the images that activate it most and, since these flatter, those that activate it as usual."""

from dataclasses import dataclass

import torch
from torch import Tensor

from bndl.explain.classes import feature_name
from bndl.explain.intervals import weight_interval
from bndl.report.decided import Decided
from bndl.report.pictures import Pictures
from bndl.report.schema import FeatureImage, FeatureRecord, Served

__all__ = ["Shown", "feature_records", "shown_of"]

_CLASSES = 40  # that a feature serves, listed


@dataclass(frozen=True)
class Shown:
    """The examples that a feature is shown by."""

    top: tuple[int, ...]
    moderate: tuple[int, ...]


def shown_of(theta: Tensor, *, num_top: int, num_moderate: int) -> Shown:
    """The examples with the largest theta (N,), and those around the median of the active ones, no example twice."""
    order = theta.argsort(descending=True, stable=True)
    order = order[: int((theta > 0).sum())]
    top = order[:num_top]
    start = max(len(top), (len(order) - num_moderate + 1) // 2)
    return Shown(tuple(top.tolist()), tuple(order[start : start + num_moderate].tolist()))


def feature_records(
    decided: Decided, features: list[int], theta: Tensor, shown: list[Shown], pictures: Pictures
) -> tuple[FeatureRecord, ...]:
    """One record a feature.

    Args:
        decided: what the layer decided.
        features: their numbers.
        theta: (N, F) of these.
        shown: the examples of each.
        pictures: of the examples.
    """
    pairs = [(number, i) for number, own in zip(features, shown, strict=True) for i in (*own.top, *own.moderate)]
    overlays = pictures.overlays(pairs)
    phi = decided.layer.phi()
    interval = weight_interval(phi.mean.detach(), phi.shape.detach())
    records = []
    for position, (number, own) in enumerate(zip(features, shown, strict=True)):
        values, column = theta[:, position], decided.column[number]

        def images(
            examples: tuple[int, ...], number: int = number, values: Tensor = values
        ) -> tuple[FeatureImage, ...]:
            found = [(pictures.thumb(i), i) for i in examples]
            return tuple(
                FeatureImage(thumb, i, float(values[i]), overlays.get((number, i)))
                for thumb, i in found
                if thumb is not None
            )

        records.append(
            FeatureRecord(
                feature=number,
                label=feature_name(number, decided.layer.in_features),
                mean=float(values.double().mean()),
                active=float((values > 0).double().mean()),
                classes=_served(decided, column, interval.low.cpu(), interval.high.cpu()),
                top=images(own.top),
                moderate=images(own.moderate),
            )
        )
    return tuple(records)


def _served(decided: Decided, column: int, low: Tensor, high: Tensor) -> tuple[Served, ...]:
    weights = decided.phi[:, column]
    order = torch.argsort(weights, descending=True, stable=True).tolist()
    kept = [target for target in order if decided.active[target, column]][:_CLASSES]
    return tuple(Served(c, float(weights[c]), float(low[c, column]), float(high[c, column])) for c in kept)

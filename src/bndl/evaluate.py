"""Everything there is to measure of a classifier, from one pass over the data: figures, curves, OOD, shift."""

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from bndl.decide import Method
from bndl.errors import InputError
from bndl.evaluation.measure import measure, outside_of
from bndl.evaluation.record import Evaluation, SepinAt
from bndl.evaluation.shift import Wanted, corruptions_of, shifts
from bndl.evaluation.stream import Augmentation, Plan, classes_of, stream
from bndl.evaluation.ways import Ways, ways_of

if TYPE_CHECKING:
    from bndl.data.sets import LabelledSet

__all__ = ["evaluate", "evaluate_all"]

_SEPIN_AT = (1, 10, 100, 1000)
_SMALL = 64  # side of images that are cropped as those of CIFAR are


def evaluate(
    model: Any,
    data: Any,
    *,
    ood: Mapping[str, Any] | None = None,
    shift: Wanted = False,
    sepin: bool | Augmentation = False,
    method: Method = "sample",
    num_samples: int | None = None,
    classes: Sequence[str] | None = None,
    seed: int = 0,
    num_resamples: int = 1000,
    batch_size: int = 256,
    progress: bool | None = None,
) -> Evaluation:
    """Measure a classifier, each example passing the backbone once; one number an example is kept, never (N, C).

    Args:
        model: a network with a :class:`bndl.DecisionLayer`; one with a linear head, to compare with; either of these heads
            alone, or a fitted method of :mod:`bndl.baselines`, on features; or anything with ``predict(x) -> Prediction``.
        data: labelled examples: a loader, a data set, a :class:`bndl.features.FeatureSet`, or a pair (inputs, labels).
        ood: data of another kind by name, such as ``{"svhn": loader}``; labels are ignored.
        shift: the 15 common corruptions at five severities (True), some of them by name, or a dict of name to severities.
            Needs images, uint8 or floats in [0, 1], and a pass over the data for each.
        sepin: how much features say on their own, in views by this augmentation (True: crops and flips). Needs images in
            a data set of ours or a pair.
        method: as in :func:`bndl.predict`, for decision layers.
        num_samples: as in :func:`bndl.predict`, for decision layers.
        classes: names of the classes; by default those of the data, or numbers.
        seed: of noise, resamples, corruptions and views; the same seed gives the same figures.
        num_resamples: bootstrap resamples behind the intervals.
        batch_size: examples a pass, unless ``data`` is a loader.
        progress: whether to show bars; None: when it takes longer than two seconds and there is a terminal.
    """
    plan = Plan(
        ood={} if ood is None else ood,
        shift=corruptions_of(shift),
        sepin=sepin,
        classes=classes,
        seed=seed,
        num_resamples=num_resamples,
        batch_size=batch_size,
        progress=progress,
    )
    ways = ways_of(model, method=method, num_samples=num_samples, seed=seed)
    (evaluation,) = evaluate_all(ways, data, plan).values()
    return evaluation


def evaluate_all(ways: Ways, data: Any, plan: Plan) -> dict[str, Evaluation]:
    """Each of several ways to decide, by its name; they share every pass over the backbone."""
    if plan.shift and isinstance(data, Iterator):
        raise InputError("corruptions need a pass over the data for each: give a loader or a data set, no iterator.")
    images = _images_of(data, ways) if plan.sepin else None
    started = time.monotonic()
    about = plan.about or str(getattr(data, "name", ""))
    inside = stream(ways, data, plan, description=about or "evaluate")
    classes = classes_of(data, plan.classes, count=inside.num_classes)
    found = {
        way: measure(examples, name=way, data=about, classes=classes, ways=ways, plan=plan)
        for way, examples in inside.examples.items()
    }
    found = _kept(found, started, plan)
    for name, others in plan.ood.items():
        outside = stream(ways, others, plan, description=name, labelled=False)
        records = {
            way: outside_of(inside.examples[way], outside.examples[way], num_classes=len(classes), plan=plan)
            for way in found
        }
        found = {way: replace(one, ood=one.ood | {name: records[way]}) for way, one in found.items()}
        found = _kept(found, started, plan)
    for shift in shifts(ways, data, plan):
        found = _kept({way: replace(one, shift=shift[way]) for way, one in found.items()}, started, plan)
    if images is not None:
        sepin = _sepin(ways, images, plan)
        found = _kept({way: replace(one, sepin=sepin) for way, one in found.items()}, started, plan)
    return found


def _kept(found: dict[str, Evaluation], started: float, plan: Plan) -> dict[str, Evaluation]:
    found = {way: replace(one, seconds=time.monotonic() - started) for way, one in found.items()}
    plan.keep(found)
    return found


def _images_of(data: Any, ways: Ways) -> "LabelledSet":
    """The images that SEPIN augments."""
    from bndl.data.sets import ArraySet, LabelledSet

    if ways.model is None:
        raise InputError("SEPIN looks into a network: give the model itself, with a decision layer or a linear head.")
    if isinstance(data, LabelledSet):
        return data
    if isinstance(data, tuple) and len(data) == 2 and all(isinstance(part, Tensor | np.ndarray) for part in data):
        inputs, labels = (torch.as_tensor(part) for part in data)
        names = tuple(str(number) for number in range(max(2, int(labels.max()) + 1)))
        return ArraySet("the images", labels.long(), names, inputs)
    raise InputError("SEPIN chooses and augments images itself: give a set of bndl.data or a pair (images, labels).")


def _sepin(ways: Ways, images: "LabelledSet", plan: Plan) -> SepinAt:
    from bndl.metrics.sepin import BATCH_SIZE, TEMPERATURE, sepin_of

    dims = tuple(images[0][0].size())
    if len(dims) != 3:
        raise InputError(f"SEPIN needs images (C, H, W), got examples with dims {dims}.")
    if plan.sepin is True:
        from bndl.train.augment import Augment

        augment: Augmentation = Augment("cifar" if dims[2] <= _SMALL else "imagenet", dims[2])
    else:
        augment = plan.sepin  # type: ignore[assignment]
    assert ways.model is not None
    options: dict[str, Any] = {"seed": plan.seed, "progress": plan.progress}
    found = sepin_of(ways.model, images, augment=augment, **options)
    at = {str(k): found.at(k) for k in _SEPIN_AT} | {"all": found.all}
    return SepinAt(at, min(10_000, len(images)), len(found.values), TEMPERATURE, BATCH_SIZE)

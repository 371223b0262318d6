"""From data to one number an example of all that figures need: batch by batch, never (N, C)."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from bndl.errors import InputError
from bndl.evaluation.record import Evaluation
from bndl.evaluation.ways import Ways
from bndl.features import FeatureSet, Inputs, check_labels, iterate, split_batch
from bndl.metrics.examples import Examples
from bndl.progress import track

__all__ = ["Augmentation", "Change", "Plan", "Streamed", "classes_of", "stream"]

Augmentation = Callable[[Tensor], Tensor]
Change = Callable[[Inputs, int], Inputs]


def _silent(found: dict[str, Evaluation]) -> None:
    pass


@dataclass(frozen=True)
class Plan:
    """What to measure, and how; see :func:`bndl.evaluate`.

    Attributes:
        ood: data of another kind, by name.
        shift: corruption to severities.
        sepin: whether to measure SEPIN, or the augmentation to do it with.
        classes: names of the classes; None: those of the data, or numbers.
        about: what the data are called.
        seed: of everything random.
        num_resamples: of the bootstrap.
        batch_size: examples a pass.
        workers: processes that load a data set's examples.
        progress: as in :func:`bndl.progress.track`.
        keep: is given what there is so far, after each set and each corruption, so that it can be saved.
    """

    ood: Mapping[str, Any] = field(default_factory=dict)
    shift: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    sepin: bool | Augmentation = False
    classes: Sequence[str] | None = None
    about: str = ""
    seed: int = 0
    num_resamples: int = 1000
    batch_size: int = 256
    workers: int = 0
    progress: bool | None = None
    keep: Callable[[dict[str, Evaluation]], None] = _silent

    def __post_init__(self) -> None:
        if not isinstance(self.ood, Mapping):
            raise InputError('ood is a dict of a name to data, such as {"svhn": loader}.')
        for name in ("num_resamples", "batch_size"):
            if getattr(self, name) < 1:
                raise InputError(f"{name} must be at least 1, got {getattr(self, name)}.")


@dataclass(frozen=True)
class Streamed:
    """What each way said of a data set, one number an example, and the number of classes it chose from."""

    examples: dict[str, Examples]
    num_classes: int


def stream(
    ways: Ways,
    data: Any,
    plan: Plan,
    *,
    description: str,
    labelled: bool = True,
    change: Change | None = None,
    progress: bool | None = None,
) -> Streamed:
    """What each way says of a data set, every batch passing the backbone once.

    Args:
        ways: what decides.
        data: see :func:`bndl.evaluate`.
        plan: how.
        description: what the data are, for the progress bar and for errors.
        labelled: whether there are labels to be right or wrong about; else they are ignored.
        change: inputs and the number of the first of them -> inputs, such as a corruption.
        progress: in place of the plan's.
    """
    parts: dict[str, list[Examples]] = {name: [] for name in ways.names}
    start = num_classes = 0
    batches = _batches(data, batch_size=plan.batch_size, workers=plan.workers)
    for batch in track(batches, description, progress=plan.progress if progress is None else progress):
        inputs, labels = split_batch(batch)
        if labelled and labels is None:
            raise InputError("labels are needed: give batches (inputs, labels), or dicts with a 'labels' key.")
        decisions = ways.decide(inputs if change is None else change(inputs, start))
        count, num_classes = decisions[0].prediction.probs.size()
        truth = check_labels(labels, num_classes, count=count) if labelled else None
        for own, decision in zip(parts.values(), decisions, strict=True):
            own.append(Examples.of(decision.prediction, truth, num_features=decision.num_features))
        start += count
    if not start:
        raise InputError(f"there is nothing to evaluate on: {description or 'the data'} gave no example.")
    return Streamed({name: Examples.cat(own) for name, own in parts.items()}, num_classes)


def _batches(data: Any, *, batch_size: int, workers: int) -> Iterable[Any]:
    """Batches of anything; what lies in memory is cut, not copied."""
    from bndl.data.sets import ArraySet

    if isinstance(data, FeatureSet):
        data = (data.features, data.labels)
    elif isinstance(data, ArraySet) and data.transform is None:
        data = (data.inputs, data.labels)
    elif isinstance(data, Dataset):
        return DataLoader(data, batch_size=batch_size, num_workers=workers, generator=torch.Generator())
    if not (isinstance(data, tuple) and len(data) == 2 and all(isinstance(p, Tensor | np.ndarray) for p in data)):
        return iterate(data, batch_size=batch_size)
    inputs, labels = (torch.as_tensor(part) for part in data)
    if labels.dim() != 1 or inputs.dim() == 0 or len(inputs) != len(labels):
        raise InputError(f"the inputs have dims {tuple(inputs.size())}, the labels {tuple(labels.size())}: give (N,).")
    return [(inputs[i : i + batch_size], labels[i : i + batch_size]) for i in range(0, len(inputs), batch_size)]


def classes_of(data: Any, given: Sequence[str] | None, *, count: int) -> tuple[str, ...]:
    """Names of the classes: those given, those of the data if there are as many, or numbers."""
    if given is not None:
        if len(given) != count:
            raise InputError(f"the model has {count} classes, got {len(given)} names.")
        return tuple(str(name) for name in given)
    own = getattr(data, "classes", None) or getattr(getattr(data, "dataset", None), "classes", None)
    if isinstance(own, list | tuple) and len(own) == count:
        return tuple(str(name) for name in own)
    return tuple(str(number) for number in range(count))

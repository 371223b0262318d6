"""A run to explain: its model with a decision layer, its data, and its dense twin. Needs what training needs."""

import copy
import os
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import torch
from torch import Tensor, nn

from bndl.baselines import get_method
from bndl.calibrate import calibrate
from bndl.convert import convert, find_layer
from bndl.data import LabelledSet, Splits, as_float
from bndl.data.calling import known_names, read_names
from bndl.errors import FileError, InputError
from bndl.evaluation.of_run import limited
from bndl.features import extract
from bndl.layer import DecisionLayer
from bndl.sparsify.finetuning import FINETUNED
from bndl.store import load, read_header
from bndl.train import Run, load_run, loader
from bndl.train.network import read_splits
from bndl.train.record import read_plan

__all__ = ["Subject", "load_subject"]

_CALIBRATE_ON = 500  # validation examples that the noise of a converted head is fitted to
_NAMED = 20  # classes that an error lists
_PARTS = ("test", "val", "train")


@dataclass(frozen=True)
class Subject:
    """A run that can be explained.

    Attributes:
        run: as it was loaded; its ``model`` is this one's, or the dense one if the run is dense.
        model: in ``eval()``, with a decision layer; takes what :meth:`inputs` gives.
        layer: the model's decision layer.
        classes: what to call the C classes; their names in the data are ``run.classes``.
        dense: the model before its head was converted, if the run is dense; else None.
        about: in words, what was done to the run's model.
    """

    run: Run
    model: nn.Module
    layer: DecisionLayer
    classes: tuple[str, ...]
    dense: nn.Module | None
    about: tuple[str, ...]

    def data(self, part: str = "test") -> LabelledSet:
        """The ``"test"``, ``"val"`` or ``"train"`` part of the run's own data, as it was split then."""
        if part not in _PARTS:
            raise InputError(f"a part is one of {', '.join(_PARTS)}, got {part!r}.")
        found: LabelledSet | None = getattr(self._splits, part)
        if found is None or not len(found):
            raise InputError(f"{self.run.recipe.data.name} has no {part} part: choose another.")
        return found

    @property
    def parts(self) -> tuple[str, ...]:
        """Which parts the run's own data have."""
        return tuple(part for part in _PARTS if getattr(self._splits, part))

    @cached_property
    def _splits(self) -> Splits:
        return read_splits(self.run.recipe, plan=read_plan(self.run.folder))

    def inputs(self, images: Tensor) -> Tensor:
        """Images (B, C, H, W) uint8, as :meth:`data` and ``run.read`` give them, as the model takes them: in [0, 1]."""
        return as_float(images) if images.dtype == torch.uint8 else images

    def class_index(self, name: str) -> int:
        """The number of a class by its name, here or in the data, or, if none is called so, by its number."""
        for names in (self.classes, self.run.classes):
            if name in names:
                return names.index(name)
        if name.isdecimal() and int(name) < len(self.classes):
            return int(name)
        more = f" and {len(self.classes) - _NAMED} more" if len(self.classes) > _NAMED else ""
        shown = ", ".join(self.classes[:_NAMED]) + more
        raise InputError(f"the run has no class {name!r}: its classes are {shown}.")


def load_subject(
    folder: str | os.PathLike[str],
    *,
    head: str | os.PathLike[str] | None = None,
    names: str | os.PathLike[str] | None = None,
    fit_noise: bool = True,
) -> Subject:
    """Load a finished run for explaining; a dense head is converted, which keeps every decision.

    Args:
        folder: of a run of ``bndl train`` with a decision layer or a dense head.
        head: a safetensors file made from this run: by ``bndl sparsify``, or of an edited model.
        names: a text file of what to call the classes (:func:`bndl.data.calling.read_names`).
        fit_noise: fit the noise of a converted head, which training never saw, to up to 500 validation examples. Where
            they cannot be read, or if False, intervals and p-values are those of the default noise; ``about`` says so.
    Raises:
        InputError: the run has another kind of head.
        FileError: there is no such run, or ``head`` is of another model.
    """
    run = load_run(folder)
    classes = known_names(run.classes) if names is None else read_names(names, run.classes)
    kind = run.recipe.model.head
    if not get_method(kind).layered and kind != "dense":
        raise InputError(f"{folder} has a {kind} head: explanations need a decision layer or a dense head.")
    dense = run.model if kind == "dense" else None
    about = [f"{run.recipe.name}, {kind} head"]
    if head is not None:
        model = _with_head(run, Path(head))
        about.append(f"the head is that of {Path(head).name}")
        about += ["the backbone was fine-tuned with it"] if FINETUNED in find_layer(model).origin else []
    elif dense is None:
        model = run.model
        if kind == "nmf":
            about.append("an NMF head has no noise: intervals have no width, and every p-value is 0 or 1")
    else:
        model = convert(copy.deepcopy(dense))
        about.append("the dense head was converted, with every decision kept")
    layer = find_layer(model)
    if torch.cuda.is_available():
        for each in (model, dense):
            if each is not None:
                each.to("cuda")
    subject = Subject(run, model.eval(), layer, classes, dense, tuple(about))
    if dense is None or head is not None:
        return subject
    said = _fit_noise(subject) if fit_noise else _DEFAULT_NOISE
    return Subject(run, model, layer, classes, dense, (*about, said))


_DEFAULT_NOISE = "its noise is the default, fitted to nothing: take intervals and p-values as rough"


def _fit_noise(subject: Subject) -> str:
    """Fit the shapes, and what scales all logits, in place; what was done, in words."""
    try:
        val = limited(subject.data("val"), _CALIBRATE_ON)
    except (InputError, FileError):
        return f"its validation data are not here, so {_DEFAULT_NOISE}"
    features = extract(subject.model, loader(val, batch_size=100), progress=False)
    calibrate(subject.layer, features, generator=torch.Generator(subject.layer.weight.device).manual_seed(0))
    return f"its noise was fitted to {len(val)} validation examples"


def _with_head(run: Run, path: Path) -> nn.Module:
    """A model that was made from the run's, on a backbone that must be the run's own, or fine-tuned from it."""
    header = read_header(path)
    fresh = copy.deepcopy(run.model)
    before = fresh.state_dict()
    before = {key: value.clone() for key, value in before.items()}
    try:
        model = load(path, backbone=fresh)
    except FileError as error:
        raise FileError(
            f"{path} is no head of {run.folder} ({str(error).rstrip('.')}): give one made from it."
        ) from error
    layer, prefix = find_layer(model), f"{header['head']}."
    names = header.get("classes")
    if layer.out_features != len(run.classes) or (names is not None and tuple(names) != run.classes):
        raise FileError(f"{path} is no head of {run.folder} (its classes are others): give one made from it.")
    after = {key: value for key, value in model.state_dict().items() if not key.startswith(prefix)}
    odd = [key for key, value in after.items() if key not in before or not torch.equal(value, before[key])]
    if odd and FINETUNED not in layer.origin:
        raise FileError(
            f"{path} is no head of {run.folder} (another backbone, first at {odd[0]}): give one made from it."
        )
    return model

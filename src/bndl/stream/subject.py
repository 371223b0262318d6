"""What predicts: a run of ``bndl train`` with its backbone, or a decision layer alone."""

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from bndl.convert import find_layer
from bndl.data.mapped import bytes_of
from bndl.data.sets import digest
from bndl.errors import FileError, InputError
from bndl.layer import DecisionLayer
from bndl.predict import about_empty
from bndl.stream.columns import class_names

__all__ = ["Predictor", "load_predictor"]


@dataclass(frozen=True)
class Predictor:
    """A model to predict with, in ``eval()``.

    Attributes:
        model: takes images, or features if it is the layer itself.
        classes: the names of the C classes.
        read: image file -> (C, H, W) as the model was trained on; None: the layer alone.
        about: in words, what was loaded.
        view: names what ``read`` does with an image, so that another way is another model.
    """

    model: nn.Module
    classes: tuple[str, ...]
    read: Callable[[Path], Tensor] | None = None
    about: tuple[str, ...] = ()
    view: str = ""

    @property
    def layer(self) -> DecisionLayer:
        """The model's decision layer."""
        return find_layer(self.model)

    def fingerprint(self) -> str:
        """Of every number, setting and name."""
        return digest(self._parts())

    def _parts(self) -> Iterator[bytes | memoryview]:
        yield json.dumps([self.classes, self.layer.settings, self.view]).encode()
        for path, module in self.model.named_modules():
            settings = re.sub(r" at 0x[0-9a-fA-F]+", "", module.extra_repr())  # a function's differs by process
            yield f"{path} {type(module).__qualname__} {settings}".encode()
        for path, tensor in (*self.model.named_parameters(), *self.model.named_buffers()):
            yield f"{path} {tuple(tensor.size())} {tensor.dtype} {tensor.device.type}".encode()
            yield bytes_of(tensor.cpu())


def load_predictor(path: Path, *, head: Path | None = None) -> Predictor:
    """Load a run's folder, with another head if one is given, or a ``.safetensors`` file's decision layer."""
    if path.is_dir():
        return _of_run(path, head)
    if head is not None:
        raise InputError(f"--head goes with the folder of a run, but {path} is a file: leave it out.")
    if path.suffix.lower() != ".safetensors":
        raise FileError(f"{path} is neither the folder of a run nor a .safetensors file: check the path.")
    return _of_file(path)


def _of_file(path: Path) -> Predictor:
    from bndl.store import load, read_header

    names = read_header(path).get("classes")
    layer = load(path)
    assert isinstance(layer, DecisionLayer)
    if names is not None and len(names) != layer.out_features:
        raise FileError(f"the header of {path} names {len(names)} classes, its layer has {layer.out_features}.")
    if torch.cuda.is_available():
        layer.to("cuda")
    about = (f"{path.name}, a decision layer of {layer.in_features} features", *_empty(layer))
    return Predictor(layer, class_names(names, layer.out_features), None, about)


def _of_run(folder: Path, head: Path | None) -> Predictor:
    from bndl.explain.subject import load_subject

    subject = load_subject(folder, head=head)
    run = subject.run

    def read(file: Path) -> Tensor:
        return run.read(file)[0]

    view = f"{run.channels} channels, side {run.side}, resize {run.recipe.data.resize}"
    return Predictor(subject.model, run.classes, read, (*subject.about, *_empty(subject.layer)), view)


def _empty(layer: DecisionLayer) -> tuple[str, ...]:
    empty = layer.empty_classes()
    return (about_empty(empty),) if empty else ()

"""What methods are compared on: a trained network, seen through the features of its data.

A subject is named by a pretrained checkpoint (``resnet56_cifar10``), the folder of a finished run with a dense head, or a
recipe, whose networks are trained from scratch (see :mod:`bndl.compare.scratch`).
"""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from bndl.backbones import CIFAR_CHECKPOINTS, build
from bndl.convert import find_linear
from bndl.data import LabelledSet, Reading, cached_features, find, stratified_split
from bndl.errors import FileError, InputError
from bndl.features import FeatureSet

if TYPE_CHECKING:
    from bndl.train import Run

__all__ = ["Images", "Source", "Subject", "find_source", "foreign", "images_of"]


@dataclass(frozen=True)
class Subject:
    """A frozen network: its head, and the features of its data.

    Attributes:
        head: the dense head that the network was trained with.
        train: what it has learnt from.
        val: what it has not seen, for choices and calibration.
        test: what it has not seen, for the figures.
        ood: features (M, K) of data of another kind, by name.
    """

    head: nn.Linear
    train: FeatureSet
    val: FeatureSet
    test: FeatureSet
    ood: Mapping[str, Tensor]


@dataclass(frozen=True)
class Images:
    """A network, the images of each part, and how it reads an image."""

    model: nn.Module
    train: LabelledSet
    val: LabelledSet
    test: LabelledSet
    reading: Reading
    channels: int


@dataclass(frozen=True)
class Source:
    """A subject that was found; it is read when it is needed.

    Attributes:
        name: as the user gave it; also the name of its folder.
        about: what it is, in words.
        cache: folder of the feature cache.
        ood: names or paths of data of another kind, by the name to show.
    """

    name: str
    about: str
    cache: Path
    ood: Mapping[str, str]

    def images(self) -> Images:
        """Read the network and the images."""
        raise NotImplementedError

    @cached_property
    def subject(self) -> Subject:
        """Pass everything through the network once, or find it in the cache."""
        images = self.images()
        model = images.model.eval()
        features = {
            part: cached_features(model, getattr(images, part), folder=self.cache) for part in ("train", "val", "test")
        }
        ood = {
            name: cached_features(model, foreign(place, images), folder=self.cache).features
            for name, place in self.ood.items()
        }
        return Subject(find_linear(model)[1], **features, ood=ood)


@dataclass(frozen=True)
class CheckpointSource(Source):
    """A pretrained network that has seen its whole training set, so the test set is split into val and test.

    Attributes:
        split_seed: of that split, half and half, stratified; the same for all methods and seeds.
    """

    split_seed: int = 0

    def images(self) -> Images:
        """The checkpoint and its data set."""
        stored = find(CIFAR_CHECKPOINTS[self.name].dataset).readers
        train, test = stored["train"](), stored["test"]()
        halves = stratified_split(test.labels, {"test": 0.5}, seed=self.split_seed, classes=test.classes).indices
        built = build(self.name, pretrained=True)
        parts = {"val": test.subset(halves["train"]), "test": test.subset(halves["test"])}
        return Images(built.model, train, **parts, reading=Reading(size=built.size), channels=3)


@dataclass(frozen=True)
class RunSource(Source):
    """The network of a finished run that was trained with a dense head, and the parts of its data.

    Attributes:
        folder: of the run.
    """

    folder: Path

    def images(self) -> Images:
        """The run's network, its training, validation and test part."""
        from bndl.train import load_run

        return images_of(load_run(self.folder))


def images_of(run: "Run") -> Images:
    """The network of a finished run and the parts of its data."""
    from bndl.train.network import read_splits
    from bndl.train.record import read_plan

    splits = read_splits(run.recipe, plan=read_plan(run.folder))
    if splits.val is None or splits.test is None:
        raise InputError(f"the data of {run.folder} have no test part to compare on: give data that do.")
    reading = Reading(size=run.side, resize=run.recipe.data.resize)
    return Images(run.model, splits.train, splits.val, splits.test, reading, run.channels)


def find_source(
    name: str, *, cache: Path, ood: Mapping[str, str] | None = None, split_seed: int = 0
) -> CheckpointSource | RunSource:
    """The subject that a name stands for: a checkpoint's, or the folder of a run.

    Args:
        name: of a checkpoint, or a path.
        cache: folder of the feature cache.
        ood: data of another kind, name to show -> data set's name or path.
        split_seed: of the halves of a checkpoint's test set.
    """
    shared: dict[str, Any] = {"cache": cache, "ood": ood or {}}
    if name in CIFAR_CHECKPOINTS:
        facts = CIFAR_CHECKPOINTS[name]
        about = f"{facts.dataset}, pretrained {name.partition('_')[0]}, frozen"
        return CheckpointSource(name, about, **shared, split_seed=split_seed)
    folder = Path(name).expanduser()
    if not (folder / "recipe.yaml").is_file():
        raise FileError(
            f"{name!r} is neither a checkpoint ({', '.join(CIFAR_CHECKPOINTS)}), nor the folder of a finished run, nor a "
            "recipe of bndl train --list."
        )
    _check_run(folder)
    return RunSource(folder.resolve().name, f"run {folder.name}, frozen", **shared, folder=folder)


def _check_run(folder: Path) -> None:
    """What cannot be compared on is said before anything is computed."""
    from bndl.train.record import read_recipe

    head = read_recipe(folder).model.head
    if head != "dense":
        raise InputError(
            f"{folder} was trained with a {head} head: methods are fitted to a network with a dense one; give such a run, "
            "or the recipe's name."
        )
    if not (folder / "results.json").is_file() or not (folder / "model.safetensors").is_file():
        raise FileError(f"the run in {folder} has not finished: go on with bndl train --resume {folder}.")


def foreign(place: str, images: Images) -> LabelledSet:
    """Data of another kind, read as the network reads its own; their labels mean nothing to it."""
    readers = find(place, reading=images.reading).readers
    data = readers["test" if "test" in readers else "val" if "val" in readers else "train"]()
    dims = tuple(data[0][0].size())
    if dims[0] != images.channels:
        raise InputError(f"{place} holds images with {dims[0]} channels, the network reads {images.channels}.")
    return dataclasses.replace(data, labels=torch.zeros_like(data.labels))

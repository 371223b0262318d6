"""What a run is evaluated on, its own data or others, and how it predicts. Needs what training needs."""

import os
from dataclasses import replace
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from bndl.baselines import get_method
from bndl.baselines.dense import linear_logits
from bndl.calibrate import best_log_scale
from bndl.convert import find_layer, find_linear
from bndl.data import FolderSet, LabelledSet, Reading, find, find_damaged
from bndl.errors import InputError
from bndl.evaluation.ways import Ways, dense, layered, ways_of
from bndl.progress import track
from bndl.train import Augment, Run, loader
from bndl.train.network import image_dims, read_splits
from bndl.train.record import read_plan

__all__ = ["augmentation", "limited", "other_data", "outside_data", "own_part", "ways_of_run"]

_MOST_TO_CALIBRATE = 20_000  # validation examples whose logits are kept for the temperature
_SMALL = 64  # side of images that are cropped as those of CIFAR are
_COLOURS = {1: "grey", 3: "coloured"}
_SUFFIXES = (".jpg", ".jpeg", ".png", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm")


def own_part(run: Run, part: str) -> LabelledSet:
    """The test or validation part of the data that a run was trained on, as it was split then."""
    splits = read_splits(run.recipe, plan=read_plan(run.folder))
    data = splits.test if part == "test" else splits.val
    if data is None or not len(data):
        other = "val" if part == "test" else "test"
        raise InputError(f"{run.recipe.data.name} has no {part} part: choose --part {other}, or give --data.")
    return _fitting(data, run)


def other_data(source: str, run: Run, *, part: str | None = None) -> tuple[LabelledSet, str]:
    """Other data with the run's classes, and which part was read.

    Args:
        source: a name or a path.
        run: whose size of images is read.
        part: by default what is kept apart for testing, or all there is.
    """
    data, part = _read(source, run, part=part)
    if len(data.classes) != len(run.classes):
        raise InputError(
            f"{source} has {len(data.classes)} classes, the run was trained on {len(run.classes)}: "
            f"as data of another kind it is --ood {source}."
        )
    return _fitting(_in_order(data, run.classes), run), part


def _in_order(data: LabelledSet, classes: tuple[str, ...]) -> LabelledSet:
    """The same data with labels that count the run's classes, where the names are the same; as they are where not."""
    if data.classes == classes or set(data.classes) != set(classes):
        return data
    position = torch.tensor([classes.index(name) for name in data.classes])
    return replace(data, labels=position[data.labels], classes=classes)


def outside_data(source: str, run: Run) -> LabelledSet:
    """Data of another kind, of any number of classes; a folder of nothing but images will do."""
    try:
        data = _read(source, run)[0]
    except InputError:
        folder = Path(source).expanduser()
        files = sorted(_pictures(folder)) if folder.is_dir() else []
        damaged = {own.path for own in find_damaged(folder, files)}
        files = [file for file in files if file not in damaged]
        if not files:
            raise
        labels, size = torch.zeros(len(files), dtype=torch.int64), (run.side, run.recipe.data.resize)
        data = FolderSet(folder.name, labels, ("outside", "inside"), folder, tuple(files), *size)
    return _fitting(data, run)


def _pictures(folder: Path) -> list[str]:
    return [
        os.path.relpath(os.path.join(place, name), folder)
        for place, _, names in os.walk(folder)
        for name in names
        if name.lower().endswith(_SUFFIXES) and not name.startswith(".")
    ]


def _read(source: str, run: Run, *, part: str | None = None) -> tuple[LabelledSet, str]:
    recipe = run.recipe.data
    reading = Reading(size=run.side, resize=recipe.resize, strict=recipe.strict, verify=recipe.verify)
    readers = find(source, reading=reading).readers
    chosen = part or next(own for own in ("test", "val", "train") if own in readers)
    if chosen not in readers:
        raise InputError(f"{source} stores {', '.join(readers)} but no {chosen} part: leave out --part.")
    return readers[chosen](), chosen


def _fitting(data: LabelledSet, run: Run) -> LabelledSet:
    """Images as the run's network takes them: its channels or an error, resized to its side."""
    channels, side = image_dims(data)
    if channels != run.channels:
        raise InputError(
            f"{data.name} has {_COLOURS.get(channels, channels)} images (channels: {channels}), the run was trained on "
            f"{_COLOURS.get(run.channels, run.channels)} ones (channels: {run.channels}): give images of that kind."
        )
    return data if side == run.side else data.transformed(_Resized(run.side))


class _Resized:
    """An image (C, H, W) uint8 at another size; a class, so that loading processes can be sent it."""

    def __init__(self, side: int) -> None:
        self.side = side

    def __call__(self, image: Tensor) -> Tensor:
        """To (C, side, side)."""
        size = (self.side, self.side)
        pixels = F.interpolate(image[None].float(), size=size, mode="bilinear", antialias=True)
        return pixels[0].round().clamp(0, 255).to(image.dtype)


def limited(data: LabelledSet, limit: int | None, *, seed: int = 0) -> LabelledSet:
    """At most ``limit`` examples, chosen by the seed and in their order."""
    if limit is None or limit >= len(data):
        return data
    generator = torch.Generator().manual_seed(seed)
    return data.subset(torch.randperm(len(data), generator=generator)[:limit].sort().values)


def augmentation(run: Run) -> Augment:
    """The run's own, or crops and flips where it had none."""
    kind = run.recipe.data.augment
    if kind == "none":
        kind = "cifar" if run.side <= _SMALL else "imagenet"
    return Augment(kind, run.side)


def ways_of_run(run: Run, *, seed: int = 0, batch_size: int = 256) -> Ways:
    """How a run predicts; a dense one also at the temperature that suits its validation part.

    Args:
        run: a finished run.
        seed: of the draws.
        batch_size: images a pass.
    """
    head, model = run.recipe.model.head, run.model
    method = get_method(head)
    if head == "bndl":
        return ways_of(model, seed=seed)
    if method.layered:
        return layered(model, method.predictor(find_layer(model), seed=seed).predict, name=head)
    if head != "dense":
        return replace(ways_of(method.predictor(model, seed=seed), name=head), model=model)
    val = limited(own_part(run, "val"), _MOST_TO_CALIBRATE, seed=seed)
    scale = _scale(run, val, batch_size=batch_size)
    return dense(model, {"dense": 1.0, "dense, temperature scaled": scale})


def _scale(run: Run, val: LabelledSet, *, batch_size: int) -> float:
    """What the logits have to be multiplied by, 1 / T, to suit held-out examples."""
    _, head = find_linear(run.model)
    pairs = track(loader(val, batch_size=batch_size), "temperature")
    found = [(linear_logits(run.model, head, images).float().cpu(), labels) for images, labels in pairs]
    logits, labels = (torch.cat(parts) for parts in zip(*found, strict=True))
    return float(best_log_scale(logits, labels).exp())

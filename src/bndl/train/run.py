"""A training run: from a recipe to a folder with everything to use it, to repeat it and to go on with it."""

import importlib.metadata
import json
import os
import platform
import sys
import time
import warnings
from collections.abc import Callable
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import lightning as L
import torch
import yaml
from lightning.pytorch.callbacks import ModelCheckpoint, RichProgressBar
from lightning.pytorch.loggers import TensorBoardLogger
from torch import nn

from bndl.convert import find_layer, find_linear
from bndl.data import LabelledSet, SplitPlan, Splits
from bndl.data.cache import cached_features
from bndl.errors import FileError
from bndl.features import FeatureSet
from bndl.files import replacing
from bndl.train.augment import Augment
from bndl.train.callbacks import History, SeedEachStep
from bndl.train.finish import Row, is_bayesian, load_weights, measure, save_weights
from bndl.train.loading import Loaders, loader
from bndl.train.module import Classifier
from bndl.train.network import build_model, image_dims, read_splits
from bndl.train.recipe import Recipe, parse_recipe

__all__ = ["Launch", "Outcome", "Run", "load_run", "read_recipe", "train"]

_PACKAGES = ("torch", "numpy", "lightning", "kornia", "pydantic", "safetensors")
_BATCH = 512
_BESIDE_THE_POINT = (  # what Lightning warns of, though all is well
    ".*does not have many workers.*",  # ours index memory, where workers would only copy
    ".*Checkpoint directory.*exists and is not empty.*",  # we have just made it, or resume
    ".*smaller than the logging interval.*",  # we log epochs
    ".*LeafSpec.*is deprecated.*",  # its own use of torch
)
Tell = Callable[[str], None]


@dataclass(frozen=True)
class Launch:
    """On what to run; the values are Lightning's.

    Attributes:
        accelerator: ``auto``, ``cpu``, ``gpu``, ...
        devices: how many a machine.
        num_nodes: how many machines.
        strategy: ``auto``, ``ddp``, ``fsdp``, ...
    """

    accelerator: str = "auto"
    devices: int = 1
    num_nodes: int = 1
    strategy: str = "auto"


@dataclass(frozen=True)
class Outcome:
    """What a finished run measured.

    Attributes:
        best_epoch: the epoch whose weights were kept, counted from 1.
        seconds: that the training took, in this start.
        parts: for ``val`` and ``test`` one row a way to predict. The validation part was used to choose and to calibrate,
            so its figures are optimistic.
    """

    best_epoch: int
    seconds: float
    parts: dict[str, list[Row]]


@dataclass(frozen=True)
class Run:
    """A finished run, loaded: the model is in ``eval()`` and takes images (B, C, H, W), uint8 or floats in [0, 1]."""

    folder: Path
    recipe: Recipe
    classes: tuple[str, ...]
    model: nn.Module
    outcome: Outcome


@dataclass(frozen=True)
class _Task:
    """What trains on what: the whole model on images, or its head on cached features."""

    model: nn.Module
    module: nn.Module
    parts: dict[str, LabelledSet | FeatureSet]
    side: int


def train(
    recipe: Recipe,
    out: str | os.PathLike[str],
    *,
    launch: Launch | None = None,
    resume: bool = False,
    cache: str | os.PathLike[str] | None = None,
    bar: bool = False,
    tell: Tell = lambda _: None,
) -> Outcome | None:
    """Train by a recipe, choose the epoch on the validation part, measure on the test part, and write the run's folder.

    Args:
        recipe: see :func:`bndl.train.load_recipe`.
        out: the run's folder. It must be new or empty, unless ``resume``.
        launch: on what to run; one device by default.
        resume: go on after the last finished epoch, to the same weights as if nothing had happened.
        cache: folder of the feature cache, for frozen backbones; by default ``features`` beside the run's folder.
        bar: show Lightning's progress bar.
        tell: is given a line for people, now and then.
    Returns:
        What was measured; None in a process that is not the first of a distributed run.
    """
    folder, launch = Path(out), Launch() if launch is None else launch
    first = _is_first()
    if first:
        _prepare(folder, resume=resume)
    splits = read_splits(recipe, plan=_read_plan(folder) if resume else None)
    tell(f"{splits.train.name}: {_counts(splits)}")
    if first and not resume:
        _write_record(folder, recipe, splits, launch)
    task = _task(recipe, splits, Path(cache or folder.parent / "features"), tell)
    started = time.monotonic()
    trainer = _trainer(recipe, folder, launch, bar=bar, tell=tell)
    module = _fit(trainer, recipe, task, folder, resume=resume)
    if not first:
        return None
    best = _take_best(module, folder)
    task.model.to(trainer.strategy.root_device)
    batches = {name: _batches(part) for name, part in task.parts.items() if name != "train"}
    outcome = Outcome(best, time.monotonic() - started, measure(task.module, batches, seed=recipe.train.seed))
    model = task.model.cpu()
    save_weights(
        model,
        folder / "model.safetensors",
        classes=splits.train.classes,
        head_only=recipe.model.frozen and recipe.model.start is None,
    )
    _write_json(folder / "results.json", asdict(outcome))
    return outcome


def load_run(folder: str | os.PathLike[str]) -> Run:
    """Load a finished run."""
    folder = Path(folder)
    recipe = read_recipe(folder)
    record, results = _read_json(folder / "run.json"), _read_json(folder / "results.json")
    facts = record["data"]
    model = build_model(
        recipe, num_classes=len(facts["classes"]), channels=facts["channels"], side=facts["side"], head="dense"
    )
    model = load_weights(folder / "model.safetensors", model, dense=recipe.model.head == "dense")
    parts = {part: [Row(**row) for row in rows] for part, rows in results["parts"].items()}
    outcome = Outcome(results["best_epoch"], results["seconds"], parts)
    return Run(folder, recipe, tuple(facts["classes"]), model, outcome)


def read_recipe(folder: Path) -> Recipe:
    """The recipe that a run's folder was made with."""
    path = folder / "recipe.yaml"
    if not path.is_file():
        raise FileError(f"{folder} is no run's folder, it has no recipe.yaml: bndl train RECIPE --out DIR makes one.")
    return parse_recipe(yaml.safe_load(path.read_text(encoding="utf-8")), name=str(path))


def _task(recipe: Recipe, splits: Splits, cache: Path, tell: Tell) -> _Task:
    channels, side = image_dims(splits.train)
    model = build_model(recipe, num_classes=len(splits.train.classes), channels=channels, side=side)
    parts = {"train": splits.train, "val": splits.val, "test": splits.test}
    given = {name: part for name, part in parts.items() if part is not None and len(part)}
    if not recipe.model.frozen:
        if recipe.train.channels_last:
            model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        return _Task(model, model.train(), dict(given), side)
    head = find_layer(model) if is_bayesian(model) else find_linear(model)[1]
    features = {}
    for name, part in given.items():
        tell(f"features of {len(part)} {name} images, from the cache or into it: {cache}")
        features[name] = cached_features(model, part, folder=cache, batch_size=64)
    return _Task(model, head.train(), dict(features), side)


def _trainer(recipe: Recipe, folder: Path, launch: Launch, *, bar: bool, tell: Tell) -> L.Trainer:
    num_epochs = recipe.train.epochs

    def tell_row(row: dict[str, float]) -> None:
        tell(
            f"epoch {row['epoch']}/{num_epochs}: loss {row['loss']:.4f}, validation NLL {row['val_nll']:.4f}, accuracy "
            f"{row['val_accuracy']:.2%}, {row['seconds']:.0f} s ({row['data_wait']:.1%} waiting for data)"
        )

    checkpoints = ModelCheckpoint(
        folder / "checkpoints", filename="best", monitor="val_nll", save_last=True, enable_version_counter=False
    )
    progress = [RichProgressBar()] if bar else []
    return L.Trainer(
        accelerator=launch.accelerator,
        devices=launch.devices,
        num_nodes=launch.num_nodes,
        strategy=launch.strategy,
        precision=recipe.train.precision,
        max_epochs=num_epochs,
        gradient_clip_val=recipe.train.clip,
        callbacks=[
            SeedEachStep(recipe.train.seed),
            History(folder / "history.csv", tell=tell_row),
            checkpoints,
            *progress,
        ],
        logger=TensorBoardLogger(folder, name="", version="tensorboard"),
        default_root_dir=folder,
        use_distributed_sampler=False,  # ours shares the data so that a step holds the same examples on any number
        enable_progress_bar=bar,
        enable_model_summary=False,
        num_sanity_val_steps=0,
    )


def _fit(trainer: L.Trainer, recipe: Recipe, task: _Task, folder: Path, *, resume: bool) -> Classifier:
    settings = recipe.train
    if settings.compile:
        task.module.compile()
    module = Classifier(
        task.module,
        num_data=len(task.parts["train"]),
        optimization=settings.optimization(),
        objective=settings.resolved_objective(),
        augment=None if recipe.model.frozen else Augment(recipe.data.augment, task.side),
    )
    loaders = Loaders(
        task.parts["train"],
        task.parts["val"],
        batch_size=settings.batch_size,
        seed=settings.seed,
        workers=recipe.data.workers,
    )
    last = folder / "checkpoints" / "last.ckpt"
    with warnings.catch_warnings():
        for message in _BESIDE_THE_POINT:
            warnings.filterwarnings("ignore", message=message)
        try:
            trainer.fit(
                module, datamodule=loaders, ckpt_path=last if resume and last.is_file() else None, weights_only=True
            )
        except SystemExit as error:  # how Lightning leaves after Ctrl-C
            raise KeyboardInterrupt from error
    return module


def _take_best(module: Classifier, folder: Path) -> int:
    """Put the weights of the best epoch in; its number."""
    path = folder / "checkpoints" / "best.ckpt"
    checkpoint = torch.load(path, map_location="cpu", weights_only=True)
    module.load_state_dict(checkpoint["state_dict"])
    return int(checkpoint["epoch"]) + 1


def _batches(part: LabelledSet | FeatureSet) -> Any:
    return part if isinstance(part, FeatureSet) else loader(part, batch_size=_BATCH)


def _is_first() -> bool:
    """Whether this is the process that a distributed run was started by, or the only one."""
    return all(int(os.environ.get(name, 0)) == 0 for name in ("LOCAL_RANK", "NODE_RANK", "GROUP_RANK", "SLURM_PROCID"))


def _prepare(folder: Path, *, resume: bool) -> None:
    """Make the folder, or make sure that it is the one to go on with."""
    if resume:
        if (folder / "results.json").is_file():
            raise FileError(f"the run in {folder} has finished: there is nothing to resume.")
        read_recipe(folder)
        return
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        cure = f"bndl train --resume {folder} goes on with it" if (folder / "recipe.yaml").is_file() else "it is kept"
        raise FileError(f"{folder} is there already and not empty: choose another --out; {cure}.")
    try:
        (folder / "checkpoints").mkdir(parents=True)
    except OSError as error:
        raise FileError(f"cannot make {folder} ({error.strerror}): choose a folder that is yours.") from error


def _write_record(folder: Path, recipe: Recipe, splits: Splits, launch: Launch) -> None:
    """Everything to repeat the run: recipe, versions, command, data and split."""
    channels, side = image_dims(splits.train)
    if splits.plan is not None:
        _write_json(folder / "split.json", splits.plan.to_json())
    record = {
        "bndl": importlib.metadata.version("bndl"),
        "python": platform.python_version(),
        "packages": {name: importlib.metadata.version(name) for name in _PACKAGES},
        "machine": {"system": platform.platform(), "cpus": os.cpu_count(), "gpus": torch.cuda.device_count()},
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": ["bndl", *sys.argv[1:]],
        "launch": asdict(launch),
        "seed": recipe.train.seed,
        "data": {
            "name": recipe.data.name,
            "examples": {name: len(part) for name, part in vars(splits).items() if isinstance(part, LabelledSet)},
            "channels": channels,
            "side": side,
            "classes": list(splits.train.classes),
        },
    }
    _write_json(folder / "run.json", record)
    with replacing(folder / "recipe.yaml") as temporary:  # the last: a folder with a recipe is a run's
        temporary.write_text(recipe.to_yaml(), encoding="utf-8")


def _read_plan(folder: Path) -> SplitPlan | None:
    path = folder / "split.json"
    return SplitPlan.from_json(_read_json(path)) if path.is_file() else None


def _counts(splits: Splits) -> str:
    sizes = {name: part for name, part in vars(splits).items() if isinstance(part, LabelledSet)}
    listed = ", ".join(f"{len(part)} {name}" for name, part in sizes.items())
    return f"{listed} examples of {len(splits.train.classes)} classes"


def _write_json(path: Path, record: dict[str, Any]) -> None:
    with replacing(path) as temporary:
        temporary.write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")


def _read_json(path: Path) -> dict[str, Any]:
    if not path.is_file():
        raise FileError(f"{path} is missing: the run has not finished; bndl train --resume {path.parent} goes on.")
    try:
        record: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise FileError(f"{path} is damaged: train again.") from error
    return record

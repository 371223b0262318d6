"""A training run: from a recipe to a folder with everything to use it, to repeat it and to go on with it."""

import os
import time
import warnings
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import lightning as L
import torch
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch.loggers import TensorBoardLogger
from torch import Tensor, nn

from bndl.backbones import CIFAR_CHECKPOINTS
from bndl.baselines import get_method
from bndl.convert import find_layer, find_linear
from bndl.data import LabelledSet, Splits
from bndl.data.cache import cached_features
from bndl.data.images import decode
from bndl.errors import FileError, InputError
from bndl.features import FeatureSet
from bndl.train.augment import Augment
from bndl.train.callbacks import Bar, Checkpoints, History, SeedEachStep
from bndl.train.finish import Row, is_bayesian, load_weights, measure, save_weights
from bndl.train.loading import Loaders, loader, num_workers
from bndl.train.module import Classifier
from bndl.train.network import build_model, image_dims, read_splits
from bndl.train.recipe import Recipe
from bndl.train.record import (
    Launch,
    check_new,
    check_resumable,
    check_same_data,
    locked,
    read_json,
    read_plan,
    read_recipe,
    write_json,
    write_record,
)

__all__ = ["Outcome", "Run", "load_run", "train"]

_BATCH = 512
_BESIDE_THE_POINT = (  # what Lightning warns of, though all is well
    ".*does not have many workers.*",  # ours index memory, where workers would only copy
    ".*Checkpoint directory.*exists and is not empty.*",  # we have just made it, or resume
    ".*smaller than the logging interval.*",  # we log epochs
    ".*LeafSpec.*is deprecated.*",  # its own use of torch
)
Tell = Callable[[str], None]


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
    channels: int
    side: int

    def read(self, image: str | os.PathLike[str]) -> Tensor:
        """An image file as the model takes it: (1, C, H, W) uint8, resized and cropped as in training."""
        pixels = decode(Path(image), size=self.side, resize=self.recipe.data.resize)
        if self.channels == 1:
            pixels = pixels.float().mean(dim=0, keepdim=True).round().to(torch.uint8)
        return pixels[None]


@dataclass(frozen=True)
class _Task:
    """What trains on what: the whole model on images, or its head on cached features."""

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
    folder, launch, first = Path(out), Launch() if launch is None else launch, _is_first()
    if first:
        (check_resumable if resume else check_new)(folder)
    else:
        bar, tell = False, _silent
    splits = read_splits(recipe, plan=read_plan(folder) if resume else None)
    tell(f"{splits.train.name}: {_counts(splits)}")
    if resume:
        check_same_data(folder, splits)
    trainer = _trainer(recipe, folder, launch, bar=bar, tell=tell)
    learner = recipe.learner()
    model = _build(learner, splits)  # what cannot work is said before the folder is made
    if learner is not recipe:
        _build(recipe, splits)
    with locked(folder) if first else nullcontext():
        if first and not resume:
            write_record(folder, recipe, splits, launch)
        place = Path(cache or folder.parent / "features")
        task = _task(learner, model, splits, place, trainer.strategy.root_device, tell)
        started = time.monotonic()
        _fit(trainer, learner, task, folder, resume=resume)
        return _finish(recipe, splits, task, folder, trainer.strategy.root_device, started) if first else None


def load_run(folder: str | os.PathLike[str]) -> Run:
    """Load a finished run."""
    folder = Path(folder)
    recipe = read_recipe(folder)
    record, results = read_json(folder / "run.json"), read_json(folder / "results.json")
    try:
        facts, parts = record["data"], results["parts"]
        classes, channels, side = tuple(facts["classes"]), int(facts["channels"]), int(facts["side"])
        rows = {part: [Row(**row) for row in of_part] for part, of_part in parts.items()}
        outcome = Outcome(results["best_epoch"], results["seconds"], rows)
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise FileError(f"run.json or results.json in {folder} lacks a part: train again.") from error
    layered = get_method(recipe.model.head).layered
    dims = {"num_classes": len(classes), "channels": channels, "side": side}
    model = build_model(recipe, **dims, head="dense" if layered else recipe.model.head)
    model = load_weights(folder / "model.safetensors", model, dense=not layered)
    return Run(folder, recipe, classes, model, outcome, channels, side)


def _silent(line: str) -> None:
    pass


def _build(recipe: Recipe, splits: Splits) -> nn.Module:
    if recipe.model.frozen and recipe.model.head == "mc-dropout":
        raise InputError(
            "mc-dropout drops inside the network: set model.frozen=false, or let bndl compare fit it to the features."
        )
    channels, side = image_dims(splits.train)
    return build_model(recipe, num_classes=len(splits.train.classes), channels=channels, side=side)


def _trained_part(recipe: Recipe, model: nn.Module) -> nn.Module:
    """The whole model, or the head of a frozen one."""
    if not recipe.model.frozen:
        return model
    return find_layer(model) if is_bayesian(model) else find_linear(model)[1]


def _task(recipe: Recipe, model: nn.Module, splits: Splits, cache: Path, device: torch.device, tell: Tell) -> _Task:
    side, module = image_dims(splits.train)[1], _trained_part(recipe, model)
    parts = {"train": splits.train, "val": splits.val, "test": splits.test}
    given = {name: part for name, part in parts.items() if part is not None and len(part)}
    if not recipe.model.frozen:
        if recipe.train.channels_last and _may_be_channels_last(model):
            model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        return _Task(module.train(), dict(given), side)
    if not (recipe.model.pretrained or recipe.model.start or recipe.model.backbone in CIFAR_CHECKPOINTS):
        tell(
            "the backbone is frozen and was never trained, so its features are random: set model.pretrained or model.start"
        )
    features = {}
    for name, part in given.items():
        tell(f"features of {len(part)} {name} images, from the cache or into it: {cache}")
        features[name] = cached_features(
            model.to(device),
            part,
            folder=cache,
            dtype=getattr(torch, recipe.model.features),
            batch_size=64,
            num_workers=num_workers(part) if recipe.data.workers is None else recipe.data.workers,
        )
    return _Task(module.train(), dict(features), side)


def _may_be_channels_last(model: nn.Module) -> bool:
    """Not if a convolution has fewer than eight channels: on a CPU the backward pass of torch 2.13 crashes then."""
    return all(module.out_channels >= 8 for module in model.modules() if isinstance(module, nn.Conv2d))


def _trainer(recipe: Recipe, folder: Path, launch: Launch, *, bar: bool, tell: Tell) -> L.Trainer:
    num_epochs = recipe.train.epochs

    def tell_row(row: dict[str, float]) -> None:
        tell(
            f"epoch {row['epoch']}/{num_epochs}: loss {row['loss']:.4f}, validation NLL {row['val_nll']:.4f}, accuracy "
            f"{row['val_accuracy']:.2%}, {row['seconds']:.0f} s ({row['data_wait']:.1%} waiting for data)"
        )

    checkpoints = Checkpoints(
        folder / "checkpoints", filename="best", monitor="val_nll", save_last=True, enable_version_counter=False
    )
    try:
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
                *([Bar()] if bar else []),
            ],
            logger=TensorBoardLogger(folder, name="", version="tensorboard"),
            default_root_dir=folder,
            use_distributed_sampler=False,  # ours shares the data so that a step holds the same examples on any number
            enable_progress_bar=bar,
            enable_model_summary=False,
            num_sanity_val_steps=0,
        )
    except (MisconfigurationException, ValueError) as error:
        reason = str(error).splitlines()[0].rstrip(".")
        raise InputError(f"{launch} cannot be run here: {reason}.") from error


def _fit(trainer: L.Trainer, recipe: Recipe, task: _Task, folder: Path, *, resume: bool) -> None:
    settings = recipe.train
    if settings.compile:
        task.module.compile()
    method, objective = get_method(recipe.model.head), settings.resolved_objective()
    module = Classifier(
        task.module,
        num_data=len(task.parts["train"]),
        optimization=settings.optimization(),
        objective=objective if method.prior else replace(objective, beta=0.0),
        augment=None if recipe.model.frozen else Augment(recipe.data.augment, task.side),
        criterion=method.criterion,
    )
    loaders = Loaders(
        task.parts["train"],
        task.parts["val"],
        batch_size=settings.batch_size,
        seed=settings.seed,
        workers=recipe.data.workers,
    )
    last = folder / "checkpoints" / "last.ckpt"
    going_on = resume and last.is_file()
    if going_on:
        _read_checkpoint(last)  # Lightning would advise to unpickle whatever it is
    with warnings.catch_warnings():
        for message in _BESIDE_THE_POINT:
            warnings.filterwarnings("ignore", message=message)
        try:
            trainer.fit(module, datamodule=loaders, ckpt_path=last if going_on else None, weights_only=True)
        except SystemExit as error:  # how Lightning leaves after Ctrl-C
            raise KeyboardInterrupt from error


def _read_checkpoint(path: Path) -> dict[str, Any]:
    try:
        checkpoint: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
        checkpoint["state_dict"], checkpoint["epoch"]
    except Exception as error:  # damaged bytes make torch.load raise almost anything
        raise FileError(f"{path} is missing or damaged: start a new run.") from error
    return checkpoint


def _finish(recipe: Recipe, splits: Splits, task: _Task, folder: Path, device: torch.device, started: float) -> Outcome:
    """Take the best epoch, calibrate, measure, save; on a model of its own, for a strategy may have cut up the other."""
    checkpoint = _read_checkpoint(folder / "checkpoints" / "best.ckpt")
    learner, prefix = recipe.learner(), "model."
    model = _build(learner, splits)
    _trained_part(recipe, model).load_state_dict(
        {k.removeprefix(prefix): v for k, v in checkpoint["state_dict"].items() if k.startswith(prefix)}
    )
    if learner is not recipe:
        model = get_method(recipe.model.head).dress(model, **recipe.model.layer.model_dump())
    module = _trained_part(recipe, model)
    batches = {
        name: _batches(part, workers=recipe.data.workers) for name, part in task.parts.items() if name != "train"
    }
    parts = measure(module.to(device), batches, method=recipe.model.head, seed=recipe.train.seed)
    outcome = Outcome(int(checkpoint["epoch"]) + 1, time.monotonic() - started, parts)
    head_only = recipe.model.frozen and recipe.model.start is None
    save_weights(model.cpu(), folder / "model.safetensors", classes=splits.train.classes, head_only=head_only)
    write_json(folder / "results.json", asdict(outcome))
    return outcome


def _batches(part: LabelledSet | FeatureSet, *, workers: int | None) -> Any:
    return part if isinstance(part, FeatureSet) else loader(part, batch_size=_BATCH, workers=workers)


def _is_first() -> bool:
    """Whether this is the process that a distributed run was started by, or the only one."""
    return all(int(os.environ.get(name, 0)) == 0 for name in ("LOCAL_RANK", "NODE_RANK", "GROUP_RANK", "SLURM_PROCID"))


def _counts(splits: Splits) -> str:
    sizes = {name: part for name, part in vars(splits).items() if isinstance(part, LabelledSet)}
    listed = ", ".join(f"{len(part)} {name}" for name, part in sizes.items())
    return f"{listed} examples of {len(splits.train.classes)} classes"

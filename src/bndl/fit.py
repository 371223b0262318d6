"""Train a decision layer: on cached features of a frozen backbone (default), or together with the backbone."""

import copy
import math
import time
import warnings
from collections.abc import Callable, Iterator, Sized
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from bndl.calibrate import calibrate
from bndl.convert import find_layer
from bndl.decide import Decider
from bndl.elbo import Epoch, Step, Task, autograd_step, train_weights
from bndl.errors import InputError
from bndl.features import FeatureSet, Inputs, check_labels, extract, paired, split_batch
from bndl.head_step import HeadStep
from bndl.layer import DecisionLayer
from bndl.objective import Objective, resolve
from bndl.predict import about_empty, decide_all

__all__ = ["HELD_OUT", "Epoch", "FitResult", "fit", "hold_out", "seeded", "sized_loader"]

HELD_OUT = 5  # one in so many training examples is kept for validation when none are given
_RATES = (1e-3, 1e-2, 1e-1)  # a head in use wants none of them, one that hardly learnt the last


@dataclass(frozen=True)
class FitResult:
    """What :func:`fit` did.

    Attributes:
        epochs: the history at the learning rate that was kept, epoch 0 being the model as it was given.
        best_epoch: the epoch that was kept; 0 means that no epoch beat the start by two standard errors.
        lr: the learning rate that was kept.
        nll_before: predictive NLL on the validation data before.
        nll_after: the same after training and calibration, which has seen these data: an optimistic figure.
        seconds: time taken.
    """

    epochs: tuple[Epoch, ...]
    best_epoch: int
    lr: float
    nll_before: float
    nll_after: float
    seconds: float


def fit(
    model: nn.Module,
    train_loader: Any,
    val_loader: Any = None,
    *,
    freeze: bool = True,
    epochs: int = 20,
    lr: float | None = None,
    batch_size: int = 256,
    objective: Objective | str = "default",
    seed: int = 0,
    progress: bool | None = None,
) -> FitResult:
    """Train the model's decision layer, in place, and keep what predicts the validation data best.

    First the weights (and the backbone, if it is not frozen) learn by the ELBO, with little noise; a head alone stops when
    three epochs in a row bring nothing. The epoch with the best validation NLL is kept, or the start if none beats it by two
    standard errors. Then the noise is fitted to the validation data (:mod:`bndl.calibrate`), which changes no decision. An
    interrupt leaves the model at the best epoch so far.

    Args:
        model: a model with a :class:`bndl.DecisionLayer`.
        train_loader: batches (inputs, labels) or dicts with ``labels``; also a data set.
        val_loader: held-out data of the same kind. Left out, a fifth of the training data is held out, seeded and
            stratified; that needs a frozen backbone. Give real held-out data if the backbone was trained on
            ``train_loader``: it is too sure of what it has seen.
        freeze: leave the backbone as it is and pass every example through it once.
        epochs: passes over the training data, at most; 0 only calibrates.
        lr: peak learning rate of AdamW, after a short warm-up and before a cosine decay. Left out, a frozen backbone's head
            tries .001, and ten times as much for as long as that pays; a whole model learns at .001.
        batch_size: examples a step on cached features, and of a data set.
        objective: weight and kind of the KL term, see :func:`bndl.kl`.
        seed: of the order of the examples and of the noise; the same seed gives the same bits.
        progress: whether to show bars; None: when it takes long and there is a terminal.
    """
    if not isinstance(epochs, int) or epochs < 0 or batch_size < 1 or not (lr is None or lr > 0):
        got = f"{epochs}, {batch_size} and {lr}"
        raise InputError(f"need a whole number of epochs >= 0, batch_size >= 1 and lr > 0, got {got}.")
    started, layer, chosen = time.monotonic(), find_layer(model), resolve(objective)
    if layer.weight.dtype == torch.float16:
        raise InputError(
            "fit cannot learn in float16, whose steps overflow: call model.float() or model.bfloat16() first."
        )
    with seeded(seed, layer.weight.device), torch.enable_grad(), _asking_for_gradients(layer):
        generator = torch.Generator(layer.weight.device).manual_seed(seed)
        read = partial(extract, model, batch_size=batch_size, progress=progress)
        everything = None
        if freeze:
            train, val = read(train_loader), None if val_loader is None else read(val_loader)
            rows = torch.arange(len(train), device=generator.device)
            if val is None:
                everything = train
                rows, val = hold_out(train, generator)
            task = _frozen_task(layer, train, rows, val, batch_size, chosen, generator)
        else:
            validation = None if val_loader is None else partial(read, val_loader)
            task = _whole_task(model, train_loader, validation, batch_size, chosen)
        before = _nll(layer, task.validation())
        rates = (lr,) if lr is not None else _RATES if freeze else _RATES[:1]
        kept = train_weights(task, layer, epochs, rates, progress)
        val = task.validation()
        # weights that no example has touched may be calibrated on all examples that were given
        _calibrate(layer, everything if everything is not None and kept.epoch == 0 else val, generator)
        after = _nll(layer, val)
    if empty := layer.empty_classes():
        warnings.warn(about_empty(empty), stacklevel=2)
    return FitResult(tuple(kept.history), kept.epoch, kept.lr, before, after, time.monotonic() - started)


def _frozen_task(
    layer: DecisionLayer,
    train: FeatureSet,
    rows: Tensor,
    val: FeatureSet,
    batch_size: int,
    objective: Objective,
    generator: torch.Generator,
) -> Task:
    """The layer alone, on these rows of the features, which need not fit into memory: only batches are copied."""

    def batches() -> Iterator[tuple[Tensor, Tensor]]:
        order = torch.randperm(len(rows), generator=generator, device=generator.device)
        for chosen in rows[order].split(batch_size):
            batch = train.take(chosen).like(layer.weight)
            yield batch.features, batch.labels

    def start() -> Step:
        if HeadStep.applies(layer, objective):
            return HeadStep(layer, train, rows=rows, objective=objective, generator=generator)
        return autograd_step(layer, len(rows), objective)

    return Task(layer, math.ceil(len(rows) / batch_size), batches, lambda: val, objective.beta, start)


def _whole_task(
    model: nn.Module,
    loader: Any,
    validation: Callable[[], FeatureSet] | None,
    batch_size: int,
    objective: Objective,
) -> Task:
    if validation is None:
        raise InputError("with freeze=False give a val_loader: what the backbone learns from cannot also judge it.")
    loader = sized_loader(loader, batch_size)
    layer = find_layer(model)

    def batches() -> Iterator[tuple[Inputs, Tensor]]:
        for batch in loader:
            inputs, labels = split_batch(batch)
            if labels is None:
                raise InputError("labels are needed: give batches (inputs, labels), or dicts with a 'labels' key.")
            yield inputs, check_labels(labels, layer.out_features, count=len(labels)).to(layer.weight.device)

    data = getattr(loader, "dataset", None)
    num_data = len(data) if data is not None else sum(len(labels) for _, labels in batches())
    start = partial(autograd_step, model, num_data, objective)
    return Task(model, len(loader), batches, validation, objective.beta, start)


def sized_loader(loader: Any, batch_size: int) -> Any:
    """Shuffled batches of a data set or of one pair (inputs, labels), or the loader that was given; it has a length."""
    loader = paired(loader)
    if isinstance(loader, Dataset) and isinstance(loader, Sized) and len(loader):
        alone = len(loader) > 1 and len(loader) % batch_size == 1  # one example has no batch statistics
        loader = DataLoader(loader, batch_size=batch_size, shuffle=True, drop_last=alone)
    data = getattr(loader, "dataset", None)
    unsized = data is not None and not isinstance(data, Sized)
    if unsized or not isinstance(loader, Sized) or not hasattr(loader, "__iter__") or len(loader) == 0:
        raise InputError("to train a whole model the train_loader must have a positive length, as a DataLoader has.")
    return loader


def _calibrate(layer: DecisionLayer, data: FeatureSet, generator: torch.Generator) -> None:
    """Fit the noise, and take it back should the data be predicted worse than without (they are few, or it diverged)."""
    before, kept = _nll(layer, data), copy.deepcopy(layer.state_dict())
    better = False
    try:
        calibrate(layer, data, generator=generator)
        better = _nll(layer, data) < before
    finally:
        if not better:
            layer.load_state_dict(kept)


def _nll(layer: DecisionLayer, data: FeatureSet) -> float:
    decider, labels, size = Decider(layer), data.labels.cpu()[:, None], 1024
    parts = [  # of all probabilities only these are kept: N may be large
        decide_all(layer, features, decider, batch_size=size, progress=False).probs.gather(1, truth)
        for features, truth in zip(data.features.split(size), labels.split(size), strict=True)
    ]
    probs = torch.cat(parts)
    return float(-probs.clamp_min(torch.finfo(probs.dtype).tiny).log().mean())


def hold_out(data: FeatureSet, generator: torch.Generator) -> tuple[Tensor, FeatureSet]:
    """Rows to train on, and the rest: every fifth example of each class, in a seeded order; all twice when too few."""
    order = torch.randperm(len(data), generator=generator, device=generator.device)
    order = order[data.labels.to(order.device)[order].argsort(stable=True)]
    chosen = torch.arange(len(data), device=order.device) % HELD_OUT == HELD_OUT - 1
    if not chosen.any():
        return torch.arange(len(data), device=order.device), data
    return order[~chosen], data.take(order[chosen])


@contextmanager
def seeded(seed: int, device: torch.device) -> Iterator[None]:
    """A seed for what has no generator of its own (dropout, a loader's shuffle); the caller's state is put back."""
    with torch.random.fork_rng([device] if device.type == "cuda" else []):
        torch.manual_seed(seed)
        yield


@contextmanager
def _asking_for_gradients(layer: DecisionLayer) -> Iterator[None]:
    """The layer's parameters trainable inside, as they were afterwards: a frozen model may still learn its doubt."""
    asked = [(parameter, parameter.requires_grad) for parameter in layer.parameters()]
    layer.requires_grad_(True)
    try:
        yield
    finally:
        for parameter, before in asked:
            parameter.requires_grad_(before)

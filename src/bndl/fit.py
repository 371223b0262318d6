"""Train a decision layer: on cached features of a frozen backbone (default), or together with the backbone."""

import copy
import math
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence, Sized
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from bndl.calibrate import calibrate, scaled_nll
from bndl.convert import find_layer
from bndl.errors import InputError
from bndl.features import FeatureSet, Inputs, check_labels, extract, one_pass, split_batch
from bndl.layer import DecisionLayer
from bndl.objective import Objective, kl, resolve
from bndl.predict import Decider, about_empty, decide_all
from bndl.progress import track

__all__ = ["Epoch", "FitResult", "fit", "hold_out"]

_HELD_OUT = 5  # one in so many training examples is kept for validation when none are given
_WARM_UP = 0.1  # share of the steps over which the learning rate and beta rise
_RATES = (1e-3, 1e-2, 1e-1)  # a head in use wants none of them, one that hardly learnt the last
_QUIET = 50.0  # the Weibull shape while weights learn: more noise costs accuracy, and is fitted afterwards anyhow
_PATIENCE = 3  # epochs in a row that are no better than the best so far


@dataclass(frozen=True)
class Epoch:
    """One epoch: its number (0 is the start), the mean training loss, the validation NLL at the best temperature."""

    number: int
    train_loss: float
    val_nll: float


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


@dataclass(frozen=True)
class _Task:
    """What is trained on what: the layer on cached features, or the whole model on its inputs."""

    module: nn.Module
    num_data: int
    num_steps: int  # an epoch
    batches: Callable[[], Iterable[tuple[Inputs, Tensor]]]
    validation: Callable[[], FeatureSet]


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
    if epochs < 0 or batch_size < 1 or not (lr is None or lr > 0):
        raise InputError(f"need epochs >= 0, batch_size >= 1 and lr > 0, got {epochs}, {batch_size} and {lr}.")
    started, layer, chosen = time.monotonic(), find_layer(model), resolve(objective)
    with _seeded(seed, layer.weight.device), torch.enable_grad(), _asking_for_gradients(layer):
        generator = torch.Generator(layer.weight.device).manual_seed(seed)
        read = partial(extract, model, batch_size=batch_size, progress=progress)
        everything = None
        if freeze:
            train, val = read(train_loader), None if val_loader is None else read(val_loader)
            rows = torch.arange(len(train), device=generator.device)
            if val is None:
                everything = train
                rows, val = hold_out(train, generator)
            task = _frozen_task(layer, train, rows, val, batch_size, generator)
        else:
            task = _whole_task(model, train_loader, lambda: read(val_loader), batch_size, given=val_loader is not None)
        before = _nll(layer, task.validation())
        rates = (lr,) if lr is not None else _RATES if freeze else _RATES[:1]
        kept = _train(task, layer, epochs, rates, chosen, progress)
        val = task.validation()
        # weights that no example has touched may be calibrated on all examples that were given
        _calibrate(layer, everything if everything is not None and kept.epoch == 0 else val, generator)
        after = _nll(layer, val)
    if empty := layer.empty_classes():
        warnings.warn(about_empty(empty), stacklevel=2)
    return FitResult(tuple(kept.history), kept.epoch, kept.lr, before, after, time.monotonic() - started)


def _frozen_task(
    layer: DecisionLayer, train: FeatureSet, rows: Tensor, val: FeatureSet, batch_size: int, generator: torch.Generator
) -> _Task:
    """The layer alone, on these rows of the features, which need not fit into memory: only batches are copied."""

    def batches() -> Iterator[tuple[Tensor, Tensor]]:
        order = torch.randperm(len(rows), generator=generator, device=generator.device)
        for chosen in rows[order].split(batch_size):
            batch = train.take(chosen).like(layer.weight)
            yield batch.features, batch.labels

    return _Task(layer, len(rows), math.ceil(len(rows) / batch_size), batches, lambda: val)


def _whole_task(
    model: nn.Module, loader: Any, validation: Callable[[], FeatureSet], batch_size: int, *, given: bool
) -> _Task:
    if not given:
        raise InputError("with freeze=False give a val_loader: what the backbone learns from cannot also judge it.")
    if isinstance(loader, Dataset):
        loader = DataLoader(loader, batch_size=batch_size, shuffle=True)
    data = getattr(loader, "dataset", None)
    if not isinstance(loader, Sized) or (data is not None and not isinstance(data, Sized)) or len(loader) == 0:
        raise InputError("with freeze=False the train_loader must have a positive length, as a DataLoader has.")
    layer = find_layer(model)

    def batches() -> Iterator[tuple[Inputs, Tensor]]:
        assert isinstance(loader, Iterable)
        for batch in loader:
            inputs, labels = split_batch(batch)
            if labels is None:
                raise InputError("labels are needed: give batches (inputs, labels), or dicts with a 'labels' key.")
            yield inputs, check_labels(labels, layer.out_features, count=len(labels)).to(layer.weight.device)

    num_data = len(data) if data is not None else sum(len(labels) for _, labels in batches())
    return _Task(model, num_data, len(loader), batches, validation)


@dataclass
class _Kept:
    """What is best so far: its epoch, learning rate, validation losses (N,) and weights, and the history that led there."""

    lr: float
    losses: Tensor
    state: dict[str, Any]
    history: list[Epoch]
    epoch: int = 0


def _train(
    task: _Task,
    layer: DecisionLayer,
    epochs: int,
    rates: Sequence[float],
    objective: Objective,
    progress: bool | None,
) -> _Kept:
    """Train at one rate after the other, while that pays, and leave the module at what was best on the validation data, also
    when interrupted."""
    start, modes = scaled_nll(layer, task.validation()), [(m, m.training) for m in task.module.modules()]
    origin, history = copy.deepcopy(task.module.state_dict()), [Epoch(0, math.nan, float(start.mean()))]
    best = _Kept(rates[0], start, origin, history)
    try:
        for rate in rates:
            task.module.load_state_dict(origin)
            layer.reset_shapes(_QUIET)
            tried = _Kept(rate, best.losses, best.state, list(history))
            try:
                _train_at(task, layer, epochs, tried, start, objective, progress)
            finally:
                paid = tried.epoch > 0
                best = tried if paid or rate == rates[0] else best
            if not paid:
                break
    finally:
        task.module.load_state_dict(best.state)
        for module, mode in modes:
            module.training = mode
    return best


def _train_at(
    task: _Task,
    layer: DecisionLayer,
    epochs: int,
    tried: _Kept,
    start: Tensor,
    objective: Objective,
    progress: bool | None,
) -> None:
    """Train at one rate; ``tried`` holds what has to be beaten and takes up what beats it, and the start, clearly."""
    module, steps = task.module, task.num_steps
    optimizer = torch.optim.AdamW([p for p in module.parameters() if p.requires_grad], lr=tried.lr, weight_decay=0.0)
    lowest, waited = torch.inf, 0
    for number in track(range(1, epochs + 1), f"fit at {tried.lr:g}", progress=progress):
        loss = _epoch(task, optimizer, (number - 1) * steps, epochs * steps, tried.lr, objective)
        losses = scaled_nll(layer, task.validation())
        mean = float(losses.mean())
        tried.history.append(Epoch(number, loss, mean))
        if mean < tried.losses.mean() and _is_clearly_better(losses, start):
            tried.epoch, tried.losses, tried.state = number, losses, copy.deepcopy(module.state_dict())
        waited = 0 if mean < min(lowest, float(start.mean())) else waited + 1
        lowest = min(lowest, mean)
        if waited >= _PATIENCE and module is layer:  # a whole network gains late, as the rate falls
            break


def _epoch(
    task: _Task, optimizer: torch.optim.Optimizer, step: int, num_steps: int, lr: float, objective: Objective
) -> float:
    """One pass over the training data; the mean loss."""
    task.module.train()
    total, count = 0.0, 0
    for inputs, labels in task.batches():
        step += 1
        warm = min(1.0, step / max(1.0, _WARM_UP * num_steps))
        for group in optimizer.param_groups:
            group["lr"] = lr * warm * 0.5 * (1 + math.cos(math.pi * min(1.0, step / num_steps)))
        _, logits = one_pass(task.module, inputs)
        loss = F.cross_entropy(logits, labels) + kl(
            task.module, task.num_data, objective=objective, beta=warm * objective.beta
        )
        if not torch.isfinite(loss):
            raise InputError(
                "the loss is not finite: lower lr, keep parameters in float32, or look for huge values in the inputs."
            )
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total, count = total + float(loss.detach()) * len(labels), count + len(labels)
    return total / max(1, count)


def _is_clearly_better(losses: Tensor, start: Tensor) -> bool:
    """Whether the mean fell by more than two standard errors: a pretrained head is not given up for noise."""
    gain = start - losses
    return bool(gain.mean() > 2 * gain.std(correction=0) / math.sqrt(len(gain)))


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
    chosen = torch.arange(len(data), device=order.device) % _HELD_OUT == _HELD_OUT - 1
    if not chosen.any():
        return torch.arange(len(data), device=order.device), data
    return order[~chosen], data.take(order[chosen])


@contextmanager
def _seeded(seed: int, device: torch.device) -> Iterator[None]:
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

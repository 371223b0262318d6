"""Train by the ELBO, at one learning rate after the other while that pays; keep what predicts held-out data best."""

import copy
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bndl.calibrate import scaled_nll
from bndl.errors import InputError
from bndl.features import FeatureSet, Inputs, one_pass
from bndl.layer import DecisionLayer
from bndl.objective import Objective, kl
from bndl.progress import track

__all__ = ["FEWEST", "Epoch", "Kept", "Step", "Task", "autograd_step", "train_weights"]

Step: TypeAlias = Callable[[Any, Tensor, float], Tensor]
"""(inputs, labels, beta) -> the loss of a batch; its gradients are left in the parameters' ``.grad``."""

_WARM_UP = 0.1  # share of the steps over which the learning rate and beta rise
_QUIET = 50.0  # the Weibull shape while weights learn: more noise costs accuracy, and is fitted afterwards anyhow
FEWEST = 10  # validation examples without which the start is kept, whatever they say
_PATIENCE = 3  # epochs in a row that are no better than the best so far


@dataclass(frozen=True)
class Epoch:
    """One epoch: its number (0 is the start), the mean training loss, the validation NLL at the best temperature."""

    number: int
    train_loss: float
    val_nll: float


@dataclass(frozen=True)
class Task:
    """What is trained on what: the layer on cached features, or the whole model on its inputs."""

    module: nn.Module
    num_steps: int  # an epoch
    batches: Callable[[], Iterable[tuple[Inputs, Tensor]]]
    validation: Callable[[], FeatureSet]
    beta: float  # weight of the KL after warm-up
    start: Callable[[], Step]  # called for each learning rate anew, when the weights and shapes are where they start


@dataclass
class Kept:
    """What is best so far: its epoch, learning rate, validation losses (N,) and weights, the history that led there, and
    whether it came to an end before its time."""

    lr: float
    losses: Tensor
    state: dict[str, Any]
    history: list[Epoch]
    epoch: int = 0
    interrupted: bool = False


def train_weights(
    task: Task,
    layer: DecisionLayer,
    epochs: int,
    rates: Sequence[float],
    progress: bool | None,
    *,
    margin: float = 2.0,
    stoppable: bool = False,
) -> Kept:
    """Train at one rate after the other, while that pays, and leave the module at what was best on the validation data, also
    when interrupted; ``stoppable``: an interrupt is then no error, but the end.

    An epoch is only kept if it beats the start by ``margin`` standard errors: a head in use is not given up for noise.
    """
    start, modes = scaled_nll(layer, task.validation()), [(m, m.training) for m in task.module.modules()]
    origin, history = copy.deepcopy(task.module.state_dict()), [Epoch(0, math.nan, float(start.mean()))]
    best = Kept(rates[0], start, origin, history)
    try:
        for rate in rates:
            task.module.load_state_dict(origin)
            layer.reset_shapes(_QUIET)
            tried = Kept(rate, best.losses, best.state, list(history))
            try:
                _train_at(task, layer, epochs, tried, start, progress, margin)
            except InputError:  # the loss is not finite: a rate too far
                if rate == rates[0]:
                    raise
            finally:
                best = tried if tried.epoch > 0 or rate == rates[0] else best
            if not tried.epoch:
                break
    except KeyboardInterrupt:
        if not stoppable:
            raise
        best.interrupted = True
    finally:
        task.module.load_state_dict(best.state)
        for module, mode in modes:
            module.training = mode
    return best


def _train_at(
    task: Task,
    layer: DecisionLayer,
    epochs: int,
    tried: Kept,
    start: Tensor,
    progress: bool | None,
    margin: float,
) -> None:
    """Train at one rate; ``tried`` holds what has to be beaten and takes up what beats it, and the start, clearly."""
    module, steps, step = task.module, task.num_steps, task.start()
    optimizer, alone = _optimizer(module, tried.lr), module is layer
    lowest, waited = torch.inf, 0
    numbers = range(1, epochs + 1)
    for number in track(numbers, f"fit at {tried.lr:g}", progress=progress) if alone else numbers:
        batches = task.batches()
        if not alone:  # an epoch takes long
            batches = track(batches, f"epoch {number} of {epochs}", progress=progress, total=steps)
        loss = _epoch(task, batches, step, optimizer, (number - 1) * steps, epochs * steps, tried.lr)
        losses = scaled_nll(layer, task.validation())
        mean = float(losses.mean())
        tried.history.append(Epoch(number, loss, mean))
        if mean < tried.losses.mean() and _is_clearly_better(losses, start, margin):
            tried.epoch, tried.losses, tried.state = number, losses, copy.deepcopy(module.state_dict())
        waited = 0 if mean < min(lowest, float(start.mean())) else waited + 1
        lowest = min(lowest, mean)
        if waited >= _PATIENCE and alone:  # a whole network gains late, as the rate falls
            break


def _optimizer(module: nn.Module, lr: float) -> torch.optim.Optimizer:
    parameters = [parameter for parameter in module.parameters() if parameter.requires_grad]
    # the fused kernel is twice as fast for a head; on strided parameters it is wrong and says nothing
    fused = isinstance(module, DecisionLayer) and all(parameter.is_contiguous() for parameter in parameters)
    return torch.optim.AdamW(parameters, lr=lr, weight_decay=0.0, fused=fused or None)


def _epoch(
    task: Task,
    batches: Iterable[tuple[Inputs, Tensor]],
    step: Step,
    optimizer: torch.optim.Optimizer,
    done: int,
    num_steps: int,
    lr: float,
) -> float:
    """One pass over the training data, after so many steps ``done``; the mean loss."""
    task.module.train()
    total, count = 0.0, 0
    for inputs, labels in batches:
        done += 1
        warm = min(1.0, done / max(1.0, _WARM_UP * num_steps))
        for group in optimizer.param_groups:
            group["lr"] = lr * warm * 0.5 * (1 + math.cos(math.pi * min(1.0, done / num_steps)))
        with _explained(len(labels)):
            loss = float(step(inputs, labels, warm * task.beta))
        if not math.isfinite(loss):
            raise InputError(
                "the loss is not finite: lower lr, keep parameters in float32, or look for huge values in the inputs."
            )
        optimizer.step()
        total, count = total + loss * len(labels), count + len(labels)
    return total / max(1, count)


@contextmanager
def _explained(batch_size: int) -> Iterator[None]:
    """torch's word on batch norm and a batch of one, said so that it can be mended."""
    try:
        yield
    except ValueError as error:
        if batch_size > 1 or "more than 1 value per channel" not in str(error):
            raise
        raise InputError(
            "a batch of one example has no statistics for this model's batch norm: give batches of two or more "
            "(drop_last=True leaves out a DataLoader's last one)."
        ) from error


def autograd_step(module: nn.Module, num_data: int, objective: Objective) -> Step:
    """A step of any module that holds a decision layer."""

    def step(inputs: Inputs, labels: Tensor, beta: float) -> Tensor:
        _, logits = one_pass(module, inputs)
        loss = F.cross_entropy(logits, labels) + kl(module, num_data, objective=objective, beta=beta)
        module.zero_grad()
        loss.backward()
        return loss.detach()

    return step


def _is_clearly_better(losses: Tensor, start: Tensor, margin: float) -> bool:
    """Whether the mean fell by more than so many standard errors."""
    if len(losses) < FEWEST:
        return False
    gain = start - losses
    return bool(gain.mean() > margin * gain.std(correction=0) / math.sqrt(len(gain)))

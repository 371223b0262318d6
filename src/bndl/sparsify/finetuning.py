r"""Let the backbone learn to make do with few weights, taught by the model that had them all.

A path is walked on features that stay as they are; where a class would need more of them than it may have, the rest of the
loss can only be mended in the network. It learns to say with few weights what the dense head said of the same inputs,

.. math:: T^2\, \mathrm{KL}\bigl(\mathrm{softmax}(l_{dense} / T) \,\|\, \mathrm{softmax}(l_{sparse} / T)\bigr),
    \qquad T = 2,

so no label is learnt again. Weights that are zero stay zero. The epoch that predicts held-out examples best is kept, or the
start; then the noise is fitted anew.
"""

import copy
import time
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bndl.calibrate import calibrate
from bndl.convert import find_layer
from bndl.elbo import Epoch, Step, train_weights
from bndl.errors import InputError
from bndl.features import FeatureSet, Inputs, evaluating, extract, one_pass
from bndl.fit import seeded, whole_task
from bndl.layer import ACTIVE_ABOVE, DecisionLayer
from bndl.objective import resolve
from bndl.sparsify.path import SparsePath, SparsePoint
from bndl.sparsify.run import clean, measured, parts

__all__ = ["Finetuned", "finetune"]

_SOFTNESS = 2.0  # T: what the dense head says of the classes that it does not choose is most of the lesson


@dataclass(frozen=True)
class Finetuned:
    """What :func:`finetune` made.

    Attributes:
        model: a model of its own, backbone included; the path's are as they were.
        point: its figures, on the same half of the validation examples as those of the path.
        epochs: the history, epoch 0 being the sparse model as it was.
        best_epoch: the epoch that was kept; 0 means that none beat the start by two standard errors.
        seconds: time taken.
    """

    model: nn.Module
    point: SparsePoint
    epochs: tuple[Epoch, ...]
    best_epoch: int
    seconds: float

    def to_dict(self) -> dict[str, Any]:
        """The figures, for JSON."""
        history = [epoch.val_nll for epoch in self.epochs]
        return {**self.point.to_dict(), "val_nll": history, "best_epoch": self.best_epoch, "seconds": self.seconds}


def finetune(
    path: SparsePath,
    train_loader: Any,
    val_loader: Any,
    *,
    index: int | None = None,
    epochs: int = 2,
    lr: float = 1e-3,
    batch_size: int = 128,
    seed: int = 0,
    progress: bool | None = None,
) -> Finetuned:
    """Train a point of the path with its backbone, so that few weights say what the dense head said.

    Every training example passes two networks, and one of them backwards, each epoch: it takes as long as training does.

    Args:
        path: of :func:`bndl.sparsify`, from a model with a backbone; its first model is the teacher.
        train_loader: batches of inputs as the model takes them, augmented as for training, with labels or what stands for
            them; they are not looked at. Also a data set.
        val_loader: the examples that the path was given as ``val_loader``, in the same order.
        index: which point; by default the chosen one.
        epochs: passes over the training data.
        lr: peak learning rate of AdamW, after a short warm-up and before a cosine decay.
        batch_size: examples a step of a data set, and examples that pass the network together.
        seed: of the order of the examples and of the noise; give that of the path, whose held-out half judges here too.
        progress: whether to show bars; None: when it takes long and there is a terminal.
    """
    started, teacher = time.monotonic(), path.model
    _check(path, train_loader, val_loader, epochs, lr, batch_size)
    index = path.chosen if index is None else index
    student = copy.deepcopy(path[index]).requires_grad_(True)  # path[index] shares the backbone
    layer = find_layer(student)
    point, generator = path.points[index], torch.Generator(layer.weight.device).manual_seed(seed)

    def validation() -> FeatureSet:
        val = extract(student, val_loader, batch_size=batch_size, progress=False)
        return parts(val, val, torch.Generator(layer.weight.device).manual_seed(seed))[1]

    with seeded(seed, layer.weight.device), torch.enable_grad():
        task = whole_task(student, train_loader, validation, batch_size, resolve("default"))
        task = replace(task, start=partial(_lessons, student, teacher, layer), beta=0.0)
        active = layer.weight.detach() - layer.alpha_phi > ACTIVE_ABOVE
        hook = layer.weight.register_hook(lambda gradient: gradient * active)  # no step, so a zero stays one
        try:
            kept = train_weights(task, layer, epochs, (lr,), progress)
        finally:
            hook.remove()
        if kept.epoch:
            judge = validation()
            calibrate(layer, judge, generator=generator)
            clean(layer)
            point = measured(layer, judge, seed=seed)
    for own, given in zip(student.parameters(), teacher.parameters(), strict=True):
        own.requires_grad_(given.requires_grad)
    return Finetuned(student.eval(), point, tuple(kept.history), kept.epoch, time.monotonic() - started)


def _lessons(student: nn.Module, teacher: nn.Module, layer: DecisionLayer) -> Step:
    """A step: what the teacher says of a batch, and how far the student is from it."""

    def step(inputs: Inputs, labels: Tensor, beta: float) -> Tensor:
        with evaluating(teacher):
            told = (one_pass(teacher, inputs)[1].float() / _SOFTNESS).log_softmax(dim=1)
        layer.eval()  # the mean, as the teacher's: noise is fitted afterwards
        said = (one_pass(student, inputs)[1].float() / _SOFTNESS).log_softmax(dim=1)
        loss = _SOFTNESS**2 * F.kl_div(said, told, log_target=True, reduction="batchmean")
        student.zero_grad()
        loss.backward()
        return loss.detach()

    return step


def _check(path: SparsePath, train: Any, val: Any, epochs: int, lr: float, batch_size: int) -> None:
    if not isinstance(epochs, int) or epochs < 1 or batch_size < 1 or not lr > 0:
        got = f"{epochs}, {batch_size} and {lr}"
        raise InputError(f"need a whole number of epochs >= 1, batch_size >= 1 and lr > 0, got {got}.")
    if isinstance(path.model, DecisionLayer):
        raise InputError(
            "this path is of a decision layer alone, there is no backbone to train: sparsify the whole model."
        )
    if isinstance(train, FeatureSet) or isinstance(val, FeatureSet):
        raise InputError("finetune changes the features: give loaders of inputs, as the model takes them.")
    if val is None:
        raise InputError(
            "give the val_loader that the path was given: what the backbone learns from cannot also judge it."
        )

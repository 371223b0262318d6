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
import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bndl.calibrate import calibrate
from bndl.convert import find_layer
from bndl.elbo import FEWEST, Epoch, Step, Task, train_weights
from bndl.errors import InputError
from bndl.features import FeatureSet, Inputs, evaluating, extract, one_pass, split_batch
from bndl.fit import seeded, sized_loader
from bndl.layer import ACTIVE_ABOVE, DecisionLayer
from bndl.sparsify.path import SparsePath, SparsePoint
from bndl.sparsify.run import about_missing, clean, measured, parts

__all__ = ["FINETUNED", "Finetuned", "finetune"]

FINETUNED = "backbone fine-tuned"  # stands in the layer's origin, and so in the header of a saved file
_SOFTNESS = 2.0  # T: what the dense head says of the classes that it does not choose is most of the lesson
_SAME = 0.01  # relative difference of what a backbone makes of the same example, in half precision or on another device


@dataclass(frozen=True)
class Finetuned:
    """What :func:`finetune` made.

    Attributes:
        model: a model of its own, backbone included; the path's are as they were.
        point: its figures, on the same half of the validation examples as those of the path.
        epochs: the history, epoch 0 being the sparse model as it was.
        best_epoch: the epoch that was kept, the best on held-out examples; 0 means that none beat the start.
        seconds: time taken.
        interrupted: whether Ctrl-C ended it early.
    """

    model: nn.Module
    point: SparsePoint
    epochs: tuple[Epoch, ...]
    best_epoch: int
    seconds: float
    interrupted: bool = False

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
    progress: bool | None = None,
) -> Finetuned:
    """Train a point of the path with its backbone, so that few weights say what the dense head said.

    Every training example passes two networks, and one of them backwards, each epoch: it takes as long as training does.
    An interrupt ends it; what was best so far is returned.

    Args:
        path: of :func:`bndl.sparsify`, from a model with a backbone; that model is the teacher. Its seed is that of the
            order of the examples and of the noise.
        train_loader: batches of inputs as the model takes them, augmented as for training; labels are not looked at. Also
            a data set.
        val_loader: the examples that the path was given as ``val_loader``, in the same order.
        index: which point; by default the chosen one.
        epochs: passes over the training data.
        lr: peak learning rate of AdamW, after a short warm-up and before a cosine decay.
        batch_size: examples a step of a data set, and examples that pass the network together.
        progress: whether to show bars; None: when it takes long and there is a terminal.

    Parameters of the backbone that ask for no gradient stay as they are, unless none of them asks: then all learn.
    """
    started = time.monotonic()
    _check(path, train_loader, val_loader, epochs, lr, batch_size)
    index = path.chosen if index is None else index
    start, point = path[index], path.points[index]
    student = copy.deepcopy(start)  # path[index] shares the backbone
    layer = find_layer(student)
    held_out = _HeldOut(student, val_loader, path, batch_size)
    held_out.check(path)
    loader = sized_loader(train_loader, batch_size)
    task = Task(student, len(loader), partial(_inputs, loader), held_out, 0.0, partial(_lessons, student, path.model))
    with seeded(path.seed, layer.weight.device), torch.enable_grad(), _learning(student), _keeping_zeros(layer):
        kept = train_weights(task, layer, epochs, (lr,), progress, margin=0.0, stoppable=True)
        if kept.epoch:
            judge = held_out()
            calibrate(layer, judge, generator=torch.Generator(layer.weight.device).manual_seed(path.seed))
            clean(layer)
            point = measured(layer, judge, seed=path.seed)
            layer.origin = ", ".join(filter(None, (layer.origin, FINETUNED)))
        else:  # with what no state holds, too
            student = copy.deepcopy(start)
    if point.empty_classes:
        warnings.warn(about_missing(point, path.mode), stacklevel=2)
    seconds = time.monotonic() - started
    return Finetuned(student.eval(), point, tuple(kept.history), kept.epoch, seconds, kept.interrupted)


class _HeldOut:
    """The half of the validation examples that judged the path, as the student's backbone sees them by now."""

    def __init__(self, student: nn.Module, loader: Any, path: SparsePath, batch_size: int) -> None:
        self.student, self.loader, self.seed, self.batch_size = student, loader, path.seed, batch_size
        self.labels: Tensor | None = None

    def __call__(self) -> FeatureSet:
        val = extract(self.student, self.loader, batch_size=self.batch_size, progress=False)
        if self.labels is not None and not torch.equal(val.labels, self.labels):
            raise InputError("the val_loader gives its examples in another order each time: set shuffle=False.")
        self.labels = val.labels
        generator = torch.Generator(find_layer(self.student).weight.device).manual_seed(self.seed)
        return parts(val, val, generator)[1]

    def check(self, path: SparsePath) -> None:
        """Refuse examples that did not judge the path: it may have learnt from them."""
        judge = self()
        if len(judge) < FEWEST:
            raise InputError(f"{len(judge)} validation examples cannot tell whether training helps: give {2 * FEWEST}.")
        if path.judge is None:
            return
        sums, known = judge.features.sum(dim=1).cpu(), path.judge
        if len(sums) != len(known) or not torch.allclose(
            sums, known, rtol=_SAME, atol=_SAME * float(known.abs().mean())
        ):
            raise InputError(
                "these are not the examples that judged the path, or not in the same order: give the val_loader that the "
                "path was given; if it had none, sparsify again with one."
            )


def _inputs(loader: Iterable[Any]) -> Iterator[tuple[Inputs, Tensor]]:
    """Inputs, and in the labels' place as many zeros: whatever stands for labels is not used."""
    for batch in loader:
        inputs, _ = split_batch(batch)
        tensors = inputs.values() if isinstance(inputs, Mapping) else [inputs]
        yield inputs, torch.zeros(next(len(part) for part in tensors if isinstance(part, Tensor)))


def _lessons(student: nn.Module, teacher: nn.Module) -> Step:
    """A step: what the teacher says of a batch, and how far the student is from it."""
    layer = find_layer(student)

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


@contextmanager
def _learning(student: nn.Module) -> Iterator[None]:
    """The head asks for gradients inside, and the backbone as it did, or all of it if none did."""
    head = {id(parameter) for parameter in find_layer(student).parameters()}
    given = [(parameter, parameter.requires_grad) for parameter in student.parameters()]
    frozen = not any(asked for parameter, asked in given if id(parameter) not in head)
    for parameter, asked in given:
        parameter.requires_grad_(asked or ((frozen or id(parameter) in head) and parameter.is_floating_point()))
    try:
        yield
    finally:
        for parameter, asked in given:
            parameter.requires_grad_(asked).grad = None


@contextmanager
def _keeping_zeros(layer: DecisionLayer) -> Iterator[None]:
    """No step for weights that are none, nor for those of a dense map: a zero stays one."""
    active: list[tuple[Tensor, Tensor]] = [(layer.weight, layer.weight.detach() - layer.alpha_phi > ACTIVE_ABOVE)]
    if layer.dense_map is not None:
        active.append((layer.dense_map.weight, layer.dense_map.weight.detach().abs() > ACTIVE_ABOVE))
    hooks = [weight.register_hook(partial(torch.mul, mask)) for weight, mask in active]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def _check(path: SparsePath, train: Any, val: Any, epochs: int, lr: float, batch_size: int) -> None:
    if not isinstance(path, SparsePath):
        raise InputError(f"finetune takes the path that bndl.sparsify returned, not a {type(path).__name__}.")
    whole = all(isinstance(number, int) and number >= 1 for number in (epochs, batch_size))
    if not whole or not isinstance(lr, int | float) or not lr > 0:
        got = f"{epochs!r}, {batch_size!r} and {lr!r}"
        raise InputError(f"need whole numbers of epochs >= 1 and batch_size >= 1, and lr > 0, got {got}.")
    if isinstance(path.model, DecisionLayer):
        raise InputError(
            "this path is of a decision layer alone, there is no backbone to train: sparsify the whole model."
        )
    if isinstance(train, FeatureSet) or isinstance(val, FeatureSet):
        raise InputError("finetune changes the features: give loaders of inputs, as the model takes them.")
    if val is None:
        raise InputError("give the val_loader that the path was given; if it had none, sparsify again with one.")
    if isinstance(val, Iterator):
        raise InputError("the val_loader can be read only once, and is needed after each epoch: give a DataLoader.")

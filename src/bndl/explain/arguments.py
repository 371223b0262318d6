"""Arguments that people give: as numbers and classes, or one sentence on what is wrong with them."""

import operator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from bndl.errors import InputError
from bndl.features import check_labels
from bndl.prediction import Prediction

__all__ = ["Asked", "integers", "shown", "whole"]

_LONGEST = 60  # characters of what was given


def shown(value: Any) -> str:
    """What was given, on one line and not too long of it."""
    text = " ".join(repr(value).split())
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."


def whole(value: Any, *, name: str, least: int) -> int:
    """A whole number of at least ``least``, of Python, numpy or torch; True and False are none."""
    try:
        if isinstance(value, bool) or (isinstance(value, Tensor) and value.dtype == torch.bool):
            raise TypeError("a bool")
        number = operator.index(value)
    except TypeError as error:
        raise InputError(f"{name} must be a whole number of at least {least}, got {shown(value)}.") from error
    if number < least:
        raise InputError(f"{name} must be at least {least}, got {number}.")
    return number


def integers(given: Any, *, name: str, what: str) -> Tensor:
    """A tensor of integers on the CPU, of whatever was given; ``what`` says in words what it should be."""
    try:
        found = torch.as_tensor(given).detach().cpu()
    except (TypeError, ValueError, RuntimeError, OverflowError) as error:
        raise InputError(f"{name} must be {what}, got {shown(given)}.") from error
    if not found.numel():
        return found.long()
    if found.is_floating_point() or found.is_complex() or found.dtype == torch.bool:
        raise InputError(f"{name} must be {what}, got {shown(given)}.")
    return found


def _given_classes(given: Any, *, name: str, num_classes: int) -> Tensor | None:
    """Classes that were asked for: one for all (dims ()), or one an example (dims (B,)); None if none was."""
    if given is None:
        return None
    found = integers(given, name=name, what="a class's number, or one an example")
    if found.dim() > 1:
        raise InputError(f"{name} must be one class, or one an example, got dims {tuple(found.size())}.")
    try:
        return check_labels(found.reshape(-1), num_classes, count=found.numel()).view(found.size())
    except InputError as error:
        raise InputError(f"{name}: {error}") from error


def _batch_classes(given: Tensor, labels: Tensor, *, name: str, start: int) -> Tensor:
    """The classes (B,) among those given of a batch that starts at example ``start``."""
    if given.dim() == 0:
        return given.expand(len(labels))
    found = given[start : start + len(labels)]
    if len(found) != len(labels):
        raise InputError(f"{name} holds fewer classes than there are examples: give one each.")
    return found


@dataclass(frozen=True)
class Asked:
    """The classes to take apart and to compare with, dims () or (B,) for all examples; None for the default."""

    target: Tensor | None
    against: Tensor | None
    runner_up: bool

    @classmethod
    def of(cls, target: Any, against: Any, num_classes: int) -> "Asked":
        """Of what :func:`bndl.explain` was given."""
        runner_up = isinstance(against, str) and against == "runner-up"
        if isinstance(against, str) and not runner_up:
            raise InputError(f"against must be a class's number, one an example, or 'runner-up'; got {against!r}.")
        own = _given_classes(target, name="target", num_classes=num_classes)
        other = _given_classes(None if runner_up else against, name="against", num_classes=num_classes)
        if own is not None and other is not None and own.dim() == other.dim() == 0 and int(own) == int(other):
            raise InputError(f"target and against are both class {int(own)}: compare with another.")
        return cls(own, other, runner_up)

    def batch(self, prediction: Prediction, *, start: int) -> tuple[Tensor, Tensor | None]:
        """Targets (B,) and what to compare with (B,) of a batch that starts at example ``start``."""
        labels, second = prediction.labels, prediction.runner_up
        chosen = labels if self.target is None else _batch_classes(self.target, labels, name="target", start=start)
        if self.runner_up:
            return chosen, torch.where(second == chosen, labels, second)
        other = self.against
        return chosen, None if other is None else _batch_classes(other, labels, name="against", start=start)

    def check_count(self, count: int) -> None:
        """Refuse lists that are not as long as there are examples."""
        for name, given in (("target", self.target), ("against", self.against)):
            if given is not None and given.dim() and len(given) != count:
                raise InputError(f"{name} holds {len(given)} classes for {count} examples: give one each.")

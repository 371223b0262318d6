"""Arguments that people give: as numbers and classes, or one sentence on what is wrong with them."""

import operator
from typing import Any

import torch
from torch import Tensor

from bndl.errors import InputError
from bndl.features import check_labels

__all__ = ["batch_classes", "given_classes", "integers", "shown", "whole"]

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


def given_classes(given: Any, *, name: str, num_classes: int) -> Tensor | None:
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


def batch_classes(given: Tensor, labels: Tensor, *, name: str, start: int) -> Tensor:
    """The classes (B,) among those given of a batch that starts at example ``start``."""
    if given.dim() == 0:
        return given.expand(len(labels))
    found = given[start : start + len(labels)]
    if len(found) != len(labels):
        raise InputError(f"{name} holds fewer classes than there are examples: give one each.")
    return found

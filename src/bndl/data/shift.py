"""Shifted data: a data set under one of the 15 common corruptions, at one of five severities, made on the fly."""

import dataclasses
import difflib
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from bndl.data.corruptions import TABLE
from bndl.data.filters import Draws
from bndl.data.sets import ArraySet, LabelledSet, as_float
from bndl.errors import InputError

__all__ = ["CORRUPTIONS", "SEVERITIES", "ShiftedSet", "corrupt", "shifted"]

CORRUPTIONS: tuple[str, ...] = tuple(TABLE)
SEVERITIES = (1, 2, 3, 4, 5)
_SMALL = 64  # the longest side of images that count as small
_LEAST = 8  # the shortest side that there is something to corrupt in
_AT_ONCE = 2**18  # numbers worked on at once


def corrupt(images: Tensor, name: str, *, severity: int, seed: int = 0, start: int = 0) -> Tensor:
    """Corrupt images as the benchmarks CIFAR-10-C (sides up to 64) and ImageNet-C (larger ones) do.

    What an image becomes depends on itself, its number, the corruption, the severity and the seed: never on the batch
    it came in. The severities of an image share their draws, so that they differ by severity alone.

    Args:
        images: (B, C, H, W) uint8, C = 3 or 1, sides of at least 8.
        name: one of :data:`CORRUPTIONS`.
        severity: 1 to 5.
        seed: of all that is random.
        start: number of the first image; they count up from it.
    Returns:
        Like ``images``.
    """
    return _corrupted(images, name, severity=severity, seed=seed, indices=range(start, start + len(images)))


def shifted(data: LabelledSet, name: str, *, severity: int, seed: int = 0) -> "ShiftedSet":
    """The same labelled images, corrupted when they are asked for; a loader takes them by whole batches.

    Args:
        data: images (C, H, W) uint8; its ``transform`` is applied after the corruption.
        name: one of :data:`CORRUPTIONS`.
        severity: 1 to 5.
        seed: of all that is random.
    """
    _check(name, severity)
    return ShiftedSet(
        f"{data.name} with {name} {severity}",
        data.labels,
        data.classes,
        data,
        name,
        severity,
        seed,
        torch.arange(len(data)),
        transform=data.transform,
    )


@dataclass(frozen=True, eq=False)
class ShiftedSet(LabelledSet):
    """A data set seen through a corruption: make it with :func:`shifted`.

    Attributes:
        base: the images as they were.
        corruption: one of :data:`CORRUPTIONS`.
        severity: 1 to 5.
        seed: of all that is random.
        numbers: (N,) int64, where each image stands in ``base``. A subset keeps them, so its images stay as they were.
    """

    base: LabelledSet
    corruption: str
    severity: int
    seed: int
    numbers: Tensor

    def read(self, index: int) -> Tensor:
        """Image ``index``, corrupted: (C, H, W) uint8."""
        return self.images([index])[0]

    def images(self, indices: Sequence[int]) -> Tensor:
        """The images at ``indices``, corrupted, before ``transform``: (B, C, H, W) uint8."""
        numbers = self.numbers[torch.as_tensor(indices, dtype=torch.int64)].tolist()
        if isinstance(self.base, ArraySet):
            images = self.base.inputs[numbers]
        else:
            images = torch.stack([self.base.read(number) for number in numbers])
        return _corrupted(images, self.corruption, severity=self.severity, seed=self.seed, indices=numbers)

    def __getitems__(self, indices: Sequence[int]) -> list[tuple[Tensor, int]]:
        """What ``[self[index] for index in indices]`` is, much faster; torch's loaders ask for it."""
        images: Iterable[Tensor] = self.images(indices)
        if self.transform is not None:
            images = map(self.transform, images)
        labels = self.labels[torch.as_tensor(indices, dtype=torch.int64)].tolist()
        return list(zip(images, labels, strict=True))

    def subset(self, indices: Sequence[int] | np.ndarray[Any, Any] | Tensor) -> Self:
        """Return the images at ``indices`` (M,), corrupted as they are here."""
        chosen = torch.as_tensor(indices, dtype=torch.int64)
        return dataclasses.replace(self, numbers=self.numbers[chosen], labels=self.labels[chosen])

    def content(self) -> Iterable[bytes | memoryview]:
        """Yield what was done, to which images, and their fingerprint."""
        yield f"shift-1 {self.corruption} {self.severity} {self.seed}".encode()
        yield self.numbers.numpy().tobytes()
        yield self.base.fingerprint.encode()


def _corrupted(images: Tensor, name: str, *, severity: int, seed: int, indices: Sequence[int]) -> Tensor:
    """The images with these numbers, corrupted, a few at a time."""
    _check(name, severity)
    dims = tuple(images.size())
    if images.dtype != torch.uint8 or len(dims) != 4 or dims[1] not in (1, 3):
        raise InputError(f"corruptions take images (B, C, H, W) uint8 with C = 3 or 1, not {dims} {images.dtype}.")
    if min(dims[2:]) < _LEAST:
        raise InputError(f"corruptions need images of at least {_LEAST} x {_LEAST} pixels, not {dims[2]} x {dims[3]}.")
    kind = TABLE[name]
    numbers = (kind.small if max(dims[2:]) <= _SMALL else kind.large)[severity - 1]
    most = max(1, _AT_ONCE // math.prod(dims[1:]))
    done = torch.empty_like(images, memory_format=torch.contiguous_format)
    for first in range(0, len(images), most):
        part = slice(first, first + most)
        draws = Draws(f"{seed} {name}", indices[part])
        made = kind.apply(as_float(images[part].cpu()).contiguous(), draws, *numbers)
        done[part] = (made * 255).round_().clamp_(0, 255).byte()
    return done


def _check(name: str, severity: int) -> None:
    if name not in TABLE:
        close = difflib.get_close_matches(name, CORRUPTIONS, n=1, cutoff=0.5)
        hint = f"did you mean {close[0]!r}?" if close else f"choose from {', '.join(CORRUPTIONS)}."
        raise InputError(f"there is no corruption {name!r}; {hint}")
    if not isinstance(severity, int) or severity not in SEVERITIES:
        raise InputError(f"a severity is a whole number from 1 to 5, not {severity!r}.")

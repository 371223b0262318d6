"""What every reader returns: labelled examples with class names and a fingerprint of their content."""

import dataclasses
import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from bndl.errors import InputError

Transform = Callable[[Tensor], Tensor]


def as_float(images: Tensor) -> Tensor:
    """Turn uint8 images of any dims into float32 in [0, 1], the same dims."""
    return images.to(torch.float32) / 255


def digest(chunks: Iterable[bytes | memoryview]) -> str:
    """Hash ``chunks`` of bytes into 32 hex digits; chunks are framed, so moving a boundary changes the result."""
    state = hashlib.blake2b(digest_size=16)
    for chunk in chunks:
        state.update(memoryview(chunk).nbytes.to_bytes(8, "little"))
        state.update(chunk)
    return state.hexdigest()


@dataclass(frozen=True, eq=False)
class LabelledSet(Dataset[tuple[Tensor, int]]):
    """N labelled examples: a ``torch.utils.data.Dataset`` whose items are ``(x, y)``.

    Attributes:
        name: what the user called it, for messages and logs.
        labels: (N,) int64, each in ``0 .. C - 1``.
        classes: the C class names, in the order of the labels.
        transform: applied to each ``x`` on its way out, or None. It is no part of ``fingerprint``.
    """

    name: str
    labels: Tensor
    classes: tuple[str, ...]
    transform: Transform | None = dataclasses.field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        if len(self.classes) < 2:
            raise InputError(f"{self.name} has {len(self.classes)} class(es) but a classifier needs at least two.")
        if self.labels.ndim != 1 or self.labels.dtype != torch.int64:
            dims = tuple(self.labels.size())
            raise InputError(f"Labels of {self.name} must be (N,) int64, not {dims} {self.labels.dtype}.")
        if not len(self.labels):
            return
        low, high, count = int(self.labels.min()), int(self.labels.max()), len(self.classes)
        if low < 0 or high >= count:
            raise InputError(f"Labels of {self.name} run from {low} to {high} but there are {count} classes.")

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        x = self.read(index)
        return (x if self.transform is None else self.transform(x)), int(self.labels[index])

    def read(self, index: int) -> Tensor:
        """Return example ``index`` as stored, before ``transform``: (C, H, W) uint8 or (K,) float32."""
        raise NotImplementedError

    def subset(self, indices: Sequence[int] | np.ndarray[Any, Any] | Tensor) -> Self:
        """Return the examples at ``indices`` (M,) in that order, with the same classes."""
        raise NotImplementedError

    def content(self) -> Iterable[bytes | memoryview]:
        """Yield the bytes of every example, in order; what ``fingerprint`` hashes next to labels and classes."""
        raise NotImplementedError

    def transformed(self, transform: Transform | None) -> Self:
        """Return the same examples seen through ``transform``, e.g. :func:`as_float`; it replaces an earlier one."""
        return dataclasses.replace(self, transform=transform)

    @cached_property
    def fingerprint(self) -> str:
        """32 hex digits that change with any example, label, class name or their order: a cache key."""
        return digest(self._fingerprint_chunks())

    def _fingerprint_chunks(self) -> Iterable[bytes | memoryview]:
        yield b"bndl-data-1"
        yield "\0".join(self.classes).encode()
        yield self.labels.numpy().tobytes()
        yield from self.content()


@dataclass(frozen=True, eq=False)
class ArraySet(LabelledSet):
    """Examples held in memory.

    Attributes:
        inputs: (N, C, H, W) uint8 images, or (N, K) float32 features.
    """

    inputs: Tensor

    def __post_init__(self) -> None:
        super().__post_init__()
        if len(self.inputs) != len(self.labels):
            raise InputError(f"{self.name} has {len(self.inputs)} examples but {len(self.labels)} labels.")

    def read(self, index: int) -> Tensor:
        """Return ``inputs[index]``."""
        return self.inputs[index]

    def subset(self, indices: Sequence[int] | np.ndarray[Any, Any] | Tensor) -> Self:
        """Return the examples at ``indices`` (M,), copied."""
        chosen = torch.as_tensor(indices, dtype=torch.int64)
        return dataclasses.replace(self, inputs=self.inputs[chosen], labels=self.labels[chosen])

    def content(self) -> Iterable[bytes | memoryview]:
        """Yield the dims and dtype, then all values."""
        yield f"{tuple(self.inputs.size())} {self.inputs.dtype}".encode()
        # a view of the memory, not a copy: CIFAR is 150 MB
        yield self.inputs.contiguous().view(torch.uint8).reshape(-1).numpy().data


@dataclass(frozen=True)
class Source:
    """A data set that was found but not read yet.

    Attributes:
        name: what the user called it.
        readers: how to read each part that is stored apart: ``"train"`` always, ``"val"`` and ``"test"`` if they are.
    """

    name: str
    readers: Mapping[str, Callable[[], LabelledSet]]


@dataclass(frozen=True)
class Reading:
    """How to read what leaves a choice; formats ignore what does not concern them.

    Attributes:
        size: side of the square that images of a folder or a hub set are cropped to.
        resize: length of the shorter side before that crop; ``size`` when None.
        strict: refuse damaged images instead of skipping them.
        verify: look for damaged images when a folder is opened; without it they are errors when met.
        label: label column of a table.
    """

    size: int = 224
    resize: int | None = None
    strict: bool = False
    verify: bool = True
    label: str = "label"

    def __post_init__(self) -> None:
        if self.size < 1:
            raise InputError(f"The image size must be at least 1, not {self.size}.")
        if self.resize is not None and self.resize < self.size:
            raise InputError(f"Images resized to {self.resize} cannot be cropped to {self.size}: give resize >= size.")


PART_NAMES: Mapping[str, tuple[str, ...]] = {
    "train": ("train", "training"),
    "val": ("val", "valid", "validation", "dev"),
    "test": ("test", "testing"),
}
"""The names under which a part is found on disk."""


def class_names(values: np.ndarray[Any, Any], *, name: str) -> tuple[str, ...]:
    """Return the distinct values of a raw label array (N,) of integers or strings, sorted, as class names."""
    if values.dtype.kind not in "iubUS":
        raise InputError(f"Labels of {name} must be integers or strings, not {values.dtype}.")
    distinct = np.unique(values)
    if values.dtype.kind == "S":
        return tuple(value.decode("latin1") for value in distinct.tolist())
    return tuple(str(value) for value in distinct.tolist())


def encode_labels(values: np.ndarray[Any, Any], classes: Sequence[str], *, name: str) -> Tensor:
    """Return raw labels (N,) as (N,) int64 positions in ``classes``; a value that is no class is an error."""
    distinct, inverse = np.unique(values, return_inverse=True)
    position = {label: index for index, label in enumerate(classes)}
    names = class_names(distinct, name=name)
    unknown = [label for label in names if label not in position]
    if unknown:
        raise InputError(f"{name} has label {unknown[0]!r} that its training part or class list does not know.")
    codes = np.array([position[label] for label in names], dtype=np.int64)
    return torch.from_numpy(codes[inverse.reshape(-1)])

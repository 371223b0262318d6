"""Image data sets of the Hugging Face hub, by name, through the ``datasets`` package."""

import dataclasses
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from bndl.data.images import decode
from bndl.data.sets import PART_NAMES, LabelledSet, Reading, Source, class_names, encode_labels
from bndl.errors import FileError, InputError, MissingExtraError

PREFIX = "hf:"


@dataclass(frozen=True, eq=False)
class HubSet(LabelledSet):
    """Rows of a hub table, decoded when asked for: items are ((3, size, size) uint8, label).

    Attributes:
        table: a ``datasets.Dataset`` whose image column is not decoded.
        column: name of that column.
        rows: (N,) int64, the rows of ``table`` that belong to this set.
        size: side of the centre crop.
        resize: length of the shorter side before that crop; ``size`` when None.
    """

    table: Any
    column: str
    rows: Tensor
    size: int
    resize: int | None = None

    def read(self, index: int) -> Tensor:
        """Decode image ``index``: (3, size, size) uint8."""
        return decode(self._bytes(index), size=self.size, resize=self.resize)

    def subset(self, indices: Sequence[int] | np.ndarray[Any, Any] | Tensor) -> Self:
        """Return the images at ``indices`` (M,)."""
        chosen = torch.as_tensor(indices, dtype=torch.int64)
        return dataclasses.replace(self, rows=self.rows[chosen], labels=self.labels[chosen])

    def content(self) -> Iterable[bytes | memoryview]:
        """Yield the size, then every image file's bytes."""
        yield f"{self.size} {self.resize}".encode()
        for index in range(len(self)):
            yield self._bytes(index)

    def _bytes(self, index: int) -> bytes:
        cell = self.table[int(self.rows[index])][self.column]
        return bytes(cell["bytes"]) if cell["bytes"] is not None else Path(cell["path"]).read_bytes()


def open_source(name: str, reading: Reading) -> Source:
    """Fetch ``name``, written ``hf:owner/set`` or ``hf:owner/set:configuration``, or take it from the local cache."""
    repository, _, configuration = name.removeprefix(PREFIX).partition(":")
    tables = _fetch(repository, configuration or None)
    parts = {
        part: tables[spelling]
        for part, spellings in PART_NAMES.items()
        for spelling in reversed(spellings)
        if spelling in tables
    }
    if "train" not in parts:
        raise InputError(f"{name} has no train split, only {', '.join(tables)}.")
    classes = _classes(parts["train"], name, reading)
    return Source(name, {part: partial(_read, name, table, classes, reading) for part, table in parts.items()})


def _fetch(repository: str, configuration: str | None) -> dict[str, Any]:
    try:
        import datasets
    except ImportError as error:
        raise MissingExtraError(f"The hub data set {repository}", extra="hf") from error
    try:
        return dict(datasets.load_dataset(repository, configuration))
    except Exception as error:  # whatever its many layers raise, to the user it is the same: it did not come
        reason = (str(error).splitlines() or [""])[0]
        raise FileError(
            f"The hub data set {repository} could not be fetched ({type(error).__name__}: {reason}); check its name "
            "and the network, or, offline, copy the data here and give its path instead."
        ) from error


def _read(name: str, table: Any, classes: tuple[str, ...], reading: Reading) -> HubSet:
    import datasets

    column = _column(table, "Image", name)
    label = _label_column(table, name, reading)
    raw = np.asarray(list(table[label]))
    if hasattr(table.features[label], "names"):
        labels = torch.from_numpy(raw.astype(np.int64))
    else:
        labels = encode_labels(raw, classes, name=name)
    undecoded = table.cast_column(column, datasets.Image(decode=False))
    return HubSet(name, labels, classes, undecoded, column, torch.arange(len(labels)), reading.size, reading.resize)


def _classes(table: Any, name: str, reading: Reading) -> tuple[str, ...]:
    label = _label_column(table, name, reading)
    names = getattr(table.features[label], "names", None)
    if names is not None:
        return tuple(str(entry) for entry in names)
    return class_names(np.asarray(list(table[label])), name=name)


def _label_column(table: Any, name: str, reading: Reading) -> str:
    return reading.label if reading.label in table.features else _column(table, "ClassLabel", name)


def _column(table: Any, kind: str, name: str) -> str:
    """Return the first column whose feature type is called ``kind``."""
    for column, feature in table.features.items():
        if type(feature).__name__ == kind:
            return str(column)
    what = "images" if kind == "Image" else "class labels (name it as the label)"
    raise InputError(f"{name} has no column of {what}, only {', '.join(table.features)}.")

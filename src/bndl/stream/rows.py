"""Files of features as sources: ``.npy``, ``.npz`` and Parquet, in memory that does not grow with the file."""

import zipfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import IO, Any

import numpy as np
import torch
from torch import Tensor

from bndl.data.sets import digest
from bndl.errors import FileError, InputError
from bndl.stream.source import DAMAGED, Batch, Bounds, reading, stamp

__all__ = ["ArchiveRows", "ArrayRows", "as_features"]

Array = np.ndarray[Any, Any]
_INPUTS = ("x", "features", "embeddings", "inputs", "data")


def as_features(values: Array) -> Tensor:
    """Rows (B, K) of any kind of number as floats that torch knows."""
    known = values.dtype.isnative and values.dtype in (np.float16, np.float32, np.float64)
    return torch.from_numpy(values if known else values.astype(np.float64 if values.itemsize > 4 else np.float32))


@dataclass(frozen=True)
class _Layout:
    """How the rows of an array lie in its file."""

    dims: tuple[int, int]
    dtype: np.dtype[Any]
    by_columns: bool
    offset: int = 0

    @property
    def row_bytes(self) -> int:
        return self.dims[1] * self.dtype.itemsize


def _checked(shape: tuple[int, ...], dtype: np.dtype[Any], *, name: str, in_features: int) -> tuple[int, int]:
    if len(shape) != 2 or dtype.kind not in "iufb":
        raise InputError(f"{name} must be numbers of dims (N, {in_features}), one row an example, not {dtype} {shape}.")
    if shape[1] != in_features:
        raise InputError(f"{name} has {shape[1]} features a row, but the model takes {in_features}.")
    if not shape[0]:
        raise InputError(f"{name} is empty: there is nothing to predict on.")
    return shape[0], shape[1]


@dataclass(frozen=True)
class ArrayRows:
    """A ``.npy`` file, read where the rows are; mapping it would fill memory with what was read."""

    path: Path
    in_features: int
    images: bool = False

    @property
    def count(self) -> int:
        """How many rows there are."""
        return self._layout.dims[0]

    @cached_property
    def _layout(self) -> _Layout:
        mapped = self._mapped()
        dims = _checked(mapped.shape, mapped.dtype, name=str(self.path), in_features=self.in_features)
        by_columns = not mapped.flags.c_contiguous
        return _Layout(dims, mapped.dtype, by_columns, mapped.offset)

    def _mapped(self) -> "np.memmap[Any, Any]":
        try:
            mapped = np.load(self.path, mmap_mode="r", allow_pickle=False)
        except DAMAGED as error:
            raise FileError(
                f"{self.path} is no readable .npy file ({error}); write it again with numpy.save."
            ) from error
        if not isinstance(mapped, np.memmap):
            raise FileError(f"{self.path} is an .npz file under another name: rename it.")
        return mapped

    def fingerprint(self) -> str:
        """Of the file's length and time, and of its dims."""
        return digest([stamp(self.path.parent, self.path.name), repr(self._layout).encode()])

    def name(self, position: int) -> str:
        """The row's number."""
        return f"row {position} of {self.path.name}"

    def batches(self, bounds: Iterable[Bounds]) -> Iterator[Batch]:
        """Read."""
        layout = self._layout
        with reading(self.path), self.path.open("rb", buffering=0) as file:
            for start, stop in bounds:
                if layout.by_columns:  # mapped anew each time, so that what was read can go
                    values = np.array(self._mapped()[start:stop], order="C")
                else:
                    file.seek(layout.offset + start * layout.row_bytes)
                    values = _filled(file, stop - start, layout, self.path)
                yield Batch((start, stop), as_features(values))


@dataclass(frozen=True)
class ArchiveRows:
    """The features in an ``.npz`` archive, unpacked as they are read."""

    path: Path
    in_features: int
    images: bool = False

    @property
    def count(self) -> int:
        """How many rows there are."""
        return self._found[1].dims[0]

    @cached_property
    def _found(self) -> tuple[str, _Layout]:
        """The entry, and how its rows lie in it."""
        with reading(self.path), zipfile.ZipFile(self.path) as archive:
            entries = {entry.removesuffix(".npy"): entry for entry in archive.namelist() if entry.endswith(".npy")}
            layouts = {name: _header(archive, entry) for name, entry in entries.items()}
        matrices = [name for name, layout in layouts.items() if layout is not None]
        named = [name for name in matrices if name.lower() in _INPUTS]
        chosen = named if len(named) == 1 else matrices
        if len(chosen) != 1:
            raise InputError(
                f"{self.path} holds {', '.join(entries) or 'nothing'}: name the array of features X; dims (N, "
                f"{self.in_features})."
            )
        layout = layouts[chosen[0]]
        assert layout is not None
        _checked(layout.dims, layout.dtype, name=f"{chosen[0]} of {self.path}", in_features=self.in_features)
        if layout.by_columns:
            raise InputError(f"{chosen[0]} of {self.path} is stored by columns: save numpy.ascontiguousarray of it.")
        return entries[chosen[0]], layout

    def fingerprint(self) -> str:
        """Of the file's length and time, and of its dims."""
        return digest([stamp(self.path.parent, self.path.name), repr(self._found).encode()])

    def name(self, position: int) -> str:
        """The row's number."""
        return f"row {position} of {self.path.name}"

    def batches(self, bounds: Iterable[Bounds]) -> Iterator[Batch]:
        """Read and unpack."""
        entry, layout = self._found
        with reading(self.path), zipfile.ZipFile(self.path) as archive, archive.open(entry) as file:
            for start, stop in bounds:
                place = layout.offset + start * layout.row_bytes
                if file.tell() != place:
                    file.seek(place)
                yield Batch((start, stop), as_features(_filled(file, stop - start, layout, self.path)))


def _header(archive: zipfile.ZipFile, entry: str) -> _Layout | None:
    """How the rows of an entry lie, if it is a matrix of numbers."""
    with archive.open(entry) as file:
        version = np.lib.format.read_magic(file)
        read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, by_columns, dtype = read(file)
        if len(shape) != 2 or dtype.kind not in "iufb":
            return None
        return _Layout((shape[0], shape[1]), dtype, by_columns, file.tell())


def _filled(file: IO[bytes], rows: int, layout: _Layout, path: Path) -> Array:
    """Rows (B, K) from where the file stands."""
    values = np.empty((rows, layout.dims[1]), layout.dtype)
    left = values.reshape(-1).view(np.uint8).data
    while left:
        got = file.readinto(left)  # type: ignore[attr-defined]
        if not got:
            raise FileError(f"{path} ends before its last row: it is damaged; write it again.")
        left = left[got:]
    return values

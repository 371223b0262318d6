"""Parquet files of features as a source: one column of equally long lists, or a column a feature."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet
from pyarrow import types

from bndl.data.sets import digest
from bndl.errors import InputError
from bndl.stream.names import to_text
from bndl.stream.rows import Array, as_features
from bndl.stream.source import PARQUET, Batch, Bounds, files_below, reading, stamp

__all__ = ["ParquetRows"]

_INPUTS = ("x", "features", "embeddings", "embedding", "inputs", "data")
_LABELS = ("y", "label", "labels", "target", "targets")
_PIECE = 2**18  # numbers decoded at a time: they stay in the processor's cache until they are copied
_BUFFER = 2**18  # bytes of each column read ahead


@dataclass(frozen=True)
class ParquetRows:
    """A Parquet file, or all in a folder one after another; each is read a few rows at a time, however large its groups."""

    path: Path
    in_features: int
    images: bool = False

    @cached_property
    def files(self) -> tuple[str, ...]:
        """Relative to the folder."""
        return tuple(files_below(self.path, PARQUET)) if self.path.is_dir() else (self.path.name,)

    @property
    def root(self) -> Path:
        """The folder."""
        return self.path if self.path.is_dir() else self.path.parent

    @cached_property
    def _ends(self) -> list[int]:
        """How many rows there are up to the end of each file."""
        return list(accumulate(self._opened(file).metadata.num_rows for file in self.files))

    @property
    def count(self) -> int:
        """How many rows there are."""
        if not self._ends[-1]:
            raise InputError(f"{self.path} is empty: there is nothing to predict on.")
        _ = self._columns
        return self._ends[-1]

    @cached_property
    def _columns(self) -> list[str]:
        """The columns of features: those of the first file, which all must have, with numbers or lists as there."""
        wanted: list[str] = []
        first: Any = None
        for file in self.files:
            schema, name = self._opened(file).schema_arrow, str(self.root / file)
            wanted, first = wanted or _chosen(schema, name, self.in_features), first or schema
            if missing := [column for column in wanted if column not in schema.names]:
                raise InputError(f"{name} has no column {missing[0]!r}, which {self.files[0]} has.")
            for column in wanted:
                own, there = schema.field(column).type, first.field(column).type
                if not _is_alike(own, there, self.in_features):
                    raise InputError(
                        f"column {column!r} of {name} holds {own}, that of {self.files[0]} {there}: write it alike."
                    )
        return wanted

    def _opened(self, file: str) -> Any:
        with reading(self.root / file):
            # read ahead in part, not by whole row groups, which may be as large as the file
            return pa.parquet.ParquetFile(self.root / file, pre_buffer=False, buffer_size=_BUFFER)

    def fingerprint(self) -> str:
        """Of all files' names, lengths and times, and of what is read of them."""
        return digest([*(stamp(self.root, file) for file in self.files), repr(self._columns).encode()])

    def _place(self, position: int) -> tuple[int, int]:
        """The number of the file, and of the row in it."""
        index = int(np.searchsorted(self._ends, position, side="right"))
        return index, position - (self._ends[index - 1] if index else 0)

    def name(self, position: int) -> str:
        """The file, and the row in it."""
        index, row = self._place(position)
        return f"row {row} of {to_text(self.files[index])}"

    def batches(self, bounds: Iterable[Bounds]) -> Iterator[Batch]:
        """Decode, and copy to where each batch is."""
        pieces: Iterator[Array] | None = None
        piece = np.empty((0, self.in_features), np.float32)
        for start, stop in bounds:
            pieces = self._pieces(start) if pieces is None else pieces
            values: Array | None = None
            filled = 0
            while filled < stop - start:
                if not len(piece):
                    piece = next(pieces)
                taken = piece[: stop - start - filled]
                if values is None or np.result_type(values, taken) != values.dtype:
                    values = _grown(values, stop - start, taken)
                values[filled : filled + len(taken)] = taken
                filled, piece = filled + len(taken), piece[len(taken) :]
            assert values is not None
            yield Batch((start, stop), as_features(values), self._names(start, stop))

    def _names(self, start: int, stop: int) -> Any:
        """``file:row`` where there are several files."""
        if not self.path.is_dir():
            return None
        parts = []
        while start < stop:
            index, row = self._place(start)
            taken = min(stop, self._ends[index]) - start
            numbers = pa.array(np.arange(row, row + taken)).cast(pa.string())
            parts.append(pc.binary_join_element_wise(to_text(self.files[index]), numbers, ":"))
            start += taken
        return pa.concat_arrays(parts)

    def _pieces(self, start: int) -> Iterator[Array]:
        """Features (n, K) from row ``start`` on, a few at a time."""
        first, row = self._place(start)
        for file in self.files[first:]:
            opened = self._opened(file)
            groups, skipped = _groups_from(opened.metadata, row)
            row -= skipped
            position = skipped
            size = max(16, _PIECE // self.in_features)
            with reading(self.root / file):
                for record in opened.iter_batches(size, row_groups=groups, columns=self._columns, use_threads=False):
                    values = _matrix(record, position, file, self.in_features)
                    position += len(values)
                    if row < len(values):
                        yield values[row:]
                    row = max(0, row - len(values))
            row = 0


def _groups_from(metadata: Any, row: int) -> tuple[list[int], int]:
    """The row groups from the one that holds ``row``, and how many rows lie before it."""
    before = 0
    for index in range(metadata.num_row_groups):
        rows = metadata.row_group(index).num_rows
        if row < before + rows:
            return list(range(index, metadata.num_row_groups)), before
        before += rows
    return [], before


def _grown(values: Array | None, rows: int, like: Array) -> Array:
    if values is None:
        return np.empty((rows, like.shape[1]), like.dtype)
    return values.astype(np.result_type(values, like))  # files of several precisions


def _is_number(kind: Any) -> bool:
    return bool(types.is_integer(kind) or types.is_floating(kind))


def _is_list(kind: Any) -> bool:
    listed = types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind)
    return bool(listed and _is_number(kind.value_type))


def _is_alike(own: Any, there: Any, in_features: int) -> bool:
    """Whether a column of another file can be read as that of the first: numbers, or lists of as many."""
    if _is_list(own) and _is_list(there):
        return bool(getattr(own, "list_size", in_features) == in_features)
    return _is_number(own) and _is_number(there)


def _chosen(schema: Any, file: str, in_features: int) -> list[str]:
    """One column of lists; or else those of numbers, without labels if they are one too many."""
    lists = [field.name for field in schema if _is_list(field.type)]
    named = [name for name in lists if name.lower() in _INPUTS]
    if len(lists) == 1 or len(named) == 1:
        chosen = (named or lists)[0] if len(lists) > 1 else lists[0]
        size = getattr(schema.field(chosen).type, "list_size", in_features)
        if size != in_features:
            raise InputError(
                f"column {chosen!r} of {file} has {size} features a row, but the model takes {in_features}."
            )
        return [chosen]
    if lists:
        raise InputError(
            f"{file} has several columns of lists ({', '.join(lists[:5])}): call that of features 'features'."
        )
    numbers = [f.name for f in schema if _is_number(f.type) and not f.name.startswith("__index_level")]
    if len(numbers) > in_features:
        numbers = [name for name in numbers if name.lower() not in _LABELS]
    if len(numbers) != in_features:
        raise InputError(
            f"{file} has {len(numbers)} columns of numbers and none of lists, but the model takes {in_features} features: "
            "keep those columns alone."
        )
    return numbers


def _matrix(record: Any, position: int, file: str, in_features: int) -> Array:
    """Features (n, K) of a record batch, whose first row is row ``position`` of the file."""
    for name, column in zip(record.schema.names, record.columns, strict=True):
        if column.null_count:
            row = position + int(np.flatnonzero(column.is_null().to_numpy(zero_copy_only=False))[0])
            raise InputError(f"row {row} of {file} has no value in column {name!r}: fill or drop such rows.")
    column, kind = record.column(0), record.schema.field(0).type
    if not _is_list(kind):
        return np.stack([column.to_numpy() for column in record.columns], axis=1)
    if not types.is_fixed_size_list(kind):
        lengths = pc.list_value_length(column).to_numpy()
        if odd := np.flatnonzero(lengths != in_features).tolist():
            raise InputError(
                f"row {position + odd[0]} of {file} has {lengths[odd[0]]} features, but the model takes {in_features}."
            )
    flat = column.flatten()
    if flat.null_count:
        row = position + int(np.flatnonzero(flat.is_null().to_numpy(zero_copy_only=False))[0]) // in_features
        raise InputError(f"row {row} of {file} has a missing value among its features: fill or drop such rows.")
    values: Array = flat.to_numpy().reshape(-1, in_features)
    return values

"""Parquet, CSV and JSON lines: each writes shards, and joins them to one file without reading more than one at a time."""

import json
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet

from bndl.errors import InputError
from bndl.stream.columns import Columns

__all__ = ["Format", "format_of"]

_COPY = 2**20  # bytes at a time
_FORMULA = r"^[=+\-@\t\r]"  # what a spreadsheet takes for a formula, quoted or not


class Format(Protocol):
    """One kind of output."""

    def write(self, batches: Sequence[pa.RecordBatch], path: Path) -> None:
        """A shard: any layout that :meth:`join` reads."""

    def join(self, shards: Sequence[Path], path: Path) -> None:
        """The output, from its shards in order."""


def format_of(path: Path, columns: Columns) -> Format:
    """The format that the file's suffix names."""
    kinds: dict[str, Any] = {".parquet": Parquet, ".csv": Csv, ".jsonl": JsonLines}
    kind = kinds.get(path.suffix.lower())
    if kind is None:
        raise InputError(f"cannot tell the format of {path.name}: name the output *.parquet, *.csv or *.jsonl.")
    made: Format = kind(columns)
    return made


@dataclass(frozen=True)
class Parquet:
    """Shards are kept as Arrow has them in memory, which costs nothing; the output has one row group a shard."""

    columns: Columns

    def write(self, batches: Sequence[pa.RecordBatch], path: Path) -> None:
        """An Arrow file."""
        with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, batches[0].schema) as writer:
            for batch in batches:
                writer.write_batch(batch)

    def join(self, shards: Sequence[Path], path: Path) -> None:
        """Names are stored as a dictionary, figures as they are: nearly all of them differ."""
        writer: Any = None
        try:
            for shard in shards:
                with pa.OSFile(str(shard), "rb") as source:
                    table = pa.ipc.open_file(source).read_all()
                if writer is None:
                    writer = pa.parquet.ParquetWriter(path, table.schema, compression="zstd", use_dictionary=["class"])
                writer.write_table(table, row_group_size=max(1, len(table)))
        finally:
            if writer is not None:
                writer.close()


@dataclass(frozen=True)
class Csv:
    """Texts are quoted; all probabilities are a column a class, reasons one text ``feature:contribution ...``.

    A spreadsheet runs what begins as a formula, quoted or not. So a file's name that does is written ``./=name``, which
    is the same file, and such a class ``'=name``.
    """

    columns: Columns

    def write(self, batches: Sequence[pa.RecordBatch], path: Path) -> None:
        """Rows without a header."""
        options = pa.csv.WriteOptions(include_header=False)
        with pa.OSFile(str(path), "wb") as sink:
            for batch in batches:
                pa.csv.write_csv(self._flat(batch), sink, options)

    def join(self, shards: Sequence[Path], path: Path) -> None:
        """The header, then all rows."""
        with path.open("wb") as out:
            empty = [pa.array([], pa.string())] * len(self._names())
            pa.csv.write_csv(pa.RecordBatch.from_arrays(empty, names=self._names()), out)
            _append(shards, out)

    def _names(self) -> list[str]:
        probs = [f"probs_{name}" for name in self.columns.classes]
        return [one for name in self.columns.names() for one in (probs if name == "probs" else [name])]

    def _flat(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        arrays: list[pa.Array] = []
        for name, column in zip(batch.schema.names, batch.columns, strict=True):
            if name == "probs":
                C, flat = len(self.columns.classes), column.flatten().to_numpy()
                arrays += [pa.array(flat[c::C]) for c in range(C)]
            elif name == "reasons":
                arrays.append(_reasons_text(column, "", ":", "", " "))
            elif name in ("source", "class") and pa.types.is_string(column.type):
                arrays.append(pc.replace_substring_regex(column, f"({_FORMULA})", _NEUTRAL[name]))
            else:
                arrays.append(column)
        return pa.RecordBatch.from_arrays(arrays, names=self._names())


_NEUTRAL = {"source": r"./\1", "class": r"'\1"}


@dataclass(frozen=True)
class JsonLines:
    """One JSON object a row, made a column at a time: as exact as Python's own, and many times faster."""

    columns: Columns

    def write(self, batches: Sequence[pa.RecordBatch], path: Path) -> None:
        """The rows."""
        with path.open("wb") as out:
            for batch in batches:
                parts: list[Any] = []
                for name, column in zip(batch.schema.names, batch.columns, strict=True):
                    parts += [f"{', ' if parts else '{'}{json.dumps(name)}: ", _json(column)]
                lines = pc.binary_join_element_wise(*parts, "}\n", "")
                out.write(pc.binary_join(pa.ListArray.from_arrays([0, len(lines)], lines), "")[0].as_buffer())

    def join(self, shards: Sequence[Path], path: Path) -> None:
        """All rows."""
        with path.open("wb") as out:
            _append(shards, out)


def _append(shards: Sequence[Path], out: Any) -> None:
    for shard in shards:
        with shard.open("rb") as source:
            shutil.copyfileobj(source, out, _COPY)


def _json(column: pa.Array) -> pa.Array:
    """Each entry as JSON text."""
    kind = column.type
    if pa.types.is_string(kind):
        encoded = column.dictionary_encode()
        texts = [json.dumps(text, ensure_ascii=False) for text in encoded.dictionary.to_pylist()]
        return pa.array(texts, pa.string()).take(encoded.indices)
    if pa.types.is_floating(kind):
        return pc.if_else(pc.is_finite(column), column.cast(pa.string()), "null")
    if pa.types.is_fixed_size_list(kind):
        offsets = range(0, len(column) * kind.list_size + 1, kind.list_size)
        return _bracketed(pc.binary_join(pa.ListArray.from_arrays(offsets, _json(column.flatten())), ", "))
    if pa.types.is_list(kind):
        return _bracketed(_reasons_text(column, '{"feature": ', ', "contribution": ', "}", ", "))
    return column.cast(pa.string())


def _bracketed(texts: pa.Array) -> pa.Array:
    return pc.binary_join_element_wise("[", texts, "]", "")


def _reasons_text(column: pa.Array, before: str, between: str, after: str, separator: str) -> pa.Array:
    features, values = (part.cast(pa.string()) for part in column.flatten().flatten())
    each = pc.binary_join_element_wise(before, features, between, values, after, "")
    offsets = pc.subtract(column.offsets, column.offsets[0])  # a slice's do not begin at 0
    return pc.binary_join(pa.ListArray.from_arrays(offsets, each), separator)

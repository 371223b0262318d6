"""Tables in Parquet: one label column, and either a column a feature or one column of equally long lists."""

import re
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from bndl.data.arrays import as_inputs
from bndl.data.sets import PART_NAMES, ArraySet, Reading, Source, class_names, encode_labels
from bndl.errors import FileError, InputError, MissingExtraError

_SUFFIXES = (".parquet", ".pq")


def detect(path: Path) -> bool:
    """Tell whether ``path`` is a Parquet file or a folder with some."""
    return bool(_files(path))


def open_source(path: Path, reading: Reading) -> Source:
    """Find the parts: a file is one; in a folder, files named ``train*``, ``val*``, ``test*`` are shards of parts."""
    files = _files(path)
    parts: dict[str, list[Path]] = {}
    for file in files:
        parts.setdefault(_part_of(file) if path.is_dir() else "train", []).append(file)
    if "" in parts and len(parts) > 1:
        raise InputError(f"{parts[''][0]} belongs to no part: name it train*, val* or test*, or move it away.")
    shards = {"train": parts[""]} if "" in parts else parts
    if "train" not in shards:
        raise InputError(f"{path} has no train*.parquet: the classes and features are told by the training part.")
    return Source(
        path.stem, {part: partial(_read, path.stem, these, shards["train"], reading) for part, these in shards.items()}
    )


def _files(path: Path) -> list[Path]:
    if path.is_dir():
        return sorted(entry for entry in path.iterdir() if entry.suffix.lower() in _SUFFIXES)
    return [path] if path.suffix.lower() in _SUFFIXES else []


def _part_of(file: Path) -> str:
    first = re.split(r"[-_.]", file.name.lower())[0]
    return next((part for part, spellings in PART_NAMES.items() if first in spellings), "")


def _read(name: str, files: list[Path], train_files: list[Path], reading: Reading) -> ArraySet:
    table = _table(files)
    train = table if files == train_files else _table(train_files, reading.label)
    raw = _labels(table, files[0], reading.label)
    classes = class_names(_labels(train, train_files[0], reading.label), name=name)
    # pandas stores a row index as __index_level_0__
    features = [
        column for column in _column_names(train_files[0]) if column != reading.label and not column.startswith("__")
    ]
    missing = [column for column in features if column not in table.column_names]
    if missing:
        raise InputError(f"{files[0]} has no column {missing[0]!r} that the training part has.")
    inputs = as_inputs(_features(table, features, files[0]), name=f"The feature columns of {files[0]}")
    return ArraySet(name, encode_labels(raw, classes, name=name), classes, inputs)


def _table(files: list[Path], only: str | None = None) -> Any:
    """Read shards as one table, of all columns or of the label column ``only``."""
    arrow, parquet = _import_arrow()
    columns = None if only is None else [only]
    try:
        return arrow.concat_tables([parquet.read_table(file, columns=columns, memory_map=True) for file in files])
    except (arrow.ArrowException, OSError) as error:
        raise _unreadable(files[0], error) from error


def _column_names(file: Path) -> list[str]:
    arrow, parquet = _import_arrow()
    try:
        return list(parquet.read_schema(file).names)
    except (arrow.ArrowException, OSError) as error:
        raise _unreadable(file, error) from error


def _import_arrow() -> tuple[Any, Any]:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise MissingExtraError("Reading Parquet", extra="data") from error
    return pyarrow, pyarrow.parquet


def _unreadable(file: Path, error: Exception) -> FileError:
    reason = (str(error).splitlines() or [""])[0]
    return FileError(f"{file} is no readable Parquet table ({reason}); write it again.")


def _labels(table: Any, file: Path, label: str) -> np.ndarray[Any, Any]:
    if label not in table.column_names:
        known = ", ".join(_column_names(file))
        raise InputError(f"{file} has no label column {label!r}; name one of its columns as the label: {known}.")
    column = table.column(label)
    if column.null_count:
        raise InputError(f"Label column {label!r} of {file} has {column.null_count} missing value(s); drop those rows.")
    return np.asarray(column.to_pylist())


def _features(table: Any, names: list[str], file: Path) -> np.ndarray[Any, Any]:
    """Return the feature columns as (N, K)."""
    import pyarrow.types as types

    if not names:
        raise InputError(f"{file} has no column but the label; add the features.")
    for name in names:
        column = table.column(name)
        if column.null_count:
            raise InputError(f"Column {name!r} of {file} has {column.null_count} missing value(s); fill or drop them.")
    kinds = {name: table.schema.field(name).type for name in names}
    lists = [name for name, kind in kinds.items() if types.is_list(kind) or types.is_fixed_size_list(kind)]
    if lists and len(names) == 1:
        return _list_column(table.column(names[0]), names[0], file)
    odd = [name for name, kind in kinds.items() if not (types.is_integer(kind) or types.is_floating(kind))]
    if odd:
        raise InputError(f"Column {odd[0]!r} of {file} is {kinds[odd[0]]}, no number; drop it or make it one.")
    return np.column_stack([table.column(name).to_numpy().astype(np.float32) for name in names])


def _list_column(column: Any, name: str, file: Path) -> np.ndarray[Any, Any]:
    import pyarrow.compute as compute

    lengths = compute.unique(compute.list_value_length(column)).to_pylist()
    if len(lengths) != 1 or not lengths[0]:
        raise InputError(f"The lists in column {name!r} of {file} must all be equally long, not {sorted(lengths)[:5]}.")
    values = compute.list_flatten(column).to_numpy()
    return np.asarray(values).reshape(-1, lengths[0])

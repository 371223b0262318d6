"""CIFAR-10 and CIFAR-100 as published: the folder of pickles or the .tar.gz archive, without trusting the pickles."""

import io
import pickle
import tarfile
import zlib
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from bndl.data.sets import ArraySet, Reading, Source
from bndl.errors import FileError, InputError


@dataclass(frozen=True)
class _Layout:
    """Where one of the two data sets keeps what: file names and dictionary keys."""

    name: str
    parts: Mapping[str, tuple[str, ...]]
    meta: str
    label_key: str
    names_key: str


_BATCHES = tuple(f"data_batch_{number}" for number in range(1, 6))
_CIFAR10 = _Layout("cifar10", {"train": _BATCHES, "test": ("test_batch",)}, "batches.meta", "labels", "label_names")
_CIFAR100 = _Layout(
    "cifar100", {"train": ("train",), "test": ("test",)}, "meta", "fine_labels", "fine_label_names"
)  # fmt: skip
_ARCHIVES = (".tar.gz", ".tgz", ".tar")
_DAMAGED = (OSError, EOFError, zlib.error, tarfile.TarError)


def detect(path: Path) -> bool:
    """Tell whether ``path`` is a CIFAR folder, or an archive (whose content :func:`open_source` will judge)."""
    if path.is_dir():
        return _folder_layout(path) is not None
    return path.name.lower().endswith(_ARCHIVES)


def open_source(path: Path, reading: Reading) -> Source:
    """Find the parts of a CIFAR folder or archive; read to images (N, 3, 32, 32) uint8."""
    layout = _folder_layout(path) if path.is_dir() else _archive_layout(path)
    if layout is None:
        raise FileError(f"{path} holds neither CIFAR-10 nor CIFAR-100; other archives must be unpacked first.")
    return Source(layout.name, {part: partial(_read, path, layout, part) for part in layout.parts})


def _layout(names: Iterable[str]) -> _Layout | None:
    found = set(names)
    if found & {*_BATCHES, "test_batch", "batches.meta"}:
        return _CIFAR10
    return _CIFAR100 if {"meta", "train"} <= found or {"meta", "test"} <= found else None


def _folder_layout(path: Path) -> _Layout | None:
    return _layout(entry.name for entry in path.iterdir() if entry.is_file())


def _archive_layout(path: Path) -> _Layout | None:
    try:
        with tarfile.open(path) as archive:
            names: set[str] = set()
            for member in archive:  # stops at the first file that tells, without unpacking the rest
                if member.isfile():
                    names.add(Path(member.name).name)
                if layout := _layout(names):
                    return layout
    except _DAMAGED as error:
        raise _damaged_archive(path, error) from error
    return None


def _read(path: Path, layout: _Layout, part: str) -> ArraySet:
    wanted = (*layout.parts[part], layout.meta)
    raw = _folder_files(path, wanted) if path.is_dir() else _archive_files(path, wanted)
    missing = [name for name in wanted if name not in raw]
    if missing:
        raise FileError(f"{path} is incomplete: {', '.join(missing)} is missing; unpack or download it again.")
    meta = _unpickle(raw[layout.meta], path / layout.meta)
    batches = [_batch(_unpickle(raw[name], path / name), layout, path / name) for name in layout.parts[part]]
    return ArraySet(
        layout.name,
        torch.from_numpy(np.concatenate([labels for _, labels in batches])),
        _class_names(meta, layout, path / layout.meta),
        torch.from_numpy(np.concatenate([images for images, _ in batches])),
    )


def _folder_files(folder: Path, names: Collection[str]) -> dict[str, bytes]:
    try:
        return {name: (folder / name).read_bytes() for name in names if (folder / name).is_file()}
    except OSError as error:
        raise FileError(f"{error.filename} cannot be read ({error.strerror}); mend its permissions or disk.") from error


def _archive_files(path: Path, names: Collection[str]) -> dict[str, bytes]:
    """Read files of an archive into memory: nothing is unpacked to the disk, so no member can write anywhere."""
    found: dict[str, bytes] = {}
    try:
        with tarfile.open(path) as archive:
            for member in archive:
                name = Path(member.name).name
                stream = archive.extractfile(member) if member.isfile() and name in names else None
                if stream is not None:
                    found[name] = stream.read()
                if len(found) == len(names):
                    break
    except _DAMAGED as error:
        raise _damaged_archive(path, error) from error
    return found


def _damaged_archive(path: Path, error: BaseException) -> FileError:
    return FileError(f"The archive {path} is damaged or cut short ({error}); download it again.")


def _batch(record: dict[str, Any], layout: _Layout, origin: Path) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Return images (N, 3, 32, 32) uint8 and labels (N,) int64 of one pickled file."""
    images, labels = record.get("data"), record.get(layout.label_key)
    if not isinstance(images, np.ndarray) or images.dtype != np.uint8 or images.shape[1:] != (3072,):
        raise FileError(f"{origin} has no uint8 array 'data' of dims (N, 3072): it is no CIFAR file.")
    try:
        values = np.asarray(labels)
    except (ValueError, TypeError) as error:
        raise FileError(f"{origin} has no list of integers {layout.label_key!r}: it is no CIFAR file.") from error
    if values.ndim != 1 or values.dtype.kind not in "iu":
        raise FileError(f"{origin} has no list of integers {layout.label_key!r}: it is no CIFAR file.")
    if len(values) != len(images):
        raise InputError(f"{origin} has {len(images)} images but {len(values)} labels.")
    return images.reshape(-1, 3, 32, 32), values.astype(np.int64)


def _class_names(meta: dict[str, Any], layout: _Layout, origin: Path) -> tuple[str, ...]:
    names = meta.get(layout.names_key)
    if not isinstance(names, list) or not all(isinstance(name, (str, bytes)) for name in names):
        raise FileError(f"{origin} has no list of names {layout.names_key!r}: it is no CIFAR file.")
    return tuple(name.decode("latin1") if isinstance(name, bytes) else name for name in names)


def _latin1(text: str, encoding: str) -> bytes:
    """Stand in for ``_codecs.encode``, by which old pickle protocols store bytes."""
    if not isinstance(text, str) or encoding != "latin1":
        raise pickle.UnpicklingError("bytes are not stored as latin1 text")
    return text.encode("latin1")


# numpy's own rebuilding functions, reached the public way: the modules that hold them were renamed in numpy 2
_RECONSTRUCT = np.empty(0).__reduce__()[0]
_SCALAR = np.int64(0).__reduce__()[0]
_ALLOWED: Mapping[tuple[str, str], Any] = {
    ("numpy.core.multiarray", "_reconstruct"): _RECONSTRUCT,
    ("numpy._core.multiarray", "_reconstruct"): _RECONSTRUCT,
    ("numpy.core.multiarray", "scalar"): _SCALAR,
    ("numpy._core.multiarray", "scalar"): _SCALAR,
    ("numpy", "ndarray"): np.ndarray,
    ("numpy", "dtype"): np.dtype,
    ("_codecs", "encode"): _latin1,
}


class _RestrictedUnpickler(pickle.Unpickler):
    """An unpickler that can make numpy arrays and plain values, and nothing else."""

    def find_class(self, module_name: str, global_name: str, /) -> Any:
        allowed = _ALLOWED.get((module_name, global_name))
        if allowed is None:
            raise _RefusedError(f"{module_name}.{global_name}")
        return allowed


class _RefusedError(Exception):
    """The pickle asked for something that is not on the list."""


def _unpickle(raw: bytes, origin: Path) -> dict[str, Any]:
    """Read one pickled dictionary, with text keys, however old its protocol."""
    try:
        record = _RestrictedUnpickler(io.BytesIO(raw), encoding="bytes").load()
    except _RefusedError as error:
        raise FileError(f"{origin} was refused: it would run {error}, which no CIFAR file does.") from None
    except Exception as error:  # a damaged pickle can raise nearly anything
        raise FileError(f"{origin} is damaged ({error!r}); unpack or download it again.") from error
    if not isinstance(record, dict):
        raise FileError(f"{origin} holds a {type(record).__name__} instead of a dictionary: it is no CIFAR file.")
    return {key.decode("latin1") if isinstance(key, bytes) else str(key): value for key, value in record.items()}

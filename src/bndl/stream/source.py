"""What there is to predict on, found by what it is: images, Parquet, numpy arrays. Read in order, a batch at a time."""

import os
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from torch import Tensor

from bndl.data.folder import SUFFIXES as IMAGES
from bndl.data.folder import Damaged
from bndl.errors import BndlError, FileError, InputError

__all__ = [
    "DAMAGED",
    "IMAGES",
    "PARQUET",
    "Batch",
    "Bounds",
    "Source",
    "cut",
    "files_below",
    "open_source",
    "reading",
    "stamp",
]

PARQUET = (".parquet", ".pq")
DAMAGED = (OSError, ValueError, EOFError, zipfile.BadZipFile, zlib.error, KeyError)  # what a damaged file raises
Bounds = tuple[int, int]


@dataclass(frozen=True)
class Batch:
    """Some consecutive examples of a source.

    Attributes:
        bounds: which: from, to (exclusive).
        inputs: (B, ...) those that could be read; None if none could.
        names: (B,) what each is called, as text; None: its number in the source.
        damaged: those that could not be read.
    """

    bounds: Bounds
    inputs: Tensor | None
    names: Sequence[str] | Any = None
    damaged: tuple[Damaged, ...] = ()


class Source(Protocol):
    """Something to read examples from, in order."""

    @property
    def count(self) -> int:
        """How many examples there are."""

    @property
    def images(self) -> bool:
        """Whether they are images, which a backbone takes; or else features, which the layer takes."""

    def fingerprint(self) -> str:
        """Changes when what would be read does; contents are not read for it."""

    def name(self, position: int) -> str:
        """What to call an example, for people."""

    def batches(self, bounds: Iterable[Bounds]) -> Iterator[Batch]:
        """Read consecutive batches."""


def cut(start: int, count: int, *, shard: int, size: int) -> Iterator[Bounds]:
    """Batches of ``size`` from ``start``, the first of a shard, to ``count``; none is in two shards."""
    for first in range(start, count, shard):
        last = min(first + shard, count)
        yield from ((low, min(low + size, last)) for low in range(first, last, size))


def files_below(folder: Path, suffixes: Iterable[str]) -> list[str]:
    """All files of a folder and the folders in it with one of these suffixes, relative to it, sorted; no hidden ones."""
    wanted, found, seen = frozenset(suffixes), list[str](), set[tuple[int, int]]()
    for place, folders, names in os.walk(folder, followlinks=True):
        status = os.stat(place)
        if (status.st_dev, status.st_ino) in seen:  # a link to a folder above
            folders.clear()
            continue
        seen.add((status.st_dev, status.st_ino))
        folders[:] = [name for name in folders if not name.startswith((".", "__MACOSX"))]
        inside = os.path.relpath(place, folder).replace(os.sep, "/")
        start = "" if inside == "." else f"{inside}/"
        found += [
            start + name for name in names if not name.startswith(".") and os.path.splitext(name)[1].lower() in wanted
        ]
    return sorted(found)


def stamp(root: Path, file: str) -> bytes:
    """What tells a file from another without reading it: its name, length and time of change."""
    try:
        status = (root / file).stat()
    except OSError:  # a link to nowhere, say; what reads it will tell
        return os.fsencode(file) + b" missing"
    return os.fsencode(file) + f" {status.st_size} {status.st_mtime_ns}".encode()


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """What is wrong with a file, in one sentence."""
    try:
        yield
    except BndlError:
        raise
    except DAMAGED as error:
        reason = getattr(error, "strerror", None) or (str(error).splitlines() or [type(error).__name__])[0]
        raise FileError(f"{path} cannot be read ({reason}): check it, or write it again.") from error


def open_source(path: Path, *, in_features: int, read: Any = None, workers: int = 1, strict: bool = False) -> Source:
    """Find out what ``path`` is, and open it.

    Args:
        path: an image or a folder of them, a Parquet file or a folder of them, an ``.npy`` or ``.npz`` file.
        in_features: how many numbers a row of features must have.
        read: image file -> (C, H, W); None: the model takes features alone.
        workers: threads that decode images.
        strict: stop at an image that cannot be decoded.
    """
    from bndl.stream.images import ImageFiles
    from bndl.stream.rows import ArchiveRows, ArrayRows
    from bndl.stream.tables import ParquetRows

    suffix, root = path.suffix.lower(), path.parent
    if path.is_dir():
        root, suffix = path, _kind_of_folder(path)
    elif not path.is_file():
        raise FileError(f"there is no {path}: check the path.")
    if suffix in IMAGES:
        if read is None:
            raise InputError(
                f"{path} is of images, but the model is a decision layer alone, which takes features (.npy, .npz, "
                ".parquet): give the folder of a run of bndl train."
            )
        files = files_below(path, IMAGES) if path.is_dir() else [path.name]
        return ImageFiles(root, tuple(files), read, workers, strict)
    if suffix in PARQUET:
        return ParquetRows(path, in_features)
    if suffix == ".npy":
        return ArrayRows(path, in_features)
    if suffix == ".npz":
        return ArchiveRows(path, in_features)
    raise InputError(
        f"cannot tell what {path.name} is: give an image or a folder of images, a Parquet file or a folder of them, or an "
        ".npy or .npz file of features."
    )


def _kind_of_folder(path: Path) -> str:
    """A suffix of what is in it."""
    images, tables = files_below(path, IMAGES), files_below(path, PARQUET)
    if images and tables:
        raise InputError(
            f"{path} holds images ({images[0]}) and Parquet files ({tables[0]}): give a folder of one kind."
        )
    if not images and not tables:
        raise InputError(
            f"{path} holds no image and no Parquet file: give a folder with some, or an .npy or .npz file."
        )
    return ".png" if images else PARQUET[0]

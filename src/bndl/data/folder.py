"""Class folders of images: ``train/CLASS/*.jpg`` with ``val/`` or ``test/``, or a flat ``CLASS/*.jpg``."""

import dataclasses
import logging
import os
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from bndl.data.images import decode
from bndl.data.sets import PART_NAMES, LabelledSet, Reading, Source
from bndl.errors import FileError, InputError

_LOG = logging.getLogger(__name__)
SUFFIXES = frozenset({".jpg", ".jpeg", ".png", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm"})
_NO_CLASSES = frozenset({"__MACOSX", "__pycache__"})  # what archives and programs leave behind
_CHUNK = 64
_VERIFY_SIZE = 16


@dataclass(frozen=True)
class Damaged:
    """An image file that cannot be decoded, and why."""

    path: str
    reason: str


@dataclass(frozen=True, eq=False)
class FolderSet(LabelledSet):
    """Images on disk, decoded when asked for: items are ((3, size, size) uint8, label).

    Attributes:
        root: the folder that ``files`` are relative to.
        files: N file names, in the order of the labels.
        size: side of the centre crop.
        resize: length of the shorter side before that crop; ``size`` when None.
        damaged: the files of the folder that were skipped (a subset keeps the whole list).
    """

    root: Path
    files: tuple[str, ...]
    size: int
    resize: int | None = None
    damaged: tuple[Damaged, ...] = ()

    def read(self, index: int) -> Tensor:
        """Decode image ``index``: (3, size, size) uint8."""
        return decode(self.root / self.files[index], size=self.size, resize=self.resize)

    def subset(self, indices: Sequence[int] | np.ndarray[Any, Any] | Tensor) -> Self:
        """Return the images at ``indices`` (M,)."""
        chosen = torch.as_tensor(indices, dtype=torch.int64)
        files = tuple(self.files[index] for index in chosen.tolist())
        return dataclasses.replace(self, files=files, labels=self.labels[chosen])

    def content(self) -> Iterable[bytes | memoryview]:
        """Yield the size, then what tells every file from another: its name, length and time of change.

        The bytes themselves are not read: of ImageNet that would be 150 GB each time a head is trained.
        """
        yield f"{self.size} {self.resize}".encode()
        for file in self.files:
            status = (self.root / file).stat()
            yield f"{file} {status.st_size} {status.st_mtime_ns}".encode()


def detect(path: Path) -> bool:
    """Tell whether ``path`` has a ``train`` folder, or class folders with images, or another part with such."""
    if not path.is_dir():
        return False
    parts = _part_folders(path)
    folders = [path, *parts.values()]
    return "train" in parts or any(_has_image(entry) for place in folders for entry in _subfolders(place))


def open_source(path: Path, reading: Reading) -> Source:
    """Find the parts of a folder of images; a flat folder, or ``train`` alone, is one part."""
    parts = _part_folders(path)
    if parts and "train" not in parts:
        names = ", ".join(folder.name for folder in parts.values())
        raise InputError(f"{path} has {names} but no train folder: the classes are told by train/CLASS/*.jpg.")
    folders = parts or {"train": path}
    classes = tuple(folder.name for folder in _subfolders(folders["train"]))
    name = path.name or str(path)
    return Source(name, {part: partial(_read, name, folder, classes, reading) for part, folder in folders.items()})


def _read(name: str, folder: Path, classes: tuple[str, ...], reading: Reading) -> FolderSet:
    files = _list_images(folder, classes)
    damaged = find_damaged(folder, files) if reading.verify else ()
    if damaged and reading.strict:
        raise FileError(
            f"{len(damaged)} of {len(files)} images in {folder} cannot be decoded, the first is {damaged[0].path} "
            f"({damaged[0].reason}); replace them, or read without strict to skip them."
        )
    bad = {entry.path for entry in damaged}
    for entry in damaged:
        _LOG.warning("skipped damaged image %s: %s", folder / entry.path, entry.reason)
    if bad:
        _LOG.warning("skipped %d of %d images in %s", len(bad), len(files), folder)
    kept = tuple(file for file in files if file not in bad)
    lost = {_class_of(file) for file in files} - {_class_of(file) for file in kept}
    if lost:
        raise InputError(f"All images of class {min(lost)!r} in {folder} are damaged; replace them or drop the class.")
    position = {label: index for index, label in enumerate(classes)}
    labels = torch.tensor([position[_class_of(file)] for file in kept], dtype=torch.int64)
    return FolderSet(name, labels, classes, folder, kept, reading.size, reading.resize, damaged)


def find_damaged(root: Path, files: Sequence[str]) -> tuple[Damaged, ...]:
    """Decode every file of ``root`` coarsely, in threads (Pillow frees the interpreter), and list those that fail."""
    chunks = [files[start : start + _CHUNK] for start in range(0, len(files), _CHUNK)]
    with ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as pool:
        return tuple(entry for found in pool.map(partial(_damaged_among, root), chunks) for entry in found)


def _damaged_among(root: Path, files: Sequence[str]) -> list[Damaged]:
    found = []
    for file in files:
        try:
            decode(root / file, size=_VERIFY_SIZE, draft=True)
        except FileError as error:
            found.append(Damaged(file, str(error.__cause__ or error)))
    return found


def _list_images(folder: Path, classes: Sequence[str]) -> list[str]:
    """List the images of each class folder, checking that the folders are those of ``classes``."""
    present = [entry.name for entry in _subfolders(folder)]
    if not present:
        raise InputError(f"{folder} has no class folders; put each class's images into a folder of its name.")
    unknown = sorted(set(present) - set(classes))
    if unknown:
        raise InputError(f"{folder} has class {unknown[0]!r} that the train folder does not have.")
    if len(classes) < 2:
        raise InputError(f"{folder} has one class ({classes[0]!r}) but a classifier needs at least two.")
    listed = {label: _images_below(folder, label) for label in present}
    empty = [label for label, files in listed.items() if not files]
    if len(empty) == len(present):
        raise InputError(f"{folder} has class folders but no images in them ({', '.join(sorted(SUFFIXES))}).")
    if empty:
        raise InputError(f"Class folder {folder / empty[0]} holds no images; fill it or remove it.")
    return [file for label in present for file in listed[label]]


def _images_below(folder: Path, label: str) -> list[str]:
    found = []
    for place, _, names in os.walk(folder / label, followlinks=True):
        inside = os.path.relpath(place, folder)
        found += [f"{inside}/{name}" for name in names if _is_image(name)]
    return sorted(file.replace(os.sep, "/") for file in found)


def _is_image(name: str) -> bool:
    return not name.startswith(".") and os.path.splitext(name)[1].lower() in SUFFIXES


def _has_image(folder: Path) -> bool:
    """Look one level deep only: the user may have given a home folder."""
    return any(_is_image(entry.name) for entry in folder.iterdir())


def _class_of(file: str) -> str:
    return file.split("/", 1)[0]


def _subfolders(path: Path) -> list[Path]:
    return sorted(
        entry
        for entry in path.iterdir()
        if entry.is_dir() and not entry.name.startswith(".") and entry.name not in _NO_CLASSES
    )


def _part_folders(path: Path) -> dict[str, Path]:
    """Map ``train``, ``val``, ``test`` to the folders of those names, under any usual spelling."""
    present = {entry.name.lower(): entry for entry in _subfolders(path)}
    return {
        part: present[spelling]
        for part, spellings in PART_NAMES.items()
        for spelling in reversed(spellings)
        if spelling in present
    }

"""MNIST and its kin: idx files, plain or gzipped, in a folder."""

import gzip
import math
import re
import struct
import zlib
from functools import partial
from io import BufferedIOBase
from pathlib import Path
from typing import Any

import numpy as np
import torch

from bndl.data.sets import ArraySet, Reading, Source
from bndl.errors import FileError, InputError

_FILE = re.compile(r"(?P<part>train|t10k|test)-(?P<kind>images|labels)[.-]idx[13]-ubyte(\.gz)?$", re.IGNORECASE)
_UNSIGNED_BYTE = 0x08
_FASHION = (
    "t-shirt/top", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "ankle boot",
)  # fmt: skip


def detect(path: Path) -> bool:
    """Tell whether ``path`` is a folder with idx files."""
    return path.is_dir() and bool(_files(path))


def open_source(path: Path, reading: Reading) -> Source:
    """Find the parts of an idx folder; read to images (N, 1, H, W) uint8."""
    files = _files(path)
    for part in ("train", "test"):
        for kind, other in (("images", "labels"), ("labels", "images")):
            if (part, kind) in files and (part, other) not in files:
                raise FileError(f"{files[part, kind]} has no file of {other} next to it; put it there.")
    if ("train", "images") not in files:
        raise FileError(f"{path} has no train-images-idx3-ubyte (or .gz); put the training files there.")
    fashion = any("fashion" in step.lower() for step in path.resolve().parts[-3:])
    name = "fashion-mnist" if fashion else path.name
    parts = [part for part in ("train", "test") if (part, "images") in files]
    return Source(
        name,
        {
            part: partial(_read, name, files[part, "images"], files[part, "labels"], files["train", "labels"])
            for part in parts
        },
    )


def _files(path: Path) -> dict[tuple[str, str], Path]:
    """Map (part, kind) to its file; a plain file is preferred to a gzipped one."""
    found: dict[tuple[str, str], Path] = {}
    for entry in sorted(path.iterdir(), reverse=True):
        if (match := _FILE.match(entry.name)) and entry.is_file():
            part = "train" if match["part"].lower() == "train" else "test"
            found[part, match["kind"].lower()] = entry
    return found


def _read(name: str, images_file: Path, labels_file: Path, train_labels_file: Path) -> ArraySet:
    images, labels = read_idx(images_file), read_idx(labels_file)
    if images.ndim != 3 or labels.ndim != 1:
        raise FileError(f"{images_file} and {labels_file} must hold 3 and 1 dims, not {images.ndim} and {labels.ndim}.")
    if len(images) != len(labels):
        raise InputError(f"{images_file} has {len(images)} images but {labels_file} has {len(labels)} labels.")
    train_labels = labels if labels_file == train_labels_file else read_idx(train_labels_file)
    highest = int(train_labels.max(initial=0))
    # idx files hold no names; only the folder can tell clothes from digits
    classes = _FASHION if name == "fashion-mnist" else tuple(str(label) for label in range(highest + 1))
    return ArraySet(name, torch.from_numpy(labels).to(torch.int64), classes, torch.from_numpy(images).unsqueeze(1))


def read_idx(path: Path) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """Read one idx file of unsigned bytes, whatever its dims."""
    try:
        with gzip.open(path) if path.suffix.lower() == ".gz" else path.open("rb") as stream:
            return _parse(stream, path)
    except FileError:
        raise
    except (OSError, EOFError, zlib.error) as error:
        raise FileError(f"{path} is unreadable, damaged or cut short ({error}); download it again.") from error


def _parse(stream: BufferedIOBase, path: Path) -> np.ndarray[Any, np.dtype[np.uint8]]:
    header = stream.read(4)
    if len(header) < 4 or header[:2] != b"\0\0" or header[2] != _UNSIGNED_BYTE or not header[3]:
        raise FileError(f"{path} is no idx file of unsigned bytes; download it again.")
    dims_bytes = stream.read(4 * header[3])
    if len(dims_bytes) < 4 * header[3]:
        raise FileError(f"{path} is cut short in its header; download it again.")
    dims = struct.unpack(f">{header[3]}I", dims_bytes)
    expected = math.prod(dims)
    body = stream.read()
    if len(body) != expected:
        raise FileError(f"{path} promises {expected} bytes but holds {len(body)}; download it again.")
    return np.frombuffer(body, dtype=np.uint8).reshape(dims).copy()

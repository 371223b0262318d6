"""Arrays in numpy files: one ``.npz``, or a folder with ``.npy`` files such as ``X.npy`` and ``y.npy``."""

import zipfile
import zlib
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bndl.data.sets import PART_NAMES, ArraySet, Reading, Source, class_names, encode_labels
from bndl.errors import FileError, InputError

_INPUTS = ("x", "features", "images", "embeddings", "inputs", "data")
_LABELS = ("y", "labels", "label", "targets", "target")
_CLASSES = ("classes", "class_names")
_DAMAGED = (OSError, ValueError, EOFError, zipfile.BadZipFile, zlib.error, KeyError)

Array = np.ndarray[Any, Any]


def detect(path: Path) -> bool:
    """Tell whether ``path`` is an ``.npz`` or ``.npy`` file, or a folder with ``.npy`` files."""
    if path.is_dir():
        return any(path.glob("*.npy"))
    return path.suffix.lower() in {".npz", ".npy"}


def open_source(path: Path, reading: Reading) -> Source:
    """Find inputs and labels by their names: ``X``/``y``, ``features``/``labels``, with or without a part.

    ``x_train`` and ``train_x`` both name the training part. Read to features (N, K) float32 or images (N, C, H, W)
    uint8.
    """
    if path.suffix.lower() == ".npy" and path.is_file():
        raise InputError(f"{path} is half of a pair: give its folder, with X.npy for features and y.npy for labels.")
    names = _names(path)
    pairs = {part: pair for part in PART_NAMES if (pair := _pair(path, names, part))}
    if not pairs and (plain := _pair(path, names, None)):
        pairs = {"train": plain}
    if "train" not in pairs:
        raise InputError(
            f"{path} holds {', '.join(names) or 'nothing'}, none of which is known as inputs and labels; "
            "name them X and y, or X_train, y_train, X_test, y_test."
        )
    label_name = pairs["train"][1]
    readers = {part: partial(_read, path, inputs, labels, label_name) for part, (inputs, labels) in pairs.items()}
    return Source(path.stem, readers)


def _names(path: Path) -> list[str]:
    if path.is_dir():
        return sorted(entry.stem for entry in path.glob("*.npy"))
    try:
        with np.load(path, allow_pickle=False) as archive:
            return sorted(archive.files)
    except _DAMAGED as error:
        raise FileError(f"{path} is no readable .npz archive ({error}); write it again with numpy.savez.") from error


def _array(path: Path, name: str) -> Array:
    try:
        if path.is_dir():
            return np.asarray(np.load(path / f"{name}.npy", allow_pickle=False))
        with np.load(path, allow_pickle=False) as archive:
            return np.asarray(archive[name])
    except _DAMAGED as error:
        raise FileError(
            f"Array {name!r} of {path} cannot be read ({error}); write it again without objects."
        ) from error


def _pair(path: Path, names: Iterable[str], part: str | None) -> tuple[str, str] | None:
    """Find the names of one part's inputs and labels; one without the other is an error."""
    inputs, labels = _find(names, _INPUTS, part), _find(names, _LABELS, part)
    if inputs is None and labels is None:
        return None
    if inputs is None or labels is None:
        have, lack = (labels, "inputs") if inputs is None else (inputs, "labels")
        raise InputError(f"{path} has {have!r} but no {lack} to go with it; name them X and y.")
    return inputs, labels


def _find(names: Iterable[str], stems: Iterable[str], part: str | None) -> str | None:
    spellings = [""] if part is None else PART_NAMES[part]
    wanted = [
        pattern.strip("_")
        for stem in stems
        for spelling in spellings
        for pattern in (f"{stem}_{spelling}", f"{spelling}_{stem}")
    ]
    lowered = {name.lower(): name for name in names}
    return next((lowered[name] for name in wanted if name in lowered), None)


def _read(path: Path, inputs_name: str, labels_name: str, train_labels_name: str) -> ArraySet:
    raw = _label_column(_array(path, labels_name), path, labels_name)
    listed = next((name for name in _names(path) if name.lower() in _CLASSES), None)
    classes: tuple[str, ...]
    if listed is not None and raw.dtype.kind in "iu":
        classes = tuple(str(label) for label in _array(path, listed).tolist())
        encoded = torch.from_numpy(raw.astype(np.int64))
    else:
        train = raw if labels_name == train_labels_name else _array(path, train_labels_name).reshape(-1)
        classes = class_names(train, name=str(path))
        encoded = encode_labels(raw, classes, name=str(path))
    return ArraySet(path.stem, encoded, classes, as_inputs(_array(path, inputs_name), name=f"{inputs_name} of {path}"))


def _label_column(values: Array, path: Path, name: str) -> Array:
    """Accept labels as (N,) or (N, 1)."""
    if values.ndim == 2 and values.shape[1] == 1:
        values = values[:, 0]
    if values.ndim != 1:
        raise InputError(f"Labels {name!r} of {path} must have dims (N,), not {values.shape}: give class numbers.")
    return values


def as_inputs(values: Array, *, name: str) -> Tensor:
    """Return features (N, K) as float32, or images (N, H, W), (N, H, W, C), (N, C, H, W) of uint8 as (N, C, H, W)."""
    if values.ndim == 2 and values.dtype.kind in "iufb":
        with np.errstate(over="ignore"):  # told as an error below
            features = torch.from_numpy(np.ascontiguousarray(values, dtype=np.float32))
        if not bool(torch.isfinite(features).all()):
            raise InputError(f"{name} holds values that are missing or not finite in float32; mend or drop them.")
        return features
    if values.dtype != np.uint8 or values.ndim not in (3, 4):
        raise InputError(
            f"{name} must be numeric features of dims (N, K) or uint8 images (N, H, W[, C]), "
            f"not {values.dtype} {values.shape}."
        )
    if values.ndim == 3:
        values = values[:, None]
    elif values.shape[1] not in (1, 3) and values.shape[3] in (1, 3):
        values = values.transpose(0, 3, 1, 2)
    elif values.shape[1] not in (1, 3):
        raise InputError(f"Images {name} must have 1 or 3 channels, not dims {values.shape}.")
    return torch.from_numpy(np.ascontiguousarray(values))

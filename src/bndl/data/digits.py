"""The digits inside scikit-learn: 1,797 images of 8 x 8, a real data set that needs no download."""

import numpy as np
import torch

from bndl.data.sets import ArraySet, Source
from bndl.errors import MissingExtraError

_MAXIMUM = 16


def open_source() -> Source:
    """Return the digits as one part; :func:`bndl.data.load` carves validation and test out of it."""
    return Source("digits", {"train": read})


def read() -> ArraySet:
    """Read all digits: images (1797, 1, 8, 8) uint8, scaled from 0..16 to 0..255."""
    try:
        from sklearn.datasets import load_digits
    except ImportError as error:
        raise MissingExtraError("The digits data set", extra="sklearn") from error
    bunch = load_digits()
    images = np.rint(bunch.images * (255 / _MAXIMUM)).astype(np.uint8)
    labels = torch.from_numpy(bunch.target.astype(np.int64))
    classes = tuple(str(label) for label in bunch.target_names.tolist())
    return ArraySet("digits", labels, classes, torch.from_numpy(images).unsqueeze(1))

"""The Bayesian Non-negative Decision Layer: how sure a classifier is, and why, from one backbone pass."""

import importlib
from typing import TYPE_CHECKING, Any

from bndl._version import __version__
from bndl.compact import CompactLayer, compact
from bndl.convert import convert
from bndl.errors import BndlError, FileError, HeadError, InputError, MissingExtraError
from bndl.evaluate import evaluate
from bndl.evaluation import Evaluation
from bndl.fit import FitResult, fit
from bndl.layer import DecisionLayer
from bndl.objective import Objective, kl
from bndl.predict import predict
from bndl.prediction import Prediction
from bndl.sparsify import SparsePath, sparsify
from bndl.store import load, save

if TYPE_CHECKING:
    from bndl.certify import certify
    from bndl.estimator import BNDLClassifier

__all__ = [
    "BNDLClassifier",
    "BndlError",
    "CompactLayer",
    "DecisionLayer",
    "Evaluation",
    "FileError",
    "FitResult",
    "HeadError",
    "InputError",
    "MissingExtraError",
    "Objective",
    "Prediction",
    "SparsePath",
    "__version__",
    "certify",
    "compact",
    "convert",
    "evaluate",
    "fit",
    "kl",
    "load",
    "predict",
    "save",
    "sparsify",
]


def __getattr__(name: str) -> Any:
    if name == "BNDLClassifier":  # needs scikit-learn, which is an extra and slow to import
        from bndl.estimator import BNDLClassifier

        return BNDLClassifier
    if name == "certify":  # a package that can be called, so that bndl.certify.synthetic is there as well
        return importlib.import_module("bndl.certify")
    raise AttributeError(f"module 'bndl' has no attribute {name!r}")

"""The Bayesian Non-negative Decision Layer: how sure a classifier is, and why, from one backbone pass.

Names are imported when they are first used, so that ``bndl --help`` does not wait for torch. Some functions have the name of
the module that they live in, as ``bndl.fit``: the name in the package is always the function's.
"""

import importlib
import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

from bndl._version import __version__

if TYPE_CHECKING:
    from bndl.certify import certify
    from bndl.compact import CompactLayer, compact
    from bndl.convert import convert
    from bndl.edit import Edit, Editor
    from bndl.errors import BndlError, FileError, HeadError, InputError, MissingExtraError
    from bndl.estimator import BNDLClassifier
    from bndl.evaluate import evaluate
    from bndl.evaluation import Evaluation
    from bndl.explain import explain
    from bndl.export import Exported, export
    from bndl.fit import FitResult, fit
    from bndl.layer import DecisionLayer
    from bndl.objective import Objective, kl
    from bndl.predict import predict
    from bndl.prediction import Prediction
    from bndl.sparsify import Finetuned, SparsePath, finetune, sparsify
    from bndl.store import load, save

__all__ = [
    "BNDLClassifier",
    "BndlError",
    "CompactLayer",
    "DecisionLayer",
    "Edit",
    "Editor",
    "Evaluation",
    "Exported",
    "FileError",
    "Finetuned",
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
    "explain",
    "export",
    "finetune",
    "fit",
    "kl",
    "load",
    "predict",
    "save",
    "sparsify",
]

_HOMES = {
    "compact": ("CompactLayer", "compact"),
    "convert": ("convert",),
    "edit": ("Edit", "Editor"),
    "errors": ("BndlError", "FileError", "HeadError", "InputError", "MissingExtraError"),
    "estimator": ("BNDLClassifier",),
    "evaluate": ("evaluate",),
    "evaluation": ("Evaluation",),
    "export": ("Exported", "export"),
    "fit": ("FitResult", "fit"),
    "layer": ("DecisionLayer",),
    "objective": ("Objective", "kl"),
    "predict": ("predict",),
    "prediction": ("Prediction",),
    "sparsify": ("Finetuned", "SparsePath", "finetune", "sparsify"),
    "store": ("load", "save"),
}
_MODULES = {name: module for module, names in _HOMES.items() for name in names}
_PACKAGES = ("certify", "edit", "explain")  # the first and last can be called, so that bndl.certify.synthetic is there


class _Package(ModuleType):
    """A package whose functions are not hidden by the modules that they live in."""

    def __setattr__(self, name: str, value: Any) -> None:
        if isinstance(value, ModuleType) and _MODULES.get(name) == name:  # the import of bndl.fit binds the name fit
            value = getattr(value, name)
        super().__setattr__(name, value)


def __getattr__(name: str) -> Any:
    if name in _PACKAGES:
        return importlib.import_module(f"bndl.{name}")
    if name in _MODULES:
        value = getattr(importlib.import_module(f"bndl.{_MODULES[name]}"), name)
        globals()[name] = value
        return value
    raise AttributeError(f"module 'bndl' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


sys.modules[__name__].__class__ = _Package

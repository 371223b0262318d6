"""Why a decision was made: ``bndl.explain(model, x)``, and the parts it is made of.

The contract wants both ``bndl.explain(...)``, a call, and ``bndl.explain.lime(...)``, a name in a package. A function of the
same name would hide the package, so the package itself can be called, as :mod:`bndl.certify` is. What only some
explanations need is imported when it is asked for.
"""

import importlib
import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

from bndl.explain.choose import Rule, choose_feature
from bndl.explain.classes import ClassDifference, ClassWeight, class_features, compare_classes, feature_name
from bndl.explain.contributions import contribution_map, contributions, reasons
from bndl.explain.explanation import Explanation, Term, explain
from bndl.explain.gradcam import grad_cam
from bndl.explain.maps import FeatureMaps, feature_maps, upsample

if TYPE_CHECKING:
    from bndl.explain.faithfulness import (
        Curves,
        deletion,
        feature_deletion,
        insertion,
        random_orders,
        randomisation_check,
    )
    from bndl.explain.lime import Lime, lime, lime_perturbed
    from bndl.explain.segments import grid, patches, slic
    from bndl.explain.words import lime_words

__all__ = [
    "ClassDifference",
    "ClassWeight",
    "Curves",
    "Explanation",
    "FeatureMaps",
    "Lime",
    "Rule",
    "Term",
    "choose_feature",
    "class_features",
    "compare_classes",
    "contribution_map",
    "contributions",
    "deletion",
    "explain",
    "feature_deletion",
    "feature_maps",
    "feature_name",
    "grad_cam",
    "grid",
    "insertion",
    "lime",
    "lime_perturbed",
    "lime_words",
    "patches",
    "random_orders",
    "randomisation_check",
    "reasons",
    "slic",
    "upsample",
]

_ON_DEMAND = {
    "Curves": "faithfulness",
    "Lime": "lime",
    "deletion": "faithfulness",
    "feature_deletion": "faithfulness",
    "grid": "segments",
    "insertion": "faithfulness",
    "lime_perturbed": "lime",
    "lime_words": "words",
    "patches": "segments",
    "random_orders": "faithfulness",
    "randomisation_check": "faithfulness",
    "slic": "segments",
}


class _Callable(ModuleType):
    def __call__(self, *args: Any, **kwargs: Any) -> list[Explanation]:
        return explain(*args, **kwargs)

    @property
    def lime(self) -> Any:
        """The function :func:`bndl.explain.lime.lime`; the module of its name is found by ``from bndl.explain.lime``."""
        return importlib.import_module("bndl.explain.lime").lime

    @lime.setter
    def lime(self, module: ModuleType) -> None:
        """What the import system does with a submodule, which would hide the function."""


_Callable.__call__.__doc__ = explain.__doc__
sys.modules[__name__].__class__ = _Callable


def __getattr__(name: str) -> Any:
    if name in _ON_DEMAND:
        return getattr(importlib.import_module(f"bndl.explain.{_ON_DEMAND[name]}"), name)
    raise AttributeError(f"module 'bndl.explain' has no attribute {name!r}")

"""Certificates of identifiability: ``bndl.certify(model, loader)``, and the parts it is made of.

The contract wants both ``bndl.certify(...)``, a call, and ``bndl.certify.synthetic``, a module. A function of the same name
would hide the package, so the package itself can be called: that is Python's documented use of a module's ``__class__``.
"""

import sys
from types import ModuleType
from typing import Any

from bndl.certify import recovery, synthetic
from bndl.certify.of_model import certify, certify_factors
from bndl.certify.record import Certificate, Finding, Sensitivity, Thresholds, Window, ZeroRegion

__all__ = [
    "Certificate",
    "Finding",
    "Sensitivity",
    "Thresholds",
    "Window",
    "ZeroRegion",
    "certify",
    "certify_factors",
    "recovery",
    "synthetic",
]


class _Callable(ModuleType):
    def __call__(self, *args: Any, **kwargs: Any) -> Certificate:
        return certify(*args, **kwargs)


_Callable.__call__.__doc__ = certify.__doc__
sys.modules[__name__].__class__ = _Callable

"""Other ways to classify with doubt, on the same backbone and data: one file a method, one line here."""

import difflib
import importlib

from bndl.baselines.method import Fitted, Method
from bndl.errors import InputError

__all__ = ["METHODS", "Fitted", "Method", "get_method"]

METHODS = {
    "dense": "dense.Dense",
    "temperature": "temperature.Temperature",
    "mc-dropout": "mc_dropout.MCDropout",
    "belief-matching": "belief_matching.BeliefMatching",
    "evidential": "evidential.Evidential",
    "ensemble": "ensemble.Ensemble",
    "laplace": "laplace.Laplace",
    "vbll": "vbll.VBLL",
    "card": "card.CARD",
    "nmf": "nmf.NMF",
    "elastic-net": "elastic_net.ElasticNet",
    "bndl": "bndl.BNDL",
}


def get_method(name: str) -> Method:
    """A method by its name in ``METHODS``; what it needs is imported when it is used."""
    if name not in METHODS:
        close = difflib.get_close_matches(name, METHODS, n=1)
        guess = f"did you mean {close[0]!r}?" if close else f"choose from {', '.join(METHODS)}."
        raise InputError(f"there is no method {name!r}; {guess}")
    module, _, cls = METHODS[name].partition(".")
    method: Method = getattr(importlib.import_module(f"bndl.baselines.{module}"), cls)()
    return method

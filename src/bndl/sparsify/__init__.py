"""From a dense decision layer to a handful of weights a class: a path of models, on features that are computed once.

``bndl.sparsify`` is the function; this package holds its parts: the path (:mod:`bndl.sparsify.path`), the walk along it
(:mod:`bndl.sparsify.walk`) and the fit of the weights that are left (:mod:`bndl.sparsify.refit`). ``bndl.finetune`` trains
a point of it with its backbone (:mod:`bndl.sparsify.finetuning`).
"""

from bndl.sparsify.finetuning import Finetuned, finetune
from bndl.sparsify.path import SparsePath, SparsePoint
from bndl.sparsify.run import sparsify

__all__ = ["Finetuned", "SparsePath", "SparsePoint", "finetune", "sparsify"]

"""Data sets as users have them: by name or by path, to labelled examples with class names and a fingerprint."""

from bndl.data.cache import cached_features
from bndl.data.folder import Damaged, FolderSet, find_damaged
from bndl.data.hub import HubSet
from bndl.data.registry import Splits, find, load, load_splits, names
from bndl.data.sets import ArraySet, LabelledSet, Reading, Source, as_float
from bndl.data.split import Holdout, SplitPlan, stratified_split

__all__ = [
    "ArraySet",
    "Damaged",
    "FolderSet",
    "Holdout",
    "HubSet",
    "LabelledSet",
    "Reading",
    "Source",
    "SplitPlan",
    "Splits",
    "as_float",
    "cached_features",
    "find",
    "find_damaged",
    "load",
    "load_splits",
    "names",
    "stratified_split",
]

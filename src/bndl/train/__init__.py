"""Training with Lightning: recipes, a thin module, runs that can be repeated and resumed."""

from bndl.errors import MissingExtraError

try:
    import lightning as _lightning  # noqa: F401
    import pydantic as _pydantic  # noqa: F401
    import yaml as _yaml  # noqa: F401
except ImportError as error:
    raise MissingExtraError("training by recipes", extra="train") from error

from bndl.train.augment import Augment
from bndl.train.loading import Augmented, Loaders, loader
from bndl.train.module import Classifier, Optimization
from bndl.train.recipe import Recipe, list_recipes, load_recipe
from bndl.train.record import Launch
from bndl.train.run import Outcome, Run, load_run, train

__all__ = [
    "Augment",
    "Augmented",
    "Classifier",
    "Launch",
    "Loaders",
    "Optimization",
    "Outcome",
    "Recipe",
    "Run",
    "list_recipes",
    "load_recipe",
    "load_run",
    "loader",
    "train",
]

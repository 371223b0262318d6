"""A recipe: a small YAML file that says everything a training run depends on, checked against a schema."""

import difflib
from collections.abc import Iterable, Mapping
from dataclasses import fields, replace
from importlib import resources
from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from bndl.errors import FileError, InputError
from bndl.objective import PRESETS, Objective
from bndl.train.module import Optimization

__all__ = ["Recipe", "list_recipes", "load_recipe", "override", "parse_recipe"]


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class DataPart(_Part):
    """Which data, and how they are split and changed.

    Attributes:
        name: a data set's name or path.
        val: share of each class to hold out for choosing the epoch, where no validation part is stored.
        test: share to hold out for testing, where nothing but training data is stored.
        val_as_test: a stored validation part is the test part, as in papers on ImageNet.
        split_seed: of the split; apart from the run's seed, so that all seeds share a split.
        size: side of the images of a folder; None: ``model.size``, or else 32 for our own networks and 224 for others.
        resize: shorter side before the crop; None: ``size``.
        augment: ``none``, ``cifar`` or ``imagenet``.
        strict: a damaged image is an error; otherwise it is skipped, and said.
        verify: look for damaged images first, which decodes all of them; without it they are errors when met.
        workers: processes that decode images; None chooses.
    """

    name: str
    val: float = Field(default=0.1, gt=0, lt=1)
    test: float = Field(default=0.2, gt=0, lt=1)
    val_as_test: bool = False
    split_seed: int = Field(default=0, ge=0)
    size: int | None = Field(default=None, ge=1)
    resize: int | None = Field(default=None, ge=1)
    augment: Literal["none", "cifar", "imagenet"] = "none"
    strict: bool = False
    verify: bool = True
    workers: int | None = Field(default=None, ge=0)


class LayerPart(_Part):
    """Settings of the decision layer, see :class:`bndl.DecisionLayer`."""

    theta_shape: Literal["feature", "sample", "entry"] = "feature"
    phi_shape: Literal["row", "entry"] = "row"
    dense_map: bool = False
    alpha_phi: float = Field(default=0.0, ge=0)
    init_shape: float = Field(default=10.0, gt=0.1)
    min_shape: float = Field(default=0.1, ge=0.1)


class ModelPart(_Part):
    """The network and its head.

    Attributes:
        backbone: a name of :func:`bndl.backbones.build`.
        pretrained: start from published weights.
        start: folder of a finished run with a dense head, whose weights to start from.
        frozen: leave the backbone as it is: features are computed once and cached, and the head alone learns.
        width: channels of the first stage, for our own networks.
        size: side of the images that the network reads; None: what it was made for. Others are resized in it.
        features: how the features of a frozen backbone are stored, ``float32`` or in half the room.
        head: ``bndl``; ``dense`` for the same recipe with a linear head; or another method of :mod:`bndl.baselines` that
            trains a whole network.
        converted: where the head is ``bndl``, and else without effect: learn with a linear head, bit for bit as ``dense``
            does, and convert it at the end; otherwise the decision layer itself learns.
        layer: settings of the decision layer.
    """

    backbone: str
    pretrained: bool = False
    start: str | None = None
    frozen: bool = False
    width: int | None = Field(default=None, ge=1)
    size: int | None = Field(default=None, ge=1)
    features: Literal["float32", "float16", "bfloat16"] = "float32"
    head: Literal["bndl", "dense", "nmf", "mc-dropout", "belief-matching", "evidential"] = "bndl"
    converted: bool = False
    layer: LayerPart = LayerPart()

    @model_validator(mode="before")
    @classmethod
    def _only_ours_is_converted(cls, record: Any) -> Any:
        """So that ``model.head=dense`` is all that a dense twin needs, and its record says what was done."""
        other = isinstance(record, Mapping) and record.get("head", "bndl") != "bndl"
        return {**record, "converted": False} if other else record


class TrainPart(_Part):
    """How it learns; see :class:`bndl.train.Optimization` for the first lines.

    Attributes:
        epochs: passes over the training data.
        batch_size: examples a step, all processes together.
        objective: a preset of :class:`bndl.Objective`.
        beta: in place of the preset's.
        clip: largest norm of the gradient; None for no clipping.
        precision: Lightning's name, such as ``32-true`` or ``bf16-mixed``.
        channels_last: memory layout that convolutions like.
        compile: compile the model first; needs a C++ compiler.
        seed: of the initial weights, the order and every draw.
    """

    optimizer: Literal["sgd", "adamw"] = "sgd"
    lr: float = Field(default=0.1, gt=0)
    momentum: float = Field(default=0.9, ge=0, lt=1)
    weight_decay: float = Field(default=5e-4, ge=0)
    schedule: Literal["cosine", "linear", "constant"] = "cosine"
    warmup: float = Field(default=0.05, ge=0, lt=1)
    kl_warmup: float = Field(default=0.2, ge=0, le=1)
    epochs: int = Field(ge=1)
    batch_size: int = Field(default=128, ge=1)
    objective: str = "default"
    beta: float | None = Field(default=None, ge=0)
    clip: float | None = Field(default=None, gt=0)
    precision: Literal["32-true", "bf16-mixed", "16-mixed"] = "32-true"
    channels_last: bool = True
    compile: bool = False
    seed: int = Field(default=0, ge=0, lt=2**32)

    def optimization(self) -> Optimization:
        """The part that :class:`bndl.train.Classifier` takes."""
        return Optimization(**{part.name: getattr(self, part.name) for part in fields(Optimization)})

    def resolved_objective(self) -> Objective:
        """The KL's settings."""
        if self.objective not in PRESETS:
            raise InputError(f"there is no objective {self.objective!r}; choose from {', '.join(PRESETS)}.")
        chosen = PRESETS[self.objective]
        return chosen if self.beta is None else replace(chosen, beta=self.beta)


class Needs(_Part):
    """What the recipe asks for: data, hours and machine, in words."""

    data: str = "your data"
    hours: str = "?"
    machine: str = "any machine"


class Recipe(_Part):
    """One experiment.

    Attributes:
        name: of the file.
        about: one line.
        needs: what it asks for.
        paper: what the paper got, in words; empty where it has no such figure.
    """

    name: str = ""
    about: str = "a recipe of your own"
    needs: Needs = Needs()
    paper: str = ""
    data: DataPart
    model: ModelPart
    train: TrainPart

    def with_head(self, head: str, *, seed: int | None = None) -> "Recipe":
        """The same with another head, and another seed if one is given."""
        converted = self.model.converted and head == "bndl"
        model = self.model.model_copy(update={"head": head, "converted": converted})
        train = self.train if seed is None else self.train.model_copy(update={"seed": seed})
        return self.model_copy(update={"model": model, "train": train})

    def learner(self) -> "Recipe":
        """The same with the head that learns: a linear one, if that is converted at the end."""
        return self.with_head("dense") if self.model.converted and self.model.head == "bndl" else self

    def to_yaml(self) -> str:
        """The whole recipe, defaults included."""
        return str(yaml.safe_dump(self.model_dump(), sort_keys=False, allow_unicode=True))


def list_recipes() -> tuple[Recipe, ...]:
    """The recipes that come with the package, by name."""
    return tuple(load_recipe(name) for name in sorted(_packaged()))


def load_recipe(source: str | Path, *, settings: Iterable[str] = ()) -> Recipe:
    """Read a recipe by its name or path.

    Args:
        source: a name of :func:`list_recipes`, or a YAML file. ``extends: NAME`` in it starts from another recipe.
        settings: changes like ``"train.lr=0.05"``.
    """
    record = _read(str(source), seen=())
    record["name"] = Path(source).stem
    return parse_recipe(override(record, settings), name=str(source))


def parse_recipe(record: Mapping[str, Any], *, name: str) -> Recipe:
    """Check a record against the schema; what is wrong is said in one sentence, with what may have been meant."""
    try:
        recipe = Recipe.model_validate(record)
        recipe.train.resolved_objective()
        return recipe
    except ValidationError as error:
        raise InputError(_sentence(error, name)) from error


def override(record: Mapping[str, Any], settings: Iterable[str]) -> dict[str, Any]:
    """A copy of the record with ``section.key=value`` settings put in; values are read as YAML."""
    changed = {key: dict(value) if isinstance(value, Mapping) else value for key, value in record.items()}
    for setting in settings:
        path, equals, text = setting.partition("=")
        keys = path.strip().split(".")
        if not equals or not all(keys) or len(keys) < 2:
            raise InputError(f"--set takes section.key=value, such as train.epochs=5, got {setting!r}.")
        section = changed
        for key in keys[:-1]:
            inner = section.setdefault(key, {})
            if not isinstance(inner, dict):
                raise InputError(f"{path!r} does not name a setting: {key!r} has no parts.")
            section[key] = section = dict(inner)
        try:
            section[keys[-1]] = yaml.safe_load(text)
        except yaml.YAMLError as error:
            raise InputError(f"the value of --set {path} is no YAML: {text!r}.") from error
    return changed


def _packaged() -> dict[str, Any]:
    folder = resources.files("bndl") / "recipes"
    return {entry.name.removesuffix(".yaml"): entry for entry in folder.iterdir() if entry.name.endswith(".yaml")}


def _read(source: str, *, seen: tuple[str, ...]) -> dict[str, Any]:
    """The record of a recipe, put over those that it extends."""
    packaged = _packaged()
    path = packaged.get(source) or Path(source).expanduser()
    if source not in packaged and not path.is_file():
        close = difflib.get_close_matches(source, packaged, n=2)
        guess = f"; did you mean {' or '.join(close)}?" if close else "; bndl train --list shows the names."
        raise FileError(f"{source!r} is neither a recipe's name nor a file{guess}")
    try:
        record = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise FileError(f"{source} is no YAML file: {' '.join(str(error).split())}.") from error
    if not isinstance(record, dict):
        raise FileError(f"{source} holds no recipe: it must be a YAML mapping with data, model and train.")
    base = record.pop("extends", None)
    if base is None:
        return record
    beside = Path(source).expanduser().parent / str(base)  # a file's own folder comes first
    start = str(beside) if source not in packaged and beside.is_file() else str(base)
    if start in seen or start == source:
        raise FileError(f"{source} extends itself, by way of {base}: take one of the extends lines out.")
    return _merged(_read(start, seen=(*seen, source)), record)


def _merged(base: Mapping[str, Any], change: Mapping[str, Any]) -> dict[str, Any]:
    both = dict(base)
    for key, value in change.items():
        inner = both.get(key)
        both[key] = _merged(inner, value) if isinstance(inner, Mapping) and isinstance(value, Mapping) else value
    return both


def _sentence(error: ValidationError, name: str) -> str:
    """The first mistake that the schema found, in one sentence."""
    first = error.errors()[0]
    place = ".".join(str(part) for part in first["loc"])
    if first["type"] == "extra_forbidden":
        known = _known(first["loc"][:-1])
        close = difflib.get_close_matches(str(first["loc"][-1]), known, n=1)
        guess = f"did you mean {close[0]!r}?" if close else f"choose from {', '.join(known)}."
        return f"{name} has a setting {place!r} that does not exist; {guess}"
    if first["type"] == "missing":
        return f"{name} lacks {place!r}: add it."
    return f"{name} has a bad {place!r}: {first['msg'][0].lower()}{first['msg'][1:]}, got {first['input']!r}."


def _known(place: tuple[int | str, ...]) -> list[str]:
    """The settings that exist at a place of the schema."""
    model: type[BaseModel] = Recipe
    for key in place:
        inner = model.model_fields[str(key)].annotation
        assert isinstance(inner, type)
        assert issubclass(inner, BaseModel)
        model = inner
    return list(model.model_fields)

"""The report's data: typed records that become one JSON object, which the page shows and the explorer serves."""

import base64
import dataclasses
import math
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np

from bndl.explain.curves import Summary
from bndl.metrics.bootstrap import Figure

__all__ = [
    "FORMAT",
    "ClassRecord",
    "Decile",
    "ExampleRows",
    "FeatureRecord",
    "Method",
    "Mistake",
    "ReportData",
    "Side",
    "Thumbs",
    "Trust",
    "Verdict",
]

FORMAT = 1
Array: TypeAlias = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True)
class Meta:
    """What the report is about; ``level``: below which p-value a decision counts as certain."""

    title: str
    run: str
    data: str
    created: str
    bndl: str
    backbone: str
    about: tuple[str, ...]
    classes: tuple[str, ...]
    num_examples: int
    num_features: int
    num_used: int
    images: bool
    level: float
    signed: bool
    live: bool = False


@dataclass(frozen=True)
class Verdict:
    """The figures at the top; None: not measured."""

    accuracy: Figure | None
    pavpu: Figure | None
    pavpu_baseline: float | None
    ece: Figure | None
    nll: Figure | None
    nnz: float | None
    weights_per_class: float | None
    features_per_decision: Figure | None


@dataclass(frozen=True)
class Decile:
    """A tenth of the examples, by how sure they are: accuracy with Wilson's interval, the range of the uncertainty."""

    count: int
    accuracy: float
    low: float
    high: float
    least: float
    most: float


@dataclass(frozen=True)
class ReliabilityBin:
    """Examples whose confidence lies in (low, high]: their mean confidence and accuracy, None where there are none."""

    low: float
    high: float
    count: int
    confidence: float
    accuracy: float


@dataclass(frozen=True)
class Risk:
    """The share of errors among the surest ``coverage`` of the examples."""

    coverage: tuple[float, ...]
    risk: tuple[float, ...]


@dataclass(frozen=True)
class Counts:
    """The four counts of PAvPU."""

    certain_right: int
    certain_wrong: int
    uncertain_right: int
    uncertain_wrong: int


@dataclass(frozen=True)
class Trust:
    """Whether to trust the model when it is sure; ``by``: the uncertainty that orders the deciles, surest first."""

    by: str
    deciles: tuple[Decile, ...]
    reliability: tuple[ReliabilityBin, ...]
    risk: Risk
    counts: Counts


@dataclass(frozen=True)
class Weight:
    """A weight of a class with its 90 % interval."""

    feature: int
    weight: float
    low: float
    high: float


@dataclass(frozen=True)
class Served:
    """A class that a feature speaks for, with the weight and its 90 % interval."""

    index: int
    weight: float
    low: float
    high: float


@dataclass(frozen=True)
class Confused:
    """Another class, and how many examples of this one were taken for it."""

    other: int
    count: int


@dataclass(frozen=True)
class ClassRecord:
    """A class: its largest weights, what the others sum to, and what it is taken for; ``example``: a thumb."""

    index: int
    name: str
    count: int
    accuracy: Figure | None
    bias: float
    num_weights: int
    features: tuple[Weight, ...]
    rest: float
    confused: tuple[Confused, ...]
    example: int | None


@dataclass(frozen=True)
class FeatureImage:
    """An image that a feature is active in: its thumb, its number in the data, theta, the thumb of the overlay."""

    id: int
    example: int
    theta: float
    map: int | None


@dataclass(frozen=True)
class FeatureRecord:
    """A feature: how active it is, the classes it serves, and what it looks like at its most and at its usual."""

    feature: int
    label: str
    mean: float
    active: float
    classes: tuple[Served, ...]
    top: tuple[FeatureImage, ...]
    moderate: tuple[FeatureImage, ...]


@dataclass(frozen=True)
class Phi:
    """Weights (F, C) float32 of the features whose theta the page has."""

    features: tuple[int, ...]
    weights: Array


@dataclass(frozen=True)
class ExampleRows:
    """n examples as columns, enough to edit the layer in the page: logits - theta Phi (1 - factor).

    Attributes:
        count: n.
        all: whether these are all examples that were measured.
        id: (n,) uint32 number in the data.
        label: (n,) uint16 decisions; ``truth`` and ``runner`` alike.
        prob: (n,) float32 probability of the decision; ``p`` and ``flip`` alike.
        decile: (n,) uint8, 0 the surest.
        certain: (n,) uint8.
        thumb: (n,) int32, -1 where there is none.
        names: file names where the data have them.
        logits: (n, C) float32 mean logits.
        theta_features: numbers of the F features.
        theta: (n, F) float16.
        phi: their weights.
        bias: (C,).
    """

    count: int
    all: bool
    id: Array
    label: Array
    truth: Array
    runner: Array
    prob: Array
    p: Array
    flip: Array
    decile: Array
    certain: Array
    thumb: Array
    names: tuple[str, ...] | None
    logits: Array
    theta_features: tuple[int, ...]
    theta: Array
    phi: Phi
    bias: tuple[float, ...]


@dataclass(frozen=True)
class TermRecord:
    """One term theta_k Phi_kc of a logit, with its 90 % interval."""

    feature: int
    value: float
    low: float
    high: float


@dataclass(frozen=True)
class Side:
    """A class's logit taken apart: bias + terms + rest = logit."""

    target: int = field(metadata={"key": "class"})
    logit: float
    bias: float
    terms: tuple[TermRecord, ...]
    rest: float


@dataclass(frozen=True)
class Mistake:
    """A wrong decision; ``row`` in the examples, thumbs of the image, of its evidence, and of LIME's super-pixels."""

    row: int
    image: int | None
    map: int | None
    map_truth: int | None
    lime: int | None
    lime_r2: float | None
    lime_feature: int | None
    predicted: Side
    truth: Side = field(metadata={"key": "true"})


@dataclass(frozen=True)
class Sheet:
    """A sprite sheet as a data URI."""

    uri: str
    width: int
    height: int


@dataclass(frozen=True)
class Thumbs:
    """Sprite sheets, and where each thumb lies: (sheet, x, y, width, height)."""

    sheets: tuple[Sheet, ...]
    tiles: tuple[tuple[int, int, int, int, int], ...]


@dataclass(frozen=True)
class Randomised:
    """How alike the maps stay when the network is drawn anew from the top down to this module."""

    module: str
    correlation: float


@dataclass(frozen=True)
class Faithfulness:
    """Curves of taking away and putting back what an explanation points at, against a random order."""

    images: int
    deletion: dict[str, Summary | None] | None
    insertion: dict[str, Summary | None] | None
    feature_deletion: dict[str, Summary | None] | None
    randomisation: tuple[Randomised, ...] | None


@dataclass(frozen=True)
class Method:
    """How it was made, and what it cannot tell."""

    limits: tuple[str, ...]


@dataclass(frozen=True)
class ReportData:
    """Everything the page shows."""

    meta: Meta
    verdict: Verdict
    trust: Trust
    classes: tuple[ClassRecord, ...]
    features: tuple[FeatureRecord, ...]
    examples: ExampleRows
    mistakes: tuple[Mistake, ...]
    thumbs: Thumbs
    faithfulness: Faithfulness | None
    method: Method

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready: arrays as base64 under ``<name>_b64``, None for what has no value."""
        return {"format": FORMAT, **_plain(self)}


def _plain(value: Any) -> Any:
    if isinstance(value, Figure) and math.isnan(value.value):
        return None
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return dict(_item(one, getattr(value, one.name)) for one in dataclasses.fields(value))
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, tuple | list):
        return [_plain(item) for item in value]
    if isinstance(value, float):
        return float(f"{value:.7g}") if math.isfinite(value) else None  # more digits than float32 has only cost room
    return value


def _item(one: "dataclasses.Field[Any]", value: Any) -> tuple[str, Any]:
    key = one.metadata.get("key", one.name)
    if isinstance(value, np.ndarray):
        little = np.ascontiguousarray(value, dtype=value.dtype.newbyteorder("<"))
        return f"{key}_b64", base64.b64encode(little.tobytes()).decode("ascii")
    return key, _plain(value)

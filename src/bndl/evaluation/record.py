"""What an evaluation found: typed records, to JSON and back."""

import dataclasses
import json
import math
import os
import types
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Union, get_args, get_origin, get_type_hints

from bndl._version import __version__
from bndl.errors import FileError, InputError
from bndl.files import replacing
from bndl.metrics.bands import Bins, Curve, Groups
from bndl.metrics.bootstrap import Figure
from bndl.metrics.examples import Examples
from bndl.metrics.pavpu import PAvPUCounts

__all__ = ["Certainty", "ClassAccuracy", "Evaluation", "Outside", "SepinAt", "Shift", "Shifted", "Sparsity"]

_FORMAT_VERSION = 1


@dataclass(frozen=True)
class Certainty:
    """PAvPU at one level, next to all that it means nothing without.

    Attributes:
        level: a decision is certain where its p-value is at most this.
        num_samples: S of the test; a p-value means something only together with it.
        counts: the four counts.
        value: PAvPU.
        baseline: PAvPU of calling everything certain, which is the accuracy.
        gain: value minus baseline; an interval above 0 means that the test helps.
    """

    level: float
    num_samples: int
    counts: PAvPUCounts
    value: Figure
    baseline: float
    gain: Figure


@dataclass(frozen=True)
class ClassAccuracy:
    """How many examples of a class there were, and the share that was told right, with Wilson's interval."""

    name: str
    count: int
    accuracy: Figure


@dataclass(frozen=True)
class Sparsity:
    """What a decision rests on.

    Attributes:
        nnz: share of the weights that are not zero (> 1e-5), over everything the decision needs.
        active: how many these are.
        weights: all weights, zero or not.
        weights_per_class: active weights a class.
        features_per_decision: features that make up 90 % of what speaks for a decision (NEC), mean over examples; None
            where the method does not say. For a linear head, whose terms have either sign, of their absolute values.
    """

    nnz: float
    active: int
    weights: int
    weights_per_class: float
    features_per_decision: Figure | None


@dataclass(frozen=True)
class Outside:
    """Data of another kind.

    Attributes:
        num_examples: how many.
        figures: for each kind of uncertainty ``auroc``, ``aupr`` and ``fpr95`` of telling them from the examples inside.
        edges: of the bins of the entropy, from 0 to its largest value ln C.
        inside: examples of the evaluated set in each bin.
        outside: examples of this set in each bin.
    """

    num_examples: int
    figures: dict[str, dict[str, Figure]]
    edges: tuple[float, ...]
    inside: tuple[int, ...]
    outside: tuple[int, ...]


@dataclass(frozen=True)
class Shifted:
    """The same examples after a corruption: ``accuracy``, ``nll`` and ``ece``; the corruption's name is "" for a mean."""

    corruption: str
    severity: int
    figures: dict[str, Figure]


@dataclass(frozen=True)
class Shift:
    """All corruptions that were tried, and the mean over them at each severity (over those tried at it)."""

    cells: tuple[Shifted, ...]
    means: tuple[Shifted, ...]


@dataclass(frozen=True)
class SepinAt:
    """SEPIN@k in nats, by k ("1" to "1000", and "all"): what features say that no other says; higher is better."""

    at: dict[str, float]
    num_images: int
    num_features: int
    temperature: float
    batch_size: int


@dataclass(frozen=True)
class Evaluation:
    """Everything that was measured of one way to predict, on one data set.

    Attributes:
        name: what predicted.
        data: on what.
        num_examples: N.
        classes: names of the C classes.
        figures: by key, see :data:`bndl.metrics.figures.FIGURES`; the intervals are bootstrap percentiles (95 %).
        ece_floor: the ECE that chance alone would give these confidences if they were exactly right, see
            :func:`bndl.metrics.calibration_floor`.
        pavpu: at each level.
        errors: for each kind of uncertainty that tells examples apart, ``auroc``, ``aupr`` and ``fpr95`` of finding the
            errors, and ``aurc``. All but the first kind have a fifth of the resamples.
        deciles: for each kind of uncertainty, and for ``p_value``, accuracy in ten groups of equal size.
        reliability: accuracy by confidence.
        risk_coverage: share of errors among the surest, by confidence.
        per_class: accuracy of each class.
        sparsity: what a decision rests on, where that is known.
        ood: data of another kind, by name.
        shift: corrupted examples.
        sepin: how much features say on their own.
        seed: of noise and resamples.
        num_resamples: of the bootstrap.
        seconds: that it took.
        examples: one number an example of all that the figures are made of; not part of the JSON, see
            :meth:`bndl.metrics.Examples.save`.
    """

    name: str
    data: str
    num_examples: int
    classes: tuple[str, ...]
    figures: dict[str, Figure]
    ece_floor: float
    pavpu: tuple[Certainty, ...]
    errors: dict[str, dict[str, Figure]]
    deciles: dict[str, Groups]
    reliability: Bins
    risk_coverage: Curve
    per_class: tuple[ClassAccuracy, ...]
    sparsity: Sparsity | None
    ood: dict[str, Outside]
    shift: Shift | None
    sepin: SepinAt | None
    seed: int
    num_resamples: int
    seconds: float
    examples: Examples | None = field(default=None, repr=False, compare=False)

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready: lists for tuples, None for what has no value (NaN)."""
        record = dataclasses.asdict(dataclasses.replace(self, examples=None))
        del record["examples"]
        return {"format_version": _FORMAT_VERSION, "bndl": __version__, **_plain(record)}

    def to_json(self) -> str:
        """The JSON text that :meth:`save` writes."""
        return json.dumps(self.to_dict(), indent=1, allow_nan=False) + "\n"

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write as JSON, whole or not at all; the path."""
        with replacing(path) as temporary:
            temporary.write_text(self.to_json(), encoding="utf-8")
        return Path(path)

    @classmethod
    def from_dict(cls, record: Mapping[str, Any]) -> "Evaluation":
        """What :meth:`to_dict` made, without the examples."""
        own = dict(record)
        version, _ = own.pop("format_version", None), own.pop("bndl", None)
        if version != _FORMAT_VERSION:
            raise InputError(f"an evaluation of format version {version!r}, this bndl reads {_FORMAT_VERSION}.")
        own.setdefault("ece_floor", None)  # younger than the format
        built: Evaluation = _build(cls, own, "evaluation")
        return built

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> "Evaluation":
        """Read what :meth:`save` wrote."""
        path = Path(path)
        if not path.is_file():
            raise FileError(f"there is no file {path}: give an evaluation.json that bndl evaluate wrote.")
        try:
            record = json.loads(path.read_text(encoding="utf-8"))
            if not isinstance(record, dict):
                raise InputError("it holds no JSON object.")
            return cls.from_dict(record)
        except (ValueError, RecursionError) as error:  # InputError is one
            reason = str(error).splitlines()[0].rstrip(".")
            raise FileError(f"{path} is damaged or no evaluation ({reason}): evaluate again.") from error

    def table(self) -> str:
        """The figures as text."""
        from bndl.evaluation.table import table_of

        return table_of({self.name: self})


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, tuple | list):
        return [_plain(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _build(kind: Any, value: Any, place: str) -> Any:
    """A value of JSON as the type that a field has; InputError where it is another."""
    origin, args = get_origin(kind), get_args(kind)
    if origin in (Union, types.UnionType):
        return None if value is None else _build(args[0], value, place)
    if dataclasses.is_dataclass(kind) and isinstance(value, dict):
        return _build_record(kind, value, place)
    if origin is tuple and isinstance(value, list):
        return tuple(_build(args[0], item, place) for item in value)
    if origin is dict and isinstance(value, dict):
        return {key: _build(args[1], item, f"{place}.{key}") for key, item in value.items()}
    if kind is float and (value is None or (isinstance(value, int | float) and not isinstance(value, bool))):
        return math.nan if value is None else float(value)
    if kind in (int, str) and type(value) is kind:
        return value
    raise InputError(f"{place} is no {getattr(kind, '__name__', kind)}.")


def _build_record(kind: Any, value: dict[str, Any], place: str) -> Any:
    wanted = {one.name for one in dataclasses.fields(kind)} - {"examples"}
    if odd := sorted(wanted ^ value.keys()):
        raise InputError(f"{place}.{odd[0]} is {'missing' if odd[0] in wanted else 'unknown'}.")
    hints = get_type_hints(kind)
    return kind(**{name: _build(hints[name], item, f"{place}.{name}") for name, item in value.items()})

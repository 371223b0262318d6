"""The paper's Figure 3: accuracy against the share of weights in use, on the features of a frozen network.

Three paths: ours (:mod:`bndl.sparsify`), the paper's ``ReLU(w - alpha)`` of the dense weights, each threshold followed by a
longer fit than ours, and the elastic net of Debuggable Networks along its own path of penalties. Each is kept in a file as
soon as it is there.
"""

import json
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from torch import nn

from bndl._version import __version__
from bndl.baselines import Fitted
from bndl.baselines.bndl import BNDL, takes_nonnegative
from bndl.baselines.dense import Dense
from bndl.baselines.method import fresh
from bndl.compare.cells import feature_batches
from bndl.compare.run import Bench, Options, benches_of, check, reason_of
from bndl.compare.subjects import Subject
from bndl.convert import convert, find_layer
from bndl.files import replacing
from bndl.layer import DecisionLayer
from bndl.metrics.examples import Examples
from bndl.metrics.figures import FIGURES
from bndl.sparsify.run import follow, refined
from bndl.sparsify.walk import Goal

__all__ = [
    "Point",
    "bndl_path",
    "dense_point",
    "elastic_net_path",
    "paths_of",
    "point_of",
    "threshold_path",
]

# of the weights, down to one a class
_SHARES = (1.0, 0.7, 0.5, 0.35, 0.25, 0.18, 0.13, 0.1, 0.08, 0.06, 0.042, 0.03, 0.02, 0.015, 0.01, 0.006, 0.004, 0.002)
_PENALTIES = 40  # of the elastic net: heads close enough to each other to be compared at any number of weights
_LOG = logging.getLogger(__name__)
Tell = Callable[[str], None]


@dataclass(frozen=True)
class Point:
    """A head with few weights, and what it reaches on the test part.

    Attributes:
        method: whose path it lies on.
        nnz: share of the weights in use.
        weights_per_class: how many that is.
        accuracy: share of right decisions.
        nll: negative log-likelihood.
        ece: expected calibration error.
        seed: of everything random in the path.
    """

    method: str
    nnz: float
    weights_per_class: float
    accuracy: float
    nll: float
    ece: float
    seed: int = 0


def bndl_path(
    subject: Subject, *, seed: int = 0, mode: Literal["prune", "threshold"] = "prune", shares: Sequence[float] = ()
) -> Iterator[Point]:
    """Ever fewer of the converted head's weights, each point with a noise of its own.

    Args:
        subject: whose training and validation part are learnt from.
        seed: of everything random.
        mode: see :func:`bndl.sparsify`.
        shares: of the weights to leave; by default 18 down to .002, and one weight a class.
    """
    layer = _converted(subject)
    (C, K), name = layer.weight.size(), "bndl" if mode == "prune" else "threshold"
    wanted = {round(share * C * K) for share in shares or _SHARES if 1 / K < share < layer.num_weights() / (C * K)}
    goals = [Goal(count) for count in sorted({C, *wanted}, reverse=True)]
    for point in follow(layer, subject.train, subject.val, goals, mode=mode, seed=seed):
        layer.load_state_dict(refined(point, layer, subject.train, subject.val, seed=seed).state)
        yield point_of(name, BNDL().predictor(layer, seed=seed), subject, seed=seed)


def threshold_path(subject: Subject, *, seed: int = 0) -> Iterator[Point]:
    """The paper's way."""
    return bndl_path(subject, seed=seed, mode="threshold")


def _converted(subject: Subject) -> DecisionLayer:
    features: Literal["nonnegative", "signed"] = "nonnegative" if takes_nonnegative(subject.val) else "signed"
    return find_layer(convert(fresh(subject.head), features=features))


def elastic_net_path(subject: Subject, *, seed: int = 0) -> Iterator[Point]:
    """The heads of an elastic net, from empty to dense."""
    from bndl.baselines.elastic_net import path

    for step in path(subject.train, subject.val, num_points=_PENALTIES, seed=seed):
        yield point_of("elastic-net", Dense().predictor(step.head), subject, seed=seed)


def paths_of(
    subjects: Sequence[str], seeds: Sequence[int], options: Options, *, tell: Tell = lambda _: None
) -> dict[str, list[Point]]:
    """The dense head and the three paths with every seed, on each subject, by its name.

    What lies in ``OUT/paths`` already is read, unless it depends on something else; a path that fails is told, and left out.

    Args:
        subjects: checkpoints, folders of finished dense runs, or recipes.
        seeds: of the paths; the split of the data is the same for all.
        options: where things lie.
        tell: is given a line for people, as points come.
    """
    check(subjects, [*_PATHS], seeds, options)
    found: dict[str, list[Point]] = {}
    for bench in benches_of(subjects, options, tell):
        found[bench.name] = []
        for method in _PATHS:
            for seed in seeds if method != "dense" else seeds[:1]:
                found[bench.name] += _kept(bench, method, seed, options, tell)
    return found


def _kept(bench: Bench, method: str, seed: int, options: Options, tell: Tell) -> list[Point]:
    """A path out of its file, or computed and written there."""
    file = options.out / "paths" / bench.name / f"{method}-{seed}.json"
    if not options.again and (stored := _read(file, bench.key)):
        return stored
    points: list[Point] = []
    try:
        for point in _PATHS[method](bench.subject, seed):
            tell(f"{bench.name}, {method}, seed {seed}: nnz {point.nnz:.4f}, accuracy {point.accuracy:.2%}")
            points.append(point)
    except Exception as error:  # whatever a package raises: one path must not lose the others
        _LOG.debug("%s, %s, seed %d failed", bench.name, method, seed, exc_info=error)
        tell(f"{bench.name}, {method}, seed {seed}: failed: {reason_of(error)}")
        return []
    file.parent.mkdir(parents=True, exist_ok=True)
    record = {"version": __version__, "key": bench.key, "points": [asdict(point) for point in points]}
    with replacing(file) as temporary:
        temporary.write_text(json.dumps(record, indent=2) + "\n")
    return points


def _read(file: Path, key: str) -> list[Point]:
    """Nothing where there is no file, it depends on something else, or it is damaged."""
    try:
        record = json.loads(file.read_text())
        return [Point(**point) for point in record["points"]] if record["key"] == key else []
    except (OSError, ValueError, TypeError, KeyError):
        return []


def dense_point(subject: Subject) -> Point:
    """The dense head as it is."""
    head: nn.Module = subject.head
    return point_of("dense", Dense().predictor(head), subject)


def point_of(method: str, fitted: Fitted, subject: Subject, *, seed: int = 0) -> Point:
    """What a fitted head reaches on the test part."""
    test = Examples.cat([Examples.of(fitted.predict(h), labels) for h, labels in feature_batches(subject.test)])
    kinds = {kind.key: float(kind.of(test, None)) for kind in FIGURES if kind.key in ("accuracy", "nll", "ece")}
    return Point(method, fitted.size.nnz, fitted.size.active / subject.head.out_features, **kinds, seed=seed)


_PATHS: Mapping[str, Callable[[Subject, int], Iterator[Point]]] = {
    "dense": lambda subject, _: iter([dense_point(subject)]),
    "bndl": lambda subject, seed: bndl_path(subject, seed=seed),
    "threshold": lambda subject, seed: threshold_path(subject, seed=seed),
    "elastic-net": lambda subject, seed: elastic_net_path(subject, seed=seed),
}

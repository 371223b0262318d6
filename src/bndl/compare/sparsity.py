"""The paper's Figure 3: accuracy against the share of weights in use, on the features of a frozen network.

Three paths: ours (:mod:`bndl.sparsify`), the paper's ``ReLU(w - alpha)`` of the dense weights, each threshold followed by
the same fit, and the elastic net of Debuggable Networks along its own path of penalties.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import nn

from bndl.baselines import Fitted
from bndl.baselines.bndl import BNDL, takes_nonnegative
from bndl.baselines.dense import Dense
from bndl.baselines.method import fresh
from bndl.compare.cells import feature_batches
from bndl.compare.run import Options, subject_of
from bndl.compare.subjects import Subject
from bndl.convert import convert, find_layer
from bndl.errors import MissingExtraError
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
    "draw_paths",
    "elastic_net_path",
    "paths_of",
    "point_of",
    "threshold_path",
]

# of the weights, down to one a class
_SHARES = (1.0, 0.7, 0.5, 0.35, 0.25, 0.18, 0.13, 0.1, 0.08, 0.06, 0.042, 0.03, 0.02, 0.015, 0.01, 0.006, 0.004, 0.002)
_PENALTIES = 40  # of the elastic net: heads close enough to each other to be compared at any number of weights
_COLOURS = {"bndl": "#0b7285", "threshold": "#ae3ec9", "elastic-net": "#e8590c"}


@dataclass(frozen=True)
class Point:
    """A head with few weights: the share of its weights in use, and what it reaches on the test part."""

    method: str
    nnz: float
    accuracy: float
    nll: float
    ece: float


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
        yield point_of(name, BNDL().predictor(layer, seed=seed), subject)


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
        yield point_of("elastic-net", Dense().predictor(step.head), subject)


def paths_of(
    subjects: Sequence[str], options: Options, *, tell: Callable[[str], None] = lambda _: None
) -> dict[str, list[Point]]:
    """The three paths and the dense head, on each subject: a checkpoint, a dense run's folder, or a recipe."""
    found = {}
    for name in subjects:
        subject = subject_of(name, options, tell)
        points = [dense_point(subject)]
        for path in (bndl_path, threshold_path, elastic_net_path):
            for point in path(subject):
                tell(f"{name}, {point.method}: nnz {point.nnz:.4f}, accuracy {point.accuracy:.2%}")
                points.append(point)
        found[name] = points
    return found


def dense_point(subject: Subject) -> Point:
    """The dense head as it is."""
    head: nn.Module = subject.head
    return point_of("dense", Dense().predictor(head), subject)


def point_of(method: str, fitted: Fitted, subject: Subject) -> Point:
    """What a fitted head reaches on the test part."""
    test = Examples.cat([Examples.of(fitted.predict(h), labels) for h, labels in feature_batches(subject.test)])
    kinds = {kind.key: float(kind.of(test, None)) for kind in FIGURES if kind.key in ("accuracy", "nll", "ece")}
    return Point(method, fitted.size.nnz, **kinds)


def draw_paths(found: Mapping[str, Sequence[Point]], path: Path) -> Path:
    """A panel a subject; the dense accuracy as a dashed line."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MissingExtraError("drawing", extra="demo") from error
    figure = Figure(figsize=(4.6 * len(found), 3.4), dpi=130)
    axes = figure.subplots(1, len(found), squeeze=False)[0]
    for axis, (subject, points) in zip(axes, found.items(), strict=True):
        _panel(axis, points)
        axis.set_title(Path(subject).name, fontsize=9)
    figure.tight_layout()
    with replacing(path) as temporary:
        figure.savefig(temporary, format="png")
    return path


def _panel(axis: Any, points: Sequence[Point]) -> None:
    for method, colour in _COLOURS.items():
        own = sorted((point for point in points if point.method == method), key=lambda point: point.nnz)
        own = [point for point in own if point.nnz > 0]
        axis.plot([p.nnz for p in own], [100 * p.accuracy for p in own], "o-", color=colour, markersize=4, label=method)
    dense = torch.tensor([point.accuracy for point in points if point.method == "dense"])
    if len(dense):
        axis.axhline(100 * float(dense.mean()), color="#868e96", linestyle="--", linewidth=0.9, label="dense")
    axis.set_xscale("log")
    axis.set_xlabel("share of weights in use (nnz)", fontsize=8)
    axis.set_ylabel("accuracy, %", fontsize=8)
    axis.tick_params(labelsize=8)
    axis.spines[["top", "right"]].set_visible(False)
    axis.legend(frameon=False, fontsize=8)

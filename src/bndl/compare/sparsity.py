"""The paper's Figure 3: accuracy against the share of weights in use, on the features of a frozen network.

Two paths: BNDL by the paper's ``ReLU(w - alpha)``, each threshold followed by a short fit, and the elastic net of Debuggable
Networks along its own path of penalties.
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
from bndl.fit import fit
from bndl.layer import DecisionLayer
from bndl.metrics.examples import Examples
from bndl.metrics.figures import FIGURES

__all__ = ["Point", "bndl_path", "draw_paths", "elastic_net_path", "paths_of"]

_SHARES = (1.0, 0.7, 0.5, 0.35, 0.25, 0.18, 0.12, 0.08, 0.05, 0.03, 0.02, 0.01)
_EPOCHS = 3  # of the fit after each threshold


@dataclass(frozen=True)
class Point:
    """A head with few weights: the share of its weights in use, and what it reaches on the test part."""

    method: str
    nnz: float
    accuracy: float
    nll: float
    ece: float


def bndl_path(subject: Subject, *, seed: int = 0) -> Iterator[Point]:
    """Thresholds that leave ever fewer of the converted head's weights, each followed by a short fit."""
    start = _converted(subject)
    weights = start.weight.detach().flatten().sort(descending=True).values
    for share in _SHARES:
        layer = _converted(subject)
        layer.alpha_phi = float(weights[min(len(weights) - 1, int(share * len(weights)))]) if share < 1 else 0.0
        fit(layer, subject.train, subject.val, epochs=_EPOCHS, seed=seed, progress=False)
        yield _point("bndl", BNDL().predictor(layer, seed=seed), subject)


def _converted(subject: Subject) -> DecisionLayer:
    features: Literal["nonnegative", "signed"] = "nonnegative" if takes_nonnegative(subject.val) else "signed"
    return find_layer(convert(fresh(subject.head), features=features))


def elastic_net_path(subject: Subject, *, seed: int = 0) -> Iterator[Point]:
    """The heads of an elastic net, from empty to dense."""
    from bndl.baselines.elastic_net import path

    for step in path(subject.train, subject.val, seed=seed):
        yield _point("elastic-net", Dense().predictor(step.head), subject)


def paths_of(
    subjects: Sequence[str], options: Options, *, tell: Callable[[str], None] = lambda _: None
) -> dict[str, list[Point]]:
    """Both paths and the dense head, on each subject: a checkpoint, a dense run's folder, or a recipe."""
    found = {}
    for name in subjects:
        subject = subject_of(name, options, tell)
        points = [dense_point(subject)]
        for path in (bndl_path, elastic_net_path):
            for point in path(subject):
                tell(f"{name}, {point.method}: nnz {point.nnz:.4f}, accuracy {point.accuracy:.2%}")
                points.append(point)
        found[name] = points
    return found


def dense_point(subject: Subject) -> Point:
    """The dense head as it is."""
    head: nn.Module = subject.head
    return _point("dense", Dense().predictor(head), subject)


def _point(method: str, fitted: Fitted, subject: Subject) -> Point:
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
        axis.set_title(subject, fontsize=9)
    figure.tight_layout()
    with replacing(path) as temporary:
        figure.savefig(temporary, format="png")
    return path


def _panel(axis: Any, points: Sequence[Point]) -> None:
    for method, colour in (("bndl", "#0b7285"), ("elastic-net", "#e8590c")):
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

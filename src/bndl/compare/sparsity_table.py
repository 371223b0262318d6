"""Figure 3 told and drawn: paths side by side at the same number of weights, mean over the seeds."""

import itertools
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from bndl.compare.sparsity import Point
from bndl.errors import MissingExtraError
from bndl.files import replacing

__all__ = ["Lead", "draw_paths", "lead_of", "mean_at", "paths_to_markdown"]

_TITLES = {"bndl": "ours", "threshold": "`ReLU(w - alpha)`", "elastic-net": "glm_saga"}
_COLOURS = {"bndl": "#0b7285", "threshold": "#ae3ec9", "elastic-net": "#e8590c"}
_SMALL = 1e-9  # relative difference of equal shares


def mean_at(points: Sequence[Point], method: str, nnz: float) -> Point | None:
    """What a method reaches with a share of the weights, mean over the seeds; None where a seed's path does not reach it.

    Between two points of a path, linear in ln nnz.
    """
    values = _values(points, method, nnz)
    if not values:
        return None
    mean: dict[str, Any] = {
        key: statistics.fmean(getattr(v, key) for v in values) for key in ("accuracy", "nll", "ece")
    }
    return replace(values[0], **mean)


@dataclass(frozen=True)
class Lead:
    """Our accuracy less that of another method, at the shares of the weights of the other's heads.

    Attributes:
        heads: how many lie in our range.
        ahead: at how many ours is at least as accurate.
        least: the smallest difference.
        nnz: where that is.
    """

    heads: int
    ahead: int
    least: float
    nnz: float


def lead_of(points: Sequence[Point], other: str = "elastic-net") -> Lead | None:
    """At every head of the other method's first seed, means over the seeds; None where there is nothing to compare."""
    found = []
    for nnz in _shares(points, other):
        ours, theirs = mean_at(points, "bndl", nnz), mean_at(points, other, nnz)
        if ours is not None and theirs is not None:
            found.append((ours.accuracy - theirs.accuracy, nnz))
    if not found:
        return None
    return Lead(len(found), sum(gap >= -_SMALL for gap, _ in found), *min(found))


def paths_to_markdown(found: Mapping[str, Sequence[Point]]) -> str:
    """A table a subject: accuracy, NLL and ECE of the three paths at the numbers of weights of ours."""
    return "\n".join(_table(subject, points) for subject, points in found.items())


def _table(subject: str, points: Sequence[Point]) -> str:
    dense = [point for point in points if point.method == "dense"]
    seeds = sorted({point.seed for point in points})
    lines = [f"**{subject}**, seeds {', '.join(map(str, seeds))}" + (f"; dense {_cell(dense[0])}" if dense else ""), ""]
    lines += ["| nnz | weights a class | " + " | ".join(_TITLES.values()) + " |", "|---|---|---|---|---|"]
    for nnz in sorted(_shares(points, "bndl"), reverse=True):
        own = mean_at(points, "bndl", nnz)
        if own is not None:
            cells = [_cell(mean_at(points, method, nnz)) for method in _TITLES]
            lines.append(f"| {nnz:.4f} | {own.weights_per_class:.1f} | {' | '.join(cells)} |")
    lines += ["", "Accuracy % / NLL / ECE %, mean over the seeds, between two heads linear in ln nnz."]
    for other in ("threshold", "elastic-net"):
        if lead := lead_of(points, other):
            lines.append(
                f"Ours is at least as accurate at {lead.ahead} of the {lead.heads} heads of {_TITLES[other]} in its range; "
                f"the least lead is {100 * lead.least:+.2f} points, at nnz {lead.nnz:.4f}."
            )
    return "\n".join(lines) + "\n"


def _cell(point: Point | None) -> str:
    return "-" if point is None else f"{100 * point.accuracy:.2f} / {point.nll:.3f} / {100 * point.ece:.1f}"


def _shares(points: Sequence[Point], method: str) -> list[float]:
    """Of the heads of a method's first seed that have weights."""
    own = [point for point in points if point.method == method and point.nnz > 0]
    return sorted({point.nnz for point in own if point.seed == own[0].seed})


def _values(points: Sequence[Point], method: str, nnz: float) -> list[Point]:
    """Of every seed; empty where one has none."""
    own = [point for point in points if point.method == method]
    values = [_between([p for p in own if p.seed == seed], nnz) for seed in sorted({point.seed for point in own})]
    return [] if None in values else [value for value in values if value is not None]


def _between(path: Sequence[Point], nnz: float) -> Point | None:
    path = sorted((point for point in path if point.nnz > 0), key=lambda point: point.nnz)
    for point in path:
        if math.isclose(point.nnz, nnz, rel_tol=_SMALL):
            return point
    for low, high in itertools.pairwise(path):
        if low.nnz < nnz < high.nnz:
            w = math.log(nnz / low.nnz) / math.log(high.nnz / low.nnz)
            numbers: dict[str, Any] = {
                key: (1 - w) * getattr(low, key) + w * getattr(high, key) for key in ("accuracy", "nll", "ece")
            }
            weights = low.weights_per_class * nnz / low.nnz
            return replace(low, nnz=nnz, weights_per_class=weights, **numbers)
    return None


def draw_paths(found: Mapping[str, Sequence[Point]], path: Path) -> Path:
    """A panel a subject: the mean over the seeds, from least to largest as a band, the dense accuracy as a dashed line."""
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
        values = {nnz: _values(points, method, nnz) for nnz in _shares(points, method)}
        seeds = {nnz: [100 * value.accuracy for value in own] for nnz, own in values.items() if own}
        shares, of_seeds = list(seeds), list(seeds.values())
        if not shares:
            continue
        axis.plot(shares, [statistics.fmean(own) for own in of_seeds], "o-", color=colour, markersize=3, label=method)
        lowest, highest = [min(own) for own in of_seeds], [max(own) for own in of_seeds]
        axis.fill_between(shares, lowest, highest, color=colour, alpha=0.2, linewidth=0)
    if dense := [100 * point.accuracy for point in points if point.method == "dense"]:
        axis.axhline(statistics.fmean(dense), color="#868e96", linestyle="--", linewidth=0.9, label="dense")
    axis.set_xscale("log")
    axis.set_xlabel("share of weights in use (nnz)", fontsize=8)
    axis.set_ylabel("accuracy, %", fontsize=8)
    axis.tick_params(labelsize=8)
    axis.spines[["top", "right"]].set_visible(False)
    axis.legend(frameon=False, fontsize=8)

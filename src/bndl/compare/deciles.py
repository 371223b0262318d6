"""The paper's Figure 2, left: accuracy and uncertainty of tenths of the test set, the surest first; no smoothing."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from bndl.compare.cells import Cell
from bndl.errors import MissingExtraError
from bndl.files import replacing
from bndl.metrics.deciles import accuracy_by_decile
from bndl.metrics.examples import Examples

__all__ = ["Curve", "curves", "draw_curves"]

_COLOURS = {"bndl": "#0b7285", "dense": "#868e96"}


@dataclass(frozen=True)
class Curve:
    """Of one method on one subject, mean over the seeds.

    Attributes:
        uncertainty: mean of 1 - confidence in each tenth, the surest first.
        accuracy: of each tenth.
    """

    subject: str
    method: str
    uncertainty: tuple[float, ...]
    accuracy: tuple[float, ...]


def curves(cells: Sequence[Cell], out: Path) -> list[Curve]:
    """A curve a subject and method, from the examples that the cells in ``out`` keep."""
    groups: dict[tuple[str, str], list[Examples]] = {}
    for cell in cells:
        path = out / "cells" / cell.subject / f"{cell.method}-{cell.seed}" / "test.npz"
        groups.setdefault((cell.subject, cell.method), []).append(Examples.load(path))
    return [_curve(subject, method, examples) for (subject, method), examples in groups.items()]


def _curve(subject: str, method: str, seeds: list[Examples]) -> Curve:
    accuracy = torch.tensor([accuracy_by_decile(e.uncertainty(), e.correct).accuracy for e in seeds]).mean(dim=0)
    unsure = [torch.tensor_split(e.uncertainty().sort().values, len(accuracy)) for e in seeds]
    means = torch.tensor([[float(part.mean()) for part in parts] for parts in unsure]).mean(dim=0)
    return Curve(subject, method, tuple(means.tolist()), tuple(accuracy.tolist()))


def draw_curves(found: Sequence[Curve], path: Path) -> Path:
    """A panel a subject: accuracy of each tenth as dots and lines, a colour a method."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MissingExtraError("drawing", extra="demo") from error
    subjects = list(dict.fromkeys(curve.subject for curve in found))
    figure = Figure(figsize=(4.6 * len(subjects), 3.4), dpi=130)
    axes = figure.subplots(1, len(subjects), squeeze=False)[0]
    for axis, subject in zip(axes, subjects, strict=True):
        _panel(axis, [curve for curve in found if curve.subject == subject])
        axis.set_title(Path(subject).name, fontsize=9)
    figure.tight_layout()
    with replacing(path) as temporary:
        figure.savefig(temporary, format="png")
    return path


def _panel(axis: Any, own: list[Curve]) -> None:
    for number, curve in enumerate(own):
        colour = _COLOURS.get(curve.method, f"C{number}")
        tenths = range(1, len(curve.accuracy) + 1)
        axis.plot(tenths, [100 * a for a in curve.accuracy], "o-", color=colour, markersize=4, label=curve.method)
    axis.set_xticks(range(1, 11))
    axis.set_xlabel("tenth of the test set, the surest first", fontsize=8)
    axis.set_ylabel("accuracy, %", fontsize=8)
    axis.tick_params(labelsize=8)
    axis.spines[["top", "right"]].set_visible(False)
    axis.legend(frameon=False, fontsize=8)

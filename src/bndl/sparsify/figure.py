"""A picture of a path: accuracy, NLL and ECE against the share of weights in use."""

import os
from pathlib import Path
from typing import Any

from bndl.errors import MissingExtraError
from bndl.files import replacing
from bndl.sparsify.path import SparsePath, SparsePoint

__all__ = ["draw"]

_INK, _PALE, _TUNED = "#0b7285", "#868e96", "#e8590c"


def draw(path: SparsePath, file: str | os.PathLike[str], *, finetuned: SparsePoint | None = None) -> Path:
    """Three panels as PNG; the dashed line is the first point, the ring the chosen one, the star a fine-tuned one."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MissingExtraError("drawing", extra="demo") from error
    figure = Figure(figsize=(11, 3.3), dpi=130)
    panels = (("accuracy", "accuracy, %", 100), ("nll", "NLL", 1), ("ece", "ECE, %", 100))
    for axis, (name, heading, factor) in zip(figure.subplots(1, 3), panels, strict=True):
        _panel(axis, path, [factor * getattr(point, name) for point in path.points])
        if finetuned is not None:
            _star(axis, finetuned.nnz, factor * getattr(finetuned, name))
        axis.set_title(heading, fontsize=10, loc="left")
        if name == "ece":
            axis.set_ylim(bottom=0)
    figure.tight_layout()
    file = Path(file)
    with replacing(file) as temporary:
        figure.savefig(temporary, format="png")
    return file


def _panel(axis: Any, path: SparsePath, values: list[float]) -> None:
    shares = [point.nnz for point in path.points]
    axis.axhline(values[0], color=_PALE, linestyle="--", linewidth=0.9)
    axis.plot(shares, values, "o-", color=_INK, markersize=4)
    axis.plot(shares[path.chosen], values[path.chosen], "o", markersize=11, fillstyle="none", color=_INK)
    axis.set_xscale("log")
    axis.invert_xaxis()
    axis.set_xlabel("share of weights in use (nnz)", fontsize=8)
    axis.tick_params(labelsize=8)
    axis.spines[["top", "right"]].set_visible(False)


def _star(axis: Any, share: float, value: float) -> None:
    axis.plot(share, value, "*", color=_TUNED, markersize=11)
    axis.annotate(
        "fine-tuned",
        (share, value),
        (-8, 0),
        textcoords="offset points",
        ha="right",
        va="center",
        fontsize=8,
        color=_TUNED,
        bbox={"facecolor": "white", "edgecolor": "none", "pad": 1},  # the path may pass behind
    )

"""The study as a picture: cosines of certified columns and of the others, and what controls were told."""

import os
from pathlib import Path
from typing import Any

from bndl.certify.study import RECOVERED, Study
from bndl.errors import InputError, MissingExtraError
from bndl.evaluation.drawing import COLOURS, INK, MIDDLE, PALE, label
from bndl.files import replacing

__all__ = ["draw"]

_FORMATS = (".png", ".svg", ".pdf")
_FLOOR = 1e-6  # of 1 - cosine, so that a perfect column has a place on the axis


def draw(study: Study, path: str | os.PathLike[str]) -> Path:
    """Write the picture, as PNG, SVG or PDF; the path."""
    try:
        from matplotlib.figure import Figure as Page
    except ImportError as error:
        raise MissingExtraError("drawing", extra="demo") from error
    path = check_picture(path)
    page = Page(figsize=(13, 5.2), facecolor="white", dpi=120)
    left, right = page.subplots(1, 2, width_ratios=(3, 2))
    _cosines(left, study)
    _controls(right, study)
    page.tight_layout(w_pad=3)
    with replacing(path) as temporary:
        page.savefig(temporary, format=path.suffix[1:].lower())
    return path


def check_picture(path: str | os.PathLike[str]) -> Path:
    """The path, if a picture can be written there."""
    path = Path(path)
    if path.suffix.lower() not in _FORMATS:
        raise InputError(f"a picture is written as {', '.join(_FORMATS)}, not as {path.suffix or path.name!r}.")
    return path


def _cosines(axes: Any, study: Study) -> None:
    """A dot a column: how far from the planted one, certified left and others right, by view."""
    views = list(dict.fromkeys(column.view for column in study.columns))
    for place, view in enumerate(views):
        for certified, shift, colour in ((True, -0.2, COLOURS[0]), (False, 0.2, COLOURS[1])):
            own = [column for column in study.columns if column.view == view and column.certified == certified]
            x = [place + shift + 0.24 * _spread(number) for number in range(len(own))]
            y = [max(_FLOOR, 1 - column.cosine) for column in own]
            axes.scatter(x, y, s=9, color=colour, alpha=0.55, linewidths=0)
            recovered = sum(column.cosine > RECOVERED for column in own)
            words = f"{recovered} of\n{len(own)}"
            axes.annotate(words, (place + shift, 2.6), ha="center", va="center", size=8.5, color=colour, weight="bold")
    axes.axhline(1 - RECOVERED, color=MIDDLE, linewidth=0.9, linestyle="--")
    axes.set_yscale("log")
    axes.set_ylim(_FLOOR / 2, 6)
    axes.set_yticks([1e-6, 1e-4, 1e-2, 1], ["< 1e-6", "1e-4", "0.01", "1"])
    axes.set_xticks(range(len(views)), [view.replace(", ", ",\n") for view in views])
    label(
        axes,
        "Planted columns found again (below the line)",
        "how the logits were seen",
        "1 - cosine with the planted one",
    )
    options = {"xycoords": "axes fraction", "weight": "bold", "size": 10}
    axes.annotate("certified", (0.015, 0.26), color=COLOURS[0], **options)
    axes.annotate("not certified", (0.015, 0.2), color=COLOURS[1], **options)


def _spread(number: int) -> float:
    """Places from -1/2 to 1/2 that fill up evenly."""
    return (number * 0.6180339887) % 1 - 0.5


def _controls(axes: Any, study: Study) -> None:
    """A bar a control: features that counting zeros would pass; ours beside it."""
    names = list(dict.fromkeys(control.name for control in study.controls))
    for place, name in enumerate(names):
        own = [control for control in study.controls if control.name == name]
        counted, certified = sum(c.counted for c in own), sum(c.certified for c in own)
        axes.barh(place - 0.17, counted, height=0.3, color=PALE)
        axes.barh(place + 0.17, certified, height=0.3, color=COLOURS[0])
        axes.annotate(f" {counted}", (counted, place - 0.17), va="center", size=8.5, color=INK)
        axes.annotate(
            f" {certified}", (certified, place + 0.17), va="center", size=8.5, color=COLOURS[0], weight="bold"
        )
    axes.set_yticks(range(len(names)), names)
    axes.invert_yaxis()
    seeds = len({control.seed for control in study.controls})
    label(axes, "Controls that must be refused", f"features passed, {seeds} seeds together", "")
    axes.set_xlim(0, 1.25 * max(1, *(sum(c.counted for c in study.controls if c.name == name) for name in names)))
    options = {"xycoords": "axes fraction", "ha": "right", "weight": "bold", "size": 9.5}
    axes.annotate("by a window and r - 1 zeros, counted", (0.98, 0.955), color=MIDDLE, **options)
    axes.annotate("by the certificate", (0.98, 0.905), color=COLOURS[0], **options)

"""What all panels are drawn with: colours that everyone can tell apart, dots, bands and words."""

import math
from collections.abc import Sequence
from typing import Any, TypeAlias

from bndl.metrics.bootstrap import Figure

__all__ = ["COLOURS", "INK", "MIDDLE", "PALE", "Line", "band", "dots", "label", "say", "text"]

INK, PALE, MIDDLE = "#22303c", "#c9d3dc", "#8796a3"
COLOURS = ("#1f6fb2", "#e07b00", "#00866b", "#b4518f", "#6b5b00", "#56a4d6", "#7a3b00", "#5c5c5c")
Line: TypeAlias = tuple[str, str]  # a colour and a text


def dots(axes: Any, x: Sequence[float], figures: Sequence[Figure], colour: str, *, scale: float) -> None:
    """A dot and a bar a figure, joined by a line."""
    y = [scale * figure.value for figure in figures]
    below = [scale * max(0.0, figure.value - figure.low) for figure in figures]
    above = [scale * max(0.0, figure.high - figure.value) for figure in figures]
    axes.errorbar(x, y, yerr=[below, above], color=colour, marker="o", markersize=4.5, linewidth=1.4, elinewidth=1)


def band(
    axes: Any, x: Sequence[float], figures: Sequence[Figure], colour: str, *, scale: float, marker: str | None = None
) -> None:
    """A line with its intervals as a band."""
    axes.plot(x, [scale * figure.value for figure in figures], color=colour, linewidth=1.8, marker=marker, markersize=4)
    low, high = ([scale * getattr(figure, end) for figure in figures] for end in ("low", "high"))
    axes.fill_between(x, low, high, color=colour, alpha=0.18, linewidth=0)


def say(axes: Any, lines: Sequence[Line], corner: str) -> None:
    """Names in their colours with a figure, stacked in a corner: no legend to look up."""
    upper, left = corner.startswith("upper"), corner.endswith("left")
    for number, (colour, words) in enumerate(lines):
        down = 8 + 13 * (number if upper else len(lines) - 1 - number)
        axes.annotate(
            words.rstrip(),
            (0 if left else 1, 1 if upper else 0),
            (7 if left else -7, -down if upper else down),
            xycoords="axes fraction",
            textcoords="offset points",
            ha="left" if left else "right",
            va="top" if upper else "bottom",
            size=9,
            weight="bold",
            color=colour,
            zorder=10,
            parse_math=False,
            bbox={"facecolor": "white", "edgecolor": "none", "alpha": 0.75, "pad": 1},
        )


def label(axes: Any, title: str, x: str, y: str) -> None:
    """Title and names of the axes, and no more ink than needed."""
    axes.set_title(title, loc="left", size=12.5, weight="bold", color=INK, pad=10, parse_math=False)
    axes.set_xlabel(x, size=9.5, color=INK)
    axes.set_ylabel(y, size=9.5, color=INK)
    axes.tick_params(labelsize=8.5, length=0, colors=INK)
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(PALE)


def text(figure: Figure, heading: str, scale: float) -> str:
    """A figure in words, as a percentage where the scale is 100."""
    if math.isnan(figure.value):
        return f"{heading} -"
    return f"{heading} {100 * figure.value:.2f} %" if scale == 100 else f"{heading} {figure.value:.4f}"

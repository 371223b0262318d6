"""A comparison as a picture: a panel a figure, a dot a method, its interval as a line, the reference as a dashed one."""

import math
from pathlib import Path
from typing import Any

from bndl.compare.table import Column, Row, Table
from bndl.errors import MissingExtraError
from bndl.files import replacing

__all__ = ["draw"]

_OURS, _OTHERS, _LINE = "#0b7285", "#868e96", "#adb5bd"
_ACROSS = 4  # panels a line


def draw(table: Table, folder: Path) -> list[Path]:
    """Write one picture a subject, ``compare-SUBJECT.png``; the paths."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MissingExtraError("drawing", extra="demo") from error
    paths = []
    for subject in table.subjects():
        rows = [row for row in table.of(subject) if not row.failed]
        columns = [c for c in table.columns if any(not math.isnan(_value(row, c)) for row in rows)]
        if not rows or not columns:
            continue
        lines = math.ceil(len(columns) / _ACROSS)
        figure = Figure(figsize=(3.1 * min(_ACROSS, len(columns)) + 1.2, lines * (0.9 + 0.26 * len(rows))), dpi=130)
        axes = figure.subplots(lines, min(_ACROSS, len(columns)), sharey=True, squeeze=False).ravel()
        for axis, column in zip(axes, columns, strict=False):
            _panel(axis, column, rows, table.reference)
        for axis in axes[len(columns) :]:
            axis.set_axis_off()
        seeds = len(table.seeds(subject))
        figure.suptitle(f"{table.about[subject]}: mean of {seeds} seed{'s' * (seeds > 1)}, 95 % intervals", fontsize=10)
        figure.tight_layout(rect=(0, 0, 1, 1 - 0.2 / figure.get_figheight()))
        path = folder / f"compare-{subject}.png"
        with replacing(path) as temporary:
            figure.savefig(temporary, format="png")
        paths.append(path)
    return paths


def _value(row: Row, column: Column) -> float:
    entry = row.entries.get(column.key)
    return math.nan if entry is None else entry.value


def _panel(axis: Any, column: Column, rows: list[Row], reference: str) -> None:
    positions = range(len(rows))
    for position, row in zip(positions, rows, strict=True):
        entry = row.entries.get(column.key)
        if entry is None or math.isnan(entry.value):
            continue
        colour = _OURS if row.method == "bndl" else _OTHERS
        if not math.isnan(entry.low):
            axis.plot(
                [entry.low, entry.high], [position, position], color=colour, linewidth=1.6, solid_capstyle="round"
            )
        axis.plot(entry.value, position, "o", color=colour, markersize=5)
        if row.method == reference:
            axis.axvline(entry.value, color=_LINE, linewidth=0.8, linestyle="--", zorder=0)
    if column.key in ("parameters", "fit", "predict") and all(_value(row, column) > 0 for row in rows):
        axis.set_xscale("log")
    arrow = "larger is better" if column.better == "higher" else "smaller is better"
    axis.set_title(f"{column.heading} ({arrow})", fontsize=8)
    axis.set_yticks(list(positions), [row.method for row in rows], fontsize=8)
    axis.set_ylim(len(rows) - 0.5, -0.5)
    axis.tick_params(axis="x", labelsize=7)
    if axis.get_xscale() == "linear":
        axis.locator_params(axis="x", nbins=4)
        axis.xaxis.set_major_formatter(lambda value, _: column.text(value))
    else:
        low, high = axis.get_xlim()
        axis.set_xlim(min(low, high / 20), high)  # a power of ten at least, so that there is a label
        axis.xaxis.set_major_formatter(lambda value, _: f"{value:,g}")
        axis.minorticks_off()
    axis.spines[["top", "right"]].set_visible(False)
    axis.grid(axis="y", color="#f1f3f5")

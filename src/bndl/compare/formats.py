"""A table as text: Markdown, LaTeX, and blocks of columns that fit a terminal."""

import math
from collections.abc import Callable, Iterator, Sequence

from bndl.compare.table import Column, Entry, Row, Table

__all__ = ["MARKS", "blocks", "cell_text", "is_best", "to_latex", "to_markdown"]

MARKS = {"better": "▲", "worse": "▼", "same": "", "": ""}
_LEGEND = "mean over seeds; below it the 95 % bootstrap interval"
_DIFFERENT = "mean over seeds; below it the difference to {reference} with its 95 % bootstrap interval"
_MARKED = "; ▲ better, ▼ worse than {reference} on the same examples"


def cell_text(column: Column, entry: Entry | None, *, differences: bool = False) -> tuple[str, str]:
    """The value with its mark, and its interval, or the difference to the reference's; empty where there is none."""
    if entry is None or math.isnan(entry.value):
        return "-", ""
    value = f"{column.text(entry.value)}{MARKS[entry.verdict]}"
    if differences:
        return value, "" if math.isnan(entry.difference) else _difference(column, entry)
    if math.isnan(entry.low):
        return value, ""
    return value, f"{column.text(entry.low)} to {column.text(entry.high)}"


def _difference(column: Column, entry: Entry) -> str:
    value, low, high = map(_signed(column), (entry.difference, entry.difference_low, entry.difference_high))
    return f"{value} ({low} to {high})"


def _signed(column: Column) -> Callable[[float], str]:
    return lambda value: f"{'-' if value < 0 else '+'}{column.text(abs(value))}"


def is_best(column: Column, row: Row, rows: Sequence[Row]) -> bool:
    """Whether a row has the column's best mean value, as it is written; sizes and times have no best."""
    if (
        column.key in ("parameters", "fit", "predict")
        or column.key not in row.entries
        or column.key.startswith("paper/")
    ):
        return False
    values = [own.entries[column.key].value for own in rows if column.key in own.entries]
    values = [value for value in values if not math.isnan(value)]
    if len(values) < 2:
        return False
    best = max(values) if column.better == "higher" else min(values)
    return column.text(row.entries[column.key].value) == column.text(best)


def legend(table: Table) -> str:
    """What the numbers of a table are."""
    values = _DIFFERENT if table.differences else _LEGEND
    return (values + (_MARKED if table.reference else "")).format(reference=table.reference)


def to_markdown(table: Table) -> str:
    """A Markdown table for each subject, the best of each column in bold."""
    parts = []
    for subject in table.subjects():
        rows = table.of(subject)
        heading = f"**{subject}**: {table.about[subject]}; seeds {', '.join(map(str, table.seeds(subject)))}"
        lines = [heading, "", f"| | {' | '.join(column.heading for column in table.columns)} |"]
        lines.append("|---" * (len(table.columns) + 1) + "|")
        lines += [f"| {table.label(row)} | {' | '.join(_markdown_cells(table, row, rows))} |" for row in rows]
        parts.append("\n".join(lines))
    return "\n\n".join(parts) + f"\n\n({legend(table)})\n"


def _markdown_cells(table: Table, row: Row, rows: Sequence[Row]) -> Iterator[str]:
    if row.failed:
        yield f"failed: {row.failed}".replace("|", "\\|")
        yield from [""] * (len(table.columns) - 1)
        return
    for column in table.columns:
        value, interval = cell_text(column, row.entries.get(column.key), differences=table.differences)
        value = f"**{value}**" if is_best(column, row, rows) else value
        yield f"{value}<br>{interval}" if interval else value


def to_latex(table: Table) -> str:
    """A booktabs table, the subjects one under the other."""
    columns = "l" + "r" * len(table.columns)
    headings = " & ".join(_escape(column.heading) for column in table.columns)
    lines = [f"% {legend(table)}", f"\\begin{{tabular}}{{{columns}}}", "\\toprule", f" & {headings} \\\\"]
    for subject in table.subjects():
        rows = table.of(subject)
        span = len(table.columns) + 1
        about = _escape(f"{subject}: {table.about[subject]}")
        lines += ["\\midrule", f"\\multicolumn{{{span}}}{{l}}{{{about}}} \\\\"]
        lines += [f"{_escape(table.label(row))} & {' & '.join(_latex_cells(table, row, rows))} \\\\" for row in rows]
    return "\n".join([*lines, "\\bottomrule", "\\end{tabular}", ""])


def _latex_cells(table: Table, row: Row, rows: Sequence[Row]) -> Iterator[str]:
    if row.failed:
        yield f"\\multicolumn{{{len(table.columns)}}}{{l}}{{failed: {_escape(row.failed)}}}"
        return
    arrows = {"▲": "$^{\\uparrow}$", "▼": "$^{\\downarrow}$"}
    for column in table.columns:
        value, interval = cell_text(column, row.entries.get(column.key), differences=table.differences)
        mark = arrows.get(value[-1], "")
        value = value.rstrip("▲▼")
        value = f"\\textbf{{{value}}}{mark}" if is_best(column, row, rows) else f"{value}{mark}"
        yield f"{value} {{\\scriptsize ({interval})}}" if interval else value


def _escape(text: str) -> str:
    special = {"\\": "\\textbackslash{}", "~": "\\textasciitilde{}", "^": "\\textasciicircum{}"}
    return "".join(special.get(c, f"\\{c}" if c in "&%$#_{}" else c) for c in text)


def blocks(table: Table, rows: Sequence[Row], *, width: int) -> Iterator[tuple[Column, ...]]:
    """The columns in blocks that fit this many characters, each next to the methods' names."""
    names = max(len(table.label(row)) for row in rows) + 2
    block: list[Column] = []
    taken = names
    for column in table.columns:
        found = (cell_text(column, row.entries.get(column.key), differences=table.differences) for row in rows)
        texts = [part for cell in found for part in cell]
        need = max(len(part) for part in (*texts, *column.heading.split(" "))) + 3
        if block and taken + need > width:
            yield tuple(block)
            block, taken = [], names
        block.append(column)
        taken += need
    if block:
        yield tuple(block)

"""From cells to one table: mean over seeds, interval, and whether the difference to a reference could be chance."""

import json
import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor

from bndl.compare.cells import Cell, Failure
from bndl.compare.run import Comparison
from bndl.errors import InputError
from bndl.metrics.figures import FIGURES, OOD_FIGURES

__all__ = ["Column", "Entry", "Row", "Table", "columns_of", "tabulate"]

Verdict = Literal["better", "worse", "same", ""]
DEFAULT = ("accuracy", "nll", "ece", "brier", "aurc", "error_auroc", "pavpu_05", "pavpu_margin")
_SEPIN = ("1", "10", "100", "1000", "all")


@dataclass(frozen=True)
class Column:
    """A column: the key of its value, its heading, what is better and how it is written."""

    key: str
    heading: str
    better: Literal["higher", "lower"]
    text: Callable[[float], str]


@dataclass(frozen=True)
class Entry:
    """A value with its 95 % interval; how it compares with the reference's on the same examples.

    Attributes:
        value: mean over the seeds.
        low: lower end of the interval, over examples and seeds; NaN where there is none.
        high: upper end.
        spread: standard deviation over the seeds; NaN for one seed.
        verdict: ``"better"`` or ``"worse"`` where the interval of the paired difference does not hold zero.
        difference: to the reference's value; NaN for the reference itself and where nothing was resampled.
        difference_low: lower end of its 95 % interval, over the same resamples of the examples, centred like the others.
        difference_high: upper end.
    """

    value: float
    low: float
    high: float
    spread: float
    verdict: Verdict = ""
    difference: float = math.nan
    difference_low: float = math.nan
    difference_high: float = math.nan


@dataclass(frozen=True)
class Row:
    """A method on a subject: an entry a column, or why it failed."""

    subject: str
    method: str
    seeds: tuple[int, ...]
    entries: Mapping[str, Entry]
    notes: tuple[str, ...] = ()
    failed: str = ""


@dataclass(frozen=True)
class Table:
    """Rows by subject, the methods in the order they were asked for; ``differences``: below a value stands how far it is
    from the reference's, in place of its interval."""

    columns: tuple[Column, ...]
    rows: tuple[Row, ...]
    about: Mapping[str, str]
    reference: str
    differences: bool = False

    def subjects(self) -> list[str]:
        """The subjects, in order."""
        return list(dict.fromkeys(row.subject for row in self.rows))

    def of(self, subject: str) -> list[Row]:
        """The rows of one subject."""
        return [row for row in self.rows if row.subject == subject]

    def seeds(self, subject: str) -> tuple[int, ...]:
        """The seeds of the methods that have most of them."""
        return max((row.seeds for row in self.of(subject) if not row.failed), key=len, default=())

    def label(self, row: Row) -> str:
        """The method's name, with its seeds where it has not as many as others."""
        if not row.failed and row.seeds == self.seeds(row.subject):
            return row.method
        return f"{row.method} (seed{'s' * (len(row.seeds) > 1)} {', '.join(map(str, row.seeds))})"

    def to_json(self) -> str:
        """Everything, as JSON; what is not a number is null."""
        record = {
            "reference": self.reference,
            "columns": [{"key": c.key, "heading": c.heading, "better": c.better} for c in self.columns],
            "about": dict(self.about),
            "rows": [_plain(asdict(row)) for row in self.rows],
        }
        return json.dumps(record, indent=2) + "\n"


def columns_of(ood: Iterable[str], keys: Sequence[str] | None = None, *, sepin: bool = False) -> tuple[Column, ...]:
    """The columns there can be: chosen figures, OOD by data set, SEPIN, size and times.

    Args:
        ood: names of the data of another kind.
        keys: of the columns to choose; None: the usual ones.
        sepin: whether SEPIN was measured.
    """
    kinds = {kind.key: Column(kind.key, kind.heading, kind.better, kind.text) for kind in FIGURES}
    percent = FIGURES[0].text
    kinds["pavpu_margin"] = Column("pavpu_margin", "PAvPU, best margin", "higher", percent)
    for name in ood:
        for kind in OOD_FIGURES:
            key = f"ood/{name}/{kind.key}"
            kinds[key] = Column(key, f"{kind.heading}, {name}", kind.better, kind.text)
    if sepin:
        for k in _SEPIN:
            kinds[f"sepin/{k}"] = Column(f"sepin/{k}", f"SEPIN@{k} x100", "higher", lambda v: f"{100 * v:.2f}")
    kinds["nnz"] = Column("nnz", "nnz", "lower", lambda v: f"{v:.3f}")
    kinds["parameters"] = Column("parameters", "parameters", "lower", lambda v: f"{v:,.0f}")
    kinds["fit"] = Column("fit", "fit, s", "lower", _seconds)
    kinds["predict"] = Column("predict", "predict, s", "lower", _seconds)
    if keys is None:
        extra = [key for key in kinds if key.endswith("/auroc") or key.startswith("sepin/")]
        keys = [*DEFAULT, *extra, "nnz", "parameters", "fit", "predict"]
    unknown = [key for key in keys if key not in kinds]
    if unknown:
        raise InputError(f"there is no column {unknown[0]!r}; choose from {', '.join(kinds)}.")
    if len({*keys}) < len(keys):
        raise InputError(f"each column is shown once: {', '.join(keys)} names one twice.")
    return tuple(kinds[key] for key in keys)


def tabulate(
    comparison: Comparison,
    *,
    reference: str = "dense",
    columns: Sequence[str] | None = None,
    differences: bool = False,
) -> Table:
    """One row a subject and method.

    Args:
        comparison: what was measured.
        reference: the method that differences are taken to, on the same examples and resamples; without cells of it no
            difference is marked.
        columns: keys of the columns to show; None: the usual ones.
        differences: show how far each value is from the reference's, with the interval of that.
    """
    cells = comparison.cells
    ood = dict.fromkeys(key.split("/")[1] for cell in cells for key in cell.figures if key.startswith("ood/"))
    wanted = columns_of(ood, columns, sepin=any(cell.sepin for cell in cells))
    rows = []
    for subject in comparison.about:
        groups: dict[str, list[Cell]] = {}
        for cell in comparison.cells:
            if cell.subject == subject:
                groups.setdefault(cell.method, []).append(cell)
        against = groups.get(reference, [])
        rows += [_row(subject, method, cells, against, wanted) for method, cells in groups.items()]
        rows += [_failed(subject, failure) for failure in comparison.failures if failure.subject == subject]
    found = any(cell.method == reference for cell in comparison.cells)
    return Table(wanted, tuple(rows), comparison.about, reference if found else "", differences and found)


def _row(subject: str, method: str, cells: list[Cell], against: list[Cell], columns: Sequence[Column]) -> Row:
    entries = {column.key: _entry(column, cells, against) for column in columns}
    notes = tuple(dict.fromkeys(cell.note for cell in cells if cell.note))
    return Row(subject, method, tuple(cell.seed for cell in cells), entries, notes)


def _failed(subject: str, failure: Failure) -> Row:
    return Row(subject, failure.method, (failure.seed,), {}, failed=failure.reason)


def _entry(column: Column, cells: list[Cell], against: list[Cell]) -> Entry:
    values = [_value(cell, column.key) for cell in cells]
    mean = statistics.fmean(values)
    spread = statistics.stdev(values) if len(values) > 1 else math.nan
    own = _resampled(cells, column.key)
    if own is None:
        return Entry(mean, math.nan, math.nan, spread)
    low, high = _interval(own - own.nanmean() + mean)  # a resample's ECE is too large: bins are noisier
    entry = Entry(mean, max(low, 0.0) if mean >= 0 else low, high, spread)
    if not against or against[0].method == cells[0].method:
        return entry
    return _compared(entry, column, own, against)


def _compared(entry: Entry, column: Column, own: Tensor, against: list[Cell]) -> Entry:
    """With the difference to the reference on the same resamples of the examples."""
    theirs = _resampled(against, column.key)
    if theirs is None:
        return entry
    difference = entry.value - statistics.fmean(_value(cell, column.key) for cell in against)
    resampled = own - theirs
    low, high = _interval(resampled - resampled.nanmean() + difference)
    if math.isnan(low):
        return entry
    verdict: Verdict = "same"
    if low > 0 or high < 0:
        verdict = "better" if (low > 0) == (column.better == "higher") else "worse"
    return replace(entry, verdict=verdict, difference=difference, difference_low=low, difference_high=high)


def _value(cell: Cell, key: str) -> float:
    if key in cell.figures:
        return cell.figures[key]
    if key.startswith("sepin/"):
        return math.nan if cell.sepin is None else cell.sepin[key.removeprefix("sepin/")]
    others = {
        "nnz": cell.size.nnz,
        "parameters": float(cell.size.parameters),
        "fit": cell.seconds_to_fit,
        "predict": cell.seconds_to_predict,
    }
    return others.get(key, math.nan)


def _resampled(cells: list[Cell], key: str) -> Tensor | None:
    """The mean over seeds on each resample (R,), where each resample also draws its seeds; None for what has no draws."""
    if not all(key in cell.draws for cell in cells):
        return None
    values = torch.stack([cell.draws[key] for cell in cells])  # (seeds, R)
    generator = torch.Generator().manual_seed(0)
    chosen = torch.randint(len(values), (len(values), values.size(1)), generator=generator)
    return values.gather(0, chosen).mean(dim=0)


def _interval(values: Tensor) -> tuple[float, float]:
    sound = values[~values.isnan()]
    if not len(sound):
        return math.nan, math.nan
    low, high = sound.quantile(torch.tensor([0.025, 0.975], dtype=sound.dtype)).tolist()
    return low, high


def _seconds(value: float) -> str:
    return f"{value:.0f}" if value >= 100 else f"{value:.1f}" if value >= 1 else f"{value:.2f}"


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value

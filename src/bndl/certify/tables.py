"""Certificates and the study in words and tables, for a console of 80 columns."""

import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from bndl.certify.record import Certificate, Finding, Sensitivity
from bndl.certify.study import RECOVERED, Column, Study

if TYPE_CHECKING:
    from rich.table import Table

__all__ = ["column_table", "control_table", "describe", "kind_table", "list_features", "sensitivity_table"]

_NAMED = 5  # witnesses that are named
_SIDES = {"theta": "columns of Theta", "phi": "rows of Phi"}


def describe(found: Certificate) -> Iterator[str]:
    """The certificate as a whole, line by line."""
    limits = found.thresholds
    yield (
        f"{found.num_active} of {found.num_features} features are active (K_eff), {found.num_classes} classes; "
        f"Theta Phi has rank {found.rank} (singular values above {limits.rank_tolerance:g} of the largest); "
        f"zero is up to {limits.tolerance:g} of a sample's or class's largest entry."
    )
    if found.reason:
        yield f"Not applicable: {found.reason}. Nothing can be certified."
    for side, findings in (("theta", found.theta), ("phi", found.phi)):
        windows = sum(own.window is not None and own.window.holds for own in findings)
        held = [own.zeros.holds for own in findings]
        spans = "zero regions not searched" if None in held else f"{sum(map(bool, held))} a zero region that spans"
        certified = sum(own.verdict == "identifiable" for own in findings)
        start = "" if found.reason else f"{certified} of {len(findings)} certified; "
        yield f"  {_SIDES[side]}: {start}{windows} have a window, {spans}"
    yield f"  samples with a class that nothing speaks for: {found.anchored:.1%} (docs/theory.md says why it matters)"


def list_features(found: Certificate, classes: Sequence[str], *, show: int) -> Iterator[str]:
    """Two lines a feature, certified ones first, with witnesses or the reason; nothing where the theorem does not apply."""
    if found.reason or not found.theta:
        return
    rows = {finding.feature: finding for finding in found.phi}
    chosen = sorted(found.theta, key=lambda own: (_missing(own), _missing(rows[own.feature])))[:show]
    yield f"Features, certified first ({len(chosen)} of {len(found.theta)}):"
    for finding in chosen:
        row, number = rows[finding.feature], str(finding.feature)
        window = "" if finding.window is None else f"class {classes[finding.window.witness]}"
        yield f"  {number} Theta: {_said(finding, window, 'samples')}"
        window = "" if row.window is None else f"sample {row.window.witness}"
        names = [classes[own] for own in row.zeros.witnesses[:_NAMED]]
        yield f"  {' ' * len(number)} Phi:   {_said(row, window, 'classes', names)}"


def _missing(finding: Finding) -> bool:
    return finding.verdict != "identifiable"


def _said(finding: Finding, window: str, others: str, names: Sequence[str] | None = None) -> str:
    if finding.verdict != "identifiable":
        return f"{finding.verdict}: {finding.reason}"
    witnesses = finding.zeros.witnesses
    named = list(map(str, witnesses[:_NAMED])) if names is None else list(names)
    more = f", ... ({len(witnesses)} in all)" if len(witnesses) > len(named) else ""
    zeros = f"; {others} {', '.join(named)}{more} are without it and span all others" if named else ""
    assert finding.window is not None
    leak = f" (leakage {finding.window.leakage:.0e})" if finding.window.leakage else ""
    return f"identifiable: {window} uses it alone{leak}{zeros}; cosine at least {finding.cosine:.4f}"


def _table(title: str, headings: Sequence[str], *, left: int) -> "Table":
    """Headings, of which the first ``left`` are of words."""
    from rich import box
    from rich.table import Table

    options: dict[str, Any] = {"pad_edge": False, "padding": (0, 1, 0, 0), "title_justify": "left"}
    table = Table(box=box.SIMPLE_HEAD, title=title, **options)
    for number, heading in enumerate(headings):
        table.add_column(heading, justify="left" if number < left else "right", no_wrap=True)
    return table


def sensitivity_table(found: Certificate) -> "Table | str":
    """What other thresholds would have said; one sentence where none would have made a difference."""
    rows = found.sensitivity
    if not any(own.applicable for own in rows):
        least = max((own.tolerance for own in rows), default=found.thresholds.tolerance)
        return f"No other threshold that was tried makes the theorem apply (zero up to {least:g}, {len(rows)} tried)."
    counted = ("window", "zeros\nspan", "certified")
    sides = [f"{side}\n{own}" for side in ("Theta", "Phi") for own in counted]
    table = _table("With other thresholds", ("zero\nup to", "rank\nabove", "r", *sides), left=0)
    for own in rows:
        table.add_row(f"{own.tolerance:g}", f"{own.rank_tolerance:g}", str(own.rank), *_cells(own))
    if any(None in (own.theta_zeros, own.phi_zeros) for own in rows):
        table.caption = "-: zero regions were not searched, as that could change no verdict"
        table.caption_justify = "left"
    return table


def _cells(own: Sensitivity) -> list[str]:
    cells = []
    for windows, zeros, certified in (
        (own.theta_windows, own.theta_zeros, own.theta_identifiable),
        (own.phi_windows, own.phi_zeros, own.phi_identifiable),
    ):
        cells += [str(windows), "-" if zeros is None else str(zeros), str(certified) if own.applicable else "n/a"]
    return cells


# --------------------------------------------------------------------------------------------------------- the study


def kind_table(found: Study) -> "Table":
    """For each view and kind of column: how many there are, how many were recovered, and the worst cosine."""
    headings = ("logits seen", "columns", "number", "recovered", "worst cosine")
    table = _table(f"Recovered: cosine > {RECOVERED}", headings, left=2)
    for view in dict.fromkeys(column.view for column in found.columns):
        first = view
        for side in ("theta", "phi"):
            for certified in (True, False):
                recovered, count = found.share(view, side=side, certified=certified)
                own = [c.cosine for c in found.columns if (c.view, c.side, c.certified) == (view, side, certified)]
                worst = f"{min(own):.4f}" if own else "-"
                table.add_row(first, _kind(side, certified), str(count), str(recovered), worst)
                first = ""
    return table


def _kind(side: str, certified: bool) -> str:
    return f"{side.title()}, {'certified' if certified else 'others'}"


def column_table(columns: Sequence[Column]) -> "Table":
    """Every planted column."""
    headings = ("logits seen", "factor", "certified", "recovered", "seed", "feature", "cosine")
    table = _table("Each planted column", headings, left=4)
    for own in columns:
        words = ("yes" if own.certified else "no", "yes" if own.cosine > RECOVERED else "no")
        table.add_row(own.view, own.side.title(), *words, str(own.seed), str(own.feature), f"{own.cosine:.4f}")
    return table


def control_table(found: Study) -> "Table":
    """What was said of problems where nothing may be certified."""
    headings = ("control", "certified", "by counting\nzeros", "disguise:\nleast cosine")
    table = _table("Controls, to be refused", headings, left=1)
    table.add_column("why (first feature)")
    for name in dict.fromkeys(control.name for control in found.controls):
        own = [control for control in found.controls if control.name == name]
        moved = min(control.moved for control in own)
        sums = (str(sum(c.certified for c in own)), str(sum(c.counted for c in own)))
        table.add_row(name, *sums, "-" if math.isnan(moved) else f"{moved:.4f}", own[0].reason)
    return table

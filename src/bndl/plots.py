"""Pictures of evaluations, by matplotlib: one function a panel, on axes that are given, and all of them on one page.

Each takes an evaluation, or a dict of name to evaluation to lay several over each other. Bands and bars are the 95 %
intervals.
"""

import math
import os
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any, Literal, TypeAlias

from bndl.errors import InputError, MissingExtraError
from bndl.evaluation import Evaluation, Shift, Shifted
from bndl.evaluation.drawing import COLOURS, INK, MIDDLE, PALE, Line, band, dots, label, say, text
from bndl.evaluation.table import kind_name
from bndl.files import replacing
from bndl.metrics.bootstrap import Figure

__all__ = ["deciles", "ood", "overview", "reliability", "risk_coverage", "shift"]

Evaluations: TypeAlias = Evaluation | Mapping[str, Evaluation]
FORMATS = (".png", ".svg", ".pdf")
_STRIP = 0.2  # height of the counts below a reliability diagram
_SHIFTED: dict[str, tuple[str, float]] = {"accuracy": ("accuracy, %", 100), "nll": ("NLL", 1), "ece": ("ECE, %", 100)}


def overview(evaluations: Evaluations, path: str | os.PathLike[str]) -> Path:
    """Every panel that has data on one page, as PNG, SVG or PDF; the path.

    Args:
        evaluations: one, or several of the same data by name.
        path: the file to write; its suffix says the format.
    """
    try:
        from matplotlib.figure import Figure as Page
    except ImportError as error:
        raise MissingExtraError("drawing", extra="demo") from error
    named, path = _named(evaluations), Path(path)
    if path.suffix.lower() not in FORMATS:
        raise InputError(f"a picture is written as {', '.join(FORMATS)}, not as {path.suffix or path.name!r}.")
    panels: list[Any] = [reliability, deciles, risk_coverage]
    panels += [partial(ood, name=name) for name in dict.fromkeys(n for one in named.values() for n in one.ood)]
    if any(one.shift is not None for one in named.values()):
        panels += [partial(shift, figure="accuracy"), partial(shift, figure="ece")]
    columns = 2 if len(panels) == 4 else 3
    rows = math.ceil(len(panels) / columns)
    width, height = 0.4 + 5.1 * columns, 1.3 + 4.5 * rows
    page = Page(figsize=(width, height), facecolor="white")
    axes = page.subplots(rows, columns, squeeze=False).ravel()
    left, top, bottom = 0.75 / width, 1 - 1.35 / height, 0.65 / height
    page.subplots_adjust(left=left, right=1 - 0.5 / width, top=top, bottom=bottom, wspace=0.26, hspace=0.36)
    for panel, place in zip(panels, axes, strict=False):
        panel(named, place)
    for place in axes[len(panels) :]:
        place.set_axis_off()
    first = next(iter(named.values()))
    page.text(left, 1 - 0.42 / height, _title(named), size=17, weight="bold", color=INK, parse_math=False)
    about = f"{first.num_examples:,} examples of {len(first.classes)} classes; bands and bars: 95 % intervals"
    page.text(left, 1 - 0.72 / height, about, size=11, color=INK)
    with replacing(path) as temporary:
        page.savefig(temporary, dpi=110, format=path.suffix.lower()[1:])
    return path


def reliability(evaluations: Evaluations, axes: Any) -> None:
    """Accuracy of the decisions of each confidence; on the diagonal, confidence means what it says.

    Args:
        evaluations: one, or several by name.
        axes: matplotlib axes to draw on.
    """
    named = _named(evaluations)
    axes.plot([0, 1], [0, 1], color=PALE, linewidth=1.2, zorder=0)
    axes.axhline(0, color=PALE, linewidth=0.8)
    for number, (colour, _, one) in enumerate(_coloured(named)):
        bins = one.reliability
        own = [i for i, count in enumerate(bins.count) if count]
        accuracy = [bins.accuracy[i] for i in own]
        dots(axes, [bins.confidence[i] for i in own], accuracy, colour, scale=1)
        _draw_counts(axes, one, colour, number=number, of=len(named))
    axes.set_xlim(-0.02, 1.03)
    axes.set_ylim(-_STRIP - 0.1, 1.04)
    axes.set_yticks([0, 0.2, 0.4, 0.6, 0.8, 1])
    say(axes, [(colour, f"{name}  {_of(one, 'ece', 'ECE')}") for colour, name, one in _coloured(named)], "upper left")
    label(axes, "Reliability", "confidence (bars: examples a bin, log scale)", "accuracy")


def _draw_counts(axes: Any, one: Evaluation, colour: str, *, number: int, of: int) -> None:
    """Examples in each bin, as bars below the diagram."""
    bins = one.reliability
    width = 1 / len(bins.count)
    most = math.log1p(max(bins.count))
    for lower, count in zip(bins.lower, bins.count, strict=True):
        if not count:
            continue
        height = _STRIP * math.log1p(count) / most
        left = lower + width * (0.08 + 0.84 * number / of)
        axes.bar(left, height, 0.84 * width / of, bottom=-_STRIP - 0.08, align="edge", color=colour, alpha=0.35)
        if of == 1:
            place = (lower + width / 2, -_STRIP - 0.075)
            axes.text(*place, _short(count), ha="center", va="bottom", size=6.5, color=INK)


def deciles(evaluations: Evaluations, axes: Any, *, by: str | None = None) -> None:
    """Accuracy of ten groups of equal size, the surest first: the paper's Figure 2, left, without smoothing.

    Args:
        evaluations: one, or several by name.
        axes: matplotlib axes to draw on.
        by: the kind of uncertainty; by default the p-value, as in the paper, or the confidence where one of the
            evaluations has no test.
    """
    named = _named(evaluations)
    if by is None:
        by = "p_value" if all("p_value" in one.deciles for one in named.values()) else "confidence"
    if missing := [name for name, one in named.items() if by not in one.deciles]:
        raise InputError(f"{missing[0]} has no {kind_name(by)} to order by; it has {_have(named[missing[0]].deciles)}.")
    for number, (colour, _, one) in enumerate(_coloured(named)):
        groups = one.deciles[by]
        places = [i + 1 + 0.14 * (number - (len(named) - 1) / 2) for i in range(len(groups.count))]
        dots(axes, places, groups.accuracy, colour, scale=100)
        axes.axhline(100 * one.figures["accuracy"].value, color=colour, linewidth=0.9, linestyle=(0, (4, 3)), zorder=0)
        for place, figure in zip(places, groups.accuracy if len(named) == 1 else (), strict=False):
            axes.annotate(f"{100 * figure.value:.1f}", (place, 100 * figure.high), (0, 3), ha="center", va="bottom",
                          textcoords="offset points", size=7.5, color=INK)  # fmt: skip
    groups = next(iter(named.values())).deciles[by]
    low = 100 * min(figure.low for one in named.values() for figure in one.deciles[by].accuracy)
    axes.set_ylim(low - 0.16 * (100 - low) - 1, 100 + 0.09 * (100 - low) + 0.2)
    axes.set_xticks(range(1, len(groups.count) + 1))
    axes.set_xlim(0.5, len(groups.count) + 0.5)
    lines = [(colour, f"{name}  {_of(one, 'accuracy', 'accuracy')}") for colour, name, one in _coloured(named)]
    say(axes, lines, "lower left")
    size = f"{min(groups.count):,}" if min(groups.count) == max(groups.count) else f"about {groups.count[0]:,}"
    label(
        axes, "Accuracy by uncertainty decile", f"groups of {size} by {kind_name(by)}, the surest first", "accuracy, %"
    )


def risk_coverage(evaluations: Evaluations, axes: Any) -> None:
    """Share of errors when only the surest examples are answered.

    Args:
        evaluations: one, or several by name.
        axes: matplotlib axes to draw on.
    """
    named = _named(evaluations)
    for colour, _, one in _coloured(named):
        band(axes, [100 * share for share in one.risk_coverage.coverage], one.risk_coverage.risk, colour, scale=100)
    axes.set_xlim(0, 100)
    axes.set_ylim(0, 1.15 * max(100 * figure.high for one in named.values() for figure in one.risk_coverage.risk) + 0.1)
    say(axes, [(colour, f"{name}  {_of(one, 'aurc', 'AURC')}") for colour, name, one in _coloured(named)], "upper left")
    label(axes, "Risk and coverage", "answered, % of the examples, the surest by confidence", "errors among them, %")


def ood(evaluations: Evaluations, axes: Any, *, name: str | None = None) -> None:
    """Entropy of the evaluated examples and of data of another kind.

    Args:
        evaluations: one, or several by name.
        axes: matplotlib axes to draw on.
        name: which other data; may be left out when there is one.
    """
    named = _named(evaluations)
    known = list(dict.fromkeys(key for one in named.values() for key in one.ood))
    if name is None and len(known) == 1:
        name = known[0]
    having = [(colour, key, one) for colour, key, one in _coloured(named) if name in one.ood]
    if name is None or not having:
        raise InputError(f"which data of another kind: name={name!r}; there is {_have(known)}.")
    lines: list[Line] = []
    for colour, key, one in having:
        other, alone = one.ood[name], len(named) == 1
        both = ((other.inside, colour, not alone), (other.outside, COLOURS[1] if alone else colour, False))
        for counts, own, dashed in both:
            shares = [100 * count / sum(counts) for count in counts]
            axes.stairs(shares, other.edges, color=own, linewidth=1.5, linestyle="--" if dashed else "-")
            if alone:
                axes.stairs(shares, other.edges, color=own, fill=True, alpha=0.15)
        auroc = text(other.figures["entropy"]["auroc"], "AUROC", 100) if "entropy" in other.figures else ""
        told = [(colour, f"inside: {one.num_examples:,}"), (COLOURS[1], f"{name}: {other.num_examples:,}  {auroc}")]
        lines += told if alone else [(colour, f"{key}  {auroc}")]
    axes.set_yscale("function", functions=(lambda y: abs(y) ** 0.5, lambda y: y**2))
    top = axes.get_ylim()[1]
    axes.set_ylim(0, top)
    axes.set_yticks([tick for tick in (1, 5, 10, 20, 40, 60, 80, 100) if tick <= top])
    axes.set_xlim(0, other.edges[-1])
    say(axes, lines, "upper right")
    dashes = " (dashed: inside)" if len(named) > 1 else ""
    label(axes, f"Outside: {name}", f"entropy, nats{dashes}", "share of examples, % (square-root scale)")


def shift(evaluations: Evaluations, axes: Any, *, figure: Literal["accuracy", "nll", "ece"] = "accuracy") -> None:
    """A figure by the severity of the corruptions: their mean and, for one evaluation, each of them.

    Args:
        evaluations: one, or several by name.
        axes: matplotlib axes to draw on.
        figure: ``"accuracy"``, ``"nll"`` or ``"ece"``.
    """
    if figure not in _SHIFTED:
        raise InputError(f"figure is one of {', '.join(_SHIFTED)}, got {figure!r}.")
    named = _named(evaluations)
    having = [(colour, name, one, one.shift) for colour, name, one in _coloured(named) if one.shift is not None]
    if not having:
        raise InputError("there is nothing to draw: evaluate with shift=True first.")
    heading, scale = _SHIFTED[figure]
    lines = []
    for colour, name, one, found in having:
        if len(named) == 1:
            _draw_each(axes, found, one.figures[figure], figure, scale)
        means = [one.figures[figure], *(mean.figures[figure] for mean in found.means)]
        places = [0, *(mean.severity for mean in found.means)]
        band(axes, places, means, colour, scale=scale, marker="o")
        lines.append((colour, f"{name}  {text(means[-1], f'at {places[-1]}:', scale)}"))
    count = len({cell.corruption for *_, found in having for cell in found.cells})
    axes.set_xticks(range(6), ["none", *"12345"])
    axes.set_xlim(-0.15, 5.15 if len(named) > 1 else 6.5)
    axes.margins(y=0.12)
    say(axes, lines, "lower left" if figure == "accuracy" else "upper left")
    means_of = f"{'thick: ' * (len(named) == 1)}mean over {count} corruption{'s' * (count > 1)}"
    label(axes, f"Under corruption: {heading.removesuffix(', %')}", f"severity ({means_of})", heading)


def _draw_each(axes: Any, found: Shift, clean: Figure, figure: str, scale: float) -> None:
    """A thin line a corruption; the hardest three and the easiest have their names at the end."""
    ends = []
    for name in dict.fromkeys(cell.corruption for cell in found.cells):
        own: list[Shifted] = sorted((c for c in found.cells if c.corruption == name), key=lambda cell: cell.severity)
        values = [scale * clean.value, *(scale * cell.figures[figure].value for cell in own)]
        axes.plot([0, *(cell.severity for cell in own)], values, color=PALE, linewidth=1, zorder=1)
        ends.append((values[-1], own[-1].severity, name))
    ends.sort()
    shown = ends if len(ends) <= 4 else [*ends[:3], ends[-1]] if figure == "accuracy" else [ends[0], *ends[-3:]]
    gap = 0.05 * (max(ends[-1][0], scale * clean.value) - min(ends[0][0], scale * clean.value))
    height = -math.inf
    for value, severity, name in shown:
        height = max(value, height + gap)
        axes.text(severity + 0.08, height, name.replace("_", " "), size=7, va="center", color=MIDDLE)


def _named(evaluations: Evaluations) -> dict[str, Evaluation]:
    named = {evaluations.name: evaluations} if isinstance(evaluations, Evaluation) else evaluations
    if not isinstance(named, Mapping) or not named or not all(isinstance(one, Evaluation) for one in named.values()):
        raise InputError("give an evaluation, or a dict of name to evaluation with at least one.")
    if len(named) > len(COLOURS):
        raise InputError(f"at most {len(COLOURS)} evaluations can be told apart in one picture, got {len(named)}.")
    return dict(named)


def _coloured(named: dict[str, Evaluation]) -> list[tuple[str, str, Evaluation]]:
    return [(colour, name, one) for colour, (name, one) in zip(COLOURS, named.items(), strict=False)]


def _title(named: dict[str, Evaluation]) -> str:
    data = next(iter(named.values())).data
    methods = " | ".join(named) if len(named) < 4 else f"{len(named)} methods"
    return f"{data}: {methods}" if data else methods


def _have(names: Any) -> str:
    return ", ".join(names) or "none"


def _short(count: int) -> str:
    return str(count) if count < 1000 else f"{count / 1000:.1f}k" if count < 10_000 else f"{count // 1000}k"


def _of(one: Evaluation, key: str, heading: str) -> str:
    return text(one.figures[key], heading, 1 if key in ("aurc", "nll") else 100)

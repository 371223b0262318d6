"""An evaluation as text: a line a figure, a column a way to predict."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence

from bndl.evaluation.record import Certainty, Evaluation
from bndl.metrics.bootstrap import Figure
from bndl.metrics.figures import FIGURES, OOD_FIGURES, FigureKind

__all__ = ["kind_name", "table_of"]

_LINES = {kind.key: kind for kind in FIGURES}
_NAMES = {
    "flip_probability": "flip probability",
    "epistemic": "epistemic variance",
    "p_value": "p-value",
}
Line = tuple[str, list[str]]  # what it is, and a cell a column; no cell: a heading


def kind_name(by: str) -> str:
    """A kind of uncertainty in words."""
    return _NAMES.get(by, by)


def table_of(evaluations: Mapping[str, Evaluation]) -> str:
    """Several evaluations of the same data side by side."""
    every = list(evaluations.values())
    lines = [*_head(list(evaluations)), *_main(every), *_certain(every), *_errors(every), *_others(every)]
    lines += [*_outside(every), *_shift(every), *_sepin(every)]
    first = every[0]
    title = (
        f"{first.data + ': ' if first.data else ''}{first.num_examples:,} examples of {len(first.classes)} classes; "
        f"95 % intervals, {first.num_resamples:,} resamples"
    )
    return "\n".join([title, *_aligned(lines)])


def _aligned(lines: Sequence[Line]) -> Iterator[str]:
    left = max(len(label) for label, cells in lines if cells)
    columns = [max(map(len, column)) for column in zip(*(cells for _, cells in lines if cells), strict=True)]
    for label, cells in lines:
        padded = [cell.ljust(width) for cell, width in zip(cells, columns, strict=False)]
        yield "  ".join([label.ljust(left) if cells else label, *padded]).rstrip()


def _cell(figure: Figure | None, text: Callable[[float], str]) -> str:
    if figure is None or math.isnan(figure.value):
        return "-"
    if math.isnan(figure.low):
        return text(figure.value)
    return f"{text(figure.value)} [{text(figure.low)}, {text(figure.high)}]"


def _percent(value: float) -> str:
    return f"{100 * value:.2f}"


def _of_kind(kind: FigureKind, heading: str, figures: Sequence[Figure | None]) -> Line:
    return f"{heading}{', %' if kind.percent else ''}", [_cell(figure, kind.text) for figure in figures]


def _head(names: list[str]) -> Iterator[Line]:
    yield "", []
    yield "", names


def _main(every: Sequence[Evaluation]) -> Iterator[Line]:
    for key, kind in _LINES.items():
        if not key.startswith("pavpu"):
            heading = f"{kind.heading} coverage" if kind.heading.endswith("%") else kind.heading
            yield _of_kind(kind, heading, [one.figures.get(key) for one in every])
        if key == "ece":
            yield (
                "  of chance alone",
                ["-" if math.isnan(one.ece_floor) else _percent(one.ece_floor) for one in every],
            )


def _certain(every: Sequence[Evaluation]) -> Iterator[Line]:
    yield "", []
    yield f"Decisions that are certain, by a test at S = {every[0].pavpu[0].num_samples} draws", []
    for levels in zip(*(one.pavpu for one in every), strict=True):
        yield f"PAvPU at p = {levels[0].level:g}, %", [_cell(at.value, _percent) for at in levels]
        yield "  more than all certain", [_cell(at.gain, lambda value: f"{100 * value:+.2f}") for at in levels]
        yield "  right: certain, not", [_counts(at, "accurate") for at in levels]
        yield "  wrong: certain, not", [_counts(at, "inaccurate") for at in levels]


def _counts(at: Certainty, which: str) -> str:
    return f"{getattr(at.counts, f'{which}_certain'):,}, {getattr(at.counts, f'{which}_uncertain'):,}"


def _errors(every: Sequence[Evaluation]) -> Iterator[Line]:
    yield "", []
    yield "Errors found by", []
    for by in dict.fromkeys(by for one in every for by in one.errors):
        for key, heading in (("auroc", "AUROC, %"), ("aurc", "AURC")):
            cells = [
                _cell(one.errors.get(by, {}).get(key), _percent if key == "auroc" else "{:.4f}".format) for one in every
            ]
            yield f"{kind_name(by)}: {heading}", cells


def _others(every: Sequence[Evaluation]) -> Iterator[Line]:
    yield "", []
    yield "hardest class, accuracy, %", [_hardest(one) for one in every]
    if all(one.sparsity is None for one in every):
        return
    sparse = [one.sparsity for one in every]
    yield "weights in use, %", ["-" if s is None else f"{100 * s.nnz:.2f} of {s.weights:,}" for s in sparse]
    yield "weights a class", ["-" if s is None else f"{s.weights_per_class:.1f}" for s in sparse]
    yield (
        "features a decision",
        [_cell(None if s is None else s.features_per_decision, "{:.2f}".format) for s in sparse],
    )


def _hardest(one: Evaluation) -> str:
    known = [own for own in one.per_class if own.count]
    worst = min(known, key=lambda own: own.accuracy.value)
    return f"{_percent(worst.accuracy.value)} {worst.name}"


def _outside(every: Sequence[Evaluation]) -> Iterator[Line]:
    for name in dict.fromkeys(name for one in every for name in one.ood):
        figures = [one.ood[name].figures if name in one.ood else {} for one in every]
        count = next(one.ood[name].num_examples for one in every if name in one.ood)
        yield "", []
        yield f"Told from {name} ({count:,} examples) by", []
        for by in dict.fromkeys(by for own in figures for by in own):
            for kind in OOD_FIGURES if by == "entropy" else OOD_FIGURES[:1]:
                heading = f"{kind_name(by)}: {kind.heading.removeprefix('OOD ')}"
                yield _of_kind(kind, heading, [own.get(by, {}).get(kind.key) for own in figures])


def _shift(every: Sequence[Evaluation]) -> Iterator[Line]:
    shifts = [one.shift for one in every if one.shift is not None]
    if not shifts:
        return
    count = len({cell.corruption for cell in shifts[0].cells})
    yield "", []
    yield f"Mean over {count} corruption{'s' * (count > 1)}", []
    for mean in shifts[0].means:
        for key in mean.figures:
            heading = f"severity {mean.severity}: {_LINES[key].heading}"
            yield _of_kind(_LINES[key], heading, [_mean(one, mean.severity, key) for one in every])


def _mean(one: Evaluation, severity: int, key: str) -> Figure | None:
    means = () if one.shift is None else one.shift.means
    return next((mean.figures[key] for mean in means if mean.severity == severity), None)


def _sepin(every: Sequence[Evaluation]) -> Iterator[Line]:
    found = next((one.sepin for one in every if one.sepin is not None), None)
    if found is None:
        return
    yield "", []
    yield f"SEPIN x 100, {found.num_features:,} features, {found.num_images:,} images", []
    for k in found.at:
        yield f"SEPIN@{k}", ["-" if one.sepin is None else f"{100 * one.sepin.at[k]:.2f}" for one in every]

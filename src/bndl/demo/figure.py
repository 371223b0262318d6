"""The demo's one picture: surest and least sure digits with their reasons, accuracy by decile, and Phi."""

import os
from pathlib import Path
from typing import Any

from bndl.demo.run import Case, Demo
from bndl.errors import MissingExtraError
from bndl.files import replacing

__all__ = ["draw"]

FOR, AGAINST, INK, PALE = "#1f6fb2", "#e07b00", "#22303c", "#c9d3dc"
_TERMS = 4  # features shown a digit


def draw(demo: Demo, path: str | os.PathLike[str]) -> Path:
    """Write the picture as PNG, whole or not at all."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MissingExtraError("the demo's picture", extra="demo") from error
    figure = Figure(figsize=(15, 8.6), facecolor="white")
    FigureCanvasAgg(figure)
    grid = figure.add_gridspec(1, 2, width_ratios=(2.35, 1), left=0.03, right=0.975, top=0.8, bottom=0.065, wspace=0.13)
    figure.text(
        0.03, 0.955, "Every decision with its reasons, and how far to trust it", size=19, weight="bold", color=INK
    )
    figure.text(0.03, 0.918, _subtitle(demo), size=11.5, color=INK)
    blocks = grid[0].subgridspec(2, 1, hspace=0.42)
    _draw_cases(figure, blocks[0], demo.surest, "Surest")
    _draw_cases(figure, blocks[1], demo.least_sure, "Least sure")
    charts = grid[1].subgridspec(2, 1, hspace=0.36, height_ratios=(1, 1.25))
    _draw_deciles(figure.add_subplot(charts[0]), demo)
    _draw_phi(figure, figure.add_subplot(charts[1]), demo)
    with replacing(path) as temporary:
        figure.savefig(temporary, dpi=110, format="png")
    return Path(path)


def _subtitle(demo: Demo) -> str:
    row = demo.rows[-1]
    return (
        f"Digits never seen in training: {demo.num_test}. Accuracy {row.accuracy:.1%}, calibration error {row.ece:.1%}, "
        f"{row.weights_per_class:.0f} of {len(demo.phi)} weights a class in use. "
        "A class's score is the sum of such terms and its bias, nothing else."
    )


def _draw_cases(figure: Any, place: Any, cases: tuple[Case, ...], title: str) -> None:
    grid = place.subgridspec(2, 2 * len(cases), height_ratios=(1, 0.85), hspace=0.34, wspace=0.3)
    for i, case in enumerate(cases):
        image, evidence = (figure.add_subplot(grid[0, 2 * i + j]) for j in (0, 1))
        image.imshow(case.image, cmap="gray_r", interpolation="nearest")
        _draw_evidence(evidence, case)
        for axes in (image, evidence):
            axes.set_xticks([]), axes.set_yticks([])
            axes.spines[:].set_color(PALE)
        if i == 0:
            image.text(0, 1.6, title, transform=image.transAxes, size=14, weight="bold", color=AGAINST)
        mark = "right" if case.label == case.truth else f"wrong, it is a {case.truth}"
        image.text(0, 1.32, f"says {case.label} ({mark})", transform=image.transAxes, size=11, color=INK, weight="bold")
        doubt = f"flips at {case.flip_probability:.2g}" if case.flip_probability > 1e-4 else "no flip in sight"
        image.text(0, 1.1, f"{case.probs[0]:.1%}; {doubt}", transform=image.transAxes, size=9.5, color=INK)
        _draw_terms(figure.add_subplot(grid[1, 2 * i : 2 * i + 2]), case)


def _draw_evidence(axes: Any, case: Case) -> None:
    """Where the score comes from, under the digit's ink."""
    height, width = case.image.size()
    whole = (-0.5, width - 0.5, height - 0.5, -0.5)
    axes.imshow(case.evidence, cmap="Blues", interpolation="bicubic", extent=whole, vmin=float(case.evidence.min()))
    axes.imshow(case.image, cmap="gray_r", interpolation="nearest", alpha=0.55 * case.image / case.image.max())


def _draw_terms(axes: Any, case: Case) -> None:
    """The features whose terms differ most between the two classes: why the one and not the other."""
    chosen = (case.terms[0] - case.terms[1]).abs().argsort(descending=True)[:_TERMS].flip(0).tolist()
    for offset, (terms, colour, name) in zip(
        (0.2, -0.2), zip(case.terms, (FOR, AGAINST), (case.label, case.runner_up), strict=True), strict=True
    ):
        axes.barh(
            [y + offset for y in range(len(chosen))], terms[chosen], height=0.38, color=colour, label=f"for {name}"
        )
    axes.set_yticks(range(len(chosen)), [f"f{k}" for k in chosen], size=8.5)
    axes.tick_params(axis="x", labelsize=8, colors=INK)
    axes.tick_params(length=0)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.spines["bottom"].set_color(PALE)
    axes.legend(
        frameon=False,
        fontsize=8.5,
        loc="lower left",
        bbox_to_anchor=(0, 0.97),
        ncols=2,
        handlelength=0.9,
        borderaxespad=0,
    )


def _draw_deciles(axes: Any, demo: Demo) -> None:
    accuracy, overall = demo.deciles.accuracy, demo.rows[-1].accuracy
    axes.bar(range(1, len(accuracy) + 1), [100 * a for a in accuracy], color=FOR, width=0.8)
    axes.axhline(100 * overall, color=AGAINST, linewidth=1.5)
    for i, value in enumerate(accuracy, start=1):
        axes.text(i, 100 * value - 0.25, f"{100 * value:.0f}", ha="center", va="top", size=8.5, color="white")
    low = 100 * min(accuracy)
    axes.set_ylim(max(0.0, low - max(3.0, 0.4 * (100 - low))), 101.5)
    axes.set_xticks(range(1, len(accuracy) + 1))
    axes.set_yticks([tick for tick in range(0, 101, 5) if tick >= axes.get_ylim()[0]])
    _label(
        axes,
        "Is it right when it is sure?",
        f"tenths of the test digits, the surest first (line: all, {overall:.1%})",
        "accuracy, %",
    )


def _draw_phi(figure: Any, axes: Any, demo: Demo) -> None:
    """Rows ordered by the class they serve most, so that the structure shows."""
    used = demo.phi[demo.phi.max(dim=1).values > 0]
    ordered = used[used.argmax(dim=1).argsort(stable=True)]
    image = axes.imshow(ordered, aspect="auto", cmap="Blues", interpolation="nearest", vmin=0)
    axes.set_xticks(range(ordered.size(1)))
    axes.set_yticks([])
    _label(axes, "Phi: which feature speaks for which digit", "digit", f"{len(ordered)} features in use")
    bar = figure.colorbar(image, ax=axes, fraction=0.05, pad=0.02)
    bar.outline.set_visible(False)
    bar.ax.tick_params(labelsize=8, length=0)


def _label(axes: Any, title: str, x: str, y: str) -> None:
    axes.set_title(title, loc="left", size=12.5, weight="bold", color=INK, pad=10)
    axes.set_xlabel(x, size=9.5, color=INK)
    axes.set_ylabel(y, size=9.5, color=INK)
    axes.tick_params(labelsize=8.5, length=0, colors=INK)
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(PALE)

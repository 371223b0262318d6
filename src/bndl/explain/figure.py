"""The paper's figure: images with their labels, and where the chosen feature looks; BNDL above, the dense model below."""

import os
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from bndl.errors import InputError, MissingExtraError
from bndl.evaluation.drawing import COLOURS, INK, MIDDLE, PALE
from bndl.explain.maps import upsample
from bndl.files import replacing

__all__ = ["MOST", "Bar", "Look", "Picture", "draw"]

MOST = 24  # pictures a figure
_ACROSS = 6  # pictures side by side
_HEAT = "inferno"
_SIDE = 2.5  # inches
_TITLE = 0.6  # inches above all
_SMALL = 64  # pixels


@dataclass(frozen=True)
class Bar:
    """One term of a score: the feature's name, its value, and the ends of its interval (the value where it has none)."""

    name: str
    value: float
    low: float
    high: float


@dataclass(frozen=True)
class Look:
    """How one model sees a picture.

    Attributes:
        model: what to call it.
        prediction: name of its class.
        about: how sure it is, in a few words.
        feature: name of the feature shown.
        why: why this one, in a few words.
        heat: (h, w) of any size; what is below 0 is not shown.
        target: name of the class whose score the bars take apart.
        bars: the largest terms of the score, the largest first.
        total: how they and the others add up, in a few words.
    """

    model: str
    prediction: str
    about: str
    feature: str
    why: str
    heat: Tensor
    target: str = ""
    bars: tuple[Bar, ...] = ()
    total: str = ""


@dataclass(frozen=True)
class Picture:
    """An image (C, H, W) uint8, its name, its label where it is known, and how each model sees it, ours first."""

    image: Tensor
    name: str
    label: str | None
    looks: tuple[Look, ...]


def draw(pictures: Sequence[Picture], path: str | os.PathLike[str], *, title: str = "") -> Path:
    """Write the figure as PNG, whole or not at all; the path.

    One picture is drawn with the terms of its score; several stand side by side, as in the paper.

    Args:
        pictures: 1 to 24, each seen by the same models.
        path: the file to write.
        title: one line above all.
    """
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MissingExtraError("drawing", extra="explain") from error
    if not 1 <= len(pictures) <= MOST:
        raise InputError(f"a figure holds 1 to {MOST} pictures, got {len(pictures)}.")
    page = Figure(facecolor="white", dpi=130)
    FigureCanvasAgg(page)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing from")  # a class name in a script without a font
        (_draw_one if len(pictures) == 1 else _draw_many)(page, pictures)
        height = page.get_figheight()
        options: dict[str, Any] = {"size": 13, "weight": "bold", "color": INK, "parse_math": False}
        page.text(0.28 / page.get_figwidth(), 1 - 0.34 / height, _short(title, 96), va="center", **options)
        with replacing(path) as temporary:
            page.savefig(temporary, format="png")
    return Path(path)


def _draw_one(page: Any, pictures: Sequence[Picture]) -> None:
    """The image; beside it a row a model: heat map and terms."""
    (picture,) = pictures
    rows = len(picture.looks)
    width, block = 10.4, _SIDE + 1.0
    height = _TITLE + block * rows
    page.set_size_inches(width, height)
    for row, look in enumerate(picture.looks):
        bottom = height - _TITLE - (row + 1) * block + 0.5
        if row == 0:
            _show(_axes(page, 0.28, bottom, _SIDE), picture)
        _overlay(_axes(page, 3.15, bottom, _SIDE), picture.image, look)
        terms = page.add_axes((6.55 / width, bottom / height, 3.55 / width, _SIDE / height))
        _terms(terms, look)


def _draw_many(page: Any, pictures: Sequence[Picture]) -> None:
    """Columns of images, ours below each, then the dense model's; in bands of six."""
    looks = len(pictures[0].looks)
    across = min(_ACROSS, len(pictures))
    bands = -(-len(pictures) // across)
    step, block = _SIDE + 0.22, _SIDE + 0.86
    width, height = 0.28 + step * across + 0.1, _TITLE + bands * block * (1 + looks)
    page.set_size_inches(width, height)
    for number, picture in enumerate(pictures):
        band, column = divmod(number, across)
        left = 0.28 + step * column
        top = height - _TITLE - band * block * (1 + looks)
        _show(_axes(page, left, top - block + 0.28, _SIDE), picture)
        for row, look in enumerate(picture.looks, start=1):
            _overlay(_axes(page, left, top - (row + 1) * block + 0.28, _SIDE), picture.image, look)


def _axes(page: Any, left: float, bottom: float, side: float) -> Any:
    """Square axes at a place in inches."""
    width, height = page.get_size_inches()
    axes = page.add_axes((left / width, bottom / height, side / width, side / height))
    axes.set_xticks([]), axes.set_yticks([])
    axes.spines[:].set_color(PALE)
    return axes


def _show(axes: Any, picture: Picture) -> None:
    image = picture.image.permute(1, 2, 0)
    axes.imshow(image.expand(-1, -1, 3).numpy(), interpolation=_interpolation((image.size(0), image.size(1))))
    first, second = (picture.name, "") if picture.label is None else (f"label: {picture.label}", picture.name)
    _say(axes, first, second)


def _overlay(axes: Any, image: Tensor, look: Look) -> None:
    """The image in grey, coloured by the heat: multiplied, so that what is looked at can still be seen."""
    from matplotlib import colormaps

    size = (image.size(1), image.size(2))
    grey = (image.float().mean(dim=0) / 255)[..., None]
    heat = upsample(look.heat.detach().cpu().clamp_min(0), size)
    heat = (heat / heat.max().clamp_min(1e-12))[..., None]
    colour = torch.from_numpy(colormaps[_HEAT](0.18 + 0.74 * heat[..., 0].numpy())[..., :3]).float()
    share = heat.sqrt()
    shown = (1 - share) * (0.12 + 0.72 * grey) + share * colour * (0.4 + 0.6 * grey.sqrt())
    axes.imshow(shown.clamp(0, 1).numpy(), interpolation=_interpolation(size))
    _say(axes, f"{look.model}: {look.prediction}", look.about)
    words = _short(f"{look.feature}: {look.why}", 60)
    options: dict[str, Any] = {"transform": axes.transAxes, "parse_math": False, "va": "top"}
    _cut(axes, axes.text(0, -0.025, words, size=8.2, color=INK, **options))


def _interpolation(size: tuple[int, int]) -> str:
    """Small images keep their pixels."""
    return "nearest" if max(size) <= _SMALL else "antialiased"


def _terms(axes: Any, look: Look) -> None:
    """Bars of the largest terms with their intervals."""
    axes.spines[["top", "right", "bottom"]].set_visible(False)
    axes.spines["left"].set_color(PALE)
    axes.tick_params(labelsize=8, length=0, colors=INK)
    bars = look.bars[::-1]
    for place, bar in enumerate(bars):
        colour = COLOURS[0] if bar.value >= 0 else COLOURS[1]
        axes.barh(place, bar.value, height=0.62, color=colour, alpha=1 if bar.name == look.feature else 0.55)
        if bar.high > bar.low:
            axes.plot([bar.low, bar.high], [place, place], color=INK, linewidth=1.1, solid_capstyle="butt")
        end, words = max(bar.high, bar.value, 0), f"{bar.value:.2f}"
        axes.annotate(words, (end, place), (4, 0), textcoords="offset points", va="center", size=7.8, color=INK)
    axes.set_yticks(range(len(bars)), [bar.name for bar in bars])
    for tick, bar in zip(axes.get_yticklabels(), bars, strict=True):
        tick.set_fontweight("bold" if bar.name == look.feature else "normal")
    low = min([0, *(min(bar.low, bar.value) for bar in bars)])
    high = max([1e-9, *(max(bar.high, bar.value) for bar in bars)])
    axes.set_xlim(low * 1.05, high + 0.16 * (high - low))
    words = _short(f"What speaks for {look.target or look.prediction}", 40)
    options: dict[str, Any] = {"transform": axes.transAxes, "parse_math": False}
    _cut(axes, axes.text(0, 1.045, words, size=10, weight="bold", color=INK, **options))
    lines = (
        "terms of the score, with 90 % intervals" if any(bar.high > bar.low for bar in bars) else "terms of the score"
    )
    axes.set_xlabel(f"{lines}\n{look.total}", size=8, color=MIDDLE, loc="left", parse_math=False)


def _say(axes: Any, first: str, second: str) -> None:
    """Two lines above: what counts, and what goes with it."""
    options: dict[str, Any] = {"transform": axes.transAxes, "parse_math": False, "va": "baseline"}
    place = 1.115 if second else 1.035
    _cut(axes, axes.text(0, place, _short(first, 40), size=10, weight="bold", color=INK, **options))
    _cut(axes, axes.text(0, 1.035, _short(second, 60), size=8.2, color=MIDDLE, **options))


def _cut(axes: Any, words: Any) -> None:
    """Shorten a text that is wider than its axes."""
    renderer = axes.figure.canvas.get_renderer()
    room = axes.get_window_extent(renderer).width
    while len(words.get_text()) > 2 and words.get_window_extent(renderer).width > room:
        words.set_text(f"{words.get_text().rstrip('…')[:-1].rstrip()}…")


def _short(text: str, most: int) -> str:
    """One line of at most so many characters, nothing unprintable in it."""
    line = " ".join("".join(c if c.isprintable() else " " for c in text).split())
    return line if len(line) <= most else f"{line[: most - 1]}…"

"""A picture of all claims: how each ratio stands to its bound."""

from pathlib import Path
from typing import Any

from bndl.errors import MissingExtraError
from bndl.files import replacing

__all__ = ["draw"]

_GOOD, _BAD, _PALE = "#0b7285", "#e8590c", "#adb5bd"


def draw(records: list[dict[str, Any]], file: Path) -> Path:
    """A line a claim, on a logarithmic scale: 1 is the bound, to the right is better; PNG."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MissingExtraError("drawing", extra="demo") from error
    claims = [(record["name"], claim) for record in records for claim in record["claims"]][::-1]
    figure = Figure(figsize=(9.5, 1.1 + 0.42 * len(claims)), dpi=130)
    axis = figure.subplots()
    axis.axvline(1, color=_PALE, linewidth=1.2)
    for place, (_, claim) in enumerate(claims):
        values = [claim["value"][key] for key in ("low", "median", "high")]
        low, middle, high = sorted(_headroom(value, claim) for value in values)
        colour = _GOOD if claim["holds"] else _BAD
        axis.plot([low, high], [place, place], color=colour, linewidth=2.2, solid_capstyle="round")
        axis.plot(middle, place, "o", color=colour, markersize=6)
        said = f"{claim['value']['median']:.3g}, {claim['sense']} {claim['bound']:g} wanted"
        axis.annotate(said, (middle, place), (8, 5), textcoords="offset points", fontsize=7, color="#495057")
    axis.set_yticks(range(len(claims)), [claim["about"] for _, claim in claims], fontsize=8)
    for tick in axis.get_yticklabels():
        tick.set_parse_math(False)
    axis.set_xscale("log")
    axis.set_xlabel("times better than the bound (1: just met; dot: median, line: quartiles)", fontsize=8)
    axis.margins(x=0.3)
    axis.spines[["top", "right"]].set_visible(False)
    figure.tight_layout()
    with replacing(file) as temporary:
        figure.savefig(temporary, format="png")
    return file


def _headroom(value: float, claim: dict[str, Any]) -> float:
    value = max(value, 1e-3)  # a difference of times may come out at or below zero
    return float(claim["bound"] / value if claim["sense"] == "at most" else value / claim["bound"])

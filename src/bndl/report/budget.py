"""Room in the page: thumbs as good and as many as fit, by a rule that always gives the same answer."""

from dataclasses import dataclass

from bndl.report.schema import Thumbs
from bndl.report.thumbs import Album

__all__ = ["Fitted", "fit_thumbs"]

_QUALITIES = (80, 70, 60, 50, 40, 30)
_FEW = 200  # thumbs of rows that are worth a lower quality


@dataclass(frozen=True)
class Fitted:
    """Sheets that fit, and how many of the album's tiles are on them."""

    thumbs: Thumbs
    count: int
    quality: int


def fit_thumbs(album: Album, *, needed: int, budget: int) -> Fitted:
    """The first ``needed`` tiles, and as many of the others as there is room for, in the best quality that leaves some.

    Args:
        album: the tiles, the most wanted first.
        needed: how many must be there.
        budget: bytes of JSON. In the lowest quality it may be overrun by what is needed, never by more.
    """
    wanted = min(len(album), needed + _FEW)
    for quality in _QUALITIES:
        if _size(album.sheets(quality=quality, count=wanted)) <= budget:
            break
    count = len(album)
    while True:
        found = album.sheets(quality=quality, count=count)
        over = _size(found) / max(1, budget)
        if over <= 1 or count <= needed:
            return Fitted(found, count, quality)
        count = max(needed, min(count - 1, needed + int((count - needed) * min(0.95, 1 / over))))


def _size(thumbs: Thumbs) -> int:
    """Bytes of JSON, nearly."""
    return sum(len(sheet.uri) + 50 for sheet in thumbs.sheets) + 26 * len(thumbs.tiles)

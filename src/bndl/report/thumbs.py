"""Thumbnails: images and heat overlays as tiles of JPEG sprite sheets, a few large data URIs in place of thousands."""

import base64
import io
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from bndl.errors import MissingExtraError
from bndl.report.schema import Array, Sheet, Thumbs

__all__ = ["LARGE", "SMALL", "Album", "heated", "shrunk"]

SMALL, LARGE = 48, 144  # sides of a tile: multiples of JPEG's 16, so that no tile bleeds into its neighbour
_SHEET = 1440  # longest side of a sheet: what a phone decodes without thought
_INFERNO = (  # matplotlib's inferno at nine even steps: perceptually uniform, also for the colour-blind
    (0, 0, 4), (33, 12, 74), (87, 16, 110), (138, 34, 106), (188, 55, 84), (228, 90, 49), (249, 142, 9),
    (249, 203, 53), (252, 255, 164),
)  # fmt: skip
_TINY = 16  # side of images whose pixels are to be seen
_STRONGEST = 0.8  # share of the colour where the heat is largest


def shrunk(images: Tensor, side: int) -> Tensor:
    """Images (B, 1 or 3, H, W) uint8, or floats in [0, 1], as (B, 3, side, side) uint8; tiny ones keep their pixels.

    What is not square is cut at the centre.
    """
    pixels = images.float() if images.dtype == torch.uint8 else images.float().clamp(0, 1) * 255
    least = min(pixels.size(-2), pixels.size(-1))
    top, left = (pixels.size(-2) - least) // 2, (pixels.size(-1) - least) // 2
    pixels = pixels[..., top : top + least, left : left + least]
    if least <= _TINY:  # each pixel of a digit stays a square
        pixels = F.interpolate(pixels, size=(side, side), mode="nearest-exact")
    elif least != side:
        pixels = F.interpolate(pixels, size=(side, side), mode="bilinear", antialias=True)
    return pixels.round().clamp(0, 255).to(torch.uint8).expand(-1, 3, -1, -1)


def heated(image: Tensor, heat: Tensor, *, most: float | None = None, smooth: bool = True) -> Tensor:
    """An image (3, S, S) uint8 in grey, with the heat (H, W) >= 0 laid over it in colour -> (3, S, S) uint8.

    Args:
        image: what is looked at.
        heat: where the evidence is.
        most: the heat that has the strongest colour; by default its largest.
        smooth: interpolate between the cells of the heat, or show them as they are.
    """
    largest = float(heat.max()) if most is None else most
    size = (image.size(1), image.size(2))
    mode: dict[str, Any] = {"mode": "bilinear", "align_corners": False} if smooth else {"mode": "nearest-exact"}
    scaled = heat.detach().float().clamp_min(0)[None, None] / max(largest, 1e-12)
    level = F.interpolate(scaled, size=size, **mode)[0, 0].clamp(0, 1)
    grey = (image.float() * torch.tensor([0.299, 0.587, 0.114])[:, None, None]).sum(dim=0)
    share = _STRONGEST * level
    blended = (0.85 * grey) * (1 - share) + _coloured(level) * share
    return blended.round().clamp(0, 255).to(torch.uint8)


def _coloured(level: Tensor) -> Tensor:
    """Levels (S, S) in [0, 1] -> colours (3, S, S)."""
    table = torch.tensor(_INFERNO, dtype=torch.float32)
    place = level * (len(table) - 1)
    lower = place.long().clamp(0, len(table) - 2)
    part = (place - lower)[..., None]
    return (table[lower] * (1 - part) + table[lower + 1] * part).permute(2, 0, 1)


class Album:
    """Tiles that were added, by number; the sheets are made at the end, in the quality that there is room for."""

    def __init__(self) -> None:
        self._tiles: list[Array] = []

    def __len__(self) -> int:
        return len(self._tiles)

    def add(self, tile: Tensor) -> int:
        """Keep a square tile (3, S, S) uint8; its number."""
        self._tiles.append(tile.permute(1, 2, 0).contiguous().numpy())
        return len(self._tiles) - 1

    def sheets(self, *, quality: int, count: int | None = None) -> Thumbs:
        """All tiles, or the first ``count``, on sheets; tiles of one size share theirs.

        Args:
            quality: JPEG's, 1 to 95; the same tiles and quality give the same bytes.
            count: how many tiles.
        """
        kept = self._tiles[:count]
        places: list[tuple[int, int, int, int, int]] = [(0, 0, 0, 0, 0)] * len(kept)
        made: list[Sheet] = []
        for side in sorted({len(tile) for tile in kept}):
            numbers = [number for number, tile in enumerate(kept) if len(tile) == side]
            across = max(1, _SHEET // side)
            for start in range(0, len(numbers), across * across):
                part = numbers[start : start + across * across]
                for position, number in enumerate(part):
                    y, x = divmod(position, across)
                    places[number] = (len(made), x * side, y * side, side, side)
                made.append(_sheet([kept[number] for number in part], across, quality))
        return Thumbs(tuple(made), tuple(places))


def _sheet(tiles: list[Array], across: int, quality: int) -> Sheet:
    try:
        from PIL import Image
    except ImportError as error:
        raise MissingExtraError("thumbnails in a report", extra="data") from error
    side, columns = len(tiles[0]), min(across, len(tiles))
    rows = -(-len(tiles) // columns)
    canvas = np.full((rows * side, columns * side, 3), 128, dtype=np.uint8)
    for position, tile in enumerate(tiles):
        y, x = divmod(position, columns)
        canvas[y * side : (y + 1) * side, x * side : (x + 1) * side] = tile
    stream = io.BytesIO()
    Image.fromarray(canvas).save(stream, format="JPEG", quality=quality, optimize=True)
    uri = "data:image/jpeg;base64," + base64.b64encode(stream.getvalue()).decode("ascii")
    return Sheet(uri, columns * side, rows * side)

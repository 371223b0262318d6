"""Pictures that the explorer sends: an image, and heat over it, as data URIs."""

import base64
import io

from torch import Tensor

from bndl.errors import MissingExtraError
from bndl.report.thumbs import heated, shrunk

__all__ = ["SIDE", "heat_uri", "jpeg_uri", "large"]

SIDE = 288  # of a picture that is looked at closely: twice what the page gives it


def large(pixels: Tensor) -> Tensor:
    """An image (C, H, W) as (3, S, S) uint8, to be looked at closely."""
    return shrunk(pixels[None], SIDE)[0]


def heat_uri(picture: Tensor, heat: Tensor, *, most: float | None = None, smooth: bool = True) -> str:
    """Heat (H, W) over a picture (3, S, S); see :func:`bndl.report.thumbs.heated`."""
    return jpeg_uri(heated(picture, heat, most=most, smooth=smooth))


def jpeg_uri(tile: Tensor, *, quality: int = 85) -> str:
    """A tile (3, H, W) uint8 as the address of a JPEG that holds it."""
    try:
        from PIL import Image
    except ImportError as error:
        raise MissingExtraError("pictures in the explorer", extra="data") from error
    stream = io.BytesIO()
    Image.fromarray(tile.permute(1, 2, 0).contiguous().cpu().numpy()).save(stream, format="JPEG", quality=quality)
    return "data:image/jpeg;base64," + base64.b64encode(stream.getvalue()).decode("ascii")

"""One image file to one tensor: decode, resize the shorter side, crop the centre."""

import io
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from bndl.errors import FileError, MissingExtraError

if TYPE_CHECKING:
    from PIL.Image import Image

_ORIENTATION = 0x0112


def decode(image: Path | bytes, *, size: int, resize: int | None = None, draft: bool = False) -> Tensor:
    """Decode an image, upright, to RGB of ``size`` x ``size``.

    Args:
        image: a file, or its bytes.
        size: side of the centre crop.
        resize: length of the shorter side before the crop; ``size`` when None.
        draft: let JPEG decode at a coarser scale: several times faster, the pixels differ a little.
    Returns:
        (3, size, size) uint8.
    """
    try:
        import PIL.Image
    except ImportError as error:
        raise MissingExtraError("Reading images", extra="data") from error
    shown = str(image) if isinstance(image, Path) else "An image"
    try:
        with PIL.Image.open(io.BytesIO(image) if isinstance(image, bytes) else image) as opened:
            if draft:
                opened.draft("RGB", (size, size))
            return _to_tensor(opened, size, size if resize is None else resize)
    except Exception as error:  # Pillow's decoders raise nearly anything on damaged bytes
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise FileError(f"{shown} cannot be decoded ({reason}); replace or remove it.") from error


def _to_tensor(image: "Image", size: int, resize: int) -> Tensor:
    import PIL.Image
    import PIL.ImageOps

    if image.getexif().get(_ORIENTATION, 1) != 1:
        image = PIL.ImageOps.exif_transpose(image)
    if image.mode.startswith("I"):  # 16 bits a pixel; convert() would clip at 255
        image = PIL.Image.fromarray((np.asarray(image).astype(np.int64) >> 8).clip(0, 255).astype(np.uint8))
    image = image.convert("RGB")
    # one resampling from a window of the original: the same as resize then centre crop, without the waste
    side = min(image.size) * size / resize
    left, top = (image.width - side) / 2, (image.height - side) / 2
    image = image.resize((size, size), PIL.Image.Resampling.BILINEAR, box=(left, top, left + side, top + side))
    return torch.from_numpy(np.array(image)).permute(2, 0, 1).contiguous()

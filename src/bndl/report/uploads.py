"""Images that readers send: bytes and pixels are limited, five formats are decoded, nothing is ever opened by a name."""

import io
import secrets
import threading
from collections import OrderedDict

import torch
from torch import Tensor

from bndl.data.images import decode
from bndl.errors import FileError, MissingExtraError
from bndl.report.refused import RefusedError

__all__ = ["MAX_BYTES", "MAX_PIXELS", "Uploads", "pixels_of"]

MAX_BYTES = 10 * 2**20
MAX_PIXELS = 25_000_000
_KEPT = 32
_FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "GIF")
_STARTS = (b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n", b"BM", b"GIF87a", b"GIF89a")
_NO_IMAGE = "This is no image that can be read: send a JPEG, PNG, WebP, BMP or GIF file."


def pixels_of(raw: bytes, *, size: int, resize: int | None, channels: int) -> Tensor:
    """The bytes of an image file as the run's images are: upright, resized, the centre; of an animation the first frame.

    Args:
        raw: the file.
        size: side of the crop.
        resize: length of the shorter side before it.
        channels: 3, or 1 for grey.
    Returns:
        (channels, size, size) uint8.
    Raises:
        RefusedError: too many bytes or pixels, or no image of a known format.
    """
    if len(raw) > MAX_BYTES:
        raise too_large()
    webp = raw[:4] == b"RIFF" and raw[8:12] == b"WEBP"
    if not webp and not raw.startswith(_STARTS):  # so that no other decoder is ever tried
        raise RefusedError(_NO_IMAGE, status=415)
    _check_pixels(raw)
    try:
        pixels = decode(raw, size=size, resize=resize)
    except FileError as error:
        raise RefusedError(_NO_IMAGE, status=415) from error
    if channels == 1:
        pixels = pixels.float().mean(dim=0, keepdim=True).round().to(torch.uint8)
    return pixels


def too_large() -> RefusedError:
    """What is said of too many bytes."""
    return RefusedError(f"The file is larger than {MAX_BYTES // 2**20} MB: send a smaller one.", status=413)


def _check_pixels(raw: bytes) -> None:
    """Read the header alone: a small file may claim to be a huge image."""
    try:
        import PIL.Image
    except ImportError as error:
        raise MissingExtraError("Reading images", extra="data") from error
    many = RefusedError(
        f"The image has more than {MAX_PIXELS // 10**6} million pixels: send a smaller one.", status=413
    )
    try:
        with PIL.Image.open(io.BytesIO(raw), formats=_FORMATS) as image:
            width, height = image.size
    except (PIL.Image.DecompressionBombError, PIL.Image.DecompressionBombWarning) as error:
        raise many from error
    except Exception as error:  # Pillow's decoders raise nearly anything on damaged bytes
        raise RefusedError(_NO_IMAGE, status=415) from error
    if width * height > MAX_PIXELS:
        raise many


class Uploads:
    """The images that were sent last, at the size that the model takes, by a number that nobody can guess."""

    def __init__(self) -> None:
        self._images: OrderedDict[str, Tensor] = OrderedDict()
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._images)

    def add(self, image: Tensor) -> str:
        """Keep an image (C, H, W) uint8; the oldest goes when there are too many."""
        name = secrets.token_urlsafe(12)
        with self._lock:
            self._images[name] = image
            while len(self._images) > _KEPT:
                self._images.popitem(last=False)
        return name

    def get(self, name: str) -> Tensor:
        """An image that is still there."""
        with self._lock:
            if name not in self._images:
                raise RefusedError("That image is no longer here: send it again.", status=404)
            self._images.move_to_end(name)
            return self._images[name]

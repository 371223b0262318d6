"""Parts that are switched off together: grid cells, super-pixels (SLIC), patches of a ViT; and what takes their place."""

import importlib
import math
from typing import Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor

from bndl.errors import InputError, MissingExtraError
from bndl.features import portion

__all__ = [
    "Background",
    "background",
    "batch_for",
    "blur",
    "check_segments",
    "grid",
    "patches",
    "segment_means",
    "slic",
]

Background = Literal["mean", "zero", "blur"]
_BLUR = 0.1  # deviation of the blur as a share of the shorter side


def grid(image: Tensor, *, count: int) -> Tensor:
    """About ``count`` cells, as square as they can be; needs no other package.

    Args:
        image: (..., H, W); only its size matters.
        count: cells wanted, from 1 to H W. There are ``rows * columns`` of them, the product nearest to it.
    Returns:
        (H, W) int64, the number of each pixel's cell, row by row from 0.
    """
    H, W = _sides(image)
    if not 1 <= count <= H * W:
        raise InputError(f"count must be from 1 to {H * W}, the number of pixels, got {count}.")
    ideal = math.sqrt(count * H / W)
    choices = {(r, min(W, max(1, round(count / r)))) for r in range(1, min(H, count) + 1)}
    rows, columns = min(choices, key=lambda rc: (abs(rc[0] * rc[1] - count) / count + abs(math.log(rc[0] / ideal)), rc))
    return _cells(H, W, rows, columns)


def patches(image: Tensor, *, side: int) -> Tensor:
    """Square patches of ``side`` pixels, as a ViT cuts them: (H, W) int64, row by row from 0.

    Args:
        image: (..., H, W); only its size matters.
        side: of a patch, in pixels; must divide H and W.
    """
    H, W = _sides(image)
    if side < 1 or H % side or W % side:
        raise InputError(f"patches of side {side} do not tile an image of {H} x {W}: give a side that divides both.")
    return _cells(H, W, H // side, W // side)


def slic(image: Tensor, *, count: int, compactness: float = 10.0) -> Tensor:
    """About ``count`` super-pixels of similar colour, by scikit-image's SLIC; the same image gives the same ones.

    Args:
        image: (C, H, W) floats at any scale: it is stretched to [0, 1] for this. 3 channels count as RGB; of any other
            number the mean is segmented, as grey.
        count: super-pixels wanted; SLIC may find fewer or a few more.
        compactness: larger is squarer. Raised by itself where colours are so noisy that hardly any would be found.
    Returns:
        (H, W) int64, numbered from 0 without gaps.
    """
    if image.dim() != 3:
        raise InputError(f"super-pixels are found in one image (C, H, W), got dims {tuple(image.size())}.")
    H, W = _sides(image)
    if not 1 <= count <= H * W:
        raise InputError(f"count must be from 1 to {H * W}, the number of pixels, got {count}.")
    if not torch.isfinite(image).all():
        raise InputError("the image has NaN or infinite pixels: check how it was read.")
    try:
        segmentation = importlib.import_module("skimage.segmentation")
    except ImportError as error:
        raise MissingExtraError("SLIC super-pixels (segments='grid' needs nothing)", extra="explain") from error
    pixels = image.detach().cpu().double()
    pixels = pixels if len(pixels) == 3 else pixels.mean(dim=0, keepdim=True).expand(3, -1, -1)
    low, high = pixels.min(), pixels.max()
    pixels = (pixels - low) / (high - low).clamp_min(1e-12)
    array = pixels.permute(1, 2, 0).contiguous().numpy()
    for factor in (1, 3, 10, 100):
        found = segmentation.slic(array, n_segments=count, compactness=factor * compactness, start_label=0)
        numbers = _renumbered(torch.from_numpy(found))
        if int(numbers.max()) + 1 >= count / 2:
            break
    return numbers.to(image.device)


def batch_for(images: Tensor, batch_size: int | None) -> int:
    """How many images (..., H, W) to pass together: as told, or else 64, and on a CPU fewer of larger ones."""
    if batch_size is None:
        return 64 if images.device.type != "cpu" else min(64, portion(*_sides(images)))
    if batch_size < 1:
        raise InputError(f"batch_size must be at least 1, got {batch_size}.")
    return batch_size


def check_segments(segments: Tensor, image: Tensor) -> Tensor:
    """Segments of one's own for an image (..., H, W): (H, W) integers, as int64 numbered from 0 without gaps."""
    if segments.dim() != 2 or tuple(segments.size()) != tuple(image.size()[-2:]):
        raise InputError(
            f"segments must be one number a pixel, dims {tuple(image.size()[-2:])}, got {tuple(segments.size())}."
        )
    if segments.is_floating_point() or segments.is_complex() or segments.dtype == torch.bool:
        raise InputError(f"segments must be whole numbers, got {segments.dtype}: call .long() on them.")
    return _renumbered(segments).to(image.device)


def segment_means(values: Tensor, segments: Tensor) -> Tensor:
    """Mean of (..., H, W) values over each of the M segments (H, W): (..., M), in float64 to the input's dtype."""
    M = int(segments.max()) + 1
    index = segments.flatten()
    flat = values.flatten(-2).double()
    total = flat.new_zeros(*flat.size()[:-1], M).index_add_(-1, index, flat)
    return (total / index.bincount(minlength=M)).to(values.dtype)


def background(images: Tensor, kind: Background, *, segments: Tensor | None = None) -> Tensor:
    """What stands where a part was switched off, with the dims of ``images``.

    Args:
        images: (..., C, H, W) floats.
        kind: ``"mean"``: the mean colour of the segment, as the ``lime`` package has it, or of the whole image without
            ``segments``; ``"zero"``: 0, as the model takes it; ``"blur"``: the image itself, heavily blurred.
        segments: (H, W) parts for ``"mean"``.
    """
    if kind not in get_args(Background):
        raise InputError(f"background must be one of {', '.join(get_args(Background))}, got {kind!r}.")
    if kind == "zero":
        return torch.zeros_like(images)
    if kind == "blur":
        return blur(images)
    if segments is None:
        return images.mean(dim=(-2, -1), keepdim=True).expand_as(images)
    return segment_means(images, segments)[..., segments.flatten()].view_as(images)


def blur(images: Tensor, *, sigma: float | None = None) -> Tensor:
    """Gaussian blur of (..., C, H, W) images, edges reflected.

    Args:
        images: floats.
        sigma: deviation in pixels; by default a tenth of the shorter side, which leaves colours and no shapes.
    """
    H, W = _sides(images)
    sigma = _BLUR * min(H, W) if sigma is None else sigma
    if not 0 < sigma < math.inf:
        raise InputError(f"sigma is a blur's deviation in pixels, above 0, got {sigma}.")
    flat = images.reshape(-1, 1, H, W)
    flat = _blur_rows(flat, sigma)
    return _blur_rows(flat.transpose(2, 3), sigma).transpose(2, 3).reshape_as(images)


def _blur_rows(flat: Tensor, sigma: float) -> Tensor:
    """Along the last dim of (N, 1, H, W)."""
    reach = min(math.ceil(3 * sigma), flat.size(3) - 1)
    place = torch.arange(-reach, reach + 1, dtype=flat.dtype, device=flat.device)
    kernel = torch.exp(-(place**2) / (2 * sigma**2))
    padded = F.pad(flat, (reach, reach, 0, 0), mode="reflect") if reach else flat
    return F.conv2d(padded, (kernel / kernel.sum()).view(1, 1, 1, -1))


def _cells(H: int, W: int, rows: int, columns: int) -> Tensor:
    down = torch.arange(H) * rows // H
    across = torch.arange(W) * columns // W
    return down[:, None] * columns + across


def _renumbered(segments: Tensor) -> Tensor:
    numbers: Tensor = torch.unique(segments, return_inverse=True)[1]
    return numbers.long()


def _sides(image: Tensor) -> tuple[int, int]:
    if image.dim() < 2 or 0 in image.size()[-2:]:
        raise InputError(f"an image has dims (..., H, W), got {tuple(image.size())}.")
    return image.size(-2), image.size(-1)

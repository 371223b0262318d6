"""The 15 common corruptions of Hendrycks & Dietterich (2019) on tensors, with the severities that they published.

Each takes images (B, C, H, W) of floats in [0, 1], C = 3 or 1, the draws of these images, and the numbers of a severity;
it returns the same dims, not yet clipped. Lengths are in pixels, as published for sides of 32 and 224, except for the
elastic ones, which are shares of the side.
"""

import io
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from bndl.data import filters
from bndl.data.filters import Draws, along
from bndl.errors import MissingExtraError

__all__ = ["TABLE", "Corruption"]


@dataclass(frozen=True)
class Corruption:
    """A corruption and what each severity, 1 to 5, means.

    Attributes:
        apply: images, draws and the numbers of a severity to corrupted images.
        small: its numbers for images like CIFAR's.
        large: its numbers for images like ImageNet's.
    """

    apply: Callable[..., Tensor]
    small: tuple[tuple[float, ...], ...]
    large: tuple[tuple[float, ...], ...]


def _gaussian_noise(x: Tensor, draws: Draws, scale: float) -> Tensor:
    return x + scale * draws.normal(*x.size()[1:])


def _shot_noise(x: Tensor, draws: Draws, photons: float) -> Tensor:
    """What counting so many photons at full brightness gives."""
    return draws.poisson(x * photons) / photons


def _impulse_noise(x: Tensor, draws: Draws, amount: float) -> Tensor:
    """Salt and pepper, in each channel for itself."""
    drawn = draws.uniform(*x.size()[1:])
    return x.masked_fill(drawn < amount / 2, 0.0).masked_fill(drawn >= 1 - amount / 2, 1.0)


def _defocus_blur(x: Tensor, draws: Draws, radius: float, alias_blur: float) -> Tensor:
    return filters.filter_taps(x, filters.disk_kernel(radius, alias_blur=alias_blur))


def _glass_blur(x: Tensor, draws: Draws, sigma: float, reach: int, rounds: int) -> Tensor:
    """Blur, jitter, blur. Pixels were meant to be swapped; the released images have them copied, and so have these."""
    blurs = [filters.gaussian_matrix(size, sigma) for size in x.size()[2:]]
    x = along(x, *blurs)
    for _ in range(rounds):
        x = filters.jitter(x, draws, reach=reach)
    return along(x, *blurs)


def _motion_blur(x: Tensor, draws: Draws, radius: float, sigma: float) -> Tensor:
    return filters.motion_blur(x, draws.uniform() * 90 - 45, radius=radius, sigma=sigma)


def _zoom_blur(x: Tensor, draws: Draws, count: int, step: float) -> Tensor:
    """Mean of the image and of ``count`` magnifications of its middle."""
    zooms = [
        torch.cat([filters.zoom_matrix(size, 1 + step * number) for number in range(count)]) for size in x.size()[2:]
    ]
    return (x + along(x, *zooms)) / (count + 1)


def _snow(
    x: Tensor,
    draws: Draws,
    mean: float,
    std: float,
    zoom: float,
    least: float,
    radius: float,
    sigma: float,
    kept: float,
) -> Tensor:
    """Streaks of enlarged flakes over a whitened image."""
    flakes = mean + std * draws.normal(1, *x.size()[2:])
    flakes = along(flakes, *(filters.zoom_matrix(size, zoom) for size in x.size()[2:]))
    flakes = flakes.where(flakes >= least, 0.0).clamp(0, 1)
    flakes = filters.motion_blur(flakes, draws.uniform() * 90 - 135, radius=radius, sigma=sigma)
    whitened = torch.maximum(x, _grey(x) * 1.5 + 0.5)
    return kept * x + (1 - kept) * whitened + flakes + flakes.flip(2, 3)


def _frost(x: Tensor, draws: Draws, kept: float, frost: float) -> Tensor:
    """A layer of ice. The benchmark's are photographs; ours are drawn: patches of cloud with veins, grain and needles."""
    height, width = x.size()[2:]
    patches, veins, grain = (filters.plasma(draws, height, width, decay=decay) for decay in (1.8, 1.3, 1.1))
    patches = (2.2 * patches - 0.6).clamp(0, 1)
    veins = (1 - (2 * veins - 1).abs()) ** 4
    ice = 0.25 + patches * (0.3 + 0.5 * veins) + 0.5 * _needles(draws, height, width) * (0.25 + 0.75 * patches)
    ice = (ice + 0.4 * (grain - 0.5)).clamp(0, 1)
    tint = torch.tensor([0.88, 0.95, 1.0] if x.size(1) == 3 else [0.94])
    return kept * x + frost * ice[:, None] * tint[:, None, None]


def _needles(draws: Draws, height: int, width: int) -> Tensor:
    """Thin straight crystals in five directions that fade towards one end, in [0, 1], (B, H, W)."""
    half = max(2, min(height, width) // 12)
    needles = torch.zeros(len(draws.indices), 1, height, width)
    for _ in range(5):
        tips = (draws.uniform(1, height, width) < 0.05 / half).float()
        drawn = filters.motion_blur(tips, draws.uniform() * 360, radius=half, sigma=half)
        needles = torch.maximum(needles, drawn)
    return (needles * (1.25 * half)).clamp_max(1)[:, 0]  # a lone tip is 1 / (1.25 half)


def _fog(x: Tensor, draws: Draws, amount: float, decay: float) -> Tensor:
    """Clouds over the image, whose brightest value stays what it was."""
    brightest = x.amax(dim=(1, 2, 3), keepdim=True)
    fogged = x + amount * filters.plasma(draws, *x.size()[2:], decay=decay)[:, None]
    return fogged * brightest / (brightest + amount)


def _brightness(x: Tensor, draws: Draws, amount: float) -> Tensor:
    """Add to the value of hue, saturation and value: colours are scaled, black turns grey."""
    value = x.amax(dim=1, keepdim=True)
    raised = (value + amount).clamp_max(1)
    return torch.where(value > 0, x * (raised / value.clamp_min(1e-6)), raised)


def _contrast(x: Tensor, draws: Draws, factor: float) -> Tensor:
    mean = x.mean(dim=(2, 3), keepdim=True)
    return (x - mean) * factor + mean


def _elastic_transform(x: Tensor, draws: Draws, amount: float, smoothness: float, affine: float) -> Tensor:
    """Three corners of a square are moved, which turns and shears, and every pixel a little on its own."""
    (height, width), side = x.size()[2:], min(x.size()[2:])
    blurs = (filters.gaussian_matrix(size, smoothness * side, truncate=3.0) for size in (height, width))
    moved = along(draws.uniform(2, height, width) * 2 - 1, *blurs) * (amount * side)
    middle, reach = torch.tensor([width // 2, height // 2]), side // 3
    corners = (middle + reach * torch.tensor([[1, 1], [1, -1], [-1, -1]])).double()
    targets = corners + (draws.uniform(3, 2) * 2 - 1).double() * (affine * side)
    back = torch.linalg.solve(F.pad(targets, (0, 1), value=1.0), corners)  # (B, 3, 2): from where a point came
    grid = torch.stack(torch.meshgrid(torch.arange(width), torch.arange(height), indexing="xy")) + moved.double()
    x_from, y_from = (
        grid[:, 0] * back[:, 0, axis, None, None]
        + grid[:, 1] * back[:, 1, axis, None, None]
        + back[:, 2, axis, None, None]
        for axis in (0, 1)
    )
    source = torch.stack([2 * x_from / (width - 1) - 1, 2 * y_from / (height - 1) - 1], dim=3).float()
    return F.grid_sample(x, source, padding_mode="reflection", align_corners=True)


def _pixelate(x: Tensor, draws: Draws, share: float) -> Tensor:
    return along(x, *(filters.box_matrix(size, int(size * share)) for size in x.size()[2:]))


def _jpeg_compression(x: Tensor, draws: Draws, quality: int) -> Tensor:
    try:
        import PIL.Image
    except ImportError as error:
        raise MissingExtraError("JPEG compression", extra="data") from error
    out = np.empty((len(x), *x.size()[2:], x.size(1)), dtype=np.uint8)
    for target, image in zip(out, (x * 255).round().byte().permute(0, 2, 3, 1).numpy(), strict=True):
        file = io.BytesIO()
        PIL.Image.fromarray(image.squeeze(2) if image.shape[2] == 1 else image).save(file, "JPEG", quality=quality)
        with PIL.Image.open(file) as opened:
            target[...] = np.asarray(opened).reshape(target.shape)
    return torch.from_numpy(out).permute(0, 3, 1, 2) / 255


def _grey(x: Tensor) -> Tensor:
    """Luminance (B, 1, H, W)."""
    return x if x.size(1) == 1 else 0.299 * x[:, :1] + 0.587 * x[:, 1:2] + 0.114 * x[:, 2:]


_LARGE_SIDE = 244 / 224  # the elastic constants for 224 pixels were published as shares of 244

TABLE: Mapping[str, Corruption] = {
    "gaussian_noise": Corruption(
        _gaussian_noise, ((0.04,), (0.06,), (0.08,), (0.09,), (0.10,)), ((0.08,), (0.12,), (0.18,), (0.26,), (0.38,))
    ),
    "shot_noise": Corruption(_shot_noise, ((500,), (250,), (100,), (75,), (50,)), ((60,), (25,), (12,), (5,), (3,))),
    "impulse_noise": Corruption(
        _impulse_noise, ((0.01,), (0.02,), (0.03,), (0.05,), (0.07,)), ((0.03,), (0.06,), (0.09,), (0.17,), (0.27,))
    ),
    "defocus_blur": Corruption(
        _defocus_blur,
        ((0.3, 0.4), (0.4, 0.5), (0.5, 0.6), (1, 0.2), (1.5, 0.1)),
        ((3, 0.1), (4, 0.5), (6, 0.5), (8, 0.5), (10, 0.5)),
    ),
    "glass_blur": Corruption(
        _glass_blur,
        ((0.05, 1, 1), (0.25, 1, 1), (0.4, 1, 1), (0.25, 1, 2), (0.4, 1, 2)),
        ((0.7, 1, 2), (0.9, 2, 1), (1, 2, 3), (1.1, 3, 2), (1.5, 4, 2)),
    ),
    "motion_blur": Corruption(
        _motion_blur,
        ((6, 1), (6, 1.5), (6, 2), (8, 2), (9, 2.5)),
        ((10, 3), (15, 5), (15, 8), (15, 12), (20, 15)),
    ),
    "zoom_blur": Corruption(
        _zoom_blur,
        ((7, 0.01), (12, 0.01), (16, 0.01), (21, 0.01), (26, 0.01)),
        ((12, 0.01), (16, 0.01), (11, 0.02), (13, 0.02), (11, 0.03)),
    ),
    "snow": Corruption(
        _snow,
        (
            (0.1, 0.2, 1, 0.6, 8, 3, 0.95),
            (0.1, 0.2, 1, 0.5, 10, 4, 0.9),
            (0.15, 0.3, 1.75, 0.55, 10, 4, 0.9),
            (0.25, 0.3, 2.25, 0.6, 12, 6, 0.85),
            (0.3, 0.3, 1.25, 0.65, 14, 12, 0.8),
        ),
        (
            (0.1, 0.3, 3, 0.5, 10, 4, 0.8),
            (0.2, 0.3, 2, 0.5, 12, 4, 0.7),
            (0.55, 0.3, 4, 0.9, 12, 8, 0.7),
            (0.55, 0.3, 4.5, 0.85, 12, 8, 0.65),
            (0.55, 0.3, 2.5, 0.85, 12, 12, 0.55),
        ),
    ),
    "frost": Corruption(
        _frost,
        ((1, 0.2), (1, 0.3), (0.9, 0.4), (0.85, 0.4), (0.75, 0.45)),
        ((1, 0.4), (0.8, 0.6), (0.7, 0.7), (0.65, 0.7), (0.6, 0.75)),
    ),
    "fog": Corruption(
        _fog,
        ((0.2, 3), (0.5, 3), (0.75, 2.5), (1, 2), (1.5, 1.75)),
        ((1.5, 2), (2, 2), (2.5, 1.7), (2.5, 1.5), (3, 1.4)),
    ),
    "brightness": Corruption(
        _brightness, ((0.05,), (0.1,), (0.15,), (0.2,), (0.3,)), ((0.1,), (0.2,), (0.3,), (0.4,), (0.5,))
    ),
    "contrast": Corruption(
        _contrast, ((0.75,), (0.5,), (0.4,), (0.3,), (0.15,)), ((0.4,), (0.3,), (0.2,), (0.1,), (0.05,))
    ),
    "elastic_transform": Corruption(
        _elastic_transform,
        ((0, 0, 0.08), (0.05, 0.2, 0.07), (0.08, 0.06, 0.06), (0.1, 0.04, 0.05), (0.1, 0.03, 0.03)),
        tuple(
            tuple(share * _LARGE_SIDE for share in shares)
            for shares in ((2, 0.7, 0.1), (2, 0.08, 0.2), (0.05, 0.01, 0.02), (0.07, 0.01, 0.02), (0.12, 0.01, 0.02))
        ),
    ),
    "pixelate": Corruption(
        _pixelate, ((0.95,), (0.9,), (0.85,), (0.75,), (0.65,)), ((0.6,), (0.5,), (0.4,), (0.3,), (0.25,))
    ),
    "jpeg_compression": Corruption(
        _jpeg_compression, ((80,), (65,), (58,), (50,), (40,)), ((25,), (18,), (15,), (10,), (7,))
    ),
}
"""The corruptions by name, in the order of the paper."""

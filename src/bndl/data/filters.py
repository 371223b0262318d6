"""What corruptions are made of: seeded draws an image, resampling as matrices, blur along a line, plasma, jitter.

Images are (B, C, H, W) float32. Nothing here mixes the images of a batch, nor depends on how many there are.
"""

import hashlib
import math
from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

__all__ = [
    "Draws",
    "along",
    "box_matrix",
    "disk_kernel",
    "filter_taps",
    "gaussian_matrix",
    "jitter",
    "motion_blur",
    "plasma",
    "zoom_matrix",
]


class Draws:
    """Random numbers for a batch of images, each from a stream of its own: key and number of the image decide.

    Args:
        key: what the draws are for, with the seed.
        indices: the number of each image, (B,).
    """

    def __init__(self, key: str, indices: Sequence[int]) -> None:
        self.key, self.indices = key, indices
        self._generator, self._calls = torch.Generator(), 0

    def uniform(self, *dims: int) -> Tensor:
        """(B, *dims) in [0, 1)."""
        return self._filled(dims, lambda row: row.uniform_(generator=self._generator))

    def normal(self, *dims: int) -> Tensor:
        """(B, *dims) of mean 0 and variance 1."""
        return self._filled(dims, lambda row: row.normal_(generator=self._generator))

    def poisson(self, rates: Tensor) -> Tensor:
        """Counts like ``rates`` (B, ...)."""
        out = iter(rates)
        return self._filled(rates.size()[1:], lambda row: row.copy_(torch.poisson(next(out), self._generator)))

    def _filled(self, dims: Sequence[int], fill: Callable[[Tensor], object]) -> Tensor:
        filled = torch.empty(len(self.indices), *dims)
        self._calls += 1
        for row, index in zip(filled, self.indices, strict=True):
            name = f"{self.key} {self._calls} {index}".encode()
            self._generator.manual_seed(int.from_bytes(hashlib.blake2b(name, digest_size=4).digest()))
            fill(row)
        return filled


def along(images: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    """R X C^T of each channel X, summed over n pairs of matrices.

    Args:
        images: (B, C, H, W).
        rows: (n, H', H).
        columns: (n, W', W).
    Returns:
        (B, C, H', W').
    """
    n, height, width = len(rows), rows.size(1), columns.size(1)
    flat = images.flatten(0, 1)
    # one product an image, of dims that do not depend on the batch: neither do the bits
    right = torch.bmm(flat, columns.flatten(0, 1).t().expand(len(flat), -1, -1))  # (BC, H, n W')
    right = right.unflatten(2, (n, width)).transpose(1, 2).flatten(1, 2)  # (BC, n H, W')
    left = rows.transpose(0, 1).flatten(1, 2).expand(len(flat), -1, -1)  # (BC, H', n H)
    return torch.bmm(left, right).view(*images.size()[:2], height, width)


def gaussian_matrix(size: int, sigma: float, *, truncate: float = 4.0) -> Tensor:
    """(1, size, size): blur along one side with a Gaussian, mirrored at the borders and cut at ``truncate`` sigmas."""
    radius = int(truncate * sigma + 0.5)
    offsets = torch.arange(-radius, radius + 1)
    weights = torch.exp(-0.5 * (offsets / max(sigma, 1e-6)).square())
    position = (torch.arange(size)[:, None] + offsets) % (2 * size)
    position = torch.where(position < size, position, 2 * size - 1 - position)
    matrix = torch.zeros(size, size).scatter_add_(1, position, (weights / weights.sum()).expand(size, -1))
    return matrix[None]


def zoom_matrix(size: int, factor: float) -> Tensor:
    """(1, size, size): the middle of one side magnified ``factor`` >= 1 times, between pixels linearly."""
    shown = math.ceil(size / factor)
    enlarged = max(size, round(shown * factor))
    place = torch.arange(size) + (enlarged - size) // 2
    source = place * ((shown - 1) / max(enlarged - 1, 1))
    low = source.floor().long().clamp_max(shown - 1)
    share = (source - low)[:, None]
    pixels = torch.eye(size)[(size - shown) // 2 :][:shown]
    return (pixels[low] * (1 - share) + pixels[(low + 1).clamp_max(shown - 1)] * share)[None]


def box_matrix(size: int, smaller: int) -> Tensor:
    """(1, size, size): one side averaged down to ``smaller`` pixels by their centres, and each repeated back."""

    def resized(source: int, target: int) -> Tensor:
        scale = source / target
        distance = torch.arange(source) + 0.5 - (torch.arange(target)[:, None] + 0.5) * scale
        distance /= max(scale, 1.0)
        inside = ((distance > -0.5) & (distance <= 0.5)).float()
        return inside / inside.sum(dim=1, keepdim=True)

    return (resized(smaller, size) @ resized(size, smaller))[None]


def disk_kernel(radius: float, *, alias_blur: float) -> Tensor:
    """A disk of pixels (k, k) of sum 1, its edge softened by a Gaussian of 3 x 3 (5 x 5 for large disks)."""
    reach = math.ceil(radius)
    offsets = torch.arange(-reach, reach + 1)
    disk = ((offsets[:, None].square() + offsets.square()) <= radius**2).double()
    soft = 1 if radius <= 8 else 2
    edge = torch.exp(-0.5 * (torch.arange(-soft, soft + 1).double() / alias_blur).square())
    edge = edge / edge.sum()
    kernel = F.conv2d((disk / disk.sum())[None, None], torch.outer(edge, edge)[None, None], padding=2 * soft)[0, 0]
    return kernel.where(kernel > 1e-6, 0.0).float()


def filter_taps(images: Tensor, kernel: Tensor) -> Tensor:
    """Correlate each channel with a small kernel (k, k), mirrored at the borders; zeros of the kernel cost nothing."""
    (height, width), reach = images.size()[2:], kernel.size(0) // 2
    padded = _mirrored(images, reach)
    out = torch.zeros_like(images)
    for dy, dx in kernel.nonzero().tolist():
        out.add_(padded[:, :, dy : dy + height, dx : dx + width], alpha=float(kernel[dy, dx]))
    return out


def _mirrored(images: Tensor, reach: int) -> Tensor:
    """Borders of ``reach`` pixels on all sides, mirrored without repeating the outermost, as often as needed."""

    def positions(size: int) -> Tensor:
        period = max(2 * (size - 1), 1)
        place = torch.arange(-reach, size + reach) % period
        return torch.minimum(place, period - place) if size > 1 else torch.zeros_like(place)

    return images[:, :, positions(images.size(2))][..., positions(images.size(3))]


def motion_blur(images: Tensor, angles: Tensor, *, radius: float, sigma: float) -> Tensor:
    """A trail of 2 radius + 1 pixels that fades like half a Gaussian, along a direction of each image's own.

    Args:
        images: (B, C, H, W).
        angles: (B,) in degrees.
        radius: half the length of the trail.
        sigma: how far it is seen.
    """
    num_taps = 2 * math.ceil(radius) + 1
    steps = torch.arange(num_taps, dtype=torch.float64)
    weights = torch.exp(-0.5 * (steps / sigma).square())
    weights = weights / weights.sum()
    (height, width), radians = images.size()[2:], angles.double().deg2rad()[:, None]
    down, right = ((steps * turn - 0.5).ceil().long() + num_taps for turn in (radians.sin(), radians.cos()))
    padded = F.pad(images, (num_taps,) * 4, mode="replicate")
    out = torch.zeros_like(images)
    for image, source, dy, dx in zip(out, padded, down.tolist(), right.tolist(), strict=True):
        for y, x, weight in zip(dy, dx, weights.tolist(), strict=True):
            image.add_(source[:, y : y + height, x : x + width], alpha=weight)
    return out


def plasma(draws: Draws, height: int, width: int, *, decay: float) -> Tensor:
    """Clouds in [0, 1], (B, H, W), by midpoint displacement: each halving of the scale is ``decay``^2 times flatter."""
    size = 1 << (max(height, width) - 1).bit_length()
    noise = draws.uniform(size, size) * 2 - 1
    cloud, step, amplitude = torch.zeros_like(noise), size, 1.0
    while step >= 2:
        half = step // 2
        on, off = slice(None, None, step), slice(half, None, step)
        corners = cloud[:, on, on]
        pairs = corners + corners.roll(-1, 1)
        middle = (pairs + pairs.roll(-1, 2)) / 4 + amplitude * noise[:, off, off]
        beside, above = pairs + middle + middle.roll(1, 2), corners + corners.roll(-1, 2) + middle + middle.roll(1, 1)
        cloud[:, off, off] = middle
        cloud[:, off, on] = beside / 4 + amplitude * noise[:, off, on]
        cloud[:, on, off] = above / 4 + amplitude * noise[:, on, off]
        step, amplitude = half, amplitude / decay**2
    cloud -= cloud.amin(dim=(1, 2), keepdim=True)
    cloud /= cloud.amax(dim=(1, 2), keepdim=True).clamp_min(1e-12)
    return cloud[:, :height, :width]


def jitter(images: Tensor, draws: Draws, *, reach: int) -> Tensor:
    """Give each pixel in turn, from the last to the first, the colour of one drawn from the ``reach`` pixels around it.

    Pixels 2 ``reach`` apart do not meet, so a slanting front of them is done at once: in W + 2 ``reach`` H steps, with the
    result of one after another.
    """
    height, width = images.size()[2:]
    shift = (draws.uniform(2, height, width) * (2 * reach)).floor().long() - reach
    partner = torch.arange(height * width) + shift[:, 0].flatten(1) * width + shift[:, 1].flatten(1)
    rows, columns = torch.arange(height - reach, reach, -1), torch.arange(width - reach, reach, -1)
    front = (height - reach - rows)[:, None] * (2 * reach) + (width - reach - columns)
    place = (rows[:, None] * width + columns).flatten()[front.flatten().argsort()]
    order = torch.arange(height * width).repeat(len(images), 1)
    for at_once in place.split(front.flatten().bincount().tolist()):
        here = at_once.expand(len(images), -1)
        order.scatter_(1, here, order.gather(1, partner.gather(1, here)))
    return images.flatten(2).gather(2, order[:, None].expand(-1, images.size(1), -1)).view_as(images)

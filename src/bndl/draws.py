"""Posterior draws of the decision layer that all examples share, so S draws are S plain head products.

An example's draws depend on the seed and on itself alone: never on the batch it came in. To keep that true to the last
bit, rows are worked on in tiles of one fixed size and columns in multiples of 16, because a matrix product may add up in
another order when its dims change.
"""

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor

from bndl import weibull
from bndl.layer import DecisionLayer, Posterior

__all__ = ["TILE", "SharedDraws", "default_num_samples", "pad_columns", "tiles"]

TILE = 64  # rows a tile
_BUDGET = 2**26  # numbers: sampled weights held at once (256 MB in float32)


def default_num_samples(layer: DecisionLayer) -> int:
    """200 draws, or as many (at least 20) as keep the sampled weights of a large head within 256 MB."""
    return max(20, min(200, _BUDGET // layer.weight.numel()))


def pad_columns(matrix: Tensor) -> Tensor:
    """Zero columns appended to the last dim up to a multiple of 16."""
    return F.pad(matrix, (0, -matrix.size(-1) % 16)).contiguous()


def tiles(rows: Tensor) -> Iterator[tuple[slice, Tensor]]:
    """Cut (B, K) into tiles of exactly ``TILE`` rows, the last one padded with zeros; with where each belongs."""
    for start in range(0, len(rows), TILE):
        tile = rows[start : start + TILE]
        yield slice(start, start + len(tile)), F.pad(tile, (0, 0, 0, TILE - len(tile))).contiguous()


class SharedDraws:
    """S seeded draws of the head, made once and applied to any number of rows.

    Args:
        layer: the decision layer.
        num_samples: S.
        seed: the same seed gives the same bits.
    """

    def __init__(self, layer: DecisionLayer, num_samples: int, *, seed: int) -> None:
        self.layer, self.num_samples, self.seed = layer, num_samples, seed
        self._phi, self._bias = layer.phi(), layer.offset()
        self._per_chunk = max(1, _BUDGET // layer.weight.numel())
        self._only: tuple[Tensor, Tensor] | None = None

    def logits(self, theta: Posterior) -> Iterator[Tensor]:
        """Sampled logits (TILE, S', C) of one tile, in chunks of draws that together make S.

        Args:
            theta: posterior of a tile: mean (TILE, K), shape (K,), (TILE, 1) or (TILE, K).
        """
        C = self.layer.out_features
        for log_draws, weights in self._chunks():
            S = len(log_draws)
            if self.layer.theta_shape == "feature":  # the noise of theta is in the weights already
                drawn = (theta.mean @ weights)[:, : S * C].unflatten(1, (S, C))
            else:
                noise = weibull.noise(log_draws[:, None, :], theta.shape)
                drawn = torch.bmm(theta.mean * noise, weights)[..., :C].transpose(0, 1)
            yield drawn if self._bias is None else drawn + self._bias

    def _chunks(self) -> Iterator[tuple[Tensor, Tensor]]:
        """(log draws of theta's noise (S', K), sampled weights), kept when there is but one chunk."""
        if self._only is not None:
            yield self._only
            return
        generator = torch.Generator(self.layer.weight.device).manual_seed(self.seed)
        for start in range(0, self.num_samples, self._per_chunk):
            chunk = self._draw(min(self._per_chunk, self.num_samples - start), generator)
            if self._per_chunk >= self.num_samples:
                self._only = chunk
            yield chunk

    def _draw(self, count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        mean, (C, K) = self._phi.mean, self._phi.mean.size()
        log_draws = weibull.log_exponential(count, K, like=mean, generator=generator)
        phi_draws = weibull.log_exponential(count, C, K, like=mean, generator=generator)
        phi = mean * weibull.noise(phi_draws, self._phi.shape)
        if self.layer.theta_shape != "feature":
            return log_draws, pad_columns(phi.transpose(1, 2))
        shape = self.layer.theta(mean.new_zeros(1, self.layer.in_features)).shape
        phi = phi * weibull.noise(log_draws, shape)[:, None, :]
        return log_draws, pad_columns(phi.flatten(0, 1).t())

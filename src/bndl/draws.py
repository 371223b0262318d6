"""Posterior draws of the decision layer that all examples share, so S draws are S plain head products.

An example's draws depend on the seed and on itself alone: never on the batch it came in. To keep that true to the last
bit, rows are worked on in tiles of one fixed size and columns in multiples of 16, because a matrix product may add up in
another order when its dims change.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from bndl import weibull
from bndl.layer import DecisionLayer, Posterior

__all__ = ["TILE", "SharedDraws", "Slice", "default_num_samples", "pad_columns", "tiles"]

TILE = 64  # rows a tile
_HELD = 2**26  # numbers: sampled weights that are kept rather than drawn again (256 MB in float32)
_SLICE = 2**22  # numbers: the largest tensor made at once for a slice of the draws


def default_num_samples(layer: DecisionLayer) -> int:
    """200 draws, or as many (at least 20) as keep the sampled weights of a large head within 256 MB."""
    return max(20, min(200, _HELD // layer.weight.numel()))


def pad_columns(matrix: Tensor) -> Tensor:
    """Zero columns appended to the last dim up to a multiple of 16."""
    return F.pad(matrix, (0, -matrix.size(-1) % 16)).contiguous()


def tiles(rows: Tensor) -> list[Tensor]:
    """Cut (B, K) into tiles of exactly ``TILE`` rows, the last one padded with zeros."""
    padded = F.pad(rows, (0, 0, 0, -len(rows) % TILE)).contiguous()
    return [padded[start : start + TILE] for start in range(0, len(padded), TILE)]


@dataclass(frozen=True)
class Slice:
    """Some of the draws: log noise of theta (S', K), and sampled weights (K, S' C), or (S', K, C) if theta's is apart."""

    layer: DecisionLayer
    log_draws: Tensor
    weights: Tensor

    def logits(self, theta: Posterior) -> Tensor:
        """Sampled logits (TILE, S', C) of one tile.

        Args:
            theta: posterior of a tile: mean (TILE, K), shape (K,), (TILE, 1) or (TILE, K).
        """
        S, C, bias = len(self.log_draws), self.layer.out_features, self.layer.offset()
        if self.layer.theta_shape == "feature":  # the noise of theta is in the weights already
            drawn = (theta.mean @ self.weights)[:, : S * C].unflatten(1, (S, C))
        else:
            noise = weibull.noise(self.log_draws[:, None, :], theta.shape)
            drawn = torch.bmm(theta.mean * noise, self.weights)[..., :C].transpose(0, 1)
        logits: Tensor = drawn if bias is None else drawn + bias
        return logits


class SharedDraws:
    """S seeded draws of the head, made once and applied to any number of rows.

    Args:
        layer: the decision layer; its parameters are read when the draws are made.
        num_samples: S.
        seed: the same seed gives the same bits.
    """

    def __init__(self, layer: DecisionLayer, num_samples: int, *, seed: int) -> None:
        self.layer, self.num_samples, self.seed = layer, num_samples, seed
        self._held: list[Slice] | None = None

    @torch.no_grad()
    def slices(self) -> Iterable[Slice]:
        """The draws, in slices that together make S; kept for the next call when they fit."""
        if self._held is not None:
            return self._held
        if self.num_samples * self.layer.weight.numel() > _HELD:
            return self._draw_all()
        self._held = list(self._draw_all())
        return self._held

    def _draw_all(self) -> Iterator[Slice]:
        C, K = self.layer.weight.size()
        generator = torch.Generator(self.layer.weight.device).manual_seed(self.seed)
        most = max(1, _SLICE // max(C * K, TILE * K, TILE * C))
        for start in range(0, self.num_samples, most):
            yield self._draw(min(most, self.num_samples - start), generator)

    def _draw(self, count: int, generator: torch.Generator) -> Slice:
        phi = self.layer.phi()
        mean, (C, K) = phi.mean, phi.mean.size()
        log_draws = weibull.log_exponential(count, K, like=mean, generator=generator)
        sampled = weibull.log_exponential(count, C, K, like=mean, generator=generator)
        weibull.noise_(sampled, phi.shape).mul_(mean)
        if self.layer.theta_shape != "feature":
            return Slice(self.layer, log_draws, pad_columns(sampled.transpose(1, 2)))
        shape = self.layer.theta(mean.new_zeros(1, self.layer.in_features)).shape
        sampled.mul_(weibull.noise(log_draws, shape)[:, None, :])
        return Slice(self.layer, log_draws, pad_columns(sampled.flatten(0, 1).t()))

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
from bndl.compact import CompactLayer
from bndl.layer import DecisionLayer, Posterior
from bndl.sparse_product import Bags, bags_are_faster

__all__ = ["TILE", "SharedDraws", "Slice", "default_num_samples", "pad_columns", "tiles"]

TILE = 64  # rows a tile
_HELD = 2**26  # numbers: sampled weights that are kept rather than drawn again (256 MB in float32)
_SLICE = 2**22  # numbers: the largest tensor made at once for a slice of the draws


def default_num_samples(layer: DecisionLayer) -> int:
    """200 draws, or as many (at least 20) as keep the sampled weights of a large head within 256 MB."""
    return max(20, min(200, _HELD // (layer.out_features * _drawn_features(layer))))


def pad_columns(matrix: Tensor) -> Tensor:
    """Zero columns appended to the last dim up to a multiple of 16."""
    return F.pad(matrix, (0, -matrix.size(-1) % 16)).contiguous()


def tiles(rows: Tensor) -> list[Tensor]:
    """Cut (B, K) into tiles of exactly ``TILE`` rows, the last one padded with zeros."""
    padded = F.pad(rows, (0, 0, 0, -len(rows) % TILE)).contiguous()
    return [padded[start : start + TILE] for start in range(0, len(padded), TILE)]


@dataclass(frozen=True)
class Slice:
    """Some of the draws: log noise of theta (S', K), and sampled weights (K, S' C), or (S', K, C) if theta's is apart.

    The weights are in bags where a compact layer's are few.
    """

    layer: DecisionLayer
    log_draws: Tensor
    weights: Tensor | Bags

    def logits(self, theta: Posterior) -> Tensor:
        """Sampled logits (TILE, S', C) of one tile.

        Args:
            theta: posterior of a tile: mean (TILE, K), shape (K,), (TILE, 1) or (TILE, K).
        """
        S, C, bias = len(self.log_draws), self.layer.out_features, self.layer.offset()
        if isinstance(self.weights, Bags):
            drawn = self.weights(theta.mean).unflatten(1, (S, C))
        elif self.layer.theta_shape == "feature":  # the noise of theta is in the weights already
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
        C, K = self.layer.out_features, _drawn_features(self.layer)
        generator = torch.Generator(self.layer.weight.device).manual_seed(self.seed)
        most = max(1, _SLICE // max(C * K, TILE * K, TILE * C))
        bags = _bags(self.layer)
        for start in range(0, self.num_samples, most):
            yield self._draw(min(most, self.num_samples - start), generator, bags)

    def _draw(self, count: int, generator: torch.Generator, bags: Bags | None) -> Slice:
        phi = self.layer.phi()
        mean, C, K = phi.mean, self.layer.out_features, _drawn_features(self.layer)
        log_draws = weibull.log_exponential(count, K, like=mean, generator=generator)
        sampled = weibull.log_exponential(count, C, K, like=mean, generator=generator)
        if isinstance(self.layer, CompactLayer):  # the noise of its features in the full layer
            log_draws = log_draws.index_select(-1, self.layer.kept)
            sampled = sampled if bags else sampled.index_select(-1, self.layer.kept)
        if self.layer.theta_shape != "feature":
            weibull.noise_(sampled, phi.shape).mul_(mean)
            return Slice(self.layer, log_draws, pad_columns(sampled.transpose(1, 2)))
        noise = weibull.noise(log_draws, self.layer.theta(mean.new_zeros(1, self.layer.in_features)).shape)
        if bags is not None:
            return Slice(self.layer, log_draws, self._in_bags(bags, sampled, phi, noise))
        weibull.noise_(sampled, phi.shape).mul_(mean).mul_(noise[:, None, :])
        return Slice(self.layer, log_draws, pad_columns(sampled.flatten(0, 1).t()))

    def _in_bags(self, bags: Bags, log_draws: Tensor, phi: Posterior, noise: Tensor) -> Bags:
        """The sampled weights, where there is one: log noise of all (S', C, K'), theta's noise (S', K)."""
        assert isinstance(self.layer, CompactLayer)
        classes = bags.classes
        place = classes * log_draws.size(2) + self.layer.kept[bags.features]
        drawn = log_draws.flatten(1).index_select(1, place)
        weibull.noise_(drawn, phi.shape.expand_as(phi.mean)[classes, bags.features]).mul_(bags.values)
        return bags.repeated(drawn.mul_(noise.index_select(1, bags.features)))


def _drawn_features(layer: DecisionLayer) -> int:
    """How many features noise is drawn for: all, so that a compact layer's draws are those of the full one."""
    return layer.total_features if isinstance(layer, CompactLayer) else layer.num_features


def _bags(layer: DecisionLayer) -> Bags | None:
    """The weights of a compact layer in bags, where that makes its products faster."""
    mean = layer.phi().mean
    plain = mean.device.type == "cpu" and mean.dtype == torch.float32
    if not isinstance(layer, CompactLayer) or layer.theta_shape != "feature" or not plain:
        return None
    bags = Bags.of(mean)
    return bags if bags_are_faster(len(bags.values), *mean.size()) else None

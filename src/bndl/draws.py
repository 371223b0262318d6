r"""Posterior draws of the decision layer that all examples share, so S draws are S plain head products.

The draws are stratified (a Latin hypercube): of the S draws of an entry's noise one falls into each of S equally likely
parts of its law, in an order of the entry's own. Each draw by itself follows the posterior exactly, but their average is
far nearer to the expectation: 16 such draws are worth 200 independent ones on CIFAR-100 and Imagenette, 32 on CIFAR-10
(``benchmarks/draws_needed.py``).

An example's draws depend on the seed and on itself alone: never on the batch it came in. To keep that true to the last
bit, rows are multiplied in tiles of one fixed size and columns in multiples of 16, because a matrix product may add up in
another order when its dims change. All else is done a row at a time, on blocks of several tiles.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from bndl import weibull
from bndl.compact import CompactLayer
from bndl.errors import InputError
from bndl.layer import DecisionLayer, Posterior
from bndl.sparse_product import Bags, bags_are_faster

__all__ = [
    "BLOCK",
    "TILE",
    "SharedDraws",
    "Slice",
    "blocks",
    "default_num_samples",
    "pad_columns",
    "posterior",
    "product",
]

TILE = 64  # rows a tile
BLOCK = 8 * TILE  # rows a block: few calls, and numbers that stay in the processor's cache
_HELD = 2**26  # numbers: sampled weights that are kept rather than drawn again (256 MB in float32)
_SLICE = 2**22  # numbers: the largest tensor made at once for a slice of the draws
_FEWEST, _MOST = 8, 64  # stratified draws
_SMALL, _LARGE = 26_000, 50_000  # weights: heads up to the one get the most draws, from the other on the fewest
_STRATA = 256  # draws that are stratified at most: more are as good without


def default_num_samples(layer: DecisionLayer) -> int:
    """64 stratified draws for heads of up to 26,000 weights, fewer in steps of 8 for larger ones, 8 from 50,000 on."""
    weights = min(max(layer.out_features * _drawn_features(layer), _SMALL), _LARGE)
    return _FEWEST + _FEWEST * math.ceil((_MOST / _FEWEST - 1) * (_LARGE - weights) / (_LARGE - _SMALL))


def pad_columns(matrix: Tensor) -> Tensor:
    """Zero columns appended to the last dim up to a multiple of 16."""
    return F.pad(matrix, (0, -matrix.size(-1) % 16)).contiguous()


def in_tiles(rows: Tensor) -> Sequence[Tensor]:
    """Cut (B', ...) into tiles of rows; in an exported graph, where B is not known, all rows are one."""
    return [rows] if torch.compiler.is_exporting() else rows.split(TILE)


def blocks(rows: Tensor) -> list[Tensor]:
    """Cut (B, K) into blocks of whole tiles, the last tile padded with zeros; an exported graph takes them as they are."""
    if torch.compiler.is_exporting():
        return [rows]
    parts = list(rows.contiguous().split(BLOCK))
    parts[-1] = F.pad(parts[-1], (0, 0, 0, -len(parts[-1]) % TILE))
    return parts


def product(rows: Tensor, matrix: Tensor, bias: Tensor | None = None) -> Tensor:
    """(B', K) times (K, N), plus (N,), tile by tile; B' is a multiple of ``TILE``, N of 16."""
    if rows.device.type == "cpu" and not torch.compiler.is_exporting():  # tiles side by side, a thread each
        tiles = rows.view(-1, TILE, rows.size(1))
        if len(tiles) == 1:  # a lone one is multiplied by other code, which gives other bits
            tiles = tiles.expand(2, -1, -1)
        wide = matrix.expand(len(tiles), *matrix.size())
        found: Tensor = torch.bmm(tiles, wide) if bias is None else torch.baddbmm(bias, tiles, wide)
        return found.flatten(0, 1)[: len(rows)]
    return torch.cat([tile @ matrix if bias is None else torch.addmm(bias, tile, matrix) for tile in in_tiles(rows)])


def posterior(layer: DecisionLayer, rows: Tensor) -> Posterior:
    """The layer's theta of a block (B', in_features); maps inside the layer are products, and so done tile by tile."""
    if layer.dense_map is None and layer.theta_shape_map is None:
        return layer.theta(rows)
    parts = [layer.theta(tile) for tile in in_tiles(rows)]
    shared = layer.theta_shape_map is None
    shape = parts[0].shape if shared else torch.cat([part.shape for part in parts])
    return Posterior(torch.cat([part.mean for part in parts]), shape)


@dataclass(frozen=True)
class Slice:
    """Some of the draws: log noise of theta (S', K), and sampled weights (K, S' C), or (S', K, C) if theta's is apart.

    The weights are in bags where a compact layer's are few. The bias (S' C) stands beside those of the first kind.
    """

    layer: DecisionLayer
    log_draws: Tensor
    weights: Tensor | Bags
    bias: Tensor | None = None

    def logits(self, theta: Posterior) -> Tensor:
        """Sampled logits (B', S', C) of one block.

        Args:
            theta: posterior of a block: mean (B', K), shape (K,), (B', 1) or (B', K).
        """
        S, C, bias = len(self.log_draws), self.layer.out_features, self.layer.offset()
        drawn: Tensor
        if isinstance(self.weights, Bags):
            drawn = self.weights(theta.mean).unflatten(1, (S, C))
        elif self.layer.theta_shape == "feature":  # the noise of theta is in the weights already
            drawn = product(theta.mean, self.weights, self.bias)[:, : S * C].unflatten(1, (S, C))
            return drawn
        else:
            pairs = zip(in_tiles(theta.mean), in_tiles(theta.shape), strict=True)
            drawn = torch.cat([self._apart(mean, shape) for mean, shape in pairs])
        return drawn if bias is None else drawn.add_(bias)

    def _apart(self, mean: Tensor, shape: Tensor) -> Tensor:
        """(TILE, S', C) where the noise of theta depends on the example."""
        noise = weibull.noise(self.log_draws[:, None, :], shape)
        assert isinstance(self.weights, Tensor)
        return torch.bmm(mean * noise, self.weights)[..., : self.layer.out_features].transpose(0, 1)


class _Strata:
    """The logarithms of S <= 256 stratified draws of Exponential(1) for each entry of some dims, slice by slice."""

    def __init__(self, num_samples: int, *dims: int, like: Tensor, generator: torch.Generator) -> None:
        self.num_samples, self.dims, self.like, self.generator = num_samples, dims, like, generator
        count, most = math.prod(dims), max(1, _SLICE // num_samples // 8)
        parts = [self._orders(min(most, count - start)) for start in range(0, count, most)]
        self.orders = torch.cat(parts, dim=1)  # (S, entries) of uint8: each entry's own order of the strata

    def _orders(self, count: int) -> Tensor:
        random = torch.rand(count, self.num_samples, generator=self.generator, device=self.like.device)
        return random.argsort(dim=1).to(torch.uint8).t()

    def __call__(self, draws: range) -> Tensor:
        """(S', *dims)."""
        strata = self.orders[draws.start : draws.stop]
        survival: Tensor = torch.rand(
            strata.size(), generator=self.generator, device=self.like.device, dtype=self.like.dtype
        )
        survival.add_(strata).mul_(1 / self.num_samples).clamp_(1e-12, 1 - 2**-24)
        return survival.log_().neg_().log_().view(-1, *self.dims)


class _Plain:
    """The logarithms of independent draws of Exponential(1), in the place of :class:`_Strata`."""

    def __init__(self, *dims: int, like: Tensor, generator: torch.Generator) -> None:
        self.dims, self.like, self.generator = dims, like, generator

    def __call__(self, draws: range) -> Tensor:
        """(S', *dims)."""
        return weibull.log_exponential(len(draws), *self.dims, like=self.like, generator=self.generator)


class SharedDraws:
    """S seeded draws of the head, made once and applied to any number of rows.

    Args:
        layer: the decision layer; its parameters are read when the draws are made.
        num_samples: S.
        seed: the same seed gives the same bits.
        stratified: whether the draws share out the posterior among them; or else they are independent.
        dense: keep a compact layer's weights as a matrix, also where bags of them are faster.
    """

    def __init__(
        self, layer: DecisionLayer, num_samples: int, *, seed: int, stratified: bool = True, dense: bool = False
    ) -> None:
        self.layer, self.num_samples, self.seed, self.stratified, self.dense = (
            layer,
            num_samples,
            seed,
            stratified,
            dense,
        )
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

    def hold(self) -> None:
        """Make the draws now, to be kept, for a graph to have them as constants."""
        if isinstance(self.slices(), list):
            return
        numbers = self.num_samples * self.layer.weight.numel()
        raise InputError(
            f"the draws of so large a head are {numbers:,} numbers, too many to be kept (at most {_HELD:,}): "
            'take fewer with num_samples, or method="closed", which needs none.'
        )

    def _draw_all(self) -> Iterator[Slice]:
        C, K = self.layer.out_features, _drawn_features(self.layer)
        mean, generator = self.layer.phi().mean, torch.Generator(self.layer.weight.device).manual_seed(self.seed)
        make = partial(_Strata, self.num_samples) if self.stratified and self.num_samples <= _STRATA else _Plain
        of_theta, of_phi = (make(*dims, like=mean, generator=generator) for dims in ((K,), (C, K)))
        most = max(1, _SLICE // max(C * K, TILE * K, BLOCK * C))
        bags = None if self.dense else _bags(self.layer)
        for start in range(0, self.num_samples, most):
            part = range(start, min(start + most, self.num_samples))
            yield self._slice(of_theta(part), of_phi(part), bags)

    def _slice(self, log_draws: Tensor, sampled: Tensor, bags: Bags | None) -> Slice:
        """From log noise of theta (S', K) and of Phi (S', C, K), which is overwritten."""
        phi = self.layer.phi()
        mean = phi.mean
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
        bias = self.layer.offset()
        repeated = None if bias is None else pad_columns(bias.repeat(len(sampled)))
        return Slice(self.layer, log_draws, pad_columns(sampled.flatten(0, 1).t()), repeated)

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

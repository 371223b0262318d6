r"""Fit the weights that are left: projected Adam on cached features, :math:`\Phi \ge 0`, everything outside a mask 0.

In units of each feature's root mean square, :math:`z_{nk} = \theta_{nk} / \sqrt{E[\theta_k^2]}` and
:math:`u_{ck} = \Phi_{kc} \sqrt{E[\theta_k^2]}`, it minimises

.. math:: -\frac1N \sum_n \sum_c t_{nc} \ln \mathrm{softmax}(u z_n + b)_c + \frac{\lambda}{2} \|u\|^2,

where t are the labels, or what the head that the path starts from says at its best temperature, and lambda = 20 / N.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property

import torch
import torch.nn.functional as F
from torch import Tensor

from bndl.features import FeatureSet
from bndl.layer import DecisionLayer

__all__ = ["Head", "Pool", "Slopes", "refit"]

_BATCH = 512
_VISITS = 25_000  # examples a pass, at most
_LEAST_STEPS = 50  # a pass
_RATE = 0.05  # of the root mean square of the weights
_LARGEST_RATE = 0.05
_RIDGE = 20  # lambda times N: a normal prior on each u
_BETAS = (0.9, 0.99)
_WARM_UP = 0.1
_HELD = 2**28  # numbers: features or targets that are kept in memory
_SAMPLE = 8192  # examples that slopes are averaged over
_BLOCK = 2048  # of them at a time


@dataclass(frozen=True)
class Head:
    """Weights (C, K) >= 0 and bias (C,) of mean logits."""

    weight: Tensor
    bias: Tensor

    @classmethod
    @torch.no_grad()
    def of(cls, layer: DecisionLayer) -> "Head":
        """The means of a decision layer."""
        mean, offset = layer.phi().mean, layer.offset()
        return cls(mean.clone(), mean.new_zeros(len(mean)) if offset is None else offset.clone())

    def logits(self, features: Tensor) -> Tensor:
        """(N, K) -> (N, C)."""
        return F.linear(features, self.weight, self.bias)

    def times(self, scale: Tensor) -> "Head":
        """Its weights times ``scale`` (K,): the head of features that are divided by it."""
        return Head(self.weight * scale, self.bias)


@dataclass(frozen=True)
class Pool:
    """What weights learn from, in memory.

    Attributes:
        z: features (N, K) as the head multiplies them, each over its root mean square; in a seeded order.
        labels: (N,).
        soft: targets (N, C) in place of the labels, or None.
        scale: root mean square (K,) of each feature.
        has_bias: whether the bias may move.
    """

    z: Tensor
    labels: Tensor
    soft: Tensor | None
    scale: Tensor
    has_bias: bool

    @classmethod
    @torch.no_grad()
    def of(
        cls, layer: DecisionLayer, data: list[FeatureSet], *, generator: torch.Generator, scale: Tensor | None = None
    ) -> "Pool":
        """Of several sets, in a seeded order; of very many examples a seeded part."""
        most = _HELD // max(layer.num_features, layer.out_features)
        parts = []
        for one in data:
            order = torch.randperm(len(one), generator=generator, device=generator.device)
            blocks = [one.take(rows).like(layer.weight) for rows in order[:most].split(4096)]
            parts += [(layer.theta(block.features).mean, block.labels) for block in blocks]
        theta, labels = torch.cat([part[0] for part in parts]), torch.cat([part[1] for part in parts])
        order = torch.randperm(len(labels), generator=generator, device=generator.device)
        theta = theta[order]
        scale = theta.square().mean(dim=0).sqrt() if scale is None else scale
        scale = torch.where(scale > 0, scale, 1.0)
        return cls(theta.div_(scale), labels[order], None, scale, layer.bias is not None)

    @property
    def ridge(self) -> float:
        """lambda."""
        return _RIDGE / len(self.labels)

    def taught(self, head: Head, scale: Tensor) -> "Pool":
        """The same examples with what a head says of them, its logits times ``scale``, as targets."""
        return replace(self, soft=torch.cat([(head.logits(t) * scale).softmax(1) for t in self.z.split(4096)]))

    def residuals(self, logits: Tensor, rows: slice) -> Tensor:
        """Probabilities minus targets (B, C): the slope of the loss in the logits."""
        probs = logits.softmax(dim=1)
        if self.soft is not None:
            return probs.sub_(self.soft[rows])
        index = self.labels[rows, None]
        return probs.scatter_add_(1, index, probs.new_full(index.size(), -1.0))

    def batches(self, num_steps: int, generator: torch.Generator) -> Iterator[slice]:
        """Rows of ``num_steps`` batches, one after the other from a place that is drawn."""
        number = math.ceil(len(self.labels) / _BATCH)
        first = int(torch.randint(number, (), generator=generator, device=generator.device))
        for step in range(first, first + num_steps):
            start = step % number * _BATCH
            yield slice(start, min(start + _BATCH, len(self.labels)))


class Slopes:
    r"""The objective of this module's first lines on a sample of the pool, and its slopes, each made when it is asked for.

    .. math:: G_{ck} = E[(p_c - t_c)\,z_k], \qquad H_{ck} = E[p_c (1 - p_c) (z_k - \bar z_k)^2]

    Args:
        head: where.
        pool: features and targets.
    """

    @torch.no_grad()
    def __init__(self, head: Head, pool: Pool) -> None:
        self.pool, self.count, loss = pool, min(_SAMPLE, len(pool.z)), 0.0
        self.blocks = [slice(start, min(start + _BLOCK, self.count)) for start in range(0, self.count, _BLOCK)]
        self.logs = [head.logits(pool.z[rows]).log_softmax(dim=1) for rows in self.blocks]
        for logs, rows in zip(self.logs, self.blocks, strict=True):
            if pool.soft is None:
                loss -= float(logs.gather(1, pool.labels[rows, None]).sum())
            else:
                loss -= float((logs * pool.soft[rows]).sum())
        self.loss = loss / self.count + 0.5 * pool.ridge * float(head.weight.square().sum())

    def _zeros(self) -> Tensor:
        return self.pool.z.new_zeros(self.logs[0].size(1), self.pool.z.size(1))

    @cached_property
    @torch.no_grad()
    def gradient(self) -> Tensor:
        """G (C, K), of the cross entropy."""
        total = self._zeros()
        for logs, rows in zip(self.logs, self.blocks, strict=True):
            total.addmm_(self.pool.residuals(logs, rows).t(), self.pool.z[rows])
        return total / self.count

    @cached_property
    @torch.no_grad()
    def curvature(self) -> Tensor:
        """H (C, K), in each weight alone, with a bias that gives way."""
        z, total = self.pool.z[: self.count], self._zeros()
        centre = z.mean(dim=0) if self.pool.has_bias else torch.zeros_like(self.pool.scale)
        for logs, rows in zip(self.logs, self.blocks, strict=True):
            probs = logs.exp()
            total.addmm_((probs * (1 - probs)).t(), (z[rows] - centre).square())
        return total / self.count


@torch.no_grad()
def refit(head: Head, mask: Tensor, pool: Pool, *, passes: float, generator: torch.Generator) -> Head:
    """Train the weights under ``mask`` (C, K), from where they are, with a warm-up and a cosine decay."""
    columns = mask.any(dim=0).nonzero().flatten()
    few = len(columns) <= 0.75 * mask.size(1)  # then only these are read
    allowed = (mask[:, columns] if few else mask).to(head.weight.dtype)
    u, bias = (head.weight[:, columns] if few else head.weight) * allowed, head.bias.clone()
    adam = [_Adam(u), _Adam(bias)]
    largest = min(_LARGEST_RATE, _RATE * float(u.square().sum() / mask.sum()) ** 0.5)
    num_steps = round(passes * max(_LEAST_STEPS, math.ceil(min(_VISITS, len(pool.labels)) / _BATCH)))
    for step, rows in enumerate(pool.batches(num_steps, generator), start=1):
        warm = min(1.0, step / max(1.0, _WARM_UP * num_steps))
        rate = largest * warm * 0.5 * (1 + math.cos(math.pi * step / num_steps))
        block = pool.z[rows].index_select(1, columns) if few else pool.z[rows]
        residuals = pool.residuals(torch.addmm(bias, block, u.t()), rows)
        adam[0].step(torch.addmm(u, residuals.t(), block, beta=pool.ridge, alpha=1 / len(block)), rate)
        u.clamp_(min=0).mul_(allowed)
        if pool.has_bias:
            adam[1].step(residuals.mean(dim=0), rate)
    found = torch.zeros_like(head.weight).index_copy_(1, columns, u) if few else u
    return Head(found, bias - bias.min() if pool.has_bias else bias)


class _Adam:
    """Adam of one tensor, in place."""

    def __init__(self, tensor: Tensor) -> None:
        self.tensor, self.count = tensor, 0
        self.first, self.second = torch.zeros_like(tensor), torch.zeros_like(tensor)

    def step(self, gradient: Tensor, rate: float) -> None:
        """Go against the mean gradient over the root of the mean square."""
        self.count += 1
        self.first.lerp_(gradient, 1 - _BETAS[0])
        self.second.mul_(_BETAS[1]).addcmul_(gradient, gradient, value=1 - _BETAS[1])
        root = math.sqrt(1 - _BETAS[1] ** self.count)
        spread = self.second.sqrt().add_(1e-8 * root)
        self.tensor.addcdiv_(self.first, spread, value=-rate * root / (1 - _BETAS[0] ** self.count))

r"""What a sparse head learns from: features in memory, targets, and the slopes of the loss at a head.

In units of each feature's standard deviation about its mean, :math:`z_{nk} = (\theta_{nk} - \mu_k) / \sigma_k` and
:math:`u_{ck} = \Phi_{kc} \sigma_k`, with a bias to match (without one: in units of its root mean square), the objective is

.. math:: -\frac1N \sum_n \sum_c t_{nc} \ln \mathrm{softmax}(u z_n + b)_c + \frac{\lambda}{2} \|u\|^2,

where t are the labels, or what the head that the path starts from says at its best temperature, and lambda = 30 / N.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property

import torch
import torch.nn.functional as F
from torch import Tensor

from bndl.features import FeatureSet
from bndl.layer import DecisionLayer

__all__ = ["BATCH", "Head", "Pool", "Slopes"]

BATCH = 512
_RIDGE = 30  # lambda times N: a normal prior on each u
_HELD = 2**28  # numbers: features or targets that are kept in memory
_TURNED = 2**26  # numbers: of the features, those that are kept a second time, turned
_CONSTANT = 1e-5  # of a feature's root mean square: what varies by less does not vary
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


@dataclass(frozen=True)
class Pool:
    """What weights learn from, in memory.

    Attributes:
        z: features (N, K) as the head multiplies them, less ``centre``, over ``scale``; in a seeded order.
        labels: (N,).
        soft: targets (N, C) in place of the labels, or None.
        centre: mean (K,) of each feature, 0 without a bias to make up for it.
        scale: root mean square (K,) of each feature about ``centre``.
        has_bias: whether the bias may move.
        kept: batches that were turned, see :meth:`turned`; one store for all pools of the same examples.
    """

    z: Tensor
    labels: Tensor
    soft: Tensor | None
    centre: Tensor
    scale: Tensor
    has_bias: bool
    kept: dict[int, Tensor] = field(default_factory=dict, init=False, repr=False, compare=False)

    @classmethod
    @torch.no_grad()
    def of(
        cls, layer: DecisionLayer, data: list[FeatureSet], *, generator: torch.Generator, like: "Pool | None" = None
    ) -> "Pool":
        """Of several sets, in a seeded order and in the units of ``like``; of very many examples a seeded part."""
        most = _HELD // max(layer.num_features, layer.out_features)
        parts = []
        for one in data:
            order = torch.randperm(len(one), generator=generator, device=generator.device)
            blocks = [one.take(rows).like(layer.weight) for rows in order[:most].split(4096)]
            parts += [(layer.theta(block.features).mean, block.labels) for block in blocks]
        theta, labels = torch.cat([part[0] for part in parts]), torch.cat([part[1] for part in parts])
        order = torch.randperm(len(labels), generator=generator, device=generator.device)
        theta, has_bias = theta[order], layer.bias is not None
        if like is not None:
            centre, scale = like.centre, like.scale
        else:
            size, centre = theta.square().mean(dim=0).sqrt(), theta.mean(dim=0) * has_bias
            scale = (theta - centre).square().mean(dim=0).sqrt()
            scale = torch.where(scale > _CONSTANT * size, scale, torch.where(size > 0, size, 1.0))
        return cls(theta.sub_(centre).div_(scale), labels[order], None, centre, scale, has_bias)

    def inside(self, head: Head) -> Head:
        """The head of ``z`` that says what ``head`` says of the features, up to a number that all classes share."""
        return self._of(head.weight * self.scale, head.bias + head.weight @ self.centre)

    def outside(self, head: Head) -> Head:
        """The head of the features that says what ``head`` says of ``z``, up to a number that all classes share."""
        weight = head.weight / self.scale
        return self._of(weight, head.bias - weight @ self.centre)

    def _of(self, weight: Tensor, bias: Tensor) -> Head:
        return Head(weight, bias - bias.min() if self.has_bias else bias)

    @property
    def ridge(self) -> float:
        """lambda."""
        return _RIDGE / len(self.labels)

    def taught(self, head: Head, scale: Tensor) -> "Pool":
        """The same examples with what a head says of them, its logits times ``scale``, as targets."""
        soft = torch.cat([(head.logits(part) * scale).softmax(dim=1) for part in self.z.split(4096)])
        pool = replace(self, soft=soft)
        object.__setattr__(pool, "kept", self.kept)
        return pool

    def residuals(self, logits: Tensor, rows: slice) -> Tensor:
        """Probabilities minus targets (B, C): the slope of the loss in the logits."""
        probs = logits.softmax(dim=1)
        if self.soft is not None:
            return probs.sub_(self.soft[rows])
        index = self.labels[rows, None]
        return probs.scatter_add_(1, index, probs.new_full(index.size(), -1.0))

    def batches(self, num_steps: int, generator: torch.Generator) -> Iterator[int]:
        """The numbers of ``num_steps`` batches, one after the other from one that is drawn."""
        number = math.ceil(len(self.labels) / BATCH)
        first = int(torch.randint(number, (), generator=generator, device=generator.device))
        yield from (step % number for step in range(first, first + num_steps))

    def rows(self, batch: int) -> slice:
        """Of a batch."""
        return slice(batch * BATCH, min((batch + 1) * BATCH, len(self.labels)))

    def turned(self, batch: int) -> Tensor:
        """A batch's features (K, B), for products that read a feature's numbers at a stretch; kept while there is room."""
        found = self.kept.get(batch)
        if found is None:
            found = self.z[self.rows(batch)].t().contiguous()
            if (1 + len(self.kept)) * found.numel() <= _TURNED:
                self.kept[batch] = found
        return found

    def turned_residuals(self, logits: Tensor, batch: int) -> Tensor:
        """Probabilities minus targets (C, B) of a batch."""
        probs, rows = logits.softmax(dim=0), self.rows(batch)
        if self.soft is not None:
            return probs.sub_(self.soft[rows].t())
        index = self.labels[None, rows]
        return probs.scatter_add_(0, index, probs.new_full(index.size(), -1.0))


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

r"""Fit the weights that are left: projected Adam on cached features, :math:`\Phi \ge 0`, everything outside a mask 0.

In units of each feature's root mean square, :math:`u_{kc} = \Phi_{kc} \sqrt{E[\theta_k^2]}`, it minimises

.. math:: -\frac1N \sum_n \sum_c t_{nc} \ln \mathrm{softmax}(\theta_n \Phi + b)_c + \frac{\lambda}{2} \|u\|^2,

where t are the labels, or what the head that the path starts from says at its best temperature, and lambda = 20 / N.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor

from bndl.features import FeatureSet
from bndl.layer import DecisionLayer

__all__ = ["Head", "Pool", "refit", "slopes"]

_BATCH = 512
_VISITS = 25_000  # examples a pass, at most
_LEAST_STEPS = 25  # a pass
_RATE = 0.02
_RIDGE = 20  # lambda times N: a normal prior on each u
_BETAS = (0.9, 0.99)
_WARM_UP = 0.1
_HELD = 2**28  # numbers: features or targets that are kept in memory
_SAMPLE = 10_000  # examples that slopes are averaged over


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

    def logits(self, theta: Tensor) -> Tensor:
        """(N, K) -> (N, C)."""
        return F.linear(theta, self.weight, self.bias)


@dataclass(frozen=True)
class Pool:
    """What weights learn from, in memory.

    Attributes:
        theta: features (N, K) as the head multiplies them.
        labels: (N,).
        soft: targets (N, C) in place of the labels, or None.
        scale: root mean square (K,) of each feature.
        has_bias: whether the bias may move.
    """

    theta: Tensor
    labels: Tensor
    soft: Tensor | None
    scale: Tensor
    has_bias: bool

    @classmethod
    @torch.no_grad()
    def of(cls, layer: DecisionLayer, data: list[FeatureSet], *, generator: torch.Generator) -> "Pool":
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
        scale = theta.square().mean(dim=0).sqrt()
        return cls(theta, labels[order], None, torch.where(scale > 0, scale, 1.0), layer.bias is not None)

    @property
    def ridge(self) -> float:
        """lambda."""
        return _RIDGE / len(self.labels)

    def taught(self, head: Head, scale: Tensor) -> "Pool":
        """The same examples with what a head says of them, its logits times ``scale``, as targets."""
        return replace(self, soft=torch.cat([(head.logits(t) * scale).softmax(1) for t in self.theta.split(4096)]))

    def residuals(self, logits: Tensor, rows: Tensor | slice) -> Tensor:
        """Probabilities minus targets (B, C): the slope of the loss in the logits."""
        probs = logits.softmax(dim=1)
        if self.soft is not None:
            return probs - self.soft[rows]
        probs[torch.arange(len(probs), device=probs.device), self.labels[rows]] -= 1
        return probs

    def loss(self, head: Head) -> float:
        """The objective of this module's first lines, on a sample."""
        logits = head.logits(self.theta[:_SAMPLE]).log_softmax(dim=1)
        chosen = (
            logits.gather(1, self.labels[:_SAMPLE, None])
            if self.soft is None
            else (logits * self.soft[:_SAMPLE]).sum(1)
        )
        return float(0.5 * self.ridge * (head.weight * self.scale).square().sum() - chosen.mean())

    def batches(self, num_steps: int, generator: torch.Generator) -> Iterator[Tensor]:
        """Rows of ``num_steps`` batches: whole passes in new orders."""
        done = 0
        while done < num_steps:
            order = torch.randperm(len(self.labels), generator=generator, device=generator.device)
            for rows in order.split(_BATCH):
                if done < num_steps:
                    yield rows
                done += 1


@torch.no_grad()
def slopes(head: Head, pool: Pool) -> tuple[Tensor, Tensor]:
    r"""Gradient (C, K) of the loss and its curvature in each weight alone, with a bias that gives way.

    .. math:: G_{ck} = E[(p_c - t_c)\,\theta_k], \qquad
        H_{ck} = E[p_c (1 - p_c) (\theta_k - \bar\theta_k)^2]
    """
    theta, count = pool.theta[:_SAMPLE], min(_SAMPLE, len(pool.theta))
    centre = theta.mean(dim=0) if pool.has_bias else torch.zeros_like(pool.scale)
    gradient, curvature = torch.zeros_like(head.weight), torch.zeros_like(head.weight)
    for start in range(0, count, 2048):
        block, rows = theta[start : start + 2048], slice(start, min(start + 2048, count))
        logits = head.logits(block)
        probs = logits.softmax(dim=1)
        gradient += pool.residuals(logits, rows).t() @ block
        curvature += (probs * (1 - probs)).t() @ (block - centre).square()
    return gradient / count, curvature / count


@torch.no_grad()
def refit(head: Head, mask: Tensor, pool: Pool, *, passes: int, generator: torch.Generator) -> Head:
    """Train the weights under ``mask`` (C, K), from where they are, with a warm-up and a cosine decay."""
    columns = mask.any(dim=0).nonzero().flatten()
    theta = pool.theta if len(columns) > mask.size(1) // 2 else pool.theta[:, columns]
    columns = torch.arange(mask.size(1), device=mask.device) if theta is pool.theta else columns
    scale, allowed = pool.scale[columns], mask[:, columns]
    u, bias = head.weight[:, columns] * scale * allowed, head.bias.clone()
    adam = [_Adam(u), _Adam(bias)]
    num_steps = passes * max(_LEAST_STEPS, math.ceil(min(_VISITS, len(pool.labels)) / _BATCH))
    for step, rows in enumerate(pool.batches(num_steps, generator), start=1):
        warm = min(1.0, step / max(1.0, _WARM_UP * num_steps))
        rate = _RATE * warm * 0.5 * (1 + math.cos(math.pi * step / num_steps))
        block = theta[rows]
        residuals = pool.residuals(F.linear(block, u / scale, bias), rows) / len(rows)
        u -= rate * adam[0].direction((residuals.t() @ block / scale + pool.ridge * u) * allowed)
        u.clamp_(min=0)
        if pool.has_bias:
            bias -= rate * adam[1].direction(residuals.sum(dim=0))
    weight = torch.zeros_like(head.weight)
    weight[:, columns] = u / scale
    return Head(weight, bias - bias.min() if pool.has_bias else bias)


class _Adam:
    """Adam's running means of one tensor."""

    def __init__(self, like: Tensor) -> None:
        self.first, self.second, self.step = torch.zeros_like(like), torch.zeros_like(like), 0

    def direction(self, gradient: Tensor) -> Tensor:
        """Where to go: the mean gradient over the root of the mean square."""
        self.step += 1
        self.first.lerp_(gradient, 1 - _BETAS[0])
        self.second.lerp_(gradient.square(), 1 - _BETAS[1])
        first, second = self.first / (1 - _BETAS[0] ** self.step), self.second / (1 - _BETAS[1] ** self.step)
        return first / (second.sqrt() + 1e-8)

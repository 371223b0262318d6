r"""The walk from dense to sparse: which weights stay.

Softmax ignores what a feature adds to all classes alike, so a non-negative head has many forms of the same predictions, and
they prune very differently: the walk starts from :math:`\mathrm{ReLU}(\Phi - \mathrm{quantile}_c \Phi)`, a feature's weights
above what it gives to most classes. From there weights go in steps, those first whose loss costs least,

.. math:: s_{kc} = \tfrac12 \Phi_{kc}^2\, E[p_c (1 - p_c)(\theta_k - \bar\theta_k)^2],

each step followed by a fit of the rest. At each point of the path some weights are then exchanged for others whose slope
asks most to come back, :math:`G^2 / 2H`, and the exchange is kept if the loss falls. Two walkers go side by side, one fitted
to the labels and one to what the dense head says; what predicts examples best that neither has learnt from is the point,
and both go on from there. The paper's threshold (:func:`sweep`) is a third candidate, down to 2 % of the weights
and where it leaves no class empty.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from bndl.calibrate import best_log_scale
from bndl.sparsify.refit import Head, Pool, refit, slopes

__all__ = ["Goal", "sweep", "walk"]

_STEP = 0.7  # weights that a step leaves, at least
_SHORT, _LONG = 1, 2  # passes after a step, and after the last step to a point
_EXCHANGES = 3  # a point
_EXCHANGED = 0.2  # of the weights, in the first exchange; less after one that failed
_FEW = 4  # weights a class: from here down a good exchange is looked for longer
_HANDFUL = 128  # weights in all: and from here down much longer, with longer fits, as each counts
_HALF = 0.5
_SWEPT = 0.02  # share of the weights down to which the paper's threshold is a candidate
_LEAST = 1e-2  # of a class's last weight, times the feature's root mean square


@dataclass(frozen=True)
class Goal:
    """How many weights to leave: in all, or of each class."""

    count: int
    each: bool = False

    def keep(self, score: Tensor) -> Tensor:
        """A mask (C, K) of the largest scores; each class keeps its best one."""
        if self.each:
            rows = score.topk(min(self.count, score.size(1)), dim=1).indices
            return torch.zeros_like(score, dtype=torch.bool).scatter_(1, rows, True) & (score > -math.inf)
        score = score.scatter(1, score.argmax(dim=1, keepdim=True), math.inf)
        best = score.flatten().topk(min(max(self.count, len(score)), score.numel())).indices
        return torch.zeros_like(score, dtype=torch.bool).flatten().scatter_(0, best, True).view_as(score) & (
            score > -math.inf
        )

    def share(self, num_classes: int, num_features: int) -> float:
        """Of all weights."""
        return self.count / (num_features if self.each else num_classes * num_features)

    def towards(self, share: float, num_classes: int, num_features: int) -> "Goal":
        """A goal on the way here: of a larger share."""
        whole = num_features if self.each else num_classes * num_features
        return Goal(max(self.count, int(share * whole)), self.each)


def walk(
    start: Head, pool: Pool, judge: tuple[Tensor, Tensor], goals: Sequence[Goal], *, generator: torch.Generator
) -> Iterator[Head]:
    """A head for each goal, from many weights to few.

    Args:
        start: the dense head.
        pool: what weights learn from.
        judge: theta (M, K) and labels (M,) that decide between the walkers.
        goals: shares in decreasing order.
        generator: of the order of the examples.
    """
    temperature = best_log_scale(start.logits(judge[0]), judge[1], prior=True).exp()
    pools = (pool, pool.taught(start, temperature))
    now: Head | None = None
    for goal in goals:
        share = goal.share(*start.weight.size())
        source = _shifted(start, share) if now is None or share >= _HALF else now
        found = [_step(source, goal, own, generator=generator) for own in pools]
        swept = sweep(start, pools[1], [goal] if share >= _SWEPT else [], generator=generator)
        found += [head for head in swept if (head.weight > 0).any(dim=1).all()]
        now = min(found, key=lambda head: _judged(head, judge))
        yield now


def sweep(start: Head, pool: Pool, goals: Sequence[Goal], *, generator: torch.Generator) -> Iterator[Head]:
    r"""The paper's way: :math:`\mathrm{ReLU}(\Phi - \alpha)` of the dense head for rising alpha, each followed by a fit."""
    for goal in goals:
        mask = goal.keep(start.weight)
        alpha = start.weight[~mask].max() if not mask.all() else start.weight.new_zeros(())
        head = Head((start.weight - alpha).clamp_min(0) * mask, start.bias)
        yield refit(head, mask & (head.weight > 0), pool, passes=_LONG, generator=generator)


def _judged(head: Head, judge: tuple[Tensor, Tensor]) -> float:
    logits = head.logits(judge[0])
    scale = best_log_scale(logits, judge[1], prior=True).exp()
    return float(F.cross_entropy(logits * scale, judge[1]))


def _shifted(head: Head, share: float) -> Head:
    """The form whose features each speak for at most this share of the classes, and at most half."""
    quantile = torch.quantile(head.weight, min(_HALF, 1 - share), dim=0)
    return Head((head.weight - quantile).clamp_min(0), head.bias)


def _step(head: Head, goal: Goal, pool: Pool, *, generator: torch.Generator) -> Head:
    """Prune and fit in steps down to the goal, then exchange."""
    dims, mask = head.weight.size(), head.weight > 0
    share = float(mask.float().mean())
    while True:
        now = goal.towards(share * _STEP, *dims)
        last = now == goal
        mask = now.keep(torch.where(mask, _cost(head, pool), -math.inf))
        head = _fitted(head, mask, pool, passes=_LONG if last else _SHORT, generator=generator)
        share = now.share(*dims)
        if last:
            break
    return _exchanged(head, mask, goal, pool, generator=generator)


def _cost(head: Head, pool: Pool) -> Tensor:
    curvature = slopes(head, pool)[1]
    return 0.5 * curvature * head.weight.square()


def _exchanged(head: Head, mask: Tensor, goal: Goal, pool: Pool, *, generator: torch.Generator) -> Head:
    """Weights that cost least for those that promise most, as long as the loss falls.

    With fewer examples than weights to choose from, the loss falls by chance: nothing is exchanged then.
    """
    if len(pool.labels) < mask.numel():
        return head
    size, loss, failed = _EXCHANGED, pool.loss(head), torch.zeros_like(mask)
    count = int(mask.sum())
    for _ in range(_EXCHANGES * (6 if count <= _HANDFUL else 2 if count <= _FEW * len(mask) else 1)):
        gradient, curvature = slopes(head, pool)
        cost = torch.where(mask, 0.5 * curvature * head.weight.square(), -math.inf)
        asks = ~mask & (gradient < 0) & (curvature > 0) & ~failed
        gain = torch.where(asks, 0.5 * gradient.square() / curvature.clamp_min(1e-6), -math.inf)
        number = min(max(1, int(size * count)), int(asks.sum()))
        best = gain.flatten().topk(number)
        worth = best.values > cost[mask].sort().values[:number]
        if not worth.any():
            break
        new = torch.zeros_like(mask).flatten().index_fill_(0, best.indices[worth], True).view_as(mask)
        proposed = goal.keep(torch.where(new, math.inf, cost))
        trial = _fitted(head, proposed, pool, passes=_SHORT, generator=generator)
        if (now := pool.loss(trial)) < loss:
            head, mask, loss = trial, proposed, now
        else:
            size, failed = size * 0.3, failed | new if number == 1 else failed
    return head


def _fitted(head: Head, mask: Tensor, pool: Pool, *, passes: int, generator: torch.Generator) -> Head:
    """The weights under the mask, fitted; a class that would lose its last one keeps the largest it had, small."""
    passes *= 4 if int(mask.sum()) <= _HANDFUL and len(pool.labels) >= mask.numel() else 1
    found = refit(head, mask, pool, passes=passes, generator=generator)
    empty = ~(found.weight > 0).any(dim=1) & mask.any(dim=1)
    if not empty.any():
        return found
    best = torch.where(mask, head.weight * pool.scale, -math.inf).argmax(dim=1)[empty]
    weight = found.weight.clone()
    weight[empty.nonzero().flatten(), best] = _LEAST / pool.scale[best]
    return Head(weight, found.bias)

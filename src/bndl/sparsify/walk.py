r"""The walk from dense to sparse: which weights stay.

Softmax ignores what a feature adds to all classes alike, so a non-negative head has many forms of the same predictions, and
they prune very differently: the walk starts from :math:`\mathrm{ReLU}(\Phi - \mathrm{quantile}_c \Phi)`, a feature's weights
above what it gives to most classes. From there weights go in steps, those first whose loss costs least,

.. math:: s_{kc} = \tfrac12 \Phi_{kc}^2\, E[p_c (1 - p_c)(\theta_k - \bar\theta_k)^2],

each step followed by a fit of the rest. Where weights are few, some are then exchanged for others whose slope asks most to
come back, :math:`G^2 / 2H`, and the exchange is kept if the loss falls. Down from two weights a class, or 128 in all, a head
is also grown from nothing, by the same slopes, before the exchange, and the one that decides more examples as they are
labelled stays: where their losses are alike, their decisions are not.

The first point is made twice, with the labels as targets and with what the dense head says. The dense head then teaches the
rest, each point from the one before, unless the labels' head predicts examples clearly better that neither has learnt from.
The paper's threshold is :func:`sweep`.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from bndl.calibrate import best_log_scale
from bndl.sparsify.pool import Head, Pool, Slopes
from bndl.sparsify.refit import refit

__all__ = ["Goal", "sweep", "walk"]

_STEP = 0.7  # weights that a step leaves, at least
_SHORT, _LONG = 1.0, 1.5  # passes after a step or an exchange, and at a point
_SWEEP = 12.0  # passes after the paper's threshold: no step goes before
_FEW = 32  # weights a class: above it nothing is exchanged, steps have half the passes and points twice as many
_EXCHANGES = 3  # a point
_EXCHANGED = 0.2  # of the weights, in the first exchange; less after one that failed
_HANDFUL = 128  # weights in all: from here down twice as many exchanges, longer fits and grown heads, as each counts
_LONGER = 8  # times
_HALF = 0.5
_SINGLE = 2  # weights a class: from here down a head is also grown from nothing
_GROWN = 0.2  # of a weight a class that come at a time
_START = 0.3  # of a new weight, at most
_CLEARLY = 0.99  # times the loss that the dense head's targets lead to: below it the labels teach the rest
_LEAST = 1e-2  # of a class's last weight, times the feature's standard deviation


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


def walk(start: Head, pool: Pool, judge: Pool, goals: Sequence[Goal], *, generator: torch.Generator) -> Iterator[Head]:
    """A head for each goal, from many weights to few.

    Args:
        start: the dense head.
        pool: what weights learn from.
        judge: examples that decide what the points learn from.
        goals: shares in decreasing order.
        generator: of the order of the examples.
    """
    dense = pool.inside(start)
    temperature = best_log_scale(dense.logits(judge.z), judge.labels, prior=True).exp()
    now: Head | None = None
    taught: Pool | None = None  # what the points learn from, once it is known
    for goal in goals:
        share = goal.share(*start.weight.size())
        source = _shifted(dense, share) if now is None or share >= _HALF else now
        if taught is None:
            taught, now = _first(source, goal, (pool, pool.taught(dense, temperature)), judge, generator=generator)
        else:
            now = _point(source, goal, taught, generator=generator)
        yield pool.outside(now)


def _first(
    source: Head, goal: Goal, pools: tuple[Pool, Pool], judge: Pool, *, generator: torch.Generator
) -> tuple[Pool, Head]:
    """The dense head's pool and what it leads to, or the labels' where that is clearly better."""
    labels, taught = (_point(source, goal, own, generator=generator) for own in pools)
    best = 0 if _judged(labels, judge) < _CLEARLY * _judged(taught, judge) else 1
    return pools[best], (labels, taught)[best]


def _point(source: Head, goal: Goal, pool: Pool, *, generator: torch.Generator) -> Head:
    """The weights that a pool's targets choose, fitted to them."""
    head, mask = _step(source, goal, pool, generator=generator)
    return _fitted(head, mask, pool, passes=_LONG * (2 if _many(mask) else 1), generator=generator)


def sweep(start: Head, pool: Pool, goals: Sequence[Goal], *, generator: torch.Generator) -> Iterator[Head]:
    r"""The paper's way: :math:`\mathrm{ReLU}(\Phi - \alpha)` of the dense head for rising alpha, each followed by a fit."""
    for goal in goals:
        mask = goal.keep(start.weight)
        alpha = start.weight[~mask].max() if not mask.all() else start.weight.new_zeros(())
        weight = (start.weight - alpha).clamp_min(0) * mask * pool.scale
        head = Head(weight, pool.inside(start).bias)
        yield pool.outside(refit(head, mask & (weight > 0), pool, passes=_SWEEP, generator=generator))


def _judged(head: Head, judge: Pool) -> float:
    logits = head.logits(judge.z)
    scale = best_log_scale(logits, judge.labels, prior=True).exp()
    return float(F.cross_entropy(logits * scale, judge.labels))


def _shifted(head: Head, share: float) -> Head:
    """The form whose features each speak for at most this share of the classes, and at most half."""
    quantile = torch.quantile(head.weight, min(_HALF, 1 - share), dim=0)
    return Head((head.weight - quantile).clamp_min(0), head.bias)


def _step(head: Head, goal: Goal, pool: Pool, *, generator: torch.Generator) -> tuple[Head, Tensor]:
    """Prune and fit in steps down to the goal, or grow up to it where that decides better, then exchange."""
    dims, mask = head.weight.size(), head.weight > 0
    share = float(mask.float().mean())
    while True:
        now = goal.towards(share * _STEP, *dims)
        last = now == goal
        mask = now.keep(torch.where(mask, _cost(head, Slopes(head, pool)), -math.inf))
        head = _fitted(head, mask, pool, passes=_SHORT * (0.5 if _many(mask) else 1), generator=generator)
        share = now.share(*dims)
        if last:
            break
    if int(mask.sum()) <= max(_HANDFUL, _SINGLE * len(mask)):
        grown = _grown(head.bias, goal, pool, generator=generator)
        if grown is not None and _right(grown, pool) > _right(head, pool):
            head, mask = grown, grown.weight > 0
    return _exchanged(head, mask, goal, pool, generator=generator)


def _grown(bias: Tensor, goal: Goal, pool: Pool, *, generator: torch.Generator) -> Head | None:
    """The goal reached from nothing: weights come a few at a time, the first of every class before any second.

    None where a class asks for no feature.
    """
    num_classes = len(bias)
    head = Head(pool.z.new_zeros(num_classes, pool.z.size(1)), bias)
    mask = torch.zeros_like(head.weight, dtype=torch.bool)
    most = goal.count * (num_classes if goal.each else 1)
    while (left := most - int(mask.sum())) > 0:
        has, at = mask.sum(dim=1), Slopes(head, pool)
        full = has >= (goal.count if has.all() else 1)
        step = -at.gradient / at.curvature.clamp_min(1e-6)
        offers = _gain(at).masked_fill_(mask | full[:, None] | (step <= 0), 0).max(dim=1)
        classes = offers.values.topk(min(max(1, round(_GROWN * num_classes)), left)).indices
        classes = classes[offers.values[classes] > 0]
        if not len(classes):
            break
        places = classes, offers.indices[classes]
        mask[places] = True
        weight = head.weight.index_put(places, step[places].clamp_max(_START))
        head = Head(weight, head.bias)
        head = _with_last(refit(head, mask, pool, passes=_SHORT, generator=generator), head, mask)
    return head if (head.weight > 0).any(dim=1).all() else None


def _right(head: Head, pool: Pool) -> int:
    """How many of the pool's examples a head decides as they are labelled."""
    decided = torch.cat([head.logits(part).argmax(dim=1) for part in pool.z.split(4096)])
    return int((decided == pool.labels).sum())


def _many(mask: Tensor) -> bool:
    return int(mask.sum()) > _FEW * len(mask)


def _cost(head: Head, at: Slopes) -> Tensor:
    return 0.5 * at.curvature * head.weight.square()


def _gain(at: Slopes) -> Tensor:
    return 0.5 * at.gradient.square() / at.curvature.clamp_min(1e-6)


def _exchanged(head: Head, mask: Tensor, goal: Goal, pool: Pool, *, generator: torch.Generator) -> tuple[Head, Tensor]:
    """Weights that cost least for those that promise most, as long as the loss falls."""
    if _many(mask):
        return head, mask
    size, at, failed = _EXCHANGED, Slopes(head, pool), torch.zeros_like(mask)
    count = int(mask.sum())
    for _ in range(_EXCHANGES * (2 if count <= _HANDFUL else 1)):
        cost = torch.where(mask, _cost(head, at), -math.inf)
        asks = ~mask & (at.gradient < 0) & (at.curvature > 0) & ~failed
        gain = torch.where(asks, _gain(at), -math.inf)
        number = min(max(1, int(size * count)), int(asks.sum()))
        best = gain.flatten().topk(number)
        worth = best.values > cost[mask].sort().values[:number]
        if not worth.any():
            break
        new = torch.zeros_like(mask).flatten().index_fill_(0, best.indices[worth], True).view_as(mask)
        proposed = goal.keep(torch.where(new, math.inf, cost))
        trial = _fitted(head, proposed, pool, passes=_SHORT, generator=generator)
        if (there := Slopes(trial, pool)).loss < at.loss:
            head, mask, at = trial, proposed, there
        else:
            size, failed = size * 0.3, failed | new if number == 1 else failed
    return head, mask


def _fitted(head: Head, mask: Tensor, pool: Pool, *, passes: float, generator: torch.Generator) -> Head:
    """The weights under the mask, fitted; a class that would lose its last one keeps the largest it had, small."""
    passes *= _LONGER if int(mask.sum()) <= _HANDFUL else 1
    return _with_last(refit(head, mask, pool, passes=passes, generator=generator), head, mask)


def _with_last(found: Head, before: Head, mask: Tensor) -> Head:
    empty = ~(found.weight > 0).any(dim=1) & mask.any(dim=1)
    if not empty.any():
        return found
    best = torch.where(mask, before.weight, -math.inf).argmax(dim=1)[empty]
    weight = found.weight.clone()
    weight[empty.nonzero().flatten(), best] = _LEAST
    return Head(weight, found.bias)

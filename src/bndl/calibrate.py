r"""Fit how noisy the posterior is, and nothing else, to held-out data by the likelihood of the prediction itself.

The ELBO averages log-probabilities over draws; a user sees the average of probabilities. So the shapes, and one scale s of
all logits, minimise what the user will be judged by,

.. math:: -\frac{1}{N}\sum_j \ln \frac{1}{S} \sum_s \mathrm{softmax}\bigl(s\,(\theta_s \Phi_s + b)\bigr)_{y_j},

which contains temperature scaling as the limit of no noise. The prior has two levels, :math:`\ln k = c + \delta`: a level c
that all shapes of theta share (those of Phi have their own) and a departure of each; c - ln k_0, every :math:`\delta` and
ln s are standard normal, with k_0 = 10, or ten times that, again and again, where so much noise would drown the labels. The
fit starts at k_0. So data with no use for noise turn all of it down together, and a feature that is not to be trusted stands
out. Steps on a few examples and draws leave the scale a few per cent off; at last it is fitted alone to all examples, with
the very draws that :func:`bndl.predict` makes by default. It is then folded into Phi and b: no extra parameter is left
behind, and every decision (which class has the largest mean logit) stays what it was.
"""

import math

import torch
from torch import Tensor, nn

from bndl import draws, weibull
from bndl.features import FeatureSet
from bndl.layer import DecisionLayer

__all__ = ["best_log_scale", "calibrate", "sampled_logits", "scaled_nll"]

_SHAPE = 10.0  # k_0: where the noise starts from, and what its prior is about
_DROWNED = 0.25  # of the nats that the head knows: where noise takes more, the fit starts from a tenth of it
_QUIETEST = 1e5
_STEPS = 200
_ROWS = 512  # examples a step
_DRAWS = 32  # draws a step, fresh each time; fewer, but at least four, for large heads
_WEIGHTS = 2**19  # numbers: sampled weights a step
_BLOCK = 2**22  # numbers: features at a time
_LAST_ROWS = 2**14  # examples that the scale is fitted to at last, at most
_AROUND = 0.1  # how far, in the logarithm, the last fit looks to either side


def calibrate(
    layer: DecisionLayer, data: FeatureSet, *, generator: torch.Generator, num_steps: int | None = None
) -> None:
    """Fit the layer's shapes, afresh, and the scale of its logits to ``data``, in place; in 200 steps by default."""
    num_steps = _STEPS if num_steps is None else num_steps
    log_scale = nn.Parameter(best_log_scale(*_mean_logits(layer, data), prior=True))
    _start(layer, data, log_scale.detach())
    levels = [_Level(raw, layer) for raw in _raw_shapes(layer)]
    maps = [layer.theta_shape_map.weight] if layer.theta_shape_map is not None else []
    groups = [
        {"params": [level.centre for level in levels], "lr": 0.05},
        {"params": [level.departures for level in levels], "lr": 0.1},
        {"params": maps, "lr": 1e-3},
        {"params": [log_scale], "lr": 0.015},
    ]
    optimizer = torch.optim.Adam([group for group in groups if group["params"]])
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, num_steps)
    for _ in range(num_steps):
        rows = torch.randint(len(data), (_ROWS,), generator=generator, device=generator.device)
        batch = (data if len(data) <= _ROWS else data.take(rows)).like(log_scale)
        optimizer.zero_grad()
        prior = 0.5 * (log_scale.square() + _spread_of_map(layer, batch)) / len(data)
        (_predictive_nll(layer, batch, log_scale, generator) + prior).backward()
        for level in levels:
            level.take_gradient(len(data))
        optimizer.step()
        schedule.step()
        for level in levels:
            level.write()
    optimizer.zero_grad()
    rows = torch.randperm(len(data), generator=generator, device=generator.device)[:_LAST_ROWS]
    _fold(layer, _last_log_scale(layer, data, rows, log_scale.detach()).exp())


@torch.no_grad()
def _start(layer: DecisionLayer, data: FeatureSet, log_scale: Tensor) -> None:
    """Shapes of k_0, or as many times ten more as it takes to hear the labels through the noise.

    Where features lie far from zero and differ little, noise in proportion to them says more than they do, and from there
    no slope leads back.
    """
    generator = torch.Generator(log_scale.device).manual_seed(0)
    rows = torch.randperm(len(data), generator=generator, device=generator.device)[:_ROWS]
    batch = data.take(rows).like(log_scale)
    logits, labels = _mean_logits(layer, batch)
    silent = nn.functional.cross_entropy(logits * log_scale.exp(), labels)
    most = silent + _DROWNED * (math.log(layer.out_features) - silent).clamp_min(0.1)
    shape = _SHAPE
    layer.reset_shapes(shape)
    while shape < _QUIETEST and _predictive_nll(layer, batch, log_scale, generator) > most:
        shape *= 10
        layer.reset_shapes(shape)


class _Level:
    """The shapes of one tensor as ``ln k = centre + departures``: a standard normal prior on the departures, and on the
    centre about its start. Gradients come from the layer's own parameter, new values are written to it."""

    def __init__(self, raw: nn.Parameter, layer: DecisionLayer) -> None:
        self.raw, self.least = raw, layer.min_shape
        self.expected = (nn.functional.softplus(raw.detach().flatten()[0]) + layer.min_shape).log()
        self.centre = nn.Parameter(self.expected.clone())
        self.departures = nn.Parameter(torch.zeros_like(raw))

    @torch.no_grad()
    def take_gradient(self, num_data: int) -> None:
        r"""Of the loss by the chain rule, :math:`k = \mathrm{softplus}(raw) + k_{min}`, and of the prior."""
        assert self.raw.grad is not None
        shape = nn.functional.softplus(self.raw) + self.least
        by_log = self.raw.grad * shape / self.raw.sigmoid()
        self.raw.grad = None
        self.centre.grad = by_log.sum() + (self.centre - self.expected) / num_data
        self.departures.grad = by_log + self.departures / num_data

    @torch.no_grad()
    def write(self) -> None:
        """The shapes, as the layer keeps them."""
        above = ((self.centre + self.departures).exp() - self.least).clamp_min(1e-3)
        self.raw.copy_(above + torch.log(-torch.expm1(-above)))


def scaled_nll(layer: DecisionLayer, data: FeatureSet) -> Tensor:
    """Cross entropy (N,) of the mean logits at their best temperature: how good a head is, calibration put aside."""
    logits, labels = _mean_logits(layer, data)
    scale = best_log_scale(logits, labels, prior=True).exp()
    return nn.functional.cross_entropy(logits * scale, labels, reduction="none")


def _raw_shapes(layer: DecisionLayer) -> list[nn.Parameter]:
    """What the shapes of Phi are made of, and those of theta: its own, or the bias of the map that reads them off h."""
    if layer.theta_shape_map is not None:
        return [layer.phi_raw_shape, layer.theta_shape_map.bias]
    assert layer.theta_raw_shape is not None
    return [layer.phi_raw_shape, layer.theta_raw_shape]


@torch.no_grad()
def _mean_logits(layer: DecisionLayer, data: FeatureSet) -> tuple[Tensor, Tensor]:
    """Mean logits (N, C), made by blocks of rows, and labels (N,) on their device."""
    weights, offset = layer.phi().mean.t(), layer.offset()
    blocks = data.features.split(max(1, _BLOCK // layer.num_features))
    logits = torch.cat([layer.theta(block.to(weights)).mean @ weights for block in blocks])
    return (logits if offset is None else logits + offset), data.labels.to(logits.device)


@torch.no_grad()
def best_log_scale(logits: Tensor, labels: Tensor, *, prior: bool = False) -> Tensor:
    """Temperature scaling: ln(1/T), within -5..5, that minimises the cross entropy; by bisection of its derivative.

    Args:
        logits: (N, C).
        labels: (N,).
        prior: add a standard normal prior on ln(1/T). Without it data that are all predicted right ask for T = 0.
    """
    low, high = logits.new_tensor(-5.0), logits.new_tensor(5.0)
    gap = logits - logits.gather(1, labels[:, None])
    for _ in range(30):
        middle = (low + high) / 2
        slope = ((logits * middle.exp()).softmax(dim=1) * gap).sum() * middle.exp() + prior * middle
        low, high = torch.where(slope < 0, middle, low), torch.where(slope < 0, high, middle)
    return (low + high) / 2


def _spread_of_map(layer: DecisionLayer, batch: FeatureSet) -> Tensor | float:
    """Squared departures of shapes that are read off the features, as a mean over examples. Without it a few hundred
    examples buy absurd noise in a few of them."""
    if layer.theta_shape_map is None:
        return 0.0
    by_example = layer.theta(batch.features).shape.log()
    at_bias = (nn.functional.softplus(layer.theta_shape_map.bias) + layer.min_shape).log()
    return (by_example - at_bias).square().mean(dim=0).sum()


def _predictive_nll(layer: DecisionLayer, batch: FeatureSet, log_scale: Tensor, generator: torch.Generator) -> Tensor:
    S = max(4, min(_DRAWS, _WEIGHTS // layer.weight.numel()))
    logits = sampled_logits(layer, batch.features, S, generator=generator) * log_scale.exp()
    chosen = logits.log_softmax(dim=-1).gather(2, batch.labels.expand(S, -1)[..., None])[..., 0]
    loss: Tensor = math.log(S) - chosen.logsumexp(dim=0).mean()
    return loss


@torch.no_grad()
def _last_log_scale(layer: DecisionLayer, data: FeatureSet, rows: Tensor, log_scale: Tensor) -> Tensor:
    """ln s where a parabola through the loss here and a little to either side is least."""
    shared = draws.SharedDraws(layer, draws.default_num_samples(layer), seed=0)
    around = log_scale.double() + _AROUND * torch.arange(-1.0, 2.0, device=log_scale.device, dtype=torch.float64)
    chosen = torch.cat(
        [_log_probs(part, data, rows, around.exp().float()) for part in shared.slices()], dim=2
    )  # (3, N, S)
    loss = math.log(shared.num_samples) - chosen.logsumexp(dim=2).double().mean(dim=1)
    low, here, high = loss + around.square() / (2 * len(rows))
    curvature = low - 2 * here + high
    step = torch.where(curvature > 0, 0.5 * (low - high) / curvature, 0.0).clamp(-1, 1)
    return log_scale + _AROUND * step.to(log_scale)


def _log_probs(drawn: draws.Slice, data: FeatureSet, rows: Tensor, scales: Tensor) -> Tensor:
    """Of the rows' labels, by each scale and draw: (scales, N, S)."""
    found = []
    for part in rows.split(draws.BLOCK):
        batch = data.take(part).like(drawn.layer.weight)
        (block,) = draws.blocks(batch.features)
        logits = drawn.logits(draws.posterior(drawn.layer, block))[: len(part)].float()  # (B, S, C)
        index = batch.labels[:, None, None].expand(-1, logits.size(1), 1)
        found.append(torch.stack([(logits * scale).log_softmax(dim=-1).gather(2, index)[..., 0] for scale in scales]))
    return torch.cat(found, dim=1)


def sampled_logits(layer: DecisionLayer, features: Tensor, num_samples: int, *, generator: torch.Generator) -> Tensor:
    """Logits (S, N, C) of S draws that all rows share; gradients go to the shapes alone.

    Args:
        layer: the decision layer.
        features: (N, in_features).
        num_samples: S.
        generator: of the draws.
    """
    theta, phi, offset, S = layer.theta(features), layer.phi(), layer.offset(), num_samples
    mean, (C, K) = phi.mean.detach(), phi.mean.size()
    log_draws = weibull.log_exponential(S, K, like=mean, generator=generator)
    weights = mean * weibull.noise(weibull.log_exponential(S, C, K, like=mean, generator=generator), phi.shape)
    if layer.theta_shape == "feature":
        weights = weights * weibull.noise(log_draws, theta.shape)[:, None]
        logits = (theta.mean.detach() @ weights.flatten(0, 1).t()).unflatten(1, (S, C)).transpose(0, 1)
    else:
        logits = torch.bmm(theta.mean.detach() * weibull.noise(log_draws[:, None], theta.shape), weights.mT)
    sampled: Tensor = logits if offset is None else logits + offset.detach()
    return sampled


@torch.no_grad()
def _fold(layer: DecisionLayer, scale: Tensor) -> None:
    """Multiply Phi and the bias, so that all logits are scaled; what lies below the threshold stays below it."""
    layer.weight.copy_(layer.alpha_phi + (layer.weight - layer.alpha_phi) * scale)
    if layer.bias is not None:
        layer.bias.mul_(scale)

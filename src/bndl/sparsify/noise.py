r"""The noise of a sparse head: that of the dense one, turned down as a whole, and the scale of its logits.

A logit that many noisy terms make is hardly noisy, one that a few make is: so each point of a path has one factor f of all
Weibull shapes, and one scale s, that minimise the predictive cross entropy

.. math:: -\frac1N \sum_n \ln \frac1S \sum_s \mathrm{softmax}\bigl(s (\theta_s \Phi_s + b)\bigr)_{y_n}
    \quad\text{with shapes } f k.

Two numbers in place of 2 K shapes (:func:`bndl.calibrate.calibrate`): a point takes a fraction of a second.
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn

from bndl.calibrate import best_log_scale, sampled_logits
from bndl.features import FeatureSet
from bndl.layer import DecisionLayer

__all__ = ["tune_noise"]

_DRAWS = 12
_ROWS = 1000  # examples
_QUIETER = 1.5  # from one factor to the next
_MOST = 50.0
_LARGEST = 1e4  # a shape


@torch.no_grad()
def tune_noise(layer: DecisionLayer, data: FeatureSet, *, start: float = 1.0, generator: torch.Generator) -> float:
    """Turn the layer's shapes up by the best factor, scale its logits, in place; the factor.

    Args:
        layer: in ``eval()``, with the shapes of the dense head.
        data: examples that its weights have not learnt from.
        start: the least factor: that of the point before, as sparser heads want less noise.
        generator: of the draws.
    """
    sample = torch.randperm(len(data), generator=generator, device=generator.device)[:_ROWS]  # they come class by class
    data = data.take(sample).like(layer.weight)
    raws = [raw for raw in (layer.phi_raw_shape, layer.theta_raw_shape) if raw is not None]
    given = [raw.clone() for raw in raws]
    centre = float(best_log_scale(layer(data.features), data.labels, prior=True))
    seed = int(torch.randint(2**31, (), generator=generator, device=generator.device))
    factor, best = start, (math.inf, 0.0, start)
    while factor <= _MOST:
        _turn(raws, given, factor, least=layer.min_shape)
        draws = torch.Generator(layer.weight.device).manual_seed(seed)  # the same for every factor
        sampled = sampled_logits(layer, data.features, _DRAWS, generator=draws)
        found = (*_best_scale(sampled, data.labels, centre), factor)
        if found[0] >= best[0]:
            break
        best, factor = found, factor * _QUIETER
    _turn(raws, given, best[2], least=layer.min_shape)
    layer.weight.copy_(layer.alpha_phi + (layer.weight - layer.alpha_phi) * math.exp(best[1]))
    if layer.bias is not None:
        layer.bias.mul_(math.exp(best[1]))
    return best[2]


def _turn(raws: list[nn.Parameter], given: list[Tensor], factor: float, *, least: float) -> None:
    """Shapes (softplus(raw) + least) times a factor."""
    for raw, old in zip(raws, given, strict=True):
        shape = ((nn.functional.softplus(old.double()) + least) * factor).clamp_max(_LARGEST) - least
        raw.copy_(shape + torch.log(-torch.expm1(-shape)))


def _best_scale(sampled: Tensor, labels: Tensor, centre: float) -> tuple[float, float]:
    """The least predictive cross entropy, and ln s there, from a little less than what suits the mean to much more."""
    index = labels.expand(len(sampled), -1)[..., None]

    def loss(log_scale: float) -> float:
        chosen = (sampled * math.exp(log_scale)).log_softmax(dim=-1).gather(2, index)[..., 0]
        prior = 0.5 * log_scale**2 / len(labels)
        return float(prior + math.log(len(sampled)) - chosen.logsumexp(dim=0).mean())

    return _golden(loss, centre - 0.5, centre + 1.5)


def _golden(function: Callable[[float], float], low: float, high: float) -> tuple[float, float]:
    """The least value of a function of one valley, and where, by golden sections."""
    ratio = (math.sqrt(5) - 1) / 2
    left, right = high - ratio * (high - low), low + ratio * (high - low)
    at_left, at_right = function(left), function(right)
    for _ in range(8):
        if at_left < at_right:
            high, right, at_right = right, left, at_left
            left = high - ratio * (high - low)
            at_left = function(left)
        else:
            low, left, at_left = left, right, at_right
            right = low + ratio * (high - low)
            at_right = function(right)
    return min((at_left, left), (at_right, right))

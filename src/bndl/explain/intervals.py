r"""Credible intervals of weights, of terms and of differences, without a random draw.

A weight is a Weibull, so its quantile has a closed form. A term :math:`\theta_k \Phi_{kc}` is a product of two independent
Weibulls; with :math:`\ln E = v` of density :math:`e^{v - e^v}` its distribution function is one integral,

.. math:: P(g_1 g_2 \le e^t) = \int \Bigl(1 - \exp\bigl(-e^{k_2 (t + \ln\Gamma_1 + \ln\Gamma_2 - v / k_1)}\bigr)\Bigr)
          e^{v - e^v}\,dv, \quad \Gamma_i = \Gamma(1 + 1/k_i),

whose integrand is analytic in a strip around the axis when :math:`k_1 \ge k_2`: so the trapezoid rule converges
exponentially, and its root in t is found by bisection. A difference of two weights, times a feature, is taken from
points that fill the unit cube evenly, always the same ones.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from bndl.errors import InputError

__all__ = ["Interval", "difference_interval", "product_interval", "weight_interval"]

_STEP, _FROM, _TO = 0.4, -20.0, 4.0  # of the trapezoid rule, in v; outside lie 2e-9 of the mass
_HALVINGS = 40
_LEAST_INVERSE = 1e-7  # 1/k of a noise that nobody can see
_POINTS = 4096
_ROWS = 256  # entries at a time, each with all points


@dataclass(frozen=True)
class Interval:
    """The central interval of a posterior, both ends with the dims of what it is of."""

    low: Tensor
    high: Tensor


def weight_interval(mean: Tensor, shape: Tensor, *, level: float = 0.9) -> Interval:
    r"""Of a Weibull, in closed form: :math:`Q(q) = m\,(-\ln(1 - q))^{1/k} / \Gamma(1 + 1/k)`.

    Args:
        mean: m >= 0, any dims; an entry at 0 is 0 for certain.
        shape: k > 0, broadcastable to ``mean``.
        level: how much of the posterior lies inside.
    """
    inverse = shape.double().reciprocal()
    ends = [torch.exp(inverse * _log_exponential(q) - torch.lgamma(1 + inverse)) for q in _tails(level)]
    low, high = ((mean * end).to(mean.dtype) for end in ends)
    return Interval(low, high)


def product_interval(mean: Tensor, shape: Tensor, other_shape: Tensor, *, level: float = 0.9) -> Interval:
    """Of a product of two independent Weibulls; see this module's formula.

    Args:
        mean: of the product, the product of their means, any dims.
        shape: of the one, broadcastable to ``mean``.
        other_shape: of the other, likewise.
        level: how much of the posterior lies inside.
    """
    inverses = torch.stack([s.double().reciprocal().expand(mean.size()) for s in (shape, other_shape)])
    inverses = inverses.clamp_min(_LEAST_INVERSE)
    ends = [_product_quantile(inverses.amin(0), inverses.amax(0), q) for q in _tails(level)]
    low, high = ((mean * end).to(mean.dtype) for end in ends)
    return Interval(low, high)


def _product_quantile(sharp: Tensor, wide: Tensor, q: float) -> Tensor:
    """The q-quantile of the product of two unit-mean Weibulls with these 1/k, ``sharp`` <= ``wide``."""
    v = torch.arange(_FROM, _TO + _STEP / 2, _STEP, dtype=torch.float64, device=sharp.device)
    density = torch.exp(v - v.exp())
    density = density / density.sum()  # of the ends that are cut off
    both, shift = sharp + wide, torch.lgamma(1 + sharp) + torch.lgamma(1 + wide)
    # P(both below their p-quantile) = p^2 at sqrt(q), and likewise above: the root lies between
    low, high = (both * _log_exponential(p) for p in (1 - math.sqrt(1 - q), math.sqrt(q)))
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        inside = -torch.expm1(-torch.exp((middle[..., None] - sharp[..., None] * v) / wide[..., None])) @ density
        low, high = torch.where(inside < q, middle, low), torch.where(inside < q, high, middle)
    return torch.exp((low + high) / 2 - shift)


def difference_interval(
    first: Tensor,
    second: Tensor,
    first_shape: Tensor,
    second_shape: Tensor,
    *,
    theta_shape: Tensor | None = None,
    level: float = 0.9,
) -> Interval:
    """Of ``first - second``, two independent Weibulls, times a third one of mean 1 if there is a ``theta_shape``.

    Args:
        first: mean of the one (already times theta's), any dims.
        second: mean of the other, the same dims.
        first_shape: broadcastable to ``first``.
        second_shape: likewise.
        theta_shape: of what multiplies both, likewise.
        level: how much of the posterior lies inside.
    """
    given = [first_shape, second_shape, *([] if theta_shape is None else [theta_shape])]
    shapes = [shape.expand(first.size()).flatten() for shape in given]
    means = [first.flatten().double(), second.flatten().double()]
    points = _even_points(_POINTS, device=first.device)
    tails = torch.tensor(_tails(level), dtype=torch.float64, device=first.device)
    ends = [first.new_empty(2, 0, dtype=torch.float64)]
    for start in range(0, first.numel(), _ROWS):
        part = slice(start, start + _ROWS)
        noise = [_noise(own, shape[part]) for own, shape in zip(points, shapes, strict=False)]
        values = means[0][part, None] * noise[0] - means[1][part, None] * noise[1]
        values = values * noise[2] if len(noise) == 3 else values
        ends.append(torch.quantile(values, tails, dim=1))
    low, high = (end.view(first.size()).to(first.dtype) for end in torch.cat(ends, dim=1))
    return Interval(low, high)


def _noise(points: Tensor, shape: Tensor) -> Tensor:
    """Unit-mean Weibull quantiles (M, S) of shapes (M,) at points (S,) in (0, 1)."""
    inverse = shape.double().reciprocal()[:, None]
    return torch.exp(inverse * torch.log(-torch.log1p(-points)) - torch.lgamma(1 + inverse))


def _even_points(count: int, *, device: torch.device) -> Tensor:
    """(3, count) points that fill the unit cube evenly, always the same ones: a scrambled Sobol sequence."""
    points = torch.quasirandom.SobolEngine(3, scramble=True, seed=0).draw(count, dtype=torch.float64)
    return points.t().clamp(1e-12, 1 - 1e-12).to(device)


def _tails(level: float) -> tuple[float, float]:
    if not 0 < level < 1:
        raise InputError(f"an interval's level is a share strictly between 0 and 1, such as 0.9, got {level}.")
    return (1 - level) / 2, (1 + level) / 2


def _log_exponential(q: float) -> float:
    """ln of the q-quantile of a standard exponential."""
    return math.log(-math.log1p(-q))

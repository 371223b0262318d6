r"""The mean-parametrised Weibull distribution: sampling, variance and KL to a gamma, as pure functions.

Throughout, ``mean`` is :math:`m \ge 0` and ``shape`` is the Weibull :math:`k > 0` (``inf`` is allowed and means "no noise"):

.. math:: \theta = m\,g, \quad g = E^{1/k} / \Gamma(1 + 1/k), \quad E \sim \mathrm{Exponential}(1), \quad \mathbb{E}[g] = 1

The scale :math:`\lambda = m / \Gamma(1 + 1/k)` never appears as a parameter, so a mean of 0 gives exactly 0 whatever the
shape. Half precision is computed, and returned, in float32.
"""

import torch
from torch import Tensor
from torch.distributions import Gamma, Weibull
from torch.distributions.kl import register_kl

from bndl.portable import expm1, log1p_of_small, log_gamma_1p

__all__ = ["cv2", "kl_to_gamma", "log_exponential", "noise", "noise_", "sample", "variance"]

EULER_GAMMA = 0.57721566490153286061
_SERIES_BELOW = 0.25  # in 1/k: below it the two lgammas of cv2 cancel in float32, above it they do not
# (zeta(n) - 1) for n = 2, 3, ...: the series of lgamma(1 + x) + log(1 + x) about 0, which converges for |x| < 2
_ZETA_MINUS_ONE = (
    0.6449340668482264, 0.2020569031595943, 0.0823232337111382, 0.0369277551433699, 0.0173430619844491,
    0.0083492773819228, 0.0040773561979443, 0.0020083928260822, 0.0009945751278181, 0.0004941886041195,
    0.0002460865533080, 0.0001227133475785, 0.0000612481350587, 0.0000305882363070, 0.0000152822594086,
)  # fmt: skip


def at_least_float32(tensor: Tensor) -> Tensor:
    """Half precision -> float32: gamma functions and sums over K are not for bfloat16."""
    return tensor.float() if tensor.dtype in (torch.float16, torch.bfloat16) else tensor


def log_exponential(*dims: int, like: Tensor, generator: torch.Generator | None = None) -> Tensor:
    """Logarithms of standard exponential draws, of the given dims, on the device and in the dtype of ``like``."""
    like = at_least_float32(like)
    draws = torch.rand(dims, device=like.device, dtype=like.dtype, generator=generator)
    draws.neg_().log1p_().neg_()  # four times as fast as exponential_
    return draws.clamp_min_(torch.finfo(draws.dtype).tiny).log_()  # log(0) would make 0 * log(E) at k = inf a nan


def noise(log_draws: Tensor, shape: Tensor) -> Tensor:
    r"""The unit-mean factor :math:`g = E^{1/k} / \Gamma(1 + 1/k)`, in log space.

    Args:
        log_draws: log E, any dims, see :func:`log_exponential`.
        shape: k > 0, broadcastable with it.
    """
    inverse = at_least_float32(shape).reciprocal()
    return torch.exp(inverse * log_draws - log_gamma_1p(inverse))


def noise_(log_draws: Tensor, shape: Tensor) -> Tensor:
    """:func:`noise`, written over ``log_draws``: for large draws that need no gradient."""
    inverse = at_least_float32(shape).reciprocal()
    return log_draws.mul_(inverse).sub_(torch.lgamma(1 + inverse)).exp_()


def sample(mean: Tensor, shape: Tensor, *, generator: torch.Generator | None = None) -> Tensor:
    r"""One draw :math:`\theta = m\,g` for each entry of ``mean``, differentiable in both arguments.

    Args:
        mean: m >= 0, any dims. Entries at 0 stay exactly 0.
        shape: k > 0, broadcastable to ``mean``.
        generator: source of the noise; the global one of torch when left out.
    """
    return mean * noise(log_exponential(*mean.size(), like=mean, generator=generator), shape)


def cv2(shape: Tensor) -> Tensor:
    r"""The squared coefficient of variation, exact to float32 for any shape from 0.1 to infinity.

    .. math:: \mathrm{cv}^2(k) = \Gamma(1 + 2/k) / \Gamma(1 + 1/k)^2 - 1

    For large k the two gamma functions cancel, so there the logarithm of the ratio comes from its series in x = 1/k,
    :math:`\ln(1 + x^2/(1+2x)) + \sum_{n \ge 2} (-1)^n (\zeta(n) - 1)(2^n - 2)\,x^n / n`, which has nothing to cancel.
    """
    inverse = at_least_float32(shape).reciprocal()
    small = inverse.clamp_max(_SERIES_BELOW)
    series = torch.zeros_like(small)
    for n in range(len(_ZETA_MINUS_ONE) + 1, 1, -1):
        series = series * small + (-1) ** n * _ZETA_MINUS_ONE[n - 2] * (2**n - 2) / n
    near = log1p_of_small(small * small / (1 + 2 * small)) + series * small * small
    far = log_gamma_1p(2 * inverse) - 2 * log_gamma_1p(inverse)
    return expm1(torch.where(inverse < _SERIES_BELOW, near, far))


def variance(mean: Tensor, shape: Tensor) -> Tensor:
    r""":math:`\mathrm{Var}[\theta] = m^2\,\mathrm{cv}^2(k)`, with the dims of ``mean``."""
    mean = at_least_float32(mean)
    return mean * mean * cv2(shape)


def kl_to_gamma(
    mean: Tensor, shape: Tensor, *, prior_shape: float | Tensor = 1.0, prior_rate: float | Tensor = 1.0
) -> Tensor:
    r"""KL(Weibull || Gamma), elementwise, for active entries (mean > 0).

    .. math:: \frac{\gamma a}{k} - a \ln\lambda + \ln k + b m - \gamma - 1 - a \ln b + \ln\Gamma(a),
              \quad \lambda = m / \Gamma(1 + 1/k)

    Args:
        mean: posterior mean m, any dims. Entries at 0 are inactive and contribute 0 here; their cost is the gate's
            (see :mod:`bndl.objective`).
        shape: Weibull shape k > 0, broadcastable to ``mean``.
        prior_shape: a of the gamma prior.
        prior_rate: b of the gamma prior.
    Returns:
        A tensor like ``mean``. Not reduced: the caller knows whether to divide by N.
    """
    mean, shape = at_least_float32(mean), at_least_float32(shape)
    active = mean > 0
    safe = torch.where(active, mean, torch.ones_like(mean))  # keeps log(0) out of the gradient as well
    a = torch.as_tensor(prior_shape, dtype=mean.dtype, device=mean.device)
    b = torch.as_tensor(prior_rate, dtype=mean.dtype, device=mean.device)
    log_scale = safe.log() - torch.lgamma(1 + shape.reciprocal())
    from_shape = EULER_GAMMA * a / shape + shape.log() - EULER_GAMMA - 1 - a * b.log() + torch.lgamma(a)
    return torch.where(active, from_shape - a * log_scale + b * safe, torch.zeros_like(safe))


@register_kl(Weibull, Gamma)  # type: ignore[untyped-decorator]
def _kl_weibull_gamma(p: Weibull, q: Gamma) -> Tensor:
    """Lets ``torch.distributions.kl_divergence(Weibull, Gamma)`` find the closed form."""
    return kl_to_gamma(p.mean, p.concentration, prior_shape=q.concentration, prior_rate=q.rate)

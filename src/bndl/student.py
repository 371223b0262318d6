"""The two-sided tail of Student's t, exact in both tails and with torch alone."""

import math

import torch
from torch import Tensor

from bndl.portable import widened

__all__ = ["two_sided_p"]


def two_sided_p(t: Tensor, *, df: int) -> Tensor:
    r"""P(|T| >= |t|) for T with ``df`` degrees of freedom, in float64 (:func:`~bndl.portable.widened`), elementwise.

    .. math:: p = I_x(\nu/2, 1/2), \quad x = \frac{\nu}{\nu + t^2}

    by the continued fraction of the incomplete beta function from whichever end is near, so a p of 1e-30 is as exact as
    one of 0.05. ``t = inf`` gives 0, ``t = 0`` gives 1, nan stays nan.
    """
    t2 = widened(t).square()
    x = df / (df + t2)
    switch = (df / 2 + 1) / (df / 2 + 2.5)  # each fraction converges fast on its own side of this
    near = _incomplete_beta(x.clamp(max=switch), a=df / 2, b=0.5)
    far = 1 - _incomplete_beta((t2 / (df + t2)).clamp(max=1 - switch), a=0.5, b=df / 2)
    return torch.where(torch.isnan(t2), t2, torch.where(x <= switch, near, far))


def _incomplete_beta(x: Tensor, *, a: float, b: float) -> Tensor:
    """Regularised I_x(a, b): x^a (1-x)^b / (a B(a, b)) over the continued fraction 1 + d1 / (1 + d2 / (1 + ...))."""
    log_beta = math.lgamma(a) + math.lgamma(b) - math.lgamma(a + b)
    fraction = torch.ones_like(x)
    for m in range(12 + math.isqrt(int(max(a, b))), -1, -1):
        odd = -(a + m) * (a + b + m) / ((a + 2 * m) * (a + 2 * m + 1))
        even = (m + 1) * (b - m - 1) / ((a + 2 * m + 1) * (a + 2 * m + 2))
        fraction = 1 + odd * x / (1 + even * x / fraction)
    return torch.exp(a * x.log() + b * torch.log1p(-x) - log_beta) / (a * fraction)

"""The two-sided tail of Student's t, exact in both tails and with torch alone."""

import math
from collections.abc import Iterable

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
    both = torch.stack([x.clamp(max=switch), (t2 / (df + t2)).clamp(max=1 - switch)])
    near, rest = _incomplete_beta(both, a=[df / 2, 0.5], b=[0.5, df / 2])
    return torch.where(torch.isnan(t2), t2, torch.where(x <= switch, near, 1 - rest))


def _incomplete_beta(x: Tensor, *, a: list[float], b: list[float]) -> Tensor:
    """Regularised I_x(a, b): x^a (1-x)^b / (a B(a, b)) over the continued fraction 1 + d1 / (1 + d2 / (1 + ...)).

    Each row of x has its own a and b, so that both ends of the distribution are one computation.
    """

    def of_rows(values: Iterable[float]) -> Tensor:
        return torch.tensor(list(values), dtype=x.dtype, device=x.device).view(-1, *[1] * (x.dim() - 1))

    pairs = list(zip(a, b, strict=True))
    fraction = torch.ones_like(x)
    for m in range(12 + math.isqrt(int(max(*a, *b))), -1, -1):
        odd = of_rows(-(p + m) * (p + q + m) / ((p + 2 * m) * (p + 2 * m + 1)) for p, q in pairs)
        even = of_rows((m + 1) * (q - m - 1) / ((p + 2 * m + 1) * (p + 2 * m + 2)) for p, q in pairs)
        fraction = 1 + odd * x / (1 + even * x / fraction)
    log_beta = of_rows(math.lgamma(p) + math.lgamma(q) - math.lgamma(p + q) for p, q in pairs)
    first, second = of_rows(a), of_rows(b)
    return torch.exp(first * x.log() + second * torch.log1p(-x) - log_beta) / (first * fraction)

"""Special functions that graph formats such as ONNX lack, from those they have; outside an exported graph, torch's own."""

import math

import torch
from torch import Tensor

__all__ = ["erfc", "expm1", "log1p_of_small", "log_gamma_1p", "widened"]

_SHIFT = 7  # Stirling's series is taken at 1 + x + 7, where three terms of it are exact to float32
# ln(erfcx(x) / t), t = 1 / (1 + x / 2), as a polynomial in 2 t - 1: a least-squares fit on all x >= 0, within 1e-7
_ERFC = (
    -0.6717940761, 0.6726422179, 0.04734310938, -0.04687490055, -0.009873787307,
    0.008703864001, 0.00177659928, -0.002048813947, -0.0002079289176, 0.0003337754874,
)  # fmt: skip


def widened(x: Tensor) -> Tensor:
    """In float64, where tails are finer; as it is in an exported graph, as not every device has float64."""
    return x if torch.compiler.is_exporting() else x.double()


def log_gamma_1p(x: Tensor) -> Tensor:
    r""":math:`\ln\Gamma(1 + x)` for x >= 0; in an exported graph

    .. math:: \bigl(z - \tfrac12\bigr) \ln z - z + \tfrac12 \ln 2\pi + \frac{1}{12 z} - \frac{1}{360 z^3}
        - \sum_{i=1}^{7} \ln(x + i), \quad z = x + 8

    to about 3e-6.
    """
    if not torch.compiler.is_exporting():
        return torch.lgamma(1 + x)
    z, product = x + (_SHIFT + 1), x + 1
    for i in range(2, _SHIFT + 1):
        product = product * (x + i)
    inverse = 1 / z
    series = inverse * (1 / 12 - inverse * inverse / 360)
    return (z - 0.5) * z.log() - z + 0.5 * math.log(2 * math.pi) + series - product.log()


def erfc(x: Tensor) -> Tensor:
    """The complementary error function for x >= 0; in an exported graph to a few millionths of its value."""
    if not torch.compiler.is_exporting():
        found: Tensor = torch.special.erfc(x)
        return found
    t = 1 / (1 + x / 2)
    power = torch.zeros_like(t)
    for coefficient in reversed(_ERFC):
        power = power * (2 * t - 1) + coefficient
    return t * torch.exp(power - x * x)


def expm1(x: Tensor) -> Tensor:
    """exp(x) - 1, also where x is tiny; in an exported graph tanh(x / 2) (exp(x) + 1)."""
    return torch.tanh(x / 2) * (x.exp() + 1) if torch.compiler.is_exporting() else torch.expm1(x)


def log1p_of_small(x: Tensor) -> Tensor:
    """ln(1 + x) for 0 <= x <= 1/4; in an exported graph 2 artanh(z), z = x / (2 + x), by its series."""
    if not torch.compiler.is_exporting():
        return torch.log1p(x)
    z = x / (2 + x)
    z2 = z * z
    return 2 * z * (1 + z2 * (1 / 3 + z2 * (1 / 5 + z2 / 7)))

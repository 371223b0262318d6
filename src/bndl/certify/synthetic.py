"""Planted problems with a known answer, controls that must be refused, and ways to observe and to disguise them."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor

from bndl.errors import InputError

__all__ = ["CHANNELS", "CONTROLS", "Problem", "counts_zeros", "disguised", "observe", "planted"]

CHANNELS = ("exact", "noisy", "probabilities", "labels")
LEAKAGE = 1e-3


@dataclass(frozen=True)
class Problem:
    """Two factors that are known: theta (N, K) and phi (K, C), in float64."""

    name: str
    theta: Tensor
    phi: Tensor

    @property
    def logits(self) -> Tensor:
        """The matrix (N, C) that is to be explained."""
        return self.theta @ self.phi


def planted(
    *,
    num_samples: int = 300,
    num_features: int = 6,
    num_classes: int = 15,
    density: float = 0.6,
    anchored: bool = True,
    seed: int = 0,
) -> Problem:
    """A problem where some features have a window, some a spanning zero region, some both, and some neither.

    Args:
        num_samples: N.
        num_features: K.
        num_classes: C, more than K.
        density: share of entries that are not zero, windows apart.
        anchored: whether the last class is one that no feature speaks for: then softmax hides nothing.
        seed: of everything.
    """
    K, C = num_features, num_classes
    if not 2 <= K < C - anchored or num_samples < 4 * K:
        raise InputError(f"planting needs 2 <= K < C and N >= 4 K, got K = {K}, C = {C} and N = {num_samples}.")
    generator = torch.Generator().manual_seed(seed)
    theta = _mixed(num_samples, K, density=density, generator=generator)
    phi = _mixed(C, K, density=density, generator=generator).T.contiguous()
    if anchored:
        phi[:, -1] = 0
    chosen = torch.randperm(K, generator=generator)
    inner, outer = chosen[-1], chosen[0]  # the last one, which has no window, is on only where the first one is
    theta[:, inner] *= theta[:, outer] > 0
    for place, feature in enumerate(chosen[: (K + 1) // 2].tolist()):
        phi[:, place] = F.one_hot(torch.tensor(feature), K) * phi[:, place].max()
    alone = torch.randperm(K, generator=generator)
    for place, feature in enumerate(alone[alone != inner][: K // 2].tolist()):
        theta[place] = F.one_hot(torch.tensor(feature), K) * theta[place].max()
    return Problem("planted", theta, phi)


def _mixed(count: int, size: int, *, density: float, generator: torch.Generator) -> Tensor:
    """Rows (count, size) with entries from 0.2 to 1, of which at least two are on and, for size > 2, one is off."""
    values = 0.2 + 0.8 * torch.rand(count, size, dtype=torch.float64, generator=generator)
    keys = torch.rand(count, size, generator=generator)
    place = keys.argsort(dim=1).argsort(dim=1)
    on = ((keys < density) | (place < 2)) & ((place < size - 1) | (size <= 2))
    return values * on


# --------------------------------------------------------------------------------------------------- must be refused


def _no_windows(seed: int) -> Problem:
    """Every class and every sample mixes at least two features."""
    generator = torch.Generator().manual_seed(seed)
    theta = _mixed(300, 6, density=0.5, generator=generator)
    return Problem("no windows", theta, _mixed(15, 6, density=0.5, generator=generator).T.contiguous())


def _all_windows(seed: int, *, num_features: int = 6, num_classes: int = 15) -> tuple[Tensor, Tensor]:
    """Windows for every feature, up to half of the classes, and spanning zero regions: everything would be certified."""
    generator = torch.Generator().manual_seed(seed)
    theta = _mixed(300, num_features, density=0.5, generator=generator)
    phi = _mixed(num_classes, num_features, density=0.5, generator=generator).T.contiguous()
    alone, size = torch.eye(num_features, dtype=torch.float64), min(num_features, num_classes // 2)
    phi[:, :size], theta[:num_features] = alone[:, :size], alone
    return theta, phi


def _more_features_than_classes(seed: int) -> Problem:
    """Windows and zeros in plenty, but K = 12 > C = 8."""
    theta, phi = _all_windows(seed, num_features=12, num_classes=8)
    phi[:, -1] += 0.1
    return Problem("K > C", theta, phi)


def _signed(seed: int) -> Problem:
    """All windows, and one weight in five negative."""
    theta, phi = _all_windows(seed)
    generator = torch.Generator().manual_seed(seed)
    sign = 1 - 2.0 * (torch.rand(phi.size(), generator=generator) < 0.2)
    sign[0, 0] = -1
    return Problem("signed weights", theta, phi * sign)


def _leaking_windows(seed: int) -> Problem:
    """Every window, of a class or a sample, holds a thousandth of a partner, and every other feature is strong."""
    theta, phi = _all_windows(seed)
    K = len(phi)
    phi[:, K:] = 0.2 + 0.8 * torch.rand(K, phi.size(1) - K, generator=torch.Generator().manual_seed(seed))
    leak = LEAKAGE * torch.eye(K, dtype=torch.float64)[torch.arange(K) ^ 1]  # partners are 0 and 1, 2 and 3, ...
    phi[:, :K] += leak
    theta[:K] += leak
    theta[K:, 1::2] *= 300
    return Problem("leaking windows", theta, phi)


def _leaking_zeros(seed: int) -> Problem:
    """Every window is there, but no feature is ever quite off: a thousandth is left."""
    theta, phi = _all_windows(seed)
    theta = torch.where(theta == 0, LEAKAGE, theta)
    return Problem("leaking zeros", theta, phi)


def _deficient_zeros(seed: int) -> Problem:
    """Every class window is there and zeros are many, but features are on and off in pairs: zero regions lack rank."""
    theta, phi = _all_windows(seed)
    generator = torch.Generator().manual_seed(seed)
    theta[:, ::2] = _mixed(300, 3, density=0.4, generator=generator)
    theta[:, 1::2] = theta[:, ::2] * (0.05 + 0.95 * torch.rand(300, 3, dtype=torch.float64, generator=generator))
    return Problem("deficient zeros", theta, phi)


CONTROLS: dict[str, Callable[[int], Problem]] = {
    "no windows": _no_windows,
    "K > C": _more_features_than_classes,
    "signed weights": _signed,
    "leaking windows": _leaking_windows,
    "leaking zeros": _leaking_zeros,
    "deficient zeros": _deficient_zeros,
}


def counts_zeros(problem: Problem, *, tolerance: float = 1e-2) -> int:
    """How many features the rule "a window and at least r - 1 zeros" would pass, which is what the paper prints.

    Args:
        problem: any.
        tolerance: entries up to this are zero; a rule without a rank test is used with a loose one.
    """
    windows = (problem.phi > tolerance).sum(dim=0) == 1
    alone = (problem.phi > tolerance)[:, windows].any(dim=1)
    enough = (problem.theta <= tolerance).sum(dim=0) >= problem.theta.size(1) - 1
    return int((alone & enough).sum())


# ------------------------------------------------------------------------------------------- observed, and in disguise


def observe(problem: Problem, channel: str, *, noise: float = 0.01, draws: int = 10_000, seed: int = 0) -> Tensor:
    """The logits (N, C) as someone sees them who does not know the factors.

    Args:
        problem: what is behind it.
        channel: ``"exact"``: as they are; ``"noisy"``: with Gaussian noise, cut at 0; ``"probabilities"``: read off
            softmax, so each sample up to a constant, the least taken as 0; ``"labels"``: read off counts of labels.
        noise: its standard deviation, as a share of the root mean square of the logits.
        draws: labels a sample.
        seed: of noise and labels.
    """
    generator, logits = torch.Generator().manual_seed(seed), problem.logits
    if channel == "exact":
        return logits
    if channel == "noisy":
        size = noise * logits.square().mean().sqrt()
        return (logits + size * torch.randn(logits.size(), dtype=logits.dtype, generator=generator)).clamp_min(0)
    if channel not in CHANNELS:
        raise InputError(f"a channel is one of {', '.join(CHANNELS)}, got {channel!r}.")
    seen = logits.softmax(dim=1)
    if channel == "labels":
        labels = torch.multinomial(seen, draws, replacement=True, generator=generator)
        seen = torch.zeros_like(seen).scatter_add_(1, labels, torch.ones_like(labels, dtype=seen.dtype)) + 0.5
    seen = seen.log()
    return seen - seen.amin(dim=1, keepdim=True)


def disguised(problem: Problem, *, rounds: int = 20, seed: int = 0) -> Problem:
    r"""Another exact non-negative factorisation of the same logits, as different as simple moves make it.

    A move takes from one feature what another one can explain: for a pair k, l either
    :math:`\theta_k - t \theta_l, \Phi_l + t \Phi_k` or :math:`\theta_k + t \theta_l, \Phi_l - t \Phi_k`,
    with a random share of the largest t that keeps everything non-negative. A column that is certified cannot move.
    """
    if bool((problem.theta < 0).any()) or bool((problem.phi < 0).any()):
        raise InputError("only a non-negative factorisation has a non-negative disguise.")
    generator = torch.Generator().manual_seed(seed)
    theta, phi = problem.theta.clone(), problem.phi.clone()
    for _ in range(rounds):
        for k, other in torch.cartesian_prod(*[torch.randperm(len(phi), generator=generator)] * 2).tolist():
            if k == other:
                continue
            share, coin = torch.rand(2, generator=generator).tolist()
            if coin < 0.5:
                t = share * _largest(theta[:, k], theta[:, other])
                theta[:, k], phi[other] = (theta[:, k] - t * theta[:, other]).clamp_min(0), phi[other] + t * phi[k]
            else:
                t = share * _largest(phi[other], phi[k])
                theta[:, k], phi[other] = theta[:, k] + t * theta[:, other], (phi[other] - t * phi[k]).clamp_min(0)
    return replace(problem, theta=theta, phi=phi)


def _largest(own: Tensor, other: Tensor) -> float:
    """The largest t with own - t other >= 0."""
    on = other > 0
    return float((own[on] / other[on]).min()) if on.any() else 0.0

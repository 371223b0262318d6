r"""Diffusion of labels towards a classifier's probabilities, and back: what CARD is made of.

With :math:`\bar\alpha_t = \prod_{s \le t} (1 - \beta_s)` and the guide f = softmax(head(x)), a label y_0 is at step t = 1..T

.. math:: y_t = \sqrt{\bar\alpha_t}\,y_0 + (1 - \sqrt{\bar\alpha_t})\,f + \sqrt{1 - \bar\alpha_t}\,\epsilon, \qquad
    y_T \sim \mathcal{N}(f, I)
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bndl.errors import InputError

__all__ = ["Denoiser", "NoiseNetwork", "Reverse", "Schedule", "sample"]

Denoiser: TypeAlias = Callable[[Tensor, int], Tensor]  # y_t (S, B, C) and t -> the noise in it (S, B, C)


@dataclass(frozen=True)
class Reverse:
    r"""One step back, :math:`q(y_{t-1} | y_t, y_0, f) = \mathcal{N}(\gamma_0 y_0 + \gamma_1 y_t + \gamma_2 f, \sigma^2)`.

    Attributes:
        label: gamma_0.
        noisy: gamma_1.
        guide: gamma_2.
        variance: sigma squared.
    """

    label: float
    noisy: float
    guide: float
    variance: float


@dataclass(frozen=True)
class Schedule:
    """How much noise each step adds.

    Attributes:
        betas: (T,) float64, of steps 1 to T.
        signal: (T + 1,) float64, the square root of alpha-bar; 1 at step 0, where nothing has happened.
    """

    betas: Tensor
    signal: Tensor

    @classmethod
    def linear(cls, num_steps: int) -> "Schedule":
        """Betas from 1e-4 to .02 at the authors' 1,000 steps; fewer steps are so much larger, to end in the same noise."""
        if num_steps < 25:
            raise InputError(f"the linear schedule needs at least 25 steps to end in noise, got {num_steps}.")
        betas = torch.linspace(0.1, 20.0, num_steps, dtype=torch.float64) / num_steps
        kept = torch.cat([betas.new_ones(1), (1 - betas).cumprod(0)])
        return cls(betas, kept.sqrt())

    @property
    def num_steps(self) -> int:
        """T."""
        return len(self.betas)

    def diffuse(self, label: Tensor, guide: Tensor, step: Tensor, noise: Tensor) -> Tensor:
        """y_t (B, C) of one-hot labels (B, C), the guide (B, C), steps (B,) in 0..T and standard normal noise (B, C)."""
        signal = self.signal[step].to(label)[:, None]
        return signal * label + (1 - signal) * guide + (1 - signal.square()).sqrt() * noise

    def recover(self, noisy: Tensor, guide: Tensor, step: int, noise: Tensor) -> Tensor:
        """The label y_0 that :meth:`diffuse` turned into ``noisy`` with this noise; all (..., C)."""
        signal = float(self.signal[step])
        return (noisy - (1 - signal) * guide - math.sqrt(1 - signal**2) * noise) / signal

    def reverse(self, step: int) -> Reverse:
        r"""The posterior of y_{t-1}: the product of two Gaussians, y_t given y_{t-1} and y_{t-1} given y_0.

        .. math:: \gamma_0 = \frac{\beta_t \sqrt{\bar\alpha_{t-1}}}{1 - \bar\alpha_t}, \quad
            \gamma_1 = \frac{(1 - \bar\alpha_{t-1}) \sqrt{\alpha_t}}{1 - \bar\alpha_t}, \quad
            \gamma_2 = 1 + \frac{(\sqrt{\bar\alpha_t} - 1)(\sqrt{\alpha_t} + \sqrt{\bar\alpha_{t-1}})}{1 - \bar\alpha_t},
            \quad \sigma^2 = \frac{1 - \bar\alpha_{t-1}}{1 - \bar\alpha_t} \beta_t
        """
        beta, before, after = float(self.betas[step - 1]), float(self.signal[step - 1]), float(self.signal[step])
        decay, rest = math.sqrt(1 - beta), 1 - after**2
        return Reverse(
            label=beta * before / rest,
            noisy=(1 - before**2) * decay / rest,
            guide=1 + (after - 1) * (decay + before) / rest,
            variance=(1 - before**2) / rest * beta,
        )


def sample(schedule: Schedule, guide: Tensor, noise: Tensor, denoiser: Denoiser) -> Tensor:
    """Labels y_0 (S, B, C), one reverse walk from y_T each.

    Args:
        schedule: of T steps.
        guide: (B, C).
        noise: (T, S, 1, C), or with B for the 1, standard normal: first the start's, then that of each step from T to 2; the
            last step adds none.
        denoiser: estimates the noise in y_t.
    """
    noisy = guide + noise[0]
    for step in range(schedule.num_steps, 1, -1):
        label = schedule.recover(noisy, guide, step, denoiser(noisy, step))
        back = schedule.reverse(step)
        noisy = back.label * label + back.noisy * noisy + back.guide * guide
        noisy = noisy + math.sqrt(back.variance) * noise[schedule.num_steps + 1 - step]
    return schedule.recover(noisy, guide, 1, denoiser(noisy, 1))


class _Timed(nn.Module):
    """Linear, times an embedding of the step, batch norm, softplus: (B, in) and steps (B,) -> (B, out).

    All steps start alike, at an embedding of 1, and so learn from each other; the authors' start at random.
    """

    def __init__(self, in_features: int, out_features: int, num_steps: int) -> None:
        super().__init__()
        self.linear = nn.Linear(in_features, out_features)
        self.embedding = nn.Embedding(num_steps + 1, out_features)
        self.norm = nn.BatchNorm1d(out_features)
        nn.init.ones_(self.embedding.weight)

    def forward(self, x: Tensor, step: Tensor) -> Tensor:
        normed: Tensor = self.norm(self.embedding(step) * self.linear(x))
        return F.softplus(normed)

    def at(self, step: int) -> tuple[Tensor, Tensor]:
        """In ``eval()`` the layer before its softplus is linear: its weight (out, in) and bias (out,) at one step."""
        variance, mean = self.norm.running_var, self.norm.running_mean
        assert variance is not None
        assert mean is not None
        slope = self.norm.weight / (variance + self.norm.eps).sqrt()
        gain = slope * self.embedding.weight[step]
        return gain[:, None] * self.linear.weight, gain * self.linear.bias + self.norm.bias - slope * mean


class NoiseNetwork(nn.Module):
    r"""The noise in y_t, estimated from the features, the guide and the step.

    The authors' network F: its input passes a timed layer, is multiplied by an embedding of the features, passes two more
    timed layers and a linear one. Ours is how it is fed and read (Karras et al. 2022), for a network that is 30 times
    narrower and learns for minutes: with :math:`s = \sqrt{\bar\alpha_t}`, :math:`n^2 = 1 - s^2`, the spread
    :math:`\sigma` of labels about the guide and :math:`v = s^2 \sigma^2 + n^2`,

    .. math:: \epsilon_\theta(x, y_t, f, t) = \frac{n}{v} (y_t - f)
        - \frac{s \sigma}{\sqrt v}\,F\Bigl(x, \Bigl[\frac{y_t - f}{\sqrt v}, f\Bigr], t\Bigr)

    so what enters and leaves F has unit size at every step, and a new network, F = 0, is the best linear estimate.

    Args:
        in_features: K.
        num_classes: C.
        schedule: of T steps.
        width: of the hidden layers.
        spread: sigma, root mean square of y_0 - f.
    """

    enter: Tensor
    past: Tensor
    through: Tensor

    def __init__(self, in_features: int, num_classes: int, *, schedule: Schedule, width: int, spread: float) -> None:
        super().__init__()
        T, signal = schedule.num_steps, schedule.signal
        variance = signal.square() * spread**2 + (1 - signal.square())
        self.register_buffer("enter", variance.rsqrt().float())
        self.register_buffer("past", ((1 - signal.square()).sqrt() / variance).float())
        self.register_buffer("through", (signal * spread * variance.rsqrt()).float())
        self.encoder = nn.Sequential(nn.Linear(in_features, width), nn.BatchNorm1d(width))
        self.first = _Timed(2 * num_classes, width, T)
        self.second = _Timed(width, width, T)
        self.third = _Timed(width, width, T)
        self.last = nn.Linear(width, num_classes)
        nn.init.zeros_(self.last.weight)
        nn.init.zeros_(self.last.bias)

    def forward(self, features: Tensor, noisy: Tensor, guide: Tensor, step: Tensor) -> Tensor:
        """Features (B, K), y_t (B, C), f (B, C), steps (B,) -> the noise (B, C)."""
        enter, past, through = (at[step][:, None] for at in (self.enter, self.past, self.through))
        apart = noisy - guide
        hidden = self.first(torch.cat([enter * apart, guide], dim=1), step) * self.encoder(features)
        estimate: Tensor = past * apart - through * self.last(self.third(self.second(hidden, step), step))
        return estimate

    def given(self, features: Tensor, guide: Tensor) -> Denoiser:
        """The network in ``eval()`` for these features (B, K) and their guide (B, C), which are embedded only once."""
        C, embedded = guide.size(1), self.encoder(features)

        def denoise(noisy: Tensor, step: int) -> Tensor:
            apart = noisy - guide
            weight, bias = self.first.at(step)
            of_guide = F.linear(guide, weight[:, C:], bias)
            hidden = F.softplus(F.linear(apart, self.enter[step] * weight[:, :C]).add_(of_guide)).mul_(embedded)
            for layer in (self.second, self.third):
                hidden = F.softplus(F.linear(hidden, *layer.at(step)))
            return self.past[step] * apart - F.linear(hidden, self.through[step] * self.last.weight).add_(
                self.through[step] * self.last.bias
            )

        return denoise

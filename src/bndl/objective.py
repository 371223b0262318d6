r"""The Kullback-Leibler part of the objective: what it costs the posterior to differ from the gamma prior.

Negative ELBO per example :math:`= \mathrm{CE} + \beta\,(\sum_k \mathrm{KL}_{\theta} + \sum_{kc} \mathrm{KL}_{\Phi} / N)`.

The closed form diverges as the mean goes to 0, so an entry that the decision does not need has no place to rest. Two
treatments are offered:

- ``"gate"`` (default), a relaxed spike-and-slab. With probability :math:`\rho = 1 - e^{-m/s}` an entry is in the slab, whose
  mean is then :math:`m/\rho \ge s`, so that the mean stays m; else it is exactly 0. The cost is

  .. math:: \rho\,\bigl(\mathrm{KL}(\mathrm{Weibull}(m/\rho, k)\,\|\,\mathrm{Gamma}) + \ln\tfrac{1-\pi}{\pi}\bigr)

  It is 0 at m = 0, finite with finite gradients everywhere, pulls small entries *to* zero
  (for :math:`\pi \le 1/2`), and for m well above s is
  the closed form plus the price :math:`\ln\frac{1-\pi}{\pi}` of an active entry (:math:`\pi`: prior share of active ones).
- ``"paper"``: the authors' clamp of the logarithm at 1e-10, kept for comparison; it repels entries from zero.
"""

import math
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor, nn

from bndl import weibull
from bndl.errors import HeadError, InputError
from bndl.layer import DecisionLayer, Posterior

__all__ = ["PRESETS", "Objective", "kl"]

_PAPER_CLAMP = 1e-10


@dataclass(frozen=True)
class Objective:
    """How the KL is weighed and what the prior is.

    Attributes:
        beta: weight of the whole KL term.
        zero: treatment of entries at zero, ``"gate"`` or ``"paper"``.
        phi: the Phi term: ``"sum"`` over entries divided by N; ``"feature-mean"``: additionally averaged over features
            (the authors' ViT and fine-tuning code); ``"none"`` (their ResNet code).
        prior_shape: a of the gamma prior of theta and Phi.
        prior_rate: b of the gamma prior of theta and Phi.
        activity: pi, the prior share of active entries, in (0, 1); ``"gate"`` only.
        edge: s, the width of the gate in units of the prior mean a/b; ``"gate"`` only.
    """

    beta: float = 1e-4
    zero: Literal["gate", "paper"] = "gate"
    phi: Literal["sum", "feature-mean", "none"] = "sum"
    prior_shape: float = 1.0
    prior_rate: float = 1.0
    activity: float = 0.1
    edge: float = 0.05

    def __post_init__(self) -> None:
        numbers = self.prior_shape, self.prior_rate, self.edge
        if not (0 <= self.beta < math.inf and all(0 < number < math.inf for number in numbers)):
            raise InputError(f"beta must be >= 0 and prior_shape, prior_rate and edge > 0, all finite; got {self}.")
        if self.zero not in ("gate", "paper") or self.phi not in ("sum", "feature-mean", "none"):
            raise InputError(
                f"zero is gate or paper and phi is sum, feature-mean or none, got {self.zero!r}, {self.phi!r}."
            )
        if not 0 < self.activity < 1:
            raise InputError(f"activity is a share strictly between 0 and 1, got {self.activity}.")


PRESETS: dict[str, Objective] = {
    "default": Objective(),
    "paper-resnet": Objective(beta=1e-6, zero="paper", phi="none"),
    "paper-vit": Objective(beta=1e-6, zero="paper", phi="feature-mean"),
    "paper-finetune": Objective(beta=1e-8, zero="paper", phi="feature-mean"),
}


def kl(model: nn.Module, num_data: int, *, objective: Objective | str = "default", beta: float | None = None) -> Tensor:
    """The KL term of the loss, ready to add to a mean cross entropy.

    Call it after a forward pass in ``train()``: theta's posterior is that of the last batch.

    Args:
        model: a model with at least one :class:`bndl.DecisionLayer`.
        num_data: N, the number of training examples (of all processes together).
        objective: settings, or the name of a preset: default, paper-resnet, paper-vit, paper-finetune.
        beta: in place of the objective's, for warm-up.
    Returns:
        A scalar, differentiable in the layer's parameters and the features.
    """
    if not num_data >= 1:
        raise InputError(f"num_data is the number of training examples, at least 1; got {num_data}.")
    chosen = resolve(objective)
    chosen = chosen if beta is None else replace(chosen, beta=beta)
    layers = [module for module in model.modules() if isinstance(module, DecisionLayer)]
    if not layers:
        raise HeadError(f"{type(model).__name__} has no decision layer: call model = bndl.convert(model) first.")
    return chosen.beta * torch.stack([_layer_cost(layer, num_data, chosen) for layer in layers]).sum()


def resolve(objective: Objective | str) -> Objective:
    """An objective, by itself or by a preset's name."""
    if isinstance(objective, Objective):
        return objective
    if objective not in PRESETS:
        raise InputError(f"no objective is called {objective!r}; choose from {', '.join(PRESETS)}.")
    return PRESETS[objective]


def _layer_cost(layer: DecisionLayer, num_data: int, objective: Objective) -> Tensor:
    theta = layer._last_theta
    if theta is None:
        raise InputError("kl needs the posterior of a batch: call the model on one in train() mode first.")
    cost = entry_cost(theta, objective).sum(dim=-1).mean()
    if objective.phi == "none":
        return cost
    phi_cost = entry_cost(layer.phi(), objective).sum()
    return cost + phi_cost / (num_data * (layer.num_features if objective.phi == "feature-mean" else 1))


def entry_cost(posterior: Posterior, objective: Objective) -> Tensor:
    """The cost of each entry, with the dims of the posterior's mean (see this module's first lines for the formula)."""
    mean, shape = weibull.at_least_float32(posterior.mean), posterior.shape
    a, b = objective.prior_shape, objective.prior_rate
    if objective.zero == "paper":
        return weibull.kl_to_gamma(mean.clamp_min(_PAPER_CLAMP), shape, prior_shape=a, prior_rate=b)
    edge = objective.edge * a / b
    active = mean > torch.finfo(mean.dtype).tiny  # below it the gradient of mean / gate overflows
    safe = torch.where(active, mean, torch.full_like(mean, edge))
    gate = -torch.expm1(-safe / edge)
    slab = weibull.kl_to_gamma(safe / gate, shape, prior_shape=a, prior_rate=b)
    return torch.where(
        active, gate * (slab + math.log((1 - objective.activity) / objective.activity)), torch.zeros_like(mean)
    )

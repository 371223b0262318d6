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
    if any(layer._last_theta is None for layer in layers):
        raise InputError("kl needs the posterior of a batch: call the model on one in train() mode first.")
    if chosen.beta == 0:  # nothing to compute: an empty sum, which can be differentiated all the same
        return torch.stack([weibull.at_least_float32(layer.weight[:0]).sum() for layer in layers]).sum()
    return chosen.beta * torch.stack([_layer_cost(layer, num_data, chosen) for layer in layers]).sum()


def resolve(objective: Objective | str) -> Objective:
    """An objective, by itself or by a preset's name."""
    if isinstance(objective, Objective):
        return objective
    if objective not in PRESETS:
        raise InputError(f"no objective is called {objective!r}; choose from {', '.join(PRESETS)}.")
    return PRESETS[objective]


def _layer_cost(layer: DecisionLayer, num_data: int, objective: Objective) -> Tensor:
    assert layer._last_theta is not None
    cost = entry_cost(layer._last_theta, objective).sum(dim=-1).mean()
    share = phi_share(layer, num_data, objective)
    return cost + share * entry_cost(layer.phi(), objective).sum() if share else cost


def phi_share(layer: DecisionLayer, num_data: int, objective: Objective) -> float:
    """What the sum over the entries of Phi is multiplied by: 1/N, 1/(N K) or 0."""
    return {"sum": 1.0, "feature-mean": 1 / layer.num_features, "none": 0.0}[objective.phi] / num_data


def entry_cost(posterior: Posterior, objective: Objective) -> Tensor:
    """The cost of each entry, with the dims of the posterior's mean (see this module's first lines for the formula)."""
    mean = weibull.at_least_float32(posterior.mean)
    if objective.zero == "paper":
        a, b = objective.prior_shape, objective.prior_rate
        return weibull.kl_to_gamma(mean.clamp_min(_PAPER_CLAMP), posterior.shape, prior_shape=a, prior_rate=b)
    x, a = mean / gate_width(objective), objective.prior_shape
    least = torch.finfo(x.dtype).tiny
    active, x = x > least, x.clamp_min(least)  # keeps log(0) out of the gradient as well
    gate = -torch.expm1(-x)
    cost = gate * (slab_price(posterior.shape, objective) + a * torch.log(gate / x)) + a * objective.edge * x
    return torch.where(active, cost, 0.0)


def gate_width(objective: Objective) -> float:
    """s, the width of the gate, in units of the mean."""
    return objective.edge * objective.prior_shape / objective.prior_rate


def slab_price(shape: Tensor, objective: Objective) -> Tensor:
    r"""What the shape k and the prior add to the cost of an active entry, whatever its mean: :math:`\kappa(k)`.

    With :math:`x = m/s` and :math:`y = x/\rho`, the slab's mean in units of s, the gated cost is

    .. math:: \rho\,(\kappa - a \ln y) + a \epsilon x, \quad
              \kappa = \mathrm{KL}(\mathrm{Weibull}(a/b, k)\,\|\,\mathrm{Gamma}) + \ln\tfrac{1-\pi}{\pi}
                       - a\,(1 + \ln \epsilon)

    where :math:`\epsilon` is ``edge``: s in units of the prior mean a/b.
    """
    a, b, shape = objective.prior_shape, objective.prior_rate, weibull.at_least_float32(shape)
    at_prior_mean = weibull.kl_to_gamma(torch.full_like(shape, a / b), shape, prior_shape=a, prior_rate=b)
    return at_prior_mean + math.log((1 - objective.activity) / objective.activity) - a * (1 + math.log(objective.edge))


@torch.no_grad()
def gated_cost(mean: Tensor, price: Tensor, objective: Objective) -> tuple[Tensor, Tensor]:
    r"""The gated cost of all entries together, and its slope in each of their means, by hand.

    .. math:: \frac{\partial}{\partial m} =
              \frac{1}{s}\,\bigl((1 - \rho)\,(\kappa + a - a \ln y) - \frac{a}{y} + a \epsilon\bigr)

    Args:
        mean: m >= 0, any dims, in float32 or better. At 0 the slope is the limit from above.
        price: :func:`slab_price` of the shapes, broadcastable to ``mean``.
        objective: its prior and gate.
    Returns:
        A scalar, and a tensor like ``mean``.
    """
    a, width = objective.prior_shape, gate_width(objective)
    x = mean.mul(-1 / width).clamp_max_(-torch.finfo(mean.dtype).tiny)  # -m/s: saves a few passes
    gate = torch.expm1(x)  # -rho
    inverse = gate / x  # 1/y
    slab = torch.add(price + a, inverse.log(), alpha=a)
    total = a * (gate.sum() - objective.edge * x.sum()) - torch.dot(gate.flatten(), slab.flatten())
    slope = slab.addcmul(slab, gate).sub_(inverse, alpha=a).add_(a * objective.edge)
    return total, slope.div_(width)

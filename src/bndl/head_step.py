r"""A training step of the decision layer alone, on features that are given, with its gradients written out.

Without a map and with one shape a feature, theta has no parameter that training is after: its mean is the feature, and its
shapes are fitted afterwards (:mod:`bndl.calibrate`), as are those of Phi. What learns is W and the bias. All examples of a
step share one draw of the noise: the expectation of the loss stays what it is, and the step costs little more than a dense
head's:

.. math:: l = m_\theta (g \odot m)^T + b, \quad g_{ck} = g^\theta_k\, g^\Phi_{ck}, \quad
          G = (\mathrm{softmax}(l) - \mathrm{onehot}(y)) / B, \\
          \frac{\partial\,\mathrm{loss}}{\partial m} = G^T m_\theta \odot g
          + \frac{\beta}{N} \frac{\partial\,\mathrm{cost}}{\partial m}, \quad
          \frac{\partial\,\mathrm{loss}}{\partial b} = \sum_j G_j

and then the rule of :func:`bndl.layer.rectify`.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from bndl import weibull
from bndl.features import FeatureSet
from bndl.layer import DecisionLayer, rectify
from bndl.objective import Objective, entry_cost, gated_cost, phi_share, slab_price
from bndl.weibull import at_least_float32

__all__ = ["HeadStep"]

_ROWS = 2048  # examples from which theta's part of the loss, a constant, is known
_READ = 256  # of them at a time


class HeadStep:
    """Loss and gradients of a layer's weights and bias on one batch; the shapes stay what they are at the start.

    Args:
        layer: a layer that :meth:`applies` accepts.
        train: the examples that there are.
        rows: (N,) those of them that are trained on.
        objective: weight and kind of the KL term.
        generator: source of the noise.
    """

    def __init__(
        self,
        layer: DecisionLayer,
        train: FeatureSet,
        *,
        rows: Tensor,
        objective: Objective,
        generator: torch.Generator | None = None,
    ) -> None:
        layer.zero_grad()  # the shapes get no gradient, and must not keep one from elsewhere
        self.layer, self.objective, self.generator = layer, objective, generator
        self.phi_share = phi_share(layer, len(rows), objective)
        with torch.no_grad():
            chosen = rows[:: -(-len(rows) // _ROWS)].split(
                _READ
            )  # the features may be on disk: only batches are copied
            some = torch.cat([train.take(part).like(layer.weight).features for part in chosen])
            theta, phi = layer.theta(at_least_float32(some)), layer.phi()
            self.theta_cost = entry_cost(theta, objective).sum(dim=-1).mean()
            self.price = slab_price(phi.shape, objective)
            self.exponents = theta.shape.reciprocal(), phi.shape.reciprocal()
            self.log_scale = -sum(torch.lgamma(1 + exponent) for exponent in self.exponents)

    @staticmethod
    def applies(layer: DecisionLayer, objective: Objective) -> bool:
        """Whether this is the layer's step: nothing else to learn, nothing that expects to be called, and the gate."""
        plain = type(layer) is DecisionLayer and layer.dense_map is None and layer.theta_shape == "feature"
        hooks = [layer._forward_hooks, layer._forward_pre_hooks, layer._backward_hooks, layer._backward_pre_hooks]
        hooks += [parameter._backward_hooks or {} for parameter in layer.parameters()]
        return plain and not any(hooks) and objective.zero == "gate"

    @torch.no_grad()
    def __call__(self, h: Tensor, labels: Tensor, beta: float) -> Tensor:
        """The loss of features (B, in_features) and labels (B,); its gradients are left in ``weight`` and ``bias``."""
        with torch.autocast(device_type=h.device.type, enabled=False):
            return self._step(self.layer.theta(at_least_float32(h)).mean, labels, beta)

    def noise(self) -> Tensor:
        """(C, K) one draw of the noise of theta and Phi, in a product of unit mean."""
        like, (C, K) = self.exponents[0], self.layer.weight.size()
        by_feature = weibull.log_exponential(K, like=like, generator=self.generator).mul_(self.exponents[0])
        by_weight = weibull.log_exponential(C, K, like=like, generator=self.generator).mul_(self.exponents[1])
        return by_weight.add_(by_feature + self.log_scale).exp_()

    def _step(self, theta: Tensor, labels: Tensor, beta: float) -> Tensor:
        layer, noise = self.layer, self.noise()
        mean, offset = rectify(at_least_float32(layer.weight) - layer.alpha_phi), layer.offset()
        log_probs = F.linear(theta, noise * mean, offset).log_softmax(dim=1)
        loss = F.nll_loss(log_probs, labels)
        by_logit = log_probs.exp_().div_(len(labels))
        by_logit.scatter_add_(1, labels[:, None], by_logit.new_full((len(labels), 1), -1 / len(labels)))
        by_mean, active = torch.mm(by_logit.t(), theta).mul_(noise), mean.sign()
        if beta:
            loss += beta * self.theta_cost
        if share := beta * self.phi_share:
            cost, slope = gated_cost(mean, self.price, self.objective)
            loss += share * cost
            by_mean.addcmul_(slope, active, value=share)
        layer.weight.grad = _through_rectifier(by_mean, active).to(layer.weight)
        if layer.bias is not None and offset is not None:
            layer.bias.grad = _through_rectifier(by_logit.sum(dim=0), offset.sign()).to(layer.bias)
        return loss


def _through_rectifier(gradient: Tensor, active: Tensor) -> Tensor:
    """The gradient before :func:`bndl.layer.rectify`: where that gave 0 (``active`` is 0, else 1), only what would raise the
    entry passes. Written over both arguments, and without a mask: that is several times as fast."""
    return torch.minimum(gradient, active.mul_(torch.finfo(gradient.dtype).max), out=gradient)

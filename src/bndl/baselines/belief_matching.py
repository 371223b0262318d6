r"""Belief Matching (Joo et al. 2020): logits are the log-concentrations of a Dirichlet posterior over the probabilities.

.. math:: \mathcal{L} = -\bigl(\psi(\alpha_y) - \psi(\alpha_0)\bigr)
    + \lambda\,\mathrm{KL}\bigl(\mathrm{Dir}(\alpha)\,\|\,\mathrm{Dir}(1)\bigr), \qquad \alpha = e^{l}
"""

import torch
from torch import Tensor, nn

from bndl.baselines.dense import linear_logits
from bndl.baselines.method import Fitted, Method, Size
from bndl.baselines.predictions import from_dirichlet
from bndl.convert import find_linear
from bndl.features import Inputs
from bndl.prediction import Prediction

__all__ = ["BeliefMatching", "dirichlet_kl"]

_MANY_CLASSES = 50
_LARGEST = 30.0  # of a log-concentration: beyond, alpha times a difference of digammas loses its digits


class BeliefMatching(Method):
    """The weight of the KL is the authors': .01, or .003 for many classes."""

    name = "belief-matching"
    about = "Dirichlet posterior with concentrations exp(logits), trained by its ELBO"
    from_scratch = True
    paper = "BM"

    def criterion(self, logits: Tensor, labels: Tensor, progress: float) -> Tensor:
        """The negative ELBO, mean over the batch."""
        alpha = concentrations(logits)
        total = alpha.sum(dim=1)
        fit = torch.digamma(alpha.gather(1, labels[:, None])[:, 0]) - torch.digamma(total)
        weight = 0.01 if logits.size(1) < _MANY_CLASSES else 0.003
        return (weight * dirichlet_kl(alpha) - fit).mean().to(logits.dtype)

    def predictor(self, model: nn.Module, *, seed: int = 0) -> Fitted:
        """Mean and spread of the Dirichlet, in closed form."""
        _, head = find_linear(model)

        def predict(inputs: Inputs) -> Prediction:
            return from_dirichlet(concentrations(linear_logits(model, head, inputs)))

        return Fitted(predict, Size.of(head))


def concentrations(logits: Tensor) -> Tensor:
    """``exp`` of the logits (B, C), in float64 and kept where the KL is sound: a head may be very sure."""
    return logits.double().clamp(-_LARGEST, _LARGEST).exp()


def dirichlet_kl(alpha: Tensor) -> Tensor:
    r"""KL(Dir(alpha) || Dir(1)) of each row (B, C) -> (B,).

    .. math:: \ln\frac{\Gamma(\alpha_0)}{\Gamma(C)\prod_c \Gamma(\alpha_c)}
        + \sum_c (\alpha_c - 1)\bigl(\psi(\alpha_c) - \psi(\alpha_0)\bigr)
    """
    total = alpha.sum(dim=1, keepdim=True)
    C = alpha.new_tensor(float(alpha.size(1)))
    normaliser = torch.lgamma(total)[:, 0] - torch.lgamma(C) - torch.lgamma(alpha).sum(dim=1)
    return normaliser + ((alpha - 1) * (torch.digamma(alpha) - torch.digamma(total))).sum(dim=1)

r"""Evidential deep learning (Sensoy et al. 2018): evidence for each class, plus one, is a Dirichlet's concentration.

.. math:: \mathcal{L} = \sum_c (y_c - \hat p_c)^2 + \frac{\hat p_c (1 - \hat p_c)}{\alpha_0 + 1}
    + \lambda\,\min(1, 2t)\,\mathrm{KL}\bigl(\mathrm{Dir}(\tilde\alpha)\,\|\,\mathrm{Dir}(1)\bigr), \qquad
    \alpha = 1 + e^{l}, \quad \hat p = \alpha / \alpha_0

where :math:`\tilde\alpha` is alpha with the true class's evidence taken out and t the share of the training that is done.
"""

from collections.abc import Iterable

import torch.nn.functional as F
from torch import Tensor, nn

from bndl.baselines.belief_matching import concentrations, dirichlet_kl
from bndl.baselines.dense import linear_logits
from bndl.baselines.method import Fitted, Method, Size
from bndl.baselines.predictions import from_dirichlet
from bndl.baselines.tuning import Candidate, Task, tune
from bndl.convert import find_linear
from bndl.features import Inputs
from bndl.prediction import Prediction

__all__ = ["Evidential"]


class Evidential(Method):
    """Exponential evidence, which trains with many classes where the original's ReLU does not.

    Args:
        kl_weight: lambda; on features it is chosen among 1, .1 and .01.
    """

    name = "evidential"
    about = "Dirichlet with evidence + 1, trained by expected squared error"
    from_scratch = True

    def __init__(self, kl_weight: float = 0.1) -> None:
        self.kl_weight = kl_weight

    def criterion(self, logits: Tensor, labels: Tensor, progress: float) -> Tensor:
        """Expected squared error plus the annealed cost of evidence for wrong classes."""
        alpha = 1 + concentrations(logits)
        total = alpha.sum(dim=1, keepdim=True)
        probs, truth = alpha / total, F.one_hot(labels, logits.size(1)).to(alpha)
        error = ((truth - probs).square() + probs * (1 - probs) / (total + 1)).sum(dim=1)
        wrong = dirichlet_kl(truth + (1 - truth) * alpha)
        return (error + self.kl_weight * min(1.0, 2 * progress) * wrong).mean().to(logits.dtype)

    def predictor(self, model: nn.Module, *, seed: int = 0) -> Fitted:
        """Mean and spread of the Dirichlet, in closed form."""
        _, head = find_linear(model)

        def predict(inputs: Inputs) -> Prediction:
            return from_dirichlet(1 + concentrations(linear_logits(model, head, inputs)))

        return Fitted(predict, Size.of(head))

    def tries(self, head: nn.Linear, task: Task) -> Iterable[Candidate]:
        """Each weight of the KL on each source."""
        for weight in (1.0, 0.1, 0.01):
            yield from tune(Evidential(weight), head, task, about=f"KL weight {weight}, ")

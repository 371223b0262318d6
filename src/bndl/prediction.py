"""What the model says of some examples, as a record."""

import operator
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import SupportsIndex

import torch
from torch import Tensor

__all__ = ["Prediction", "cat"]


@dataclass(frozen=True)
class Prediction:
    """What the model says of B examples, and how sure it is. All tensors are on the CPU.

    Attributes:
        labels: (B,) the decision: the class with the largest mean logit, as ``model.eval()(x).argmax(1)``. It is what the
            tests below and explanations speak of; where it is close, another class may have the largest of ``probs``.
        probs: (B, C) predictive probabilities, averaged over the posterior.
        logits: (B, C) mean logits; what an explanation adds up to.
        runner_up: (B,) the class that came second.
        p_value: (B,) of the t-test, at S = 20 draws, that the decision is more likely than all other classes together; 1
            where it is not. With ``against="runner-up"`` or ``method="paper"``: that the first class beats the second.
        flip_probability: (B,) P(the second class beats the first); at most 1/2, does not depend on S.
        certain: (B,) whether p_value <= level. A difference of exactly zero is uncertain, and so is a decision with no
            active feature, which only the bias made.
        entropy: (B,) of ``probs``, in nats.
        aleatoric: (B,) variance of the first-to-second logit difference that comes from the example's theta.
        epistemic: (B,) variance of the same difference that comes from the model's Phi.
    """

    labels: Tensor
    probs: Tensor
    logits: Tensor
    runner_up: Tensor
    p_value: Tensor
    flip_probability: Tensor
    certain: Tensor
    entropy: Tensor
    aleatoric: Tensor
    epistemic: Tensor

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: SupportsIndex | slice | Tensor | list[int]) -> "Prediction":
        """The chosen examples, as a Prediction (of one example for a single index)."""
        rows = [operator.index(index)] if isinstance(index, SupportsIndex) and not isinstance(index, Tensor) else index
        return Prediction(**{f.name: getattr(self, f.name)[rows] for f in fields(self)})

    @property
    def confidence(self) -> Tensor:
        """(B,) the probability of the decision, ``probs[labels]``."""
        return self.probs.gather(1, self.labels[:, None])[:, 0]


def cat(parts: Sequence[Prediction]) -> Prediction:
    """The predictions of several batches as one."""
    return Prediction(**{f.name: torch.cat([getattr(part, f.name) for part in parts]) for f in fields(Prediction)})

"""What every method is: how a network trains for it, how a head is fitted to features, how it predicts."""

import copy
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bndl.baselines.tuning import Candidate, Task, best_of, tune
from bndl.features import FeatureSet, Inputs
from bndl.layer import ACTIVE_ABOVE, DecisionLayer
from bndl.prediction import Prediction

__all__ = ["Fitted", "Method", "Size", "fresh"]


@dataclass(frozen=True)
class Size:
    """What a decision needs next to the backbone.

    Attributes:
        parameters: all numbers.
        active: weights (biases and shapes aside) that are not zero, |w| > 1e-5.
        weights: weights, zero or not.
    """

    parameters: int
    active: int
    weights: int

    @classmethod
    @torch.no_grad()
    def of(cls, module: nn.Module, *, extra: int = 0) -> "Size":
        """Of a head: weights are its parameters of two dims; ``extra`` are numbers that it does not hold itself."""
        parameters = list(module.parameters())
        weights = [parameter for parameter in parameters if parameter.dim() >= 2]
        return cls(
            parameters=sum(parameter.numel() for parameter in parameters) + extra,
            active=sum(int((weight.abs() > ACTIVE_ABOVE).sum()) for weight in weights),
            weights=sum(weight.numel() for weight in weights),
        )

    @classmethod
    def of_layer(cls, layer: DecisionLayer) -> "Size":
        """Of a decision layer: the weights of a dense map count, the map of its shapes does not decide."""
        everything = sum(parameter.numel() for parameter in layer.parameters())
        return cls(parameters=everything, active=layer.num_weights(), weights=layer.all_weights())

    @property
    def nnz(self) -> float:
        """Share of the weights that are not zero."""
        return self.active / self.weights


@dataclass(frozen=True)
class Fitted:
    """A method that is ready to predict.

    Attributes:
        predict: a batch of inputs -> :class:`bndl.Prediction`. The inputs are features (B, K) if it was fitted to
            features, else what its network takes.
        size: how many numbers the decision needs.
        note: what was chosen on the validation data, in words.
    """

    predict: Callable[[Inputs], Prediction]
    size: Size
    note: str = ""


class Method:
    """One way to classify with doubt. Subclasses override what differs from a dense softmax head.

    Attributes:
        name: in the registry, on the command line and in tables.
        about: one line.
        needs: the extra that installs what it needs; empty for none.
        from_scratch: whether it has a way to train a whole network, see :meth:`dress` and :meth:`criterion`. The others
            are fitted to the features of a network that was trained with a dense head.
        layered: whether the network it trains has a :class:`bndl.DecisionLayer`.
        prior: whether its decision layer has a prior, and so a KL to pay.
        paper: what the paper calls it, where it has a row of it.
    """

    name: ClassVar[str]
    about: ClassVar[str]
    needs: ClassVar[str] = ""
    from_scratch: ClassVar[bool] = False
    layered: ClassVar[bool] = False
    prior: ClassVar[bool] = False
    paper: ClassVar[str] = ""

    def dress(self, model: nn.Module, **layer: Any) -> nn.Module:
        """Turn a network with a linear head, or such a head alone, into what this method trains.

        Args:
            model: is changed in place where that is enough.
            **layer: settings of a decision layer, for methods that have one.
        """
        return model

    def criterion(self, logits: Tensor, labels: Tensor, progress: float) -> Tensor:
        """The loss, a scalar: logits (B, C), labels (B,), and the share of the training that is done, 0 to 1."""
        return F.cross_entropy(logits, labels)

    def predictor(self, model: nn.Module, *, seed: int = 0) -> Fitted:
        """Predictions of a network, or head, that :meth:`dress` made and that was trained."""
        raise NotImplementedError

    def fit(self, head: nn.Linear, train: FeatureSet, val: FeatureSet, *, seed: int = 0) -> Fitted:
        """Fit to the features of a frozen backbone, whose trained linear head is given (it is not changed).

        Here: train on by the method's own loss, from the given head at its best temperature, on the training features and on
        most of the validation features; what predicts the rest of these best is kept, be it the given head.

        Args:
            head: the dense head that the backbone was trained with.
            train: what the weights may learn from; the backbone has seen these examples.
            val: examples that the backbone has not seen, for choices and calibration.
            seed: of everything random; the same seed gives the same bits.
        """
        return self.kept(self.tries(head, Task.of(train, val, seed=seed)), seed=seed)

    def tries(self, head: nn.Linear, task: Task) -> Iterable[Candidate]:
        """Candidates to choose from by the likelihood of ``task.judge``."""
        yield from tune(self, head, task)

    def kept(self, candidates: Iterable[Candidate], *, seed: int) -> Fitted:
        """The best candidate, ready to predict."""
        best = best_of(candidates)
        fitted = self.predictor(best.module, seed=seed)
        return replace(fitted, note=best.note)


def fresh(head: nn.Linear) -> nn.Linear:
    """A copy of a head that may be trained, in float32, whatever the original's state."""
    copied = copy.deepcopy(head).float()
    copied.requires_grad_(True)
    return copied

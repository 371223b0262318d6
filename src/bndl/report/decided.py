"""What every part of the report looks at: the decision layer, what it decided on the data, and how that was measured."""

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from bndl.evaluate import evaluate
from bndl.evaluation import Evaluation
from bndl.features import FeatureSet, evaluating
from bndl.layer import ACTIVE_ABOVE, DecisionLayer
from bndl.metrics.examples import Examples
from bndl.predict import predict
from bndl.prediction import Prediction

__all__ = ["Decided", "decide"]

_ROWS = 4096  # examples a product


@dataclass(frozen=True)
class Decided:
    """N decisions, on the CPU.

    Attributes:
        layer: what decided.
        classes: names of the C classes.
        data: what entered the layer, and the true classes.
        prediction: of all examples.
        evaluation: what :func:`bndl.evaluate` says of them.
    """

    layer: DecisionLayer
    classes: tuple[str, ...]
    data: FeatureSet
    prediction: Prediction
    evaluation: Evaluation

    def __len__(self) -> int:
        return len(self.data)

    @property
    def examples(self) -> Examples:
        """One number an example of all that figures are made of."""
        assert self.evaluation.examples is not None
        return self.evaluation.examples

    @property
    def truth(self) -> Tensor:
        """(N,) true classes."""
        return self.data.labels.cpu()

    @cached_property
    def phi(self) -> Tensor:
        """(C, K) mean weights."""
        return self.layer.phi().mean.detach().cpu()

    @cached_property
    def bias(self) -> Tensor:
        """(C,)."""
        offset = self.layer.offset()
        return torch.zeros(len(self.phi)) if offset is None else offset.detach().cpu()

    @cached_property
    def numbers(self) -> list[int]:
        """The number among all features of each of the K columns."""
        found: list[int] = self.layer.feature_ids.tolist()
        return found

    @cached_property
    def column(self) -> dict[int, int]:
        """The column of a feature by its number."""
        return {number: column for column, number in enumerate(self.numbers)}

    @cached_property
    def active(self) -> Tensor:
        """(C, K) which weights count as there."""
        return self.phi > ACTIVE_ABOVE

    def theta(self, features: list[int]) -> Tensor:
        """Mean theta (N, F) of features by their numbers."""
        columns = [self.column[number] for number in features]
        weight = self.layer.weight
        with evaluating(self.layer):
            parts = [
                self.layer.theta(rows.to(weight)).mean[:, columns].cpu() for rows in self.data.features.split(_ROWS)
            ]
        return torch.cat(parts)


def decide(
    layer: DecisionLayer, data: FeatureSet, *, classes: tuple[str, ...], seed: int = 0, num_resamples: int = 1000
) -> Decided:
    """Predict and measure, by the same seed.

    Args:
        layer: what decides.
        data: what enters it, and the true classes.
        classes: names of the classes.
        seed: of the draws and of the resamples.
        num_resamples: of the bootstrap.
    """
    evaluation = evaluate(layer, data, classes=classes, seed=seed, num_resamples=num_resamples)
    return Decided(layer, classes, data, predict(layer, data.features, seed=seed), evaluation)

"""The dense softmax head, as it is: what all others have to beat."""

from torch import Tensor, nn

from bndl.baselines.method import Fitted, Method, Size
from bndl.baselines.predictions import from_logits
from bndl.convert import find_linear
from bndl.features import FeatureSet, Inputs, evaluating, one_pass
from bndl.prediction import Prediction

__all__ = ["Dense", "linear_logits"]


class Dense(Method):
    """A linear layer and a softmax; its probabilities are all it has to say."""

    name = "dense"
    about = "linear layer and softmax, as trained"
    from_scratch = True
    paper = "ResNet"

    def predictor(self, model: nn.Module, *, seed: int = 0) -> Fitted:
        """Softmax of the logits."""
        _, head = find_linear(model)

        def predict(inputs: Inputs) -> Prediction:
            return from_logits(linear_logits(model, head, inputs))

        return Fitted(predict, Size.of(head))

    def fit(self, head: nn.Linear, train: FeatureSet, val: FeatureSet, *, seed: int = 0) -> Fitted:
        """Nothing to fit."""
        return self.predictor(head, seed=seed)


def linear_logits(model: nn.Module, head: nn.Linear, inputs: Inputs) -> Tensor:
    """What leaves the linear head of a model in ``eval()``, or the head alone, (B, C)."""
    with evaluating(model):
        return one_pass(model, inputs, head=head)[1]

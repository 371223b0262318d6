"""Non-negative matrix factorisation: the decision layer without noise and without a prior, the limit of infinite shapes."""

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from torch import nn

from bndl.baselines.bndl import takes_nonnegative
from bndl.baselines.method import Fitted, Method, Size
from bndl.baselines.predictions import from_logits
from bndl.baselines.tuning import Candidate, Task, tune
from bndl.convert import Features, convert, find_layer
from bndl.features import Inputs, evaluating, one_pass
from bndl.prediction import Prediction

__all__ = ["NMF"]

_SHAPE = 1e6  # noise of one in a million: none, in float32


class NMF(Method):
    """Starts as the exact conversion of the dense head and learns by the cross entropy alone.

    Args:
        features: sign of what enters a bare head, where nothing shows it. :meth:`fit` looks at the features.
    """

    name = "nmf"
    about = "non-negative features and weights, no noise, no prior"
    from_scratch = True
    layered = True
    paper = "NMF"

    def __init__(self, features: Features = "nonnegative") -> None:
        self.features = features

    def dress(self, model: nn.Module, **layer: Any) -> nn.Module:
        """A decision layer with fixed, huge shapes; settings of the noise are ignored."""
        kept = {key: value for key, value in layer.items() if key in ("dense_map", "alpha_phi")}
        if isinstance(model, nn.Linear):
            kept["features"] = self.features
        converted = convert(model, init_shape=_SHAPE, **kept)
        for name, parameter in find_layer(converted).named_parameters():
            if "shape" in name:
                parameter.requires_grad_(False)
        return converted

    def tries(self, head: nn.Linear, task: Task) -> Iterable[Candidate]:
        """The tries of ``tune``; features of any sign are split by it, so that the start is exact."""
        yield from tune(NMF("nonnegative" if takes_nonnegative(task.val) else "signed"), head, task)

    def predictor(self, model: nn.Module, *, seed: int = 0) -> Fitted:
        """Softmax of the mean logits."""
        layer = find_layer(model)

        def predict(inputs: Inputs) -> Prediction:
            with evaluating(model):
                return from_logits(one_pass(model, inputs)[1])

        shapes = sum(parameter.numel() for name, parameter in layer.named_parameters() if "shape" in name)
        size = Size.of_layer(layer)
        return Fitted(predict, replace(size, parameters=size.parameters - shapes))

"""Non-negative matrix factorisation: the decision layer without noise and without a prior, the limit of infinite shapes."""

from dataclasses import replace
from typing import Any

from torch import nn

from bndl.baselines.method import Fitted, Method, Size
from bndl.baselines.predictions import from_logits
from bndl.convert import convert, find_layer
from bndl.features import Inputs, evaluating, one_pass
from bndl.predict import Prediction

__all__ = ["NMF"]

_SHAPE = 1e6  # noise of one in a million: none, in float32


class NMF(Method):
    """Starts as the exact conversion of the dense head and learns by the cross entropy alone."""

    name = "nmf"
    about = "non-negative features and weights, no noise, no prior"
    from_scratch = True
    layered = True
    paper = "NMF"

    def dress(self, model: nn.Module, **layer: Any) -> nn.Module:
        """A decision layer with fixed, huge shapes; settings of the noise are ignored."""
        kept = {key: value for key, value in layer.items() if key in ("dense_map", "alpha_phi")}
        if isinstance(model, nn.Linear):  # nothing shows what enters a bare head; features of a ReLU are not split
            kept["features"] = "nonnegative"
        converted = convert(model, init_shape=_SHAPE, **kept)
        for name, parameter in find_layer(converted).named_parameters():
            if "shape" in name:
                parameter.requires_grad_(False)
        return converted

    def predictor(self, model: nn.Module, *, seed: int = 0) -> Fitted:
        """Softmax of the mean logits."""
        layer = find_layer(model)

        def predict(inputs: Inputs) -> Prediction:
            with evaluating(model):
                return from_logits(one_pass(model, inputs)[1])

        shapes = sum(parameter.numel() for name, parameter in layer.named_parameters() if "shape" in name)
        size = Size.of_layer(layer)
        return Fitted(predict, replace(size, parameters=size.parameters - shapes))

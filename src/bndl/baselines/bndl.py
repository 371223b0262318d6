"""Our own: convert the head, fit it with default arguments, predict."""

from dataclasses import replace
from typing import Any

import torch
from torch import nn

from bndl.baselines.method import Fitted, Method, Size, fresh
from bndl.convert import convert, find_layer
from bndl.decide import Decider
from bndl.features import FeatureSet, Inputs, evaluating, features_of
from bndl.fit import fit
from bndl.prediction import Prediction

__all__ = ["BNDL", "takes_nonnegative"]


class BNDL(Method):
    """The Bayesian non-negative decision layer."""

    name = "bndl"
    about = "Bayesian non-negative decision layer, default arguments"
    from_scratch = True
    layered = True
    prior = True
    paper = "ResNet-BNDL"

    def dress(self, model: nn.Module, **layer: Any) -> nn.Module:
        """The exact conversion."""
        return convert(model, **layer)

    def predictor(self, model: nn.Module, *, seed: int = 0) -> Fitted:
        """As :func:`bndl.predict`, with the posterior's constants computed once."""
        layer = find_layer(model)
        decider = Decider(layer, seed=seed)

        def predict(inputs: Inputs) -> Prediction:
            with evaluating(model):
                features = features_of(model, inputs)
                with torch.autocast(features.device.type, enabled=False):
                    return decider(features)

        return Fitted(predict, Size.of_layer(layer))

    def fit(self, head: nn.Linear, train: FeatureSet, val: FeatureSet, *, seed: int = 0) -> Fitted:
        """``convert`` and ``fit`` with default arguments."""
        layer = convert(fresh(head), features="nonnegative" if takes_nonnegative(val) else "signed")
        result = fit(layer, train, val, seed=seed, progress=False)
        return replace(self.predictor(layer, seed=seed), note=f"epoch {result.best_epoch}")


def takes_nonnegative(data: FeatureSet) -> bool:
    """Whether no feature is below zero, as after a ReLU."""
    return bool((data.features >= 0).all())

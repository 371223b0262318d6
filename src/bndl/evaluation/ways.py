"""What can be evaluated: one or more ways to decide, from one pass over the backbone a batch."""

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, get_args

import torch
from torch import Tensor, nn

from bndl.baselines.method import Fitted, Size
from bndl.baselines.predictions import from_logits
from bndl.convert import find_layer, find_linear
from bndl.decide import TEST_SAMPLES, Decider, Method
from bndl.errors import InputError
from bndl.explain.contributions import contributions
from bndl.features import Inputs, evaluating, features_of, one_pass
from bndl.layer import DecisionLayer
from bndl.metrics.sparsity import effective_features
from bndl.predict import about_empty
from bndl.prediction import Prediction

__all__ = ["Decision", "Ways", "dense", "layered", "ways_of"]


@dataclass(frozen=True)
class Decision:
    """What was predicted of a batch, and how many features each decision uses (B,), where that is known."""

    prediction: Prediction
    num_features: Tensor | None = None


@dataclass(frozen=True)
class Ways:
    """Ways to decide that share the backbone.

    Attributes:
        names: one a way.
        decide: a batch of inputs -> a decision a way, from one pass.
        size: what a decision needs next to the backbone; None where it is not known.
        model: the network, or None where there is none to look into.
        num_samples: S of the test that the p-values come from.
    """

    names: tuple[str, ...]
    decide: Callable[[Inputs], Sequence[Decision]]
    size: Size | None = None
    model: nn.Module | None = None
    num_samples: int = TEST_SAMPLES


def ways_of(
    model: Any, *, method: Method = "sample", num_samples: int | None = None, seed: int = 0, name: str | None = None
) -> Ways:
    """A model of any kind as something to evaluate.

    Args:
        model: a network with a decision layer or a linear head, either of these alone, a fitted method, or anything whose
            ``predict`` gives a :class:`bndl.Prediction`.
        method: as in :func:`bndl.predict`, for decision layers.
        num_samples: as in :func:`bndl.predict`, for decision layers.
        seed: of the draws.
        name: what to call it.
    """
    if isinstance(model, Ways):
        return model
    if isinstance(model, nn.Module) and any(isinstance(part, DecisionLayer) for part in model.modules()):
        _check(method, num_samples)
        if empty := find_layer(model).empty_classes():
            warnings.warn(about_empty(empty), stacklevel=3)
        decider = Decider(find_layer(model), method=method, num_samples=num_samples, seed=seed)
        test = decider.draws.num_samples if method == "paper" else TEST_SAMPLES
        return layered(model, decider, name=name or "BNDL", num_samples=test)
    if method != "sample" or num_samples is not None:
        raise InputError("method and num_samples are of decision layers: leave them out for other models.")
    if isinstance(model, nn.Module):
        return dense(model, {name or "dense": 1.0})
    if isinstance(model, Fitted):
        return Ways((name or "fitted",), _alone(model.predict), model.size)
    if callable(getattr(model, "predict", None)):
        return Ways((name or type(model).__name__,), _alone(model.predict))
    raise InputError(
        f"give a torch.nn.Module, a fitted method, or something with predict(x) -> bndl.Prediction; "
        f"got {type(model).__name__}."
    )


def _check(method: Method, num_samples: int | None) -> None:
    if method not in get_args(Method):
        raise InputError(f"method must be one of {', '.join(get_args(Method))}, got {method!r}.")
    least = 2 if method == "paper" else 1
    if num_samples is not None and num_samples < least:
        raise InputError(f"num_samples must be at least {least} for method={method!r}, got {num_samples}.")


def layered(
    model: nn.Module, decide: Callable[[Tensor], Prediction], *, name: str, num_samples: int = TEST_SAMPLES
) -> Ways:
    """A network with a decision layer, or the layer alone.

    Args:
        model: the network.
        decide: what enters the layer (B, in_features) -> prediction.
        name: of the way.
        num_samples: S of its test.
    """
    layer = find_layer(model)

    def of_batch(inputs: Inputs) -> list[Decision]:
        with evaluating(model):
            features = features_of(model, inputs)
            with torch.autocast(features.device.type, enabled=False):
                prediction = decide(features)
                features = features.to(layer.weight.dtype)
                terms = contributions(layer, features, prediction.labels.to(features.device))
        return [Decision(prediction, effective_features(terms))]

    return Ways((name,), of_batch, Size.of_layer(layer), model, num_samples)


def dense(model: nn.Module, scales: dict[str, float]) -> Ways:
    """A network with a linear head, or the head alone: a softmax for each factor on the logits.

    Args:
        model: the network.
        scales: name of a way to what it multiplies the logits by: 1 as they are, 1 / T at a temperature T.
    """
    _, head = find_linear(model)

    def of_batch(inputs: Inputs) -> list[Decision]:
        with evaluating(model):
            features, logits = one_pass(model, inputs, head=head)
            if not logits.isfinite().all():
                raise InputError("the model gives NaN or infinite logits: check the inputs and the weights.")
            # terms have either sign here; the largest are what a decision rests on
            terms = (features * head.weight[logits.argmax(dim=1)]).abs()
        used = effective_features(terms)
        return [Decision(from_logits(logits * scale), used) for scale in scales.values()]

    return Ways(tuple(scales), of_batch, Size.of(head), model)


def _alone(predict: Callable[[Inputs], Any]) -> Callable[[Inputs], list[Decision]]:
    """A method's own ``predict`` as the only way; features in half precision, as caches keep them, become float32."""

    def of_batch(inputs: Inputs) -> list[Decision]:
        if isinstance(inputs, Tensor) and inputs.dtype in (torch.float16, torch.bfloat16):
            inputs = inputs.float()
        prediction = predict(inputs)
        if not isinstance(prediction, Prediction):
            raise InputError(f"predict must give a bndl.Prediction, it gave {type(prediction).__name__}.")
        return [Decision(prediction)]

    return of_batch

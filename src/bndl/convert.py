"""Find a model's head, and swap it for a decision layer that predicts the same."""

import logging
from typing import Any, Literal

import torch
from torch import nn

from bndl import tracing
from bndl.errors import HeadError, InputError
from bndl.layer import DecisionLayer

__all__ = ["convert", "find_layer"]

logger = logging.getLogger(__name__)
Features = Literal["auto", "nonnegative", "signed"]
# attributes that hold the classifier in Hugging Face, timm and torchvision models, and in most that people write
_HEAD_NAMES = ("classifier", "fc", "head", "heads", "score", "linear", "logits", "output", "out")
# Hugging Face image models, which torch.fx cannot trace, whose pooled features have just left a ReLU
_NONNEGATIVE_FAMILIES = ("ResNetForImageClassification", "RegNetForImageClassification")


def convert(model: nn.Module, *, head: str | None = None, features: Features = "auto", **settings: Any) -> nn.Module:
    """Swap the model's last ``nn.Linear`` for a :class:`bndl.DecisionLayer` with exactly the same predictions.

    The swap is made in place and the model returned (a bare ``nn.Linear`` comes back as a new layer). What was done is
    logged, and shown by ``print(model)``.

    Args:
        model: any classifier that ends in one linear layer: ``nn.Sequential``, torchvision, timm, Hugging Face, your own.
        head: dotted path of that layer, where it cannot be told.
        features: sign of what enters the head. ``"auto"`` traces the model for a proof that it is non-negative (it just
            left a ReLU) and otherwise treats it as signed, which is exact for both but has twice the features.
        **settings: arguments of :class:`bndl.DecisionLayer`, such as ``phi_shape="entry"``.
    Raises:
        HeadError: there is no linear layer, or more than one could be the head.
    """
    if not isinstance(model, nn.Module):
        raise InputError(f"convert takes a torch.nn.Module, got {type(model).__name__}.")
    if settings.get("alpha_theta"):
        raise InputError("alpha_theta > 0 would change predictions: convert first, then set it on the layer.")
    if features not in ("auto", "nonnegative", "signed"):
        raise InputError(f"features must be auto, nonnegative or signed, got {features!r}.")
    if unknown := settings.keys() & {"in_features", "out_features", "signed", "bias"}:
        raise InputError(f"{', '.join(sorted(unknown))} is read off the model's head; leave it out of convert(...).")
    path, linear = find_linear(model, head)
    if features == "auto":
        signed, why = (False, "shown to be non-negative") if _is_nonnegative(model, path) else (True, "split by sign")
    else:
        signed, why = features == "signed", f"taken as {features}"
    layer = _layer_from(linear, signed=signed, settings=settings)
    layer.origin = f"{path or 'Linear'}: Linear({linear.in_features}, {linear.out_features}), features {why}"
    logger.info("converted %s; %d features, %d weights", layer.origin, layer.num_features, layer.weight.numel())
    if not path:
        return layer
    replace_everywhere(model, linear, layer)
    return model


def replace_everywhere(model: nn.Module, old: nn.Module, new: nn.Module) -> None:
    """Put ``new`` wherever the model holds ``old``: a layer may be registered under several names."""
    for module in list(model.modules()):
        for name, child in list(module._modules.items()):
            if child is old:
                setattr(module, name, new)


def find_linear(model: nn.Module, head: str | None = None) -> tuple[str, nn.Linear]:
    """The head's dotted path ("" if the model is the head) and the head, one that a decision layer can stand in for.

    Args:
        model: a classifier that ends in one linear layer.
        head: dotted path of that layer, where it cannot be told.
    """
    path = _find_path(model, head)
    linear = model.get_submodule(path)
    assert isinstance(linear, nn.Linear)
    _check_linear(path or "the layer", linear)
    return path, linear


def find_layer(model: nn.Module) -> DecisionLayer:
    """The model's one decision layer."""
    if not isinstance(model, nn.Module):
        raise InputError(f"give a torch.nn.Module with a decision layer, got {type(model).__name__}.")
    layers = [module for module in model.modules() if isinstance(module, DecisionLayer)]
    if len(layers) == 1:
        return layers[0]
    if not layers:
        raise HeadError(f"{type(model).__name__} has no decision layer: call model = bndl.convert(model) first.")
    raise HeadError(f"{type(model).__name__} has {len(layers)} decision layers; this function needs a model with one.")


def _check_linear(path: str, linear: nn.Linear) -> None:
    """Refuse what no decision layer could stand in for."""
    if linear.out_features < 2:
        raise HeadError(f"{path} has one output; a decision needs at least two classes.")
    if type(linear).forward is not nn.Linear.forward:
        raise HeadError(
            f"{path} is a {type(linear).__name__} with a forward of its own; only a plain nn.Linear converts."
        )
    if linear._forward_hooks or linear._forward_pre_hooks:
        raise HeadError(f"{path} has forward hooks, which may change what it gives: remove them before converting.")
    if not all(torch.isfinite(parameter).all() for parameter in linear.parameters()):
        raise HeadError(f"{path} has NaN or infinite weights: load or train the model again.")


def _layer_from(linear: nn.Linear, *, signed: bool, settings: dict[str, Any]) -> DecisionLayer:
    with torch.random.fork_rng([]):  # a new layer draws weights, which are overwritten here
        layer = DecisionLayer(
            linear.in_features, linear.out_features, bias=linear.bias is not None, signed=signed, **settings
        )
    weight = linear.weight
    half = weight.dtype in (torch.float16, torch.bfloat16)  # subtracting the minimum in these would not be exact
    layer.to(device=weight.device, dtype=torch.float32 if half else weight.dtype)
    layer.copy_linear(linear)
    layer.requires_grad_(weight.requires_grad)
    return layer.train(linear.training)


def _find_path(model: nn.Module, head: str | None) -> str:
    """The dotted path of the head."""
    if any(isinstance(module, DecisionLayer) for module in model.modules()):
        raise HeadError(f"{type(model).__name__} has a decision layer already; there is nothing to convert.")
    linears = {path: module for path, module in model.named_modules() if isinstance(module, nn.Linear)}
    if head is not None:
        if head not in linears:
            raise HeadError(f"head={head!r} is no nn.Linear of {type(model).__name__}; {_listing(linears)}.")
        return head
    if not linears:
        raise HeadError(
            f"{type(model).__name__} has no nn.Linear to convert; end it in one, or use bndl.DecisionLayer."
        )
    for finder in (_by_identity, _by_classifier_method, _by_tracing, _by_labels, _by_name):
        if (path := finder(model, linears)) is not None:
            return path
    raise HeadError(
        f'cannot tell which layer of {type(model).__name__} is the head: say head="path.to.layer"; {_listing(linears)}.'
    )


def _listing(linears: dict[str, nn.Linear]) -> str:
    shown = [f"{path or '(itself)'} ({m.in_features} -> {m.out_features})" for path, m in linears.items()][-6:]
    return (
        "its linear layers are " + ("... " if len(linears) > 6 else "") + ", ".join(shown) if shown else "it has none"
    )


def _by_identity(model: nn.Module, linears: dict[str, nn.Linear]) -> str | None:
    return "" if "" in linears else None


def _by_classifier_method(model: nn.Module, linears: dict[str, nn.Linear]) -> str | None:
    """Ask timm's ``get_classifier()``."""
    if not callable(getattr(model, "get_classifier", None)):
        return None
    classifier = model.get_classifier()  # type: ignore[operator]
    return next((path for path, module in linears.items() if module is classifier), None)


def _by_tracing(model: nn.Module, linears: dict[str, nn.Linear]) -> str | None:
    """The linear layer whose result is the model's output, read off its graph."""
    graph = tracing.trace(model)
    if graph is None:
        return None
    path = tracing.output_module(graph, model)
    if path is None:
        raise HeadError(
            f"{type(model).__name__} does not return what a layer gave, or not only that, so a new head could not keep its "
            f'predictions; say head="path.to.layer" if it may be swapped all the same: {_listing(linears)}.'
        )
    if tracing.num_calls(graph, path) != 1:
        raise HeadError(f"{path} of {type(model).__name__} is called more than once, so it is not only the head.")
    if path not in linears:
        raise HeadError(
            f"{type(model).__name__} ends in {path} ({type(model.get_submodule(path)).__name__}), not in an nn.Linear; "
            f'say head="path.to.layer" if its head is one of them: {_listing(linears)}.'
        )
    return path


def _by_labels(model: nn.Module, linears: dict[str, nn.Linear]) -> str | None:
    """Hugging Face: the one linear layer, outside the base model, with as many outputs as the config has labels."""
    num_labels = getattr(getattr(model, "config", None), "num_labels", None)
    base = getattr(model, "base_model_prefix", None)
    if num_labels is None or not base:
        return None
    inside = f"{base}."
    found = [p for p, m in linears.items() if m.out_features == num_labels and not p.startswith(inside)]
    return found[0] if len(found) == 1 else None


def _by_name(model: nn.Module, linears: dict[str, nn.Linear]) -> str | None:
    """The last linear layer under the one attribute that is called like a head."""
    names = [name for name in _HEAD_NAMES if any(path.split(".")[0] == name for path in linears)]
    if len(names) != 1 or any(path.split(".")[0].startswith(f"{names[0]}_") for path in linears):
        return None
    return [path for path in linears if path.split(".")[0] == names[0]][-1]


def _is_nonnegative(model: nn.Module, path: str) -> bool:
    if not path:
        return False
    if type(model).__name__ in _NONNEGATIVE_FAMILIES:
        return getattr(getattr(model, "config", None), "hidden_act", None) == "relu"
    graph = tracing.trace(model)
    return graph is not None and tracing.input_is_nonnegative(graph, model, path)

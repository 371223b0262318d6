r"""Grad-CAM of a class's logit or of a feature, by captum.

.. math:: \mathrm{ReLU}\Bigl(\sum_k \bar{g}_k A_k\Bigr), \quad
          \bar{g}_k = \frac{1}{HW} \sum_p \frac{\partial y}{\partial A_{kp}}
"""

from typing import Any

import torch
from torch import Tensor, nn

from bndl.errors import InputError, MissingExtraError
from bndl.explain.arguments import integers
from bndl.explain.maps import features_and_maps, head_of
from bndl.features import Head, check_labels, evaluating, one_pass
from bndl.layer import DecisionLayer

__all__ = ["grad_cam"]


def grad_cam(
    model: nn.Module,
    x: Tensor,
    *,
    target: Tensor | int | None = None,
    feature: Tensor | int | None = None,
    layer_name: str | None = None,
) -> Tensor:
    """Where the gradient of a class's mean logit, or of a feature, says that it comes from.

    On the map that is averaged into the features, the Grad-CAM of a class is its exact map (ReLU of it). It says more
    on an earlier layer, and for models that do not average.

    Args:
        model: a model with a decision layer, or with a linear head.
        x: (B, ...) as the model takes it.
        target: one class for all, or (B,); by default the decision.
        feature: in place of a class, one feature for all, or (B,) of their numbers.
        layer_name: dotted name of the module whose output (B, channels, H, W) to weigh; by default the map that is averaged
            into the features, or the last convolution.
    Returns:
        (B, H, W) >= 0 on the model's device.
    """
    if not isinstance(x, Tensor):
        raise InputError(
            f"Grad-CAM takes images as one tensor (B, C, H, W), got {type(x).__name__}: "
            "for texts use bndl.explain.lime_words."
        )
    try:
        from captum.attr import LayerGradCam
    except ImportError as error:
        raise MissingExtraError("Grad-CAM", extra="explain") from error
    if target is not None and feature is not None:
        raise InputError("Grad-CAM is of a class or of a feature: give target or feature, not both.")
    head = head_of(model)
    x = x.to(head.weight.device)
    with evaluating(model):
        features, found = features_and_maps(model, x, head=head)
        column = _column(head, features, target, feature)
    is_input = layer_name is None and found is not None and found.is_input
    name = layer_name or (_last_convolution(model) if found is None else found.module)
    place = _module(model, name)

    def forward(images: Tensor) -> Tensor:
        entering, leaving = one_pass(model, images, head=head)
        return leaving if feature is None else _activations(head, entering)

    with evaluating(model), torch.enable_grad():
        heat: Any = LayerGradCam(forward, place).attribute(
            x, target=column, attribute_to_layer_input=is_input, relu_attributions=True
        )
    if not isinstance(heat, Tensor) or heat.dim() != 4:
        raise InputError(f"{name} gives no maps (B, channels, H, W): name a convolution as layer_name.")
    return heat[:, 0].detach()


def _activations(head: Head, entering: Tensor) -> Tensor:
    """(B, K) the features by their columns."""
    return head.theta(entering).mean if isinstance(head, DecisionLayer) else entering


def _column(head: Head, features: Tensor, target: Tensor | int | None, feature: Tensor | int | None) -> Tensor:
    """Which column of the output, or of the features, each example is explained by."""
    count, device = len(features), features.device
    if feature is None:
        chosen = head(features).argmax(dim=1) if target is None else _each(target, count, name="target")
        return check_labels(chosen, head.out_features, count=count).to(device)
    numbers = _each(feature, count, name="feature").to(device)
    ids = head.feature_ids if isinstance(head, DecisionLayer) else torch.arange(head.in_features, device=device)
    same = numbers[:, None] == ids
    if not bool(same.any(dim=1).all()):
        missing = int(numbers[~same.any(dim=1)][0])
        raise InputError(f"the layer has no feature {missing}: it has {len(ids)}, numbered up to {int(ids.max())}.")
    return same.long().argmax(dim=1)


def _each(given: Tensor | int, count: int, *, name: str) -> Tensor:
    given = integers(given, name=name, what="a number, or one an example")
    given = given.expand(count) if given.dim() == 0 else given
    if given.size() != (count,):
        raise InputError(f"give one number, or one an example, dims ({count},); got dims {tuple(given.size())}.")
    return given


def _last_convolution(model: nn.Module) -> str:
    names: list[str] = [name for name, module in model.named_modules() if isinstance(module, nn.Conv2d)]
    if not names:
        raise InputError(
            f"{type(model).__name__} has no convolution, so Grad-CAM has no map to weigh: "
            "use LIME (bndl.explain.lime), which takes any model."
        )
    return names[-1]


def _module(model: nn.Module, name: str) -> nn.Module:
    try:
        return model.get_submodule(name)
    except AttributeError as error:
        raise InputError(f"{type(model).__name__} has no module {name!r}: see model.named_modules().") from error

r"""The exact reasons: a mean logit is the sum of its terms, :math:`l_c = \sum_k \theta_k \Phi_{kc} + b_c`."""

import torch
from torch import Tensor, nn

from bndl.convert import find_layer
from bndl.errors import InputError
from bndl.features import Head, Inputs, evaluating, features_of
from bndl.layer import DecisionLayer

__all__ = ["contribution_map", "contributions", "has_contribution_map", "reasons"]


@torch.no_grad()
def contributions(layer: DecisionLayer, features: Tensor, classes: Tensor) -> Tensor:
    """The non-negative terms theta_k Phi_kc of one class's mean logit for each example.

    Args:
        layer: the decision layer.
        features: (B, in_features) what enters it.
        classes: (B,) which class's logit to take apart.
    Returns:
        (B, K); a row sums to the logit less the bias.
    """
    phi = layer.phi().mean
    return layer.theta(features.to(phi.dtype)).mean * phi[classes]


def reasons(model: nn.Module, x: Inputs, *, top: int = 5) -> list[list[tuple[int, float]]]:
    """The largest terms behind each example's decision, from one pass: (feature, what it adds to the score), largest first.

    Args:
        model: a model with a :class:`bndl.DecisionLayer`.
        x: a batch of inputs: a tensor (B, ...) or a dict of tensors.
        top: how many terms to give; terms of 0 are left out.
    """
    layer = find_layer(model)
    with evaluating(model):
        features = features_of(model, x)
        terms = contributions(layer, features, layer(features).argmax(dim=1))
    best = terms.topk(min(top, terms.size(1)), dim=1)
    return [
        [(k, value) for k, value in zip(row.tolist(), values.tolist(), strict=True) if value > 0]
        for row, values in zip(layer.feature_ids[best.indices], best.values, strict=True)
    ]


def has_contribution_map(layer: Head) -> bool:
    """Whether every term of the layer belongs to one map; a dense map mixes them."""
    return not isinstance(layer, DecisionLayer) or layer.dense_map is None


@torch.no_grad()
def contribution_map(layer: Head, maps: Tensor, classes: Tensor) -> Tensor:
    r"""Where the terms of a class's mean logit come from, for features that are averages of maps; exact.

    .. math:: l_c - b_c = \sum_p \frac{1}{HW} \sum_k \frac{\theta_k}{|h_k|} \Phi_{kc}\,(\pm M_{kp}), \quad
              h_k = \frac{1}{HW} \sum_p M_{kp}

    The ratio is 1 without a threshold on the features; with one a term is spread as its map is. Pixels are >= 0 where the
    maps are. In front of a signed layer maps have both signs, and so has the result, which adds up all the same.

    Args:
        layer: the decision layer; or a linear head, for whose maps :math:`\sum_k W_{ck} M_{kp} / HW` adds up likewise.
        maps: (B, in_features, H, W) the maps before pooling, see :func:`bndl.explain.feature_maps`.
        classes: (B,) which class's logit to take apart.
    Returns:
        (B, H, W); an image sums to the logit less the bias.
    Raises:
        InputError: the layer has a dense map, whose features have no map of their own.
    """
    if not has_contribution_map(layer):
        raise InputError("the layer's dense map mixes all features, so none has a map of its own: use LIME for it.")
    weights = _weights(layer, maps.mean(dim=(2, 3)), classes)
    return torch.einsum("bkhw,bk->bhw", maps, weights.to(maps.dtype)) / (maps.size(2) * maps.size(3))


def _weights(layer: Head, features: Tensor, classes: Tensor) -> Tensor:
    """What a pixel of each map counts for, (B, in_features)."""
    if not isinstance(layer, DecisionLayer):
        return layer.weight[classes]
    phi = layer.phi().mean
    features = features.to(phi.dtype)
    theta = layer.theta(features).mean
    channel, negative = layer.feature_ids % layer.in_features, layer.feature_ids >= layer.in_features
    sign = torch.where(negative, -1.0, 1.0).to(features.dtype)
    own = features[:, channel] * sign  # > 0 wherever theta is
    ratio = torch.where(theta > 0, theta / own.where(theta > 0, torch.ones_like(own)), torch.zeros_like(own))
    return torch.zeros_like(features).index_add_(1, channel, phi[classes] * ratio * sign)

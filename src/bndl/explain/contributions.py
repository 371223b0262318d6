r"""The exact reasons: a mean logit is the sum of its terms, :math:`l_c = \sum_k \theta_k \Phi_{kc} + b_c`."""

import torch
from torch import Tensor, nn

from bndl.convert import find_layer
from bndl.errors import InputError
from bndl.features import Inputs, evaluating, features_of
from bndl.layer import DecisionLayer

__all__ = ["contribution_map", "contributions", "reasons"]


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
    return layer.theta(features).mean * layer.phi().mean[classes]


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


@torch.no_grad()
def contribution_map(layer: DecisionLayer, maps: Tensor, classes: Tensor) -> Tensor:
    """Where the terms of a class's mean logit come from, for features that are averages of non-negative maps.

    Exact for a layer whose theta is the average-pooled map itself: not signed, no threshold, no dense map.

    Args:
        layer: the decision layer.
        maps: (B, in_features, H, W) the maps before pooling, >= 0.
        classes: (B,) which class's logit to take apart.
    Returns:
        (B, H, W); an image sums to the logit less the bias.
    """
    if layer.signed or layer.alpha_theta or layer.dense_map is not None:
        raise InputError("the map is exact only for a layer that is not signed, without alpha_theta and dense_map.")
    weights = layer.phi().mean[classes]
    kept = maps.index_select(1, layer.feature_ids)
    return torch.einsum("bkhw,bk->bhw", kept, weights) / (maps.size(2) * maps.size(3))

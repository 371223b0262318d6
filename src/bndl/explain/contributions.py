r"""The exact reasons: a mean logit is the sum of its terms, :math:`l_c = \sum_k \theta_k \Phi_{kc} + b_c`."""

import torch
from torch import Tensor

from bndl.layer import DecisionLayer

__all__ = ["contribution_map", "contributions"]


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


@torch.no_grad()
def contribution_map(layer: DecisionLayer, maps: Tensor, classes: Tensor) -> Tensor:
    """Where the terms of a class's mean logit come from, for features that are averages of non-negative maps.

    Exact for a layer whose theta is the average-pooled map itself: not signed, no threshold, no dense map.

    Args:
        layer: the decision layer.
        maps: (B, K, H, W) the maps before pooling, >= 0.
        classes: (B,) which class's logit to take apart.
    Returns:
        (B, H, W); an image sums to the logit less the bias.
    """
    weights = layer.phi().mean[classes]
    return torch.einsum("bkhw,bk->bhw", maps, weights) / (maps.size(2) * maps.size(3))

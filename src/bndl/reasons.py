"""The few features that weigh most in a decision: the largest terms of its mean logit."""

from dataclasses import dataclass

import torch
from torch import Tensor

from bndl import draws
from bndl.layer import DecisionLayer

__all__ = ["Reasons", "top_reasons"]


@dataclass(frozen=True)
class Reasons:
    """The largest terms of each decision's mean logit, largest first: (B, N) feature numbers and what they add."""

    features: Tensor
    values: Tensor


@torch.no_grad()
def top_reasons(layer: DecisionLayer, features: Tensor, labels: Tensor, *, top: int) -> Reasons:
    r"""The ``top`` largest of the terms :math:`\theta_k \Phi_{kc}` behind each decision.

    Args:
        layer: the decision layer.
        features: (B, in_features) what enters it.
        labels: (B,) the decisions c.
        top: N; no more than the layer has features.
    """
    phi = layer.phi().mean
    theta = torch.cat([draws.posterior(layer, rows).mean for rows in draws.blocks(features.to(phi.dtype))])
    terms = theta[: features.size(0)] * phi[labels.to(phi.device)]
    best = terms.topk(min(top, terms.size(1)), dim=1)
    return Reasons(layer.feature_ids[best.indices].cpu(), best.values.cpu())

"""How few numbers a decision rests on: weights a class, and features a decision."""

import torch
from torch import Tensor, nn

from bndl.convert import find_layer

__all__ = ["features_per_decision", "weights_per_class"]


def weights_per_class(model: nn.Module) -> float:
    """Active weights (> 1e-5) a class, over everything the decision needs (a dense map counts too)."""
    layer = find_layer(model)
    return layer.num_weights() / layer.out_features


@torch.no_grad()
def features_per_decision(contributions: Tensor, *, share: float = 0.9) -> float:
    """Mean number of the largest terms that make up 90 % of what speaks for the decision.

    Args:
        contributions: (B, K) the terms theta_k Phi_kc of the chosen class's logit; negative ones count as none.
        share: of their sum that has to be explained.
    """
    ordered = contributions.clamp_min(0).double().sort(dim=1, descending=True).values
    reached = ordered.cumsum(dim=1) < share * ordered.sum(dim=1, keepdim=True) * (1 - 1e-9)
    return float(((reached.sum(dim=1) + 1) * (ordered.sum(dim=1) > 0)).double().mean())

"""How few numbers a decision rests on: weights a class, share of weights in use, and features a decision."""

import torch
from torch import Tensor, nn

from bndl.convert import find_layer, find_linear
from bndl.errors import InputError
from bndl.layer import ACTIVE_ABOVE, DecisionLayer
from bndl.metrics.inputs import weighted_mean

__all__ = ["effective_features", "features_per_decision", "nnz", "weights_per_class"]


def weights_per_class(model: nn.Module) -> float:
    """Active weights (> 1e-5) a class, over everything the decision needs (a dense map counts too).

    Args:
        model: a model with a decision layer or, to compare with, with a linear head (|w| > 1e-5); or either alone.
    """
    active, _, num_classes = _count(model)
    return active / num_classes


def nnz(model: nn.Module) -> float:
    """Share of the weights that are active (> 1e-5), over everything the decision needs: Phi, and a dense map.

    Args:
        model: a model with a decision layer or, to compare with, with a linear head (|w| > 1e-5); or either alone.
    """
    active, total, _ = _count(model)
    return active / total


@torch.no_grad()
def effective_features(contributions: Tensor, *, share: float = 0.9) -> Tensor:
    """Number of the largest terms (N,) that make up 90 % of what speaks for the decision (NEC), float64.

    Args:
        contributions: (N, K) the terms theta_k Phi_kc of the chosen class's logit; negative ones count as none. An
            example where nothing speaks for the decision has 0.
        share: of their sum that has to be explained, in (0, 1].
    """
    if not isinstance(contributions, Tensor) or contributions.dim() != 2 or not contributions.numel():
        raise InputError("contributions must be a tensor of dims (N, K), the terms of each example's decision.")
    if not contributions.isfinite().all():
        raise InputError("contributions hold NaN or infinite values: leave those examples out.")
    if not 0 < share <= 1:
        raise InputError(f"share of the decision to explain is above 0 and at most 1, got {share}.")
    ordered = contributions.clamp_min(0).double().sort(dim=1, descending=True).values
    reached = ordered.cumsum(dim=1)
    needed = reached[:, -1:] * share * (1 - 1e-9)
    return (((reached < needed).sum(dim=1) + 1) * (reached[:, -1] > 0)).double()


def features_per_decision(contributions: Tensor, *, share: float = 0.9, weights: Tensor | None = None) -> Tensor:
    """Mean of :func:`effective_features`.

    Args:
        contributions: (N, K) the terms theta_k Phi_kc of the chosen class's logit; negative ones count as none.
        share: of their sum that has to be explained.
        weights: (R, N) how often each example counts, a row a bootstrap resample.
    Returns:
        float64, dims (), or (R,) with weights.
    """
    return weighted_mean(effective_features(contributions, share=share), weights)


@torch.no_grad()
def _count(model: nn.Module) -> tuple[int, int, int]:
    """Active weights, all weights, classes."""
    if any(isinstance(module, DecisionLayer) for module in model.modules()):
        layer = find_layer(model)
        return layer.num_weights(), layer.all_weights(), layer.out_features
    linear = find_linear(model)[1]
    return int((linear.weight.abs() > ACTIVE_ABOVE).sum()), linear.weight.numel(), linear.out_features

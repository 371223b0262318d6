"""Take the terms of a decision out one by one: exact, on the decision layer alone."""

from collections.abc import Iterable, Sequence
from typing import Literal, get_args

import torch
from torch import Tensor, nn

from bndl.convert import find_layer
from bndl.errors import InputError
from bndl.explain.arguments import whole
from bndl.explain.curves import Curves
from bndl.features import check_labels

__all__ = ["feature_deletion"]

Order = Literal["term", "difference", "random"]


@torch.no_grad()
def feature_deletion(
    layer: nn.Module,
    features: Tensor,
    *,
    target: Tensor | None = None,
    order: Order = "term",
    steps: int | Sequence[int] = 20,
    seed: int = 0,
) -> Curves:
    """Take features out of a decision and watch probability and margin: exact, no backbone.

    Args:
        layer: the decision layer, or a model that has one.
        features: (B, in_features) what enters it.
        target: (B,) classes; by default the decisions.
        order: ``"term"``: largest theta_k Phi_kc first; ``"difference"``: largest theta_k (Phi_kc - Phi_kd) first, d the
            class that came second; ``"random"``: any of those with a term above 0.
        steps: T equal shares of the features with a term above 0 for the target; or the numbers of features to take
            out, such as ``(0, 1, 2, 5, 10)``, then the fractions are shares of the largest.
        seed: of the random order.
    """
    if order not in get_args(Order):
        raise InputError(f"order must be one of {', '.join(get_args(Order))}, got {order!r}.")
    layer = find_layer(layer)
    if not isinstance(features, Tensor) or features.dim() != 2 or features.size(1) != layer.in_features:
        got = f"dims {tuple(features.size())}" if isinstance(features, Tensor) else type(features).__name__
        raise InputError(
            f"features must be what enters the layer, (B, {layer.in_features}), got {got}: "
            "take bndl.features.features_of(model, x)."
        )
    phi, bias = layer.phi().mean, layer.offset()
    theta = layer.theta(features.to(phi.dtype)).mean.double()
    phi, shift = phi.double(), 0.0 if bias is None else bias.double()
    logits = theta @ phi.t() + shift
    chosen = logits.argmax(1) if target is None else check_labels(target, len(phi), count=len(features)).to(phi.device)
    terms = theta * phi[chosen]
    score = terms
    if order == "random":
        score = torch.rand(terms.size(), generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(terms)
    elif order == "difference":
        score = terms - theta * phi[_others(logits, chosen).argmax(dim=1)]
    active = terms > 0
    place = score.masked_fill(~active, -torch.inf).argsort(dim=1, descending=True).argsort(dim=1)
    fractions, counts = _counts(steps, active.sum(dim=1))
    probability, margin = [], []
    for count in counts.unbind(1):
        left = (theta * ~(active & (place < count[:, None]))) @ phi.t() + shift
        probability.append(left.softmax(dim=1).gather(1, chosen[:, None]))
        margin.append(left.gather(1, chosen[:, None]) - _others(left, chosen).amax(dim=1, keepdim=True))
    return Curves(fractions, torch.cat(probability, dim=1).cpu(), torch.cat(margin, dim=1).cpu())


def _others(logits: Tensor, chosen: Tensor) -> Tensor:
    """The logits (B, C) without that of the chosen class."""
    return logits.scatter(1, chosen[:, None], -torch.inf)


def _counts(steps: int | Sequence[int], active: Tensor) -> tuple[Tensor, Tensor]:
    """Fractions (T + 1,) and how many features are taken out of each example there (B, T + 1)."""
    if not isinstance(steps, Iterable):
        steps = whole(steps, name="steps", least=1)
        fractions = torch.linspace(0, 1, steps + 1, dtype=torch.float64)
        return fractions, (fractions.to(active.device) * active[:, None]).round().long()
    counts = torch.tensor(sorted({0, *(whole(count, name="each of steps", least=0) for count in steps)}))
    if len(counts) < 2:
        raise InputError("steps must be a number of steps, or numbers of features to take out, one of them above 0.")
    return counts.double() / counts[-1], counts.to(active.device).expand(len(active), -1)

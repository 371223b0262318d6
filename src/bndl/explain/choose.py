"""The paper's three rules for choosing the one feature of an image to look at."""

from typing import Literal, TypeAlias, get_args

import torch
from torch import Tensor

from bndl.errors import InputError
from bndl.features import Head, check_labels
from bndl.layer import DecisionLayer

__all__ = ["RULES", "Rule", "choose_feature", "rule_score"]

Rule: TypeAlias = Literal["weight", "activation", "contribution"]
RULES: tuple[Rule, ...] = get_args(Rule)


@torch.no_grad()
def choose_feature(layer: Head, features: Tensor, labels: Tensor, *, rule: Rule = "contribution") -> Tensor:
    r"""One feature of each example: :math:`\arg\max_k` of

    - ``"weight"``: :math:`\Phi_{k,label}`, the weight of the label (the paper's appendix),
    - ``"activation"``: :math:`\theta_k`, the activation (the paper's figures),
    - ``"contribution"``: :math:`\theta_k \Phi_{k,label}`, what the feature adds to the label's logit.

    Args:
        layer: the decision layer; or a linear head, for which theta is h and Phi is W.
        features: (B, in_features) what enters it.
        labels: (B,) the class of each.
        rule: one of the three.
    Returns:
        (B,) numbers among all features, on the features' device; of equal ones the first.
    """
    score = rule_score(layer, features, labels, rule=rule)
    ids = layer.feature_ids if isinstance(layer, DecisionLayer) else torch.arange(score.size(1), device=score.device)
    return ids[score.argmax(dim=1)]


@torch.no_grad()
def rule_score(layer: Head, features: Tensor, labels: Tensor, *, rule: Rule = "contribution") -> Tensor:
    """(B, K) what a rule compares the features by; arguments as for :func:`choose_feature`."""
    if rule not in RULES:
        raise InputError(f"rule must be one of {', '.join(RULES)}, got {rule!r}.")
    labels = check_labels(labels, layer.out_features, count=len(features)).to(features.device)
    if isinstance(layer, DecisionLayer):
        phi = layer.phi().mean
        theta = layer.theta(features.to(phi.dtype)).mean
    else:
        phi, theta = layer.weight, features.to(layer.weight.dtype)
    return {"weight": phi[labels], "activation": theta, "contribution": theta * phi[labels]}[rule]

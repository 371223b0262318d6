"""One feature of each image, chosen by a rule and placed in the image by one of three methods."""

from dataclasses import dataclass
from typing import Literal, TypeAlias, get_args

import torch
from torch import Tensor, nn

from bndl.errors import InputError
from bndl.explain.choose import Rule, choose_feature, rule_score
from bndl.explain.gradcam import grad_cam
from bndl.explain.maps import FeatureMaps, features_and_maps, head_of
from bndl.features import evaluating

__all__ = ["METHODS", "Method", "Seen", "look_at"]

Method: TypeAlias = Literal["channel", "gradcam", "lime"]
METHODS: tuple[Method, ...] = get_args(Method)
_TOP = 10  # super-pixels, as in the paper


@dataclass(frozen=True)
class Seen:
    """Of B images: the number of the chosen feature, what the rule chose it by, its heat map (h, w), and the method."""

    feature: tuple[int, ...]
    score: tuple[float, ...]
    heats: tuple[Tensor, ...]
    method: Method


def look_at(
    model: nn.Module,
    x: Tensor,
    targets: Tensor,
    *,
    rule: Rule = "contribution",
    method: Method | None = None,
    seed: int = 0,
) -> Seen:
    """Choose a feature of each image and find where it looks.

    Args:
        model: a model with a decision layer, or with a linear head.
        x: (B, C, H, W) as the model takes it.
        targets: (B,) the class that the feature is chosen for.
        rule: see :func:`bndl.explain.choose_feature`.
        method: ``"channel"``: the exact map; ``"gradcam"``; ``"lime"``: the ten super-pixels that raise it most. By default
            the exact map where there is one, else LIME.
        seed: of LIME's perturbations.
    """
    if method is not None and method not in METHODS:
        raise InputError(f"method must be one of {', '.join(METHODS)}, got {method!r}.")
    head = head_of(model)
    with evaluating(model):
        features, found = features_and_maps(model, x, head=head)
    feature = choose_feature(head, features, targets, rule=rule)
    score = rule_score(head, features, targets, rule=rule).amax(dim=1)
    method = method or ("lime" if found is None else "channel")
    heats = tuple(heat.cpu() for heat in _heats(model, x, feature, found, method=method, seed=seed))
    return Seen(tuple(feature.tolist()), tuple(score.tolist()), heats, method)


def _heats(
    model: nn.Module, x: Tensor, feature: Tensor, found: FeatureMaps | None, *, method: Method, seed: int
) -> list[Tensor]:
    if method == "gradcam":
        return list(grad_cam(model, x, feature=feature))
    if method == "channel":
        if found is None:
            raise InputError(
                f"the features of {type(model).__name__} are no averages of a map of pixels, so no map is exact: "
                "take the method lime."
            )
        return list(found.of(feature).clamp_min(0))
    from bndl.explain.lime import lime

    device, head = feature.device, head_of(model)
    numbers = feature.tolist()
    explained = [
        lime(model, image.to(device), features=[k], head=head, seed=seed) for image, k in zip(x, numbers, strict=True)
    ]
    return [torch.as_tensor(own.heat(k, top=_TOP)) for own, k in zip(explained, numbers, strict=True)]

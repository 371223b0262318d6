"""How a model sees images, ready to be drawn: its decision, one feature and where that looks, the terms of the score."""

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from bndl.explain.choose import Rule
from bndl.explain.classes import feature_name
from bndl.explain.explanation import Explanation
from bndl.explain.figure import Bar, Look
from bndl.explain.maps import head_of
from bndl.explain.place import Method, look_at
from bndl.features import evaluating, one_pass

if TYPE_CHECKING:
    from bndl.explain.subject import Subject

__all__ = ["dense_looks", "our_looks"]

_BARS = 9
_BY = {"channel": "channel map", "gradcam": "Grad-CAM", "lime": "LIME"}
_WHY = {"weight": "weight", "activation": "activation", "contribution": "adds"}


def our_looks(
    subject: "Subject",
    x: Tensor,
    found: list[Explanation],
    *,
    rule: Rule = "contribution",
    method: Method | None = None,
    seed: int = 0,
) -> list[Look]:
    """How a model with a decision layer sees each image; ``found`` are its explanations of them.

    Args:
        subject: the model and the names of its classes.
        x: (B, C, H, W) as the model takes it.
        found: what :func:`bndl.explain` says of ``x``.
        rule: which feature to show.
        method: where it is taken to look.
        seed: of LIME.
    """
    targets = torch.tensor([one.target for one in found])
    seen = look_at(subject.model, x, targets, rule=rule, method=method, seed=seed)
    return [
        Look(
            model="BNDL",
            prediction=subject.classes[one.label],
            about=f"{_percent(one.probability)}, {'certain' if one.certain else 'uncertain'} ({_p(one.p_value)})",
            feature=feature_name(seen.feature[i], one.in_features),
            why=f"{_WHY[rule]} {seen.score[i]:.2f} ({_BY[seen.method]})",
            heat=seen.heats[i],
            target=subject.classes[one.target],
            bars=tuple(
                Bar(feature_name(t.feature, one.in_features), t.value, t.low, t.high) for t in one.terms[:_BARS]
            ),
            total=_total(one),
        )
        for i, one in enumerate(found)
    ]


def dense_looks(
    model: nn.Module,
    x: Tensor,
    classes: tuple[str, ...],
    *,
    target: int | None = None,
    rule: Rule = "contribution",
    method: Method | None = None,
    seed: int = 0,
) -> list[Look]:
    r"""How a model with a linear head sees each image; its terms :math:`h_k W_{ck}` have either sign.

    Args:
        model: a model that ends in an ``nn.Linear``.
        x: (B, C, H, W) as the model takes it.
        classes: the names.
        target: the class to explain; by default the model's decision.
        rule: which feature to show.
        method: where it is taken to look.
        seed: of LIME.
    """
    head = head_of(model)
    with evaluating(model):
        features, logits = one_pass(model, x, head=head)
    decided = logits.argmax(dim=1).cpu()
    targets = decided if target is None else torch.full_like(decided, target)
    seen = look_at(model, x, targets, rule=rule, method=method, seed=seed)
    terms = (features * head.weight[targets.to(head.weight.device)]).detach().cpu()
    confidence = logits.softmax(dim=1).amax(dim=1).tolist()
    looks = []
    for i, own in enumerate(terms):
        best = own.abs().argsort(descending=True)[:_BARS]
        score, rest = float(logits[i, targets[i]]), float(own.sum() - own[best].sum())
        looks.append(
            Look(
                model="Dense",
                prediction=classes[int(decided[i])],
                about=_percent(confidence[i]),
                feature=f"f{seen.feature[i]}",
                why=f"{_WHY[rule]} {seen.score[i]:.2f} ({_BY[seen.method]})",
                heat=seen.heats[i],
                target=classes[int(targets[i])],
                bars=tuple(Bar(f"f{k}", *3 * (float(own[k]),)) for k in best.tolist()),
                total=f"{int((own != 0).sum()) - len(best)} more terms {rest:+.2f}, in all {score:.2f} with the bias",
            )
        )
    return looks


def _total(one: Explanation) -> str:
    listed = one.terms[:_BARS]
    rest = one.logit - one.bias - sum(term.value for term in listed)
    return f"{one.num_terms - len(listed)} more terms {rest:+.2f}, bias {one.bias:+.2f}: in all {one.logit:.2f}"


def _percent(share: float) -> str:
    return "> 99.9 %" if share > 0.9995 else f"{100 * share:.1f} %"


def _p(value: float) -> str:
    return "p < 0.001" if value < 0.001 else f"p = {value:.3f}"

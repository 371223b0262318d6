r"""What the explorer says of one image: the decision, how sure, why, where, and what the posterior's draws say."""

import math
from typing import Any

import torch
from torch import Tensor

from bndl.decide import Decider
from bndl.errors import InputError
from bndl.explain.classes import feature_name
from bndl.explain.contributions import contribution_map
from bndl.explain.explanation import Explanation, explain
from bndl.layer import DecisionLayer, Posterior
from bndl.prediction import Prediction
from bndl.report.asked import Asked
from bndl.report.session import Image, Seen, Session
from bndl.report.shown import heat_uri, jpeg_uri, large

__all__ = ["answer", "effect_record", "sampled_differences"]

_TERMS = 10
_CLASSES = 8  # whose probabilities are listed
_LOOKS = 6  # features whose own maps are shown
_DRAWS = 500
_LISTED = 600  # examples that are named of those that edits fix or break


def answer(session: Session, asked: Asked) -> dict[str, Any]:
    """JSON-ready: everything the page shows of an image, with the edits that came with the question."""
    image, layer = session.image(asked.image), session.head(asked.made())
    seen = session.see(image)
    told = Decider(layer, seed=session.seed)(seen.features)
    label = int(told.labels[0])
    other = _other(asked, image, label, int(told.runner_up[0]), layer.out_features)
    target = torch.tensor([label, other])
    pair = explain(layer, seen.features.expand(2, -1), target=target, top=_TERMS, maps=False, seed=session.seed)
    before = Decider(session.head(), seed=session.seed)(seen.features) if asked.edits else told
    return {
        "name": image.name,
        "example": image.example,
        "truth": image.truth,
        "decile": None if image.example is None else int(session.decile[image.example]),
        **_decision(told),
        "before": {"label": int(before.labels[0]), "probability": _finite(float(before.confidence[0]))},
        "edited": bool(asked.edits),
        "other": other,
        "predicted": _side(pair[0]),
        "against": _side(pair[1]),
        "draws": _draws(layer, seen.features, label, other, seed=session.seed),
        "pictures": _pictures(layer, image, seen, pair),
    }


def _other(asked: Asked, image: Image, label: int, runner_up: int, num_classes: int) -> int:
    """The class to compare with: the one that was asked for, else the truth, else the runner-up."""
    if asked.against is not None and asked.against >= num_classes:
        raise InputError(f"there are classes 0 to {num_classes - 1}, not {asked.against}.")
    return next(c for c in (asked.against, image.truth, runner_up) if c is not None and c != label)


def _decision(told: Prediction) -> dict[str, Any]:
    probs = told.probs[0]
    best = probs.argsort(descending=True, stable=True).tolist()
    label = int(told.labels[0])
    listed = [label, *(c for c in best if c != label)][:_CLASSES]
    return {
        "label": label,
        "runner_up": int(told.runner_up[0]),
        "probability": _finite(float(told.confidence[0])),
        "p_value": _finite(float(told.p_value[0])),
        "flip": _finite(float(told.flip_probability[0])),
        "certain": bool(told.certain[0]),
        "probabilities": [{"class": c, "probability": float(probs[c])} for c in listed],
        "rest": max(0.0, 1.0 - float(probs[listed].double().sum())),
    }


def _side(found: Explanation) -> dict[str, Any]:
    """As the page's staircases take it."""
    terms = [
        {
            "feature": term.feature,
            "label": feature_name(term.feature, found.in_features),
            "value": term.value,
            "low": _finite(term.low),
            "high": _finite(term.high),
        }
        for term in found.terms
    ]
    return {"class": found.target, "logit": found.logit, "bias": found.bias, "terms": terms, "rest": found.rest}


def _draws(layer: DecisionLayer, features: Tensor, first: int, second: int, *, seed: int) -> dict[str, Any]:
    found = sampled_differences(layer, features, first, second, num_samples=_DRAWS, seed=seed)
    return {"first": first, "second": second, "differences": [round(value, 4) for value in found.tolist()]}


@torch.no_grad()
def sampled_differences(
    layer: DecisionLayer, features: Tensor, first: int, second: int, *, num_samples: int, seed: int = 0
) -> Tensor:
    r"""Draws of :math:`d = \sum_k \theta_k (\Phi_{ka} - \Phi_{kb}) + b_a - b_b` of one example, (S,).

    Args:
        layer: the decision layer.
        features: (1, in_features).
        first: a.
        second: b.
        num_samples: S, each with a theta and a Phi of its own.
        seed: of the draws.
    """
    generator = torch.Generator(features.device).manual_seed(seed)
    theta, phi = layer.theta(features.to(layer.phi().mean.dtype)), layer.phi()
    shape = phi.shape.expand(phi.mean.size())[[first, second]]
    drawn = Posterior(theta.mean.expand(num_samples, -1), theta.shape).sample(generator=generator)  # (S, K)
    both = Posterior(phi.mean[[first, second]].expand(num_samples, -1, -1), shape).sample(generator=generator)
    offset = layer.offset()
    shift = 0.0 if offset is None else float(offset[first] - offset[second])
    found: Tensor = (drawn * (both[:, 0] - both[:, 1])).sum(dim=1).cpu() + shift
    return found


def _pictures(layer: DecisionLayer, image: Image, seen: Seen, pair: list[Explanation]) -> dict[str, Any]:
    """The image, and where there are maps the evidence for both classes in one scale, and what its main features see."""
    picture = large(image.pixels)
    record: dict[str, Any] = {"image": jpeg_uri(picture), "map": None, "map_against": None, "features": []}
    if seen.maps is None:
        return record
    targets = torch.tensor([one.target for one in pair], device=seen.maps.device)
    heat = contribution_map(layer, seen.maps.expand(2, -1, -1, -1), targets).cpu()
    most = float(heat.max())
    record |= {"map": heat_uri(picture, heat[0], most=most), "map_against": heat_uri(picture, heat[1], most=most)}
    for term in pair[0].terms[:_LOOKS]:
        own = seen.maps[0, term.feature % layer.in_features].cpu()
        own = own if term.feature < layer.in_features else -own
        name = feature_name(term.feature, layer.in_features)
        record["features"].append({"feature": term.feature, "label": name, "map": heat_uri(picture, own.clamp_min(0))})
    return record


def effect_record(session: Session, edits: Any) -> dict[str, Any]:
    """What edits fix and break among all examples, JSON-ready."""
    found = session.effect(edits)
    certain = session.prediction.certain

    def rows(numbers: Tensor) -> list[dict[str, Any]]:
        return [session.row(i, label=int(found.after[i])) for i in numbers[:_LISTED].tolist()]

    return {
        "count": found.num_examples,
        "right_before": found.accuracy_before,
        "right_after": found.accuracy_after,
        "num_fixed": len(found.fixed),
        "num_broken": len(found.broken),
        "num_changed": len(found.changed),
        "sure_fixed": int(certain[found.fixed].sum()),
        "sure_broken": int(certain[found.broken].sum()),
        "fixed": rows(found.fixed),
        "broken": rows(found.broken),
        "by_class": [
            {"class": one.index, "count": one.count, "fixed": one.fixed, "broken": one.broken}
            for one in found.by_class
            if one.fixed or one.broken
        ],
    }


def _finite(value: float) -> float | None:
    """JSON knows no other numbers."""
    return value if math.isfinite(value) else None

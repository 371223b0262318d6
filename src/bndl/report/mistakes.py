"""Wrong decisions taken apart: the terms of both scores, where they come from, and LIME's view of the largest."""

import contextlib
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from bndl.errors import BndlError, MissingExtraError
from bndl.explain.explanation import Explanation, explain
from bndl.explain.lime import Lime, lime
from bndl.progress import track
from bndl.report.decided import Decided
from bndl.report.pictures import Pictures
from bndl.report.schema import Mistake, Side, TermRecord
from bndl.report.thumbs import heated

__all__ = ["Asked", "mistake_records"]

_TERMS = 12
_GRID_BELOW = 64  # side of images that are too small for super-pixels
_PARTS = 36  # of an image, for LIME
_BATCH = 8  # images a pass
_TOP = 10  # super-pixels shown, as in the paper


@dataclass(frozen=True)
class Asked:
    """How much LIME is to do: for how many mistakes, the first, with how many perturbations each, by which seed."""

    num_images: int
    num_perturbations: int
    seed: int = 0


def mistake_records(
    decided: Decided, chosen: list[int], *, rows: dict[int, int], pictures: Pictures, asked: Asked
) -> tuple[tuple[Mistake, ...], str]:
    """The records of some mistakes, and what LIME could not do, in a sentence ("" if nothing).

    Args:
        decided: what was decided.
        chosen: the examples.
        rows: example -> row in the report.
        pictures: of the examples.
        asked: of LIME.
    """
    if not chosen:
        return (), ""
    index = torch.tensor(chosen)
    features, truth = decided.data.features[index].float(), decided.truth[index]
    predicted = explain(decided.layer, features, top=_TERMS, maps=False, seed=asked.seed)
    true = explain(decided.layer, features, target=truth, top=_TERMS, maps=False, seed=asked.seed)
    shown, said = _shown(decided, chosen, predicted, pictures, asked)
    return tuple(
        Mistake(row=rows[example], **vars(own), predicted=_side(one), truth=_side(other))
        for example, own, one, other in zip(chosen, shown, predicted, true, strict=True)
    ), said


def _side(found: Explanation) -> Side:
    terms = tuple(TermRecord(term.feature, term.value, term.low, term.high) for term in found.terms)
    return Side(found.target, found.logit, found.bias, terms, found.rest)


@dataclass(frozen=True)
class _Seen:
    """The thumbs of a mistake."""

    image: int | None = None
    map: int | None = None
    map_truth: int | None = None
    lime: int | None = None
    lime_r2: float | None = None
    lime_feature: int | None = None


def _shown(
    decided: Decided, chosen: list[int], predicted: list[Explanation], pictures: Pictures, asked: Asked
) -> tuple[list[_Seen], str]:
    """What there is to see of each mistake, and what LIME could not do."""
    if pictures.data is None:
        return [_Seen()] * len(chosen), ""
    found, said = [], ""
    for position, (example, why) in enumerate(track(list(zip(chosen, predicted, strict=True)), "mistakes")):
        images = pictures.read([example])
        large = pictures.large(images)[0]
        own = _Seen(image=pictures.album.add(large))
        own = _with_maps(own, decided, example, images, pictures)
        if position < asked.num_images and why.terms and not said:
            try:
                own = _with_lime(own, images, why.terms[0].feature, pictures, asked)
            except BndlError as error:  # the rest of the report does not need it
                said = f"LIME was left out: {error}"
        found.append(own)
    return found, said


def _with_maps(own: _Seen, decided: Decided, example: int, images: Tensor, pictures: Pictures) -> _Seen:
    """Evidence for the predicted and for the true class, in one scale."""
    pair = torch.stack([decided.prediction.labels[example], decided.truth[example]])
    heat = pictures.evidence(images.expand(2, -1, -1, -1), pair)
    if heat is None:
        return own
    large, most = pictures.large(images)[0], float(heat.max())
    tiles = [pictures.album.add(heated(large, one, most=most)) for one in heat]
    return replace(own, map=tiles[0], map_truth=tiles[1])


def _with_lime(own: _Seen, images: Tensor, feature: int, pictures: Pictures, asked: Asked) -> _Seen:
    """The super-pixels that raise the largest term's feature most, and how well they account for it."""
    found = _explained(pictures.ready(images)[0], feature, pictures, asked)
    tile = heated(pictures.large(images)[0], found.heat(feature, top=_TOP), smooth=False)
    r2 = float(found.r2[found.row(feature)])
    return replace(own, lime=pictures.album.add(tile), lime_r2=r2, lime_feature=feature)


def _explained(image: Tensor, feature: int, pictures: Pictures, asked: Asked) -> Lime:
    side = min(image.size(1), image.size(2))
    options: dict[str, Any] = {
        "count": max(2, min(_PARTS, side * side // 4)),
        "num_perturbations": asked.num_perturbations,
        "features": [feature],
        "seed": asked.seed,
        "batch_size": _BATCH,
        "progress": False,
    }
    if side >= _GRID_BELOW:
        with contextlib.suppress(MissingExtraError):  # a grid does without scikit-image
            return lime(pictures.model, image, segments="slic", **options)
    return lime(pictures.model, image, segments="grid", **options)

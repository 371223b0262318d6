"""LIME on demand: one set of perturbations explains every feature and every class of an image, so each is then a look-up."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from bndl.edit import Editor
from bndl.errors import InputError, MissingExtraError
from bndl.explain.lime import Lime, lime
from bndl.explain.surrogate import Surrogate
from bndl.report.asked import Explained
from bndl.report.jobs import Job
from bndl.report.session import Session
from bndl.report.shown import heat_uri, large

__all__ = ["Limed", "lime_work"]

_PARTS, _TOP = 48, 10  # super-pixels, and how many of them are shown, as in the paper
_GRID_BELOW = 64  # side of images that are too small for super-pixels
_BATCH = 16  # a job is stopped between two batches


@dataclass(frozen=True)
class Limed:
    """What LIME found in an image."""

    found: Lime
    picture: Tensor

    def heat(self, *, feature: int | None, target: int | None) -> dict[str, Any]:
        """The ten super-pixels that raise a feature, or a class's logit, most; and how far to believe it."""
        if (feature is None) == (target is None):
            raise InputError("LIME shows one feature or one class: give one of the two.")
        surrogate: Surrogate
        if feature is not None:
            heat, surrogate, row = self.found.heat(feature, top=_TOP), self.found, self.found.row(feature)
        else:
            assert target is not None
            heat, surrogate, row = self.found.class_heat(target, top=_TOP), self.found.classes, target
        facts = {name: float(getattr(surrogate, name)[row]) for name in ("r2", "stability", "overlap")}
        return {
            "feature": feature,
            "target": target,
            "picture": heat_uri(self.picture, heat, smooth=False),
            "perturbations": self.found.num_perturbations,
            "parts": surrogate.coefficients.size(1),
        } | {name: value if math.isfinite(value) else None for name, value in facts.items()}


def lime_work(session: Session, model: Callable[[], nn.Module], asked: Explained) -> Callable[[Job], Limed]:
    """The work of one job.

    Args:
        session: what is explored.
        model: gives a model that belongs to the one thread that does such work.
        asked: which image, with which edits.
    """
    image = session.image(asked.image)  # what is wrong with the question is said at once
    session.head(asked.made())

    def work(job: Job) -> Limed:
        own = model()
        editor = Editor(own)
        try:
            for edit in asked.made():
                editor.apply(edit)
            found = _explained(own, session.ready(image)[0], asked.perturbations, session.seed, job.progress)
        finally:
            editor.reset()
        return Limed(found, large(image.pixels))

    return work


def _explained(model: nn.Module, image: Tensor, count: int, seed: int, on_progress: Callable[[int, int], None]) -> Lime:
    side = min(image.size(1), image.size(2))
    options: dict[str, Any] = {
        "count": min(_PARTS, max(4, side * side // 4)),
        "num_perturbations": count,
        "seed": seed,
        "batch_size": _BATCH,
        "progress": False,
        "on_progress": on_progress,
    }
    if side >= _GRID_BELOW:
        try:
            return lime(model, image, segments="slic", **options)
        except MissingExtraError:
            pass  # a grid does without scikit-image
    return lime(model, image, segments="grid", **options)

"""A run that is being explored: what many readers at once may ask of it, with nothing that one of them could spoil.

Nothing here changes after the start except the uploads. The model passes images under a lock, because finding what enters
its decision layer means listening to it; everything behind the features is computed with a copy of the layer that belongs
to one request, edited as that request says.
"""

import copy
import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from bndl.decide import Decider
from bndl.edit import Edit, Editor
from bndl.effect import Effect, compared
from bndl.explain.contributions import has_contribution_map
from bndl.explain.maps import features_and_maps
from bndl.features import evaluating, features_of
from bndl.layer import DecisionLayer
from bndl.prediction import Prediction, cat
from bndl.report.asked import Chosen, Filtered
from bndl.report.of_run import Opened
from bndl.report.refused import RefusedError
from bndl.report.rows import names_of
from bndl.report.shown import jpeg_uri
from bndl.report.thumbs import SMALL, shrunk
from bndl.report.uploads import Uploads, pixels_of

__all__ = ["Image", "Session"]

_ROWS = 4096  # examples a product
_THUMBS = 4096  # that are kept


@dataclass(frozen=True)
class Image:
    """What is asked about: pixels (C, H, W) uint8, its name, and for an example of the data its number and true class."""

    pixels: Tensor
    name: str
    example: int | None = None
    truth: int | None = None


@dataclass(frozen=True)
class Seen:
    """Features (1, in_features) of an image, and the maps (1, in_features, H, W) whose averages they are, if any."""

    features: Tensor
    maps: Tensor | None


class Session:
    """A run, its data, and what both give together.

    Args:
        opened: the run and the data with their features.
        report: the report's data, as a dict; what is shown at first.
        seed: of everything random.
    """

    def __init__(self, opened: Opened, report: Mapping[str, Any], *, seed: int = 0) -> None:
        self.opened, self.report, self.seed = opened, report, seed
        run = opened.subject.run
        self.classes, self.folder = run.classes, run.folder
        self.uploads = Uploads()
        self._model, self._layer = opened.subject.model, opened.subject.layer
        self._head, self._passing, self._reading = copy.deepcopy(self._layer), threading.Lock(), threading.Lock()
        self._names = names_of(opened.data)
        self._thumbs: OrderedDict[int, str] = OrderedDict()

    # ------------------------------------------------------------------------------------------------------- the model

    def head(self, edits: Sequence[Edit] = ()) -> DecisionLayer:
        """A decision layer of the caller's own, with these edits made."""
        editor = Editor(copy.deepcopy(self._head))
        for edit in edits:
            editor.apply(edit)
        return editor.layer

    def model(self) -> nn.Module:
        """A copy of the model that belongs to the caller."""
        with self._passing:  # nobody listens to its modules now
            return copy.deepcopy(self._model)

    def see(self, image: Image) -> Seen:
        """One pass of the backbone."""
        x = self.ready(image)
        with self._passing, evaluating(self._model):
            if has_contribution_map(self._layer):
                features, found = features_and_maps(self._model, x, head=self._layer)
            else:
                features, found = features_of(self._model, x), None
        return Seen(features, None if found is None else found.maps)

    def ready(self, image: Image) -> Tensor:
        """An image as the model takes it, (1, C, H, W)."""
        return self.opened.subject.inputs(image.pixels[None])

    def effect(self, edits: Sequence[Edit]) -> Effect:
        """What edits do to all of the data; no image passes the backbone again."""
        return compared(self.head(), self.head(edits), self.opened.features)

    # -------------------------------------------------------------------------------------------------------- the data

    @cached_property
    def prediction(self) -> Prediction:
        """Of all examples, without edits."""
        layer = self.head()
        decider = Decider(layer, seed=self.seed)
        return cat([decider(rows.to(layer.weight)) for rows in self.opened.features.features.split(_ROWS)])

    @cached_property
    def decile(self) -> np.ndarray[Any, np.dtype[np.int64]]:
        """(N,) which tenth each example is in, as the report has it, 0 the surest."""
        trust, told = self.report["trust"], self.prediction
        unsure = told.flip_probability if trust["by"] == "flip_probability" else 1 - told.confidence
        sizes = [one["count"] for one in trust["deciles"]]
        decile = np.full(len(unsure), len(sizes) - 1)
        decile[unsure.argsort(stable=True).numpy()[: sum(sizes)]] = np.repeat(np.arange(len(sizes)), sizes)
        return decile

    def image(self, chosen: Chosen) -> Image:
        """What was chosen."""
        if chosen.upload is not None:
            return Image(self.uploads.get(chosen.upload), "your image")
        number, data = int(chosen.example or 0), self.opened.data
        if number >= len(data):
            raise RefusedError(
                f"The data have {len(data):,} examples, numbered from 0: there is no {number}.", status=404
            )
        with self._reading:
            pixels, truth = data[number]
        return Image(pixels, self.name(number), number, truth)

    def name(self, example: int) -> str:
        """What an example is called."""
        return f"example {example}" if self._names is None else self._names[example]

    def upload(self, raw: bytes) -> str:
        """Keep an image that was sent, as bytes of a file; its key."""
        run = self.opened.subject.run
        return self.uploads.add(pixels_of(raw, size=run.side, resize=run.recipe.data.resize, channels=run.channels))

    def examples(self, asked: Filtered) -> dict[str, Any]:
        """A page of the examples that fit, and how many do."""
        told, truth = self.prediction, self.opened.features.labels.cpu()
        wrong, kept = told.labels != truth, torch.ones(len(truth), dtype=torch.bool)
        kept &= {
            "all": kept,
            "right": ~wrong,
            "wrong": wrong,
            "sure-wrong": wrong & told.certain,
            "unsure-right": ~wrong & ~told.certain,
        }[asked.outcome]
        if asked.target is not None:
            kept &= (told.labels == asked.target) | (truth == asked.target)
        if asked.decile is not None:
            kept &= torch.from_numpy(self.decile == asked.decile)
        found = kept.nonzero().flatten()
        if asked.order != "number":
            found = found[told.flip_probability[found].argsort(stable=True, descending=asked.order == "unsure")]
        page = found[asked.start : asked.start + asked.count].tolist()
        return {"total": len(found), "examples": [self.row(number) for number in page]}

    def row(self, example: int, *, label: int | None = None) -> dict[str, Any]:
        """What a tile shows of an example; ``label``: what is decided now."""
        told = self.prediction
        return {
            "example": example,
            "name": self.name(example),
            "before": int(told.labels[example]),
            "label": int(told.labels[example]) if label is None else label,
            "truth": int(self.opened.features.labels[example]),
            "probability": float(told.confidence[example]),
            "certain": bool(told.certain[example]),
        }

    def thumbs(self, examples: Sequence[int]) -> dict[str, str]:
        """Small pictures of some examples as data URIs, by their numbers."""
        return {str(number): self._thumb(number) for number in examples}

    def _thumb(self, number: int) -> str:
        found = self._thumbs.get(number)
        if found is None:
            found = jpeg_uri(shrunk(self.image(Chosen(example=number)).pixels[None], 2 * SMALL)[0])
            with self._reading:
                self._thumbs[number] = found
                if len(self._thumbs) > _THUMBS:
                    self._thumbs.popitem(last=False)
        return found

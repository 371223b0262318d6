"""From a model and labelled data to everything the report shows."""

import datetime
import json
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from bndl._version import __version__
from bndl.convert import find_layer
from bndl.data.sets import LabelledSet
from bndl.errors import BndlError, InputError
from bndl.features import FeatureSet, extract
from bndl.report.budget import fit_thumbs
from bndl.report.classes import class_example, class_lists, class_records, listed_features
from bndl.report.decided import Decided, decide
from bndl.report.faithful import faithfulness_of
from bndl.report.features import feature_records, shown_of
from bndl.report.figures import LEVEL, trust_of, verdict_of
from bndl.report.mistakes import Asked, mistake_records
from bndl.report.pictures import Pictures, channels_last, pictures_of
from bndl.report.rows import choose_rows, example_rows, names_of, num_rows, surest_mistakes
from bndl.report.schema import Faithfulness, Meta, Method, ReportData, Thumbs

__all__ = ["About", "Options", "collect"]

_LIMITS = (
    "A score is exactly the sum of its terms; what a feature means is for the reader to judge from its images. The images "
    "with the largest activations flatter a feature: look at the moderate ones as well.",
    "Intervals of weights and terms hold 90 % of the posterior; those of figures are 95 % bootstrap or Wilson intervals "
    "over examples. Neither knows of data of another kind.",
    "A term's value is its posterior mean, its whisker the central 90 % interval: for a very noisy feature the mean can lie "
    "outside it.",
    "A decision is called certain where its p-value, for a test with 20 draws, is at most 0.05. PAvPU means something "
    "next to its baseline only: calling every decision certain scores the accuracy.",
    "Edits in this page move the mean scores, with activations in half precision; certainty is not computed anew. The "
    "command line and the explorer compute edits in full.",
)
_MAPS = (
    "Heat maps are exact for the last map of the network, which is coarse and sees far beyond its cells; the colours of an "
    "image are scaled to its own largest value, those of a mistake's two classes alike."
)
_LIME = "LIME's tile is an approximation by a linear model over super-pixels: trust it as far as its R² goes."


@dataclass(frozen=True)
class About:
    """What is written on top.

    Attributes:
        title: of the report.
        run: what the model is called.
        data: what the data are called.
        backbone: the network's name.
        notes: what the reader has to know, in sentences.
        created: ISO date; now by default.
    """

    title: str
    run: str = ""
    data: str = ""
    backbone: str = ""
    notes: tuple[str, ...] = ()
    created: str | None = None


@dataclass(frozen=True)
class Options:
    """How much goes into the report.

    Attributes:
        num_faithful: images that deletion and insertion are measured on; 0: they are left out.
        num_lime: mistakes that LIME looks at.
        num_perturbations: of LIME, an image.
        num_mistakes: that are taken apart.
        num_features: that are shown.
        num_top: images of a feature at its most active.
        num_moderate: images of a feature at its usual.
        num_resamples: of the bootstrap.
        seed: of everything random.
        max_bytes: of the JSON.
        max_row_bytes: of the examples in it.
    """

    num_faithful: int = 32
    num_lime: int = 12
    num_perturbations: int = 100
    num_mistakes: int = 24
    num_features: int = 120
    num_top: int = 4
    num_moderate: int = 3
    num_resamples: int = 1000
    seed: int = 0
    max_bytes: int = 4_600_000
    max_row_bytes: int = 2_700_000

    def __post_init__(self) -> None:
        for name in ("num_faithful", "num_lime", "num_mistakes", "num_moderate"):
            if getattr(self, name) < 0:
                raise InputError(f"{name} must be at least 0, got {getattr(self, name)}.")
        for name in ("num_features", "num_top", "num_resamples", "max_bytes", "max_row_bytes"):
            if getattr(self, name) < 1:
                raise InputError(f"{name} must be at least 1, got {getattr(self, name)}.")


def _as_it_is(images: Tensor) -> Tensor:
    return images


def _silent(stage: str) -> None:
    pass


def collect(
    model: nn.Module,
    data: LabelledSet | None,
    *,
    features: FeatureSet | None = None,
    classes: tuple[str, ...] | None = None,
    about: About | None = None,
    options: Options | None = None,
    ready: Callable[[Tensor], Tensor] = _as_it_is,
    dense: nn.Module | None = None,
    stage: Callable[[str], None] = _silent,
) -> ReportData:
    """Everything the report shows of a model on labelled data.

    What cannot be had (images, maps, an extra that is not installed) is left out, and said.

    Args:
        model: a model with a :class:`bndl.DecisionLayer`, or the layer itself.
        data: labelled images, or None where there are only ``features``.
        features: what the layer sees of the same examples, if it was computed before.
        classes: their names; by default those of the data, or numbers.
        about: what is written on top.
        options: how much goes in.
        ready: images (B, C, H, W) as ``data`` has them -> as the model takes them.
        dense: a dense twin of the model, whose explanations are compared with.
        stage: is told what is being done, for a progress display.
    """
    options, about = options or Options(), about or About("report")
    layer = find_layer(model)
    if features is None:
        if data is None:
            raise InputError("a report needs labelled examples: give data or features.")
        stage("features")
        features = extract(model, [(ready(x[None]), y[None]) for x, y in _each(data)])
    if data is not None and len(data) != len(features):
        raise InputError(
            f"there are {len(data)} examples but features of {len(features)}: give those of the same data."
        )
    names = classes or (data.classes if data is not None else tuple(map(str, range(layer.out_features))))
    stage("figures")
    decided = decide(layer, features, classes=names, seed=options.seed, num_resamples=options.num_resamples)
    with channels_last(model):
        pictures, said = pictures_of(model, layer, data, ready)
        collected = _Collected(decided, pictures, options, stage)
        stage("faithfulness")
        faithfulness, unfaithful = _faithfulness(collected, dense)
        limits = [*_LIMITS, *([_MAPS] if pictures.has_maps else []), *([_LIME] if options.num_lime else [])]
        return collected.report(about, [*about.notes, said, unfaithful], limits, faithfulness)


def _each(data: LabelledSet) -> "list[tuple[Tensor, Tensor]]":
    return [(data[i][0], data.labels[i]) for i in range(len(data))]


def _faithfulness(collected: "_Collected", dense: nn.Module | None) -> tuple[Faithfulness | None, str]:
    options = collected.options
    if not options.num_faithful:
        return None, "Faithfulness was not measured."
    try:
        return faithfulness_of(
            collected.decided, collected.pictures, dense, num_images=options.num_faithful, seed=options.seed
        )
    except BndlError as error:
        return None, f"Faithfulness was not measured: {error}"


@dataclass(frozen=True)
class _Collected:
    """The parts of a report that is being made."""

    decided: Decided
    pictures: Pictures
    options: Options
    stage: Callable[[str], None]

    def report(
        self, about: About, notes: list[str], limits: list[str], faithfulness: Faithfulness | None
    ) -> ReportData:
        """Choose, look, take apart; then fit it into the page."""
        decided, options = self.decided, self.options
        lists = class_lists(decided)
        listed = listed_features(decided, lists, most=options.num_features)
        theta = decided.theta(listed)
        shown = [
            shown_of(own, num_top=options.num_top, num_moderate=options.num_moderate) for own in theta.unbind(dim=1)
        ]
        self.stage("what features mean")
        features = feature_records(decided, listed, theta, shown, self.pictures)
        classes = class_records(decided, lists, self.pictures)
        wrong = surest_mistakes(decided)
        rows = self._rows(listed, wrong, [i for own in shown for i in (*own.top, *own.moderate)])
        self.stage("mistakes")
        mistakes, unlimed = mistake_records(
            decided,
            wrong[: options.num_mistakes],
            rows={example: row for row, example in enumerate(rows)},
            pictures=self.pictures,
            asked=Asked(options.num_lime, options.num_perturbations, options.seed),
        )
        self.stage("putting it together")
        names = names_of(self.pictures.data)
        report = ReportData(
            meta=self._meta(about, [*notes, unlimed]),
            verdict=verdict_of(decided.evaluation),
            trust=trust_of(decided.evaluation, decided.examples),
            classes=classes,
            features=features,
            examples=example_rows(decided, rows, features=listed, theta=theta, thumbs={}, names=names),
            mistakes=mistakes,
            thumbs=Thumbs((), ()),
            faithfulness=faithfulness,
            method=Method(tuple(limits)),
        )
        thumbs, found = self._fitted(report, rows, wrong)
        examples = example_rows(decided, rows, features=listed, theta=theta, thumbs=found, names=names)
        return replace(report, thumbs=thumbs, examples=examples)

    def _rows(self, listed: list[int], wrong: list[int], shown: list[int]) -> list[int]:
        decided, options = self.decided, self.options
        names = names_of(self.pictures.data)
        length = 0.0 if names is None else sum(map(len, names)) / len(names)
        most = num_rows(
            options.max_row_bytes,
            num_classes=len(decided.classes),
            num_features=len(listed),
            name_length=length,
        )
        of_classes = (class_example(decided, target) for target in range(len(decided.classes)))
        needed = [*wrong[: options.num_mistakes], *(i for i in of_classes if i is not None)]
        return choose_rows(decided, needed, wanted=shown, most=most, seed=options.seed)

    def _fitted(self, report: ReportData, rows: list[int], wrong: list[int]) -> tuple[Thumbs, dict[int, int]]:
        """The sheets that fit beside the rest, and the thumb of each example that has one on them."""
        album, options = self.pictures.album, self.options
        needed = len(album)
        budget = options.max_bytes - len(json.dumps(report.to_dict(), separators=(",", ":")))
        if self.pictures.data is not None:
            kept = set(rows)
            order = torch.randperm(len(rows), generator=torch.Generator().manual_seed(options.seed)).tolist()
            for example in [*(i for i in wrong if i in kept), *(rows[i] for i in order)]:
                if len(album) - needed >= max(0, budget) // _LEAST_TILE:
                    break
                self.pictures.thumb(example)
        fitted = fit_thumbs(album, needed=needed, budget=budget)
        found = {example: number for example, number in self.pictures.numbers.items() if number < fitted.count}
        return fitted.thumbs, found

    def _meta(self, about: About, notes: list[str]) -> Meta:
        decided, layer = self.decided, self.decided.layer
        return Meta(
            title=about.title,
            run=about.run,
            data=about.data,
            created=about.created or datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
            bndl=__version__,
            backbone=about.backbone,
            about=tuple(note for note in notes if note),
            classes=decided.classes,
            num_examples=len(decided),
            num_features=int(getattr(layer, "total_features", layer.num_features)),
            num_used=int(decided.active.any(dim=0).sum()),
            images=self.pictures.data is not None,
            level=LEVEL,
            signed=layer.signed,
        )


_LEAST_TILE = 1200  # bytes of a thumb in the page, at the quality that is worth having

"""Methods that train a whole network: one run of ``bndl train`` for each method and seed, found or made."""

import copy
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

from bndl.baselines import Fitted, Method
from bndl.baselines.ensemble import Ensemble
from bndl.calibrate import calibrate
from bndl.compare.cells import Batches, Measured, measure
from bndl.compare.subjects import Images, RunSource, foreign, images_of
from bndl.convert import find_layer, find_linear
from bndl.data import LabelledSet
from bndl.errors import InputError
from bndl.features import Inputs, evaluating, extract, features_of
from bndl.prediction import Prediction
from bndl.train import Recipe, Run, load_run, train
from bndl.train.augment import Augment
from bndl.train.loading import loader
from bndl.train.record import read_recipe

__all__ = ["Scratch", "ScratchResult"]

_BATCH = 512
Tell = Callable[[str], None]


@dataclass(frozen=True)
class ScratchResult:
    """A method on a network that was trained for it, or on one with a dense head."""

    fitted: Fitted
    measured: Measured
    seconds_to_fit: float
    sepin: Mapping[str, float] | None


@dataclass(frozen=True)
class Scratch:
    """A recipe whose networks are trained from scratch.

    Attributes:
        recipe: for all methods and seeds; its head and seed are replaced.
        runs: folder of the runs, each named RECIPE-METHOD-SEED as ``bndl train`` does; finished ones are used.
        cache: folder of the feature cache.
        ood: data of another kind, name to show -> data set's name or path.
        num_members: networks of a deep ensemble.
        sepin: whether to measure SEPIN@k, on 10,000 test images in two augmented views.
        tell: is given a line for people, now and then.
    """

    recipe: Recipe
    runs: Path
    cache: Path
    ood: Mapping[str, str]
    num_members: int
    sepin: bool
    tell: Tell

    def compute(self, method: Method, seed: int) -> ScratchResult:
        """Train what is not trained yet, fit what is left to fit, predict from images."""
        if self.recipe.model.converted and method.name == "bndl":
            run = self.trained("dense", seed)
            fitted, seconds = self._converted(method, run, seed)
        elif method.from_scratch and (not self.recipe.model.frozen or method.name == "dense"):
            run = self.trained(method.name, seed)
            fitted, seconds = method.predictor(run.model, seed=seed), run.outcome.seconds
        elif isinstance(method, Ensemble) and not self.recipe.model.frozen:
            members = [self.trained("dense", seed + number) for number in range(self.num_members)]
            run, fitted = members[0], method.of([member.model for member in members])
            seconds = sum(member.outcome.seconds for member in members)
        else:
            run = self.trained("dense", seed)
            fitted, seconds = self._fitted_to_features(method, run, seed)
        images = images_of(run)
        ood = {name: _batches(foreign(place, images)) for name, place in self.ood.items()}
        parts = {"val": _batches(images.val), "test": _batches(images.test)}
        sepin = self._sepin(run.model, images) if self.sepin and method.from_scratch else None
        return ScratchResult(fitted, measure(fitted, parts, ood), seconds, sepin)

    def trained(self, head: str, seed: int) -> Run:
        """The run of a head and seed: found, finished or made."""
        recipe = self.recipe.with_head(head, seed=seed)
        folder = self.runs / f"{recipe.name}-{head}-{seed}"
        begun = (folder / "recipe.yaml").is_file()
        if begun:
            _check_same(read_recipe(folder), recipe, folder)
        if not (folder / "results.json").is_file():
            self.tell(f"training {folder}")
            train(recipe, folder, resume=begun, cache=self.cache, tell=self.tell)
        return load_run(folder)

    def _converted(self, method: Method, run: Run, seed: int) -> tuple[Fitted, float]:
        """The dense run with its head converted and calibrated, as ``bndl train`` does at the end."""
        started = time.perf_counter()
        model = method.dress(copy.deepcopy(run.model), **self.recipe.model.layer.model_dump())
        val = extract(model, _batches(images_of(run).val), progress=False)
        calibrate(find_layer(model), val, generator=torch.Generator().manual_seed(seed))
        return method.predictor(model, seed=seed), run.outcome.seconds + time.perf_counter() - started

    def _fitted_to_features(self, method: Method, run: Run, seed: int) -> tuple[Fitted, float]:
        source = RunSource(run.folder.name, "", self.cache, {}, run.folder)
        subject = source.subject
        started = time.perf_counter()
        on_features = method.fit(subject.head, subject.train, subject.val, seed=seed)
        seconds = run.outcome.seconds + time.perf_counter() - started
        return Fitted(_behind(run.model, on_features), on_features.size, on_features.note), seconds

    def _sepin(self, model: nn.Module, images: Images) -> dict[str, float]:
        from bndl.metrics.sepin import sepin_of

        side = int(images.test[0][0].size(-1))
        found = sepin_of(model, images.test, augment=Augment(self.recipe.data.augment, side))
        return {**{str(k): found.at(k) for k in (1, 10, 100, 1000)}, "all": found.all}


def _behind(model: nn.Module, fitted: Fitted) -> Callable[[Inputs], Prediction]:
    """Predictions from what the network takes, of a method that was fitted to its features."""
    head = find_linear(model)[1]

    def predict(inputs: Inputs) -> Prediction:
        with evaluating(model):
            features = features_of(model, inputs, head=head)
        return fitted.predict(features)

    return predict


def _batches(data: LabelledSet) -> Batches:
    return loader(data, batch_size=_BATCH)


def _check_same(found: Recipe, wanted: Recipe, folder: Path) -> None:
    idle = ("layer", "beta", "objective") if wanted.model.head == "dense" else ()  # what says nothing of a linear head
    for part in ("data", "model", "train"):
        theirs, ours = getattr(found, part).model_dump(), getattr(wanted, part).model_dump()
        for key in theirs:
            if theirs[key] != ours[key] and key not in idle:
                raise InputError(
                    f"{folder} was made with {part}.{key} = {theirs[key]!r}, this comparison asks for {ours[key]!r}: give "
                    "another --runs folder, or --set it so."
                )

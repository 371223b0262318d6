"""Methods x subjects x seeds: compute the cells that are missing, keep each as it comes, lose none to another's failure."""

import json
import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from bndl.backbones import CIFAR_CHECKPOINTS
from bndl.baselines import Method, get_method
from bndl.compare.cells import (
    NUM_RESAMPLES,
    Cell,
    Failure,
    Measured,
    feature_batches,
    figures_with_draws,
    measure,
    read_cell,
    write_cell,
)
from bndl.compare.subjects import CheckpointSource, RunSource, Subject, find_source
from bndl.data import find
from bndl.data.sets import digest
from bndl.errors import BndlError, InputError
from bndl.features import FeatureSet

if TYPE_CHECKING:
    from bndl.compare.scratch import Scratch

__all__ = ["Bench", "Comparison", "Options", "benches_of", "check", "compare", "reason_of"]

_LOG = logging.getLogger(__name__)
_AS_THE_PAPER = ("model.converted=false", "model.layer.init_shape=10", "train.beta=null")
Tell = Callable[[str], None]


@dataclass(frozen=True)
class Options:
    """Where things lie, and what is the same for all cells.

    Attributes:
        out: folder of the cells.
        cache: folder of the feature cache; None: ``features`` in ``out``.
        runs: folder of runs that are trained from scratch; None: ``runs`` in ``out``.
        ood: data of another kind, name to show -> data set's name or path.
        settings: changes to a recipe, such as ``train.epochs=5``.
        paper: networks of ours learn with noise and prior, as the paper's do; our recipes from scratch leave both out.
        split_seed: of the halves of a checkpoint's test set.
        num_members: networks of a deep ensemble from scratch.
        sepin: whether to measure SEPIN@k of networks that are trained from scratch.
        again: compute cells anew that are there already.
    """

    out: Path
    cache: Path | None = None
    runs: Path | None = None
    ood: Mapping[str, str] | None = None
    settings: Sequence[str] = ()
    paper: bool = False
    split_seed: int = 0
    num_members: int = 3
    sepin: bool = False
    again: bool = False


@dataclass(frozen=True)
class Comparison:
    """What came out: the cells, those that failed, and what each subject is in words."""

    cells: tuple[Cell, ...]
    failures: tuple[Failure, ...]
    about: Mapping[str, str]


def compare(
    subjects: Sequence[str],
    methods: Sequence[str],
    seeds: Sequence[int],
    *,
    options: Options,
    tell: Tell = lambda _: None,
) -> Comparison:
    """Every method on every subject with every seed.

    Args:
        subjects: checkpoints (:data:`bndl.backbones.CIFAR_CHECKPOINTS`), folders of finished runs with a dense head, or
            recipes, whose networks are trained from scratch.
        methods: names of :data:`bndl.baselines.METHODS`.
        seeds: of everything random in a method; the split of the data is the same for all.
        options: where things lie.
        tell: is given a line for people, as cells come.
    """
    check(subjects, methods, seeds, options)
    for place in (options.ood or {}).values():
        find(place)  # said now, not after hours
    benches = benches_of(subjects, options, tell)
    chosen = [get_method(name) for name in methods]
    outcomes = list(_outcomes(benches, chosen, seeds, options, tell))
    cells = tuple(outcome for outcome in outcomes if isinstance(outcome, Cell))
    failures = tuple(outcome for outcome in outcomes if isinstance(outcome, Failure))
    return Comparison(cells, failures, {bench.name: bench.about for bench in benches})


@dataclass(frozen=True)
class Bench:
    """A subject by its name, and how a cell of it is computed."""

    name: str
    about: str
    source: "CheckpointSource | RunSource | Scratch"

    @cached_property
    def key(self) -> str:
        """What its cells depend on, but method and seed."""
        source = self.source
        parts: dict[str, object] = {"resamples": NUM_RESAMPLES, "ood": dict(source.ood)}
        if isinstance(source, CheckpointSource):
            parts |= {"checkpoint": source.name, "split": source.split_seed}
        elif isinstance(source, RunSource):
            parts["weights"] = digest([(source.folder / "model.safetensors").read_bytes()])
        else:
            parts |= {"recipe": source.recipe.to_yaml(), "members": source.num_members, "sepin": source.sepin}
        return json.dumps(parts, sort_keys=True)

    @cached_property
    def subject(self) -> Subject:
        """The features; of a recipe those of its dense run with seed 0, which is trained if need be."""
        source = self.source
        if isinstance(source, CheckpointSource | RunSource):
            return source.subject
        return RunSource(self.name, "", source.cache, {}, source.trained("dense", 0).folder).subject

    def compute(self, method: Method, seed: int) -> tuple[Cell, Measured]:
        """Fit a method and measure it."""
        if not isinstance(self.source, CheckpointSource | RunSource):
            result = self.source.compute(method, seed)
            fitted, measured, seconds, sepin = result.fitted, result.measured, result.seconds_to_fit, result.sepin
        else:
            subject, sepin = self.source.subject, None
            started = time.perf_counter()
            fitted = method.fit(subject.head, subject.train, subject.val, seed=seed)
            seconds = time.perf_counter() - started
            parts = {"val": feature_batches(subject.val), "test": feature_batches(subject.test)}
            ood = {
                name: feature_batches(FeatureSet(rows, rows.new_zeros(len(rows)))) for name, rows in subject.ood.items()
            }
            measured = measure(fitted, parts, ood)
        figures, draws = figures_with_draws(measured)
        cell = Cell(
            subject=self.name,
            method=method.name,
            seed=seed,
            figures=figures,
            draws=draws,
            size=fitted.size,
            seconds_to_fit=seconds,
            seconds_to_predict=measured.seconds,
            num_test=len(measured.test),
            note=fitted.note,
            sepin=sepin,
        )
        return cell, measured


def benches_of(subjects: Sequence[str], options: Options, tell: Tell = lambda _: None) -> list[Bench]:
    """The subjects, each with a name of its own."""
    benches = [_bench(name, options, tell) for name in subjects]
    names = [bench.name for bench in benches]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise InputError(
            f"two subjects are called {twice!r}, and would share their cells: rename one, or compare apart."
        )
    return benches


def _bench(name: str, options: Options, tell: Tell) -> Bench:
    cache = options.cache or options.out / "features"
    if name in CIFAR_CHECKPOINTS or (Path(name) / "recipe.yaml").is_file():
        if options.settings:
            raise InputError(f"--set changes recipes, and {name} is none: leave it out.")
        source = find_source(name, cache=cache, ood=options.ood, split_seed=options.split_seed)
        return Bench(source.name, source.about, source)
    from bndl.compare.scratch import Scratch
    from bndl.train import load_recipe

    recipe = load_recipe(name, settings=[*(_AS_THE_PAPER if options.paper else ()), *options.settings])
    runs = options.runs or options.out / "runs"
    scratch = Scratch(recipe, runs, cache, options.ood or {}, options.num_members, options.sepin, tell)
    return Bench(recipe.name, recipe.about, scratch)


def _outcomes(
    benches: Sequence[Bench], methods: Sequence[Method], seeds: Sequence[int], options: Options, tell: Tell
) -> Iterator[Cell | Failure]:
    for bench in benches:
        for method in methods:
            for seed in seeds:
                folder = options.out / "cells" / bench.name / f"{method.name}-{seed}"
                found = None if options.again else read_cell(folder, key=bench.key)
                yield found or _try(bench, method, seed, folder, tell)


def _try(bench: Bench, method: Method, seed: int, folder: Path, tell: Tell) -> Cell | Failure:
    """Compute a cell and keep it; what goes wrong is told, and the rest goes on."""
    label = f"{bench.name}, {method.name}, seed {seed}"
    try:
        cell, measured = bench.compute(method, seed)
        write_cell(folder, cell, measured, key=bench.key)
    except Exception as error:  # whatever a package raises: one cell must not lose the others
        _LOG.debug("%s failed", label, exc_info=error)
        tell(f"{label}: failed: {reason_of(error)}")
        return Failure(bench.name, method.name, seed, reason_of(error))
    tell(f"{label}: accuracy {cell.figures['accuracy']:.2%}, NLL {cell.figures['nll']:.4f}")
    return cell


def reason_of(error: Exception) -> str:
    """One line of why something failed."""
    reason = str(error) if isinstance(error, BndlError) else f"{type(error).__name__}: {error}"
    return " ".join(reason.split())


def check(subjects: Sequence[str], methods: Sequence[str], seeds: Sequence[int], options: Options) -> None:
    """What cannot be compared is said before anything is computed."""
    if options.num_members < 1:
        raise InputError(f"an ensemble has at least one member, got {options.num_members}.")
    for what, given in (("subject", subjects), ("method", methods), ("seed", seeds)):
        if not given:
            raise InputError(f"give at least one {what} to compare.")
        if len({*map(str, given)}) != len(given):
            raise InputError(f"each {what} is compared once: {', '.join(map(str, given))} names one twice.")

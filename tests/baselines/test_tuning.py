"""Choosing on held-out examples: the judge's are never learnt from, the start is a candidate, and the seed decides."""

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from bndl.baselines import get_method, mc_dropout, tuning
from bndl.baselines.dense import Dense
from bndl.baselines.method import Fitted
from bndl.baselines.tuning import Candidate, Task, at_best_temperature, best_of, judge, tune
from bndl.features import FeatureSet
from bndl.prediction import Prediction

LEARNT = ("mc-dropout", "belief-matching", "evidential", "nmf")  # by `tune`, from the given head
SEEDED = (*LEARNT, "dense", "temperature", "ensemble", "bndl")


@pytest.fixture(scope="module", autouse=True)
def _quick() -> Iterator[None]:
    """Fewer tries than by default: what holds for two holds for ten."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tuning, "LEARNING_RATES", (1e-2,))
        patch.setattr(mc_dropout, "RATES", (0.1, 0.3))
        yield


@pytest.fixture(scope="module")
def digits(digit_parts: Any) -> dict[str, FeatureSet]:
    """Pixels (N, 64) from 0 to 1, in three parts; they are sixteenths, which half precision holds."""
    return {part: getattr(digit_parts, part) for part in ("train", "val", "test")}


@pytest.fixture(scope="module")
def head(digit_parts: Any) -> nn.Linear:
    """A head that knows its training examples by heart, and so is too sure of others."""
    return digit_parts.head


def rows_of(data: FeatureSet) -> set[tuple[float, ...]]:
    return {tuple(row) for row in data.features.tolist()}


def same_bits(first: Prediction, second: Prediction) -> bool:
    names = [field.name for field in dataclasses.fields(Prediction)]
    return all(torch.equal(getattr(first, name), getattr(second, name)) for name in names)


# ---------------------------------------------------------------------------------------------------------------- task


def test_the_judge_is_a_fifth_of_the_validation_examples_of_every_class(digits: dict[str, FeatureSet]):
    task = Task.of(digits["train"], digits["val"], seed=0)
    assert not rows_of(task.fitting) & rows_of(task.judge)
    assert rows_of(task.fitting) | rows_of(task.judge) == rows_of(digits["val"])
    counts, of_judge = (part.labels.bincount(minlength=10) for part in (digits["val"], task.judge))
    assert (of_judge - counts / 5).abs().max() <= 1


def test_another_seed_has_another_judge(digits: dict[str, FeatureSet]):
    tasks = [Task.of(digits["train"], digits["val"], seed=seed) for seed in (0, 0, 1)]
    assert torch.equal(tasks[0].judge.features, tasks[1].judge.features)
    assert rows_of(tasks[0].judge) != rows_of(tasks[2].judge)


# ---------------------------------------------------------------------------------------------------------------- tune


class Watched(Dense):
    """A dense head that remembers what it was trained on."""

    def __init__(self) -> None:
        self.seen: set[tuple[float, ...]] = set()

    def dress(self, model: nn.Module, **layer: object) -> nn.Module:
        eye = nn.Identity()
        eye.register_forward_hook(self._look)
        return nn.Sequential(eye, model)

    def _look(self, module: nn.Module, args: tuple[Tensor], output: Tensor) -> None:
        if module.training:
            self.seen |= {tuple(row) for row in args[0].tolist()}


def test_no_head_learns_from_the_judge(digits: dict[str, FeatureSet], head: nn.Linear):
    method, task = Watched(), Task.of(digits["train"], digits["val"], seed=0)
    list(tune(method, head, task, epochs=1))
    assert method.seen == rows_of(task.train) | rows_of(task.fitting)
    assert not method.seen & rows_of(task.judge)


def test_the_temperature_of_the_start_does_not_know_the_judge(digits: dict[str, FeatureSet], head: nn.Linear):
    task = Task.of(digits["train"], digits["val"], seed=0)
    other = dataclasses.replace(task, judge=FeatureSet(task.judge.features, task.judge.labels.flip(0)))
    starts = [[c.module for c in tune(Dense(), head, given, epochs=0)][1] for given in (task, other)]
    assert torch.equal(starts[0].weight, starts[1].weight)
    assert not torch.equal(starts[0].weight, head.weight)


@pytest.mark.parametrize("name", LEARNT)
def test_nothing_is_kept_that_judges_worse_than_the_given_head(
    name: str, digits: dict[str, FeatureSet], head: nn.Linear
):
    method, task = get_method(name), Task.of(digits["train"], digits["val"], seed=0)
    candidates = list(method.tries(head, task))
    given = [candidate for candidate in candidates if candidate.note.endswith("the given head")]
    assert given
    assert best_of(candidates).nll <= min(candidate.nll for candidate in given)
    kept = judge(method, best_of(candidates).module, task, "")
    assert kept.nll == pytest.approx(best_of(candidates).nll, abs=1e-6)  # what is kept is what was judged


def test_when_training_only_harms_the_given_head_is_kept(digits: dict[str, FeatureSet], head: nn.Linear):
    class Backwards(Dense):
        def criterion(self, logits: Tensor, labels: Tensor, progress: float) -> Tensor:
            return -super().criterion(logits, labels, progress)

    task = Task.of(digits["train"], digits["val"], seed=0)
    start = at_best_temperature(head, task.judge)  # nothing is left to gain by another temperature
    kept = best_of(tune(Backwards(), start, task, epochs=3))
    assert kept.note in ("the given head", "the given head, scaled")


def test_the_first_of_equals_is_the_best():
    candidates = [Candidate(nn.Identity(), note, nll) for note, nll in (("a", 2.0), ("b", 1.0), ("c", 1.0))]
    assert best_of(candidates).note == "b"


def test_a_head_that_broke_is_never_the_best(digits: dict[str, FeatureSet], head: nn.Linear):
    class Broken(Dense):
        def predictor(self, model: nn.Module, *, seed: int = 0) -> Fitted:
            sound = super().predictor(model, seed=seed)

            def predict(inputs: Tensor) -> Prediction:
                prediction = sound.predict(inputs)
                return dataclasses.replace(prediction, probs=prediction.probs * torch.nan)

            return dataclasses.replace(sound, predict=predict)

    task = Task.of(digits["train"], digits["val"], seed=0)
    broken = judge(Broken(), head, task, "broken")
    assert broken.nll == float("inf")
    assert best_of([broken, judge(Dense(), head, task, "sound")]).note == "sound"


# --------------------------------------------------------------------------------------------------------- all methods


@pytest.fixture(scope="module", params=SEEDED)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def fitted(name: str, digits: dict[str, FeatureSet], head: nn.Linear) -> Fitted:
    return get_method(name).fit(head, digits["train"], digits["val"], seed=3)


def test_the_seed_decides_and_nothing_else_changes(
    name: str, fitted: Fitted, digits: dict[str, FeatureSet], head: nn.Linear
):
    torch.manual_seed(1)  # whatever the caller does with the global generator
    before, state = head.weight.clone(), torch.random.get_rng_state()
    again = get_method(name).fit(head, digits["train"], digits["val"], seed=3)
    first, second, third = (each.predict(digits["test"].features) for each in (fitted, again, again))
    assert same_bits(first, second)
    assert same_bits(second, third)
    assert fitted.note == again.note
    assert torch.equal(torch.random.get_rng_state(), state)
    assert torch.equal(head.weight, before)
    assert not head.weight.requires_grad


def test_half_precision_features_on_disk_are_read_as_they_are(
    name: str, fitted: Fitted, digits: dict[str, FeatureSet], head: nn.Linear, tmp_path: Path
):
    mapped = {}
    for part, data in digits.items():
        data.features.half().numpy().tofile(tmp_path / part)
        dims = tuple(data.features.size())
        on_disk = torch.from_numpy(np.memmap(tmp_path / part, dtype=np.float16, mode="c", shape=dims))
        mapped[part] = FeatureSet(on_disk, data.labels)
    from_disk = get_method(name).fit(head, mapped["train"], mapped["val"], seed=3)
    answer = from_disk.predict(mapped["test"].features)
    assert same_bits(answer, fitted.predict(digits["test"].features))

"""A run that was stopped, however, goes on to the same bits as one that was not."""

import csv
import shutil
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import yaml

from bndl.cli import main
from bndl.train import Classifier, Outcome, load_recipe, load_run, train

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore::UserWarning")]

EPOCHS, STEPS = 6, 22  # of 64 images
RECORD = {
    "about": "a test",
    "needs": {"data": "digits", "hours": "0", "machine": "any"},
    "data": {"name": "digits", "val": 0.05, "augment": "cifar"},
    "model": {"backbone": "small-cnn", "width": 4},
    "train": {"epochs": EPOCHS, "batch_size": 64, "lr": 0.1, "seed": 3},
}
FROZEN = "model.frozen=true", "data.augment=none", "train.optimizer=adamw", "train.lr=0.02"
WAYS = {"bndl": ("model.head=bndl",), "dense": ("model.head=dense",), "frozen": FROZEN}


def epochs(folder: Path) -> list[int]:
    if not (folder / "history.csv").is_file():
        return []
    with (folder / "history.csv").open(newline="") as file:
        return [int(row["epoch"]) for row in csv.DictReader(file)]


def timeless(folder: Path) -> list[dict[str, str]]:
    """The history without what a clock told."""
    with (folder / "history.csv").open(newline="") as file:
        return [{k: v for k, v in row.items() if k not in ("seconds", "data_wait")} for row in csv.DictReader(file)]


def assert_same(stopped: Path, unbroken: Path) -> None:
    """What matters of two runs is the same, to the byte."""
    assert epochs(stopped) == list(range(1, EPOCHS + 1))
    assert timeless(stopped) == timeless(unbroken)
    first, second = (load_run(folder).outcome for folder in (stopped, unbroken))
    assert (first.best_epoch, first.parts) == (second.best_epoch, second.parts)
    assert (stopped / "model.safetensors").read_bytes() == (unbroken / "model.safetensors").read_bytes()


@pytest.fixture(scope="module")
def recipe_file(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("recipe") / "tiny.yaml"
    path.write_text(yaml.safe_dump(RECORD))
    return path


@pytest.fixture(scope="module")
def unbroken(recipe_file, tmp_path_factory) -> Callable[[str], Path]:
    """The folder of a run of each way that nobody stopped."""
    base = tmp_path_factory.mktemp("unbroken")

    def folder(way: str) -> Path:
        if not (base / way).exists():
            train(load_recipe(recipe_file, settings=WAYS[way]), base / way)
        return base / way

    return folder


# -------------------------------------------------------------------------------------------------------- by a signal


STEP, TOLD = "bndl.train.module:Classifier.training_step", "bndl.train.callbacks:History.on_train_epoch_end"


def command(recipe_file: Path, folder: Path, way: str) -> list[str]:
    settings = [part for setting in WAYS[way] for part in ("--set", setting)]
    return ["train", str(recipe_file), "--out", str(folder), *settings]


@pytest.mark.parametrize(
    ("way", "place", "done"),
    [
        ("bndl", (STEP, 2 * STEPS + 3, "before"), 2),
        ("dense", (TOLD, 2, "after"), 2),
        ("dense", (STEP, 3, "before"), 0),
    ],
    ids=["in an epoch", "between an epoch and its checkpoint", "before the first epoch ended"],
)
def test_a_run_that_was_killed_goes_on_to_the_same_bits(way, place, done, strike, recipe_file, unbroken, tmp_path):
    folder, (where, number, when) = tmp_path / "run", place
    process = strike(signal.SIGKILL, where, number, *command(recipe_file, folder, way), when=when)
    assert process.returncode == -signal.SIGKILL, process.stderr
    assert len(epochs(folder)) == done
    assert not (folder / "results.json").exists()
    last = folder / "checkpoints" / "last.ckpt"
    if where is TOLD:
        assert (
            last.stat().st_mtime_ns < (folder / "history.csv").stat().st_mtime_ns
        )  # the checkpoint is an epoch behind
    assert main(["train", "--resume", str(folder)]) == 0
    assert_same(folder, unbroken(way))


def test_ctrl_c_keeps_what_was_done(strike, recipe_file, unbroken, tmp_path):
    folder = tmp_path / "run"
    process = strike(signal.SIGINT, STEP, STEPS + 2, *command(recipe_file, folder, "bndl"))
    assert process.returncode == 130
    assert "Traceback" not in process.stderr
    assert process.stderr.strip().splitlines()[-1].startswith("bndl: interrupted; files that were finished are kept")
    assert len(epochs(folder)) == 1
    assert main(["train", "--resume", str(folder)]) == 0
    assert_same(folder, unbroken("bndl"))


# ------------------------------------------------------------------------------------------------------- by an exception


def interrupt(recipe_file: Path, folder: Path, way: str, *, epoch: int, error: BaseException, resume: bool) -> None:
    """Train until an epoch has been told and is not yet kept."""

    def tell(line: str) -> None:
        if line.startswith(f"epoch {epoch}/"):
            raise error

    with pytest.raises(type(error)):
        train(load_recipe(recipe_file, settings=WAYS[way]), folder, resume=resume, tell=tell)


def go_on(recipe_file: Path, folder: Path, way: str) -> Outcome:
    outcome = train(load_recipe(recipe_file, settings=WAYS[way]), folder, resume=True)
    assert outcome is not None
    return outcome


@pytest.mark.parametrize("way", WAYS)
def test_a_run_that_was_stopped_again_and_again(way, recipe_file, unbroken, tmp_path):
    stops = [(1, KeyboardInterrupt()), (3, OSError("the disk is full")), (4, KeyboardInterrupt()), (6, MemoryError())]
    for number, (epoch, error) in enumerate(stops):
        torch.manual_seed(number)  # the caller's own state must not matter
        interrupt(recipe_file, tmp_path / "run", way, epoch=epoch, error=error, resume=number > 0)
    go_on(recipe_file, tmp_path / "run", way)
    assert_same(tmp_path / "run", unbroken(way))


def test_a_resumed_run_remembers_its_best_epoch(recipe_file, tmp_path, monkeypatch):
    grade(monkeypatch, best=2)
    interrupt(recipe_file, tmp_path / "run", "dense", epoch=4, error=KeyboardInterrupt(), resume=False)
    assert go_on(recipe_file, tmp_path / "run", "dense").best_epoch == 2


def test_a_run_that_was_moved_remembers_its_best_epoch(recipe_file, tmp_path, monkeypatch):
    grade(monkeypatch, best=2)
    interrupt(recipe_file, tmp_path / "run", "dense", epoch=4, error=KeyboardInterrupt(), resume=False)
    shutil.move(tmp_path / "run", tmp_path / "moved")
    assert go_on(recipe_file, tmp_path / "moved", "dense").best_epoch == 2


def grade(monkeypatch: pytest.MonkeyPatch, *, best: int) -> None:
    """Let one epoch be the best of all, counted from 1."""
    log = Classifier.log

    def graded(self, name, value, **given) -> None:
        log(self, name, float(self.current_epoch != best - 1) if name == "val_nll" else value, **given)

    monkeypatch.setattr(Classifier, "log", graded)

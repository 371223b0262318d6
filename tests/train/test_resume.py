"""A run that was stopped, however, goes on to the same bits as one that was not."""

import csv
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import yaml

from bndl.cli import main
from bndl.train import Classifier, Outcome, load_recipe, load_run, train

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore::UserWarning")]

EPOCHS = 6
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


def start(recipe_file: Path, folder: Path, way: str) -> subprocess.Popen:
    settings = [part for setting in WAYS[way] for part in ("--set", setting)]
    return subprocess.Popen(
        [sys.executable, "-m", "bndl.cli", "train", str(recipe_file), "--out", str(folder), *settings],
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        # a shell that runs the tests in the background lets its children ignore Ctrl-C
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )


def stop(process: subprocess.Popen, which: signal.Signals, *, when: Callable[[], bool]) -> str:
    """Send a signal as soon as something is so; what the process said."""
    deadline = time.monotonic() + 200
    try:
        while not when():
            assert process.poll() is None, process.communicate()[1]
            assert time.monotonic() < deadline, "it takes too long"
            time.sleep(0.002)
        process.send_signal(which)
        return process.communicate(timeout=100)[1]
    finally:
        process.kill()
        process.wait()


def is_in_third_epoch(folder: Path) -> bool:
    """Whether the second epoch is on disk, checkpoint and all."""
    last = folder / "checkpoints" / "last.ckpt"
    return len(epochs(folder)) >= 2 and last.stat().st_mtime_ns > (folder / "history.csv").stat().st_mtime_ns


@pytest.mark.parametrize(
    ("head", "when"),
    [
        ("bndl", is_in_third_epoch),
        ("dense", lambda folder: len(epochs(folder)) >= 2),
        ("dense", lambda folder: (folder / "tensorboard").exists()),
    ],
    ids=["in an epoch", "between an epoch and its checkpoint", "before the first epoch ended"],
)
def test_a_run_that_was_killed_goes_on_to_the_same_bits(head, when, recipe_file, unbroken, tmp_path):
    folder = tmp_path / "run"
    process = start(recipe_file, folder, head)
    stop(process, signal.SIGKILL, when=lambda: when(folder))
    assert process.returncode == -signal.SIGKILL
    done = epochs(folder)
    assert len(done) < EPOCHS
    assert not (folder / "results.json").exists()
    assert main(["train", "--resume", str(folder)]) == 0
    assert_same(folder, unbroken(head))


def test_ctrl_c_keeps_what_was_done(recipe_file, unbroken, tmp_path):
    folder = tmp_path / "run"
    process = start(recipe_file, folder, "bndl")
    said = stop(process, signal.SIGINT, when=lambda: len(epochs(folder)) >= 1)
    assert process.returncode == 130
    assert "Traceback" not in said
    assert said.strip().splitlines()[-1].startswith("bndl: interrupted; files that were finished are kept")
    assert 1 <= len(epochs(folder)) < EPOCHS
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

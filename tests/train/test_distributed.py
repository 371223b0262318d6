"""Two processes that share a batch learn what one learns from all of it.

Run as a script, this file is what the processes do: ``test_distributed.py OUT DEVICES``.
"""

import csv
import json
import os
import subprocess
import sys
from pathlib import Path

import lightning as L
import pytest
import torch
import yaml
from torch import nn

import bndl
from bndl.data import ArraySet, Holdout, load_splits
from bndl.objective import Objective
from bndl.train import Classifier, Loaders, Optimization, load_run
from bndl.train.callbacks import History, SeedEachStep

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore::UserWarning")]
EPOCHS, NUM_TRAIN, NUM_VAL = 3, 480, 49  # odd: two processes cannot have as many to validate on


def digits(start: int, stop: int) -> ArraySet:
    return load_splits("digits", holdout=Holdout(val=0.1)).train.subset(range(start, stop))


def fit(out: Path, devices: int, *, num_data: int = NUM_TRAIN) -> None:
    """Train a network without batch norm and (almost) without noise, whose KL weighs enough to show a wrong N."""
    torch.manual_seed(0)
    layer = bndl.DecisionLayer(72, 10, bias=False, init_shape=1e6)
    layer.weight.data += 0.3  # away from zero, where the gradient does not add up: each process cuts it by its own sign
    model = nn.Sequential(nn.Conv2d(1, 8, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), layer)
    module = Classifier(
        model,
        num_data=num_data,
        objective=Objective(beta=3e-4, phi="sum", edge=1.0),  # a wide gate does not amplify rounding
        optimization=Optimization(lr=0.1),
        augment=_AsFloat(),
    )
    trainer = L.Trainer(
        accelerator="cpu",
        devices=devices,
        strategy="ddp" if devices > 1 else "auto",
        max_epochs=EPOCHS,
        callbacks=[SeedEachStep(0), History(out / "history.csv")],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        num_sanity_val_steps=0,
        use_distributed_sampler=False,
    )
    val = digits(NUM_TRAIN, NUM_TRAIN + NUM_VAL).transformed(lambda image: image.float() / 255)
    trainer.fit(module, datamodule=Loaders(digits(0, NUM_TRAIN), val, batch_size=48, seed=5))
    if trainer.is_global_zero:
        torch.save(model.state_dict(), out / "weights.pt")


class _AsFloat(nn.Module):
    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return images.float() / 255


def rows(folder: Path) -> list[dict[str, str]]:
    with (folder / "history.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def curve(folder: Path, name: str) -> list[float]:
    return [float(row[name]) for row in rows(folder)]


def started(*command: str, cwd: Path) -> subprocess.CompletedProcess:
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    return subprocess.run(
        [sys.executable, *command], cwd=cwd, env=environment, capture_output=True, text=True, timeout=500
    )


@pytest.fixture(scope="module")
def alone(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("alone")
    fit(folder, 1)
    return folder


def test_two_processes_learn_what_one_learns(alone, tmp_path):
    result = started(__file__, str(tmp_path), "2", cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    for name in ("loss", "kl", "val_nll"):
        assert curve(tmp_path, name) == pytest.approx(curve(alone, name), rel=1e-4), name
    assert curve(tmp_path, "val_accuracy") == pytest.approx(curve(alone, "val_accuracy"), abs=1.5 / NUM_VAL)
    assert curve(alone, "val_accuracy")[-1] > 0.5, "this case is about a model that learns"
    ours, theirs = (torch.load(folder / "weights.pt", weights_only=True) for folder in (tmp_path, alone))
    for key, value in theirs.items():
        torch.testing.assert_close(ours[key], value, rtol=1e-4, atol=1e-4, msg=key)
    assert theirs["4.weight"].min() > 0, "this case is about weights that stay above zero"


def test_the_number_of_data_of_one_process_would_show(alone, tmp_path):
    fit(tmp_path, 1, num_data=NUM_TRAIN // 2)
    for name, difference in {"loss": 5e-4, "kl": 2e-2}.items():
        for ours, theirs in zip(curve(tmp_path, name), curve(alone, name), strict=True):
            assert ours > (1 + difference) * theirs


def test_the_command_on_two_devices_writes_one_folder(tmp_path):
    record = {
        "about": "a test",
        "needs": {"data": "digits", "hours": "0", "machine": "any"},
        "data": {"name": "digits", "val": 0.05, "augment": "cifar"},
        "model": {"backbone": "small-cnn", "width": 4},
        "train": {"epochs": 2, "batch_size": 64},
    }
    (tmp_path / "tiny.yaml").write_text(yaml.safe_dump(record))
    machine = "--accelerator", "cpu", "--devices", "2", "--strategy", "ddp"
    result = started("-m", "bndl.cli", "train", "tiny.yaml", "--out", "run", *machine, "--json", cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    assert "Traceback" not in result.stderr
    folder = tmp_path / "run"
    assert {entry.name for entry in tmp_path.iterdir()} == {"run", "tiny.yaml"}
    assert sorted(entry.name for entry in folder.iterdir()) == [
        "checkpoints",
        "history.csv",
        "model.safetensors",
        "recipe.yaml",
        "results.json",
        "run.json",
        "split.json",
        "tensorboard",
    ]
    assert sorted(entry.name for entry in (folder / "checkpoints").iterdir()) == ["best.ckpt", "last.ckpt"]
    assert len(list(folder.rglob("*tfevents*"))) == 1
    assert [row["epoch"] for row in rows(folder)] == ["1", "2"]
    results = json.loads((folder / "results.json").read_text())
    assert json.loads(result.stdout) == {"folder": "run", **results}
    assert json.loads((folder / "run.json").read_text())["launch"]["devices"] == 2
    loaded, test = load_run(folder), load_splits("digits", holdout=Holdout(val=0.05)).test
    accuracy = float((bndl.predict(loaded.model, test.inputs).labels == test.labels).double().mean())
    assert accuracy == pytest.approx(results["parts"]["test"][0]["accuracy"], abs=1e-12)


if __name__ == "__main__":
    torch.set_num_threads(1)
    fit(Path(sys.argv[1]), int(sys.argv[2]))

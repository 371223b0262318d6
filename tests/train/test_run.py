"""Runs: a folder that tells all, bits that the seed decides, errors that leave nothing behind."""

import csv
import hashlib
import json
import shutil
import sys
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from PIL import Image
from safetensors.torch import load_file

import bndl
from bndl.data import FolderSet, Holdout, load_splits
from bndl.errors import BndlError, FileError, InputError
from bndl.train import Classifier, Launch, Outcome, Recipe, load_run, train
from bndl.train.finish import save_weights
from bndl.train.network import build_model
from bndl.train.recipe import override, parse_recipe
from bndl.train.record import locked, read_recipe

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore::UserWarning")]

RECORD = {
    "name": "tiny",
    "about": "a test",
    "needs": {"data": "digits", "hours": "0", "machine": "any"},
    "data": {"name": "digits", "val": 0.05, "augment": "cifar", "workers": 0},
    "model": {"backbone": "small-cnn", "width": 4},
    "train": {"epochs": 2, "batch_size": 256, "lr": 0.2},
}


def recipe(*settings: str) -> Recipe:
    return parse_recipe(override(RECORD, settings), name="tiny")


def run(folder: Path, *settings: str, **given) -> Outcome:
    outcome = train(recipe(*settings), folder, **given)
    assert outcome is not None
    return outcome


def bits(folder: Path) -> str:
    return hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest()


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def history(folder: Path) -> list[dict[str, str]]:
    with (folder / "history.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def unfinished(finished: Path, copy: Path) -> Path:
    """A copy of a finished run as it is when it was killed after its last epoch."""
    shutil.copytree(finished, copy)
    (copy / "results.json").unlink()
    (copy / "model.safetensors").unlink()
    return copy


def write_squares(place: Path, *, per_class: int = 20, side: int = 8) -> Path:
    """Class folders of red and of blue images, all a little different."""
    generator = np.random.default_rng(0)
    for label, colour in {"red": (200, 30, 30), "blue": (30, 30, 200)}.items():
        (place / label).mkdir(parents=True)
        for number in range(per_class):
            noise = generator.integers(-25, 26, (side, side, 3))
            Image.fromarray((np.array(colour) + noise).astype(np.uint8)).save(place / label / f"{number}.png")
    return place


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> dict[str, tuple[Path, Outcome]]:
    """A finished run of each head, both by the same recipe."""
    base = tmp_path_factory.mktemp("runs")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["/usr/bin/bndl", "train", "tiny.yaml"])
        return {head: (base / head, run(base / head, f"model.head={head}")) for head in ("bndl", "dense")}


# ------------------------------------------------------------------------------------------------------------ the folder


@pytest.mark.parametrize("head", ["bndl", "dense"])
def test_a_run_leaves_everything_to_use_and_to_repeat_it(made, head):
    folder, outcome = made[head]
    names = {name for name in contents(folder) if not name.startswith("tensorboard/")}
    assert names == {
        "recipe.yaml",
        "run.json",
        "split.json",
        "history.csv",
        "checkpoints/best.ckpt",
        "checkpoints/last.ckpt",
        "model.safetensors",
        "results.json",
    }
    assert [path for path in (folder / "tensorboard").iterdir() if "tfevents" in path.name and path.stat().st_size]
    assert parse_recipe(yaml.safe_load((folder / "recipe.yaml").read_text()), name="") == recipe(f"model.head={head}")
    assert json.loads((folder / "results.json").read_text()) == asdict(outcome)
    assert [row["epoch"] for row in history(folder)] == ["1", "2"]


def test_the_record_tells_versions_seed_command_and_data(made):
    record = json.loads((made["bndl"][0] / "run.json").read_text())
    assert record["bndl"] == bndl.__version__
    assert record["python"] == ".".join(map(str, sys.version_info[:3]))
    assert record["packages"]["torch"] == torch.__version__
    assert {"numpy", "lightning", "kornia"} <= record["packages"].keys()
    assert record["command"] == ["bndl", "train", "tiny.yaml"]
    assert record["seed"] == 0
    assert record["launch"] == asdict(Launch())
    assert record["data"]["classes"] == [str(digit) for digit in range(10)]
    splits = load_splits("digits", holdout=Holdout(val=0.05))
    assert record["data"]["examples"] == {part: len(getattr(splits, part)) for part in ("train", "val", "test")}


def test_the_split_that_was_used_is_written_down(made):
    plan = load_splits("digits", holdout=Holdout(val=0.05)).plan
    assert json.loads((made["bndl"][0] / "split.json").read_text()) == plan.to_json()


def test_all_seeds_share_a_split_unless_asked(tmp_path):
    for number, settings in enumerate([("train.seed=1",), ("data.split_seed=1",)]):
        run(tmp_path / str(number), "model.head=dense", "train.epochs=1", *settings)
    plans = [(tmp_path / str(number) / "split.json").read_text() for number in (0, 1)]
    assert json.loads(plans[0]) == load_splits("digits", holdout=Holdout(val=0.05)).plan.to_json()
    assert json.loads(plans[1])["indices"] != json.loads(plans[0])["indices"]


@pytest.mark.parametrize("head", ["bndl", "dense"])
def test_a_part_has_a_row_for_each_way_to_predict(made, head):
    outcome = made[head][1]
    names = ["BNDL"] if head == "bndl" else ["dense", "dense, temperature scaled"]
    assert list(outcome.parts) == ["val", "test"]
    for rows in outcome.parts.values():
        assert [row.name for row in rows] == names
        assert all((row.pavpu is not None) == (head == "bndl") for row in rows)
        assert all(0 <= row.accuracy <= 1 and row.nll > 0 and 0 <= row.ece <= 1 for row in rows)


def test_temperature_changes_no_decision_and_helps_on_what_it_was_fitted_to(made):
    for rows in made["dense"][1].parts.values():
        assert rows[0].accuracy == rows[1].accuracy
    plain, tempered = made["dense"][1].parts["val"]
    assert tempered.nll <= plain.nll


def test_the_epoch_is_chosen_on_the_validation_part(tmp_path, monkeypatch):
    grades, log = (3.0, 1.0, 2.0, 1.5), Classifier.log

    def graded(self, name, value, **given) -> None:
        log(self, name, grades[self.current_epoch] if name == "val_nll" else value, **given)

    monkeypatch.setattr(Classifier, "log", graded)
    outcome = run(tmp_path / "run", "model.head=dense", "train.epochs=4")
    assert outcome.best_epoch == 2
    accuracies = [float(row["val_accuracy"]) for row in history(tmp_path / "run")]
    assert len(set(accuracies)) == 4, "this case needs epochs that can be told apart"
    assert outcome.parts["val"][0].accuracy == pytest.approx(accuracies[1])


# -------------------------------------------------------------------------------------------------------------- the seed


@pytest.mark.parametrize("head", ["bndl", "dense"])
def test_the_same_seed_gives_the_same_bits(made, head, tmp_path):
    torch.manual_seed(99)  # the caller's own state must not matter
    outcome = run(tmp_path / "again", f"model.head={head}")
    assert bits(tmp_path / "again") == bits(made[head][0])
    assert outcome.parts == made[head][1].parts


@pytest.mark.parametrize("head", ["bndl", "dense"])
def test_the_same_model_is_saved_as_the_same_bytes(made, head, tmp_path):
    loaded = load_run(made[head][0])
    for number in range(12):
        save_weights(loaded.model, tmp_path / f"{number}.safetensors", classes=loaded.classes, head_only=False)
    assert len({(tmp_path / f"{number}.safetensors").read_bytes() for number in range(12)}) == 1


def test_another_seed_gives_other_bits(made, tmp_path):
    run(tmp_path / "other", "model.head=dense", "train.seed=1")
    assert bits(tmp_path / "other") != bits(made["dense"][0])


def test_augmentation_reaches_the_network(made, tmp_path):
    run(tmp_path / "other", "model.head=dense", "data.augment=none")
    assert bits(tmp_path / "other") != bits(made["dense"][0])


def test_the_callers_random_state_is_left_alone(tmp_path):
    torch.manual_seed(3)
    before = torch.get_rng_state()
    run(tmp_path / "run", "model.head=dense", "train.epochs=1")
    assert torch.equal(torch.get_rng_state(), before)


# --------------------------------------------------------------------------------------------------------------- loading


@pytest.mark.parametrize("head", ["bndl", "dense"])
def test_a_loaded_run_predicts_what_was_measured(made, head):
    folder, outcome = made[head]
    loaded = load_run(folder)
    assert loaded.outcome == outcome
    assert loaded.recipe == recipe(f"model.head={head}")
    assert loaded.classes == tuple(str(digit) for digit in range(10))
    assert not loaded.model.training
    test = load_splits("digits", holdout=Holdout(val=0.05)).test
    if head == "bndl":
        prediction = bndl.predict(loaded.model, test.inputs)
        labels, certain = prediction.labels, prediction.certain
        agree = ((labels == test.labels) == certain).double().mean()
        assert float(agree) == pytest.approx(outcome.parts["test"][0].pavpu)
    else:
        with torch.no_grad():
            labels = loaded.model(test.inputs).argmax(dim=1)
    accuracy = float((labels == test.labels).double().mean())
    assert accuracy == pytest.approx(outcome.parts["test"][0].accuracy, abs=1e-12)
    assert accuracy > 0.15  # two epochs; by chance .1


def test_loading_leaves_the_callers_random_state_alone(made):
    before = torch.get_rng_state()
    load_run(made["bndl"][0])
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("name", ["results.json", "run.json", "model.safetensors"])
@pytest.mark.parametrize("head", ["bndl", "dense"])
def test_a_run_that_lacks_a_file(made, name, head, tmp_path):
    shutil.copytree(made[head][0], tmp_path / "run")
    (tmp_path / "run" / name).unlink()
    with pytest.raises(BndlError, match=name):
        load_run(tmp_path / "run")


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("results.json", ""),
        ("results.json", '{"best_epoch": 1,'),
        ("run.json", "{"),
        ("model.safetensors", "junk"),
        ("model.safetensors", ""),
        ("recipe.yaml", ""),
        ("recipe.yaml", "about: x"),
    ],
)
@pytest.mark.parametrize("head", ["bndl", "dense"])
def test_a_run_with_a_damaged_file(made, name, text, head, tmp_path):
    shutil.copytree(made[head][0], tmp_path / "run")
    (tmp_path / "run" / name).write_text(text)
    with pytest.raises(BndlError, match=name) as caught:
        load_run(tmp_path / "run")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("results.json", "[]"),
        ("results.json", "{}"),
        ("results.json", '{"parts": 5, "best_epoch": 1, "seconds": 1}'),
        ("run.json", "null"),
        ("run.json", '{"data": {}}'),
        ("recipe.yaml", "about: ["),
    ],
)
def test_a_run_with_a_file_of_another_kind(made, name, text, tmp_path):
    shutil.copytree(made["dense"][0], tmp_path / "run")
    (tmp_path / "run" / name).write_text(text)
    with pytest.raises(BndlError, match=name):
        load_run(tmp_path / "run")


def test_a_folder_that_is_no_run(tmp_path):
    with pytest.raises(FileError, match=r"is no run's folder, it has no recipe\.yaml: bndl train RECIPE --out DIR"):
        load_run(tmp_path)


# -------------------------------------------------------------------------------------------------- what is there already


def test_a_folder_that_is_not_empty_is_not_touched(made, tmp_path):
    (tmp_path / "thesis.txt").write_text("years of work")
    with pytest.raises(FileError, match="is there already and not empty: choose another --out; what is in it is kept"):
        run(tmp_path)
    assert contents(tmp_path) == {"thesis.txt": b"years of work"}
    folder = made["bndl"][0]
    before = contents(folder)
    with pytest.raises(FileError, match="it holds a finished run"):
        run(folder)
    assert contents(folder) == before


def test_a_file_is_no_folder(tmp_path):
    (tmp_path / "file").write_text("mine")
    with pytest.raises(FileError, match="is there already"):
        run(tmp_path / "file")
    with pytest.raises(FileError, match="cannot write"):
        run(tmp_path / "file" / "inside")
    assert (tmp_path / "file").read_text() == "mine"


def test_an_empty_folder_will_do(tmp_path):
    run(tmp_path, "model.head=dense", "train.epochs=1")
    assert load_run(tmp_path).outcome.best_epoch == 1


def test_a_finished_run_is_not_resumed(made):
    folder, _ = made["bndl"]
    before = contents(folder)
    with pytest.raises(FileError, match="has finished: there is nothing to resume"):
        run(folder, resume=True)
    assert contents(folder) == before


def test_a_folder_that_is_no_run_is_not_resumed(tmp_path):
    for place in (tmp_path, tmp_path / "nowhere"):
        with pytest.raises(FileError, match="is no run's folder"):
            run(place, resume=True)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("head", ["bndl", "dense"])
def test_a_run_killed_after_its_last_epoch_only_measures_again(made, head, tmp_path):
    finished, outcome = made[head]
    folder = unfinished(finished, tmp_path / "run")
    again = run(folder, f"model.head={head}", resume=True)
    assert bits(folder) == bits(finished)
    assert (again.best_epoch, again.parts) == (outcome.best_epoch, outcome.parts)
    assert (folder / "history.csv").read_bytes() == (finished / "history.csv").read_bytes()
    assert (folder / "run.json").read_bytes() == (finished / "run.json").read_bytes()


@pytest.mark.parametrize(("text", "words"), [("{", "split.json is damaged"), ("{}", "no split record")])
def test_a_damaged_split_is_not_resumed(made, text, words, tmp_path):
    folder = unfinished(made["dense"][0], tmp_path / "run")
    (folder / "split.json").write_text(text)
    with pytest.raises(BndlError, match=words):
        run(folder, "model.head=dense", resume=True)


def test_a_damaged_record_is_not_resumed(made, tmp_path):
    folder = unfinished(made["dense"][0], tmp_path / "run")
    (folder / "run.json").write_text("{}")
    with pytest.raises(BndlError, match=r"run\.json"):
        run(folder, "model.head=dense", resume=True)


@pytest.mark.parametrize("name", ["last", "best"])
def test_a_damaged_checkpoint_is_said(made, name, tmp_path):
    folder = unfinished(made["dense"][0], tmp_path / "run")
    (folder / "checkpoints" / f"{name}.ckpt").write_text("junk")
    with pytest.raises(FileError, match=f"{name}.ckpt"):
        run(folder, "model.head=dense", resume=True)


# ------------------------------------------------------------------------------------------------------------- bad input


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (["data.name=digist"], "did you mean digits"),
        (["model.backbone=resnet21", "model.width=null"], "."),
        (["model.pretrained=true"], "has no trained weights"),
        (["data.val=0.5", "data.test=0.5"], "add up to less than 1"),
    ],
)
def test_what_cannot_be_is_said_in_one_sentence(settings, words, tmp_path):
    with pytest.raises(BndlError, match=words) as caught:
        run(tmp_path / "run", *settings)
    assert "\n" not in str(caught.value)


def test_a_misspelt_backbone_is_told_what_was_meant(tmp_path):
    with pytest.raises(BndlError, match="did you mean small-cnn"):
        run(tmp_path / "run", "model.backbone=smal-cnn")


@pytest.mark.parametrize("setting", ["data.name=digist", "model.pretrained=true"])
def test_after_a_mistake_the_corrected_command_runs(setting, tmp_path):
    with pytest.raises(BndlError):
        run(tmp_path / "run", setting)
    run(tmp_path / "run", "model.head=dense", "train.epochs=1")


@pytest.mark.parametrize("launch", [Launch(devices=0), Launch(accelerator="abacus"), Launch(strategy="bogus")], ids=str)
def test_a_machine_that_is_not_there(launch, tmp_path):
    with pytest.raises(BndlError):
        run(tmp_path / "run", launch=launch)


def test_features_are_sent_elsewhere(tmp_path):
    generator = np.random.default_rng(0)
    np.savez(tmp_path / "f.npz", X=generator.random((60, 5), dtype=np.float32), y=np.arange(60) % 3)
    with pytest.raises(InputError, match=r"dims \(5,\), not square images \(C, H, W\): for features, call bndl\.fit"):
        run(tmp_path / "run", f"data.name={tmp_path / 'f.npz'}")


def test_images_that_are_not_square(tmp_path):
    np.savez(tmp_path / "i.npz", X=np.zeros((60, 4, 6), dtype=np.uint8), y=np.arange(60) % 3)
    with pytest.raises(InputError, match=r"dims \(1, 4, 6\), not square images"):
        run(tmp_path / "run", f"data.name={tmp_path / 'i.npz'}")


def test_data_that_changed_are_not_gone_on_with(tmp_path):
    generator = np.random.default_rng(0)
    x, y = generator.integers(0, 256, (90, 8, 8), dtype=np.uint8), np.arange(90) % 3
    np.savez(tmp_path / "d.npz", X=x, y=y)
    settings = f"data.name={tmp_path / 'd.npz'}", "model.head=dense", "train.epochs=1", "data.val=0.1"
    run(tmp_path / "run", *settings)
    folder = unfinished(tmp_path / "run", tmp_path / "stopped")
    np.savez(tmp_path / "d.npz", X=x, y=y[::-1])
    with pytest.raises(InputError, match="The split record was made for 90 other examples than these 90"):
        run(folder, *settings, resume=True)
    assert not (folder / "results.json").exists()


def test_a_diverging_run_is_said(tmp_path):
    with pytest.raises(InputError, match="not finite: lower the learning rate, or clip gradients"):
        run(tmp_path / "run", "model.head=dense", "train.lr=1e30", "train.warmup=0")


# -------------------------------------------------------------------------------------------------------- ways to compute


def test_gradients_are_clipped(tmp_path):
    settings = "model.head=dense", "train.epochs=1", "train.momentum=0", "train.weight_decay=0", "train.warmup=0"
    free = recipe(*settings)
    start = build_model(free, num_classes=10, channels=1, side=8).state_dict()
    moved = {}
    for clip in ("null", "1e-3"):
        run(tmp_path / clip, *settings, f"train.clip={clip}")
        end = load_file(tmp_path / clip / "model.safetensors")
        moved[clip] = float(
            sum((end[key] - start[key]).square().sum() for key in end if key.endswith(("weight", "bias"))).sqrt()
        )
    num_steps = len(load_splits("digits", holdout=Holdout(val=0.05)).train) // 256
    assert 0 < moved["1e-3"] <= 1.01 * num_steps * free.train.lr * 1e-3 < moved["null"]


@pytest.mark.parametrize("head", ["bndl", "dense"])
def test_mixed_precision_trains(made, head, tmp_path):
    outcome = run(tmp_path / "run", f"model.head={head}", "train.precision=bf16-mixed", "train.clip=1")
    assert all(np.isfinite(float(value)) for row in history(tmp_path / "run") for value in row.values())
    saved = load_file(tmp_path / "run" / "model.safetensors")
    assert all(value.dtype != torch.bfloat16 and torch.isfinite(value).all() for value in saved.values())
    assert bits(tmp_path / "run") != bits(made[head][0])
    assert load_run(tmp_path / "run").outcome == outcome


# -------------------------------------------------------------------------------------------------------- image folders


FOLDER = "train.epochs=3", "train.batch_size=8", "data.val=0.2", "data.test=0.2", "data.size=8", "train.lr=0.05"


def test_a_folder_of_images_with_classes_of_its_own(tmp_path):
    place = write_squares(tmp_path / "squares")
    outcome = run(tmp_path / "run", f"data.name={place}", *FOLDER)
    assert outcome.parts["test"][0].accuracy > 0.9
    loaded = load_run(tmp_path / "run")
    assert loaded.classes == ("blue", "red")
    blue = torch.zeros(1, 3, 8, 8, dtype=torch.uint8)
    blue[:, 2] = 220
    assert loaded.classes[int(bndl.predict(loaded.model, blue).labels)] == "blue"


def test_a_damaged_image_is_skipped_and_said_or_refused(tmp_path, caplog):
    place = write_squares(tmp_path / "squares")
    (place / "red" / "3.png").write_bytes(b"\x89PNG\r\n\x1a\n junk")
    settings = f"data.name={place}", "model.head=dense", *FOLDER
    with pytest.raises(FileError, match=r"1 of 40 images in .* cannot be decoded, the first is red/3\.png"):
        run(tmp_path / "strict", *settings, "data.strict=true")
    run(tmp_path / "run", *settings)
    assert "skipped damaged image" in caplog.text
    record = json.loads((tmp_path / "run" / "run.json").read_text())
    assert sum(record["data"]["examples"].values()) == 39


def test_no_process_is_started_to_decode_images_if_none_is_asked_for(tmp_path, monkeypatch):
    place, read = write_squares(tmp_path / "squares"), FolderSet.read
    seen = []
    monkeypatch.setattr(FolderSet, "read", lambda self, index: seen.append(self.files[index]) or read(self, index))
    run(tmp_path / "run", f"data.name={place}", "model.head=dense", *FOLDER)
    plan = json.loads((tmp_path / "run" / "split.json").read_text())
    files = sorted(f"{path.parent.name}/{path.name}" for path in place.rglob("*.png"))
    assert {files[index] for index in plan["indices"]["test"]} <= set(seen)


# -------------------------------------------------------------------------------------------------------- frozen backbones


FROZEN = "model.frozen=true", "data.augment=none", "train.optimizer=adamw", "train.lr=0.05"


@pytest.mark.parametrize("head", ["bndl", "dense"])
def test_a_frozen_backbone_stays_and_its_head_learns(head, tmp_path):
    settings = (f"model.head={head}", *FROZEN)
    outcome = run(tmp_path / "run", *settings, cache=tmp_path / "cache")
    start = build_model(recipe(*settings), num_classes=10, channels=1, side=8)
    loaded = load_run(tmp_path / "run")
    before, after = start.state_dict(), loaded.model.state_dict()
    learnt = {key for key in before if not torch.equal(before[key], after[key])}
    assert learnt
    assert all(".fc." in key for key in learnt)
    assert all("fc." in key for key in load_file(tmp_path / "run" / "model.safetensors"))
    test = load_splits("digits", holdout=Holdout(val=0.05)).test
    with torch.no_grad():
        labels = loaded.model(test.inputs).argmax(dim=1)  # of the mean, in eval()
    assert float((labels == test.labels).double().mean()) == pytest.approx(outcome.parts["test"][0].accuracy, abs=0.01)


def test_the_features_of_a_frozen_backbone_are_computed_once(tmp_path):
    told = []
    run(tmp_path / "first", *FROZEN, tell=told.append)
    assert any(str(tmp_path / "features") in line for line in told), "the cache lies beside the run, and that is said"
    files = {path: path.stat().st_mtime_ns for path in (tmp_path / "features").rglob("*") if path.is_file()}
    assert files
    run(tmp_path / "second", *FROZEN)
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "features").rglob("*") if path.is_file()} == files
    assert bits(tmp_path / "first") == bits(tmp_path / "second")


@pytest.mark.parametrize("head", ["bndl", "dense"])
def test_a_head_on_the_features_of_a_finished_run(made, head, tmp_path):
    finished, dense = made["dense"]
    settings = f"model.head={head}", f"model.start={finished}", *FROZEN, "train.lr=1e-3"
    outcome = run(tmp_path / "run", *settings)
    model, start = load_run(tmp_path / "run").model, load_run(finished).model
    theirs = {key: value for key, value in start.state_dict().items() if ".fc." not in key}
    assert theirs
    assert all(torch.equal(model.state_dict()[key], value) for key, value in theirs.items())
    assert outcome.parts["test"][0].accuracy > dense.parts["test"][0].accuracy - 0.1


@pytest.mark.parametrize("frozen", [False, True])
def test_a_converted_head_is_the_dense_runs_with_doubt(made, frozen, tmp_path):
    settings = FROZEN if frozen else ()
    folder, dense = (
        made["dense"] if not frozen else (tmp_path / "dense", run(tmp_path / "dense", *settings, "model.head=dense"))
    )
    outcome = run(tmp_path / "run", "model.converted=true", *settings)
    assert [row["loss"] for row in history(tmp_path / "run")] == [row["loss"] for row in history(folder)]
    own, theirs = load_run(tmp_path / "run"), load_run(folder)
    assert own.recipe.model.head == "bndl"
    for key, value in theirs.model.state_dict().items():
        assert ".fc." in key or torch.equal(own.model.state_dict()[key], value), key
    images = load_splits("digits", holdout=Holdout(val=0.05)).test.inputs
    with torch.no_grad():  # the mean of the layer is the dense head, but for the scale that its calibration chose
        assert torch.equal(own.model(images).argmax(dim=1), theirs.model(images).argmax(dim=1))
    tempered, ours = dense.parts["test"][1], outcome.parts["test"][0]
    assert ours.accuracy == pytest.approx(tempered.accuracy, abs=0.01)
    assert ours.nll == pytest.approx(tempered.nll, rel=0.1)
    assert ours.pavpu is not None


def test_a_conversion_that_cannot_work_is_said_before_training(tmp_path):
    with pytest.raises(InputError, match="min_shape"):
        run(tmp_path / "run", "model.converted=true", "model.layer.min_shape=5", "model.layer.init_shape=2")
    assert not (tmp_path / "run").exists()


def test_only_our_head_is_converted(made, tmp_path):
    run(tmp_path / "run", "model.converted=true", "model.head=dense")
    assert bits(tmp_path / "run") == bits(made["dense"][0])
    assert not load_run(tmp_path / "run").recipe.model.converted


def test_a_killed_run_is_converted_when_it_goes_on(tmp_path):
    run(tmp_path / "whole", "model.converted=true")
    begun = unfinished(tmp_path / "whole", tmp_path / "begun")
    run(begun, "model.converted=true", resume=True)
    assert bits(begun) == bits(tmp_path / "whole")


def test_a_whole_network_goes_on_from_a_finished_run(made, tmp_path):
    finished, dense = made["dense"]
    outcome = run(tmp_path / "run", "model.head=dense", f"model.start={finished}", "train.lr=0.01")
    assert outcome.parts["test"][0].nll < dense.parts["test"][0].nll
    before, after = (load_run(folder).model.state_dict() for folder in (finished, tmp_path / "run"))
    statistics = [key for key in before if key.endswith("running_mean")]
    assert statistics
    assert not any(torch.equal(before[key], after[key]) for key in statistics)


def test_a_start_that_is_no_run(tmp_path):
    with pytest.raises(FileError, match=r"there is no file .*nowhere"):
        run(tmp_path / "run", f"model.start={tmp_path / 'nowhere'}", *FROZEN)


# ----------------------------------------------------------------------------------------------- what a user stumbles over


def test_grey_images_train_a_network_for_coloured_ones(tmp_path):
    outcome = run(
        tmp_path / "run", "model.backbone=resnet20", "model.width=4", "train.epochs=1"
    )  # narrow: see channels_last
    loaded = load_run(tmp_path / "run")
    grey = torch.randint(0, 256, (2, 1, 8, 8), dtype=torch.uint8)
    assert loaded.outcome == outcome
    assert torch.equal(loaded.model(grey), loaded.model(grey.float() / 255))


def test_two_processes_do_not_share_a_folder(tmp_path):
    with locked(tmp_path / "run"), pytest.raises(FileError, match="another process is training in"):
        run(tmp_path / "run")
    run(tmp_path / "run", "train.epochs=1")


def test_other_data_are_not_resumed_on(tmp_path):
    place = write_squares(tmp_path / "squares")
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path / "run", f"data.name={place}", "data.size=8", tell=_interrupting)
    first = sorted(place.rglob("*.png"))[0]
    first.rename(first.with_name("zzz.png"))
    with pytest.raises(FileError, match=r"has changed since the run in .* began: put the data back"):
        train(read_recipe(tmp_path / "run"), tmp_path / "run", resume=True)


def _interrupting(line: str) -> None:
    if line.startswith("epoch 1/"):
        raise KeyboardInterrupt


def test_a_run_reads_a_new_picture_as_it_read_those_it_learned_from(tmp_path):
    place = write_squares(tmp_path / "squares")
    run(tmp_path / "run", f"data.name={place}", "data.size=8", "train.epochs=1")
    loaded = load_run(tmp_path / "run")
    pixels = loaded.read(sorted(place.rglob("*.png"))[0])
    assert pixels.dtype == torch.uint8
    assert loaded.model(pixels).size() == (1, len(loaded.classes))

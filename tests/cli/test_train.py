"""``bndl train`` as a user meets it."""

import json
import shutil
from pathlib import Path

import pytest
import yaml

from bndl.cli import main
from bndl.train import list_recipes
from bndl.train.run import read_recipe

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")

RECORD = {
    "about": "a test",
    "needs": {"data": "digits", "hours": "0", "machine": "any"},
    "data": {"name": "digits", "val": 0.05},
    "model": {"backbone": "small-cnn", "width": 4, "head": "dense"},
    "train": {"epochs": 1, "batch_size": 256},
}


@pytest.fixture
def place(tmp_path, monkeypatch) -> Path:
    """The current folder, with a recipe in it."""
    (tmp_path / "tiny.yaml").write_text(yaml.safe_dump(RECORD))
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> Path:
    base = tmp_path_factory.mktemp("finished")
    (base / "tiny.yaml").write_text(yaml.safe_dump(RECORD))
    assert main(["train", str(base / "tiny.yaml"), "--out", str(base / "run")]) == 0
    return base / "run"


def refused(capsys, *args: str) -> str:
    """What a command that is refused says: one sentence, nothing on standard output."""
    assert main(["train", *args]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("bndl: ")
    assert len(err.strip().splitlines()) == 1
    return err


# ----------------------------------------------------------------------------------------------------------------- list


def test_list_shows_every_recipe_and_what_it_needs(capsys):
    assert main(["train", "--list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    everything = " ".join(" ".join(lines).split())
    for recipe in list_recipes():
        assert recipe.name in [line.strip() for line in lines]
        for words in (recipe.about, recipe.needs.data, recipe.needs.hours, recipe.needs.machine, recipe.paper):
            assert words in everything


def test_list_as_json(capsys):
    assert main(["train", "--list", "--json"]) == 0
    record = json.loads(capsys.readouterr().out)
    assert record == {recipe.name: recipe.model_dump() for recipe in list_recipes()}


# ------------------------------------------------------------------------------------------------------------- refused


def test_no_recipe(capsys, place):
    assert "name a recipe: bndl train --list shows them." in refused(capsys)
    assert [entry.name for entry in place.iterdir()] == ["tiny.yaml"]


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["cifar10-resnet18-smal"], "did you mean cifar10-resnet18-small"),
        (["tiny.yml"], "neither a recipe's name nor a file"),
        (["tiny.yaml", "--set", "train.epoch=3"], "'train.epoch' that does not exist; did you mean 'epochs'?"),
        (["tiny.yaml", "--set", "train.epochs"], "--set takes section.key=value, such as train.epochs=5"),
        (["tiny.yaml", "--set", "epochs=5"], "--set takes section.key=value, such as train.epochs=5"),
        (["tiny.yaml", "--set", "train.lr=["], "is no YAML"),
        (["tiny.yaml", "--set", "train.epochs=0"], "greater than or equal to 1, got 0"),
        (["tiny.yaml", "--set", "train.objective=mine"], "there is no objective 'mine'; choose from default"),
        (["--resume", "nowhere"], "nowhere is no run's folder, it has no recipe.yaml"),
    ],
)
def test_bad_input_is_one_sentence_and_makes_nothing(args, words, capsys, place):
    assert words in refused(capsys, *args)
    assert [entry.name for entry in place.iterdir()] == ["tiny.yaml"]


def test_data_that_are_not_there(capsys, place):
    assert main(["train", "tiny.yaml", "--data", "digist"]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert "did you mean digits?" in err.splitlines()[-1]
    assert "Traceback" not in err


@pytest.mark.parametrize(
    "more",
    [["tiny.yaml"], ["--set", "train.epochs=5"], ["--data", "digits"], ["--out", "other"]],
    ids=lambda more: more[0],
)
def test_a_run_is_resumed_as_it_was(more, capsys, finished):
    words = "--resume goes on with a run as it was: leave out the recipe, --set, --data, --strict and --out."
    assert words in refused(capsys, *more, "--resume", str(finished))


def test_a_run_cannot_become_strict(capsys, finished):
    assert "--resume goes on with a run as it was" in refused(capsys, "--strict", "--resume", str(finished))


def test_a_finished_run_is_not_resumed(capsys, finished):
    assert main(["train", "--resume", str(finished)]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.strip().endswith(f"bndl: the run in {finished} has finished: there is nothing to resume.")


@pytest.mark.parametrize("option", ["--devices", "--num-nodes"])
def test_devices_are_counted(option, capsys):
    with pytest.raises(SystemExit) as stop:
        main(["train", "tiny.yaml", option, "two"])
    assert stop.value.code == 2
    assert "invalid int value: 'two'" in capsys.readouterr().err


# --------------------------------------------------------------------------------------------------------------- trained


@pytest.mark.slow
def test_a_run_tells_its_figures_and_its_folder(capsys, place):
    assert main(["train", "tiny.yaml", "--set", "model.head=bndl", "--out", "here"]) == 0
    out, err = capsys.readouterr()
    figures = json.loads((place / "here" / "results.json").read_text())
    (row,) = figures["parts"]["test"]
    for words in (f"{row['accuracy']:.2%}", f"{row['nll']:.4f}", "BNDL", "val", "test", "Run: here"):
        assert words in out
    assert "digits: 1348 train, 90 val, 359 test examples of 10 classes" in err
    assert "epoch 1/1: loss" in err


@pytest.mark.slow
def test_json_is_one_object_and_nothing_else(capsys, place):
    assert main(["train", "tiny.yaml", "--out", "here", "--json"]) == 0
    record = json.loads(capsys.readouterr().out)
    assert record == {"folder": "here", **json.loads((place / "here" / "results.json").read_text())}


@pytest.mark.slow
def test_the_folder_has_a_name_of_recipe_head_and_seed(place):
    assert main(["train", "tiny.yaml", "--set", "train.seed=7"]) == 0
    assert (place / "runs" / "tiny-dense-7" / "results.json").is_file()


@pytest.mark.slow
def test_options_change_the_recipe_that_is_written_down(place):
    shutil.copy("tiny.yaml", "other.yaml")
    settings = "--set", "train.lr=1e-3", "--set", "train.epochs=2"
    assert main(["train", "other.yaml", *settings, "--data", "digits", "--strict", "--out", "here"]) == 0
    recipe = read_recipe(place / "here")
    assert (recipe.name, recipe.train.lr, recipe.train.epochs) == ("other", 1e-3, 2)
    assert (recipe.data.name, recipe.data.strict, recipe.data.val) == ("digits", True, 0.05)


@pytest.mark.slow
def test_a_run_is_gone_on_with_by_its_folder_alone(capsys, finished, tmp_path):
    shutil.copytree(finished, tmp_path / "stopped")
    (tmp_path / "stopped" / "results.json").unlink()
    capsys.readouterr()
    assert main(["train", "--resume", str(tmp_path / "stopped"), "--json"]) == 0
    record = json.loads(capsys.readouterr().out)
    assert record["parts"] == json.loads((finished / "results.json").read_text())["parts"]

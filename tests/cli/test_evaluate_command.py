"""``bndl evaluate`` as a user meets it."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml

import bndl
from bndl.baselines import get_method
from bndl.cli import main
from bndl.data import load_splits
from bndl.evaluation.of_run import other_data, outside_data, own_part, ways_of_run
from bndl.metrics import Examples
from bndl.train import load_run

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")

RECORD = {
    "about": "a test",
    "needs": {"data": "digits", "hours": "0", "machine": "any"},
    "data": {"name": "digits", "val": 0.05},
    "model": {"backbone": "small-cnn", "width": 4, "head": "dense"},
    "train": {"epochs": 1, "batch_size": 256},
}
QUICK = ("--resamples", "5")


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A run of a head, trained once."""
    base = tmp_path_factory.mktemp("runs")
    (base / "tiny.yaml").write_text(yaml.safe_dump(RECORD))

    def of(head: str) -> Path:
        if not (base / head).exists():
            options = ["--set", f"model.head={head}", "--out", str(base / head)]
            assert main(["train", str(base / "tiny.yaml"), *options]) == 0
        return base / head

    return of


@pytest.fixture
def ours(trained):
    return trained("bndl")


def evaluated(capsys, folder: Path, *args: str) -> str:
    assert main(["evaluate", str(folder), *QUICK, *args]) == 0
    return capsys.readouterr().out


def refused(capsys, *args: str) -> str:
    """What a command that is refused says: one sentence, nothing on standard output."""
    assert main(["evaluate", *args]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("bndl: ")
    assert len(err.strip().splitlines()) == 1
    return err


# ----------------------------------------------------------------------------------------------------------- evaluated


def test_a_run_is_measured_on_its_own_test_part(capsys, ours, tmp_path):
    out = evaluated(capsys, ours, "--out", str(tmp_path / "here"))
    found = bndl.Evaluation.load(tmp_path / "here" / "evaluation.json")
    (row,) = load_run(ours).outcome.parts["test"]
    assert found.figures["accuracy"].value == pytest.approx(row.accuracy)
    assert found.figures["nll"].value == pytest.approx(row.nll, rel=1e-5)
    assert found.pavpu[1].value.value == pytest.approx(row.pavpu)
    assert (found.name, found.data, found.num_examples) == ("BNDL", "digits test", 359)
    assert sorted(path.name for path in (tmp_path / "here").iterdir()) == [
        "evaluation.json",
        "evaluation.png",
        "examples.npz",
    ]
    assert found.table() in out
    examples = Examples.load(tmp_path / "here" / "examples.npz")
    assert float(examples.correct.double().mean()) == pytest.approx(row.accuracy)


def test_a_dense_run_is_also_shown_at_its_temperature(capsys, trained, tmp_path):
    folder = trained("dense")
    out = evaluated(capsys, folder, "--out", str(tmp_path))
    plain, scaled = load_run(folder).outcome.parts["test"]
    for name, row in (("evaluation.json", plain), ("evaluation-temperature.json", scaled)):
        found = bndl.Evaluation.load(tmp_path / name)
        assert found.name == row.name
        assert found.figures["nll"].value == pytest.approx(row.nll, rel=1e-4)
        assert f"{found.figures['nll'].value:.4f}" in out
    assert "dense, temperature scaled" in out


def test_json_is_one_object_and_nothing_else(capsys, ours, tmp_path):
    record = json.loads(evaluated(capsys, ours, "--json", "--limit", "30", "--out", str(tmp_path)))
    assert record["folder"] == str(tmp_path)
    assert record["evaluations"] == {"BNDL": json.loads((tmp_path / "evaluation.json").read_text())}
    assert record["evaluations"]["BNDL"]["num_examples"] == 30


def test_other_data_corruptions_and_more(capsys, ours, tmp_path):
    images = np.random.default_rng(0).integers(256, size=(40, 1, 12, 12), dtype=np.uint8)  # another size, four classes
    np.savez(tmp_path / "noise.npz", x=images, y=np.arange(40) % 4)
    more = ("--ood", str(tmp_path / "noise.npz"), "--ood", f"again={tmp_path / 'noise.npz'}", "--sepin")
    shift = ("--corruptions", "fog,contrast", "--severities", "5,1")
    out = evaluated(capsys, ours, "--limit", "30", *more, *shift, "--out", str(tmp_path / "here"))
    found = bndl.Evaluation.load(tmp_path / "here" / "evaluation.json")
    assert {name: one.num_examples for name, one in found.ood.items()} == {"noise": 30, "again": 30}
    assert found.ood["noise"] == found.ood["again"]
    cells = {(cell.corruption, cell.severity) for cell in found.shift.cells}
    assert cells == {(name, severity) for name in ("fog", "contrast") for severity in (1, 5)}
    assert found.sepin.num_images == 30
    for words in ("Told from noise (30 examples)", "Mean over 2 corruptions", "SEPIN@all"):
        assert words in out


def test_each_data_has_a_folder_of_its_own(capsys, ours, tmp_path, monkeypatch):
    copied = tmp_path / "run"
    shutil.copytree(ours, copied)
    out = evaluated(capsys, copied, "--part", "val", "--limit", "20")
    assert "optimistic" in out
    test = load_splits("digits").test
    np.savez(tmp_path / "mine.npz", x=test.inputs.numpy(), y=test.labels.numpy())
    evaluated(capsys, copied, "--data", str(tmp_path / "mine.npz"), "--limit", "20")
    evaluated(capsys, copied, "--limit", "20")
    evaluated(capsys, copied, "--data", "digits", "--limit", "20")  # its own: never what it was trained on
    folders = sorted(path.name for path in copied.iterdir() if path.name.startswith("evaluation"))
    assert folders == ["evaluation", "evaluation-digits", "evaluation-mine", "evaluation-val"]
    names = {name: bndl.Evaluation.load(copied / name / "evaluation.json").data for name in folders}
    assert names == {
        "evaluation": "digits test",
        "evaluation-digits": "digits test",
        "evaluation-mine": "mine.npz train",
        "evaluation-val": "digits val",
    }


def test_ctrl_c_keeps_what_was_done(capsys, ours, tmp_path, monkeypatch):
    from bndl.evaluation import shift

    measure, calls = shift.shifted_figures, []

    def stopped(*args, **kwargs):
        calls.append(1)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return measure(*args, **kwargs)

    monkeypatch.setattr(shift, "shifted_figures", stopped)
    assert main(["evaluate", str(ours), "--shift", "--limit", "20", *QUICK, "--out", str(tmp_path)]) == 130
    out, err = capsys.readouterr()
    assert out == ""
    assert "interrupted" in err
    assert len(bndl.Evaluation.load(tmp_path / "evaluation.json").shift.cells) == 2
    assert sorted(path.name for path in tmp_path.iterdir()) == ["evaluation.json", "examples.npz"]


def test_figures_without_matplotlib(capsys, ours, tmp_path, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "matplotlib.figure", None)
    assert main(["evaluate", str(ours), "--limit", "20", *QUICK, "--out", str(tmp_path)]) == 0
    out, err = capsys.readouterr()
    assert "accuracy" in out
    assert 'no picture: drawing needs an optional dependency: pip install "bndl[demo]"' in err


@pytest.mark.slow
@pytest.mark.parametrize("head", ["nmf", "mc-dropout", "belief-matching"])
def test_every_head_predicts_by_its_own_method(head, capsys, trained):
    folder = trained(head)
    capsys.readouterr()
    run = load_run(folder)
    found = bndl.evaluate(ways_of_run(run), own_part(run, "test"), num_resamples=2, batch_size=512)
    row = run.outcome.parts["test"][0]
    assert found.name == head
    assert found.figures["nll"].value == pytest.approx(row.nll, rel=1e-4)
    assert (found.sparsity.features_per_decision is None) == (not get_method(head).layered)


# ------------------------------------------------------------------------------------------------------------ the data


def test_classes_of_the_same_names_are_matched_by_name(ours, tmp_path):
    test, run = load_splits("digits").test, load_run(ours)
    names = [str(digit) for digit in range(9, -1, -1)]
    np.savez(tmp_path / "backwards.npz", x=test.inputs.numpy(), y=9 - test.labels.numpy(), classes=np.array(names))
    data, part = other_data(str(tmp_path / "backwards.npz"), run)
    assert (data.classes, part) == (run.classes, "train")
    assert torch.equal(data.labels, test.labels)


def test_a_folder_of_nothing_but_images_will_do(ours, tmp_path):
    pil = pytest.importorskip("PIL.Image")
    for number in range(3):
        pil.fromarray(np.full((20, 30, 3), 80 * number, dtype=np.uint8)).save(tmp_path / f"{number}.png")
    (tmp_path / "notes.txt").write_text("none")
    (tmp_path / "broken.png").write_text("none")
    data = outside_data(str(tmp_path), replace(load_run(ours), channels=3))
    assert len(data) == 3
    assert data[0][0].size() == (3, 8, 8)
    with pytest.raises(bndl.InputError, match="has coloured images"):
        outside_data(str(tmp_path), load_run(ours))


# ------------------------------------------------------------------------------------------------------------- refused


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["--corruptions", "foog"], "there is no corruption 'foog'; did you mean 'fog'?"),
        (["--shift", "--severities", "9"], "a severity is a whole number from 1 to 5, not 9."),
        (["--ood", "svhn=nowhere"], "'nowhere' is neither a known data set nor a path"),
        (["--ood", "=x"], "--ood takes NAME=DATA or DATA"),
        (["--ood", "digits", "--ood", "digits"], "two sets are called digits"),
        (["--data", "digist"], "did you mean digits?"),
        (["--data", "ten.npz", "--part", "val"], "ten.npz stores train but no val part: leave out --part."),
        (["--data", "three.npz"], "three.npz has 3 classes, the run was trained on 10"),
        (["--data", "colour.npz"], "colour has coloured images (channels: 3), the run was trained on grey ones"),
        (["--ood", "colour.npz"], "colour has coloured images (channels: 3), the run was trained on grey ones"),
        (["--data", "table.npz"], "not square images"),
        (["--out", "a-file"], "cannot write to a-file"),
    ],
)
def test_bad_input_is_one_sentence(args, words, capsys, ours, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    ten, three = np.arange(20) % 10, np.arange(20) % 3
    np.savez("three.npz", x=np.zeros((20, 1, 8, 8), dtype=np.uint8), y=three)
    np.savez("ten.npz", x=np.zeros((20, 1, 8, 8), dtype=np.uint8), y=ten)
    np.savez("colour.npz", x=np.zeros((20, 3, 8, 8), dtype=np.uint8), y=ten)
    np.savez("table.npz", x=np.zeros((20, 7), dtype=np.float32), y=ten)
    Path("a-file").write_text("")
    capsys.readouterr()
    assert words in refused(capsys, str(ours), *args)
    assert not (ours / "evaluation").exists()


def test_a_run_that_is_not_there_or_not_finished(capsys, ours, tmp_path):
    capsys.readouterr()
    assert "is no run's folder, it has no recipe.yaml" in refused(capsys, str(tmp_path))
    shutil.copytree(ours, tmp_path / "stopped")
    (tmp_path / "stopped" / "results.json").unlink()
    assert "the run has not finished; bndl train --resume" in refused(capsys, str(tmp_path / "stopped"))


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["--limit", "0"], "a whole number of at least 1 is needed, got '0'"),
        (["--severities", "a"], "severities are whole numbers such as 1,3,5, got 'a'"),
        (["--part", "train"], "invalid choice: 'train'"),
        ([], "RUN"),
    ],
)
def test_options_are_checked(args, words, capsys):
    with pytest.raises(SystemExit) as stop:
        main(["evaluate", *(["run"] if args else []), *args])
    assert stop.value.code == 2
    assert words in capsys.readouterr().err

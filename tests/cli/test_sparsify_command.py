"""``bndl sparsify`` as a user meets it."""

import json
from pathlib import Path

import pytest
import torch
import yaml
from PIL import Image

import bndl
from bndl.cli import main
from bndl.cli import sparsify as command
from bndl.data import load_splits
from bndl.layer import DecisionLayer
from bndl.train import load_run

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")

RECORD = {
    "about": "a test",
    "needs": {"data": "digits", "hours": "0", "machine": "any"},
    "data": {"name": "digits", "val": 0.2},
    "model": {"backbone": "small-cnn", "width": 4},
    "train": {"epochs": 1, "batch_size": 256},
}
QUICK = ("--num-points", "3")


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    base = tmp_path_factory.mktemp("runs")
    (base / "tiny.yaml").write_text(yaml.safe_dump(RECORD))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("bndl.calibrate._STEPS", 20)
        for head in ("dense", "bndl", "belief-matching"):
            options = ["--set", f"model.head={head}", "--out", str(base / head)]
            assert main(["train", str(base / "tiny.yaml"), *options]) == 0
        yield base


@pytest.fixture(scope="module")
def learnt(runs):
    """A dense run that knows its digits, and so can teach."""
    out = runs / "learnt"
    settings = ["model.head=dense", "train.epochs=15", "train.batch_size=64"]
    options = [word for setting in settings for word in ("--set", setting)]
    assert main(["train", str(runs / "tiny.yaml"), *options, "--out", str(out)]) == 0
    return out


def refused(capsys, *args: str) -> str:
    """What a command that is refused says: one sentence, nothing on standard output."""
    assert main(["sparsify", *args]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("bndl: ")
    assert len(err.strip().splitlines()) == 1
    return err


@pytest.mark.parametrize("head", ["dense", "bndl"])
def test_a_run_becomes_a_sparse_model_with_its_path(capsys, runs, tmp_path, head):
    assert main(["sparsify", str(runs / head), "--nnz", "0.2", *QUICK, "--out", str(tmp_path)]) == 0
    out = capsys.readouterr().out
    assert "weights a class" in out
    assert "chosen" in out
    assert {file.name for file in tmp_path.iterdir()} == {"model.safetensors", "path.json", "path.png"}
    record = json.loads((tmp_path / "path.json").read_text())
    assert record["points"][record["chosen"]]["nnz"] <= 0.2
    backbone = load_run(runs / "dense").model
    model = bndl.load(tmp_path / "model.safetensors", backbone=backbone)
    layer = next(module for module in model.modules() if isinstance(module, DecisionLayer))
    assert layer.num_weights() == record["points"][-1]["weights"]


def test_json_is_the_record_and_nothing_else(capsys, runs, tmp_path):
    arguments = [str(runs / "bndl"), "--features-per-class", "2", *QUICK, "--out", str(tmp_path), "--json"]
    assert main(["sparsify", *arguments]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed == {"folder": str(tmp_path), **json.loads((tmp_path / "path.json").read_text())}
    assert printed["points"][-1]["weights_per_class"] <= 2


def test_an_interrupt_keeps_the_points_that_were_done(capsys, runs, tmp_path, monkeypatch):
    from bndl.sparsify import run

    measured, done = run.measured, []

    def interrupted(*args, **kwargs):
        if len(done) == 2:
            raise KeyboardInterrupt
        done.append(1)
        return measured(*args, **kwargs)

    monkeypatch.setattr(run, "measured", interrupted)
    assert main(["sparsify", str(runs / "bndl"), "--num-points", "5", "--out", str(tmp_path)]) == 130
    assert "interrupted after 2 points" in capsys.readouterr().err
    assert len(json.loads((tmp_path / "path.json").read_text())["points"]) == 2
    assert (tmp_path / "model.safetensors").is_file()


def test_what_cannot_be_done_is_said_in_one_sentence(capsys, runs, tmp_path):
    assert "one target" in refused(capsys, str(runs / "bndl"), "--nnz", "0.1", "--features-per-class", "3")
    assert "share of the weights" in refused(capsys, str(runs / "bndl"), "--nnz", "7")
    assert "less than one weight a class" in refused(capsys, str(runs / "bndl"), "--nnz", "1e-6")
    assert "at least two points" in refused(capsys, str(runs / "bndl"), "--num-points", "1")
    assert "belief-matching head" in refused(capsys, str(runs / "belief-matching"))
    assert str(Path("nothing")) in refused(capsys, "nothing")
    (tmp_path / "file").write_text("")
    assert "another --out" in refused(capsys, str(runs / "bndl"), "--out", str(tmp_path / "file" / "x"))


def test_no_model_lies_beside_the_figures_of_another(runs, tmp_path, monkeypatch):
    (tmp_path / "model.safetensors").write_text("of an earlier call")
    (tmp_path / "path.png").write_text("of an earlier call")

    def killed(self, path):
        keep(self, path)
        raise SystemExit(9)

    keep = command._Kept.__call__
    monkeypatch.setattr(command._Kept, "__call__", killed)
    with pytest.raises(SystemExit):
        main(["sparsify", str(runs / "bndl"), "--nnz", "0.2", *QUICK, "--out", str(tmp_path)])
    assert {file.name for file in tmp_path.iterdir()} == {"path.json"}


@pytest.fixture(scope="module")
def tuned(learnt, tmp_path_factory):
    """The folder that --finetune writes to."""
    out = tmp_path_factory.mktemp("tuned")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("bndl.calibrate._STEPS", 20)
        arguments = [str(learnt), "--features-per-class", "1", *QUICK, "--finetune", "8", "--out", str(out)]
        assert main(["sparsify", *arguments]) == 0
    return out


def test_fine_tuning_trains_the_backbone_and_is_written_down(learnt, tuned):
    record = json.loads((tuned / "path.json").read_text())
    figures, chosen = record["finetuned"], record["points"][record["chosen"]]
    assert len(figures["val_nll"]) == 9
    assert figures["best_epoch"] > 0
    assert figures["weights"] <= chosen["weights"]
    assert figures["nll"] < chosen["nll"]
    sparse, after = (
        bndl.load(tuned / f"{name}.safetensors", backbone=load_run(learnt).model) for name in ("model", "finetuned")
    )
    kept = {name: value for name, value in load_run(learnt).model.named_parameters() if "fc" not in name}
    moved = [
        [name for name, value in model.named_parameters() if name in kept and not torch.equal(value, kept[name])]
        for model in (sparse, after)
    ]
    assert not moved[0]
    assert moved[1]


def test_other_commands_take_the_fine_tuned_model(capsys, learnt, tuned, tmp_path):
    head, answers = str(tuned / "finetuned.safetensors"), tmp_path / "answers.parquet"
    assert main(["explain", str(learnt), "--head", head, "--example", "3", "--out", str(tmp_path / "why.png")]) == 0
    assert "fine-tuned" in capsys.readouterr().out
    images = tmp_path / "images"
    images.mkdir()
    Image.fromarray(load_splits("digits").test[0][0][0].numpy()).save(images / "one.png")
    assert main(["predict", str(learnt), str(images), "--head", head, "--out", str(answers)]) == 0
    assert answers.is_file()


def test_an_interrupt_of_fine_tuning_keeps_the_best_so_far(capsys, learnt, tmp_path, monkeypatch):
    def interrupted(*args, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr("bndl.elbo._epoch", interrupted)
    arguments = [str(learnt), "--nnz", "0.2", *QUICK, "--finetune", "1", "--out", str(tmp_path)]
    assert main(["sparsify", *arguments]) == 130
    assert "interrupted" in capsys.readouterr().out
    assert json.loads((tmp_path / "path.json").read_text())["finetuned"]["best_epoch"] == 0
    for name in ("model", "finetuned"):
        assert bndl.load(tmp_path / f"{name}.safetensors", backbone=load_run(learnt).model)


def test_a_negative_number_of_epochs_is_refused(capsys, runs):
    for epochs in ("-1", "0"):
        assert "--finetune is a number of epochs" in refused(capsys, str(runs / "dense"), "--finetune", epochs)

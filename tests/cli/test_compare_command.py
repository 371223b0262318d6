"""``bndl compare`` as a user meets it."""

import json
from pathlib import Path

import pytest
import yaml

from bndl.baselines import METHODS
from bndl.baselines.temperature import Temperature
from bndl.cli import main
from bndl.compare import Comparison
from bndl.compare.paper import PAPER

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore::UserWarning")]

RECORD = {
    "about": "a test",
    "data": {"name": "digits", "val": 0.2, "workers": 0},
    "model": {"backbone": "small-cnn", "width": 4, "head": "dense"},
    "train": {"epochs": 1, "batch_size": 64},
}
RUN = "runs/tiny-dense-0"


@pytest.fixture(scope="module")
def base(tmp_path_factory) -> Path:
    """A folder with a recipe and its finished run."""
    place = tmp_path_factory.mktemp("cli")
    (place / "tiny.yaml").write_text(yaml.safe_dump(RECORD))
    assert main(["train", str(place / "tiny.yaml"), "--out", str(place / RUN)]) == 0
    return place


@pytest.fixture
def place(base, monkeypatch, capsys) -> Path:
    monkeypatch.chdir(base)
    capsys.readouterr()
    return base


def refused(capsys, *args: str) -> str:
    assert main(["compare", *args]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert len(err.strip().splitlines()) == 1
    return err


def test_list_shows_methods_checkpoints_and_tables(capsys):
    assert main(["compare", "--list"]) == 0
    out = capsys.readouterr().out
    for name in (*METHODS, *PAPER, "resnet56_cifar10"):
        assert name in out


def test_one_command_gives_a_table_in_every_format(place, capsys):
    args = ["compare", RUN, "--methods", "dense,temperature", "--seeds", "0,1", "--ood", "digits"]
    assert main(args) == 0
    out = capsys.readouterr().out
    assert "temperature" in out
    assert "OOD AUROC" in " ".join(out.split())
    written = {path.name for path in (place / "compare").iterdir() if path.is_file()}
    assert written == {"table.md", "table.tex", "table.json", "compare-tiny-dense-0.png"}
    for form in ("markdown", "latex", "json"):
        assert main([*args, "--format", form]) == 0
        text = capsys.readouterr().out
        suffix = {"markdown": "md", "latex": "tex", "json": "json"}[form]
        assert text == (place / "compare" / f"table.{suffix}").read_text()
    rows = json.loads((place / "compare" / "table.json").read_text())["rows"]
    assert [row["method"] for row in rows] == ["dense", "temperature"]
    assert rows[0]["seeds"] == [0, 1]


@pytest.mark.parametrize("form", ["terminal", "markdown", "latex"])
def test_differences_are_shown_in_place_of_intervals(place, capsys, form):
    args = [
        "compare",
        RUN,
        "--methods",
        "dense,temperature",
        "--seeds",
        "0,1",
        "--columns",
        "accuracy",
        "--format",
        form,
    ]
    assert main(args) == 0
    assert "+0.00" not in capsys.readouterr().out
    assert main([*args, "--differences"]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "+0.00 (+0.00 to +0.00)" in out  # a temperature changes no decision
    assert "the difference to dense" in out


def test_a_failed_method_is_told_and_the_rest_is_there(place, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(Temperature, "fit", lambda *_a, **_k: 1 / 0)
    args = ["compare", RUN, "--seeds", "0", "--out", str(tmp_path), "--cache", "compare/features"]
    assert main([*args, "--methods", "dense,temperature"]) == 0
    out = capsys.readouterr().out
    assert "temperature (seed 0): failed: ZeroDivisionError" in out
    assert main([*args, "--methods", "dense,temperature", "--reference", "temperature", "--differences"]) == 0
    assert "no differences: no cell of temperature could be computed" in capsys.readouterr().err
    assert main([*args, "--methods", "temperature"]) == 1  # nothing to show


def test_the_papers_figure_of_uncertainty_is_drawn(place, tmp_path, capsys):
    args = ["--paper", "fig-uncertainty", "--methods", "dense", "--seeds", "0", "--out", str(tmp_path)]
    assert main(["compare", "tiny.yaml", *args]) == 0
    curve = json.loads((tmp_path / "deciles.json").read_text())[0]
    assert len(curve["accuracy"]) == 10
    assert curve["uncertainty"] == sorted(curve["uncertainty"])
    assert (tmp_path / "fig-uncertainty.png").is_file()
    assert "Figure 2" in capsys.readouterr().out


def test_the_papers_figure_of_sparsity_keeps_every_path(place, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("bndl.compare.sparsity._SHARES", (0.5, 0.1))
    monkeypatch.setattr("bndl.compare.sparsity._PENALTIES", 3)
    args = ["compare", RUN, "--paper", "fig-sparsity", "--out", str(tmp_path), "--cache", "compare/features"]
    with monkeypatch.context() as patch:
        patch.setattr("bndl.compare.sparsity.elastic_net_path", lambda *_a, **_k: iter([1 / 0]))
        assert main([*args, "--seeds", "0,1"]) == 0
    out, err = capsys.readouterr()
    assert "tiny-dense-0, elastic-net, seed 1: failed: ZeroDivisionError" in err
    assert "**tiny-dense-0**, seeds 0, 1" in out
    kept = tmp_path / "paths" / "tiny-dense-0"
    names = {"dense-0.json", "bndl-0.json", "bndl-1.json", "threshold-0.json", "threshold-1.json"}
    assert {path.name for path in kept.iterdir()} == names
    (kept / "bndl-1.json").write_text("{")  # as if the disk had filled up
    assert main([*args, "--seeds", "0,1", "--format", "json"]) == 0
    out, err = capsys.readouterr()
    assert {line.partition(": nnz")[0] for line in err.strip().splitlines()} == {
        f"tiny-dense-0, {path}" for path in ("bndl, seed 1", "elastic-net, seed 0", "elastic-net, seed 1")
    }
    points = json.loads(out)["tiny-dense-0"]
    assert {(point["method"], point["seed"]) for point in points} == {
        ("dense", 0),
        *((method, seed) for method in ("bndl", "threshold", "elastic-net") for seed in (0, 1)),
    }
    assert (tmp_path / "sparsity.md").read_text().startswith("**tiny-dense-0**")
    assert (tmp_path / "fig-sparsity.png").is_file()


@pytest.mark.parametrize(
    ("args", "words"),
    [
        ([], "name what to compare on"),
        (["nothing"], "neither a recipe's name nor a file"),
        ([RUN, "--methods", "bndel"], "did you mean 'bndl'"),
        ([RUN, "--seeds", "one"], "whole numbers"),
        ([RUN, "--seeds", "-1"], "from 0 to"),
        ([RUN, "--seeds", "0,0"], "twice"),
        ([RUN, "--ood", "a=digits", "--ood", "a=digits"], "each name once"),
        ([RUN, "--set", "train.lr=1"], "changes recipes"),
        ([RUN, "--small"], "goes with --paper"),
        ([RUN, "--columns", "speed"], "no column 'speed'"),
        ([RUN, "--columns", "nll,nll"], "shown once"),
        ([RUN, "--methods", ""], "--methods is empty"),
        ([RUN, "--reference", "nmf", "--methods", "dense"], "not among the methods"),
        ([RUN, "--differences", "--methods", "temperature,bndl"], "dense, which is not among the methods"),
        ([RUN, "--members", "0"], "at least one member"),
        ([RUN, "--ood", "digits="], "a plain word"),
        ([RUN, "--ood", "a/b=digits"], "a plain word"),
        ([RUN, "--out", "tiny.yaml/x"], "cannot make the folder"),
        (["--paper", "table9"], "no 'table9'"),
        ([RUN, "--paper", "fig-sparsity", "--differences"], "no reference and no differences"),
        ([RUN, "--paper", "fig-sparsity", "--format", "latex"], "not told in LaTeX"),
        ([RUN, "--paper", "fig-sparsity", "--seeds", "1,1"], "twice"),
        ([RUN, "--out", "tiny.yaml"], "is a file"),
    ],
)
def test_bad_input_is_refused_in_a_sentence(place, capsys, args, words):
    assert words in refused(capsys, *args)


@pytest.mark.parametrize("paper", [True, False])
def test_only_the_papers_tables_train_as_the_paper_does(paper, tmp_path, monkeypatch):
    seen = []

    def compare(subjects, methods, seeds, *, options, tell):
        seen.append(options)
        return Comparison((), (), {})

    monkeypatch.setattr("bndl.compare.compare", compare)
    what = ["--paper", "table4", "--small"] if paper else ["cifar100-resnet18-small"]
    assert main(["compare", *what, "--out", str(tmp_path / "out")]) == 1
    assert [options.paper for options in seen] == [paper]

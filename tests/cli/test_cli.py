"""The command line as a user meets it."""

import json
import subprocess
import sys

import pytest
import torch

import bndl
import bndl.backbones
from bndl.cli import main
from bndl.store import read_header


def bndl_command(*args, **kwargs):
    return subprocess.run(
        [sys.executable, "-m", "bndl.cli", *args], capture_output=True, text=True, timeout=300, **kwargs
    )


def test_help_lists_every_command(capsys):
    assert main([]) == 0
    assert "demo" in capsys.readouterr().out


def test_version(capsys):
    with pytest.raises(SystemExit) as stop:
        main(["--version"])
    assert stop.value.code == 0
    assert capsys.readouterr().out.strip() == f"bndl {bndl.__version__}"


def test_unknown_command_is_told_what_there_is():
    result = bndl_command("dmeo")
    assert result.returncode == 2
    assert "choose from" in result.stderr
    assert "demo" in result.stderr


def test_bad_input_is_one_sentence_and_exit_code_2(tmp_path):
    result = bndl_command("demo", "--out", str(tmp_path / "nowhere" / "demo.png"))
    assert result.returncode == 2
    assert result.stderr.strip().startswith("bndl: cannot write")
    assert len(result.stderr.strip().splitlines()) == 1
    assert not list(tmp_path.iterdir())


@pytest.fixture(scope="module")
def demo(tmp_path_factory):
    folder = tmp_path_factory.mktemp("demo")
    result = bndl_command("demo", "--save", "model.safetensors", cwd=folder)
    assert result.returncode == 0, result.stderr
    return folder, result.stdout


@pytest.mark.slow
def test_demo_tells_its_story(demo):
    folder, out = demo
    for words in (
        "accuracy",
        "NLL",
        "ECE",
        "PAvPU",
        "weights",
        "features",
        "dense",
        "BNDL",
        "Least sure, and why",
        "Next",
    ):
        assert words in out
    assert (folder / "demo.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.slow
def test_demo_saves_a_model_that_loads(demo):
    folder, _ = demo
    header = read_header(folder / "model.safetensors")
    assert header["classes"] == [str(digit) for digit in range(10)]
    model = bndl.load(folder / "model.safetensors", backbone=bndl.backbones.SmallCNN(10, num_features=32))
    assert bndl.predict(model, torch.rand(2, 1, 8, 8)).probs.size() == (2, 10)


@pytest.mark.slow
def test_demo_json_is_the_same_run_and_good(tmp_path):
    result = bndl_command("demo", "--json", cwd=tmp_path)
    record = json.loads(result.stdout)
    rows = {row["name"]: row for row in record["rows"]}
    assert rows["BNDL"]["accuracy"] > 0.95
    assert rows["BNDL"]["nll"] < rows["dense"]["nll"]
    assert rows["BNDL"]["weights_per_class"] < rows["dense"]["weights_per_class"]
    assert record["deciles"]["accuracy"][0] >= record["deciles"]["accuracy"][-1]
    assert sum(record["deciles"]["count"]) == record["num_test"]


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (("--seed", "-1"), "a seed is a whole number"),
        (("--out", "."), "it is a folder"),
        (("--out", "a/b.png"), "no folder a"),
    ],
)
def test_bad_options_are_told_at_once(args, words, tmp_path):
    result = bndl_command("demo", *args, cwd=tmp_path)
    assert result.returncode == 2
    assert words in result.stderr
    assert "Traceback" not in result.stderr
    assert not list(tmp_path.iterdir())

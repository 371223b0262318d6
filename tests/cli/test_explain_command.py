"""``bndl explain`` as a user meets it."""

import dataclasses
import importlib
import json

import numpy as np
import pytest
import torch
import yaml

from bndl import cli
from bndl.cli import main
from bndl.cli.console import fail, plain
from bndl.explain.figure import Bar, Look, Picture, draw

pytest.importorskip("matplotlib")
PIL = pytest.importorskip("PIL.Image")
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")

RECORD = {
    "about": "a test",
    "needs": {"data": "digits", "hours": "0", "machine": "any"},
    "data": {"name": "digits", "val": 0.2},
    "model": {"backbone": "small-cnn", "width": 4},
    "train": {"epochs": 1, "batch_size": 256},
}


@pytest.fixture(autouse=True)
def _registered(monkeypatch):
    monkeypatch.setitem(cli.COMMANDS, "explain", "why an image was decided as it was")


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


@pytest.fixture
def image(tmp_path):
    pixels = np.random.default_rng(0).integers(0, 256, (31, 47, 3), dtype=np.uint8)
    path = tmp_path / "[bold] $x_{ a.png"
    PIL.fromarray(pixels).save(path)
    return path


def refused(capsys, *args: str) -> str:
    """What a command that is refused says: one sentence, nothing on standard output."""
    assert main(["explain", *args]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("bndl: ")
    assert len(err.strip().splitlines()) == 1
    return err


def adds_up(record: dict) -> bool:
    one = record["explanation"]
    total = sum(term["value"] for term in one["terms"]) + one["rest"] + one["bias"]
    return total == pytest.approx(one["logit"], abs=1e-4) and sum(map(sum, one["map"])) == pytest.approx(
        one["logit"] - one["bias"], abs=1e-3
    )


def test_a_file_and_examples_become_a_figure_and_json(capsys, runs, image, tmp_path):
    out = tmp_path / "out"
    options = ["--example", "3", "--example", "8", "--dense", str(runs / "dense"), "--out", str(out)]
    assert main(["explain", str(runs / "bndl"), str(image), *options]) == 0
    words = capsys.readouterr().out
    assert "[bold] $x_{ a.png" in words
    assert "why not" in words
    assert {file.name for file in out.iterdir()} == {"explanation.png", "explanation.json"}
    record = json.loads((out / "explanation.json").read_text())
    assert [one["image"] for one in record["images"]] == ["[bold] $x_{ a.png", "test example 3", "test example 8"]
    assert all(adds_up(one) for one in record["images"])
    assert [look["model"] for look in record["images"][1]["looks"]] == ["BNDL", "Dense"]
    assert record["images"][0]["truth"] is None
    with PIL.open(out / "explanation.png") as figure:
        assert figure.width > figure.height / 2 > 200


@pytest.mark.parametrize("method", ["channel", "gradcam", "lime"])
def test_a_dense_run_is_drawn_below_by_any_method(capsys, runs, image, tmp_path, monkeypatch, method):
    if method == "lime":  # its own tests take the real number of passes
        module = importlib.import_module("bndl.explain.lime")
        real = module.lime
        monkeypatch.setattr(
            module, "lime", lambda *a, **k: real(*a, **k, segments="grid", count=9, num_perturbations=60)
        )
    arguments = [str(runs / "dense"), str(image), "--map", method, "--rule", "weight", "--out", str(tmp_path / "out")]
    assert main(["explain", *arguments, "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert any("noise is the default" in line for line in printed["about"])
    looks = printed["images"][0]["looks"]
    assert [look["model"] for look in looks] == ["BNDL", "Dense"]
    assert looks[0]["why"].startswith("weight ")
    assert (tmp_path / "out" / "explanation.png").stat().st_size > 10_000


def test_a_class_and_another_can_be_asked_for(capsys, runs, image, tmp_path):
    options = ["--label", "4", "--against", "9", "--top", "3", "--out", str(tmp_path / "out"), "--json"]
    assert main(["explain", str(runs / "bndl"), str(image), *options]) == 0
    one = json.loads(capsys.readouterr().out)["images"][0]["explanation"]
    assert (one["target"], one["against"], len(one["terms"])) == (4, 9, 3)


def test_the_same_seed_gives_the_same_json(capsys, runs, image, tmp_path):
    printed = []
    for _ in range(2):
        assert main(["explain", str(runs / "bndl"), str(image), "--out", str(tmp_path / "out"), "--json"]) == 0
        printed.append(capsys.readouterr().out)
    assert printed[0] == printed[1]


def test_what_cannot_be_done_is_said_in_one_sentence(capsys, runs, image, tmp_path):
    run, out = str(runs / "bndl"), ("--out", str(tmp_path / "out"))
    text = tmp_path / "text.jpg"
    text.write_text("no image")
    assert "give 1 to 24 images" in refused(capsys, run, *out)
    assert "no image" in refused(capsys, run, str(tmp_path / "gone.jpg"), *out)
    assert "cannot be decoded" in refused(capsys, run, str(text), *out)
    assert "no class 'cat'" in refused(capsys, run, str(image), "--label", "cat", *out)
    assert "there is no 99999" in refused(capsys, run, "--example", "99999", *out)
    assert "nothing" in refused(capsys, str(tmp_path / "nothing"), str(image), *out)
    assert "belief-matching head" in refused(capsys, str(runs / "belief-matching"), str(image), *out)
    assert "--dense takes" in refused(capsys, run, str(image), "--dense", run, *out)
    assert "another --out" in refused(capsys, run, str(image), "--out", str(text / "x"))
    assert "damaged or no safetensors" in refused(capsys, run, str(image), "--head", str(text), *out)
    assert not (tmp_path / "out" / "explanation.png").exists()


def test_a_run_without_a_test_part_explains_its_validation_part(capsys, runs, tmp_path, monkeypatch):
    module = importlib.import_module("bndl.explain.subject")
    real = module.read_splits
    arguments = (str(runs / "bndl"), "--example", "3", "--out", str(tmp_path / "out"))
    monkeypatch.setattr(module, "read_splits", lambda *a, **k: dataclasses.replace(real(*a, **k), test=None))
    assert "no test part: choose --part val." in refused(capsys, *arguments)
    assert main(["explain", *arguments, "--part", "val", "--json"]) == 0
    (one,) = json.loads(capsys.readouterr().out)["images"]
    assert one["image"] == "val example 3"
    assert one["truth"] is not None
    assert "the val part has" in refused(capsys, str(runs / "bndl"), "--example", "99999", "--part", "val")
    empty = {"test": None, "val": None}
    monkeypatch.setattr(module, "read_splits", lambda *a, **k: dataclasses.replace(real(*a, **k), **empty))
    assert "no test part: give files of images." in refused(capsys, *arguments)


def test_names_cannot_steer_the_terminal(capsys, runs, image, tmp_path, monkeypatch):
    assert plain("a\x1b[31m\u202eb\n\udcff猫 é[b]\\x") == "a\\x1b[31m\\u202eb\\n\\udcff猫 é[b]\\x"
    assert fail("no\x1b[2J\nway", code=2) == 2
    assert capsys.readouterr().err == "bndl: no\\x1b[2J way\n"
    module = importlib.import_module("bndl.explain.subject")
    real = module.load_run
    names = tuple(f"{n}\x1b]0;owned\x07\u202e" for n in range(10))
    monkeypatch.setattr(module, "load_run", lambda folder: dataclasses.replace(real(folder), classes=names))
    hostile = image.rename(image.with_name("x\x1b[2J\n.png"))
    assert main(["explain", str(runs / "bndl"), str(hostile), "--out", str(tmp_path / "out")]) == 0
    words = capsys.readouterr().out
    assert not set("\x1b\x07\u202e") & set(words)
    assert "x\\x1b[2J\\n.png" in words
    assert "\x1b" not in refused(capsys, str(runs / "bndl"), str(hostile), "--label", "cat\x1b")


def test_hostile_names_are_drawn_as_they_are(tmp_path):
    bad = "$\\frac{$ [red] 猫\n" + "W" * 200
    look = Look(
        "BNDL", bad, bad, "f1", bad, torch.rand(4, 4), bad, (Bar("f1", 1.0, 0.5, 2.0), Bar("f2", -1, -1, -1)), bad
    )
    still = Look("BNDL", bad, bad, "f1", bad, torch.zeros(4, 4), bad)  # no heat, no bars
    for number, pictures in enumerate(
        (
            [Picture(torch.zeros(1, 8, 8, dtype=torch.uint8), bad, bad, (look, still))],
            [Picture(torch.zeros(3, 90, 80, dtype=torch.uint8), bad, None, (look,))] * 7,
        )
    ):
        path = draw(pictures, tmp_path / f"{number}.png", title=bad)
        assert path.stat().st_size > 10_000

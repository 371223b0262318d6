"""``bndl export`` as a user meets it."""

import json

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
import yaml

import bndl
from bndl.cli import main
from bndl.train import load_run

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")

K, C = 6, 3
RECORD = {
    "about": "a test",
    "needs": {"data": "digits", "hours": "0", "machine": "any"},
    "data": {"name": "digits", "val": 0.2},
    "model": {"backbone": "small-cnn", "width": 4},
    "train": {"epochs": 1, "batch_size": 256},
}


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    base = tmp_path_factory.mktemp("runs")
    (base / "tiny.yaml").write_text(yaml.safe_dump(RECORD))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("bndl.calibrate._STEPS", 20)
        for head in ("dense", "bndl"):
            options = ["--set", f"model.head={head}", "--out", str(base / head)]
            assert main(["train", str(base / "tiny.yaml"), *options]) == 0
        yield base


@pytest.fixture
def head(tmp_path):
    torch.manual_seed(0)
    layer = bndl.DecisionLayer(K, C).eval()
    return layer, str(bndl.save(layer, tmp_path / "head.safetensors", classes=["ant", "bee", "cow"]))


def refused(capsys, *args: str) -> str:
    """What a command that is refused says: one sentence, nothing on standard output, no file."""
    assert main(["export", *args]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    (said,) = [line for line in err.strip().splitlines() if line.startswith("bndl: ")]
    return said


def about(path) -> dict:
    (entry,) = onnx.load(path).metadata_props
    return json.loads(entry.value)


def test_a_run_takes_the_pixels_of_its_images(capsys, runs, tmp_path):
    assert main(["export", str(runs / "bndl"), "--reasons", "2"]) == 0
    words, told = capsys.readouterr()
    assert [file.name for file in tmp_path.iterdir()] == ["bndl.onnx"]
    assert "uint8 (batch, 1, 8, 8)" in words
    assert "16 images of the run's test part" in words
    assert told.startswith("tiny, bndl head")
    record = about("bndl.onnx")
    assert record["classes"] == [str(digit) for digit in range(10)]
    assert record["pixels"] == "whole numbers from 0 to 255"
    assert record["side"] == 8
    assert record["preparation"] == "shorter side to 8 (bilinear), centre 8 x 8, grey"

    run = load_run(runs / "bndl")
    pixels = torch.randint(0, 256, (20, 1, 8, 8), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    code = words[words.index("import onnxruntime") :]  # as it is printed
    found = {"images": pixels.numpy()}
    exec(compile(code, "printed", "exec"), found)
    wanted = bndl.predict(run.model, pixels.float() / 255)
    assert np.array_equal(found["labels"], wanted.labels.numpy())
    assert np.allclose(found["probs"], wanted.probs.numpy(), atol=1e-5)
    assert np.array_equal(found["certain"], wanted.certain.numpy())


def test_a_dense_run_is_converted_and_floats_are_taken_as_asked(capsys, runs, tmp_path):
    assert main(["export", str(runs / "dense"), "--floats", "--out", "f.pt2", "--json"]) == 0
    words, told = capsys.readouterr()
    record = json.loads(words)
    assert record["inputs"] == [{"name": "images", "dtype": "float32", "dims": ["batch", 1, 8, 8]}]
    assert record["pixels"] == "floats from 0 to 1"
    assert record["size"] == (tmp_path / "f.pt2").stat().st_size
    assert record["differences"]["probs"] < 1e-5
    assert "converted" in told
    assert len(torch.export.load("f.pt2").module()(torch.rand(3, 1, 8, 8))) == 10


def test_a_run_without_its_data_is_tried_on_random_images(capsys, runs, monkeypatch):
    def gone(self, part="test"):
        raise bndl.FileError("there is nothing")

    monkeypatch.setattr("bndl.explain.subject.Subject.data", gone)
    assert main(["export", str(runs / "bndl")]) == 0
    assert "16 random images, as the run's data cannot be read" in capsys.readouterr().out


@pytest.mark.parametrize("signed", [False, True])
def test_a_head_alone_takes_features(capsys, tmp_path, signed):
    torch.manual_seed(0)
    layer = bndl.DecisionLayer(K, C, signed=signed).eval()
    path = bndl.save(layer, tmp_path / "head.safetensors", classes=["ant", "bee", "cow"])
    assert main(["export", str(path), "--method", "closed", "--level", "0.2", "--seed", "3"]) == 0
    assert "random rows of features" in capsys.readouterr().out
    record = about("head.onnx")
    assert record["classes"] == ["ant", "bee", "cow"]
    assert (record["method"], record["level"], record["seed"]) == ("closed", 0.2, 3)
    x = torch.randn(7, K, generator=torch.Generator().manual_seed(0))
    found = onnxruntime.InferenceSession("head.onnx").run(["probs"], {"features": x.numpy()})[0]
    assert np.allclose(found, bndl.predict(layer, x, method="closed").probs.numpy(), atol=1e-5)


def test_unchecked_says_so(capsys, head):
    assert main(["export", head[1], "--no-check", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["differences"] is None
    assert main(["export", head[1], "--no-check"]) == 0
    assert "differs by" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["none"], "neither the folder of a run nor a .safetensors file: check the path"),
        (["HEAD", "--floats"], "--floats is about images"),
        (["HEAD", "--head", "x"], "leave it out"),
        (["HEAD", "--out", "m.tflite"], "let it end in .onnx or .pt2"),
        (["HEAD", "--out", "no/m.onnx"], "choose a folder that exists"),
        (["HEAD", "--level", "2"], "strictly between 0 and 1"),
        (["HEAD", "--num-samples", "1", "--method", "paper"], "at least 2"),
        (["HEAD", "--opset", "999"], "cannot"),
    ],
)
def test_bad_input_is_one_sentence_and_no_file(capsys, head, tmp_path, args, words):
    before = sorted(tmp_path.iterdir())
    assert words in refused(capsys, *[head[1] if arg == "HEAD" else arg for arg in args])
    assert sorted(tmp_path.iterdir()) == before


def test_an_empty_folder_is_no_run(capsys, tmp_path):
    (tmp_path / "void").mkdir()
    assert "void" in refused(capsys, str(tmp_path / "void"))

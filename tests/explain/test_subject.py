"""A run becomes something to explain, whatever its head."""

from dataclasses import replace

import pytest
import torch
import yaml
from torch import nn

import bndl
from bndl import DecisionLayer, FileError, InputError
from bndl.cli import main
from bndl.convert import find_layer
from bndl.data.calling import known_names, read_names
from bndl.explain import explain
from bndl.explain.subject import load_subject
from bndl.stream.subject import load_predictor
from bndl.train import load_run

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")

RECORD = {
    "about": "a test",
    "needs": {"data": "digits", "hours": "0", "machine": "any"},
    "data": {"name": "digits", "val": 0.2},
    "model": {"backbone": "small-cnn", "width": 4},
    "train": {"epochs": 1, "batch_size": 256},
}


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    base = tmp_path_factory.mktemp("runs")
    (base / "tiny.yaml").write_text(yaml.safe_dump(RECORD))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("bndl.calibrate._STEPS", 20)
        for name, head, seed in (("dense", "dense", 0), ("bndl", "bndl", 0), ("other", "bndl", 1)):
            options = ["--set", f"model.head={head}", "--set", f"train.seed={seed}", "--out", str(base / name)]
            assert main(["train", str(base / "tiny.yaml"), *options]) == 0
        yield base


def test_a_run_with_a_decision_layer_is_taken_as_it_is(runs):
    subject = load_subject(runs / "bndl")
    data = subject.data()
    x = subject.inputs(torch.stack([data[i][0] for i in range(5)]))
    assert x.is_floating_point()
    assert float(x.max()) <= 1
    with torch.no_grad():
        expected = load_run(runs / "bndl").model(torch.stack([data[i][0] for i in range(5)]))
        torch.testing.assert_close(subject.model(x), expected)
    assert subject.dense is None
    assert subject.layer is find_layer(subject.model)
    assert subject.classes == tuple("0123456789")
    assert len(subject.data("train")) > len(subject.data("val"))
    assert explain(subject.model, x)[0].map is not None


@pytest.mark.parametrize("fit_noise", [True, False])
def test_a_dense_run_is_converted_beside_its_twin(runs, fit_noise):
    subject = load_subject(runs / "dense", fit_noise=fit_noise)
    data = subject.data()
    x = subject.inputs(torch.stack([data[i][0] for i in range(50)]))
    with torch.no_grad():
        ours, twin = subject.model(x), subject.dense(x)
    assert ours.argmax(1).tolist() == twin.argmax(1).tolist()
    assert not any(isinstance(module, DecisionLayer) for module in subject.dense.modules())
    assert subject.dense is not subject.model
    said = " ".join(subject.about)
    assert ("was fitted to 359 validation examples" in said) == fit_noise
    assert ("the default" in said) != fit_noise


def test_a_dense_run_without_its_data_says_that_its_noise_is_the_default(runs, monkeypatch):
    def gone(*_, **__):
        raise FileError("gone")

    monkeypatch.setattr("bndl.explain.subject.read_splits", gone)
    assert "not here, so its noise is the default" in " ".join(load_subject(runs / "dense").about)


def test_another_head_of_the_same_run(runs, tmp_path):
    model = load_run(runs / "bndl").model
    with torch.no_grad():
        find_layer(model).weight[:, :40] = 0
    whole = bndl.save(bndl.compact(model), tmp_path / "whole.safetensors")
    alone = bndl.save(model, tmp_path / "alone.safetensors", head_only=True, classes="0123456789")
    for path in (whole, alone):
        subject = load_subject(runs / "bndl", head=path)
        assert int(subject.layer.feature_ids.min()) >= 40
        assert path.name in " ".join(subject.about)
    converted = bndl.convert(load_run(runs / "dense").model)
    path = bndl.save(converted, tmp_path / "converted.safetensors")
    assert load_subject(runs / "dense", head=path).dense is not None


def test_a_head_of_another_model_is_refused(runs, tmp_path):
    other = bndl.save(load_run(runs / "other").model, tmp_path / "other.safetensors")
    with pytest.raises(FileError, match=r"no head of .*bndl \(another backbone, first at .*\): give one made from it"):
        load_subject(runs / "bndl", head=other)
    foreign = bndl.save(nn.Sequential(nn.Flatten(), DecisionLayer(7, 10)), tmp_path / "foreign.safetensors")
    with pytest.raises(FileError, match="no head of"):
        load_subject(runs / "bndl", head=foreign)
    named = bndl.save(load_run(runs / "bndl").model, tmp_path / "named.safetensors", classes="abcdefghij")
    with pytest.raises(FileError, match="its classes are others"):
        load_subject(runs / "bndl", head=named)
    (tmp_path / "text.safetensors").write_text("no")
    with pytest.raises(FileError, match="damaged or no safetensors"):
        load_subject(runs / "bndl", head=tmp_path / "text.safetensors")
    with pytest.raises(FileError, match="there is no file"):
        load_subject(runs / "bndl", head=tmp_path / "nothing.safetensors")


def test_classes_and_parts_are_found_by_name(runs):
    subject = load_subject(runs / "bndl")
    assert subject.class_index("7") == 7
    with pytest.raises(InputError, match="no class 'cat': its classes are 0, 1"):
        subject.class_index("cat")
    many = replace(subject, classes=tuple(f"c{n}" for n in range(1000)))
    with pytest.raises(InputError, match=r"are c0, .*, c19 and 980 more\.$"):
        many.class_index("cat")
    assert subject.parts == ("test", "val", "train")
    with pytest.raises(InputError, match="test, val, train"):
        subject.data("dev")


def test_classes_are_called_as_a_file_says(runs, tmp_path):
    file = tmp_path / "names.txt"
    file.write_text('0 zero\n1,"one, the first"\n2\ttwo, of them\n\n33 another\n', encoding="utf-8")
    subject = load_subject(runs / "bndl", names=file)
    assert subject.classes == ("zero", "one, the first", "two, of them", *"3456789")
    assert subject.run.classes == tuple("0123456789")
    assert [subject.class_index(name) for name in ("zero", "0", "9")] == [0, 0, 9]


def test_a_class_may_have_spaces_and_begin_like_another(tmp_path):
    file = tmp_path / "names.txt"
    file.write_text("garbage truck,Wagen\ngarbage,Abfall\n", encoding="utf-8")
    assert read_names(file, ("garbage truck", "garbage can", "garbage")) == ("Wagen", "garbage can", "Abfall")


def test_what_is_known_is_called_by_words():
    assert known_names(("n03000684", "cat")) == ("chain saw", "cat")
    assert known_names(("n03000684", "chain saw")) == ("n03000684", "chain saw")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (b"0 zero\n1 \x1b[31m\n", "line 2 of .* does not say what to call '1'"),
        (b"0 zero\n0 null\n", "line 2 of .* names '0' once more"),
        (b"cat Katze\n", "names no class of this run, whose first is '0'"),
        (b"0 same\n1 same\n", "two classes would be called 'same'"),
        (b"\xff\xfe\x00", "no text in UTF-8"),
        (None, "cannot read names of classes from .* .No such file"),
    ],
)
def test_names_that_cannot_be_used(tmp_path, text, words):
    file = tmp_path / "names.txt"
    if text is not None:
        file.write_bytes(text)
    with pytest.raises(FileError, match=words):
        read_names(file, tuple("0123456789"))


def test_predictions_in_a_file_carry_the_names_that_the_data_have(runs, monkeypatch):
    monkeypatch.setattr("bndl.explain.subject.known_names", lambda classes: tuple(f"called {name}" for name in classes))
    assert load_subject(runs / "bndl").classes[3] == "called 3"
    assert load_predictor(runs / "bndl").classes == load_run(runs / "bndl").classes

"""Files: what is saved comes back bit for bit, and what is not ours is refused in one sentence, with nothing changed."""

import json
import os
import pickle
import stat
import sys
from dataclasses import fields
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import bndl
from bndl.edit import Editor
from bndl.errors import BndlError, FileError, InputError, MissingExtraError
from bndl.store import read_header

safetensors = pytest.importorskip("safetensors")
from safetensors.torch import load_file, save_file  # noqa: E402

C = 3
X = torch.randn(20, 4, generator=torch.Generator().manual_seed(0))


def dense(*, width: int = 8, num_classes: int = C, seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = nn.Sequential(nn.Linear(4, width), nn.BatchNorm1d(width), nn.ReLU())
            self.fc = nn.Linear(width, num_classes)

        def forward(self, x: Tensor) -> Tensor:
            return self.fc(self.body(x))

    return Net()


def converted(**settings) -> nn.Module:
    """A model whose every number differs from a new one's."""
    model = bndl.convert(dense(seed=1), **settings)
    model(X)  # moves the running statistics
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.rand_like(parameter))
    return model


def bits(module: nn.Module) -> dict[str, Tensor]:
    return {key: value.clone() for key, value in module.state_dict().items()}


def same(first: dict[str, Tensor], second: dict[str, Tensor]) -> bool:
    return first.keys() == second.keys() and all(torch.equal(first[key], second[key]) for key in first)


def assert_same_predictions(first: nn.Module, second: nn.Module, x: Tensor = X) -> None:
    a, b = bndl.predict(first, x), bndl.predict(second, x)
    for field in fields(a):
        assert torch.equal(getattr(a, field.name), getattr(b, field.name)), field.name


# --------------------------------------------------------------------------------------------------------- there and back


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"theta_shape": "sample", "phi_shape": "entry", "features": "signed"},
        {
            "theta_shape": "entry",
            "dense_map": True,
            "alpha_phi": 0.02,
            "min_shape": 0.5,
            "init_shape": 4.0,
        },
    ],
    ids=["default", "sample", "entry"],
)
def test_a_whole_model_comes_back(settings, tmp_path):
    model = converted(**settings)
    path = bndl.save(model, tmp_path / "m.safetensors")
    assert path == tmp_path / "m.safetensors"
    for backbone in (dense(), bndl.convert(dense())):
        loaded = bndl.load(path, backbone=backbone.train())
        assert loaded is backbone
        assert not any(module.training for module in loaded.modules())
        assert same(bits(loaded), bits(model))
        assert loaded.fc.settings == model.fc.settings
        assert loaded.fc.origin == model.fc.origin
        assert_same_predictions(loaded, model)


def test_a_head_alone_comes_back_into_its_own_backbone(tmp_path):
    model = converted()
    path = bndl.save(model, tmp_path / "m.safetensors", head_only=True)
    assert path.stat().st_size < bndl.save(model, tmp_path / "full.safetensors").stat().st_size
    backbone = dense()
    backbone.body.load_state_dict(model.body.state_dict())
    assert_same_predictions(bndl.load(path, backbone=backbone), model)
    assert all(key.startswith("fc.") for key in load_file(path))


@pytest.mark.parametrize("head_only", [True, False])
def test_without_a_backbone_the_layer_comes_back(head_only, tmp_path):
    model = converted()
    layer = bndl.load(bndl.save(model, tmp_path / "m.safetensors", head_only=head_only))
    assert isinstance(layer, bndl.DecisionLayer)
    h = model.eval().body(X).detach()
    assert_same_predictions(layer, model.fc, h)


def test_a_bare_layer_comes_back(tmp_path):
    layer = bndl.DecisionLayer(4, C, theta_shape="sample", signed=True)
    path = bndl.save(layer, tmp_path / "layer.safetensors")
    assert_same_predictions(bndl.load(path), layer)
    with pytest.raises(FileError, match="holds a decision layer without a backbone"):
        bndl.load(path, backbone=dense())


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_precision_comes_back(dtype, tmp_path):
    model = bndl.convert(dense(seed=1).to(dtype))
    loaded = bndl.load(bndl.save(model, tmp_path / "m.safetensors"), backbone=dense().to(dtype))
    assert same(bits(loaded), bits(model))
    assert_same_predictions(loaded, model, X.to(dtype))


def test_shared_and_strided_weights_are_saved(tmp_path):
    model = converted()
    model.body.tied = nn.Linear(4, 8)
    model.body.tied.weight = model.body[0].weight
    with torch.no_grad():
        model.fc.weight = nn.Parameter(model.fc.weight.t().contiguous().t())
    backbone = dense()
    backbone.body.tied = nn.Linear(4, 8)
    loaded = bndl.load(bndl.save(model, tmp_path / "m.safetensors"), backbone=backbone)
    assert same(bits(loaded), bits(model))


def test_a_head_with_two_names_comes_back_under_both(tmp_path):
    def aliased() -> nn.Module:
        model = dense()
        model.whole = nn.Sequential(model.body, model.fc)
        return model

    model = bndl.convert(aliased())
    loaded = bndl.load(bndl.save(model, tmp_path / "m.safetensors"), backbone=aliased())
    assert loaded.whole[1] is loaded.fc
    assert same(bits(loaded), bits(model))


def test_a_hugging_face_model_comes_back(tmp_path):
    transformers = pytest.importorskip("transformers")
    config = transformers.RobertaConfig(
        vocab_size=20, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16, num_labels=C
    )
    model = bndl.convert(transformers.RobertaForSequenceClassification(config))
    path = bndl.save(model, tmp_path / "m.safetensors")
    loaded = bndl.load(path, backbone=transformers.RobertaForSequenceClassification(config))
    assert read_header(path)["head"] == "classifier.out_proj"
    assert_same_predictions(loaded, model, {"input_ids": torch.arange(12).view(2, 6)})


def compacted() -> nn.Module:
    """A model whose compact head keeps five of eight features."""
    model = converted()
    with torch.no_grad():
        model.fc.weight[:, [0, 3, 4]] = -0.1
    return bndl.compact(model)


def test_a_compact_head_comes_back(tmp_path):
    model = compacted()
    path = bndl.save(model, tmp_path / "m.safetensors")
    for backbone in (dense(), bndl.convert(dense()), compacted()):
        loaded = bndl.load(path, backbone=backbone)
        assert isinstance(loaded.fc, bndl.CompactLayer)
        assert loaded.fc.kept.tolist() == [1, 2, 5, 6, 7]
        assert loaded.fc.settings == model.fc.settings
        assert same(bits(loaded), bits(model))
        assert_same_predictions(loaded, model)
    head = bndl.load(bndl.save(model, tmp_path / "head.safetensors", head_only=True))
    assert_same_predictions(head, model.fc, model.eval().body(X).detach())
    full = bndl.load(bndl.save(converted(), path), backbone=compacted())
    assert not isinstance(full.fc, bndl.CompactLayer)


# ------------------------------------------------------------------------------------------------------------ the header


def test_edits_are_kept_in_the_header_when_asked_for_and_only_then(tmp_path):
    model = converted()
    plain = bndl.save(model, tmp_path / "plain.safetensors")
    assert "edits" not in read_header(plain)  # as files were before there were edits, which load as ever
    editor = Editor(model)
    editor.drop(3, target=1, note="a watermark")
    path = bndl.save(model, tmp_path / "edited.safetensors", edits=editor)
    (edit,) = read_header(path)["edits"]["edits"]
    assert edit == {"feature": 3, "target": 1, "factor": 0.0, "note": "a watermark"}
    loaded = bndl.load(path, backbone=dense())
    assert same(bits(loaded), bits(model))
    Editor.load(path, loaded).reset()
    assert same(bits(loaded), bits(bndl.load(plain, backbone=dense())))


def test_any_safetensors_tool_reads_the_header(tmp_path):
    model = converted(phi_shape="entry")
    path = bndl.save(model, tmp_path / "m.safetensors", classes=["cat", "dog", "naïve 🐢"])
    with safetensors.safe_open(path, framework="pt") as file:
        metadata = file.metadata()
        assert set(file.keys()) == set(model.state_dict())
    header = json.loads(metadata["header"])
    assert metadata["format"] == "bndl"
    assert header["classes"] == ["cat", "dog", "naïve 🐢"]
    assert header["bndl"] == bndl.__version__
    assert header["torch"] == torch.__version__
    assert header["head"] == "fc"
    assert header["settings"] == model.fc.settings
    assert read_header(path) == header


def test_classes_are_as_many_as_the_layer_has(tmp_path):
    path = tmp_path / "m.safetensors"
    with pytest.raises(InputError, match="the model has 3 classes, got 2 names"):
        bndl.save(converted(), path, classes=["cat", "dog"])
    assert not path.exists()
    assert read_header(bndl.save(converted(), path))["classes"] is None
    assert read_header(bndl.save(converted(), path, classes=range(3)))["classes"] == ["0", "1", "2"]


# ----------------------------------------------------------------------------------------------------------------- atomic


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt()])
@pytest.mark.parametrize("where", ["replace", "fsync"])
def test_a_failure_leaves_the_old_file_and_nothing_else(error, where, tmp_path, monkeypatch):
    path = bndl.save(converted(), tmp_path / "m.safetensors")
    old = path.read_bytes()

    def fail(*_):
        raise error

    monkeypatch.setattr(os, where, fail)
    with pytest.raises(type(error)):
        bndl.save(converted(phi_shape="entry"), path)
    monkeypatch.undo()
    assert path.read_bytes() == old
    assert os.listdir(tmp_path) == ["m.safetensors"]


def test_an_old_file_is_replaced_and_can_be_read_by_others(tmp_path):
    path = tmp_path / "m.safetensors"
    path.write_text("something else")
    assert_same_predictions(bndl.load(bndl.save(converted(), path), backbone=dense()), converted())
    assert stat.S_IMODE(path.stat().st_mode) & 0o444
    assert os.listdir(tmp_path) == ["m.safetensors"]


def test_a_folder_that_is_not_there(tmp_path):
    with pytest.raises(FileError, match=r"cannot write .*: choose a folder that exists"):
        bndl.save(converted(), tmp_path / "missing" / "m.safetensors")


def test_a_folder_in_the_place_of_the_file(tmp_path):
    place = tmp_path / "m.safetensors"
    place.mkdir()
    with pytest.raises(FileError, match="cannot write"):
        bndl.save(converted(), place)
    assert os.listdir(tmp_path) == ["m.safetensors"]


# ---------------------------------------------------------------------------------------------------------------- refusal


def assert_refused(
    path: Path, words: str, *, backbone: nn.Module | None = None, error: type[BndlError] = FileError
) -> None:
    """Refused in one sentence, and the backbone, dense or converted, is as it was."""
    for given in (dense(), bndl.convert(dense())) if backbone is None else (backbone,):
        given.train()
        before, modules = bits(given), list(given.modules())
        with pytest.raises(error, match=words) as caught:
            bndl.load(path, backbone=given)
        assert "\n" not in str(caught.value)
        assert len(str(caught.value)) < 400
        assert same(bits(given), before)
        assert all(a is b for a, b in zip(given.modules(), modules, strict=True))
        assert all(module.training for module in given.modules())


def edit(
    path: Path, *, state=lambda state: state, header=lambda header: header, metadata=lambda metadata: metadata
) -> None:
    """Write the file again with parts of it changed."""
    with safetensors.safe_open(path, framework="pt") as file:
        kept = file.metadata()
    changed = header(json.loads(kept["header"]))
    kept["header"] = changed if isinstance(changed, str) else json.dumps(changed)
    save_file(state(load_file(path)), path, metadata=metadata(kept))


@pytest.fixture
def path(tmp_path) -> Path:
    return bndl.save(converted(), tmp_path / "m.safetensors")


def test_a_file_that_is_not_there(tmp_path):
    assert_refused(tmp_path / "m.safetensors", r"there is no file .*m\.safetensors: check the path")
    assert_refused(tmp_path, "there is no file")


@pytest.mark.parametrize("share", [0.0, 0.001, 0.3, 0.99])
def test_a_truncated_file(share, path):
    whole = path.read_bytes()
    path.write_bytes(whole[: int(share * len(whole))])
    assert_refused(path, r"is damaged or no safetensors file .*: write it again with bndl\.save")
    with pytest.raises(FileError, match="is damaged"):
        bndl.load(path)
    with pytest.raises(FileError, match="is damaged"):
        read_header(path)


@pytest.mark.parametrize("seed", range(5))
def test_random_bytes(seed, path):
    generator = torch.Generator().manual_seed(seed)
    path.write_bytes(bytes(torch.randint(256, (500,), generator=generator, dtype=torch.uint8).tolist()))
    assert_refused(path, "is damaged or no safetensors file")


class Malicious:
    def __reduce__(self):
        return os.mkdir, ("executed",)


@pytest.mark.parametrize("write", [torch.save, lambda what, path: Path(path).write_bytes(pickle.dumps(what))])
def test_a_pickle_is_refused_and_not_run(write, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write({"fc.weight": Malicious()}, "m.safetensors")
    assert_refused(Path("m.safetensors"), "is damaged or no safetensors file")
    assert not Path("executed").exists()


@pytest.mark.parametrize("metadata", [None, {"format": "pt"}])
def test_a_file_of_others(metadata, tmp_path):
    save_file(converted().state_dict(), tmp_path / "m.safetensors", metadata=metadata)
    assert_refused(tmp_path / "m.safetensors", r"is a safetensors file, but bndl\.save did not write it")


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("fc.weight", torch.nan),
        ("fc.weight", torch.inf),
        ("fc.bias", -torch.inf),
        ("fc.theta_raw_shape", torch.nan),
        ("body.0.weight", torch.nan),
        ("body.1.running_var", torch.nan),
    ],
)
def test_weights_that_are_no_numbers(key, value, path):
    def spoil(state):
        state[key].view(-1)[1] = value
        return state

    edit(path, state=spoil)
    assert_refused(path, "holds NaN")


@pytest.mark.parametrize("change", ["drop", "add", "resize"])
@pytest.mark.parametrize("key", ["fc.weight", "body.1.running_mean"])
def test_an_incomplete_state(key, change, path):
    def spoil(state):
        if change == "drop":
            del state[key]
        elif change == "add":
            state[f"{key}_more"] = torch.zeros(2)
        else:
            state[key] = torch.zeros(2, 2)
        return state

    edit(path, state=spoil)
    assert_refused(path, "incomplete or has other dims" if key.startswith("fc") else "does not fit this backbone")


@pytest.mark.parametrize(
    ("kept", "words"),
    [
        ([1, 2, 5, 6, 8], r"leaves its range, 0\.\.7"),
        ([-1, 2, 5, 6, 7], r"leaves its range, 0\.\.7"),
        ([1, 2, 2, 6, 7], "is not in ascending order"),
        ([7, 6, 5, 2, 1], "is not in ascending order"),
        ([1.0, 2.0, 5.0, 6.0, 7.0], r"holds torch\.float32, not int64"),
        ([1, 2, 5, 6], "incomplete or has other dims"),
        ([[1, 2, 5, 6, 7]], "incomplete or has other dims"),
        (None, "incomplete or has other dims"),
    ],
)
def test_a_damaged_index_of_kept_features(kept, words, tmp_path):
    path = bndl.save(compacted(), tmp_path / "m.safetensors")

    def spoil(state):
        del state["fc.kept"]
        return state if kept is None else {**state, "fc.kept": torch.tensor(kept)}

    edit(path, state=spoil)
    assert_refused(path, words)


@pytest.mark.parametrize("num_kept", [0, 9, 4, -1, "5", 5.0, None, 10**15])
def test_an_edited_number_of_kept_features(num_kept, tmp_path):
    path = bndl.save(compacted(), tmp_path / "m.safetensors")
    edit(path, header=lambda header: {**header, "settings": {**header["settings"], "num_kept": num_kept}})
    assert_refused(path, "build no decision layer|incomplete or has other dims")


def test_another_architecture(path):
    deeper = dense()
    deeper.body.append(nn.Linear(8, 8))
    assert_refused(path, r"does not fit this backbone: 2 entries differ, first body\.3\.bias", backbone=deeper)
    assert_refused(path, "does not fit this backbone: ", backbone=dense(width=9))
    assert_refused(path, "has its head at 'fc'", backbone=nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, C)))


def test_a_backbone_without_the_place_of_the_head(path):
    backbone = dense()
    del backbone.fc
    assert_refused(path, "fc", backbone=backbone, error=BndlError)


def test_a_head_for_features_of_another_size(tmp_path):
    path = bndl.save(converted(), tmp_path / "head.safetensors", head_only=True)
    assert_refused(path, "8", backbone=dense(width=9), error=BndlError)
    assert_refused(path, "fc", backbone=nn.Sequential(nn.Linear(4, 8)), error=BndlError)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"out_features": 7}, "incomplete or has other dims"),
        ({"in_features": 9}, "incomplete or has other dims"),
        ({"in_features": 10**15}, "incomplete or has other dims|build no decision layer"),
        ({"signed": True}, "incomplete or has other dims"),
        ({"theta_shape": "entry"}, "incomplete or has other dims"),
        ({"bias": False}, "incomplete or has other dims"),
        ({"in_features": -3}, "build no decision layer .*at least one feature"),
        ({"in_features": "8"}, "build no decision layer"),
        ({"in_features": 8.5}, "build no decision layer"),
        ({"theta_shape": "none"}, "build no decision layer .*theta_shape must be one of"),
        ({"min_shape": None}, "build no decision layer"),
        ({"surprise": 1}, "build no decision layer .*surprise"),
    ],
)
def test_an_edited_setting(settings, words, path):
    edit(path, header=lambda header: {**header, "settings": {**header["settings"], **settings}})
    assert_refused(path, words)


@pytest.mark.parametrize(
    ("header", "words"),
    [
        (lambda header: "{not json", "the header of .* is damaged"),
        (lambda header: "[]", "the header of .* is damaged"),
        (lambda header: "null", "the header of .* is damaged"),
        (lambda header: {key: value for key, value in header.items() if key != "head"}, "the header of .* is damaged"),
        (lambda header: {**header, "settings": [1, 2]}, "build no decision layer"),
        (lambda header: {**header, "head": "body.0"}, "incomplete or has other dims"),
        (lambda header: {**header, "head": "elsewhere"}, "incomplete or has other dims"),
        (lambda header: {**header, "head": ""}, "incomplete or has other dims"),
        (lambda header: {**header, "head": 5}, "incomplete or has other dims|header of .* is damaged"),
        (lambda header: {**header, "format_version": 2}, "has format version 2, this bndl reads 1: update bndl"),
        (lambda header: {**header, "format_version": None}, "format version None"),
    ],
)
def test_an_edited_header(header, words, path):
    edit(path, header=header)
    assert_refused(path, words)


def test_a_header_that_is_missing(path):
    edit(path, metadata=lambda metadata: {"format": "bndl"})
    assert_refused(path, "the header of .* is damaged")


# -------------------------------------------------------------------------------------------------------------- the extra


def test_without_safetensors_the_command_that_mends_it_is_said(path, monkeypatch):
    for name in {"safetensors", *(name for name in sys.modules if name.startswith("safetensors."))}:
        monkeypatch.setitem(sys.modules, name, None)
    for call in (lambda: bndl.load(path), lambda: bndl.save(converted(), path), lambda: read_header(path)):
        with pytest.raises(MissingExtraError, match=r'saving and loading .* pip install "bndl\[io\]"'):
            call()


def test_a_model_that_was_not_converted(tmp_path):
    with pytest.raises(bndl.HeadError, match=r"bndl\.convert"):
        bndl.save(dense(), tmp_path / "m.safetensors")
    assert os.listdir(tmp_path) == []

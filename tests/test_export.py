"""Exported files: they say what predict says, of any batch, where there is no bndl; or nothing is written."""

import json
import subprocess
import sys
import zipfile

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from torch import Tensor, nn

import bndl
from bndl.convert import find_layer
from bndl.errors import BndlError, FileError, HeadError, InputError, MissingExtraError
from bndl.reasons import top_reasons

C, K = 5, 12
FIELDS = [
    "labels",
    "probs",
    "logits",
    "runner_up",
    "p_value",
    "flip_probability",
    "certain",
    "entropy",
    "aleatoric",
    "epistemic",
]  # of Prediction


def layer(seed: int = 0, **settings) -> bndl.DecisionLayer:
    """One whose decisions are of all kinds: sure, unsure, and of features that speak for nobody."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        made = bndl.DecisionLayer(K, C, **settings)
        with torch.no_grad():
            made.weight.copy_(torch.rand_like(made.weight) * 3 * (torch.rand_like(made.weight) > 0.5))
            made.weight[:, -2:] = 0
            made.reset_shapes(4.0)
            if made.theta_shape_map is not None:
                made.theta_shape_map.weight.normal_(std=0.3)
    return made.eval()


def rows(count: int, seed: int = 1) -> Tensor:
    x = torch.randn(count, K, generator=torch.Generator().manual_seed(seed)) * 2
    x[0] = 0
    return x


def network() -> nn.Module:
    torch.manual_seed(0)
    body = (nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Dropout())
    return bndl.convert(nn.Sequential(*body, nn.Linear(8, C)))


def run(path, *inputs: Tensor | dict[str, Tensor]) -> dict[str, Tensor]:
    if path.suffix == ".pt2":
        found = torch.export.load(path).module()(*inputs)
        names = [*FIELDS, "reason_features", "reason_terms"][: len(found)]
        return dict(zip(names, found, strict=True))
    session = onnxruntime.InferenceSession(path)
    names = [port.name for port in session.get_inputs()]
    given = inputs[0] if isinstance(inputs[0], dict) else dict(zip(names, inputs, strict=True))
    found = session.run(None, {name: np.asarray(value) for name, value in given.items()})
    return {port.name: torch.from_numpy(value) for port, value in zip(session.get_outputs(), found, strict=True)}


def assert_same(found: dict[str, Tensor], wanted: bndl.Prediction) -> None:
    for name in FIELDS:
        value, expected = found[name], getattr(wanted, name)
        assert value.size() == expected.size(), name
        if expected.is_floating_point():
            assert value.dtype == torch.float32, name
            assert torch.allclose(value.double(), expected.double(), rtol=2e-4, atol=1e-5), name
        else:
            assert torch.equal(value, expected), name


@pytest.mark.parametrize("suffix", [".onnx", ".pt2"])
@pytest.mark.parametrize(
    ("settings", "given"),
    [
        ({}, {}),
        ({"signed": True, "phi_shape": "entry"}, {"against": "runner-up", "level": 0.3}),
        ({"theta_shape": "sample"}, {"method": "paper"}),
        ({"theta_shape": "entry", "dense_map": True}, {"num_samples": 3, "seed": 7}),
        ({"alpha_theta": 0.2, "bias": False}, {"method": "closed"}),
    ],
    ids=lambda part: "-".join(map(str, part.values())) or "default",
)
def test_a_file_says_what_predict_says_of_any_batch(tmp_path, settings, given, suffix):
    made = layer(**settings)
    path = tmp_path / f"m{suffix}"
    written = bndl.export(made, path, rows(9), **given)
    assert written.differences is not None
    assert max(written.differences.values()) < 1e-3
    for count in (1, 7, 600):
        wanted = bndl.predict(made, rows(count, seed=count), **given)
        assert_same(run(path, rows(count, seed=count)), wanted)
    assert 0 < int(wanted.certain.sum()) < 600  # or else the comparison shows little


@pytest.mark.parametrize("suffix", [".onnx", ".pt2"])
def test_a_network_of_images_and_its_reasons(tmp_path, suffix):
    model, path = network().train(), tmp_path / f"m{suffix}"
    x = torch.rand(4, 3, 12, 12, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        find_layer(model).weight.mul_(20)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    written = bndl.export(model, path, x[:1].double().numpy(), reasons=99)
    assert model.training  # as it was
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert [(port.name, port.dtype, port.dims) for port in written.inputs] == [
        ("images", "float32", ("batch", 3, 12, 12))
    ]
    assert [port.name for port in written.outputs] == [*FIELDS, "reason_features", "reason_terms"]
    assert written.outputs[1].dims == ("batch", C)
    assert written.size == path.stat().st_size
    found = run(path, x)
    assert_same(found, bndl.predict(model, x))
    decided = found["logits"].gather(1, found["labels"][:, None])[:, 0] - find_layer(model).offset()[found["labels"]]
    assert torch.allclose(found["reason_terms"].sum(1), decided.detach(), atol=1e-5)  # all of them add up to the logit
    assert (found["reason_terms"].diff(dim=1) <= 0).all()
    assert found["reason_features"].size() == (4, 8)


def test_a_compact_head(tmp_path):
    made = layer()
    with torch.no_grad():
        made.weight.mul_(torch.rand(C, K, generator=torch.Generator().manual_seed(2)) > 0.5)
    compact = bndl.compact(made)
    bndl.export(compact, tmp_path / "m.onnx", rows(9), reasons=2)
    found = run(tmp_path / "m.onnx", rows(50))
    assert_same(found, bndl.predict(made, rows(50)))
    assert {*found["reason_features"].flatten().tolist()} <= {-1, *compact.feature_ids.tolist()}


def test_tokens_of_any_length(tmp_path):
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    config = transformers.BertConfig(vocab_size=50, num_labels=C, **sizes)
    model = bndl.convert(transformers.BertForSequenceClassification(config))
    ids = torch.randint(1, 50, (4, 9))
    mask = torch.ones_like(ids)
    mask[1, 5:] = 0
    batch = {"input_ids": ids, "attention_mask": mask}
    written = bndl.export(model, tmp_path / "m.onnx", {**batch, "labels": torch.arange(4)})
    assert [(port.name, port.dims) for port in written.inputs] == [(name, ("batch", "length")) for name in batch]
    longer = {name: torch.cat([value, value.flip(1)], dim=1)[:3] for name, value in batch.items()}
    assert_same(run(tmp_path / "m.onnx", longer), bndl.predict(model, longer))


def test_what_is_not_finite_is_not_certain(tmp_path):
    bndl.export(layer(), tmp_path / "m.onnx", rows(9))
    x = rows(40)
    sure = bndl.predict(layer(), x).certain.nonzero().flatten()
    assert len(sure) > 1
    x[sure[0], 0], x[sure[1], 1] = torch.nan, torch.inf
    found = run(tmp_path / "m.onnx", x)["certain"]
    assert not found[sure[:2]].any()
    assert found[sure[2:]].all()


def test_the_file_knows_what_it_is(tmp_path):
    names = tuple("abcde")
    bndl.export(layer(), tmp_path / "m.onnx", rows(9), classes=names, about={"side": 32}, level=0.1)
    model = onnx.load(tmp_path / "m.onnx")
    onnx.checker.check_model(model, full_check=True)
    (entry,) = model.metadata_props
    assert entry.key == "bndl"
    wanted = {"method": "sample", "against": "all", "samples": 64, "seed": 0, "level": 0.1, "side": 32}
    assert json.loads(entry.value) == {"bndl": bndl.__version__, "classes": list(names), **wanted}
    assert all(value.doc_string for value in model.graph.output)
    dims = [[dim.dim_param or dim.dim_value for dim in v.type.tensor_type.shape.dim] for v in model.graph.input]
    assert dims == [["batch", K]]
    bndl.export(layer(), tmp_path / "m.pt2", rows(9), classes=names)
    extra = {"bndl.json": ""}
    torch.export.load(tmp_path / "m.pt2", extra_files=extra)
    assert json.loads(extra["bndl.json"])["classes"] == list(names)


@pytest.mark.parametrize("suffix", [".onnx", ".pt2"])
def test_the_same_model_gives_the_same_bytes_without_a_trace_of_machine_or_example(tmp_path, suffix):
    files = [tmp_path / f"{name}{suffix}" for name in "ab"]
    for seed, file in enumerate(files):
        bndl.export(network(), file, torch.rand(3, 3, 12, 12, generator=torch.Generator().manual_seed(seed)))
    assert files[0].read_bytes() == files[1].read_bytes()
    content = files[0].read_bytes()
    if suffix == ".pt2":
        with zipfile.ZipFile(files[0]) as archive:
            content = b"".join(archive.read(name) for name in archive.namelist())
    for trace in (b"site-packages", b"bndl/", str(tmp_path).encode()):
        assert trace not in content.replace(b"bndl/extra", b""), trace


ALONE = {
    ".onnx": "import onnxruntime, numpy; s = onnxruntime.InferenceSession(path)\n"
    "labels = s.run(['labels'], {'features': numpy.ones((2, 12), numpy.float32)})[0]",
    ".pt2": "import torch; labels = torch.export.load(path).module()(torch.ones(2, 12))[0]",
}


@pytest.mark.parametrize("suffix", ALONE)
def test_it_runs_without_bndl_and_onnx_without_torch(tmp_path, suffix):
    bndl.export(layer(), tmp_path / f"m{suffix}", rows(9))
    barred = ["bndl", "torch"] if suffix == ".onnx" else ["bndl"]
    code = f"import sys; path = sys.argv[1]\nfor name in {barred}: sys.modules[name] = None\n{ALONE[suffix]}\n"
    command = [sys.executable, "-c", f"{code}print(labels.tolist())", str(tmp_path / f"m{suffix}")]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == bndl.predict(layer(), torch.ones(2, K)).labels.tolist()


# ------------------------------------------------------------------------------------------------- what cannot be done


class Random(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = layer()

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(nn.functional.dropout(x, 0.5, training=True))


class Wilful(Random):
    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x if float(x.sum()) > 0 else -x)


class Special(nn.Module):
    """What torch can and ONNX cannot."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = layer()

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(torch.special.bessel_j0(x).relu())


@pytest.mark.parametrize(
    ("model", "name", "example", "given", "words"),
    [
        (layer(), "m.tflite", rows(2), {}, r"names no format: let it end in \.onnx or \.pt2"),
        (layer(), "m", rows(2), {}, "names no format"),
        (layer(), "m.onnx", rows(2)[:0], {}, "example is empty"),
        (layer(), "m.onnx", rows(2)[0], {}, "give a batch"),
        (layer(), "m.onnx", rows(2)[:, :3], {}, "features of size 12, got dims"),
        (layer(), "m.onnx", rows(2), {"classes": ("a", "b")}, "2 classes are named, the layer has 5"),
        (layer(), "m.onnx", rows(2), {"method": "guess"}, "method must be one of"),
        (layer(), "m.onnx", rows(2), {"against": "guess"}, "against must be one of"),
        (layer(), "m.onnx", rows(2), {"level": 0}, "strictly between 0 and 1"),
        (layer(), "m.onnx", rows(2), {"reasons": -1}, "0 for none, got -1"),
        (layer(), "m.onnx", rows(2), {"num_samples": 0}, "num_samples must be at least 1"),
        (layer(), "m.onnx", rows(2), {"num_samples": 2_000_000}, 'take fewer with num_samples, or method="closed"'),
        (layer(), "m.onnx", rows(2), {"opset": 3}, "cannot (hold this model|be written in version)"),
        (layer(), "m.onnx", rows(2), {"opset": 999}, "cannot (hold this model|be written in version)"),
        (layer(), "m.onnx", torch.full((2, K), torch.nan), {}, "NaN or infinite features"),
        (Wilful(), "m.onnx", rows(2), {}, "torch.export cannot follow this model"),
        (Special(), "m.onnx", rows(2), {}, r"\(it has nothing for torch's prims.bessel_j0\): try a .pt2 file"),
        (nn.Linear(3, 3), "m.onnx", rows(2), {}, "convert"),
    ],
)
def test_what_cannot_be_exported_is_said_and_nothing_written(tmp_path, capfd, model, name, example, given, words):
    (tmp_path / name).write_text("before")
    with pytest.raises((InputError, HeadError), match=words):
        bndl.export(model, tmp_path / name, example, **given)
    assert [path.name for path in tmp_path.iterdir()] == [name]
    assert (tmp_path / name).read_text() == "before"
    assert capfd.readouterr() == ("", "")  # the exporters are kept from talking


def test_a_graph_that_says_something_else_is_not_written(tmp_path):
    with pytest.raises(BndlError, match="is there something random in the model's forward pass"):
        bndl.export(Random(), tmp_path / "m.onnx", rows(20))
    assert not list(tmp_path.iterdir())
    assert bndl.export(Random(), tmp_path / "m.onnx", rows(20), check=False).differences is None


def test_a_folder_that_is_not_there(tmp_path):
    with pytest.raises(FileError, match="choose a folder that exists"):
        bndl.export(layer(), tmp_path / "none" / "m.onnx", rows(2))


@pytest.mark.parametrize("missing", ["onnxscript", "onnx_ir"])
def test_without_the_exporter_it_says_what_to_install(tmp_path, monkeypatch, missing):
    monkeypatch.setitem(sys.modules, missing, None)
    with pytest.raises(MissingExtraError, match=r'pip install "bndl\[export\]"'):
        bndl.export(layer(), tmp_path / "m.onnx", rows(2))
    assert not list(tmp_path.iterdir())


def test_without_the_runtime_the_file_is_not_tried(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    assert bndl.export(layer(), tmp_path / "m.onnx", rows(2)).differences is None
    assert (tmp_path / "m.onnx").exists()


def test_a_class_without_weights_is_said(tmp_path):
    made = layer()
    with torch.no_grad():
        made.weight[2] = 0
    with pytest.warns(UserWarning, match="class 2 has no weight left"):
        bndl.export(made, tmp_path / "m.pt2", rows(2))


def test_where_there_are_no_more_terms_there_is_no_feature(tmp_path):
    made = layer()
    bndl.export(made, tmp_path / "m.onnx", rows(9), reasons=K)
    found = run(tmp_path / "m.onnx", rows(30))
    none = found["reason_terms"] == 0
    assert none.any(dim=1).all()  # of 12 features two have no weight at all
    assert torch.equal(found["reason_features"] == -1, none)
    wanted = top_reasons(made, rows(30), found["labels"], top=K)
    assert torch.equal(found["reason_features"][~none], wanted.features[~none])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_what_the_runtime_cannot_run_is_said(tmp_path, dtype):
    x = torch.rand(4, 3, 12, 12)
    with pytest.raises(InputError, match=r"cannot run this model \(.*\): export it in float32 \(model.float\(\)\)"):
        bndl.export(network().to(dtype), tmp_path / "m.onnx", x)
    assert not list(tmp_path.iterdir())
    bndl.export(network().to(dtype), tmp_path / "m.pt2", x.to(dtype))  # torch can


def test_a_file_that_fails_on_other_batches_is_not_written(tmp_path, monkeypatch):
    def fails(path):
        def run(given):
            if len(given["features"]) == 1:
                raise RuntimeError("dims do not fit")
            return [torch.as_tensor(value) for value in session.run(None, {"features": given["features"].numpy()})]

        session = onnxruntime.InferenceSession(path)
        return run

    monkeypatch.setattr(sys.modules["bndl.export"], "runner", fails)
    with pytest.raises(BndlError, match=r"fails on a batch of 1 \(dims do not fit\), so nothing was written"):
        bndl.export(layer(), tmp_path / "m.onnx", rows(9))
    assert not list(tmp_path.iterdir())

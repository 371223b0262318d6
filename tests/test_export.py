"""Exported files: they say what predict says, of any batch, where there is no bndl; or nothing is written."""

import json
import os
import subprocess
import sys
import zipfile
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from torch import Tensor, nn

import bndl
from bndl.convert import find_layer
from bndl.errors import BndlError, FileError, HeadError, InputError, MissingExtraError
from bndl.export import FromPixels
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
        return torch.export.load(path).module()(*inputs)
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


@pytest.mark.parametrize("method", ["sample", "closed", "paper"])
def test_what_predict_refuses_is_not_certain(tmp_path, method):
    bndl.export(layer(), tmp_path / "m.onnx", rows(9), method=method)
    x = rows(60)
    sure = bndl.predict(layer(), x, method=method).certain.nonzero().flatten()
    assert len(sure) > 5
    x[sure[0], 0], x[sure[1], 1], x[sure[2], 2], x[sure[3], 3] = torch.nan, torch.inf, -torch.inf, 1e13
    with pytest.raises(InputError, match="4 of 60"):
        bndl.predict(layer(), x)
    found = run(tmp_path / "m.onnx", x)["certain"]
    assert not found[sure[:4]].any()
    assert found[sure[4:]].all()


def test_a_pixel_that_is_no_number_is_not_lost_on_the_way(tmp_path):
    """A runtime's pooling may take the maximum of the others."""
    torch.manual_seed(0)
    body = (nn.Conv2d(3, 8, 3), nn.ReLU(), nn.AdaptiveMaxPool2d(1), nn.Flatten())
    model = bndl.convert(nn.Sequential(*body, nn.Linear(8, C)))
    with torch.no_grad():
        find_layer(model).weight.mul_(50)
    x = torch.rand(30, 3, 12, 12, generator=torch.Generator().manual_seed(0))
    bndl.export(model, tmp_path / "m.onnx", x)
    sure = bndl.predict(model, x).certain
    assert int(sure.sum()) > 1
    assert torch.equal(run(tmp_path / "m.onnx", x)["certain"], sure)
    x[:, 1, 5, 5] = torch.nan
    assert not run(tmp_path / "m.onnx", x)["certain"].any()


def test_the_file_knows_what_it_is(tmp_path):
    names = tuple("abcde")
    bndl.export(layer(), tmp_path / "m.onnx", rows(9), classes=names, about={"side": 32}, level=0.1)
    model = onnx.load(tmp_path / "m.onnx")
    onnx.checker.check_model(model, full_check=True)
    (entry,) = model.metadata_props
    assert entry.key == "bndl"
    wanted = {"method": "sample", "against": "all", "samples": 64, "seed": 0, "level": 0.1, "side": 32}
    ports = {"inputs": ["features"], "outputs": FIELDS}
    assert json.loads(entry.value) == {"bndl": bndl.__version__, "classes": list(names), **wanted, **ports}
    assert all(value.doc_string for value in model.graph.output)
    dims = [[dim.dim_param or dim.dim_value for dim in v.type.tensor_type.shape.dim] for v in model.graph.input]
    assert dims == [["batch", K]]
    bndl.export(layer(), tmp_path / "m.pt2", rows(9), classes=names)
    extra = {"bndl.json": ""}
    torch.export.load(tmp_path / "m.pt2", extra_files=extra)
    assert json.loads(extra["bndl.json"])["classes"] == list(names)
    assert json.loads(extra["bndl.json"])["outputs"] == FIELDS


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
    ".pt2": "import torch; labels = torch.export.load(path).module()(torch.ones(2, 12))['labels']",
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


class Counting(nn.Module):
    """Reads tokens one after the other: the tracer counts them."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.cell, self.layer = nn.Embedding(20, 6), nn.GRUCell(6, K), layer(signed=True)

    def forward(self, ids: Tensor) -> Tensor:
        h = self.cell(self.embedding(ids[:, 0]))
        for place in range(1, ids.size(1)):
            h = self.cell(self.embedding(ids[:, place]), h)
        return self.layer(h)


class Averaging(Counting):
    """Takes any number of tokens."""

    def forward(self, ids: Tensor, scale: float = 1.0) -> Tensor:
        return self.layer(self.cell(self.embedding(ids).mean(1)) * scale)


@pytest.mark.parametrize("suffix", [".onnx", ".pt2"])
def test_a_dim_is_free_only_if_it_is(tmp_path, suffix):
    torch.manual_seed(0)
    model, path = Counting(), tmp_path / f"m{suffix}"
    ids = torch.randint(0, 20, (30, 14), generator=torch.Generator().manual_seed(0))
    assert bndl.export(model, path, ids[:4, :7]).inputs[0].dims == ("batch", 7)
    assert_same(run(path, ids[:, :7]), bndl.predict(model, ids[:, :7]))
    for wrong in (ids, ids[:, :3]):
        with pytest.raises((RuntimeError, AssertionError, onnxruntime.capi.onnxruntime_pybind11_state.InvalidArgument)):
            run(path, wrong)
    free = Averaging()
    assert bndl.export(free, path, ids[:4, :7]).inputs[0].dims == ("batch", "length")
    for count in (1, 3, 14):
        assert_same(run(path, ids[:, :count]), bndl.predict(free, ids[:, :count]))


@pytest.mark.parametrize("suffix", [".onnx", ".pt2"])
def test_what_a_dict_holds_besides_tensors_is_a_constant(tmp_path, suffix):
    torch.manual_seed(0)
    model, path = Averaging(), tmp_path / f"m{suffix}"
    ids = torch.randint(0, 20, (30, 14), generator=torch.Generator().manual_seed(0))
    written = bndl.export(model, path, {"ids": ids, "scale": 3.0})
    assert [port.name for port in written.inputs] == ["ids"]
    wanted = bndl.predict(model, {"ids": ids, "scale": 3.0})
    assert (wanted.probs - bndl.predict(model, ids).probs).abs().max() > 0.01
    assert_same(run(path, ids) if suffix == ".onnx" else run(path, *ids[None]), wanted)


def test_what_comes_from_torch_asks_for_no_gradient(tmp_path):
    model = network()
    bndl.export(model, tmp_path / "m.pt2", torch.rand(2, 3, 12, 12), reasons=1)
    assert all(parameter.requires_grad for parameter in model.parameters())
    found = run(tmp_path / "m.pt2", torch.rand(2, 3, 12, 12))
    assert not any(value.requires_grad for value in found.values())


@pytest.mark.parametrize("suffix", [".onnx", ".pt2"])
def test_little_noise_keeps_its_digits(tmp_path, suffix):
    made = layer(theta_shape="sample")
    made.reset_shapes(3e3)
    bndl.export(made, tmp_path / f"m{suffix}", rows(9))
    found, wanted = run(tmp_path / f"m{suffix}", rows(200)), bndl.predict(made, rows(200))
    assert 0 < float(wanted.aleatoric.max()) < 1e-3
    assert torch.allclose(found["aleatoric"], wanted.aleatoric.float(), rtol=1e-4, atol=0)


def test_within_autocast(tmp_path):
    x = torch.rand(4, 3, 12, 12)
    wanted = bndl.predict(network(), x)
    for suffix in (".onnx", ".pt2"):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            bndl.export(network(), tmp_path / f"m{suffix}", x)
        assert_same(run(tmp_path / f"m{suffix}", x), wanted)


def test_an_older_version_for_an_older_runtime(tmp_path):
    bndl.export(layer(), tmp_path / "m.ONNX", rows(9), opset=18)
    model = onnx.load(tmp_path / "m.ONNX")
    assert (model.opset_import[0].version, model.ir_version) == (18, 8)
    assert_same(run(tmp_path / "m.ONNX", rows(20)), bndl.predict(layer(), rows(20)))


def test_two_at_once(tmp_path):
    with ThreadPoolExecutor(2) as pool:
        written = list(pool.map(lambda n: bndl.export(layer(n), tmp_path / f"{n}.onnx", rows(9)), range(2)))
    assert all(one.differences is not None for one in written)


def spoiling(runner_up: int, certain: int):
    """An ONNX Runtime that gives other answers for so many rows."""

    def opened(path):
        def run(given):
            found = [torch.as_tensor(value) for value in session.run(None, {"features": given["features"].numpy()})]
            found[FIELDS.index("runner_up")][:runner_up] += 100
            found[FIELDS.index("certain")][:certain] ^= True
            return found

        session = onnxruntime.InferenceSession(path)
        return run

    return opened


def test_differences_are_shares_where_there_are_no_sizes(tmp_path, monkeypatch):
    trial = sys.modules["bndl.export.trial"]
    monkeypatch.setattr(trial, "_in_onnx_runtime", spoiling(1, 1))
    monkeypatch.setattr(trial, "_parts", lambda example, lengths: [example.rows(slice(None))])
    found = bndl.export(layer(), tmp_path / "m.onnx", rows(10)).differences
    assert (found["runner_up"], found["certain"], found["labels"]) == (0.1, 0.1, 0)  # one may be on an edge
    monkeypatch.setattr(trial, "_in_onnx_runtime", spoiling(7, 6))
    with pytest.raises(BndlError, match=r"decides otherwise than the model in 6% of the example"):
        bndl.export(layer(), tmp_path / "n.onnx", rows(100))
    assert not (tmp_path / "n.onnx").exists()
    monkeypatch.setattr(trial, "_in_onnx_runtime", spoiling(7, 5))
    assert bndl.export(layer(), tmp_path / "n.onnx", rows(100)).differences["runner_up"] == 0.07


class Short(Averaging):
    """Reads at most ten tokens."""

    def forward(self, ids: Tensor) -> Tensor:
        return super().forward(ids[:, :10] if ids.size(1) > 10 else ids)


class Long(Averaging):
    """Fills up what is shorter than six."""

    def forward(self, ids: Tensor) -> Tensor:
        return super().forward(ids if ids.size(1) > 5 else nn.functional.pad(ids, (0, 6 - ids.size(1))))


class Fours(Averaging):
    """Looks at the last token where their number is a multiple of four."""

    def forward(self, ids: Tensor) -> Tensor:
        return super().forward(ids if ids.size(1) % 4 else ids[:, -1:])


class Placed(Averaging):
    """Has a place for 16 tokens, as transformers have for 512."""

    def __init__(self) -> None:
        super().__init__()
        self.places = nn.Parameter(torch.randn(16, 6))

    def forward(self, ids: Tensor) -> Tensor:
        if ids.size(1) > 16:
            raise ValueError("too many tokens")
        return self.layer(self.cell((self.embedding(ids) + self.places[: ids.size(1)]).mean(1)))


@pytest.mark.parametrize(("model", "length"), [(Short, 8), (Short, 14), (Long, 4), (Long, 14), (Fours, 7), (Fours, 8)])
def test_a_model_that_goes_another_way_for_other_lengths_has_one(tmp_path, model, length):
    torch.manual_seed(0)
    made, ids = model(), torch.randint(0, 20, (30, length), generator=torch.Generator().manual_seed(0))
    assert bndl.export(made, tmp_path / "m.onnx", ids[:4]).inputs[0].dims == ("batch", length)
    assert_same(run(tmp_path / "m.onnx", ids), bndl.predict(made, ids))


@pytest.mark.parametrize("suffix", [".onnx", ".pt2"])
def test_a_model_with_so_many_places_takes_what_there_is_a_place_for(tmp_path, suffix):
    torch.manual_seed(0)
    made, ids = Placed(), torch.randint(0, 20, (30, 16), generator=torch.Generator().manual_seed(0))
    assert bndl.export(made, tmp_path / f"m{suffix}", ids[:4, :5]).inputs[0].dims == ("batch", "length")
    for count in (2, 5, 16):
        assert_same(run(tmp_path / f"m{suffix}", ids[:, :count]), bndl.predict(made, ids[:, :count]))


class Table(nn.Module):
    """A row and a number; what is missing is NaN."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = layer(signed=True)

    def forward(self, row: Tensor, age: Tensor) -> Tensor:
        return self.layer(row.nan_to_num(0) + age[:, None])


@pytest.mark.parametrize("suffix", [".onnx", ".pt2"])
def test_what_is_not_finite_in_the_example_may_be_so(tmp_path, suffix):
    path, row, age = tmp_path / f"m{suffix}", rows(40), torch.rand(40)
    model = Table()
    bndl.export(model, path, {"row": row, "age": age})
    row[::2, 1] = torch.nan
    wanted = bndl.predict(model, {"row": row, "age": age})
    assert bool(wanted.certain[::2].any())
    given = ({"row": row, "age": age},) if suffix == ".onnx" else (row, age)
    assert not run(path, *given)["certain"][::2].any()
    written = bndl.export(model, path, {"row": row, "age": age})
    assert written.differences["certain"] == 0
    assert_same(run(path, *given), wanted)


def test_what_torch_cannot_read_back_is_said(tmp_path, monkeypatch):
    def fails(path):
        raise AssertionError("expected no unbacked symbols")

    monkeypatch.setattr(torch.export, "load", fails)
    with pytest.raises(InputError, match=r"cannot read back what it wrote .*unbacked symbols\): write .onnx"):
        bndl.export(layer(), tmp_path / "m.pt2", rows(9))
    assert not list(tmp_path.iterdir())


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


class Clashing(Random):
    def forward(self, probs: Tensor) -> Tensor:
        return self.layer(probs)


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
        (layer(), "m.onnx", rows(2)[0], {}, "was given dims"),
        (network(), "m.onnx", torch.rand(2, 2, 12, 12), {}, r"cannot take this example \(.*\): give a batch"),
        (layer(), "m.onnx", torch.tensor(3.0), {}, "the example is empty, or no batch"),
        (layer(), "m.onnx", {"x": rows(2), "y": rows(2)}, {}, "cannot take this example"),
        (layer(), "m.onnx", rows(2)[:, :3], {}, "features of size 12, got dims"),
        (layer(), "m.onnx", rows(2), {"classes": ("a", "b")}, "2 classes are named, the layer has 5"),
        (layer(), "m.onnx", rows(2), {"method": "guess"}, "method must be one of"),
        (layer(), "m.onnx", rows(2), {"against": "guess"}, "against must be one of"),
        (layer(), "m.onnx", rows(2), {"level": 0}, "strictly between 0 and 1"),
        (layer(), "m.onnx", rows(2), {"reasons": -1}, "0 for none, .* got -1"),
        (layer(), "m.onnx", rows(2), {"reasons": 2.0}, "0 for none, .* got 2.0"),
        (layer(), "m.onnx", rows(2), {"opset": "18"}, "whole numbers; got 0 and '18'"),
        (layer(), "m.pt2", rows(2), {"opset": 18}, "m.pt2 is not ONNX: leave it out"),
        (layer(), "m.onnx", rows(2), {"classes": "abcde"}, "a list of names, .* got str"),
        (layer(), "m.onnx", rows(2), {"classes": dict(enumerate("abcde"))}, "a list of names, .* got dict"),
        (layer(), "m.onnx", rows(2), {"about": {"level": 0.5}}, "holds 'level', which the file says itself"),
        (layer(), "m.onnx", rows(2), {"about": {"outputs": 0.5}}, "holds 'outputs', which the file says itself"),
        (layer(), "m.onnx", rows(2), {"reasons": True}, "0 for none, .* got True"),
        (layer(), "m.onnx", rows(2), {"about": ["a"]}, "give a dict of what JSON can hold"),
        (layer(), "m.onnx", rows(2), {"about": {"mean": torch.ones(2)}}, "give a dict of what JSON can hold"),
        (layer(), "m.onnx", rows(2), {"about": {"mean": float("nan")}}, "give a dict of what JSON can hold"),
        (FromPixels(network()), "m.onnx", torch.rand(2, 3, 12, 12), {}, "give uint8, or the model as it is"),
        (Clashing(), "m.onnx", {"probs": rows(2)}, {}, "an input called 'probs', as is an output of the file"),
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
    assert all(parameter.requires_grad for parameter in model.parameters())
    assert [path.name for path in tmp_path.iterdir()] == [name]
    assert (tmp_path / name).read_text() == "before"
    assert capfd.readouterr() == ("", "")  # the exporters are kept from talking


def test_a_graph_that_says_something_else_is_not_written(tmp_path):
    with pytest.raises(
        BndlError, match=r"gives other probabilities .* is there something random in the model's forward pass"
    ):
        bndl.export(Random(), tmp_path / "m.onnx", rows(20))
    assert not list(tmp_path.iterdir())
    assert bndl.export(Random(), tmp_path / "m.onnx", rows(20), check=False).differences is None


@pytest.mark.parametrize("suffix", [".onnx", ".pt2"])
def test_a_place_that_cannot_be_is_known_before_the_work(tmp_path, monkeypatch, suffix):
    monkeypatch.setattr(sys.modules["bndl.export.run"], "traced", None)
    (tmp_path / "file").touch()
    os.mkfifo(tmp_path / f"pipe{suffix}")
    for place, words in (
        (tmp_path / "none" / "m", "choose a folder that exists"),
        (tmp_path / "file" / "m", "choose a folder that exists"),
        (tmp_path / ("m" * 300), "choose a shorter name"),
        (tmp_path / "pipe", "no ordinary file; choose another name"),
    ):
        with pytest.raises(FileError, match=words):
            bndl.export(layer(), place.with_suffix(suffix), rows(2))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", f"pipe{suffix}"]


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

    monkeypatch.setattr(sys.modules["bndl.export.trial"], "_in_onnx_runtime", fails)
    with pytest.raises(BndlError, match=r"fails on a batch of dims \(1, 12\) \(dims do not fit\), so nothing"):
        bndl.export(layer(), tmp_path / "m.onnx", rows(9))
    assert not list(tmp_path.iterdir())

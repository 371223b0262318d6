"""``bndl predict`` as a user meets it."""

import csv
import json
import signal

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
import yaml

import bndl
from bndl.cli import main

PIL = pytest.importorskip("PIL.Image")
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")

K, C, N = 6, 3, 120
RECORD = {
    "about": "a test",
    "needs": {"data": "digits", "hours": "0", "machine": "any"},
    "data": {"name": "digits", "val": 0.2},
    "model": {"backbone": "small-cnn", "width": 4},
    "train": {"epochs": 1, "batch_size": 256},
}


@pytest.fixture
def layer():
    torch.manual_seed(0)
    return bndl.DecisionLayer(K, C).eval()


@pytest.fixture
def model(tmp_path, layer):
    return str(bndl.save(layer, tmp_path / "m.safetensors", classes=["ant", "bee", "cow"]))


@pytest.fixture
def features():
    return torch.rand(N, K, generator=torch.Generator().manual_seed(1))


@pytest.fixture
def source(tmp_path, features):
    np.save(tmp_path / "x.npy", features.numpy())
    return str(tmp_path / "x.npy")


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
def photos(tmp_path):
    folder, random = tmp_path / "photos [bold]", np.random.default_rng(0)
    (folder / "sub").mkdir(parents=True)
    for name in ("b.png", "sub/a.png", "=c.png"):
        PIL.fromarray(random.integers(0, 256, (20, 12, 3), dtype=np.uint8)).save(folder / name)
    (folder / "void.png").touch()
    return folder


def refused(capsys, *args: str, code: int = 2) -> str:
    """What a command that is refused says last: one sentence, nothing on standard output."""
    assert main(["predict", *args]) == code
    out, err = capsys.readouterr()
    assert out == ""
    said = [line for line in err.strip().splitlines() if line.startswith("bndl: ")]
    assert len(said) == 1
    assert err.strip().endswith(said[0])
    return said[0]


def test_features_to_csv_and_a_summary(capsys, tmp_path, model, source, layer, features):
    out = tmp_path / "o.csv"
    assert main(["predict", model, source, "--out", str(out), "--level", "0.3"]) == 0
    wanted = bndl.predict(layer, features, level=0.3)
    said = capsys.readouterr()
    assert f"{N} rows, {wanted.certain.float().mean():.1%} certain" in said.out
    assert "rows/s" in said.out
    assert f"Written to {out}" in said.out
    with out.open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [int(row["label"]) for row in rows] == wanted.labels.tolist()
    assert [row["class"] for row in rows] == [["ant", "bee", "cow"][label] for label in wanted.labels]
    names = "source label class probability runner_up p_value certain flip_probability entropy aleatoric epistemic"
    assert " ".join(rows[0]) == names


def test_json_and_options(capsys, tmp_path, model, source, layer, features):
    out = tmp_path / "o.parquet"
    options = ["--method", "closed", "--probs", "all", "--reasons", "2", "--batch-size", "7", "--shard-rows", "50"]
    assert main(["predict", model, source, "--out", str(out), "--json", "--workers", "2", *options]) == 0
    record = json.loads(capsys.readouterr().out)
    assert (record["file"], record["rows"], record["damaged"]) == (str(out), N, [])
    table = pq.read_table(out)
    probs = torch.tensor(table["probs"].to_pylist())
    assert torch.equal(probs, bndl.predict(layer, features, method="closed").probs)
    assert {len(terms) for terms in table["reasons"].to_pylist()} == {2}


@pytest.mark.parametrize("head", ["bndl", "dense"])
def test_a_run_reads_a_folder_of_images(capsys, tmp_path, runs, photos, head):
    out = tmp_path / "o.jsonl"
    assert main(["predict", str(runs / head), str(photos), "--out", str(out), "--reasons", "1"]) == 0
    said = capsys.readouterr()
    assert "3 rows" in said.out
    assert "left out, it cannot be decoded: void.png" in said.err
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    assert [row["source"] for row in rows] == ["=c.png", "b.png", "sub/a.png"]
    if head == "bndl":
        from bndl.train import load_run

        run = load_run(runs / head)
        pixels = torch.cat([run.read(photos / row["source"]) for row in rows]).float() / 255
        wanted = bndl.predict(run.model, pixels)
        assert [row["class"] for row in rows] == [run.classes[label] for label in wanted.labels]
        assert [row["p_value"] for row in rows] == wanted.p_value.tolist()


def test_a_run_takes_its_own_features_too(tmp_path, runs):
    from bndl.convert import find_layer
    from bndl.train import load_run

    layer = find_layer(load_run(runs / "bndl").model)
    features = torch.rand(5, layer.in_features)
    np.save(tmp_path / "h.npy", features.numpy())
    assert main(["predict", str(runs / "bndl"), str(tmp_path / "h.npy"), "--out", str(tmp_path / "o.parquet")]) == 0
    table = pq.read_table(tmp_path / "o.parquet")
    assert table["p_value"].to_pylist() == bndl.predict(layer, features).p_value.tolist()


def test_a_dense_run_can_be_resumed(tmp_path, runs, photos, capsys, monkeypatch):
    """Its noise is fitted when it is loaded: to the same bits each time, or else this is refused."""
    from bndl.stream.place import Place

    args = ["predict", str(runs / "dense"), str(photos), "--out", str(tmp_path / "o.csv"), "--shard-rows", "2"]
    commit = Place.commit

    def dying(place, at, write, note):
        if at == 1:
            raise KeyboardInterrupt
        return commit(place, at, write, note)

    with monkeypatch.context() as patch:
        patch.setattr(Place, "commit", dying)
        assert "the same command with --resume goes on" in refused(capsys, *args[1:], code=130)
    assert main([*args, "--resume", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["rows_before"] == 2


def test_a_sparse_head_takes_the_place_of_the_runs_own(tmp_path, runs, photos):
    from bndl.store import save
    from bndl.train import load_run

    model = load_run(runs / "bndl").model
    with torch.no_grad():
        next(m for m in model.modules() if isinstance(m, bndl.DecisionLayer)).weight.mul_(0.5)
    save(model, tmp_path / "head.safetensors")
    files = [tmp_path / "own.csv", tmp_path / "head.csv"]
    assert main(["predict", str(runs / "bndl"), str(photos), "--out", str(files[0])]) == 0
    head = ["--head", str(tmp_path / "head.safetensors")]
    assert main(["predict", str(runs / "bndl"), str(photos), "--out", str(files[1]), *head]) == 0
    assert files[0].read_text() != files[1].read_text()


def test_what_is_wrong_is_one_sentence(capsys, tmp_path, model, source, photos, features):
    out = ["--out", str(tmp_path / "o.csv")]
    assert "takes features" in refused(capsys, model, str(photos), *out)
    assert "there is no" in refused(capsys, model, str(tmp_path / "absent.npy"), *out)
    assert "neither the folder of a run nor" in refused(capsys, source, source, *out)
    assert "there is no file" in refused(capsys, str(tmp_path / "absent.safetensors"), source, *out)
    assert "cannot tell the format" in refused(capsys, model, source, "--out", str(tmp_path / "o.xlsx"))
    assert "make it first" in refused(capsys, model, source, "--out", str(tmp_path / "no" / "o.csv"))
    assert "level" in refused(capsys, model, source, *out, "--level", "2")
    assert "--head goes with the folder of a run" in refused(capsys, model, source, *out, "--head", model)
    np.save(tmp_path / "wide.npy", np.zeros((3, K + 1), np.float32))
    assert f"has {K + 1} features a row, but the model takes {K}" in refused(
        capsys, model, str(tmp_path / "wide.npy"), *out
    )
    features[17, 2] = float("nan")
    np.save(tmp_path / "nan.npy", features.numpy())
    assert "row 17 of nan.npy: NaN or infinite" in refused(capsys, model, str(tmp_path / "nan.npy"), *out)
    assert not list(tmp_path.glob("o.*"))
    assert main(["predict", model, source, *out]) == 0
    capsys.readouterr()
    assert "is there already: give --overwrite" in refused(capsys, model, source, *out)
    assert main(["predict", model, source, *out, "--overwrite"]) == 0


def test_what_is_read_is_not_written_over(tmp_path, capsys):
    source = tmp_path / "x.parquet"
    source.write_bytes(b"precious")
    for given in (source, tmp_path):
        assert "is what is read: choose another --out" in refused(
            capsys, "head.safetensors", str(given), "--out", str(source), "--overwrite"
        )
    assert source.read_bytes() == b"precious"


def test_strict_stops(capsys, tmp_path, runs, photos):
    said = refused(capsys, str(runs / "bndl"), str(photos), "--out", str(tmp_path / "o.csv"), "--strict")
    assert "void.png cannot be decoded" in said


@pytest.mark.slow
def test_ctrl_c_keeps_what_is_done_and_says_how_to_go_on(tmp_path, layer, model, strike):
    rows = 10_000
    np.save(tmp_path / "x.npy", np.random.default_rng(0).random((rows, K), np.float32))
    args = ["predict", model, str(tmp_path / "x.npy"), "--shard-rows", "100"]
    child = strike(signal.SIGINT, "bndl.stream.place:Place.commit", 5, *args, "--out", str(tmp_path / "o.csv"))
    assert child.returncode == 130, child.stderr
    said = child.stderr
    assert "interrupted; what is done is kept in" in said
    assert "Traceback" not in said
    assert main([*args, "--out", str(tmp_path / "o.csv"), "--resume"]) == 0
    assert main([*args, "--out", str(tmp_path / "whole.csv")]) == 0
    assert (tmp_path / "o.csv").read_bytes() == (tmp_path / "whole.csv").read_bytes()

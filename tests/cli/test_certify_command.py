"""``bndl certify`` as a user meets it."""

import json

import pytest
import torch
import yaml

import bndl
from bndl.certify import study
from bndl.cli import main
from bndl.convert import find_layer
from bndl.train import load_run

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")

RECORD = {
    "about": "a test",
    "needs": {"data": "digits", "hours": "0", "machine": "any"},
    "data": {"name": "digits", "val": 0.05},
    "model": {"backbone": "small-cnn", "width": 4, "head": "bndl"},
    "train": {"epochs": 1, "batch_size": 256},
}


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    base = tmp_path_factory.mktemp("runs")
    (base / "tiny.yaml").write_text(yaml.safe_dump(RECORD))

    def of(head):
        if not (base / head).exists():
            options = ["--set", f"model.head={head}", "--out", str(base / head)]
            assert main(["train", str(base / "tiny.yaml"), *options]) == 0
        return base / head

    return of


def refused(capsys, *args):
    assert main(["certify", *args]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("bndl: ")
    assert len(err.strip().splitlines()) == 1
    return err


def test_a_run_is_certified_with_a_table_and_a_file(capsys, trained):
    folder = trained("bndl")
    capsys.readouterr()
    assert main(["certify", str(folder), "--show", "2"]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "features are active (K_eff), 10 classes; Theta Phi has rank" in out
    assert out.count("Not applicable: ") == 1
    assert "No other threshold that was tried makes the theorem apply" in out
    record = json.loads((folder / "certificate.json").read_text())
    assert record["num_examples"] == 359
    assert record["num_active"] <= record["num_features"]


def test_json_goes_to_standard_output_and_thresholds_are_options(capsys, trained, tmp_path):
    folder = trained("bndl")
    capsys.readouterr()
    options = ["--json", "--tolerance", "1e-3", "--rank-tolerance", "1e-4", "--part", "val", "--limit", "20"]
    assert main(["certify", str(folder), *options, "--out", str(tmp_path / "c.json")]) == 0
    record = json.loads(capsys.readouterr().out)
    assert record["certificate"]["thresholds"] == {"tolerance": 1e-3, "rank_tolerance": 1e-4, "min_cosine": 0.99}
    assert record["certificate"]["num_examples"] == 20
    assert json.loads((tmp_path / "c.json").read_text()) == record["certificate"]


def test_a_dense_run_is_converted_and_its_training_part_can_be_asked(capsys, trained):
    folder = trained("dense")
    capsys.readouterr()
    assert main(["certify", str(folder), "--part", "train", "--json"]) == 0
    out, err = capsys.readouterr()
    assert "dense head, converted" in err
    assert json.loads(out)["certificate"]["num_examples"] > 1000


def test_what_sparsify_wrote_is_certified(capsys, trained, tmp_path):
    """Beside its run by the folder alone; elsewhere with the run."""
    folder = trained("bndl")
    layer = load_run(folder).model
    with torch.no_grad():
        weight = find_layer(layer).weight
        weight.copy_(torch.eye(*weight.size()))
    for place in (folder / "sparse", tmp_path):
        place.mkdir(exist_ok=True)
        bndl.save(layer, place / "model.safetensors")
        (place / "path.json").write_text("{}")
    capsys.readouterr()
    assert main(["certify", str(folder / "sparse")]) == 0
    out = capsys.readouterr().out
    assert json.loads((folder / "sparse" / "certificate.json").read_text())["num_active"] <= 10
    assert "Features, certified first (10 of 10):" in out
    assert "…" not in out
    assert max(map(len, out[out.index("With other thresholds") :].splitlines()[:-1])) <= 80
    other = ["certify", str(folder), "--model", str(tmp_path / "model.safetensors"), "--out", str(tmp_path / "c.json")]
    assert main(other) == 0
    assert capsys.readouterr().out.splitlines()[:-1] == out.splitlines()[:-1]
    assert "give that run, and --model" in refused(capsys, str(tmp_path))


def test_what_is_wrong_is_one_sentence(capsys, tmp_path):
    assert "or --synthetic" in refused(capsys)
    assert "or --synthetic" in refused(capsys, str(tmp_path), "--synthetic")
    assert "a picture is written as" in refused(capsys, "--synthetic", "--out", str(tmp_path / "x.txt"))
    assert "there is no folder" in refused(capsys, "--synthetic", "--out", str(tmp_path / "no" / "x.png"))
    refused(capsys, str(tmp_path / "nothing"))
    options = ["--tolerance", "1e-3", "--seed", "4", "--part", "val"]
    said = refused(capsys, "--synthetic", *options, "--out", str(tmp_path / "x.png"))
    assert all(own in said for own in ("--tolerance", "--seed", "--part", "leave it out"))
    assert "--columns: that is for --synthetic" in refused(capsys, str(tmp_path), "--columns")
    for option in (["--tolerance", "2"], ["--tolerance", "x"], ["--limit", "0"]):
        with pytest.raises(SystemExit):
            main(["certify", str(tmp_path), *option])
    assert "from 0 to below 1" in capsys.readouterr().err


def test_a_file_that_cannot_be_written_is_refused_before_anything_is_computed(capsys, trained, tmp_path):
    folder = str(trained("bndl"))
    capsys.readouterr()
    assert "there is no folder" in refused(capsys, folder, "--out", str(tmp_path / "no" / "c.json"))
    assert "written as .json" in refused(capsys, folder, "--out", str(tmp_path / "c.png"))
    (tmp_path / "d.json").mkdir()
    assert "is a folder" in refused(capsys, folder, "--out", str(tmp_path / "d.json"))
    assert "rank_tolerance must be at least 1e-07" in refused(capsys, folder, "--rank-tolerance", "1e-9")


def test_the_study_is_told_by_kind_of_column_and_column_by_column(capsys, tmp_path, monkeypatch):
    monkeypatch.setattr("bndl.certify.study.VIEWS", {"exact": ("exact", True)})
    monkeypatch.setattr(study.study, "__kwdefaults__", {**study.study.__kwdefaults__, "views": ("exact",)})
    assert main(["certify", "--synthetic", "--seeds", "1", "--columns", "--out", str(tmp_path / "c.png")]) == 0
    out = capsys.readouterr().out
    assert "…" not in out
    assert max(map(len, out.splitlines()[:-1])) <= 80
    kinds = [line.split() for line in out.splitlines() if "Theta, certified" in line]
    assert kinds[0][-3] == kinds[0][-2]  # as many recovered as certified
    assert float(kinds[0][-1]) > 0.99
    listed = [line.split()[:2] for line in out.splitlines() if line.split()[:1] == ["exact"]]
    assert listed.count(["exact", "Theta"]) == listed.count(["exact", "Phi"]) == 6


def test_the_certificate_is_put_to_the_test(capsys, tmp_path):
    assert main(["certify", "--synthetic", "--seeds", "1", "--out", str(tmp_path / "c.png"), "--json"]) == 0
    record = json.loads(capsys.readouterr().out)
    certified = [own for own in record["columns"] if own["certified"] and own["view"] == "exact"]
    assert certified
    assert min(own["cosine"] for own in certified) > 0.99
    assert {own["certified"] for own in record["controls"]} == {0}
    assert (tmp_path / "c.png").stat().st_size > 10_000

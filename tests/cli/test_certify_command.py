"""``bndl certify`` as a user meets it."""

import json

import pytest
import yaml

from bndl.cli import main

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
    assert "With other thresholds" in out
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


def test_a_dense_run_is_told_what_to_do(capsys, trained):
    folder = trained("dense")
    capsys.readouterr()
    said = refused(capsys, str(folder))
    assert "dense head" in said
    assert "model.head=bndl" in said


def test_what_is_wrong_is_one_sentence(capsys, tmp_path):
    assert "or --synthetic" in refused(capsys)
    assert "or --synthetic" in refused(capsys, str(tmp_path), "--synthetic")
    assert "a picture is written as" in refused(capsys, "--synthetic", "--out", str(tmp_path / "x.txt"))
    assert "there is no folder" in refused(capsys, "--synthetic", "--out", str(tmp_path / "no" / "x.png"))
    refused(capsys, str(tmp_path / "nothing"))
    for option in (["--tolerance", "2"], ["--tolerance", "x"], ["--limit", "0"]):
        with pytest.raises(SystemExit):
            main(["certify", str(tmp_path), *option])
    assert "from 0 to below 1" in capsys.readouterr().err


def test_the_certificate_is_put_to_the_test(capsys, tmp_path):
    assert main(["certify", "--synthetic", "--seeds", "1", "--out", str(tmp_path / "c.png"), "--json"]) == 0
    record = json.loads(capsys.readouterr().out)
    certified = [own for own in record["columns"] if own["certified"] and own["view"] == "exact"]
    assert certified
    assert min(own["cosine"] for own in certified) > 0.99
    assert {own["certified"] for own in record["controls"]} == {0}
    assert (tmp_path / "c.png").stat().st_size > 10_000

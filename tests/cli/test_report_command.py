"""``bndl report`` as a user meets it."""

import json
import re
from pathlib import Path

import pytest
import yaml

import bndl
from bndl.cli import main
from bndl.edit import Editor
from bndl.evaluation.of_run import own_part
from bndl.train import load_run

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")

RECORD = {
    "about": "a test",
    "needs": {"data": "digits", "hours": "0", "machine": "any"},
    "data": {"name": "digits", "val": 0.05},
    "model": {"backbone": "small-cnn", "width": 4, "head": "bndl"},
    "train": {"epochs": 1, "batch_size": 256},
}
QUICK = ("--faithfulness", "4", "--lime", "1")


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A run of a head, trained once."""
    base = tmp_path_factory.mktemp("runs")
    (base / "tiny.yaml").write_text(yaml.safe_dump(RECORD))

    def of(head: str) -> Path:
        if not (base / head).exists():
            options = ["--set", f"model.head={head}", "--out", str(base / head)]
            assert main(["train", str(base / "tiny.yaml"), *options]) == 0
        return base / head

    return of


def data_of(path: Path) -> dict:
    """The JSON inside the page."""
    found = re.search(r'<script[^>]*type="application/json"[^>]*>(.*?)</script>', path.read_text(), flags=re.DOTALL)
    assert found is not None
    return json.loads(found[1])


def refused(capsys, *args: str) -> str:
    """What a command that is refused says: one sentence, nothing on standard output."""
    assert main(["report", *args]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    said = [line for line in err.splitlines() if line.startswith("bndl: ")]
    assert len(said) == 1
    assert err.splitlines()[-1] == said[0]
    return said[0]


def test_one_command_writes_one_page(capsys, trained, tmp_path):
    folder, page = trained("bndl"), tmp_path / "report.html"
    assert main(["report", str(folder), "--out", str(page), *QUICK]) == 0
    out, err = capsys.readouterr()
    assert f"Written: {page}" in out
    assert "mistakes" in err
    assert [path.name for path in tmp_path.iterdir()] == ["report.html"]
    record = data_of(page)
    run = load_run(folder)
    whole = bndl.evaluate(run.model, own_part(run, "test"))
    assert record["verdict"]["accuracy"]["value"] == pytest.approx(whole.figures["accuracy"].value)
    assert record["verdict"]["nll"]["high"] == pytest.approx(whole.figures["nll"].high, rel=1e-4)
    assert record["meta"]["data"] == "digits test"
    assert str(folder.parent) not in page.read_text(), "a page that is mailed tells no paths"
    assert (folder / "features").is_dir()


def test_json_says_where_it_is_and_what_was_found(capsys, trained, tmp_path):
    folder, cache = trained("bndl"), tmp_path / "cache"
    options = ("--json", "--limit", "40", "--part", "val", "--faithfulness", "0", "--lime", "0", "--cache", str(cache))
    assert main(["report", str(folder), *options]) == 0
    found = json.loads(capsys.readouterr().out)
    page = folder / "report.html"
    assert found["report"] == str(page)
    assert found["bytes"] == page.stat().st_size < 5_000_000
    assert found["verdict"] == data_of(page)["verdict"]
    assert any("optimistic" in note for note in found["about"])
    assert data_of(page)["meta"]["num_examples"] == 40
    assert any(cache.iterdir())


def test_a_dense_run_is_converted_and_compared_with(capsys, trained, tmp_path):
    page = tmp_path / "dense.html"
    assert main(["report", str(trained("dense")), "--out", str(page), "--limit", "60", *QUICK]) == 0
    record = data_of(page)
    assert any("converted" in note for note in record["meta"]["about"])
    assert record["faithfulness"]["deletion"]["dense"]["mean"]


def test_another_head_of_the_run_is_shown(capsys, trained, tmp_path):
    folder = trained("bndl")
    model = load_run(folder).model
    editor = Editor(model)
    editor.drop(0)
    bndl.save(model, tmp_path / "edited.safetensors", edits=editor)
    page = tmp_path / "edited.html"
    options = ("--head", str(tmp_path / "edited.safetensors"), "--limit", "40", "--faithfulness", "0", "--lime", "0")
    assert main(["report", str(folder), "--out", str(page), *options]) == 0
    assert 0 not in {one["feature"] for one in data_of(page)["features"]}


def test_what_cannot_work_is_said_in_one_sentence_before_any_work(capsys, trained, tmp_path):
    folder = str(trained("bndl"))
    assert "there is no folder" in refused(capsys, str(tmp_path / "none"))
    assert "it is a folder" in refused(capsys, folder, "--out", str(tmp_path))
    assert "choose an --out" in refused(capsys, folder, "--out", str(tmp_path / "no" / "report.html"))
    assert "nothing.safetensors" in refused(capsys, folder, "--head", str(tmp_path / "nothing.safetensors"))
    (tmp_path / "empty").mkdir()
    refused(capsys, str(tmp_path / "empty"))
    for option in (("--limit", "0"), ("--lime", "-1"), ("--part", "train")):
        with pytest.raises(SystemExit):
            main(["report", folder, *option])
    assert not list(tmp_path.glob("*.html"))

"""What a report says of its head's edits, and of a place it cannot be written to."""

import copy
import os
from pathlib import Path

import pytest
import yaml

import bndl
from bndl.cli import main
from bndl.edit import Editor
from bndl.report.of_run import open_run

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")

RECORD = {
    "about": "a test",
    "needs": {"data": "digits", "hours": "0", "machine": "any"},
    "data": {"name": "digits", "val": 0.05},
    "model": {"backbone": "small-cnn", "width": 4, "head": "bndl"},
    "train": {"epochs": 1, "batch_size": 256},
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    base = tmp_path_factory.mktemp("runs")
    (base / "tiny.yaml").write_text(yaml.safe_dump(RECORD))
    assert main(["train", str(base / "tiny.yaml"), "--out", str(base / "run")]) == 0
    return base / "run"


@pytest.fixture(scope="module")
def opened(folder):
    return open_run(folder, limit=20)


def notes_of(folder: Path, head: Path) -> list[str]:
    return [note for note in open_run(folder, head=head, limit=20).about.notes if note.startswith("The head is")]


def test_a_report_says_that_its_head_was_edited_and_how(folder, opened):
    editor = Editor(copy.deepcopy(opened.subject.model))
    editor.scale(1, 0.5, 3, note="looks at\nthe frame")
    editor.drop(2)
    place = folder / "edited" / "001" / "model.safetensors"
    place.parent.mkdir(parents=True)
    bndl.save(editor.model, place, classes=opened.subject.classes, edits=editor)
    name = opened.subject.classes[3]
    assert notes_of(folder, place) == [
        "The head is that of edited/001/model.safetensors, with 2 edits by hand: "
        f"f1 in {name} times 0.5 (looks at the frame), f2 in all classes times 0."
    ]


def test_many_edits_are_counted_and_other_places_are_not_told(folder, opened, tmp_path):
    editor = Editor(copy.deepcopy(opened.subject.model))
    for target in range(7):
        editor.drop(0, target)
    bndl.save(editor.model, tmp_path / "many.safetensors", edits=editor)
    (note,) = notes_of(folder, tmp_path / "many.safetensors")
    assert note.startswith("The head is that of many.safetensors, with 7 edits by hand: f0 in ")
    assert note.count(" times 0") == 5
    assert note.endswith(", and 2 more.")
    bndl.save(opened.subject.model, tmp_path / "plain.safetensors")
    assert notes_of(folder, tmp_path / "plain.safetensors") == ["The head is that of plain.safetensors."]


def test_a_page_that_cannot_be_written_is_refused_before_any_work(folder, tmp_path, monkeypatch, capsys):
    def never(*_: object, **__: object) -> None:
        raise AssertionError("work was begun")

    monkeypatch.setattr("bndl.report.of_run.open_run", never)
    places = [tmp_path / f"{'a' * 248}.html", tmp_path / f"{'a' * 400}.html", tmp_path / "none" / "report.html"]
    if os.geteuid():  # root may write everywhere
        (tmp_path / "closed").mkdir(mode=0o500)
        places.append(tmp_path / "closed" / "report.html")
    for place in places:
        assert main(["report", str(folder), "--out", str(place)]) == 2
        assert "choose an --out in a folder that exists and is yours" in capsys.readouterr().err
    assert not [path for path in tmp_path.iterdir() if path.name != "closed"]

"""Hub data sets, against a stand-in for the ``datasets`` package: there is no network in tests."""

import io
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import PIL.Image
import pytest
import torch

from bndl import data
from bndl.errors import FileError, InputError, MissingExtraError

SMALL = data.Reading(size=4)


class Image:
    def __init__(self, decode: bool = True) -> None:
        self.decode = decode


class ClassLabel:
    names = ("ant", "bee")


class Table:
    def __init__(self, rows: list[dict[str, Any]], features: dict[str, Any]) -> None:
        self.rows, self.features = rows, features

    def __getitem__(self, key: int | str) -> Any:
        return self.rows[key] if isinstance(key, int) else [row[key] for row in self.rows]

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return iter(self.rows)

    def cast_column(self, column: str, feature: Image) -> "Table":
        assert not feature.decode
        return Table(self.rows, self.features | {column: feature})


def png(value: int) -> bytes:
    stream = io.BytesIO()
    PIL.Image.new("RGB", (6, 5), (value, 0, 0)).save(stream, "PNG")
    return stream.getvalue()


def table(count: int, features: dict[str, Any] | None = None) -> Table:
    rows = [{"img": {"bytes": png(n), "path": None}, "kind": n % 2, "text": "t"} for n in range(count)]
    return Table(rows, {"img": Image(), "kind": ClassLabel()} if features is None else features)


@pytest.fixture
def tables(monkeypatch: pytest.MonkeyPatch) -> dict[str, Table]:
    stored = {"train": table(20), "validation": table(4), "test": table(6)}

    def load_dataset(name: str, configuration: str | None) -> dict[str, Table]:
        assert (name, configuration) == ("owner/bugs", None)
        return stored

    monkeypatch.setitem(sys.modules, "datasets", SimpleNamespace(load_dataset=load_dataset, Image=Image))
    return stored


def test_parts_and_images(tables: dict[str, Table]) -> None:
    splits = data.load_splits("hf:owner/bugs", reading=SMALL)
    assert splits.val is not None
    assert splits.test is not None
    assert (len(splits.train), len(splits.val), len(splits.test)) == (20, 4, 6)
    image, label = splits.train[7]
    assert (image.size(), label, splits.train.classes) == ((3, 4, 4), 1, ("ant", "bee"))
    assert image[0].unique().tolist() == [7]
    assert splits.plan is None


def test_carved_parts_follow_their_rows(tables: dict[str, Table]) -> None:
    del tables["validation"]
    found = data.load("hf:owner/bugs", split="val", reading=SMALL)
    assert len(found) == 2
    for image, label in (found[0], found[1]):
        assert int(image[0, 0, 0]) % 2 == label
    assert found.fingerprint == data.load("hf:owner/bugs", split="val", reading=SMALL).fingerprint
    assert found.fingerprint != data.load("hf:owner/bugs", split="test", reading=SMALL).fingerprint


def test_plain_labels_are_encoded(tables: dict[str, Table]) -> None:
    tables["train"].features["kind"] = object()
    found = data.load("hf:owner/bugs", reading=data.Reading(size=4, label="kind"))
    assert found.classes == ("0", "1")
    assert torch.equal(found.labels, torch.arange(20) % 2)


@pytest.mark.parametrize(
    ("features", "words"),
    [
        ({"text": object(), "kind": ClassLabel()}, "no column of images"),
        ({"img": Image()}, "no column of class labels"),
    ],
)
def test_tables_that_do_not_fit(tables: dict[str, Table], features: dict[str, Any], words: str) -> None:
    tables["train"] = table(4, features)
    with pytest.raises(InputError, match=words):
        data.load("hf:owner/bugs", reading=SMALL)


def test_offline(monkeypatch: pytest.MonkeyPatch) -> None:
    def load_dataset(name: str, configuration: str | None) -> None:
        raise ConnectionError("Couldn't reach the Hub\nlong story")

    monkeypatch.setitem(sys.modules, "datasets", SimpleNamespace(load_dataset=load_dataset))
    with pytest.raises(FileError, match=r"Couldn't reach the Hub\); check .*network, or, offline, .*give its path"):
        data.load("hf:owner/bugs")


def test_without_the_package(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(MissingExtraError, match=r"bndl\[hf\]"):
        data.load("hf:owner/bugs")

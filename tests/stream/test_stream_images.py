"""Folders of images: any layout, damaged files left out and listed."""

import os

import numpy as np
import pytest
import torch
from streamed import FORMATS, rows_of, same
from torch import nn

import bndl
from bndl.data.images import decode
from bndl.errors import FileError, InputError
from bndl.stream import Predictor, Settings, from_text, open_source, predict_to_file
from bndl.stream.place import Place

PIL = pytest.importorskip("PIL.Image")
NAMES = [
    b"a.png",
    b"deep/er/b.PNG",
    b"deep/=1+1.png",
    b"caf\xe9.png",
    b'new\nline,"q".png',
    rb"back\slash.png",
    b"z.bmp",
]


@pytest.fixture
def folder(tmp_path):
    base = tmp_path / "photos"
    random = np.random.default_rng(0)
    for name in NAMES:
        path = base / os.fsdecode(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        PIL.fromarray(random.integers(0, 256, (9, 7, 3), dtype=np.uint8)).save(path, format="PNG")
    (base / "notes.txt").write_text("no image")
    return base


@pytest.fixture
def predictor():
    torch.manual_seed(0)
    network = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 3))
    return Predictor(bndl.convert(network).eval(), ("cat", "dog", "emu"), lambda file: decode(file, size=6))


def stream(predictor, folder, out, *, strict=False, resume=False, **given):
    source = open_source(folder, in_features=8, read=predictor.read, workers=2, strict=strict)
    return predict_to_file(predictor, source, out, settings=Settings(**given), resume=resume)


def wanted(predictor, folder):
    files = sorted(os.fsdecode(name) for name in NAMES)
    pixels = torch.stack([decode(folder / file, size=6) for file in files])
    return files, bndl.predict(predictor.model, pixels.float() / 255)


@pytest.mark.parametrize("suffix", FORMATS)
def test_all_images_below_in_order_whatever_they_are_called(tmp_path, predictor, folder, suffix):
    out = tmp_path / f"out.{suffix}"
    assert stream(predictor, folder, out).rows == len(NAMES)
    files, prediction = wanted(predictor, folder)
    found = rows_of(out)
    assert [os.path.normpath(from_text(row["source"])) for row in found] == files
    assert same(found, prediction)
    assert all((folder / from_text(row["source"])).is_file() for row in found)


def test_batches_change_no_decision(tmp_path, predictor, folder):
    stream(predictor, folder, tmp_path / "out.parquet", batch_size=2, shard_rows=3)
    found, prediction = rows_of(tmp_path / "out.parquet"), wanted(predictor, folder)[1]
    assert [row["label"] for row in found] == prediction.labels.tolist()
    assert [row["probability"] for row in found] == pytest.approx(prediction.confidence.tolist(), rel=1e-5)


def test_a_single_image(tmp_path, predictor, folder):
    assert stream(predictor, folder / "a.png", tmp_path / "out.jsonl").rows == 1
    assert rows_of(tmp_path / "out.jsonl")[0]["source"] == "a.png"


def test_damaged_images_are_left_out_and_listed(tmp_path, predictor, folder):
    (folder / "deep" / "broken.jpg").write_bytes(b"\xff\xd8 no more")
    (folder / "link.png").symlink_to(folder / "nowhere.png")
    (folder / "void.png").touch()
    summary = stream(predictor, folder, tmp_path / "out.jsonl")
    assert [entry.path for entry in summary.damaged] == ["deep/broken.jpg", "link.png", "void.png"]
    assert all(entry.reason for entry in summary.damaged)
    assert summary.rows == len(NAMES)
    assert same(rows_of(tmp_path / "out.jsonl"), wanted(predictor, folder)[1])


@pytest.mark.parametrize("suffix", FORMATS)
def test_a_shard_of_damage_alone_holds_no_row(tmp_path, predictor, folder, suffix):
    (folder / "0.png").touch()
    summary = stream(predictor, folder, tmp_path / f"out.{suffix}", batch_size=1, shard_rows=1)
    assert [entry.path for entry in summary.damaged] == ["0.png"]
    labels = [int(row["label"]) for row in rows_of(tmp_path / f"out.{suffix}")]
    assert labels == wanted(predictor, folder)[1].labels.tolist()


def test_strict_stops_at_a_damaged_image(tmp_path, predictor, folder):
    (folder / "void.png").touch()
    with pytest.raises(FileError, match=r"void.png cannot be decoded .*leave out --strict"):
        stream(predictor, folder, tmp_path / "out.csv", strict=True)
    assert not list(tmp_path.glob("out*"))


def test_nothing_but_damage_is_an_error(tmp_path, predictor):
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad" / "a.png").touch()
    with pytest.raises(FileError, match=r"none of the 1 images can be decoded, the first is a.png"):
        stream(predictor, tmp_path / "bad", tmp_path / "out.csv")
    assert not (tmp_path / "out.csv").exists()


@pytest.mark.parametrize("suffix", FORMATS)
def test_stopped_and_resumed_with_damage_in_both_parts(tmp_path, predictor, folder, suffix, monkeypatch):
    for name in ("0.png", "deep/a.png", "y.png"):
        (folder / name).touch()
    whole, out = tmp_path / f"whole.{suffix}", tmp_path / f"out.{suffix}"
    given = {"batch_size": 2, "shard_rows": 3}
    complete = stream(predictor, folder, whole, **given)
    commit = Place.commit

    def dying(place, at, write, note):
        if at == 2:
            raise KeyboardInterrupt
        return commit(place, at, write, note)

    with monkeypatch.context() as patch:
        patch.setattr(Place, "commit", dying)
        with pytest.raises(KeyboardInterrupt):
            stream(predictor, folder, out, **given)
    summary = stream(predictor, folder, out, resume=True, **given)
    assert summary.before == 6
    assert summary.damaged == complete.damaged
    assert len(summary.damaged) == 3
    assert out.read_bytes() == whole.read_bytes()


def test_another_batch_size_is_another_run_of_a_backbone(tmp_path, predictor, folder, monkeypatch):
    commit = Place.commit
    with monkeypatch.context() as patch:
        patch.setattr(Place, "commit", lambda *args: commit(*args) if args[1] == 0 else 1 / 0)
        with pytest.raises(ZeroDivisionError):
            stream(predictor, folder, tmp_path / "out.csv", batch_size=2, shard_rows=3)
    with pytest.raises(FileError, match="another setting"):
        stream(predictor, folder, tmp_path / "out.csv", batch_size=3, shard_rows=3, resume=True)


def test_a_backbone_that_gives_nan_names_the_image(tmp_path, predictor, folder):
    with torch.no_grad():
        predictor.model[0].bias.fill_(float("nan"))
    with pytest.raises(InputError, match=r"a.png.*NaN or infinite"):
        stream(predictor, folder, tmp_path / "out.csv")

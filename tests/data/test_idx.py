"""idx files: plain and gzipped, and what is wrong with them."""

import gzip
import struct
from pathlib import Path

import numpy as np
import pytest
import torch

from bndl import data
from bndl.errors import FileError, InputError

WHOLE = data.Holdout(val=0)


def write_idx(path: Path, values: np.ndarray) -> None:
    raw = bytes([0, 0, 8, values.ndim]) + struct.pack(f">{values.ndim}I", *values.shape) + values.tobytes()
    path.write_bytes(gzip.compress(raw) if path.suffix == ".gz" else raw)


def make(folder: Path, *, suffix: str = "", count: int = 40) -> Path:
    folder.mkdir(exist_ok=True)
    generator = np.random.default_rng(0)
    for part, size in (("train", count), ("t10k", 10)):
        images = generator.integers(0, 256, (size, 5, 4), dtype=np.uint8)
        write_idx(folder / f"{part}-images-idx3-ubyte{suffix}", images)
        write_idx(folder / f"{part}-labels-idx1-ubyte{suffix}", np.resize(np.arange(10, dtype=np.uint8), size))
    return folder


def test_images_and_labels(tmp_path: Path) -> None:
    found = data.load(make(tmp_path / "mnist"), holdout=WHOLE)
    assert isinstance(found, data.ArraySet)
    expected = np.random.default_rng(0).integers(0, 256, (40, 5, 4), dtype=np.uint8)
    assert torch.equal(found.inputs, torch.from_numpy(expected)[:, None])
    assert found.labels[:12].tolist() == [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 0, 1]
    assert found.classes == tuple("0123456789")


def test_gzip_reads_the_same(tmp_path: Path) -> None:
    plain, packed = make(tmp_path / "a"), make(tmp_path / "b", suffix=".gz")
    for split in ("train", "val", "test"):
        assert data.load(plain, split=split).fingerprint == data.load(packed, split=split).fingerprint


def test_fashion_is_told_by_its_folder(tmp_path: Path) -> None:
    make(tmp_path / "fashion-mnist")
    assert data.load("fashion-mnist", root=tmp_path, split="test").classes[9] == "ankle boot"


def test_labels_missing(tmp_path: Path) -> None:
    (make(tmp_path / "mnist") / "t10k-labels-idx1-ubyte").unlink()
    with pytest.raises(FileError, match="t10k-images-idx3-ubyte has no file of labels"):
        data.load(tmp_path / "mnist")


def test_label_count_must_match(tmp_path: Path) -> None:
    write_idx(make(tmp_path / "mnist") / "t10k-labels-idx1-ubyte", np.zeros(7, dtype=np.uint8))
    with pytest.raises(InputError, match=r"10 images but .* has 7 labels"):
        data.load(tmp_path / "mnist", split="test")


@pytest.mark.parametrize("suffix", ["", ".gz"])
@pytest.mark.parametrize("keep", [2, 7, 60])
def test_cut_short(tmp_path: Path, suffix: str, keep: int) -> None:
    path = make(tmp_path / "mnist", suffix=suffix) / f"train-images-idx3-ubyte{suffix}"
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(FileError, match=r"train-images-idx3-ubyte.* download it again"):
        data.load(tmp_path / "mnist")


def test_foreign_type(tmp_path: Path) -> None:
    path = make(tmp_path / "mnist") / "train-images-idx3-ubyte"
    path.write_bytes(bytes([0, 0, 13, 3]) + path.read_bytes()[4:])
    with pytest.raises(FileError, match="no idx file of unsigned bytes"):
        data.load(tmp_path / "mnist")

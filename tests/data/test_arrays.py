"""Arrays of features: npz, npy pairs and Parquet tables."""

import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from bndl import data
from bndl.errors import FileError, InputError, MissingExtraError

WHOLE = data.Holdout(val=0, test=0)
GENERATOR = np.random.default_rng(0)
X = GENERATOR.normal(size=(30, 6))
Y = np.resize(np.arange(3), 30)


def inputs(found: data.LabelledSet) -> torch.Tensor:
    assert isinstance(found, data.ArraySet)
    return found.inputs


def test_npz_features(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", X=X, y=Y)
    found = data.load(tmp_path / "a.npz", holdout=WHOLE)
    assert torch.equal(inputs(found), torch.from_numpy(X.astype(np.float32)))
    assert torch.equal(found.labels, torch.from_numpy(Y))
    assert found.classes == ("0", "1", "2")


def test_npy_pair_reads_the_same(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", features=X, labels=Y)
    folder = tmp_path / "pair"
    folder.mkdir()
    np.save(folder / "features.npy", X)
    np.save(folder / "labels.npy", Y[:, None])
    for split in ("train", "val", "test"):
        assert data.load(folder, split=split).fingerprint == data.load(tmp_path / "a.npz", split=split).fingerprint


@pytest.mark.parametrize("pattern", ["{stem}_{part}", "{part}_{stem}"])
def test_named_parts(tmp_path: Path, pattern: str) -> None:
    stored = {}
    for part, size in (("train", 30), ("test", 6)):
        stored[pattern.format(stem="x", part=part)] = X[:size]
        stored[pattern.format(stem="y", part=part)] = Y[:size]
    np.savez(tmp_path / "a.npz", **stored)
    assert len(data.load(tmp_path / "a.npz", split="test")) == 6
    assert len(data.load(tmp_path / "a.npz", split="val")) == 3


def test_string_labels_are_sorted_into_classes(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", X=X[:4], y=np.array(["owl", "ant", "owl", "bee"]))
    found = data.load(tmp_path / "a.npz", holdout=WHOLE)
    assert found.classes == ("ant", "bee", "owl")
    assert found.labels.tolist() == [2, 0, 2, 1]


def test_numbers_with_gaps_keep_their_names(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", X=X[:4], y=np.array([10, 2, 7, 2]))
    found = data.load(tmp_path / "a.npz", holdout=WHOLE)
    assert found.classes == ("2", "7", "10")
    assert found.labels.tolist() == [2, 0, 1, 0]


def test_class_names_in_the_file(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", X=X, y=Y, classes=np.array(["ant", "bee", "owl", "yak"]))
    assert data.load(tmp_path / "a.npz", holdout=WHOLE).classes == ("ant", "bee", "owl", "yak")


def test_test_label_that_train_lacks(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", x_train=X, y_train=Y, x_test=X[:2], y_test=np.array([0, 9]))
    with pytest.raises(InputError, match="label '9' that its training part"):
        data.load(tmp_path / "a.npz", split="test")


@pytest.mark.parametrize(
    ("dims", "expected"),
    [
        ((9, 5, 4), (9, 1, 5, 4)),
        ((9, 5, 4, 3), (9, 3, 5, 4)),
        ((9, 3, 5, 4), (9, 3, 5, 4)),
        ((9, 5, 4, 1), (9, 1, 5, 4)),
    ],
)
def test_images_are_brought_to_channels_first(tmp_path: Path, dims: tuple[int, ...], expected: tuple[int, ...]) -> None:
    images = GENERATOR.integers(0, 256, dims, dtype=np.uint8)
    np.savez(tmp_path / "a.npz", images=images, labels=Y[:9])
    found = inputs(data.load(tmp_path / "a.npz", holdout=WHOLE))
    assert found.size() == expected
    assert found.dtype == torch.uint8
    pixel = images[(2, 3, 1)] if len(dims) == 3 else (images[2, 1, 3, 1] if dims == expected else images[2, 3, 1, -1])
    assert int(found[2, 1 if dims == expected else -1, 3, 1]) == int(pixel)


@pytest.mark.parametrize(
    ("stored", "words"),
    [
        ({"X": X, "y": Y[:9]}, "30 examples but 9 labels"),
        ({"X": X, "y": np.zeros(30, int)}, "1 class"),
        ({"X": np.where(X > 2, np.nan, X), "y": Y}, "not finite"),
        ({"X": X * 1e300, "y": Y}, "not finite"),
        ({"X": X, "y": X[:, 0]}, "integers or strings, not float64"),
        ({"X": X, "y": np.eye(3)[Y]}, r"must have dims \(N,\), not \(30, 3\)"),
        ({"X": X[:, None], "y": Y}, r"not float64 \(30, 1, 6\)"),
        ({"X": X}, "'X' but no labels"),
        ({"foo": X, "bar": Y}, "bar, foo, none of which is known"),
        ({"X": X, "y": Y, "classes": np.array(["a", "b"])}, "from 0 to 2 but there are 2 classes"),
    ],
)
def test_wrong_arrays(tmp_path: Path, stored: dict[str, np.ndarray], words: str) -> None:
    np.savez(tmp_path / "a.npz", **stored)
    with pytest.raises(InputError, match=words):
        data.load(tmp_path / "a.npz", holdout=WHOLE)


def test_pickled_arrays_are_refused(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", X=X, y=np.array([{}, None] * 15, dtype=object))
    with pytest.raises(FileError, match=r"Array 'y' of .*a\.npz cannot be read .*allow_pickle"):
        data.load(tmp_path / "a.npz")


@pytest.mark.parametrize("keep", [0, 10, 900])
def test_cut_short(tmp_path: Path, keep: int) -> None:
    np.savez(tmp_path / "a.npz", X=X, y=Y)
    (tmp_path / "a.npz").write_bytes((tmp_path / "a.npz").read_bytes()[:keep])
    with pytest.raises(FileError, match=r"a\.npz is no readable"):
        data.load(tmp_path / "a.npz")


def test_single_npy(tmp_path: Path) -> None:
    np.save(tmp_path / "X.npy", X)
    with pytest.raises(InputError, match="half of a pair"):
        data.load(tmp_path / "X.npy")


def table(size: int = 30, **more: object) -> pa.Table:
    columns = {f"f{k}": X[:size, k] for k in range(6)}
    return pa.table({**columns, "label": [("ant", "bee", "owl")[y] for y in Y[:size]], **more})


def test_parquet_columns(tmp_path: Path) -> None:
    pq.write_table(table(), tmp_path / "a.parquet", row_group_size=7)
    found = data.load(tmp_path / "a.parquet", holdout=WHOLE)
    assert torch.equal(inputs(found), torch.from_numpy(X.astype(np.float32)))
    assert found.labels.tolist() == Y.tolist()
    assert found.classes == ("ant", "bee", "owl")


@pytest.mark.parametrize("kind", [pa.list_(pa.float64()), pa.list_(pa.float32(), 6)])
def test_parquet_list_column(tmp_path: Path, kind: pa.DataType) -> None:
    lists = pa.table({"embedding": pa.array(X.tolist(), kind), "species": Y})
    pq.write_table(lists, tmp_path / "a.parquet", row_group_size=7)
    found = data.load(tmp_path / "a.parquet", holdout=WHOLE, reading=data.Reading(label="species"))
    assert torch.equal(inputs(found), torch.from_numpy(X.astype(np.float32)))


def test_parquet_folder_of_shards(tmp_path: Path) -> None:
    pq.write_table(table(), tmp_path / "train-00000-of-00002.parquet")
    pq.write_table(table(12), tmp_path / "train-00001-of-00002.parquet")
    reordered = table(3).select(["label", *(f"f{k}" for k in reversed(range(6)))])
    pq.write_table(reordered, tmp_path / "validation.parquet")
    splits = data.load_splits(tmp_path)
    assert splits.val is not None
    assert (len(splits.train), len(splits.val), splits.test) == (42, 3, None)
    assert torch.equal(inputs(splits.val), inputs(splits.train)[:3])  # columns are matched by name


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (table().drop(["label"]), "no label column 'label'; .*: f0, f1"),
        (table(note=["x"] * 30), "Column 'note' .* is string, no number"),
        (table(f9=[None] + [1.0] * 29), "Column 'f9' .* 1 missing"),
        (table().select(["label"]), "no column but the label"),
        (pa.table({"e": [[1.0], [1.0, 2.0]], "label": [0, 1]}), "equally long"),
        (pa.table({"f": [1.0, 2.0], "label": [None, 1]}), "Label column .* 1 missing"),
    ],
)
def test_wrong_tables(tmp_path: Path, content: pa.Table, words: str) -> None:
    pq.write_table(content, tmp_path / "a.parquet")
    with pytest.raises(InputError, match=words):
        data.load(tmp_path / "a.parquet", holdout=WHOLE)


def test_parquet_part_lacks_a_column(tmp_path: Path) -> None:
    pq.write_table(table(), tmp_path / "train.parquet")
    pq.write_table(table().drop(["f3"]), tmp_path / "test.parquet")
    with pytest.raises(InputError, match="no column 'f3'"):
        data.load(tmp_path, split="test")


def test_damaged_parquet(tmp_path: Path) -> None:
    pq.write_table(table(), tmp_path / "a.parquet")
    (tmp_path / "a.parquet").write_bytes((tmp_path / "a.parquet").read_bytes()[:-20])
    with pytest.raises(FileError, match="no readable Parquet table"):
        data.load(tmp_path / "a.parquet")


def test_without_pyarrow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pq.write_table(table(), tmp_path / "a.parquet")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(MissingExtraError, match=r"bndl\[data\]"):
        data.load(tmp_path / "a.parquet")

"""What can be read, and what is said of what cannot."""

import os

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from bndl.errors import FileError, InputError
from bndl.stream.source import cut, files_below, open_source

N, K = 50, 6


@pytest.fixture
def features():
    return np.random.default_rng(0).normal(size=(N, K)).astype(np.float32)


def read(source, *, start=0, shard=20, size=7):
    """All inputs, names and bounds from a shard's start on."""
    batches = list(source.batches(cut(start, source.count, shard=shard, size=size)))
    names = [name for batch in batches if batch.names is not None for name in pa.array(batch.names).to_pylist()]
    return torch.cat([batch.inputs for batch in batches]).numpy(), names, [batch.bounds for batch in batches]


def lists(features, kind):
    flat = pa.array(features.ravel())
    if kind == "fixed":
        return pa.FixedSizeListArray.from_arrays(flat, K)
    offsets = range(0, features.size + 1, K)
    return (pa.ListArray if kind == "list" else pa.LargeListArray).from_arrays(offsets, flat)


def test_batches_are_cut_within_shards():
    assert list(cut(20, 50, shard=20, size=15)) == [(20, 35), (35, 40), (40, 50)]


@pytest.mark.parametrize("start", [0, 20, 40])
@pytest.mark.parametrize("dtype", ["<f4", "<f8", "<f2", ">f4", "<i4", "|u1", "|b1"])
@pytest.mark.parametrize("order", ["C", "F"])
def test_npy_of_every_kind_of_number(tmp_path, features, start, dtype, order):
    values = np.array((features * 10).astype(dtype), order=order)
    np.save(tmp_path / "x.npy", values)
    found, names, bounds = read(open_source(tmp_path / "x.npy", in_features=K), start=start)
    assert np.array_equal(found, values[start:].astype(np.float64))
    assert found.dtype.kind == "f"
    assert not names
    assert bounds[0][0] == start


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
@pytest.mark.parametrize("start", [0, 40])
def test_npz_stored_or_packed_finds_the_features(tmp_path, features, save, start):
    save(tmp_path / "x.npz", y=np.arange(N), X=features, other=np.zeros((3, 3)))
    found, _, _ = read(open_source(tmp_path / "x.npz", in_features=K), start=start)
    assert np.array_equal(found, features[start:])


@pytest.mark.parametrize("kind", ["fixed", "list", "large"])
@pytest.mark.parametrize("group", [3, 1000])
@pytest.mark.parametrize("start", [0, 20, 40])
def test_parquet_with_a_column_of_lists_among_others(tmp_path, features, kind, group, start):
    table = pa.table({"id": [f"n{i}" for i in range(N)], "vec": lists(features, kind), "label": list(range(N))})
    pq.write_table(table, tmp_path / "x.parquet", row_group_size=group)
    found, names, _ = read(open_source(tmp_path / "x.parquet", in_features=K), start=start)
    assert np.array_equal(found, features[start:])
    assert not names


@pytest.mark.parametrize("label", [False, True])
def test_parquet_with_a_column_a_feature(tmp_path, features, label):
    columns = {f"f{k}": features[:, k] for k in range(K)} | ({"label": np.arange(N)} if label else {})
    pq.write_table(pa.table(columns), tmp_path / "x.parquet")
    assert np.array_equal(read(open_source(tmp_path / "x.parquet", in_features=K))[0], features)


@pytest.mark.parametrize("start", [0, 20])
def test_a_folder_of_parquet_is_one_source_with_names(tmp_path, features, start):
    (tmp_path / "deep").mkdir()
    bounds = {"a.parquet": (0, 13), "b.parquet": (13, 13), "deep/a.parquet": (13, 45), "z.pq": (45, N)}
    for name, (low, high) in bounds.items():
        pq.write_table(pa.table({"features": lists(features[low:high], "list")}), tmp_path / name, row_group_size=5)
    found, names, _ = read(open_source(tmp_path, in_features=K), start=start)
    assert np.array_equal(found, features[start:])
    wanted = [f"{name}:{row}" for name, (low, high) in bounds.items() for row in range(high - low)]
    assert names == wanted[start:]


def test_files_are_found_at_any_depth_without_hidden_ones_or_going_in_circles(tmp_path):
    for name in ("b.PNG", "a/z.jpg", "a.jpg", ".hidden.jpg", ".cache/x.jpg", "__MACOSX/a.jpg", "notes.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / "a" / "loop").symlink_to(tmp_path)
    assert files_below(tmp_path, (".jpg", ".png")) == ["a.jpg", "a/z.jpg", "b.PNG"]


def test_a_source_that_changed_has_another_fingerprint(tmp_path, features):
    path = tmp_path / "x.npy"
    np.save(path, features)
    before = open_source(path, in_features=K).fingerprint()
    assert open_source(path, in_features=K).fingerprint() == before
    os.utime(path, ns=(0, 0))
    assert open_source(path, in_features=K).fingerprint() != before


BAD_ARRAYS = {
    "wide": (np.zeros((4, K + 1), np.float32), "has 7 features a row, but the model takes 6"),
    "flat": (np.zeros(4, np.float32), "must be numbers of dims"),
    "deep": (np.zeros((4, 2, 3), np.float32), "must be numbers of dims"),
    "text": (np.array([["a"] * K]), "must be numbers of dims"),
    "complex": (np.zeros((4, K), np.complex64), "must be numbers of dims"),
    "empty": (np.zeros((0, K), np.float32), "is empty"),
}


@pytest.mark.parametrize(("values", "words"), BAD_ARRAYS.values(), ids=BAD_ARRAYS)
def test_an_array_that_does_not_fit_is_refused(tmp_path, values, words):
    np.save(tmp_path / "x.npy", values)
    with pytest.raises(InputError, match=words):
        assert open_source(tmp_path / "x.npy", in_features=K).count


@pytest.mark.parametrize("name", ["x.npy", "x.npz", "x.parquet"])
@pytest.mark.parametrize("content", [b"", b"nonsense", b"\x93NUMPY\x01\x00v\x00"])
def test_a_damaged_file_is_said_to_be(tmp_path, name, content):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(FileError, match=name):
        assert open_source(tmp_path / name, in_features=K).count


@pytest.mark.parametrize("save", [np.save, np.savez_compressed])
def test_a_file_that_was_cut_off_is_said_to_be(tmp_path, save):
    path = tmp_path / ("x.npy" if save is np.save else "x.npz")
    save(path, np.random.default_rng(0).normal(size=(N, K)))
    source = open_source(path, in_features=K)
    assert source.count == N
    path.write_bytes(path.read_bytes()[: 200 + N])
    with pytest.raises(FileError, match=path.name):
        read(source)


def test_objects_are_never_unpickled(tmp_path):
    np.save(tmp_path / "x.npy", np.array([[{}] * K], dtype=object), allow_pickle=True)
    with pytest.raises(FileError, match=r"x\.npy"):
        assert open_source(tmp_path / "x.npy", in_features=K).count


def parquet_faults(features):
    ragged = [row.tolist() for row in features]
    ragged[33] = ragged[33][:-1]
    holed = [row.tolist() for row in features]
    holed[17][2] = None
    absent = [row.tolist() for row in features]
    absent[41] = None
    wide = {f"f{k}": features[:, 0] for k in range(K + 2)}
    two = {"a": lists(features, "list"), "b": lists(features, "list")}
    return [
        ({"v": ragged}, "row 33 of x.parquet has 5 features, but the model takes 6"),
        ({"v": holed}, "row 17 of x.parquet has a missing value"),
        ({"v": absent}, "row 41 of x.parquet has no value in column 'v'"),
        ({"v": pa.FixedSizeListArray.from_arrays(pa.array(features.ravel()), 2)}, "has 2 features a row"),
        (wide, "has 8 columns of numbers and none of lists"),
        (two, "several columns of lists"),
        ({"v": pa.array([], pa.list_(pa.float32()))}, "is empty"),
    ]


@pytest.mark.parametrize("fault", range(7))
def test_parquet_that_does_not_fit_is_refused_and_the_row_named(tmp_path, features, fault):
    columns, words = parquet_faults(features)[fault]
    pq.write_table(pa.table(columns), tmp_path / "x.parquet", row_group_size=8)
    with pytest.raises(InputError, match=words):
        read(open_source(tmp_path / "x.parquet", in_features=K))


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda folder: (folder / "x.txt").touch() or "x.txt", "cannot tell what x.txt is"),
        (lambda folder: "absent.npy", "there is no"),
        (lambda folder: "", "holds no image and no Parquet"),
        (lambda folder: [(folder / n).touch() for n in ("a.png", "b.parquet")] and "", "images .* and Parquet"),
        (lambda folder: (folder / "a.png").touch() or "a.png", "takes features"),
        (lambda folder: (folder / "a.png").touch() or "", "takes features"),
    ],
)
def test_what_is_no_source_is_said_to_be_none(tmp_path, make, words):
    with pytest.raises((InputError, FileError), match=words):
        open_source(tmp_path / make(tmp_path), in_features=K)


def test_several_matrices_in_an_archive_must_be_told_apart(tmp_path, features):
    np.savez(tmp_path / "x.npz", a=features, b=features)
    with pytest.raises(InputError, match="holds a, b"):
        assert open_source(tmp_path / "x.npz", in_features=K).count
    np.savez(tmp_path / "x.npz", a=np.asfortranarray(features))
    with pytest.raises(InputError, match="stored by columns"):
        assert open_source(tmp_path / "x.npz", in_features=K).count


@pytest.mark.parametrize("width", [None, K // 2, 2 * K])
def test_files_whose_columns_differ_are_refused(tmp_path, features, width):
    """A number or a longer list in a later file would be read as other features than it holds."""
    pq.write_table(pa.table({"features": lists(features, "fixed")}), tmp_path / "a.parquet")
    flat = pa.array(np.ones(4 * K, np.float32))
    other = flat if width is None else pa.FixedSizeListArray.from_arrays(flat, width)
    pq.write_table(pa.table({"features": other}), tmp_path / "b.parquet")
    with pytest.raises(
        InputError, match=r"column 'features' of .*b\.parquet holds .*, that of a\.parquet .*: write it alike"
    ):
        _ = open_source(tmp_path, in_features=K).count


def test_an_archive_under_the_name_of_an_array(tmp_path, features):
    np.savez(tmp_path / "x.npz", features)
    (tmp_path / "x.npz").rename(tmp_path / "x.npy")
    with pytest.raises(FileError, match=r"x\.npy is an \.npz file under another name: rename it"):
        _ = open_source(tmp_path / "x.npy", in_features=K).count

"""CIFAR files: what the official ones may look like is read, anything else is refused in a sentence."""

import io
import os
import pickle
import tarfile
from pathlib import Path

import numpy as np
import pytest
import torch
from layouts import PER_BATCH, cifar_record, write_pickle

from bndl import data
from bndl.errors import FileError, InputError

WHOLE = data.Holdout(val=0)


def pack(folder: Path, target: Path) -> Path:
    with tarfile.open(target, "w:gz") as archive:
        archive.add(folder, folder.name)
    return target


def test_batches_are_joined_in_order(cifar10: Path) -> None:
    found = data.load(cifar10, holdout=WHOLE)
    assert isinstance(found, data.ArraySet)
    expected = np.concatenate([np.asarray(cifar_record(number)[b"data"]) for number in range(1, 6)])
    assert torch.equal(found.inputs, torch.from_numpy(expected.reshape(-1, 3, 32, 32)))
    assert found.labels.tolist() == list(range(10)) * (5 * PER_BATCH // 10)
    assert found.classes == tuple(f"class {c}" for c in range(10))


def test_archive_reads_the_same_as_the_folder(cifar10: Path, cifar100: Path, tmp_path: Path) -> None:
    for folder in (cifar10, cifar100):
        archive = pack(folder, tmp_path / f"{folder.name}.tar.gz")
        for split in ("train", "val", "test"):
            assert data.load(archive, split=split).fingerprint == data.load(folder, split=split).fingerprint


def test_cifar100_uses_fine_labels(cifar100: Path) -> None:
    found = data.load(cifar100, split="test")
    assert found.name == "cifar100"
    assert found.classes == tuple(f"fine {c}" for c in range(5))


def python2_pickle(record: dict[bytes, object]) -> bytes:
    """Protocol 2 as Python 2 wrote it: byte strings as BINSTRING and numpy's old module name."""
    images = np.asarray(record[b"data"])
    raw, labels = images.tobytes(), record[b"labels"]
    assert isinstance(labels, list)

    def string(text: bytes) -> bytes:
        return b"T" + len(text).to_bytes(4, "little") + text

    def integer(value: int) -> bytes:
        return b"J" + value.to_bytes(4, "little", signed=True)

    array = b"cnumpy.core.multiarray\n_reconstruct\n" + b"cnumpy\nndarray\n" + integer(0) + b"\x85" + string(b"b")
    array += b"\x87R" + b"(" + integer(1) + integer(len(images)) + integer(3072) + b"\x86"
    array += b"cnumpy\ndtype\n" + string(b"u1") + integer(0) + integer(1) + b"\x87R"
    array += b"(" + integer(3) + string(b"|") + b"NNN" + integer(-1) + integer(-1) + integer(0) + b"tb"
    array += b"\x89" + string(raw) + b"tb"
    numbers = b"](" + b"".join(integer(label) for label in labels) + b"e"
    return b"\x80\x02}(" + string(b"data") + array + string(b"labels") + numbers + b"u."


def test_python2_pickles_are_read(cifar10: Path) -> None:
    before = data.load(cifar10, split="test").fingerprint
    raw = python2_pickle(cifar_record(6))
    assert b"numpy.core.multiarray" in raw
    (cifar10 / "test_batch").write_bytes(raw)
    assert data.load(cifar10, split="test").fingerprint == before


@pytest.mark.parametrize("protocol", range(5))
def test_any_protocol_and_text_keys_are_read(cifar10: Path, protocol: int) -> None:
    before = data.load(cifar10, split="test").fingerprint
    record = {key.decode(): value for key, value in cifar_record(6).items()}
    write_pickle(cifar10 / "test_batch", record, protocol)
    assert data.load(cifar10, split="test").fingerprint == before


class Attack:
    def __init__(self, target: Path) -> None:
        self.target = target

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.system, (f"touch {self.target}",)


@pytest.mark.parametrize("archived", [False, True])
def test_malicious_pickle_is_refused_and_not_run(cifar10: Path, tmp_path: Path, archived: bool) -> None:
    target = tmp_path / "owned"
    write_pickle(cifar10 / "test_batch", {b"data": Attack(target), b"labels": []})
    path = pack(cifar10, tmp_path / "c.tar.gz") if archived else cifar10
    with pytest.raises(FileError, match=r"test_batch was refused: it would run posix\.system"):
        data.load(path, split="test")
    assert not target.exists()


@pytest.mark.parametrize("module", ["builtins\neval", "numpy\nload", "numpy.core.multiarray\nfromfile", "bndl\nload"])
def test_every_other_global_is_refused(cifar10: Path, module: str) -> None:
    (cifar10 / "test_batch").write_bytes(f"c{module}\n(S'1'\ntR.".encode())
    with pytest.raises(FileError, match="was refused"):
        data.load(cifar10, split="test")


@pytest.mark.parametrize("keep", [0.01, 0.5, 0.99])
def test_truncated_archive(cifar10: Path, tmp_path: Path, keep: float) -> None:
    archive = pack(cifar10, tmp_path / "cifar-10-python.tar.gz")
    raw = archive.read_bytes()
    archive.write_bytes(raw[: int(len(raw) * keep)])
    with pytest.raises(FileError, match=r"cifar-10-python\.tar\.gz is (damaged or cut short|incomplete)"):
        data.load_splits(archive)


def test_truncated_pickle(cifar10: Path) -> None:
    raw = (cifar10 / "data_batch_3").read_bytes()
    (cifar10 / "data_batch_3").write_bytes(raw[:-100])
    with pytest.raises(FileError, match="data_batch_3 is damaged"):
        data.load(cifar10)


def test_missing_batch(cifar10: Path) -> None:
    (cifar10 / "data_batch_3").unlink()
    with pytest.raises(FileError, match="data_batch_3 is missing"):
        data.load(cifar10)


def test_label_count_must_match(cifar10: Path) -> None:
    write_pickle(cifar10 / "test_batch", cifar_record(6) | {b"labels": [1, 2]})
    with pytest.raises(InputError, match="20 images but 2 labels"):
        data.load(cifar10, split="test")


def test_label_out_of_range(cifar10: Path) -> None:
    write_pickle(cifar10 / "test_batch", cifar_record(6) | {b"labels": [10] * PER_BATCH})
    with pytest.raises(InputError, match="from 10 to 10 but there are 10 classes"):
        data.load(cifar10, split="test")


@pytest.mark.parametrize(
    "change",
    [{b"data": b"text"}, {b"data": np.zeros((20, 3072))}, {b"labels": ["a"] * 20}, {b"labels": [[1], [2, 3]]}],
)
def test_foreign_content(cifar10: Path, change: dict[bytes, object]) -> None:
    write_pickle(cifar10 / "test_batch", cifar_record(6) | change)
    with pytest.raises(FileError, match="it is no CIFAR file"):
        data.load(cifar10, split="test")


def test_foreign_archive(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "other.tar.gz", "w:gz") as archive:
        archive.addfile(tarfile.TarInfo("readme.txt"), io.BytesIO())
    with pytest.raises(FileError, match="neither CIFAR-10 nor CIFAR-100"):
        data.load(tmp_path / "other.tar.gz")


def test_pickles_of_this_numpy_name_its_module() -> None:
    """Guards the claim that both module names are covered: numpy 2 writes the new one, the test above the old."""
    assert b"numpy._core.multiarray" in pickle.dumps(np.zeros(1)) or np.__version__ < "2"


@pytest.mark.reference
@pytest.mark.parametrize(("name", "count", "first"), [("cifar10", 10, "airplane"), ("cifar100", 100, "apple")])
def test_real_cifar(reference_data: Path, name: str, count: int, first: str) -> None:
    splits = data.load_splits(name, root=reference_data)
    assert splits.val is not None
    assert splits.test is not None
    for part, per_class in ((splits.train, 45_000), (splits.val, 5_000), (splits.test, 10_000)):
        assert part.labels.bincount().tolist() == [per_class // count] * count
    assert splits.train.classes[0] == first
    assert len(set(splits.train.classes)) == count
    image, _ = splits.test[0]
    assert image.size() == (3, 32, 32)
    assert image.dtype == torch.uint8

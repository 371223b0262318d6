"""One entrance: names, paths, carving, suggestions; and what importing it costs."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from bndl import data
from bndl.errors import FileError, InputError, MissingExtraError

SMALL = data.Reading(size=8)


def test_importing_is_light() -> None:
    code = "import sys, bndl.data; print([m for m in ('sklearn', 'PIL', 'pyarrow', 'datasets') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_digits() -> None:
    splits = data.load_splits("digits")
    assert splits.val is not None
    assert splits.test is not None
    assert len(splits.train) + len(splits.val) + len(splits.test) == 1797
    assert len(splits.val) == pytest.approx(180, abs=5)
    assert len(splits.test) == pytest.approx(359, abs=5)
    image, label = splits.train[0]
    assert (image.size(), image.dtype) == ((1, 8, 8), torch.uint8)
    assert splits.train.classes[label] == str(label)
    assert isinstance(splits.train, data.ArraySet)
    assert int(splits.train.inputs.max()) == 255


def test_digits_without_sklearn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    with pytest.raises(MissingExtraError, match=r"bndl\[sklearn\]"):
        data.load("digits")


def test_load_gives_what_load_splits_gives_and_the_seed_matters() -> None:
    splits = data.load_splits("digits", holdout=data.Holdout(seed=1))
    for split, part in (("train", splits.train), ("val", splits.val), ("test", splits.test)):
        assert part is not None
        assert data.load("digits", split=split, holdout=data.Holdout(seed=1)).fingerprint == part.fingerprint
    assert data.load("digits").fingerprint != splits.train.fingerprint


def test_named_sets_are_found_below_the_root(cifar10: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    direct = data.load(cifar10, split="test").fingerprint
    assert data.load("cifar10", split="test", root=cifar10.parent).fingerprint == direct
    monkeypatch.setenv("BNDL_DATA", str(cifar10.parent))
    assert data.load("cifar10", split="test").fingerprint == direct
    monkeypatch.delenv("BNDL_DATA")
    monkeypatch.chdir(cifar10.parent)
    assert data.load("cifar10", split="test").fingerprint == direct


def test_named_set_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(FileError, match=r"cifar10 was not found in .*cifar-10-batches-py there .*toronto.*BNDL_DATA"):
        data.load("cifar10", root=tmp_path)


def test_validation_is_carved_out_of_train_and_never_out_of_test(cifar10: Path) -> None:
    splits = data.load_splits(cifar10, holdout=data.Holdout(val=0.2))
    assert splits.val is not None
    assert splits.test is not None
    assert (len(splits.train), len(splits.val), len(splits.test)) == (80, 20, 20)
    rows = [{x.numpy().tobytes() for x, _ in part} for part in (splits.train, splits.val, splits.test)]
    assert not rows[0] & rows[1]
    assert not rows[2] & (rows[0] | rows[1])


def test_nothing_is_carved_when_not_wanted(cifar10: Path) -> None:
    whole = data.Holdout(val=0)
    assert len(data.load(cifar10, holdout=whole)) == 100
    assert data.load_splits(cifar10, holdout=whole).plan is None
    with pytest.raises(InputError, match="stores train, test but no val part; hold out more than 0"):
        data.load(cifar10, split="val", holdout=whole)


def test_val_without_test(image_folder: Callable[..., Path]) -> None:
    root = image_folder("train", "val", count=10)
    with pytest.raises(InputError, match="stores train, val but no test part; take val, or set val_as_test"):
        data.load(root, split="test", reading=SMALL)
    splits = data.load_splits(root, reading=SMALL, holdout=data.Holdout(val_as_test=True))
    assert isinstance(splits.test, data.FolderSet)
    assert isinstance(splits.val, data.FolderSet)
    assert (splits.test.root.name, splits.val.root.name) == ("val", "train")
    assert (len(splits.train), len(splits.val), len(splits.test)) == (18, 2, 20)


def test_a_written_plan_gives_the_same_parts(cifar10: Path, cifar100: Path) -> None:
    first = data.load_splits(cifar10, holdout=data.Holdout(val=0.2, seed=9))
    assert first.plan is not None
    plan = data.SplitPlan.from_json(json.loads(json.dumps(first.plan.to_json())))
    again = data.load_splits(cifar10, plan=plan)
    assert again.val is not None
    assert first.val is not None
    assert again.val.fingerprint == first.val.fingerprint
    assert again.train.fingerprint == first.train.fingerprint
    with pytest.raises(InputError, match="made for 100 other examples than these 20"):
        data.load_splits(cifar100, plan=plan)


def test_a_plan_may_not_replace_a_stored_part(cifar10: Path) -> None:
    labels = data.load(cifar10, holdout=data.Holdout(val=0)).labels
    plan = data.stratified_split(labels, {"val": 0.1, "test": 0.2})
    with pytest.raises(InputError, match="carves test out of train, but cifar10 stores it"):
        data.load_splits(cifar10, plan=plan)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ("cifar-10", "did you mean cifar10"),
        ("digit", "did you mean digits"),
        ("owner/birds", "did you mean hf:owner/birds"),
        ("nothing-like-it", r"nor a path \(Names: digits, cifar10, .*Parquet"),
    ],
)
def test_unknown_names(given: str, words: str) -> None:
    with pytest.raises(FileError, match=words):
        data.load(given)


def test_misspelt_path(cifar10: Path) -> None:
    with pytest.raises(FileError, match=f"did you mean {cifar10}"):
        data.load(cifar10.parent / "cifar-10-batch-py")


def test_the_folder_above(cifar10: Path) -> None:
    with pytest.raises(InputError, match=f"no data set that is understood; did you mean {cifar10}"):
        data.load(cifar10.parent)


def test_foreign_file(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("hello")
    with pytest.raises(InputError, match="no data set that is understood"):
        data.load(tmp_path / "notes.txt")


def test_a_path_is_never_a_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(FileError, match="neither a known data set nor a path"):
        data.load(Path("digits"))


def test_unknown_split() -> None:
    with pytest.raises(InputError, match="no split 'tset'; take one of train, val, test"):
        data.load("digits", split="tset")


def test_resize_smaller_than_the_crop() -> None:
    with pytest.raises(InputError, match="resized to 4 cannot be cropped to 8"):
        data.Reading(size=8, resize=4)


def test_fingerprint_sees_every_change() -> None:
    labels, inputs = torch.tensor([0, 1, 1]), torch.arange(12.0).reshape(3, 4)
    first = data.ArraySet("a", labels, ("x", "y"), inputs)
    assert data.ArraySet("renamed", labels, ("x", "y"), inputs.clone()).fingerprint == first.fingerprint
    others = [
        data.ArraySet("a", labels, ("x", "z"), inputs),
        data.ArraySet("a", torch.tensor([0, 1, 0]), ("x", "y"), inputs),
        data.ArraySet("a", labels, ("x", "y"), inputs + torch.eye(3, 4) * 1e-6),
        data.ArraySet("a", labels, ("x", "y"), inputs.reshape(3, 2, 2)),
        first.subset([0, 2, 1]),
    ]
    assert len({first.fingerprint, *(other.fingerprint for other in others)}) == 6


def test_subset_keeps_order_and_classes() -> None:
    found = data.load("digits")
    part = found.subset([5, 1])
    assert part.classes == found.classes
    assert torch.equal(part[0][0], found[5][0])
    assert part[1][1] == found[1][1]

"""Class folders: layouts, decoding, damage and the sentences for what is wrong."""

import logging
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from layouts import write_image
from PIL import Image

from bndl import data
from bndl.data.images import decode
from bndl.errors import FileError, InputError, MissingExtraError

Make = Callable[..., Path]
SMALL = data.Reading(size=8)
WHOLE = data.Holdout(val=0, test=0)


def damage(path: Path) -> None:
    raw = path.read_bytes()
    path.write_bytes(raw[: len(raw) - 12])


def test_stored_parts_are_kept_apart(image_folder: Make) -> None:
    root = image_folder("train", "val", "test")
    for split in ("train", "val", "test"):
        found = data.load(root, split=split, reading=SMALL)
        assert isinstance(found, data.FolderSet)
        assert found.root == root / split
        assert found.labels.tolist() == [0] * 4 + [1] * 4
        assert found.classes == ("cat", "dog")


def test_flat_folder_is_carved(image_folder: Make) -> None:
    splits = data.load_splits(image_folder(count=10), reading=SMALL)
    assert splits.val is not None
    assert splits.test is not None
    assert [len(part) for part in (splits.train, splits.val, splits.test)] == [14, 2, 4]


def test_images_are_decoded_when_asked_for(image_folder: Make) -> None:
    found = data.load(image_folder("train"), reading=SMALL, holdout=WHOLE)
    image, label = found[5]
    assert (image.size(), image.dtype, label) == ((3, 8, 8), torch.uint8, 1)
    assert torch.allclose(image.float().mean((1, 2)), torch.tensor([200.0, 10.0, 30.0]), atol=3)


def test_shapes_batch_in_a_loader(image_folder: Make) -> None:
    found = data.load(image_folder("train"), reading=SMALL, holdout=WHOLE).transformed(data.as_float)
    images, labels = next(iter(torch.utils.data.DataLoader(found, batch_size=8)))
    assert images.size() == (8, 3, 8, 8)
    assert images.dtype == torch.float32
    assert float(images.max()) <= 1
    assert labels.dtype == torch.int64


@pytest.mark.parametrize("mode", ["RGB", "L", "RGBA", "P", "CMYK", "1", "LA"])
def test_every_mode_becomes_rgb(tmp_path: Path, mode: str) -> None:
    path = tmp_path / "image.tif"
    Image.new("RGB", (10, 12), (255, 255, 255)).convert(mode).save(path)
    assert torch.equal(decode(path, size=4), torch.full((3, 4, 4), 255, dtype=torch.uint8))


def test_sixteen_bits_are_scaled_not_clipped(tmp_path: Path) -> None:
    Image.fromarray(np.full((6, 6), 0x8000, dtype=np.uint16)).save(tmp_path / "deep.png")
    assert torch.equal(decode(tmp_path / "deep.png", size=4), torch.full((3, 4, 4), 0x80, dtype=torch.uint8))


def test_orientation_tag_is_obeyed(tmp_path: Path) -> None:
    pixels = np.zeros((8, 8, 3), dtype=np.uint8)
    pixels[:4] = 255  # stored: the upper half is white
    exif = Image.Exif()
    exif[0x0112] = 3  # taken upside down
    Image.fromarray(pixels).save(tmp_path / "turned.png", exif=exif)
    image = decode(tmp_path / "turned.png", size=8)
    assert int(image[:, 6:].min()) == 255
    assert int(image[:, :2].max()) == 0


def test_crop_is_resize_then_centre(tmp_path: Path) -> None:
    ramp = np.tile(np.linspace(0, 255, 120, dtype=np.uint8), (60, 1))
    image = Image.fromarray(np.stack([ramp] * 3, 2))
    image.save(tmp_path / "ramp.png")
    plain = image.resize((80, 40), Image.Resampling.BILINEAR).crop((24, 4, 56, 36))
    ours = decode(tmp_path / "ramp.png", size=32, resize=40)
    assert int((ours.int() - torch.from_numpy(np.array(plain)).permute(2, 0, 1).int()).abs().max()) <= 2


def test_damaged_images_are_listed_and_skipped(image_folder: Make, caplog: pytest.LogCaptureFixture) -> None:
    root = image_folder("train")
    damage(root / "train/cat/1.jpg")
    (root / "train/dog/2.jpg").write_bytes(b"not an image")
    (root / "train/dog/3.jpg").write_bytes(b"")
    with caplog.at_level(logging.WARNING):
        found = data.load(root, reading=SMALL, holdout=WHOLE)
    assert isinstance(found, data.FolderSet)
    assert [entry.path for entry in found.damaged] == ["cat/1.jpg", "dog/2.jpg", "dog/3.jpg"]
    assert all(entry.reason for entry in found.damaged)
    assert found.labels.tolist() == [0, 0, 0, 1, 1]
    assert "skipped 3 of 8 images" in caplog.text
    assert all(found[index][0].size() == (3, 8, 8) for index in range(len(found)))


def test_strict_refuses_damaged_images(image_folder: Make) -> None:
    root = image_folder("train")
    damage(root / "train/cat/1.jpg")
    with pytest.raises(FileError, match=r"1 of 8 images .* first is cat/1\.jpg .*truncated"):
        data.load(root, reading=data.Reading(size=8, strict=True))


def test_unverified_damage_is_an_error_when_met(image_folder: Make) -> None:
    root = image_folder("train")
    damage(root / "train/cat/1.jpg")
    found = data.load(root, reading=data.Reading(size=8, verify=False), holdout=WHOLE)
    assert len(found) == 8
    with pytest.raises(FileError, match=r"cat/1\.jpg cannot be decoded"):
        found[1]


def test_class_with_only_damaged_images(image_folder: Make) -> None:
    root = image_folder("train", count=1)
    damage(root / "train/dog/0.jpg")
    with pytest.raises(InputError, match="All images of class 'dog'"):
        data.load(root, reading=SMALL)


def test_one_class(image_folder: Make) -> None:
    with pytest.raises(InputError, match=r"one class \('cat'\) but a classifier needs at least two"):
        data.load(image_folder("train", classes=("cat",)), reading=SMALL)


def test_empty_class(image_folder: Make) -> None:
    root = image_folder("train")
    (root / "train/eel").mkdir()
    with pytest.raises(InputError, match="eel holds no images"):
        data.load(root, reading=SMALL)


def test_no_images(tmp_path: Path) -> None:
    for label in ("cat", "dog"):
        (tmp_path / "train" / label).mkdir(parents=True)
    with pytest.raises(InputError, match="class folders but no images"):
        data.load(tmp_path, reading=SMALL)


def test_images_without_class_folders(tmp_path: Path) -> None:
    write_image(tmp_path / "train" / "0.jpg", (0, 0, 0))
    with pytest.raises(InputError, match="has no class folders"):
        data.load(tmp_path, reading=SMALL)


def test_class_that_train_does_not_have(image_folder: Make) -> None:
    root = image_folder("train")
    write_image(root / "test/eel/0.jpg", (0, 0, 0))
    with pytest.raises(InputError, match="class 'eel' that the train folder does not have"):
        data.load(root, split="test", reading=SMALL)


def test_part_without_some_class_keeps_the_numbers_of_train(image_folder: Make) -> None:
    root = image_folder("train")
    write_image(root / "test/dog/0.jpg", (0, 0, 0))
    assert data.load(root, split="test", reading=SMALL).labels.tolist() == [1]


def test_part_without_train(image_folder: Make) -> None:
    with pytest.raises(InputError, match="has test but no train folder"):
        data.load(image_folder("test"), split="test", reading=SMALL)


def test_hidden_and_foreign_files_are_ignored(image_folder: Make) -> None:
    root = image_folder("train")
    (root / "train/cat/._0.jpg").write_bytes(b"resource fork")
    (root / "train/cat/notes.txt").write_text("hello")
    assert len(data.load(root, reading=data.Reading(size=8, strict=True), holdout=WHOLE)) == 8


def test_a_class_may_begin_with_underscores(image_folder: Make) -> None:
    root = image_folder("train")
    (root / "train/cat").rename(root / "train/__cat")
    (root / "train/__MACOSX").mkdir()
    assert "__cat" in data.load(root, reading=SMALL, holdout=WHOLE).classes


def test_fingerprint_follows_content_not_place(image_folder: Make, tmp_path: Path) -> None:
    root = image_folder("train")
    before = data.load(root, reading=SMALL, holdout=WHOLE).fingerprint
    moved = root.rename(tmp_path / "elsewhere")
    assert data.load(moved, reading=SMALL, holdout=WHOLE).fingerprint == before
    assert data.load(moved, reading=data.Reading(size=9), holdout=WHOLE).fingerprint != before
    write_image(moved / "train/cat/0.jpg", (1, 2, 3))
    assert data.load(moved, reading=SMALL, holdout=WHOLE).fingerprint != before


def test_without_pillow(image_folder: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    root = image_folder("train")
    monkeypatch.setitem(sys.modules, "PIL.Image", None)
    with pytest.raises(MissingExtraError, match=r"bndl\[data\]"):
        data.load(root, reading=SMALL)


@pytest.mark.reference
def test_real_imagenette(reference_data: Path) -> None:
    reading = data.Reading(size=160, strict=True)
    splits = data.load_splits(reference_data / "imagenette160", reading=reading)
    assert splits.val is not None
    assert splits.test is None
    assert splits.train.labels.bincount().tolist() == [250] * 10
    assert splits.val.labels.bincount().tolist() == [100] * 10
    assert splits.train.classes[0] == "n01440764"
    assert splits.train[7][0].size() == (3, 160, 160)

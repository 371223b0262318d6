"""Small data sets in the layouts of the real ones."""

from collections.abc import Callable
from pathlib import Path

import pytest
from layouts import cifar_record, write_image, write_pickle


@pytest.fixture
def cifar10(tmp_path: Path) -> Path:
    folder = tmp_path / "cifar-10-batches-py"
    folder.mkdir()
    for number in range(1, 6):
        write_pickle(folder / f"data_batch_{number}", cifar_record(number))
    write_pickle(folder / "test_batch", cifar_record(6))
    write_pickle(folder / "batches.meta", {b"label_names": [f"class {c}".encode() for c in range(10)]})
    return folder


@pytest.fixture
def cifar100(tmp_path: Path) -> Path:
    folder = tmp_path / "cifar-100-python"
    folder.mkdir()
    for number, part in enumerate(("train", "test")):
        write_pickle(folder / part, cifar_record(number, label_key="fine_labels", num_classes=5))
    write_pickle(folder / "meta", {b"fine_label_names": [f"fine {c}".encode() for c in range(5)]})
    return folder


@pytest.fixture
def image_folder(tmp_path: Path) -> Callable[..., Path]:
    def make(*parts: str, classes: tuple[str, ...] = ("cat", "dog"), count: int = 4) -> Path:
        root = tmp_path / "pets"
        for part in parts or (".",):
            for position, label in enumerate(classes):
                for number in range(count):
                    write_image(root / part / label / f"{number}.jpg", (200 * position, 10 * number, 30))
        return root

    return make

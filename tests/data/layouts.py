"""Writers of small files in the layouts of the real data sets."""

import pickle
from pathlib import Path

import numpy as np
from PIL import Image

PER_BATCH = 20


def cifar_record(seed: int, *, label_key: str = "labels", num_classes: int = 10) -> dict[bytes, object]:
    generator = np.random.default_rng(seed)
    labels = np.resize(np.arange(num_classes), PER_BATCH).tolist()
    data = generator.integers(0, 256, (PER_BATCH, 3072), dtype=np.uint8)
    return {b"data": data, label_key.encode(): labels}


def write_pickle(path: Path, record: object, protocol: int = 4) -> None:
    path.write_bytes(pickle.dumps(record, protocol=protocol))


def write_image(path: Path, colour: tuple[int, int, int], size: tuple[int, int] = (24, 16)) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", size, colour).save(path)

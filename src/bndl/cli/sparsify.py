"""``bndl sparsify``: a run's folder, one command, a model with a few weights a class."""

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bndl.cli.console import console, seed, write_json
from bndl.errors import FileError, InputError, MissingExtraError
from bndl.files import replacing

if TYPE_CHECKING:
    from torch import nn

    from bndl.sparsify import Finetuned, SparsePath
    from bndl.train import Run

__all__ = ["add_arguments", "run"]

_MODEL, _TUNED, _PICTURE = "model.safetensors", "finetuned.safetensors", "path.png"
_BATCH = 128  # examples a step of fine-tuning
_PLAIN: dict[str, Any] = {"soft_wrap": True, "markup": False}  # paths and names may hold brackets
_EPILOG = """examples:
  bndl sparsify runs/cifar10
  bndl sparsify runs/cifar10 --nnz 0.1
  bndl sparsify runs/cifar10 --features-per-class 5 --out few
  bndl sparsify runs/cifar10 --max-accuracy-drop 0.5 --json
  bndl sparsify runs/cifar10 --features-per-class 3 --finetune 5"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's options."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = _EPILOG
    parser.add_argument("folder", type=Path, metavar="RUN", help="folder of a finished run; a dense head is converted")
    parser.add_argument("--nnz", type=float, metavar="SHARE", help="target: at most this share of the weights")
    parser.add_argument("--features-per-class", type=int, metavar="N", help="target: at most N weights for each class")
    parser.add_argument(
        "--max-accuracy-drop",
        type=float,
        metavar="POINTS",
        help="target: the fewest weights that lose at most so many points of accuracy (default: 1)",
    )
    parser.add_argument("--num-points", type=int, default=20, metavar="N", help="points of the path (default: 20)")
    parser.add_argument(
        "--mode", choices=("prune", "threshold"), default="prune", help="threshold: the paper's ReLU(w - alpha)"
    )
    parser.add_argument(
        "--finetune",
        type=int,
        metavar="EPOCHS",
        help="then train the chosen model with its backbone, taught by the dense one; takes as long as training does",
    )
    parser.add_argument("--out", type=Path, metavar="DIR", help="where to write (default: RUN/sparse)")
    parser.add_argument("--cache", type=Path, metavar="DIR", help="folder of cached features (default: RUN/features)")
    parser.add_argument("--seed", type=seed, default=0, help="of everything random (default: 0)")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON in place of the table")


class _Kept:
    """The folder that is written to: the figures after every point, so that Ctrl-C loses the last only.

    What an earlier call left there goes before the first figures come: no model lies beside the figures of another.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.path: SparsePath | None = None
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise FileError(f"cannot write to {folder} ({error.strerror}): choose another --out.") from error

    def __call__(self, path: "SparsePath") -> None:
        """Save the figures of the path so far."""
        if self.path is None:
            for name in (_MODEL, _TUNED, _PICTURE):
                (self.folder / name).unlink(missing_ok=True)
        self.path = path
        self.write(path.to_dict())

    def write(self, record: dict[str, Any]) -> None:
        """The figures."""
        with replacing(self.folder / "path.json") as temporary:
            temporary.write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")


def run(args: argparse.Namespace) -> int:
    """Load, sparsify, write, tell."""
    from bndl.convert import find_layer
    from bndl.data import cached_features
    from bndl.sparsify import sparsify
    from bndl.sparsify.figure import draw
    from bndl.sparsify.run import Target
    from bndl.store import save

    if args.max_accuracy_drop is not None and not 0 <= args.max_accuracy_drop < 100:
        raise InputError(f"--max-accuracy-drop is in points of accuracy, such as 1, got {args.max_accuracy_drop:g}.")
    drop = None if args.max_accuracy_drop is None else args.max_accuracy_drop / 100
    target = Target(args.nnz, args.features_per_class, drop)
    if args.finetune is not None and args.finetune < 1:
        raise InputError(f"--finetune is a number of epochs, such as 2, got {args.finetune}.")
    loaded, model, parts = _subject(args.folder)
    target.goals(find_layer(model), args.num_points)  # what is impossible is said before anything is computed
    keep, messages = _Kept(args.out or args.folder / "sparse"), console(stderr=True)
    messages.print(f"{args.folder}: features of {', '.join(f'{len(d):,} {p}' for p, d in parts.items())}", **_PLAIN)
    features = {
        part: cached_features(model, data, folder=args.cache or args.folder / "features")
        for part, data in parts.items()
    }
    try:
        path = sparsify(
            model,
            features["train"],
            features["val"],
            nnz=args.nnz,
            features_per_class=args.features_per_class,
            max_accuracy_drop=drop,
            num_points=args.num_points,
            mode=args.mode,
            seed=args.seed,
            keep=keep,
        )
    except KeyboardInterrupt:
        if keep.path is None:
            raise
        _write(keep.path, keep.folder, messages)
        messages.print(f"interrupted after {len(keep.path)} points, which are kept in {keep.folder}", **_PLAIN)
        return 130
    wrote, record = _write(path, keep.folder, messages), path.to_dict()
    tuned = _finetuned(path, loaded, parts, args.finetune) if args.finetune else None
    if tuned is not None:
        wrote.append(save(tuned.model, keep.folder / _TUNED).name)
        if _PICTURE in wrote:
            draw(path, keep.folder / _PICTURE, finetuned=tuned.point)
        record["finetuned"] = tuned.to_dict()
        keep.write(record)
    if args.json:
        write_json({"folder": str(keep.folder), **record})
    else:
        _tell(path, tuned, keep.folder, wrote)
    return 130 if tuned is not None and tuned.interrupted else 0


def _finetuned(path: "SparsePath", loaded: "Run", parts: dict[str, Any], epochs: int) -> "Finetuned":
    """The chosen model, trained with its backbone on the run's images, augmented as in its recipe."""
    from bndl.sparsify import finetune
    from bndl.train import Augment, Augmented, loader

    augment = Augment(loaded.recipe.data.augment, loaded.side)
    train = Augmented(parts["train"], augment, batch_size=_BATCH, seed=path.seed)
    return finetune(path, train, loader(parts["val"], batch_size=_BATCH), epochs=epochs)


def _subject(folder: Path) -> "tuple[Run, nn.Module, dict[str, Any]]":
    """The run, its model with a decision layer, and the parts of its data that it learns from."""
    import torch

    from bndl.baselines import get_method
    from bndl.convert import convert
    from bndl.train import load_run
    from bndl.train.network import read_splits
    from bndl.train.record import read_plan

    loaded = load_run(folder)
    head = loaded.recipe.model.head
    if not get_method(head).layered and head != "dense":
        raise InputError(f"{folder} has a {head} head: sparsify takes runs with a decision layer or a dense head.")
    splits = read_splits(loaded.recipe, plan=read_plan(folder))
    if splits.val is None or not len(splits.val):
        raise InputError(f"the data of {folder} have no validation part, which chooses: train with data.val above 0.")
    model = loaded.model if get_method(head).layered else convert(loaded.model)
    if torch.cuda.is_available():
        model.to("cuda")
    return loaded, model, {"train": splits.train, "val": splits.val}


def _write(path: "SparsePath", folder: Path, messages: Any) -> list[str]:
    """The chosen model and the picture; the names of what was written."""
    from bndl.sparsify.figure import draw
    from bndl.store import save

    wrote = [_MODEL, "path.json"]
    save(path.best, folder / wrote[0])
    try:
        wrote.append(draw(path, folder / _PICTURE).name)
    except MissingExtraError as error:  # figures without a picture are worth having
        messages.print(f"no picture: {error}", **_PLAIN)
    return wrote


def _tell(path: "SparsePath", tuned: "Finetuned | None", folder: Path, wrote: list[str]) -> None:
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for heading in ("nnz", "weights a class", "accuracy", "NLL", "ECE", ""):
        table.add_column(heading, justify="right" if heading else "left")
    for index, point in enumerate([*path.points, *([] if tuned is None else [tuned.point])]):
        notes = ["chosen"] if index == path.chosen else []
        notes += ["fine-tuned"] if index == len(path.points) else []
        notes += [f"{len(point.empty_classes)} classes without a weight"] if point.empty_classes else []
        table.add_row(
            f"{point.nnz:.4f}",
            f"{point.weights_per_class:.1f}",
            f"{point.accuracy:.2%}",
            f"{point.nll:.4f}",
            f"{point.ece:.2%}",
            ", ".join(notes),
            style="bold" if index in (path.chosen, len(path.points)) else "",
        )
    out = console()
    out.print(table)
    out.print("Measured on half of the validation part, which also chose and calibrated.")
    if tuned is not None and not tuned.best_epoch:
        out.print("Fine-tuning brought nothing that held-out examples show: the model is the one that was chosen.")
    if tuned is not None and tuned.interrupted:
        out.print("It was interrupted: the best epoch so far is kept.")
    out.print(f"Written to {folder}: {', '.join(wrote)}", **_PLAIN)

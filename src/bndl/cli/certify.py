"""``bndl certify``: which features of a run are provably identifiable; ``--synthetic`` puts the certificate to the test."""

import argparse
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bndl.cli.console import console, count, seed, write_json
from bndl.errors import FileError, InputError

if TYPE_CHECKING:
    from torch import nn

    from bndl.data import LabelledSet
    from bndl.train import Run

__all__ = ["add_arguments", "run"]

_PLAIN: dict[str, Any] = {"soft_wrap": True, "markup": False}
_EPILOG = """examples:
  bndl certify runs/photos
  bndl certify runs/photos/sparse --part train
  bndl certify runs/photos --model few/model.safetensors --tolerance 1e-4 --show 50
  bndl certify runs/photos --part val --json
  bndl certify --synthetic --seeds 20 --out certify.png"""
# options that only a run has, and what they are when they are left out; the parser leaves None, so that we can tell
_OF_RUN: dict[str, Any] = {
    "model": None,
    "data": None,
    "part": None,
    "limit": None,
    "tolerance": 1e-6,
    "rank_tolerance": 1e-6,
    "min_cosine": 0.99,
    "max_rows": 65_536,
    "show": 12,
    "batch_size": 256,
    "seed": 0,
}
_OF_STUDY: dict[str, Any] = {"seeds": 20, "columns": False}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's options."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = _EPILOG
    parser.add_argument(
        "folder",
        nargs="?",
        type=Path,
        metavar="RUN",
        help="folder of a finished run of bndl train, a dense head is converted; or its folder of bndl sparsify",
    )
    parser.add_argument("--synthetic", action="store_true", help="test the certificate on planted problems instead")
    parser.add_argument("--model", type=Path, metavar="FILE", help="a model of this run that bndl sparsify wrote")
    parser.add_argument("--data", metavar="NAME|PATH", help="other data (default: the run's own)")
    parser.add_argument("--part", choices=("test", "val", "train"), help="which part of the data (default: test)")
    parser.add_argument("--limit", type=count, metavar="N", help="at most N examples, chosen by the seed")
    parser.add_argument("--tolerance", type=_share, help="share up to which an entry is zero (1e-6)")
    parser.add_argument("--rank-tolerance", type=_share, help="the same for singular values, at least 1e-7 (1e-6)")
    parser.add_argument("--min-cosine", type=_share, help="least guarantee to certify by (0.99)")
    parser.add_argument("--max-rows", type=count, help="samples searched for witnesses (65536)")
    parser.add_argument("--show", type=count, metavar="N", help="features to list, certified first (12)")
    parser.add_argument("--batch-size", type=count, help="examples a pass (256)")
    parser.add_argument("--seed", type=seed, help="of the choice of samples (0)")
    parser.add_argument("--seeds", type=count, help="with --synthetic: problems a view, seeds from 0 on (20)")
    parser.add_argument("--columns", action="store_true", default=None, help="with --synthetic: list every column")
    parser.add_argument("--out", type=Path, metavar="FILE", help="RUN: certificate.json; --synthetic: a picture")
    parser.add_argument("--json", action="store_true", help="print everything as JSON in place of the tables")


def _share(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < 1:
        raise argparse.ArgumentTypeError(f"a number from 0 to below 1 is needed, got {text!r}")
    return value


def run(args: argparse.Namespace) -> int:
    """Certify a run, or put the certificate to the test."""
    if args.synthetic == (args.folder is not None):
        raise InputError("give the folder of a run, or --synthetic: bndl certify --help shows both.")
    ignored = _OF_RUN if args.synthetic else _OF_STUDY
    given = [f"--{name.replace('_', '-')}" for name in ignored if getattr(args, name) is not None]
    if given:
        kind, other = ("--synthetic", "a run") if args.synthetic else ("a run", "--synthetic")
        raise InputError(f"{', '.join(given)}: that is for {other}, {kind} has no use for it; leave it out.")
    for name, value in (_OF_RUN | _OF_STUDY).items():
        if getattr(args, name) is None:
            setattr(args, name, value)
    return _synthetic(args) if args.synthetic else _of_run(args)


def _check_folder(path: Path) -> None:
    if not path.parent.is_dir():
        raise FileError(f"there is no folder {path.parent} to write {path.name} to: make it, or choose another --out.")
    if path.is_dir():
        raise FileError(f"{path} is a folder: give the name of a file as --out.")


# ------------------------------------------------------------------------------------------------------------- a run


def _of_run(args: argparse.Namespace) -> int:
    import torch

    from bndl.certify import Thresholds, certify
    from bndl.certify.tables import describe, list_features, sensitivity_table
    from bndl.train import loader

    limits = asdict(Thresholds(args.tolerance, args.rank_tolerance, args.min_cosine))
    out = _certificate_file(args.out)
    loaded, model, what = _model(args)
    data, about = _data(args, loaded)
    if torch.cuda.is_available():
        model.to("cuda")
    console(stderr=True).print(f"{loaded.recipe.name}{what} on {about}: {len(data):,} examples", **_PLAIN)
    batches = loader(data, batch_size=args.batch_size)
    found = certify(model, batches, **limits, max_rows=args.max_rows, seed=args.seed)
    out = found.save(out or args.folder / "certificate.json")
    if args.json:
        write_json({"file": str(out), "certificate": found.to_dict()})
        return 0
    tell = console()
    for line in (*describe(found), "", *list_features(found, loaded.classes, show=args.show)):
        tell.print(line, **_PLAIN)
    tell.print(sensitivity_table(found))
    tell.print(f"Written: {out}", **_PLAIN)
    return 0


def _certificate_file(path: Path | None) -> Path | None:
    """Where to write, if that is possible; None: beside the run."""
    if path is None:
        return None
    if path.suffix.lower() != ".json":
        raise InputError(
            f"a run's certificate is written as .json, not as {path.suffix or path.name!r}: only --synthetic draws."
        )
    _check_folder(path)
    return path


def _model(args: argparse.Namespace) -> "tuple[Run, nn.Module, str]":
    """The run; its model with a decision layer, or the one that was made of it; and what was done, in words."""
    from bndl.baselines import get_method
    from bndl.convert import convert
    from bndl.store import load
    from bndl.train import load_run

    folder, file = args.folder, args.model
    if file is None and (folder / "path.json").is_file() and (folder / "model.safetensors").is_file():
        folder, file = folder.resolve().parent, folder / "model.safetensors"
        if not (folder / "run.json").is_file():
            raise InputError(
                f"{args.folder} was written by bndl sparsify, and its run is elsewhere: give that run, and --model {file}."
            )
    loaded = load_run(folder)
    head = loaded.recipe.model.head
    if not get_method(head).layered and head != "dense":
        raise InputError(f"{folder} has a {head} head: certify takes runs with a decision layer or a dense head.")
    if file is not None:
        return loaded, load(file, backbone=loaded.model), f" ({file.name} of {file.parent.name})"
    if head == "dense":
        return loaded, convert(loaded.model), " (dense head, converted)"
    return loaded, loaded.model, ""


def _data(args: argparse.Namespace, loaded: "Run") -> "tuple[LabelledSet, str]":
    from bndl.evaluation import of_run
    from bndl.train.network import read_splits
    from bndl.train.record import read_plan

    name, part = loaded.recipe.data.name, args.part or "test"
    if args.data is not None:
        data, part = of_run.other_data(args.data, loaded, part=args.part)
        name = args.data
    elif part == "train":
        data = read_splits(loaded.recipe, plan=read_plan(loaded.folder)).train
    else:
        data = of_run.own_part(loaded, part)
    return of_run.limited(data, args.limit, seed=args.seed), f"{Path(name).name} {part}"


# --------------------------------------------------------------------------------------------------------- synthetic


def _synthetic(args: argparse.Namespace) -> int:
    from bndl.certify.figure import check_picture, draw
    from bndl.certify.study import study
    from bndl.certify.tables import column_table, control_table, kind_table

    picture = check_picture(args.out or Path("certify.png"))
    _check_folder(picture)
    found = study(range(args.seeds))
    draw(found, picture)
    if args.json:
        write_json({"picture": str(picture), **asdict(found)})
        return 0
    tell = console()
    if args.columns:
        tell.print(column_table(found.columns))
    tell.print(kind_table(found))
    tell.print(control_table(found))
    tell.print(f"Picture: {picture}", **_PLAIN)
    return 0

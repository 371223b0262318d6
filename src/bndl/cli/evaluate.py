"""``bndl evaluate``: a run's folder, one command, everything measured."""

import argparse
import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bndl.cli.console import console, count, seed, write_json
from bndl.errors import FileError, InputError, MissingExtraError

if TYPE_CHECKING:
    from bndl.data import LabelledSet
    from bndl.evaluation import Evaluation
    from bndl.evaluation.stream import Plan
    from bndl.train import Run

__all__ = ["add_arguments", "run"]

_PLAIN: dict[str, Any] = {"soft_wrap": True, "markup": False}  # paths and names may hold brackets
_EPILOG = """examples:
  bndl evaluate runs/photos
  bndl evaluate runs/cifar10 --ood cifar100 --ood svhn=/path/to/svhn
  bndl evaluate runs/cifar10 --shift --corruptions fog,gaussian_noise --severities 1,3,5
  bndl evaluate runs/cifar10 --data other/ --limit 500 --json"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's options."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = _EPILOG
    parser.add_argument("folder", type=Path, metavar="RUN", help="folder of a finished run of bndl train")
    parser.add_argument("--data", metavar="NAME|PATH", help="other data with the same classes (default: the run's own)")
    parser.add_argument("--part", choices=("test", "val"), help="which part of the data (default: test)")
    parser.add_argument(
        "--ood", action="append", default=[], metavar="[NAME=]DATA", help="data of another kind; may be given again"
    )
    parser.add_argument("--shift", action="store_true", help="15 common corruptions at five severities: 75 more passes")
    parser.add_argument("--corruptions", type=_words, metavar="A,B", help="only these corruptions")
    parser.add_argument("--severities", type=_numbers, metavar="1,3,5", help="only these severities, 1 to 5")
    parser.add_argument("--sepin", action="store_true", help="also how much features say on their own (SEPIN@k)")
    parser.add_argument("--out", type=Path, metavar="DIR", help="where to write (default: RUN/evaluation)")
    parser.add_argument(
        "--limit", type=count, metavar="N", help="at most N examples of each set to measure, chosen by the seed"
    )
    parser.add_argument("--resamples", type=count, default=1000, help="bootstrap resamples (default: 1000)")
    parser.add_argument("--batch-size", type=count, default=256, help="examples a pass (default: 256)")
    parser.add_argument("--seed", type=seed, default=0, help="of noise, resamples and choice (default: 0)")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON in place of the table")


def _words(text: str) -> list[str]:
    return [word.strip() for word in text.split(",") if word.strip()]


def _numbers(text: str) -> list[int]:
    try:
        return sorted({int(word) for word in _words(text)})
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"severities are whole numbers such as 1,3,5, got {text!r}") from error


class _Kept:
    """The folder that is written to: what was measured is saved after every stage, so that Ctrl-C loses the last only."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.wrote = folder, list[str]()
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise FileError(f"cannot write to {folder} ({error.strerror}): choose another --out.") from error
        if not os.access(folder, os.W_OK):
            raise FileError(f"cannot write to {folder}: choose an --out that is yours.")

    def __call__(self, found: "dict[str, Evaluation]") -> None:
        """Save what there is; of several evaluations the second is at a temperature."""
        names = ("evaluation.json", "evaluation-temperature.json")[: len(found)]
        for name, one in zip(names, found.values(), strict=True):
            one.save(self.folder / name)
        first = next(iter(found.values()))
        if first.examples is not None and not self.wrote:
            first.examples.save(self.folder / "examples.npz")
        self.wrote = [*names, "examples.npz"]


def run(args: argparse.Namespace) -> int:
    """Load, measure, draw, tell."""
    from bndl import plots
    from bndl.evaluate import evaluate_all
    from bndl.evaluation.of_run import ways_of_run

    plan, loaded, data = _prepared(args)
    keep = _Kept(args.out or args.folder / _place(args))
    messages = console(stderr=True)
    head = loaded.recipe.model.head
    messages.print(f"{loaded.recipe.name}, {head} head, on {plan.about}: {len(data):,} examples", **_PLAIN)
    if data.classes != loaded.classes:
        messages.print("its classes have other names than the run's: labels are taken by number", **_PLAIN)
    ways = ways_of_run(loaded, seed=args.seed, batch_size=args.batch_size)
    found = evaluate_all(ways, data, replace(plan, keep=keep))
    try:
        keep.wrote.append(plots.overview(found, keep.folder / "evaluation.png").name)
    except MissingExtraError as error:  # figures without a picture are worth having
        messages.print(f"no picture: {error}", **_PLAIN)
    if args.json:
        record = {name: one.to_dict() for name, one in found.items()}
        write_json({"folder": str(keep.folder), "evaluations": record})
    else:
        _tell(found, keep, optimistic=args.part == "val" and _is_own(args, loaded))
    return 0


def _prepared(args: argparse.Namespace) -> "tuple[Plan, Run, LabelledSet]":
    """What to measure, of what, on what: all that can be wrong with the arguments is said here."""
    import torch

    from bndl.evaluation.of_run import augmentation
    from bndl.evaluation.shift import corruptions_of
    from bndl.evaluation.stream import Plan
    from bndl.train import load_run
    from bndl.train.loading import num_workers

    shift = corruptions_of(_wanted(args))
    loaded = load_run(args.folder)
    data, about = _data(args, loaded)
    plan = Plan(
        ood=_outside(args, loaded),
        shift=shift,
        sepin=augmentation(loaded) if args.sepin else False,
        classes=loaded.classes,
        about=about,
        seed=args.seed,
        num_resamples=args.resamples,
        batch_size=args.batch_size,
        workers=num_workers(data),
    )
    if torch.cuda.is_available():
        loaded.model.to("cuda")
    return plan, loaded, data


def _tell(found: "dict[str, Evaluation]", keep: _Kept, *, optimistic: bool) -> None:
    from bndl.evaluation import table_of

    out = console()
    out.print(table_of(found), **_PLAIN)
    if optimistic:
        out.print("\nThe validation part was used to choose and to calibrate, so its figures are optimistic.")
    out.print(f"\nWritten to {keep.folder}: {', '.join(keep.wrote)}", **_PLAIN)


def _wanted(args: argparse.Namespace) -> bool | dict[str, tuple[int, ...]]:
    """Which corruptions at which severities; naming some is asking for them."""
    if not (args.shift or args.corruptions or args.severities):
        return False
    from bndl.data.shift import CORRUPTIONS, SEVERITIES

    return {name: tuple(args.severities or SEVERITIES) for name in args.corruptions or CORRUPTIONS}


def _place(args: argparse.Namespace) -> str:
    """The folder's name inside the run's: other data do not replace the run's own."""
    words = ["evaluation", *([Path(args.data).stem] if args.data else []), *(["val"] if args.part == "val" else [])]
    return "-".join(words)


def _is_own(args: argparse.Namespace, loaded: "Run") -> bool:
    """Whether the data are those the run was trained on, whose test part was kept from it."""
    own = loaded.recipe.data.name
    return args.data is None or args.data == own or str(Path(args.data).expanduser().absolute()) == own


def _data(args: argparse.Namespace, loaded: "Run") -> "tuple[LabelledSet, str]":
    """What to evaluate on, and what to call it."""
    from bndl.evaluation import of_run

    if _is_own(args, loaded):
        name, part = loaded.recipe.data.name, args.part or "test"
        data = of_run.own_part(loaded, part)
    else:
        name = args.data
        data, part = of_run.other_data(name, loaded, part=args.part)
    return of_run.limited(data, args.limit, seed=args.seed), f"{Path(name).name} {part}"


def _outside(args: argparse.Namespace, loaded: "Run") -> "dict[str, LabelledSet]":
    from bndl.evaluation import of_run

    found: dict[str, LabelledSet] = {}
    for text in args.ood:
        name, source = _named(text)
        if name in found:
            raise InputError(f"two sets are called {name}: tell them apart by --ood NAME=DATA.")
        found[name] = of_run.limited(of_run.outside_data(source, loaded), args.limit, seed=args.seed)
    return found


def _named(text: str) -> tuple[str, str]:
    """NAME=DATA, or data that are called as they are."""
    name, equals, source = text.partition("=")
    if not equals or Path(text).exists():
        name, source = Path(text).name.split(".")[0], text
    if not name or not source:
        raise InputError(f"--ood takes NAME=DATA or DATA, such as --ood cifar100 or --ood svhn=path, got {text!r}.")
    return name, source

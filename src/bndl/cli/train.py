"""``bndl train``: a recipe, one command, a run's folder."""

import argparse
import logging
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bndl.cli.console import console, write_json
from bndl.errors import InputError

if TYPE_CHECKING:
    from bndl.train import Outcome, Recipe

__all__ = ["add_arguments", "run"]

_PLAIN: dict[str, Any] = {"soft_wrap": True, "markup": False}  # paths and names may hold brackets
_EPILOG = """examples:
  bndl train --list
  bndl train cifar10-resnet18-small
  bndl train cifar10-resnet18-small --set model.head=dense --set train.seed=1
  bndl train imagenet-resnet50 --data /path/to/imagenet --devices 8 --strategy ddp
  bndl train my-recipe.yaml --data photos/ --out runs/photos
  bndl train --resume runs/photos"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's options."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = _EPILOG
    parser.add_argument("recipe", nargs="?", metavar="RECIPE", help="a recipe's name (see --list) or a YAML file")
    parser.add_argument("--list", action="store_true", help="show the recipes, what they need and what the paper got")
    parser.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", help="change a setting, such as train.epochs=5"
    )
    parser.add_argument("--data", metavar="NAME|PATH", help="a data set in place of the recipe's")
    parser.add_argument("--out", type=Path, metavar="DIR", help="the run's folder (default: runs/RECIPE-HEAD-SEED)")
    parser.add_argument("--resume", type=Path, metavar="DIR", help="go on with the run in this folder")
    parser.add_argument("--strict", action="store_true", help="refuse damaged images in place of skipping them")
    parser.add_argument("--accelerator", default="auto", help="auto, cpu, gpu, ... (default: auto)")
    parser.add_argument("--devices", type=int, default=1, help="how many a machine (default: 1)")
    parser.add_argument("--num-nodes", type=int, default=1, help="how many machines (default: 1)")
    parser.add_argument("--strategy", default="auto", help="how several devices share the work: ddp, fsdp, ...")
    parser.add_argument("--cache", type=Path, metavar="DIR", help="folder of cached features, for frozen backbones")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")


def run(args: argparse.Namespace) -> int:
    """List, or train and tell."""
    from bndl.train import Launch, list_recipes, train

    if args.list:
        return _list(list_recipes(), as_json=args.json)
    logging.getLogger("lightning.pytorch").setLevel(logging.WARNING)  # what it found and what it would sell
    recipe, out = _resumed(args) if args.resume else _chosen(args)
    messages = console(stderr=True)
    head = "dense head, converted at the end" if recipe.model.converted else f"{recipe.model.head} head"
    messages.print(f"{recipe.name}, {head}, seed {recipe.train.seed} -> {out}", **_PLAIN)
    outcome = train(
        recipe,
        out,
        launch=Launch(args.accelerator, args.devices, args.num_nodes, args.strategy),
        resume=args.resume is not None,
        cache=args.cache,
        bar=sys.stdout.isatty() and not args.json,
        tell=lambda line: messages.print(line, **_PLAIN),
    )
    if outcome is None:  # the first process tells
        return 0
    if args.json:
        write_json({"folder": str(out), **asdict(outcome)})
    else:
        _tell(outcome, out)
    return 0


def _chosen(args: argparse.Namespace) -> "tuple[Recipe, Path]":
    from bndl.train import load_recipe

    if args.recipe is None:
        raise InputError("name a recipe: bndl train --list shows them.")
    recipe = load_recipe(args.recipe, settings=args.set)
    changes = {"name": _whole(args.data or recipe.data.name), "strict": args.strict or recipe.data.strict}
    start = {"start": recipe.model.start and _whole(recipe.model.start)}
    recipe = recipe.model_copy(
        update={"data": recipe.data.model_copy(update=changes), "model": recipe.model.model_copy(update=start)}
    )
    subject = f"{recipe.name}-{Path(args.data).stem}" if args.data else recipe.name
    return recipe, args.out or Path("runs", f"{subject}-{recipe.model.head}-{recipe.train.seed}")


def _whole(source: str) -> str:
    """A path from the root, so that a run can be resumed from elsewhere; a name as it is."""
    from bndl.data import names

    path = Path(source).expanduser()
    return source if source in names() or not path.exists() else str(path.absolute())


def _resumed(args: argparse.Namespace) -> "tuple[Recipe, Path]":
    from bndl.train.record import read_recipe

    if args.recipe or args.set or args.data or args.out or args.strict:
        raise InputError(
            "--resume goes on with a run as it was: leave out the recipe, --set, --data, --strict and --out."
        )
    return read_recipe(args.resume), args.resume


def _list(recipes: "tuple[Recipe, ...]", *, as_json: bool) -> int:
    if as_json:
        write_json({recipe.name: recipe.model_dump() for recipe in recipes})
        return 0
    out = console()
    for recipe in recipes:
        needs = recipe.needs
        out.print(f"[bold]{recipe.name}[/]")
        out.print(f"    {recipe.about}", **_PLAIN)
        out.print(f"    needs {needs.data}; about {needs.hours} h on {needs.machine}", style="dim", **_PLAIN)
        if recipe.paper:
            out.print(f"    the paper: {recipe.paper}", style="dim", **_PLAIN)
    out.print("\nbndl train RECIPE; add --set model.head=dense for the same with a linear head.")
    return 0


def _tell(outcome: "Outcome", folder: Path) -> None:
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for heading in ("", "part", "accuracy", "NLL", "ECE", "PAvPU (all certain)", "weights a class"):
        table.add_column(heading, justify="left" if heading in ("", "part") else "right")
    for part, rows in outcome.parts.items():
        for row in rows:
            certain = "-" if row.pavpu is None else f"{row.pavpu:.2%} ({row.pavpu_baseline:.2%})"
            weights = "-" if row.weights_per_class is None else f"{row.weights_per_class:.1f}"
            table.add_row(row.name, part, f"{row.accuracy:.2%}", f"{row.nll:.4f}", f"{row.ece:.2%}", certain, weights)
    out = console()
    out.print(table)
    out.print(f"Epoch {outcome.best_epoch} was the best on the validation part, which was also used to calibrate.")
    out.print(f"Run: {folder}", **_PLAIN)

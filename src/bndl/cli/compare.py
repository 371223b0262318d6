"""``bndl compare``: methods side by side on the same data, one table."""

import argparse
import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bndl.cli.console import console
from bndl.errors import FileError, InputError
from bndl.files import replacing

if TYPE_CHECKING:
    from bndl.compare import Comparison, Row, Table
    from bndl.compare.paper import PaperTable
    from bndl.compare.run import Options

__all__ = ["add_arguments", "run"]

_PLAIN: dict[str, Any] = {"soft_wrap": True, "markup": False}
_TRAINED = "dense,temperature,mc-dropout,belief-matching,nmf,bndl"
_EPILOG = """SUBJECT is what the methods are compared on:
  a pretrained checkpoint   resnet56_cifar10: its test set is split, half to fit to and half for the figures
  a finished run            runs/cifar10-resnet18-dense-0, trained with model.head=dense
  a recipe                  cifar10-resnet18-small: networks are trained from scratch, one a method and seed

examples:
  bndl compare --list
  bndl compare resnet56_cifar10 --ood cifar100
  bndl compare resnet56_cifar10 --reference temperature --differences
  bndl compare runs/mine-dense-0 --methods dense,temperature,laplace,bndl
  bndl compare cifar10-resnet18-small --methods dense,mc-dropout,bndl --seeds 0
  bndl compare --paper table1 --small"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's options."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = _EPILOG
    parser.add_argument("subjects", nargs="*", metavar="SUBJECT", help="a checkpoint, a run's folder, or a recipe")
    parser.add_argument("--list", action="store_true", help="show the methods, the checkpoints and the paper's tables")
    parser.add_argument(
        "--paper",
        metavar="NAME",
        help="the paper's own comparison, its figures beside ours: table1, table2, table3, table4, fig-uncertainty, "
        "fig-sparsity",
    )
    parser.add_argument("--small", action="store_true", help="with --paper: the CPU-sized twins of the recipes")
    parser.add_argument("--methods", metavar="A,B", help="names, or all (default: all; for recipes a few)")
    parser.add_argument("--seeds", metavar="0,1", default="0,1,2", help="of the methods (default: 0,1,2)")
    parser.add_argument(
        "--ood", action="append", default=[], metavar="NAME[=PATH]", help="data of another kind, to be told apart"
    )
    parser.add_argument("--reference", help="method that differences are taken to (default: dense)")
    parser.add_argument(
        "--differences",
        action="store_true",
        help="below each value its difference to the reference's, with the interval of that, on the same examples",
    )
    parser.add_argument("--columns", metavar="A,B", help="keys of the columns, as in table.json")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="change a recipe's setting")
    parser.add_argument("--out", type=Path, default=Path("compare"), help="folder of results (default: compare)")
    parser.add_argument("--runs", type=Path, default=Path("runs"), help="folder of trained runs (default: runs)")
    parser.add_argument("--cache", type=Path, metavar="DIR", help="folder of cached features (default: OUT/features)")
    parser.add_argument(
        "--split-seed", type=int, default=0, help="of the halves of a checkpoint's test set (default: 0)"
    )
    parser.add_argument("--members", type=int, default=3, help="networks of a deep ensemble from scratch (default: 3)")
    parser.add_argument("--sepin", action="store_true", help="also measure SEPIN@k, from scratch")
    parser.add_argument("--again", action="store_true", help="compute cells anew that are there already")
    parser.add_argument(
        "--format", choices=("terminal", "markdown", "latex", "json"), default="terminal", help="of standard output"
    )
    parser.add_argument("--json", action="store_const", dest="format", const="json", help="the same as --format json")


def run(args: argparse.Namespace) -> int:
    """Compute what is missing, tell, write everything to OUT."""
    from bndl.compare import compare, tabulate
    from bndl.compare.paper import paper_table, with_printed
    from bndl.compare.run import Options

    if args.list:
        return _list()
    paper = paper_table(args.paper) if args.paper else None
    subjects, methods = _subjects(args, paper), _methods(args, paper)
    options = Options(
        out=args.out,
        cache=args.cache,
        runs=args.runs,
        ood=_named(args.ood),
        settings=args.set,
        paper=paper is not None,
        split_seed=args.split_seed,
        num_members=args.members,
        sepin=args.sepin or (paper is not None and paper.sepin),
        again=args.again,
    )
    seeds, columns = _seeds(args.seeds), _columns(args, paper, options)
    reference, figure = args.reference or "dense", paper is not None and paper.kind == "sparsity"
    if figure and (args.reference or args.differences):
        raise InputError("a figure has no reference and no differences: leave --reference and --differences out.")
    if (args.reference or args.differences) and reference not in methods:
        raise InputError(
            f"differences are taken to {reference}, which is not among the methods ({', '.join(methods)}): "
            "add it to --methods, or choose another --reference."
        )
    messages = console(stderr=True)
    if paper is not None and paper.kind == "sparsity":
        if args.format == "latex":
            raise InputError("a figure is not told in LaTeX: take --format markdown or json.")
        _check_out(args.out)
        return _sparsity(args, subjects, seeds, options)
    _check_out(args.out)
    comparison = compare(subjects, methods, seeds, options=options, tell=lambda line: messages.print(line, **_PLAIN))
    if not comparison.cells:
        return 1  # each failure was told as it came
    table = tabulate(comparison, reference=args.reference or "dense", columns=columns, differences=args.differences)
    table = table if paper is None else with_printed(table, paper)
    if args.differences and not table.differences:
        messages.print(f"no differences: no cell of {reference} could be computed", style="yellow", **_PLAIN)
    paths = _write(table, args.out)
    if paper is not None and paper.kind == "deciles":
        paths.append(_deciles(comparison, args.out))
    _tell(table, args.format, args.out, paths, title=paper.title if paper else "")
    return 0


def _columns(args: argparse.Namespace, paper: "PaperTable | None", options: "Options") -> list[str] | None:
    """The keys of the columns, looked at before anything is computed."""
    from bndl.compare.table import columns_of

    keys = [key.strip() for key in args.columns.split(",")] if args.columns is not None else None
    if keys is None and paper is not None:
        keys = list(paper.columns)
    columns_of(options.ood or {}, keys, sepin=options.sepin)
    return keys


def _subjects(args: argparse.Namespace, paper: "PaperTable | None") -> list[str]:
    if args.small and paper is None:
        raise InputError("--small goes with --paper: name a recipe that ends in -small instead.")
    if args.subjects or paper is None:
        if not args.subjects:
            raise InputError("name what to compare on: bndl compare --help shows how.")
        return list(args.subjects)
    return [f"{recipe}-small" if args.small else recipe for recipe in paper.recipes]


def _methods(args: argparse.Namespace, paper: "PaperTable | None") -> list[str]:
    from bndl.backbones import CIFAR_CHECKPOINTS
    from bndl.baselines import METHODS

    if args.methods is not None and not args.methods.strip():
        raise InputError("--methods is empty: name some, or leave it out.")
    if args.methods and args.methods != "all":
        return [name.strip() for name in args.methods.split(",")]
    if paper is not None and not args.methods:
        return list(paper.methods)
    on_features = all(name in CIFAR_CHECKPOINTS or Path(name).is_dir() for name in args.subjects)
    return list(METHODS) if args.methods or on_features else _TRAINED.split(",")


def _seeds(text: str) -> list[int]:
    try:
        seeds = [int(seed) for seed in text.split(",")]
    except ValueError as error:
        raise InputError(f"--seeds takes whole numbers, such as 0,1,2, got {text!r}.") from error
    if any(not 0 <= seed < 2**32 for seed in seeds):
        raise InputError(f"a seed is a whole number from 0 to {2**32 - 1}, got {text!r}.")
    return seeds


def _named(given: list[str]) -> dict[str, str]:
    pairs = [text.partition("=") for text in given]
    named = {(name if path else Path(name).name): path or name for name, _, path in pairs}
    odd = any((equals and not path) or not name for name, equals, path in pairs)
    if odd or len(named) < len(given) or any("/" in name or name.startswith(".") for name in named):
        raise InputError(f"--ood takes a name or NAME=PATH, each name once and a plain word, got {', '.join(given)}.")
    return named


def _check_out(out: Path) -> None:
    if out.exists() and not out.is_dir():
        raise InputError(f"--out {out} is a file: give a folder.")
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise FileError(f"cannot make the folder {out} ({error.strerror}): choose another --out.") from error


def _write(table: "Table", out: Path) -> list[Path]:
    """The table in all formats, and the pictures; the pictures' paths."""
    from bndl.compare.figure import draw
    from bndl.compare.formats import to_latex, to_markdown

    texts = {"table.md": to_markdown(table), "table.tex": to_latex(table), "table.json": table.to_json()}
    for name, text in texts.items():
        with replacing(out / name) as temporary:
            temporary.write_text(text, encoding="utf-8")
    return draw(table, out)


def _deciles(comparison: "Comparison", out: Path) -> Path:
    from bndl.compare.deciles import curves, draw_curves

    found = curves(comparison.cells, out)
    with replacing(out / "deciles.json") as temporary:
        temporary.write_text(json.dumps([asdict(curve) for curve in found], indent=2) + "\n")
    return draw_curves(found, out / "fig-uncertainty.png")


def _sparsity(args: argparse.Namespace, subjects: list[str], seeds: list[int], options: "Options") -> int:
    from bndl.compare.sparsity import paths_of
    from bndl.compare.sparsity_table import draw_paths, paths_to_markdown

    messages = console(stderr=True)
    found = paths_of(subjects, seeds, options, tell=lambda line: messages.print(line, **_PLAIN))
    if not any(found.values()):
        return 1  # each failure was told as it came
    record = {subject: [asdict(point) for point in points] for subject, points in found.items()}
    texts = {"json": json.dumps(record, indent=2) + "\n", "markdown": paths_to_markdown(found)}
    for form, suffix in (("json", "json"), ("markdown", "md")):
        with replacing(args.out / f"sparsity.{suffix}") as temporary:
            temporary.write_text(texts[form], encoding="utf-8")
    picture = draw_paths(found, args.out / "fig-sparsity.png")
    sys.stdout.write(texts.get(args.format, texts["markdown"]))
    if args.format == "terminal":
        written = ", ".join(str(path) for path in (args.out / "sparsity.md", args.out / "sparsity.json", picture))
        console().print(f"\nWritten: {written}", **_PLAIN)
    return 0


def _list() -> int:
    from bndl.backbones import CIFAR_CHECKPOINTS
    from bndl.baselines import METHODS, get_method
    from bndl.compare.paper import PAPER

    out = console()
    out.print("[bold]Methods[/]")
    for name in METHODS:
        method = get_method(name)
        needs = f'; needs pip install "bndl[{method.needs}]"' if method.needs else ""
        where = "trains a network or fits features" if method.from_scratch else "fits the features of a dense network"
        out.print(f"  {name:<16} {method.about} ({where}{needs})", **_PLAIN)
    out.print(f"\n[bold]Checkpoints[/]  {', '.join(CIFAR_CHECKPOINTS)}")
    out.print("\n[bold]The paper's[/]")
    for name, paper in PAPER.items():
        out.print(f"  {name:<16} {paper.title}", **_PLAIN)
    return 0


def _tell(table: "Table", form: str, folder: Path, pictures: list[Path], *, title: str) -> None:
    from bndl.compare.formats import legend, to_latex, to_markdown

    if form != "terminal":
        write = {"markdown": to_markdown, "latex": to_latex}.get(form)
        sys.stdout.write(table.to_json() if write is None else write(table))
        return
    out = console()
    if title:
        out.print(f"[bold]{title}[/]")
    for subject in table.subjects():
        rows = table.of(subject)
        out.print(f"\n[bold]{subject}[/]: {table.about[subject]}; seeds {', '.join(map(str, table.seeds(subject)))}")
        _tell_subject(table, rows, out)
    out.print(legend(table), style="dim")
    listed = ", ".join(
        str(path) for path in (folder / "table.md", folder / "table.tex", folder / "table.json", *pictures)
    )
    out.print(f"Written: {listed}", **_PLAIN)


def _tell_subject(table: "Table", rows: "list[Row]", out: Any) -> None:
    from rich import box
    from rich.table import Table as RichTable

    from bndl.compare.formats import blocks, cell_text, is_best

    sound = [row for row in rows if not row.failed]
    for columns in blocks(table, sound, width=out.width) if sound else ():
        shown = RichTable(box=box.SIMPLE_HEAD, pad_edge=False)
        shown.add_column("")
        for column in columns:
            shown.add_column(column.heading, justify="right")
        for row in sound:
            texts = []
            for column in columns:
                value, interval = cell_text(column, row.entries.get(column.key), differences=table.differences)
                value = f"[bold]{value}[/]" if is_best(column, row, sound) else value
                texts.append(f"{value}\n[dim]{interval}[/]" if interval else value)
            shown.add_row(table.label(row), *texts)
        out.print(shown)
    for row in rows:
        if row.failed:
            out.print(f"{table.label(row)}: failed: {row.failed}", style="red", **_PLAIN)

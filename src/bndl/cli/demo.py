"""``bndl demo``: from nothing to a picture in seconds."""

import argparse
import os
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from bndl.cli.console import console, seed, write_json
from bndl.demo.figure import draw
from bndl.demo.run import Case, Demo, Row
from bndl.demo.run import run as run_demo
from bndl.errors import FileError

if TYPE_CHECKING:
    from rich.table import Table

__all__ = ["add_arguments", "run"]

_NEXT = """[bold]Next[/]: your own model, in three lines of Python.

    model = bndl.convert(model)                [dim]# same predictions as before[/]
    bndl.fit(model, train_data, held_out)      [dim]# the backbone stays as it is[/]
    pred = bndl.predict(model, x)              [dim]# .probs .p_value .certain ...[/]

[bold]Then[/]: README.md, and bndl --help."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's options."""
    parser.add_argument("--out", type=Path, default=Path("demo.png"), help="the picture to write (default: demo.png)")
    parser.add_argument("--save", type=Path, help="also save the trained model, as safetensors")
    parser.add_argument("--seed", type=seed, default=0, help="of split, weights and noise (default: 0)")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON in place of the table")


def run(args: argparse.Namespace) -> int:
    """Train, draw, tell."""
    torch.set_num_threads(1)  # the images are 8 x 8: a second thread would only wait for the first
    for path in filter(None, (args.out, args.save)):  # said now, not after a minute of work
        if path.is_dir():
            raise FileError(f"cannot write {path}: it is a folder; add a file's name.")
        if not path.parent.is_dir() or not os.access(path.parent, os.W_OK):
            raise FileError(f"cannot write {path}: there is no folder {path.parent} that is yours; choose another.")
    out = console(stderr=args.json)
    with console(stderr=True).status("starting") as status:
        demo = run_demo(seed=args.seed, stage=lambda text: status.update(f"{text} ..."))
        status.update("drawing ...")
        picture = draw(demo, args.out)
        if args.save:
            from bndl.store import save

            save(demo.model, args.save, classes=[str(digit) for digit in range(10)])
    if args.json:
        write_json(_record(demo, picture))
        return 0
    out.print(_table(demo))
    _tell_deciles(demo, out)
    _tell_doubts(demo, out)
    out.print(f"[bold]Picture[/]: {picture}\n", soft_wrap=True)
    out.print(_NEXT)
    return 0


def _table(demo: Demo) -> "Table":
    from rich import box
    from rich.table import Table

    table = Table(
        title=f"{demo.num_test} digits never seen in training",
        title_justify="left",
        box=box.SIMPLE_HEAD,
        pad_edge=False,
    )
    headings = "accuracy", "NLL", "ECE", "PAvPU (all\ncertain)", "weights\na class", "features\na decision"
    table.add_column("")
    for heading in headings:
        table.add_column(heading, justify="right", no_wrap=True)
    for row in demo.rows:
        table.add_row(*_cells(row), style="bold" if row.name == "BNDL" else "")
    return table


def _cells(row: Row) -> tuple[str, ...]:
    return (
        row.name.replace(", ", ",\n"),
        f"{row.accuracy:.1%}",
        f"{row.nll:.3f}",
        f"{row.ece:.1%}",
        f"{row.pavpu.value:.1%} ({row.pavpu.baseline:.1%})",
        f"{row.weights_per_class:.1f}",
        f"{row.features_per_decision:.1f}",
    )


def _tell_deciles(demo: Demo, out: Any) -> None:
    count = demo.deciles.count
    wrong = [round((1 - a) * n) for a, n in zip(demo.deciles.accuracy, count, strict=True)]
    out.print(
        f"\nOf {sum(wrong)} mistakes, [bold]{wrong[-1]}[/] are among the {count[-1]} digits it is least sure of;\n"
        f"the other {sum(count[:-1])} have {sum(wrong[:-1])}.\n"
    )


def _tell_doubts(demo: Demo, out: Any) -> None:
    out.print("[bold]Least sure, and why[/] (f9 +1.3: feature 9 adds 1.3 more than for the other)")
    for case in demo.least_sure:
        verdict = "[green]right[/]" if case.label == case.truth else f"[red]wrong: it is {case.truth}[/]"
        out.print(
            f"  says [bold]{case.label}[/] at {case.probs[0]:.0%}, then {case.runner_up} at {case.probs[1]:.0%}; "
            f"p = {case.p_value:.2f}, flips at {case.flip_probability:.2f}; {verdict}"
        )
        for which, name in enumerate((case.label, case.runner_up)):
            out.print(f"     for {name}: {_reasons(case, which)}", style="dim")
    out.print()


def _reasons(case: Case, which: int) -> str:
    """The three features that speak most for one of the two classes and less for the other."""
    gain = case.terms[which] - case.terms[1 - which]
    best = [k for k in gain.argsort(descending=True)[:3].tolist() if gain[k] > 0]
    return ", ".join(f"f{k} +{float(gain[k]):.1f}" for k in best) or "nothing"


def _record(demo: Demo, picture: Path) -> dict[str, Any]:
    return {
        "num_test": demo.num_test,
        "rows": [asdict(r) | {"pavpu_value": r.pavpu.value, "pavpu_baseline": r.pavpu.baseline} for r in demo.rows],
        "deciles": asdict(demo.deciles),
        "least_sure": [
            {k: v for k, v in asdict(case).items() if k not in ("image", "evidence", "terms")}
            for case in demo.least_sure
        ],
        "picture": str(picture),
    }

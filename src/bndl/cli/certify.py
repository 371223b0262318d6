"""``bndl certify``: which features of a run are provably identifiable; ``--synthetic`` puts the certificate to the test."""

import argparse
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bndl.cli.console import console, seed, write_json
from bndl.errors import FileError, InputError

if TYPE_CHECKING:
    from bndl.certify import Certificate, Finding
    from bndl.certify.study import Study
    from bndl.data import LabelledSet
    from bndl.train import Run

__all__ = ["add_arguments", "run"]

_PLAIN: dict[str, Any] = {"soft_wrap": True, "markup": False}
_EPILOG = """examples:
  bndl certify runs/photos
  bndl certify runs/photos --tolerance 1e-4 --show 50
  bndl certify runs/photos --part val --json
  bndl certify --synthetic --seeds 20 --out certify.png"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's options."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = _EPILOG
    parser.add_argument("folder", nargs="?", type=Path, metavar="RUN", help="folder of a finished run of bndl train")
    parser.add_argument("--synthetic", action="store_true", help="test the certificate on planted problems instead")
    parser.add_argument("--data", metavar="NAME|PATH", help="other data (default: the run's own)")
    parser.add_argument("--part", choices=("test", "val"), help="which part of the data (default: test)")
    parser.add_argument("--limit", type=_count, metavar="N", help="at most N examples, chosen by the seed")
    parser.add_argument("--tolerance", type=_share, default=1e-6, help="share up to which an entry is zero (1e-6)")
    parser.add_argument("--rank-tolerance", type=_share, default=1e-6, help="the same for singular values (1e-6)")
    parser.add_argument("--min-cosine", type=_share, default=0.99, help="least guarantee to certify by (0.99)")
    parser.add_argument("--max-rows", type=_count, default=65_536, help="samples searched for witnesses (65536)")
    parser.add_argument("--show", type=_count, default=12, metavar="N", help="features to list, certified first (12)")
    parser.add_argument("--seeds", type=_count, default=20, help="with --synthetic: problems a view (20)")
    parser.add_argument("--out", type=Path, metavar="FILE", help="RUN: certificate.json; --synthetic: a picture")
    parser.add_argument("--batch-size", type=_count, default=256, help="examples a pass (256)")
    parser.add_argument("--seed", type=seed, default=0, help="of the choice of samples (0)")
    parser.add_argument("--json", action="store_true", help="print everything as JSON in place of the tables")


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"a whole number of at least 1 is needed, got {text!r}")
    return int(text)


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
    return _synthetic(args) if args.synthetic else _of_run(args)


# ------------------------------------------------------------------------------------------------------------- a run


def _of_run(args: argparse.Namespace) -> int:
    import torch

    from bndl.certify import certify
    from bndl.train import load_run, loader

    out = args.out or args.folder / "certificate.json"
    loaded = load_run(args.folder)
    _check_head(loaded, args.folder)
    data, about = _data(args, loaded)
    if torch.cuda.is_available():
        loaded.model.to("cuda")
    console(stderr=True).print(f"{loaded.recipe.name} on {about}: {len(data):,} examples", **_PLAIN)
    found = certify(
        loaded.model,
        loader(data, batch_size=args.batch_size),
        tolerance=args.tolerance,
        rank_tolerance=args.rank_tolerance,
        min_cosine=args.min_cosine,
        max_rows=args.max_rows,
        seed=args.seed,
    )
    found.save(out)
    if args.json:
        write_json({"file": str(out), "certificate": found.to_dict()})
    else:
        _tell(found, loaded.classes, show=args.show)
        console().print(f"\nWritten: {out}", **_PLAIN)
    return 0


def _check_head(loaded: "Run", folder: Path) -> None:
    from bndl.baselines import get_method

    head = loaded.recipe.model.head
    if not get_method(head).layered:
        raise InputError(
            f"{folder} was trained with a {head} head, whose weights have any sign: train with --set model.head=bndl, or "
            "convert the model with bndl.convert and call bndl.certify on it."
        )


def _data(args: argparse.Namespace, loaded: "Run") -> "tuple[LabelledSet, str]":
    from bndl.evaluation import of_run

    if args.data is None:
        part = args.part or "test"
        data, name = of_run.own_part(loaded, part), loaded.recipe.data.name
    else:
        data, part = of_run.other_data(args.data, loaded, part=args.part)
        name = args.data
    return of_run.limited(data, args.limit, seed=args.seed), f"{Path(name).name} {part}"


def _tell(found: "Certificate", classes: tuple[str, ...], *, show: int) -> None:
    out = console()
    limits = found.thresholds
    out.print(
        f"{found.num_active} of {found.num_features} features are active (K_eff), {found.num_classes} classes; "
        f"Theta Phi has rank {found.rank} (singular values above {limits.rank_tolerance:g} of the largest); "
        f"zero is up to {limits.tolerance:g} of a sample's or class's largest entry.",
        **_PLAIN,
    )
    if found.reason:
        out.print(f"Not applicable: {found.reason}.", **_PLAIN)
    for side, what in (("theta", "features (columns of Theta)"), ("phi", "rows of Phi")):
        counts = found.count("theta" if side == "theta" else "phi")
        out.print(f"  {what}: " + ", ".join(f"{count} {verdict}" for verdict, count in counts.items()), **_PLAIN)
    out.print(
        f"  samples with a class that nothing speaks for: {found.anchored:.1%} (docs/theory.md says why it matters)"
    )
    out.print(_table(found, classes, show=show))
    out.print(_sensitivity(found))


def _table(found: "Certificate", classes: tuple[str, ...], *, show: int) -> Any:
    from rich import box
    from rich.markup import escape
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, title="Features, certified first", title_justify="left")
    for heading in ("", "verdict", "class", "leakage", "zeros", "rank", "why"):
        table.add_column(heading, justify="right" if heading in ("", "leakage", "zeros", "rank") else "left")
    rows = {finding.feature: finding for finding in found.phi}
    for finding in sorted(found.theta, key=lambda own: own.verdict != "identifiable")[:show]:
        window, zeros = finding.window, finding.zeros
        table.add_row(
            str(finding.feature),
            "n/a" if found.reason else finding.verdict,
            "-" if window is None else escape(classes[window.witness]),
            "-" if window is None else f"{window.leakage:.1e}",
            f"{zeros.count:,}",
            "-" if zeros.rank is None else f"{zeros.rank}/{zeros.needed}",
            f"{'' if found.reason else escape(finding.reason) + '; '}row of Phi: {_short(rows[finding.feature])}",
        )
    return table


def _short(finding: "Finding") -> str:
    window, zeros = finding.window, finding.zeros
    held = "window" if window is not None and window.holds else "no window"
    span = "zeros not searched" if zeros.holds is None else "zeros span" if zeros.holds else "zeros do not span"
    return f"{held}, {span}" if finding.verdict == "not applicable" else f"{finding.verdict} ({held}, {span})"


def _sensitivity(found: "Certificate") -> Any:
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, title="With other thresholds", title_justify="left")
    headings = (
        "zero",
        "rank",
        "K_eff",
        "r",
        "Theta: windows",
        "zeros",
        "certified",
        "Phi: windows",
        "zeros",
        "certified",
    )
    for heading in headings:
        table.add_column(heading, justify="right")
    for own in found.sensitivity:
        values = list(asdict(own).values())
        identifiable = [str(values[7]), str(values[10])] if own.applicable else ["n/a", "n/a"]
        middle = [str(value) for value in (values[2], values[3], values[5], values[6])]
        shown = [f"{own.tolerance:g}", f"{own.rank_tolerance:g}", *middle, identifiable[0]]
        table.add_row(*shown, str(values[8]), str(values[9]), identifiable[1])
    return table


# --------------------------------------------------------------------------------------------------------- synthetic


def _synthetic(args: argparse.Namespace) -> int:
    from bndl.certify.figure import check_picture, draw
    from bndl.certify.study import study

    picture = check_picture(args.out or Path("certify.png"))
    if not picture.parent.is_dir():
        raise FileError(f"there is no folder {picture.parent} for the picture: choose another --out.")
    found = study(range(args.seeds))
    draw(found, picture)
    if args.json:
        write_json({"picture": str(picture), **asdict(found)})
    else:
        _tell_study(found)
        console().print(f"Picture: {picture}", **_PLAIN)
    return 0


def _tell_study(found: "Study") -> None:
    from rich import box
    from rich.table import Table

    from bndl.certify.study import RECOVERED

    out = console()
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, title=f"Recovered (cosine > {RECOVERED})", title_justify="left")
    for heading in ("logits seen", "certified theta", "other theta", "certified Phi rows", "other Phi rows"):
        table.add_column(heading, justify="left" if heading == "logits seen" else "right")
    for view in dict.fromkeys(column.view for column in found.columns):
        cells = []
        for side in ("theta", "phi"):
            for certified in (True, False):
                recovered, count = found.share(view, side=side, certified=certified)
                cells.append(f"{recovered} of {count}")
        table.add_row(view, *cells)
    out.print(table)
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, title="Controls, to be refused", title_justify="left")
    for heading in ("control", "certified", "by counting zeros", "least cosine of a disguise", "why (first feature)"):
        table.add_column(heading, justify="left" if heading in ("control", "why (first feature)") else "right")
    for name in dict.fromkeys(control.name for control in found.controls):
        own = [control for control in found.controls if control.name == name]
        moved = min(control.moved for control in own)
        sums = (str(sum(c.certified for c in own)), str(sum(c.counted for c in own)))
        table.add_row(name, *sums, "-" if moved != moved else f"{moved:.4f}", own[0].reason)
    out.print(table)

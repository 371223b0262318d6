"""What the commands that explain a run have in common: which run, on which data, and how to open it."""

import argparse
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bndl.cli.console import console, count, number, seed

if TYPE_CHECKING:
    from bndl.report import Options
    from bndl.report.of_run import Opened

__all__ = ["PLAIN", "add_names_argument", "add_run_arguments", "add_size_arguments", "opened", "options", "stages"]

PLAIN: dict[str, Any] = {"soft_wrap": True, "markup": False}  # paths and names may hold brackets


def add_run_arguments(parser: argparse.ArgumentParser) -> None:
    """The run, and what it is shown on."""
    parser.add_argument("folder", type=Path, metavar="RUN", help="folder of a finished run; a dense head is converted")
    parser.add_argument("--head", type=Path, metavar="FILE", help="a model of this run: sparsified, or edited before")
    parser.add_argument("--data", metavar="NAME|PATH", help="other data with the same classes (default: the run's own)")
    parser.add_argument("--part", choices=("test", "val"), help="which part of the data (default: test)")
    parser.add_argument("--limit", type=count, metavar="N", help="at most N examples, chosen by the seed")
    parser.add_argument("--cache", type=Path, metavar="DIR", help="folder of cached features (default: RUN/features)")
    add_names_argument(parser)
    parser.add_argument("--seed", type=seed, default=0, help="of everything random (default: 0)")


def add_names_argument(parser: argparse.ArgumentParser) -> None:
    """What to call the classes."""
    parser.add_argument(
        "--names", type=Path, metavar="FILE", help="what to call the classes: a line each, 'n03000684 chain saw'"
    )


def add_size_arguments(parser: argparse.ArgumentParser, *, faithfulness: int, lime: int) -> None:
    """How much is measured before the page is shown."""
    parser.add_argument(
        "--faithfulness",
        type=number,
        default=faithfulness,
        metavar="N",
        help=f"images to delete from and insert into, to see whether maps are true (default: {faithfulness}; 0: none)",
    )
    parser.add_argument(
        "--lime",
        type=number,
        default=lime,
        metavar="N",
        help=f"mistakes for LIME to look at (default: {lime}; 0: none)",
    )


def stages() -> Callable[[str], None]:
    """Tells on stderr what is being done, and how long after the start."""
    started, messages = time.monotonic(), console(stderr=True)
    return lambda text: messages.print(f"{time.monotonic() - started:6.1f} s  {text}", **PLAIN)


def opened(args: argparse.Namespace, stage: Callable[[str], None]) -> "Opened":
    """The run with its data."""
    from bndl.report.of_run import open_run

    return open_run(
        args.folder,
        head=args.head,
        source=args.data,
        part=args.part,
        limit=args.limit,
        cache=args.cache,
        names=args.names,
        seed=args.seed,
        stage=stage,
    )


def options(args: argparse.Namespace) -> "Options":
    """How much goes in."""
    from bndl.report import Options

    return Options(num_faithful=args.faithfulness, num_lime=args.lime, seed=args.seed)

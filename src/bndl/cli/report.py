"""``bndl report``: a run's folder, one command, one HTML file that says how good it is, and why it decides as it does."""

import argparse
import os
import secrets
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bndl.cli.console import console, count, number, seed, write_json
from bndl.errors import FileError

if TYPE_CHECKING:
    from bndl.report import Options, ReportData

__all__ = ["add_arguments", "run"]

_PLAIN: dict[str, Any] = {"soft_wrap": True, "markup": False}  # paths and names may hold brackets
_EPILOG = """examples:
  bndl report runs/photos
  bndl report runs/cifar10 --out cifar10.html
  bndl report runs/cifar10 --head runs/cifar10/sparse/model.safetensors --out few.html
  bndl report runs/cifar10 --limit 1000 --faithfulness 0 --lime 0"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's options."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = _EPILOG
    parser.add_argument("folder", type=Path, metavar="RUN", help="folder of a finished run; a dense head is converted")
    parser.add_argument("--out", type=Path, metavar="FILE", help="the page to write (default: RUN/report.html)")
    parser.add_argument("--head", type=Path, metavar="FILE", help="a model of this run that bndl sparsify wrote")
    parser.add_argument("--data", metavar="NAME|PATH", help="other data with the same classes (default: the run's own)")
    parser.add_argument("--part", choices=("test", "val"), help="which part of the data (default: test)")
    parser.add_argument("--limit", type=count, metavar="N", help="at most N examples, chosen by the seed")
    parser.add_argument("--cache", type=Path, metavar="DIR", help="folder of cached features (default: RUN/features)")
    parser.add_argument(
        "--faithfulness",
        type=number,
        default=32,
        metavar="N",
        help="images to delete from and insert into, to see whether maps are true (default: 32; 0: none)",
    )
    parser.add_argument(
        "--lime", type=number, default=12, metavar="N", help="mistakes for LIME to look at (default: 12; 0: none)"
    )
    parser.add_argument("--seed", type=seed, default=0, help="of everything random (default: 0)")
    parser.add_argument("--json", action="store_true", help="print where the page is and its figures as JSON")


def run(args: argparse.Namespace) -> int:
    """Load, collect, write, tell."""
    started, messages = time.monotonic(), console(stderr=True)
    path = _writable(args.out or args.folder / "report.html", args.folder)

    def stage(text: str) -> None:
        messages.print(f"{time.monotonic() - started:6.1f} s  {text}", **_PLAIN)

    from bndl.report import page
    from bndl.report.of_run import open_run, report_of

    opened = open_run(
        args.folder,
        head=args.head,
        source=args.data,
        part=args.part,
        limit=args.limit,
        cache=args.cache,
        seed=args.seed,
        stage=stage,
    )
    data = report_of(opened, options=_options(args), stage=stage)
    record = data.to_dict()
    page.write(record, path)
    if args.json:
        seconds = round(time.monotonic() - started, 1)
        facts = {"report": str(path), "bytes": path.stat().st_size, "seconds": seconds}
        write_json(facts | {"verdict": record["verdict"], "about": record["meta"]["about"]})
    else:
        _tell(data, path)
    return 0


def _writable(path: Path, folder: Path) -> Path:
    """The page's path, if it can be written: said before minutes of work."""
    if not folder.is_dir():
        raise FileError(f"there is no folder {folder}: give that of a finished run of bndl train.")
    if os.path.isdir(path):
        raise FileError(f"cannot write {path}: it is a folder; add a file's name.")
    probe = path.with_name(f".{secrets.token_hex(4)}.{path.name}")  # as long a name as the page is written under
    try:
        probe.touch(exist_ok=False)
        probe.unlink()
    except OSError as error:
        raise FileError(
            f"cannot write {path} ({error.strerror}): choose an --out in a folder that exists and is yours."
        ) from error
    return path


def _options(args: argparse.Namespace) -> "Options":
    from bndl.report import Options

    return Options(num_faithful=args.faithfulness, num_lime=args.lime, seed=args.seed)


def _tell(data: "ReportData", path: Path) -> None:
    out, verdict = console(), data.verdict
    assert verdict.accuracy is not None
    for note in data.meta.about:
        out.print(note, **_PLAIN)
    wrong = sum(1 for _ in data.mistakes)
    out.print(
        f"accuracy {verdict.accuracy.value:.2%} on {data.meta.num_examples:,} examples of {data.meta.data}; "
        f"{data.meta.num_used} of {data.meta.num_features} features in use; {wrong} mistakes taken apart",
        **_PLAIN,
    )
    out.print(f"Written: {path} ({path.stat().st_size / 1e6:.1f} MB)", **_PLAIN)

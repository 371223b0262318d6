"""``bndl report``: a run's folder, one command, one HTML file that says how good it is, and why it decides as it does."""

import argparse
import os
import secrets
import time
from pathlib import Path
from typing import TYPE_CHECKING

from bndl.cli.console import console, write_json
from bndl.cli.opening import PLAIN, add_run_arguments, add_size_arguments, opened, options, stages
from bndl.errors import FileError

if TYPE_CHECKING:
    from bndl.report import ReportData

__all__ = ["add_arguments", "run"]

_EPILOG = """examples:
  bndl report runs/photos
  bndl report runs/cifar10 --out cifar10.html
  bndl report runs/cifar10 --head runs/cifar10/sparse/model.safetensors --out few.html
  bndl report runs/cifar10 --limit 1000 --faithfulness 0 --lime 0"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's options."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = _EPILOG
    add_run_arguments(parser)
    parser.add_argument("--out", type=Path, metavar="FILE", help="the page to write (default: RUN/report.html)")
    add_size_arguments(parser, faithfulness=32, lime=12)
    parser.add_argument("--json", action="store_true", help="print where the page is and its figures as JSON")


def run(args: argparse.Namespace) -> int:
    """Load, collect, write, tell."""
    started, stage = time.monotonic(), stages()
    path = _writable(args.out or args.folder / "report.html", args.folder)

    from bndl.report import page
    from bndl.report.of_run import report_of

    data = report_of(opened(args, stage), options=options(args), stage=stage)
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


def _tell(data: "ReportData", path: Path) -> None:
    out, verdict = console(), data.verdict
    assert verdict.accuracy is not None
    for note in data.meta.about:
        out.print(note, **PLAIN)
    wrong = sum(1 for _ in data.mistakes)
    out.print(
        f"accuracy {verdict.accuracy.value:.2%} on {data.meta.num_examples:,} examples of {data.meta.data}; "
        f"{data.meta.num_used} of {data.meta.num_features} features in use; {wrong} mistakes taken apart",
        **PLAIN,
    )
    out.print(f"Written: {path} ({path.stat().st_size / 1e6:.1f} MB)", **PLAIN)

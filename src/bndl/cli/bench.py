"""``bndl bench``: the claims of speed, measured here, next to the packages they compare with."""

import argparse
import json
from pathlib import Path
from typing import Any

from bndl.cli.console import console, write_json
from bndl.cli.opening import PLAIN
from bndl.errors import BndlError, FileError, InputError, MissingExtraError
from bndl.files import replacing

__all__ = ["add_arguments", "run"]

_EPILOG = """examples:
  bndl bench --list
  bndl bench                      every benchmark, one after the other, on an otherwise quiet machine
  bndl bench head startup --rounds 3 --out speed"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's options."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = _EPILOG
    parser.add_argument("names", nargs="*", metavar="NAME", help="which benchmarks (default: all)")
    parser.add_argument("--list", action="store_true", help="show the benchmarks")
    parser.add_argument("--folder", type=Path, metavar="DIR", help="where they are (default: benchmarks)")
    parser.add_argument("--rounds", type=int, metavar="N", help="rounds that are counted, for all (default: their own)")
    parser.add_argument(
        "--out", type=Path, default=Path("bench"), metavar="DIR", help="where to write (default: bench)"
    )
    parser.add_argument("--json", action="store_true", help="print the findings as JSON")


def run(args: argparse.Namespace) -> int:
    """List, or measure and tell; 0 only if every benchmark ran and every claim holds."""
    from bndl.bench.suite import find

    files = find(args.folder)
    if args.list:
        return _list(files, as_json=args.json)
    if unknown := [name for name in args.names if name not in files]:
        raise InputError(f"no benchmark is called {unknown[0]!r}; choose from {', '.join(files)}.")
    if args.rounds is not None and args.rounds < 1:
        raise InputError(f"--rounds is a whole number of at least 1, got {args.rounds}.")
    try:
        args.out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise FileError(f"cannot write to {args.out} ({error.strerror}): choose another --out.") from error
    wanted = {name: files[name] for name in args.names or files}
    records = _measured(args, wanted)
    if args.json:
        write_json({"folder": str(args.out), "benchmarks": records})
    hold = all(claim["holds"] for record in records for claim in record["claims"])
    return 0 if hold and len(records) == len(wanted) else 1


def _measured(args: argparse.Namespace, files: dict[str, Path]) -> list[dict[str, Any]]:
    """One after the other; what is finished is on disk before the next begins."""
    from bndl.bench.figure import draw
    from bndl.bench.markdown import page
    from bndl.bench.suite import measure

    messages, out = console(stderr=True), console(stderr=args.json)
    records: list[dict[str, Any]] = []
    options = [] if args.rounds is None else ["--rounds", str(args.rounds)]
    for number, (name, file) in enumerate(files.items(), start=1):
        messages.print(f"{number} of {len(files)}: {name}", **PLAIN)
        try:
            records.append(measure(file, arguments=options, tell=lambda line: out.print(line, **PLAIN)))
        except BndlError as error:  # a peer that is not installed: the others are worth having
            messages.print(f"left out: {error}", **PLAIN)
            continue
        with replacing(args.out / "bench.json") as temporary:
            temporary.write_text(json.dumps(records, indent=2) + "\n", encoding="utf-8")
    if not records:
        raise InputError("no benchmark could be run: see above for what each lacks.")
    with replacing(args.out / "bench.md") as temporary:
        temporary.write_text(page(records), encoding="utf-8")
    wrote = ["bench.json", "bench.md"]
    try:
        wrote.append(draw(records, args.out / "bench.png").name)
    except MissingExtraError as error:
        messages.print(f"no picture: {error}", **PLAIN)
    messages.print(f"Written to {args.out}: {', '.join(wrote)}", **PLAIN)
    return records


def _list(files: dict[str, Path], *, as_json: bool) -> int:
    about = {name: _first_line(file) for name, file in files.items()}
    if as_json:
        write_json(about)
        return 0
    for name, line in about.items():
        console().print(f"{name:12} {line}", **PLAIN)
    return 0


def _first_line(file: Path) -> str:
    import ast

    text = ast.get_docstring(ast.parse(file.read_text(encoding="utf-8"))) or ""
    return text.partition("\n")[0]

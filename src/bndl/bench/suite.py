"""All benchmarks of a folder, one process each, one after the other; what they found in one file."""

import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import bndl
from bndl.errors import BndlError, InputError

__all__ = ["PREFIX", "find", "measure"]

PREFIX = "speed_"


def find(folder: Path | None = None) -> dict[str, Path]:
    """The benchmarks by name: of a folder, or of ``benchmarks/`` here or beside the installed source tree."""
    places = [folder] if folder else [Path("benchmarks"), Path(bndl.__file__).parents[2] / "benchmarks"]
    for place in places:
        files = {file.stem.removeprefix(PREFIX): file for file in sorted(place.glob(f"{PREFIX}*.py"))}
        if files:
            return files
    raise InputError(
        f"there is no benchmark ({PREFIX}*.py) in {places[0]}: they are part of the source tree, so clone it and run "
        "bndl bench there, or give --folder."
    )


def measure(
    file: Path, *, arguments: Sequence[str] = (), tell: Callable[[str], None] = lambda _: None
) -> dict[str, Any]:
    """Run one benchmark in a process of its own; its record.

    Args:
        file: the benchmark.
        arguments: its options, such as ``--rounds 3``.
        tell: is told each line that it prints.
    """
    with tempfile.TemporaryDirectory() as folder:
        found = Path(folder) / "found.json"
        command = [sys.executable, str(file), "--json", str(found), *arguments]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        assert process.stdout is not None
        last = ""
        try:
            for line in process.stdout:
                tell(line.rstrip("\n"))
                last = line.strip() or last
            process.wait()
        finally:
            process.kill()
            process.stdout.close()
        if not found.is_file():
            raise BndlError(f"{file.name} failed with exit code {process.returncode}: {last or 'it said nothing'}")
        record: dict[str, Any] = json.loads(found.read_text(encoding="utf-8"))
        return record

"""What a benchmark found: rows, claims and whether they hold, with the machine; as text, JSON, and from a command line."""

import argparse
import importlib.metadata
import json
import os
import platform
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

import torch

from bndl.bench.markdown import table
from bndl.bench.race import Spread
from bndl.errors import FileError
from bndl.files import replacing

__all__ = ["Claim", "Record", "main"]


@dataclass(frozen=True)
class Claim:
    """A ratio that should be at most, or at least, some number.

    Attributes:
        about: what is measured, in words.
        value: the ratio.
        bound: what it is held against.
        sense: ``"at most"`` or ``"at least"``.
    """

    about: str
    value: Spread
    bound: float
    sense: Literal["at most", "at least"]

    @property
    def holds(self) -> bool:
        """Whether the median is on the right side."""
        return self.value.median <= self.bound if self.sense == "at most" else self.value.median >= self.bound

    def __str__(self) -> str:
        v = self.value
        verdict = "holds" if self.holds else "does NOT hold"
        spread = "" if v.low == v.high else f" ({v.low:.3g} to {v.high:.3g})"
        return f"{self.about}: {v.median:.3g}{spread}, {self.sense} {self.bound:g} wanted: {verdict}"


@dataclass(frozen=True)
class Record:
    """One benchmark's findings.

    Attributes:
        name: of the benchmark.
        about: one sentence.
        rows: a table, every row with the same keys.
        claims: what the table shows.
        settings: sizes, rounds, threads.
        packages: whose versions matter.
        notes: what a reader has to know, a sentence each.
    """

    name: str
    about: str
    rows: list[dict[str, Any]]
    claims: list[Claim] = field(default_factory=list)
    settings: dict[str, Any] = field(default_factory=dict)
    packages: Sequence[str] = ()
    notes: Sequence[str] = ()

    def to_dict(self) -> dict[str, Any]:
        """For JSON, with the machine and the versions."""
        return {
            "name": self.name,
            "about": self.about,
            "machine": {
                "cores": os.cpu_count(),
                "threads": torch.get_num_threads(),
                "python": platform.python_version(),
            },
            "versions": {name: importlib.metadata.version(name) for name in ("torch", "numpy", *self.packages)},
            "settings": self.settings,
            "rows": self.rows,
            "claims": [asdict(claim) | {"holds": claim.holds} for claim in self.claims],
            "notes": list(self.notes),
        }

    def text(self) -> str:
        """Markdown: the machine, the table, the claims."""
        given = self.to_dict()
        versions = ", ".join(f"{name} {version}" for name, version in given["versions"].items())
        settings = ", ".join(f"{name} {value}" for name, value in self.settings.items())
        machine = f"{given['machine']['cores']} cores, {given['machine']['threads']} threads; {versions}"
        lines = [f"{self.name}: {self.about}", f"{machine}; {settings}", ""]
        if self.rows:
            lines += [*table(self.rows), ""]
        return "\n".join([*lines, *self.notes, *map(str, self.claims)])


def main(
    about: str | None,
    measure: Callable[[argparse.Namespace], Record],
    add_arguments: Callable[[argparse.ArgumentParser], None] = lambda _: None,
    *,
    rounds: int = 7,
) -> int:
    """The command line of a benchmark's file: measure, print, write JSON; 1 if a claim does not hold.

    Args:
        about: the file's docstring.
        measure: makes the record from the arguments.
        add_arguments: adds the benchmark's own.
        rounds: default of ``--rounds``.
    """
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=rounds, help=f"rounds that are counted (default: {rounds})")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads(), help="of torch (default: all cores)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the findings here")
    add_arguments(parser)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    record = measure(args)
    if args.json:
        write_json(record.to_dict(), args.json)
    print(record.text(), flush=True)  # noqa: T201 - it is a program's output
    return 0 if all(claim.holds for claim in record.claims) else 1


def write_json(found: Any, path: Path) -> None:
    """Atomically."""
    if not path.parent.is_dir():
        raise FileError(f"cannot write {path}: there is no folder {path.parent}.")
    with replacing(path) as temporary:
        temporary.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")

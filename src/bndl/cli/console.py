"""Where commands talk: results on standard output, all else on standard error."""

import argparse
import json
import sys
import unicodedata
from typing import TYPE_CHECKING, Any

from bndl.errors import MissingExtraError

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["console", "count", "fail", "number", "plain", "seed", "write_json"]

_UNSEEN = ("Cc", "Cf", "Cs", "Zl", "Zp")  # control, direction and joining, halves of pairs, ends of lines


def console(*, stderr: bool = False) -> "Console":
    """A rich console; plain text when not on a terminal."""
    try:
        from rich.console import Console
    except ImportError as error:
        raise MissingExtraError("the command line", extra="cli") from error
    return Console(stderr=stderr, highlight=False)


def plain(text: str) -> str:
    r"""A name on one line of a terminal, which it cannot steer: what is not seen is escaped, such as ``\x1b``."""
    return "".join(
        c.encode("unicode_escape").decode("ascii") if unicodedata.category(c) in _UNSEEN else c for c in text
    )


def write_json(record: dict[str, Any]) -> None:
    """One JSON object on standard output."""
    sys.stdout.write(json.dumps(record, indent=2) + "\n")


def seed(text: str) -> int:
    """A seed, as the type of a command's option."""
    if not text.isdecimal() or int(text) >= 2**32:
        raise argparse.ArgumentTypeError(f"a seed is a whole number from 0 to {2**32 - 1}, got {text!r}")
    return int(text)


def count(text: str) -> int:
    """At least one of something, as the type of a command's option."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"a whole number of at least 1 is needed, got {text!r}")
    return int(text)


def number(text: str) -> int:
    """Any number of something, none included, as the type of a command's option."""
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"a whole number from 0 on is needed, got {text!r}")
    return int(text)


def fail(message: str, *, code: int) -> int:
    """Say what went wrong in one sentence on standard error; the exit code."""
    sys.stderr.write(f"bndl: {plain(' '.join(message.splitlines()))}\n")
    return code

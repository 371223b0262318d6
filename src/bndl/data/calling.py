"""What to call the classes: folders are often numbers of a catalogue, such as n03000684, and readers want words."""

import os
import re
from collections import Counter

from bndl.errors import FileError

__all__ = ["IMAGENETTE", "known_names", "read_names"]

IMAGENETTE = {
    "n01440764": "tench",
    "n02102040": "English springer",
    "n02979186": "cassette player",
    "n03000684": "chain saw",
    "n03028079": "church",
    "n03394916": "French horn",
    "n03417042": "garbage truck",
    "n03425413": "gas pump",
    "n03445777": "golf ball",
    "n03888257": "parachute",
}
"""The classes of Imagenette: what its folders are called, and what is in them."""


def read_names(path: str | os.PathLike[str], classes: tuple[str, ...]) -> tuple[str, ...]:
    """What a text file calls the classes, and their own names for those that it leaves out.

    Args:
        path: a line a class: its name in the data, a space, comma or tab, and what to call it, in quotes or not. Lines of
            classes that there are not are passed over.
        classes: their names in the data.
    """
    try:
        with open(path, encoding="utf-8-sig") as file:
            lines = [line.strip() for line in file]
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is no text in UTF-8"
        raise FileError(f"cannot read names of classes from {path} ({reason}).") from error
    found: dict[str, str] = {}
    for number, line in enumerate(lines, start=1):
        own = max((name for name in classes if re.match(rf"{re.escape(name)}[,\s]", line)), key=len, default=None)
        if own is None:
            continue
        said = line[len(own) :].strip(", \t").strip('"')
        if not said or not said.isprintable():
            raise FileError(f"line {number} of {path} does not say what to call {own!r}: write '{own} its name'.")
        if own in found:
            raise FileError(f"line {number} of {path} names {own!r} once more: keep one line a class.")
        found[own] = said
    if not found:
        raise FileError(
            f"{path} names no class of this run, whose first is {classes[0]!r}: begin each line with such a name."
        )
    names = tuple(found.get(own, own) for own in classes)
    if twice := _twice(names):
        raise FileError(f"by {path} two classes would be called {twice!r}: give each a name of its own.")
    return names


def known_names(classes: tuple[str, ...]) -> tuple[str, ...]:
    """Words for the numbers of published data sets, their own names for all others."""
    names = tuple(IMAGENETTE.get(own, own) for own in classes)
    return classes if _twice(names) else names


def _twice(names: tuple[str, ...]) -> str | None:
    return next((name for name, count in Counter(names).items() if count > 1), None)

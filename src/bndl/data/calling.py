"""What to call the classes: folders are often numbers of a catalogue, such as n03000684, and readers want words."""

import os
from collections.abc import Mapping

from bndl.errors import FileError, InputError

__all__ = ["read_names", "shown_names"]

_KNOWN = {  # Imagenette's ten folders
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


def read_names(path: str | os.PathLike[str]) -> dict[str, str]:
    """A text file, a line a class: its name in the data, a space, comma or tab, and what to call it."""
    try:
        with open(path, encoding="utf-8-sig") as file:
            lines = [line.strip() for line in file]
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is no text in UTF-8"
        raise FileError(f"cannot read names of classes from {path} ({reason}).") from error
    names: dict[str, str] = {}
    for number, line in enumerate(lines, start=1):
        if not line:
            continue
        own, *rest = line.replace(",", " ", 1).split(maxsplit=1) if "\t" not in line else line.split("\t", 1)
        if not rest or not rest[0].strip():
            raise FileError(
                f"line {number} of {path} is no name of a class: write 'n03000684 chain saw', a line a class."
            )
        names[own.strip()] = rest[0].strip()
    return names


def shown_names(classes: tuple[str, ...], given: Mapping[str, str] | None = None) -> tuple[str, ...]:
    """What to call each class: as given, as known, or by its own name.

    Args:
        classes: their names in the data.
        given: other names for some or all of them; None: those that are known for published data sets.
    """
    if given is not None and not {*classes} & {*given}:
        raise InputError(
            f"none of the names is for a class of this run, whose first is {classes[0]!r}: begin each line with such a name."
        )
    names = tuple((_KNOWN if given is None else given).get(own, own) for own in classes)
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None and len({*classes}) == len(classes):
        raise InputError(f"two classes would be called {twice!r}: give each a name of its own.")
    return names

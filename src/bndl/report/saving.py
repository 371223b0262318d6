"""Keep an edited model beside its run: in a folder that the server names, and never over another."""

import os
import secrets
import shutil
from collections.abc import Sequence
from pathlib import Path

from bndl.edit import Edit, Editor
from bndl.errors import FileError, InputError
from bndl.report.session import Session
from bndl.store import save

__all__ = ["save_edited"]

_MOST = 9999


def save_edited(session: Session, edits: Sequence[Edit]) -> Path:
    """Write ``RUN/edited/NNN/model.safetensors`` and ``edits.json``, both or none; the folder.

    The model is whole, with the edits in its header; ``bndl explain RUN --head`` and ``bndl.edit.Editor.load`` read it.

    Args:
        session: what is explored.
        edits: to make to its model, at least one.
    """
    if not edits:
        raise InputError("there is no edit to save: change a weight first.")
    editor = Editor(session.model())
    for edit in edits:
        editor.apply(edit)
    base = session.folder / "edited"
    temporary = base / f".{secrets.token_hex(4)}"
    try:
        temporary.mkdir(parents=True)
        save(editor.model, temporary / "model.safetensors", classes=session.classes, edits=editor)
        editor.save(temporary / "edits.json")
        return _numbered(temporary, base)
    except FileError:
        raise
    except OSError as error:
        raise FileError(f"cannot write to {base} ({error.strerror}): make room there, or make it yours.") from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _numbered(temporary: Path, base: Path) -> Path:
    """Give the folder the first free number; a folder that is there already is never replaced."""
    for number in range(1, _MOST + 1):
        place = base / f"{number:03d}"
        if place.exists():
            continue
        try:
            os.rename(temporary, place)  # refused by the system where somebody has just put files
        except OSError:
            if place.exists():
                continue
            raise
        return place
    raise FileError(f"{base} holds {_MOST} edited models already: remove some.")

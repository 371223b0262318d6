"""Which head a report is of, in words: its file, and the edits by hand that its header holds."""

from pathlib import Path
from typing import Any

from bndl.edit import Edit
from bndl.errors import InputError
from bndl.explain.classes import feature_name
from bndl.explain.subject import Subject
from bndl.store import read_header

__all__ = ["head_words"]

_LISTED = 5  # edits
_LONGEST = 80  # characters of a note


def head_words(subject: Subject, head: Path) -> str:
    """``the head is that of edited/001/model.safetensors, with 1 edit by hand: f12 in church times 0.5 (the frame)``.

    Args:
        subject: the run with this head.
        head: its file; named by its path in the run's folder or, from elsewhere, by its name alone.
    """
    file, folder = head.resolve(), Path(subject.run.folder).resolve()
    name = file.relative_to(folder).as_posix() if file.is_relative_to(folder) else head.name
    return f"the head is that of {name}{_edits_words(subject, read_header(head).get('edits'))}"


def _edits_words(subject: Subject, record: Any) -> str:
    """What the record of an editor says was done, "" if nothing; at most five edits are listed."""
    if not record:
        return ""
    try:
        edits = [Edit(**one) for one in record["edits"]]
    except (KeyError, TypeError, InputError):
        return ", with edits by hand that cannot be read"
    if not edits:
        return ""
    listed = [_words(subject, edit) for edit in edits[:_LISTED]]
    listed += [f"and {len(edits) - _LISTED} more"] if len(edits) > _LISTED else []
    return f", with {len(edits)} edit{'' if len(edits) == 1 else 's'} by hand: {', '.join(listed)}"


def _words(subject: Subject, edit: Edit) -> str:
    classes = subject.classes
    if edit.target is None:
        where = "in all classes"
    else:
        where = f"in {classes[edit.target] if edit.target < len(classes) else f'class {edit.target}'}"
    note = " ".join(edit.note.split())
    note = note if len(note) <= _LONGEST else f"{note[: _LONGEST - 3]}..."
    return f"{feature_name(edit.feature, subject.layer.in_features)} {where} times {edit.factor:g}" + (
        f" ({note})" if note else ""
    )

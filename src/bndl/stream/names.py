r"""File names as text that every format can hold, and back.

A name is bytes, and a table holds UTF-8. So a byte that is no UTF-8 is written ``\xNN``, and, to tell that from a name with
a backslash, a backslash is written twice. All other names, with newlines, commas and quotes, stand as they are.
"""

import re

__all__ = ["from_text", "to_text"]

_ESCAPED = re.compile(r"\\(?:(\\)|x([0-9a-f]{2})|u([0-9a-f]{4}))")
_SURROGATE = re.compile("[\ud800-\udfff]")


def to_text(name: str) -> str:
    """A file's name, as :mod:`os` gives it, as valid Unicode."""
    if "\\" not in name and not _SURROGATE.search(name):
        return name
    return _SURROGATE.sub(lambda found: _escape(ord(found[0])), name.replace("\\", "\\\\"))


def from_text(text: str) -> str:
    """The name that :func:`to_text` was given: what :func:`open` takes."""
    return _ESCAPED.sub(
        lambda found: found[1] or chr(int(found[3], 16) if found[3] else 0xDC00 + int(found[2], 16)), text
    )


def _escape(code: int) -> str:
    return f"\\x{code - 0xDC00:02x}" if 0xDC80 <= code <= 0xDCFF else f"\\u{code:04x}"

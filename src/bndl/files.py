"""Files that are written whole or not at all."""

import errno
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from bndl.errors import FileError

__all__ = ["replacing"]

_CURES = {errno.ENOSPC: "make room on the disk", errno.ENAMETOOLONG: "choose a shorter name"}


@contextmanager
def replacing(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Yield a temporary name beside ``path`` to write to; it takes the path's place when the block ends well.

    A reader sees the old file or the new one, never a part; after an error the old one stands and nothing is left over.
    """
    path = Path(path)
    if not path.name or os.path.isdir(path):  # false where the name is too long
        raise FileError(f"cannot write {path}: it is a folder; add a file's name.")
    if os.path.exists(path) and not os.path.isfile(path):
        raise FileError(f"cannot write {path}: it is no ordinary file; choose another name.")
    temporary = path.with_name(f".{secrets.token_hex(4)}.{path.name}")
    try:
        temporary.touch()  # what cannot be written is known before the work
        temporary.unlink()
        yield temporary
        with temporary.open("rb") as file:
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except OSError as error:
        cure = _CURES.get(error.errno or 0, "choose a folder that exists and is yours")
        raise FileError(f"cannot write {path} ({error.strerror or error}): {cure}.") from error
    finally:
        with suppress(OSError):  # that it is not there, as the path leads nowhere
            temporary.unlink()

"""A matrix in a folder: it grows by rows, outlives a kill at any moment, and is read through a memory map.

``features.bin`` holds the rows and nothing else; ``header.json`` says what they are and how many are safely on disk.
"""

import json
import mmap
import os
import shutil
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from io import FileIO
from pathlib import Path

import torch
from filelock import FileLock
from torch import Tensor

from bndl._version import __version__
from bndl.errors import FileError
from bndl.files import replacing

__all__ = ["MappedRows", "bytes_of"]

_EVERY = 2.0  # seconds of work that a kill may cost
_NORESERVE = 0x4000  # Linux's MAP_NORESERVE, which Python names from 3.13 on


def bytes_of(tensor: Tensor) -> memoryview:
    """The bytes of a tensor on the CPU, of any dtype, in the order of its entries; a view where it is contiguous."""
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy().data


@dataclass(frozen=True)
class MappedRows:
    """A matrix on disk, of which the first rows may be there already.

    Attributes:
        place: its folder.
        dims: (N, K), once it is complete.
        dtype: of its entries.
        name: for people who look into the header.
        identity: what the rows are; a header that says otherwise is of other rows.
    """

    place: Path
    dims: tuple[int, int]
    dtype: torch.dtype
    name: str
    identity: dict[str, str]

    @property
    def file(self) -> Path:
        """Where the rows are."""
        return self.place / "features.bin"

    @property
    def row_bytes(self) -> int:
        """Size of one row."""
        return self.dims[1] * self.dtype.itemsize

    def read(self) -> Tensor:
        """The rows that are there, (R, K) with R <= N, not read until they are used; none if there is no such file.

        Raises:
            ValueError: a file is damaged or missing; the message says in what way.
        """
        try:
            header = json.loads((self.place / "header.json").read_bytes())
            rows, known = int(header["rows"]), [header["identity"], header["dims"]]
        except (FileNotFoundError, NotADirectoryError):
            if self.file.exists():
                raise ValueError("header.json is missing") from None
            rows, known = 0, [self.identity, [*self.dims]]
        except (OSError, ValueError, TypeError, KeyError) as error:
            raise ValueError(f"header.json is damaged: {error}") from error
        if known != [self.identity, [*self.dims]] or not 0 <= rows <= self.dims[0]:
            raise ValueError("header.json is of other features")
        return self._mapped(rows) if rows else torch.empty(0, self.dims[1], dtype=self.dtype)

    def _mapped(self, rows: int) -> Tensor:
        """The first rows, mapped copy-on-write: no write to them reaches the file."""
        needed = rows * self.row_bytes
        try:
            file = self.file.open("rb")
        except OSError as error:
            raise ValueError(f"features.bin cannot be opened: {error.strerror}") from error
        with _told(self.place), file:
            size = os.fstat(file.fileno()).st_size
            if size < needed or (rows == self.dims[0] and size > needed):
                raise ValueError(f"features.bin has {size} bytes instead of {needed}")
            if sys.platform == "linux":  # refuses a map larger than its memory if it were to reserve room for copies
                flags, protection = mmap.MAP_PRIVATE | _NORESERVE, mmap.PROT_READ | mmap.PROT_WRITE
                mapping = mmap.mmap(file.fileno(), needed, flags=flags, prot=protection)
            else:
                mapping = mmap.mmap(file.fileno(), needed, access=mmap.ACCESS_COPY)
        return torch.frombuffer(mapping, dtype=self.dtype).view(rows, self.dims[1])

    def append(self, batches: Iterable[Tensor], *, start: int) -> None:
        """Write rows (B, K) after the first ``start``, under the lock.

        How many are there is noted every two seconds, and when ``batches`` end or fail, each time after they are on disk.
        """
        with _told(self.place):
            if start == 0:
                self._write_header(0)
                self.file.unlink(missing_ok=True)  # not overwritten: another process may have it mapped
            self._check_space(start)
            file = self.file.open("r+b" if start else "xb", buffering=0)
        with file:
            file.truncate(start * self.row_bytes)
            file.seek(0, os.SEEK_END)
            self._grow(file, batches, start)

    def _grow(self, file: FileIO, batches: Iterable[Tensor], rows: int) -> None:
        noted = time.monotonic()
        try:
            for batch in batches:
                with _told(self.place):
                    left = bytes_of(batch)
                    while left:
                        left = left[file.write(left) :]
                    rows += len(batch)
                    if time.monotonic() - noted >= _EVERY:
                        self._note(file, rows)
                        noted = time.monotonic()
        finally:
            with _told(self.place):
                self._note(file, rows)

    def _note(self, file: FileIO, rows: int) -> None:
        os.fsync(file.fileno())
        self._write_header(rows)

    def _write_header(self, rows: int) -> None:
        about = {"name": self.name, "dims": self.dims, "rows": rows, "identity": self.identity}
        about |= {"bndl": __version__, "torch": torch.__version__}
        with replacing(self.place / "header.json") as temporary:
            temporary.write_text(json.dumps(about, indent=1) + "\n")

    def _check_space(self, start: int) -> None:
        needed, free = (self.dims[0] - start) * self.row_bytes, shutil.disk_usage(self.place).free
        if needed > free:
            raise FileError(
                f"the features need {needed / 1e9:.2f} GB but {self.place.parent} has {free / 1e9:.2f} GB free: make "
                "room, choose another folder, or halve them with dtype=torch.float16."
            )

    @contextmanager
    def locked(self) -> Iterator[None]:
        """The folder, made if need be, for this process alone; the system frees the lock of one that dies."""
        lock = FileLock(self.place / "lock")
        with _told(self.place):
            self.place.mkdir(parents=True, exist_ok=True)
            lock.acquire()
        try:
            yield
        finally:
            lock.release()


@contextmanager
def _told(place: Path) -> Iterator[None]:
    """What the system refuses, in one sentence."""
    try:
        yield
    except FileError:
        raise
    except OSError as error:
        raise FileError(f"cannot use {place} ({error.strerror or error}): choose a folder that is yours.") from error

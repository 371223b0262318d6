"""Work in progress: a folder of numbered shards beside the output, so that a run that was killed goes on where it was.

``FILE.part/`` holds ``manifest.json`` (what the shards are made from), and of each finished shard its data and, written
last, a note. The output itself appears at the end, whole.
"""

import json
import os
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from bndl.errors import FileError, MissingExtraError
from bndl.files import replacing

__all__ = ["Note", "Place"]

_OURS = re.compile(r"lock|manifest\.json|joined|shard-\d+\.(data|json)|\.[0-9a-f]{8}\..*")


@dataclass(frozen=True)
class Note:
    """What is known of a finished shard.

    Attributes:
        rows: that it holds.
        certain: how many of them are certain.
        size: of its data, in bytes.
        damaged: (name, reason) of what could not be read and was left out.
    """

    rows: int
    certain: int
    size: int
    damaged: tuple[tuple[str, str], ...] = ()


class Place:
    """The folder beside ``out``.

    Args:
        out: the file that is to be made.
        identity: what it is made from, part by part; a stopped run goes on only if all are the same.
    """

    def __init__(self, out: Path, *, identity: dict[str, str]) -> None:
        self.out, self.identity = out, identity
        self.folder = out.with_name(f"{out.name}.part")

    @contextmanager
    def opened(self, *, resume: bool, overwrite: bool) -> Iterator[list[Note]]:
        """The folder for this process alone, and the notes of the shards that are there; it goes if it stays empty."""
        before = self.check(resume=resume, overwrite=overwrite)
        with _told(self.folder):
            self.folder.mkdir(exist_ok=True)
        lock = _lock(self.folder)
        try:
            notes = self._begin(fresh=overwrite or not before)
            yield notes
        finally:
            if not self._note(0).exists():
                self._clear()
            lock.release()
            if self.folder.exists() and set(os.listdir(self.folder)) <= {"lock"}:
                self._remove()

    def data(self, number: int) -> Path:
        """Where a shard's rows are."""
        return self.folder / f"shard-{number:06d}.data"

    def commit(self, number: int, write: Callable[[Path], None], note: Note) -> Note:
        """Write a shard; it counts once its note is there. ``note`` comes back with the size."""
        with replacing(self.data(number)) as temporary:
            temporary.touch()
            write(temporary)
        sized = Note(note.rows, note.certain, self.data(number).stat().st_size, note.damaged)
        with replacing(self._note(number)) as temporary:
            temporary.write_text(json.dumps(asdict(sized)) + "\n", encoding="utf-8")
        return sized

    def finish(self, join: Callable[[Sequence[Path], Path], None], notes: Sequence[Note]) -> None:
        """Join the shards to the output, in one moment, and take the folder away."""
        joined = self.folder / "joined"
        with _told(self.out):
            join([self.data(number) for number, note in enumerate(notes) if note.rows], joined)
            with joined.open("rb") as file:
                os.fsync(file.fileno())
            os.replace(joined, self.out)
            self._clear()

    def check(self, *, resume: bool, overwrite: bool) -> bool:
        """Whether there is work to go on with; all that speaks against beginning is said here, before anything is."""
        if self.out.is_dir() or not self.out.name:
            raise FileError(f"cannot write {self.out}: it is a folder; add a file's name.")
        if not self.out.parent.is_dir():
            raise FileError(f"cannot write {self.out}: there is no folder {self.out.parent}; make it first.")
        before = self.folder.exists()
        if before and not (self.folder.is_dir() and all(_OURS.fullmatch(name) for name in os.listdir(self.folder))):
            raise FileError(f"{self.folder} is in the way and holds other things: move it, or choose another --out.")
        if before and not (resume or overwrite):
            raise FileError(
                f"{self.folder} holds the work of a run that was stopped: give --resume to go on with it, or --overwrite "
                "to begin again."
            )
        if self.out.exists() and not (overwrite or before):
            raise FileError(f"{self.out} is there already: give --overwrite to replace it, or choose another --out.")
        return before

    def _begin(self, *, fresh: bool) -> list[Note]:
        notes = [] if fresh else self._read()
        kept = {name for number in range(len(notes)) for name in (self.data(number).name, self._note(number).name)}
        self._clear(kept | {"manifest.json"} if notes else set())
        if not notes:
            with replacing(self.folder / "manifest.json") as temporary:
                temporary.write_text(json.dumps(self.identity, indent=1) + "\n", encoding="utf-8")
        return notes

    def _read(self) -> list[Note]:
        """The notes of the shards that can be used: the first ones without a gap."""
        try:
            found: dict[str, str] = json.loads((self.folder / "manifest.json").read_bytes())
            others = [name for name in self.identity | found if found.get(name) != self.identity.get(name)]
        except FileNotFoundError:  # killed before it began
            return []
        except (OSError, ValueError, TypeError) as error:
            raise FileError(f"{self.folder} is damaged ({error}): give --overwrite to begin again.") from error
        if others:
            raise FileError(
                f"{self.folder} was begun with another {' and another '.join(others)}: give --overwrite to begin again."
            )
        notes: list[Note] = []
        while (note := self._valid(len(notes))) is not None:
            notes.append(note)
        return notes

    def _valid(self, number: int) -> Note | None:
        try:
            raw: dict[str, Any] = json.loads(self._note(number).read_bytes())
            note = Note(**raw | {"damaged": tuple((str(name), str(why)) for name, why in raw["damaged"])})
            return note if self.data(number).stat().st_size == note.size else None
        except (OSError, ValueError, TypeError, KeyError):
            return None

    def _note(self, number: int) -> Path:
        return self.folder / f"shard-{number:06d}.json"

    def _clear(self, kept: set[str] | frozenset[str] = frozenset()) -> None:
        """Take away what is ours but for the lock and what is ``kept``; notes first, so that none outlives its data."""
        with _told(self.folder):
            for name in sorted(os.listdir(self.folder), reverse=True, key=lambda name: (name.endswith(".json"), name)):
                if name not in kept and name != "lock":
                    (self.folder / name).unlink(missing_ok=True)

    def _remove(self) -> None:
        (self.folder / "lock").unlink(missing_ok=True)
        try:
            self.folder.rmdir()
        except OSError:  # another process has come in
            return


def _lock(folder: Path) -> Any:
    try:
        import filelock
    except ImportError as error:
        raise MissingExtraError("bndl predict", extra="data") from error
    lock = filelock.FileLock(folder / "lock")
    with _told(folder):
        try:
            lock.acquire(timeout=0)
        except filelock.Timeout as error:
            raise FileError(f"another process is at work in {folder}: wait for it, or choose another --out.") from error
    return lock


@contextmanager
def _told(place: Path) -> Iterator[None]:
    """What the system refuses, in one sentence."""
    try:
        yield
    except FileError:
        raise
    except OSError as error:
        raise FileError(f"cannot write {place} ({error.strerror or error}): choose a folder that is yours.") from error

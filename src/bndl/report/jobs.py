"""Work that takes long, one piece at a time: a short queue, one thread, progress, and a way to stop it."""

import logging
import secrets
import threading
from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from bndl.errors import BndlError
from bndl.report.refused import RefusedError

__all__ = ["Job", "Jobs"]

_LOG = logging.getLogger(__name__)
_KEPT = 12  # finished jobs whose results can still be asked for
State: TypeAlias = Literal["waiting", "running", "done", "failed", "stopped"]


class _Stopped(Exception):  # noqa: N818  (no error: it was asked for)
    pass


@dataclass(eq=False)
class Job:
    """A piece of work; ``result`` is what it gave, once its state is ``"done"``."""

    work: Callable[["Job"], Any] = field(repr=False)
    id: str = field(default_factory=lambda: secrets.token_urlsafe(9))
    state: State = "waiting"
    done: int = 0
    total: int = 0
    error: str = ""
    result: Any = field(default=None, repr=False)
    _stop: threading.Event = field(default_factory=threading.Event, repr=False)

    def progress(self, done: int, total: int) -> None:
        """The work says how far it is, and is stopped here if somebody asked for that."""
        self.done, self.total = done, total
        if self._stop.is_set():
            raise _Stopped

    def to_dict(self) -> dict[str, Any]:
        """What a reader who waits is told."""
        return {"job": self.id, "state": self.state, "done": self.done, "total": self.total, "error": self.error}


class Jobs:
    """Jobs in the order in which they were given, done by one thread that starts with the first.

    Args:
        waiting: how many may wait; one more is refused.
    """

    def __init__(self, *, waiting: int = 4) -> None:
        self._most, self._jobs, self._queue = waiting, OrderedDict[str, Job](), deque[Job]()
        self._changed, self._closed = threading.Condition(), False
        self._thread: threading.Thread | None = None

    def submit(self, work: Callable[[Job], Any]) -> Job:
        """Put work at the end of the queue."""
        with self._changed:
            if self._closed or len(self._queue) >= self._most:
                raise RefusedError("Too many explanations are waiting: stop one, or wait for them.", status=429)
            job = Job(work)
            self._queue.append(job)
            self._jobs[job.id] = job
            self._forget()
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="bndl-jobs", daemon=True)
                self._thread.start()
            self._changed.notify()
        return job

    def get(self, name: str) -> Job:
        """A job that waits, runs, or ended not long ago."""
        with self._changed:
            if name not in self._jobs:
                raise RefusedError("There is no such job, or it was long ago: start it again.", status=404)
            return self._jobs[name]

    def stop(self, name: str) -> Job:
        """Stop a job; one that runs stops at its next step, one that ended stays as it is."""
        job = self.get(name)
        with self._changed:
            job._stop.set()
            if job in self._queue:
                self._queue.remove(job)
                job.state = "stopped"
        return job

    def close(self, *, timeout: float = 5.0) -> None:
        """Stop everything; what does not heed within ``timeout`` seconds ends with the process."""
        with self._changed:
            self._closed = True
            for job in self._jobs.values():
                job._stop.set()
            self._changed.notify()
        if self._thread is not None:
            self._thread.join(timeout)

    def _forget(self) -> None:
        ended = [name for name, job in self._jobs.items() if job.state not in ("waiting", "running")]
        for name in ended[: max(0, len(ended) - _KEPT)]:
            del self._jobs[name]

    def _run(self) -> None:
        while (job := self._next()) is not None:
            try:
                job.progress(0, job.total)
                job.result = job.work(job)
                job.state = "done"
            except _Stopped:
                job.state = "stopped"
            except BndlError as error:
                job.error, job.state = str(error), "failed"
            except Exception:
                _LOG.exception("a job failed")
                job.error, job.state = "It failed for a reason of its own; the terminal says more.", "failed"

    def _next(self) -> Job | None:
        """Wait for work; None when there will be no more."""
        with self._changed:
            while not self._queue and not self._closed:
                self._changed.wait()
            if self._closed:
                return None
            job = self._queue.popleft()
            job.state = "running"
            return job

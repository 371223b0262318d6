"""Three stages at once, with bounded queues between them: what reads, what computes, what writes."""

import queue
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Generic, Self, TypeVar

import torch

__all__ = ["Behind", "ahead", "in_order", "one_thread_each"]

T = TypeVar("T")
U = TypeVar("U")
_POLL = 0.1  # seconds between looks at whether the other side has gone
_END = object()


def ahead(items: Iterable[T], *, depth: int) -> Generator[T, None, None]:
    """The items, made in a thread of their own up to ``depth`` ahead of their use; its error is raised here, in its turn."""
    line: queue.Queue[Any] = queue.Queue(depth)
    gone = threading.Event()

    def make() -> None:
        try:
            for item in items:
                if not _put(line, (item, None), gone):
                    return
            _put(line, (_END, None), gone)
        except BaseException as error:  # also what is no Exception: the user of the items must hear of it
            _put(line, (_END, error), gone)

    thread = threading.Thread(target=make, name="bndl-read", daemon=True)
    thread.start()
    try:
        while True:
            item, error = line.get()
            if error is not None:
                raise error
            if item is _END:
                return
            yield item
    finally:
        gone.set()
        thread.join()


def _put(line: "queue.Queue[Any]", item: Any, gone: threading.Event) -> bool:
    """Whether the item was taken before the other side went."""
    while not gone.is_set():
        try:
            line.put(item, timeout=_POLL)
        except queue.Full:
            continue
        return True
    return False


def in_order(items: Iterable[T], compute: Callable[[T], U], *, threads: int) -> Generator[U, None, None]:
    """``compute`` of each item in several threads, given in the order of the items; few are under way at a time."""
    waiting: deque[Future[U]] = deque()
    pool = ThreadPoolExecutor(threads, thread_name_prefix="bndl-compute")
    try:
        for item in items:
            waiting.append(pool.submit(compute, item))
            if len(waiting) > threads:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:
        pool.shutdown(cancel_futures=True)


class Behind(Generic[T]):
    """A thread that does something with each item after the maker has gone on; as a context, it waits at the end.

    An error of its own is raised where the next item is given, or at the end. After an error outside it still finishes
    what it has been given.
    """

    def __init__(self, take: Callable[[T], None], *, depth: int) -> None:
        self._take = take
        self._line: queue.Queue[Any] = queue.Queue(depth)
        self._failed = threading.Event()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._work, name="bndl-write", daemon=True)

    def _work(self) -> None:
        while (item := self._line.get()) is not _END:
            try:
                self._take(item)
            except BaseException as error:  # the maker must hear of it, whatever it is
                self._error = error
                self._failed.set()
                return

    def put(self, item: T) -> None:
        """Hand one over; waits while ``depth`` are waiting already."""
        if not _put(self._line, item, self._failed):
            self._raise()

    def _raise(self) -> None:
        if self._error is not None:
            raise self._error

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        _put(self._line, _END, self._failed)
        self._thread.join()
        if error is None:
            self._raise()


@contextmanager
def one_thread_each() -> Iterator[int]:
    """Inside, torch does each operation in the thread that asks for it; yields how many threads it would have used.

    As many batches side by side are faster than one batch cut up, whose threads wait for each other at every operation.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield before
    finally:
        torch.set_num_threads(before)

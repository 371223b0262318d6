"""A progress bar for what takes longer than two seconds; silent without a terminal or without rich."""

import sys
import time
from collections.abc import Iterable, Iterator, Sized
from typing import TypeVar

__all__ = ["track"]

T = TypeVar("T")
_PATIENCE = 2.0  # seconds without a bar


def track(
    items: Iterable[T], description: str, *, progress: bool | None = None, total: int | None = None
) -> Iterator[T]:
    """Yield the items, with a bar on standard error once two seconds have passed.

    Args:
        items: what to go through; a bar shows the share done when it has a length, or ``total`` is given.
        description: what is being done, in a word or two.
        progress: True: a bar at once; False: none; None: after two seconds, if standard error is a terminal.
        total: how many there will be, for what does not know.
    """
    if progress is False or (progress is None and not sys.stderr.isatty()):
        yield from items
        return
    try:
        from rich.console import Console
        from rich.progress import Progress
    except ImportError:  # rich is an extra; the work is not
        yield from items
        return
    started = time.monotonic()
    bar = Progress(console=Console(stderr=True), transient=True)
    task = bar.add_task(description, total=len(items) if total is None and isinstance(items, Sized) else total)
    try:
        for item in items:
            if not bar.live.is_started and (progress or time.monotonic() - started > _PATIENCE):
                bar.start()
            yield item
            bar.advance(task)
    finally:
        bar.stop()

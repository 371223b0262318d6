"""Ways to do the same thing, timed in turns in one process."""

import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from bndl.errors import InputError

__all__ = ["Race", "Spread", "race"]


@dataclass(frozen=True)
class Spread:
    """A median and its quartiles."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: list[float]) -> "Spread":
        """Of at least two values; of a single one all three are the same."""
        low, middle, high = statistics.quantiles(values, n=4, method="inclusive") if len(values) > 1 else values * 3
        return cls(middle, low, high)


@dataclass(frozen=True)
class Race:
    """Seconds of each way, a number a round. Rounds take turns, so that a slow spell of the machine meets every way."""

    seconds: dict[str, list[float]]

    def time(self, name: str) -> Spread:
        """Of one way, in seconds."""
        return Spread.of(self.seconds[name])

    def ratio(self, name: str, other: str) -> Spread:
        """How many times as long ``name`` takes as ``other``: the median over rounds of the ratio within a round."""
        return Spread.of([a / b for a, b in zip(self.seconds[name], self.seconds[other], strict=True)])


def race(
    ways: Mapping[str, Callable[[], object]],
    *,
    rounds: int,
    warm_up: int = 1,
    clock: Callable[[], float] = time.perf_counter,
    tell: Callable[[str], None] = lambda _: None,
) -> Race:
    """Call every way once a round, in an order that turns round from one round to the next.

    Args:
        ways: names and calls without arguments.
        rounds: how many are counted.
        warm_up: how many go before them and are not.
        clock: seconds; ``time.process_time`` counts the processor's time of all threads, and is what a busy machine
            disturbs least.
        tell: is told after each round how far it is.
    """
    if rounds < 1:
        raise InputError(f"a race needs at least one round, got {rounds}.")
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for number in range(warm_up + rounds):
        for name in sorted(ways, reverse=bool(number % 2)):
            started = clock()
            ways[name]()
            taken = clock() - started
            if number >= warm_up:
                seconds[name].append(taken)
        tell(f"round {number + 1} of {warm_up + rounds}")
    return Race(seconds)

"""Reading, computing and writing at once."""

import threading
import time

import pytest
import torch

from bndl.stream.pipeline import Behind, ahead, in_order, one_thread_each


class TroubleError(Exception):
    pass


def counting(made, stop=100, fail_at=None):
    for number in range(stop):
        if number == fail_at:
            raise TroubleError(f"at {number}")
        made.append(number)
        yield number


def no_thread_is_left():
    deadline = time.monotonic() + 300
    while time.monotonic() < deadline:
        if not [thread for thread in threading.enumerate() if thread.name.startswith("bndl-")]:
            return True
        time.sleep(0.01)
    return False


def test_items_come_in_order_and_only_so_many_ahead():
    made: list[int] = []
    items = ahead(counting(made), depth=2)
    assert next(items) == 0
    time.sleep(0.3)
    assert len(made) <= 4  # one used, two waiting, one in hand
    assert list(items) == list(range(1, 100))
    assert no_thread_is_left()


def test_a_reader_that_fails_is_heard_in_its_turn():
    items, got = ahead(counting([], fail_at=3), depth=8), []
    with pytest.raises(TroubleError, match="at 3"):
        got.extend(items)
    items, got = ahead(counting([], fail_at=3), depth=8), []
    with pytest.raises(TroubleError):  # noqa: PT012
        for item in items:
            got.append(item)
    assert got == [0, 1, 2]


def test_a_reader_stops_when_nobody_reads_any_more():
    made: list[int] = []
    items = ahead(counting(made), depth=1)
    next(items)
    items.close()
    assert no_thread_is_left()
    assert len(made) < 5


def test_computing_keeps_the_order_and_uses_several_threads():
    names = set()

    def slow_first(number):
        names.add(threading.current_thread().name)
        time.sleep(0.02 if number % 4 == 0 else 0)
        return number * 10

    assert list(in_order(range(20), slow_first, threads=3)) == [10 * number for number in range(20)]
    assert len(names) > 1


def test_only_a_few_are_computed_before_they_are_taken():
    taken: list[int] = []
    results = in_order(counting(taken), lambda number: number, threads=2)
    next(results)
    assert len(taken) <= 3
    results.close()
    assert no_thread_is_left()


def test_a_computation_that_fails_is_heard():
    def compute(number):
        if number == 5:
            raise TroubleError
        return number

    results = in_order(range(10), compute, threads=2)
    assert [next(results) for _ in range(5)] == [0, 1, 2, 3, 4]
    with pytest.raises(TroubleError):
        next(results)


def test_the_writer_gets_all_in_order_before_the_end():
    got: list[int] = []
    with Behind(lambda item: (time.sleep(0.001), got.append(item)), depth=2) as behind:
        for item in range(50):
            behind.put(item)
    assert got == list(range(50))


def test_a_writer_that_fails_is_heard_and_never_waited_for_in_vain():
    def take(item):
        if item == 3:
            raise TroubleError("disk full")

    with pytest.raises(TroubleError, match="disk full"), Behind(take, depth=1) as behind:  # noqa: PT012
        for item in range(100):
            behind.put(item)
    with pytest.raises(TroubleError, match="disk full"), Behind(take, depth=8) as behind:  # noqa: PT012
        for item in range(4):
            behind.put(item)
    assert no_thread_is_left()


def test_what_was_handed_over_is_written_though_the_maker_fails():
    got: list[int] = []
    with pytest.raises(TroubleError), Behind(got.append, depth=8) as behind:  # noqa: PT012
        behind.put(1)
        raise TroubleError
    assert got == [1]


def test_threads_of_torch_are_as_before():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        with one_thread_each() as number:
            assert (number, torch.get_num_threads()) == (2, 1)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)

"""The bar: late, on standard error alone, and never in the way of the work."""

import io
import sys
from contextlib import redirect_stderr

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import bndl
from bndl import progress
from bndl.progress import track


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def clock(monkeypatch):
    """Seconds that pass only when the test says so."""
    now = [0.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    return now


@pytest.fixture(autouse=True)
def _terminal_of_any_kind(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    for name in ("NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize("shown", [True, False, None])
@pytest.mark.parametrize("items", [range(5), [], "ab"], ids=["range", "empty", "iterator"])
def test_the_items_come_through_whole_and_in_order(shown, items):
    with redirect_stderr(Terminal()):
        assert list(track(iter(items) if items == "ab" else items, "work", progress=shown)) == list(items)


@pytest.mark.parametrize("shown", [True, False, None])
def test_items_are_taken_one_at_a_time(shown):
    taken = []
    with redirect_stderr(Terminal()):
        stream = track((taken.append(number) or number for number in range(5)), "work", progress=shown)
        assert next(stream) == 0
        assert taken == [0]
        stream.close()
    assert taken == [0]


def test_silent_without_a_terminal(capsys, clock):
    for _ in track(range(3), "work"):
        clock[0] += 10
    assert capsys.readouterr() == ("", "")


def test_silent_when_told_so(clock):
    with redirect_stderr(Terminal()) as terminal:
        for _ in track(range(3), "work", progress=False):
            clock[0] += 10
    assert terminal.getvalue() == ""


def test_silent_for_two_seconds(clock):
    with redirect_stderr(Terminal()) as terminal:
        for _ in track(range(3), "work"):
            clock[0] += 0.6
    assert terminal.getvalue() == ""


def test_what_ends_within_two_seconds_leaves_no_mark(clock):
    with redirect_stderr(Terminal()) as terminal:
        list(track(range(3), "work"))
    assert terminal.getvalue() == ""


def test_a_bar_after_two_seconds(clock, capsys):
    pytest.importorskip("rich")
    with redirect_stderr(Terminal()) as terminal:
        for number in track(range(5), "work"):
            clock[0] += 0.9
            if number < 2:
                assert terminal.getvalue() == ""
    assert "work" in terminal.getvalue()
    assert capsys.readouterr().out == ""


def test_a_bar_at_once_when_asked_for():
    pytest.importorskip("rich")
    with redirect_stderr(Terminal()) as terminal:
        stream = track(range(2), "work", progress=True)
        next(stream)
        stream.close()
    assert "work" in terminal.getvalue()


def test_works_without_rich(monkeypatch):
    for name in {"rich", *(name for name in sys.modules if name.startswith("rich."))}:
        monkeypatch.setitem(sys.modules, name, None)
    with redirect_stderr(Terminal()) as terminal:
        assert list(track(range(3), "work", progress=True)) == [0, 1, 2]
    assert terminal.getvalue() == ""


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_an_error_comes_through_and_the_cursor_back(error):
    pytest.importorskip("rich")

    def broken():
        yield 1
        raise error

    with redirect_stderr(Terminal()) as terminal, pytest.raises(error):
        list(track(broken(), "work", progress=True))
    shown = terminal.getvalue()
    assert shown.count("\x1b[?25l") == shown.count("\x1b[?25h") >= 1  # hidden as often as shown again


def test_a_bar_within_a_bar_does_not_break_the_work():
    """``fit(progress=True)`` may read the validation data, with a bar, within each epoch's."""
    with redirect_stderr(Terminal()):
        seen = [(a, b) for a in track(range(2), "outer", progress=True) for b in track("xy", "inner", progress=True)]
    assert seen == [(0, "x"), (0, "y"), (1, "x"), (1, "y")]


def test_a_length_can_be_given_to_what_has_none(clock):
    pytest.importorskip("rich")
    with redirect_stderr(Terminal()) as terminal:
        stream = track(iter(range(4)), "work", progress=True, total=4)
        for _ in range(3):
            next(stream)
            clock[0] += 1
        stream.close()
    assert "50%" in terminal.getvalue()


def test_a_whole_model_that_learns_shows_its_epochs_batch_by_batch():
    pytest.importorskip("rich")
    model = bndl.convert(nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2)))
    data = TensorDataset(torch.rand(12, 4), torch.arange(12) % 2)
    with redirect_stderr(Terminal()) as terminal:
        bndl.fit(model, DataLoader(data, batch_size=4), data, freeze=False, epochs=2, progress=True)
    assert "epoch 1 of 2" in terminal.getvalue()
    assert "epoch 2 of 2" in terminal.getvalue()

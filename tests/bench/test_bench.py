"""What benchmarks are made of: races in turns, counted memory, claims that can fail, and the command that runs them."""

import json

import pytest
import torch

from bndl.bench import Claim, PeakMemory, Record, race
from bndl.bench.race import Spread
from bndl.bench.suite import find, measure
from bndl.cli import main
from bndl.errors import BndlError, InputError

GOOD = '''"""A quick one."""
import sys
from bndl.bench import Claim, Record, main
from bndl.bench.race import Spread
def measure(args):
    claim = Claim("a / b", Spread({value}, {value}, {value}), 2, "at most")
    return Record("quick", "about nothing", [{{"": "a", "s": 1.0}}], [claim], {{"rounds": args.rounds}})
sys.exit(main(__doc__, measure))
'''


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "speed_quick.py").write_text(GOOD.format(value=1.5))
    (tmp_path / "other.py").write_text("raise SystemExit(1)")
    return tmp_path


def test_ways_take_turns_and_the_first_round_does_not_count():
    order, ticks = [], iter(range(1000))
    ways = {name: (lambda name=name: order.append(name)) for name in "ab"}
    found = race(ways, rounds=3, clock=lambda: float(next(ticks)))
    assert order == ["a", "b", "b", "a", "a", "b", "b", "a"]
    assert found.seconds == {"a": [1.0] * 3, "b": [1.0] * 3}


def test_a_ratio_is_taken_within_rounds():
    """A machine that is twice as slow in one round than in the others does not change it."""
    clock = iter([0, 1, 1, 3, 3, 5, 5, 6, 6, 16, 16, 36])  # rounds (a 1, b 2), (b 2, a 1), (a 10, b 20)
    found = race({"a": lambda: None, "b": lambda: None}, rounds=2, clock=lambda: float(next(clock)))
    assert found.ratio("b", "a") == Spread(2.0, 2.0, 2.0)
    assert found.time("a").median == 5.5


def test_no_round_is_no_race():
    with pytest.raises(InputError, match="at least one round, got 0"):
        race({"a": lambda: None}, rounds=0)


def test_peak_memory_counts_what_is_alive_at_once():
    given = torch.zeros(1000)
    with PeakMemory() as memory:
        a = given + 1
        b = a + 1
        del a
        b.mul_(2)  # in place
        c = b.view(10, 100).t()  # a view
        d = torch.cat([b, b])
        del b, c
        _ = d[:10] + 1
    assert memory.peak == 4000 + 8000


@pytest.mark.parametrize(
    ("sense", "value", "holds"), [("at most", 2, True), ("at most", 2.1, False), ("at least", 1, False)]
)
def test_a_claim_holds_or_does_not(sense, value, holds):
    claim = Claim("a / b", Spread(value, value, value), 2, sense)
    assert claim.holds == holds
    assert ("NOT" in str(claim)) == (not holds)


def test_a_record_names_machine_and_versions():
    record = Record("x", "about x", [{"": "a", "s": 0.5, "none": None}], packages=("scipy",))
    found = record.to_dict()
    assert found["versions"]["torch"] == torch.__version__
    assert "scipy" in found["versions"]
    assert "| a | 0.5 | - |" in record.text()


def test_a_benchmark_runs_in_a_process_of_its_own(folder):
    lines = []
    found = measure(find(folder)["quick"], arguments=["--rounds", "3"], tell=lines.append)
    assert found["settings"] == {"rounds": 3}
    assert found["claims"][0]["holds"]
    assert any("a / b: 1.5" in line for line in lines)


def test_one_that_breaks_says_its_last_word(tmp_path):
    (tmp_path / "speed_broken.py").write_text("raise ValueError('no such peer')")
    with pytest.raises(BndlError, match=r"speed_broken.py failed with exit code 1: ValueError: no such peer"):
        measure(tmp_path / "speed_broken.py")


def test_the_command_writes_what_it_found(folder, tmp_path, capsys):
    out = tmp_path / "out"
    assert main(["bench", "--folder", str(folder), "--out", str(out), "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["benchmarks"] == json.loads((out / "bench.json").read_text())
    assert (out / "bench.png").read_bytes().startswith(b"\x89PNG")
    assert "| a / b | at most 2 | 1.5 | holds |" in (out / "bench.md").read_text()


def test_a_claim_that_fails_is_an_exit_code(folder, tmp_path):
    (folder / "speed_quick.py").write_text(GOOD.format(value=2.5))
    assert main(["bench", "--folder", str(folder), "--out", str(tmp_path / "out")]) == 1


def test_one_that_cannot_run_is_left_out_and_the_others_are_kept(folder, tmp_path, capsys):
    (folder / "speed_a.py").write_text("raise ModuleNotFoundError('no module named peer')")
    assert main(["bench", "--folder", str(folder), "--out", str(tmp_path / "out")]) == 1
    assert "left out: speed_a.py failed" in capsys.readouterr().err
    assert len(json.loads((tmp_path / "out" / "bench.json").read_text())) == 1


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["bench", "nothing"], "no benchmark is called 'nothing'; choose from quick"),
        (["bench", "--rounds", "0"], "--rounds is a whole number of at least 1, got 0"),
    ],
)
def test_bad_input_is_said_in_one_sentence(folder, arguments, words, capsys):
    assert main([*arguments, "--folder", str(folder), "--out", str(folder / "out")]) == 2
    assert words in capsys.readouterr().err


def test_no_benchmarks_there(tmp_path, capsys):
    assert main(["bench", "--list", "--folder", str(tmp_path)]) == 2
    assert "they are part of the source tree" in capsys.readouterr().err


def test_the_real_ones_are_listed(capsys):
    assert main(["bench", "--list", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert {"predict", "head", "train_step", "head_epoch", "startup", "growth"} <= {*found}
    assert all(found.values())

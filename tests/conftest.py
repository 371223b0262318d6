"""What tests of several modules share."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

# The tensors of tests are small: on a shared machine, threads that wait for each other make them ten times slower.
torch.set_num_threads(1)

_STRIKE = """
import importlib, os, sys
module, name, number, when, sign, *argv = sys.argv[1:]
owner = importlib.import_module(module)
*path, last = name.split(".")
for part in path:
    owner = getattr(owner, part)
original, calls = getattr(owner, last), 0
def struck(*args, **given):
    global calls
    calls += 1
    if calls == int(number) and when == "before":
        os.kill(os.getpid(), int(sign))
    found = original(*args, **given)
    if calls == int(number) and when == "after":
        os.kill(os.getpid(), int(sign))
    return found
setattr(owner, last, struck)
from bndl.cli import main
sys.exit(main(argv))
"""


@pytest.fixture
def reference_data() -> Path:
    place = os.environ.get("BNDL_DATA")
    if not place:
        pytest.skip("BNDL_DATA is not set to the folder of the reference data")
    return Path(place)


@pytest.fixture
def strike() -> Callable[..., subprocess.CompletedProcess[str]]:
    """Runs a command of bndl that gets a real signal at a chosen call: a slow machine cannot let it come too late."""

    def run(
        sign: signal.Signals, where: str, number: int, *argv: str, when: str = "before"
    ) -> subprocess.CompletedProcess[str]:
        module, name = where.split(":")
        return subprocess.run(
            [sys.executable, "-c", _STRIKE, module, name, str(number), when, str(int(sign)), *argv],
            env=os.environ | {"OMP_NUM_THREADS": "1"},
            capture_output=True,
            text=True,
            timeout=300,
            # a shell that runs the tests in the background lets its children ignore Ctrl-C
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )

    return run

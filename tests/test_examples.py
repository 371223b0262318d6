"""The examples run, and say something sensible."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = sorted((Path(__file__).parent.parent / "examples").glob("*.py"))


@pytest.mark.slow
@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_example_runs(example, tmp_path):
    done = subprocess.run([sys.executable, str(example)], cwd=tmp_path, capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stderr
    accuracies = [float(found) for found in re.findall(r"accuracy (?:\S+ -> )?(\d+\.\d+)%", done.stdout)]
    assert accuracies
    assert min(accuracies) > 90
    for fixed, broken in re.findall(r"fixes (\d+) and breaks (\d+)", done.stdout):
        assert int(fixed) > 2 * int(broken), "an edit of a planted flaw is worth it, on data that did not choose it"
    assert not list(tmp_path.iterdir())

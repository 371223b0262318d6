"""What tests of several modules share."""

import os
from pathlib import Path

import pytest
import torch

# The tensors of tests are small: on a shared machine, threads that wait for each other make them ten times slower.
torch.set_num_threads(1)


@pytest.fixture
def reference_data() -> Path:
    place = os.environ.get("BNDL_DATA")
    if not place:
        pytest.skip("BNDL_DATA is not set to the folder of the reference data")
    return Path(place)

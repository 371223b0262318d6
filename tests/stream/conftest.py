"""A small layer and its features."""

import numpy as np
import pytest
import torch
from streamed import C, K, N

import bndl
from bndl.stream import Predictor


@pytest.fixture
def layer():
    with torch.random.fork_rng():
        torch.manual_seed(3)
        layer = bndl.DecisionLayer(K, C)
        with torch.no_grad():
            layer.weight.copy_(torch.rand(C, K) * (torch.rand(C, K) > 0.4))
            layer.reset_shapes(2.0)
    return layer.eval()


@pytest.fixture
def features():
    return torch.rand(N, K, generator=torch.Generator().manual_seed(0)) * 3


@pytest.fixture
def predictor(layer):
    return Predictor(layer, ("cat", "dog", "=SUM(A1)", 'a "b",\nc'))


@pytest.fixture
def source(tmp_path, features):
    np.save(tmp_path / "x.npy", features.numpy())
    return tmp_path / "x.npy"

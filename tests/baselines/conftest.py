"""What the tests of several methods share."""

import contextlib
import copy
import importlib
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch
from torch import nn

import bndl
from bndl.backbones import cifar_checkpoint, load_cifar_checkpoint
from bndl.data import load
from bndl.features import FeatureSet, extract


@dataclass(frozen=True)
class Parts:
    """A head that is too sure, and the features of three parts of its data."""

    head: nn.Linear
    train: FeatureSet
    val: FeatureSet
    test: FeatureSet


@pytest.fixture(scope="session")
def digit_parts() -> Parts:
    """Pixels (N, 64) from 0 to 1, and a head that knows its training examples by heart."""
    from sklearn.datasets import load_digits

    pixels, labels = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(labels))
    data = FeatureSet(torch.from_numpy(pixels[order] / 16).float(), torch.from_numpy(labels[order]).long())
    train, val, test = (data.take(torch.arange(*ends)) for ends in ((0, 400), (400, 1000), (1000, 1797)))
    with torch.random.fork_rng([]):
        torch.manual_seed(0)
        head = nn.Linear(64, 10)
    optimizer = torch.optim.Adam(head.parameters(), lr=0.3)
    for _ in range(150):
        optimizer.zero_grad()
        nn.functional.cross_entropy(head(train.features), train.labels).backward()
        optimizer.step()
    head.requires_grad_(False)
    for parameter in head.parameters():
        parameter *= 3
    return Parts(head, train, val, test)


@pytest.fixture(scope="session")
def cifar_parts() -> Parts:
    """Features (N, 64) of a pretrained ResNet-20: 1,000 training images, and test images as validation and test."""
    if not os.environ.get("BNDL_DATA"):
        pytest.skip("BNDL_DATA is not set to the folder of the reference data")
    root, name = Path(os.environ["BNDL_DATA"]), "resnet20_cifar10"
    network = load_cifar_checkpoint(name, root / "weights" / f"{name}.pth")
    head = copy.deepcopy(network.fc).requires_grad_(False)
    model = bndl.convert(nn.Sequential(cifar_checkpoint(name).normaliser(), network))
    images = {split: load("cifar10", split=split, root=root) for split in ("train", "test")}
    rows = {"train": ("train", 0, 1000), "val": ("test", 0, 1500), "test": ("test", 1500, 3000)}
    parts = {
        part: extract(model, images[split].subset(torch.arange(low, high)), progress=False)
        for part, (split, low, high) in rows.items()
    }
    return Parts(head, **parts)


@pytest.fixture(scope="session")
def laplace_torch() -> Iterator[ModuleType]:
    """The package, also where torchvision, which it installs, is of another build than torch and does not import."""
    operators = torch.library.Library("torchvision", "FRAGMENT")
    with contextlib.suppress(ImportError):
        try:
            importlib.import_module("torchvision")
        except RuntimeError:
            for name in ("nms", "qnms"):
                operators.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
            for name in [name for name in sys.modules if name.partition(".")[0] == "torchvision"]:
                del sys.modules[name]
    yield pytest.importorskip("laplace")
    del operators

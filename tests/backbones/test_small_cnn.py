"""The digits' network: its dims, its sign, and that it learns digits in seconds."""

import pytest
import torch
from torch import nn

from bndl.backbones import SmallCNN
from bndl.errors import InputError


@pytest.mark.parametrize("side", [8, 28])
@pytest.mark.parametrize(("in_channels", "width", "num_features"), [(1, 32, 64), (3, 5, 7)])
def test_dims_sign_and_trace(side, in_channels, width, num_features):
    network = SmallCNN(10, in_channels, width=width, num_features=num_features).eval()
    images = torch.rand(2, in_channels, side, side, generator=torch.Generator().manual_seed(0))
    features = network.features(images)
    assert features.size() == (2, num_features)
    assert features.min() >= 0
    assert network(images).size() == (2, 10)
    torch.testing.assert_close(torch.fx.symbolic_trace(network)(images), network.fc(features))


@pytest.mark.parametrize("name", ["num_classes", "in_channels", "width", "num_features"])
def test_dims_below_one_are_named(name):
    with pytest.raises(InputError, match=f"{name} must be at least 1, but 0 was given"):
        SmallCNN(**{"num_classes": 10, name: 0})


@pytest.mark.slow
def test_learns_digits():
    datasets = pytest.importorskip("sklearn.datasets")
    pixels, digits = datasets.load_digits(return_X_y=True)
    images = torch.tensor(pixels / 16, dtype=torch.float32).view(-1, 1, 8, 8)
    labels = torch.tensor(digits)
    generator = torch.Generator().manual_seed(0)
    order = torch.randperm(len(labels), generator=generator)
    train, test = order[:1300], order[1300:]

    network = SmallCNN(10)
    optimizer = torch.optim.AdamW(network.parameters())
    num_epochs, batch_size = 8, 64
    steps = num_epochs * -(-len(train) // batch_size)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.01, total_steps=steps)
    for _ in range(num_epochs):
        for batch in train[torch.randperm(len(train), generator=generator)].split(batch_size):
            optimizer.zero_grad()
            nn.functional.cross_entropy(network(images[batch]), labels[batch]).backward()
            optimizer.step()
            schedule.step()

    network.eval()
    accuracy = (network(images[test]).argmax(1) == labels[test]).float().mean()
    assert accuracy > 0.97

"""The residual networks: their dims, their non-negative features, and that they can be traced."""

import pytest
import torch
from torch import Tensor, nn

from bndl.backbones import CifarResNet, ResidualNet, ResNet18, StageReluResNet
from bndl.backbones.cifar_resnet import ZeroPadShortcut
from bndl.errors import InputError

NETWORKS = [
    pytest.param(lambda: CifarResNet(8, 10), 64, id="resnet8"),
    pytest.param(lambda: CifarResNet(20, 7, width=5), 20, id="resnet20-odd-width"),
    pytest.param(lambda: StageReluResNet(8, 100), 256, id="stage-relu-8"),
    pytest.param(lambda: StageReluResNet(14, 3, width=4, stem_channels=6), 64, id="stage-relu-14-narrow"),
    pytest.param(lambda: StageReluResNet(8, 3, width=4, stem_channels=4), 64, id="stage-relu-identity-first"),
    pytest.param(lambda: ResNet18(10, width=4), 32, id="resnet18-narrow"),
]


def images(num: int = 2) -> Tensor:
    return torch.randn(num, 3, 32, 32, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize(("build", "num_features"), NETWORKS)
def test_dims_and_sign_of_the_features(build, num_features):
    network: ResidualNet = build().eval()
    features = network.features(images())
    assert features.size() == (2, num_features)
    assert network.fc.in_features == num_features
    assert features.min() >= 0
    torch.testing.assert_close(network(images()), network.fc(features))


@pytest.mark.parametrize(("build", "num_features"), NETWORKS)
def test_symbolic_trace_computes_the_same(build, num_features):
    network: ResidualNet = build().eval()
    traced = torch.fx.symbolic_trace(network)
    torch.testing.assert_close(traced(images()), network(images()))


@pytest.mark.parametrize(("build", "num_features"), NETWORKS)
def test_the_stages_end_in_a_relu(build, num_features):
    """What a tracer needs for its proof: between the last ReLU and ``fc`` there is only pooling and flattening."""
    traced = torch.fx.symbolic_trace(build())
    node = next(node for node in traced.graph.nodes if node.target == "fc")
    flatten = node.args[0]
    pool = flatten.args[0]
    last = pool.args[0]
    assert (flatten.target, pool.target) == (torch.flatten, "pool")
    assert last.target is nn.functional.relu or isinstance(traced.get_submodule(last.target), nn.ReLU)


@pytest.mark.parametrize(("build", "num_features"), NETWORKS)
def test_every_weight_gets_a_gradient(build, num_features):
    network = build()
    network(images(4)).square().sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in network.parameters())


@pytest.mark.parametrize(
    ("network", "num_weights"),
    [
        # He et al., table 6: 0.27 M, 0.46 M, 0.85 M; ResNet-18 with a 3x3 stem has 11.17 M.
        (lambda: CifarResNet(20), 0.27e6),
        (lambda: CifarResNet(32), 0.46e6),
        (lambda: CifarResNet(56), 0.85e6),
        (lambda: ResNet18(10), 11.17e6),
    ],
)
def test_number_of_weights_is_the_published_one(network, num_weights):
    assert sum(p.numel() for p in network().parameters()) == pytest.approx(num_weights, rel=0.015)


@pytest.mark.parametrize("depth", [8, 14, 20, 32, 44, 56, 110])
def test_depth_counts_the_weighted_layers(depth):
    network = CifarResNet(depth, width=1)
    assert sum(isinstance(m, nn.Conv2d | nn.Linear) for m in network.modules()) == depth


def test_zero_pad_shortcut_keeps_the_old_channels_between_zeros():
    x = torch.rand(2, 3, 5, 4, generator=torch.Generator().manual_seed(0))
    out = ZeroPadShortcut(3, 6, 2)(x)
    assert out.size() == (2, 6, 3, 2)
    assert torch.equal(out[:, 1:4], x[:, :, ::2, ::2])
    assert out[:, [0, 4, 5]].abs().sum() == 0


@pytest.mark.parametrize("network", [CifarResNet, StageReluResNet])
@pytest.mark.parametrize(("depth", "instead"), [(21, 20), (19, 14), (2, 8), (0, 8), (-4, 8)])
def test_bad_depth_says_which_to_take(network, depth, instead):
    with pytest.raises(InputError, match=rf"6n \+ 2 .* but {depth} was given: take {instead}\."):
        network(depth)


@pytest.mark.parametrize("network", [CifarResNet, StageReluResNet, ResNet18])
@pytest.mark.parametrize("name", ["width", "num_classes"])
def test_dims_below_one_are_named(network, name):
    with pytest.raises(InputError, match=f"{name} must be at least 1, but 0 was given"):
        network(**{name: 0})

"""What a graph proves: above all never that signed features are non-negative; then that the usual networks' are."""

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from bndl import tracing
from bndl.backbones import CifarResNet, ResNet18, SmallCNN, StageReluResNet

K = 6


class Net(nn.Module):
    """stem -> ``between`` -> fc, where ``between(self, h)`` is what the proof is about."""

    def __init__(self, between) -> None:
        super().__init__()
        self.stem, self.other, self.fc = nn.Linear(K, K), nn.Linear(K, K), nn.Linear(K, 3)
        self.scale = nn.Parameter(torch.full((K,), -1.0))
        self.relu, self.norm = nn.ReLU(), nn.BatchNorm1d(K)
        nn.init.constant_(self.norm.bias, -1.0)
        self.between = between

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.between(self, self.stem(x)))


class ConvNet(nn.Module):
    """A convolution -> ``between`` -> fc, for what works on maps (B, K, 4, 4)."""

    def __init__(self, between) -> None:
        super().__init__()
        self.stem, self.fc, self.between = nn.Conv2d(1, K, 1), nn.Linear(K, 3), between

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.between(self.stem(x)))


def proven(model: nn.Module, path: str | None = None) -> bool:
    graph = tracing.trace(model)
    assert graph is not None
    path = path or tracing.output_module(graph, model)
    assert path is not None
    return tracing.input_is_nonnegative(graph, model, path)


def entering_head(model: nn.Module, x: Tensor, path: str = "fc") -> Tensor:
    caught: list[Tensor] = []
    head = model.get_submodule(path)
    with (
        torch.no_grad(),
        head.register_forward_pre_hook(
            lambda _, args, kwargs: caught.append(args[0] if args else kwargs["input"]), with_kwargs=True
        ),
    ):
        model(x)
    return torch.cat(caught)


def inputs(*dims: int) -> Tensor:
    return 3 * torch.randn(*dims, generator=torch.Generator().manual_seed(0))


PROVEN = {
    "module": lambda net, h: net.relu(h),
    "function": lambda net, h: torch.relu(h),
    "method": lambda net, h: h.relu(),
    "in place": lambda net, h: h.relu_(),
    "sigmoid": lambda net, h: h.sigmoid(),
    "softplus": lambda net, h: F.softplus(h),
    "absolute": lambda net, h: torch.abs(h),
    "square": lambda net, h: h.square(),
    "softmax": lambda net, h: F.softmax(h, dim=-1),
    "dropout": lambda net, h: F.dropout(F.relu(h), 0.3),
    "residual add": lambda net, h: torch.relu(h) + torch.relu(net.other(h)),
    "product": lambda net, h: torch.relu(h) * torch.sigmoid(net.other(h)),
    "positive constant": lambda net, h: torch.relu(h) * 2 + 0.5,
    "cat": lambda net, h: torch.cat([torch.relu(h)[:, :2], torch.sigmoid(h)[:, 2:]], dim=1),
    "relu of a residual": lambda net, h: torch.relu(net.norm(h) + h),
}
UNPROVEN = {
    "nothing": lambda net, h: h,
    "gelu": lambda net, h: F.gelu(h),
    "silu": lambda net, h: F.silu(h),
    "tanh": lambda net, h: torch.tanh(h),
    "elu": lambda net, h: F.elu(h),
    "leaky": lambda net, h: F.leaky_relu(h),
    "layer norm": lambda net, h: F.layer_norm(torch.relu(h), (K,)),
    "batch norm": lambda net, h: net.norm(torch.relu(h)),
    "linear": lambda net, h: net.other(torch.relu(h)),
    "difference": lambda net, h: torch.relu(h) - torch.relu(net.other(h)),
    "negation": lambda net, h: -torch.relu(h),
    "negative factor": lambda net, h: torch.relu(h) * -1,
    "negative term": lambda net, h: torch.relu(h) + -0.5,
    "learned factor": lambda net, h: torch.relu(h) * net.scale,
    "add of a signed branch": lambda net, h: torch.relu(h) + net.other(h),
    "add with a negative alpha": lambda net, h: torch.add(torch.relu(h), torch.relu(net.other(h)), alpha=-1),
    "cat with a signed branch": lambda net, h: torch.cat([torch.relu(h)[:, :2], h[:, 2:]], dim=1),
    "changed in place after the relu": lambda net, h: _changed_in_place(torch.relu(h)),
}


def _changed_in_place(h: Tensor) -> Tensor:
    h.sub_(1.0)
    return h


@pytest.mark.parametrize("name", PROVEN)
def test_proves_what_leaves_a_relu(name):
    model = Net(PROVEN[name]).eval()
    assert proven(model)
    assert entering_head(model, inputs(50, K)).min() >= 0


@pytest.mark.parametrize("name", UNPROVEN)
def test_never_claims_what_may_be_negative(name):
    torch.manual_seed(0)
    model = Net(UNPROVEN[name]).eval()
    assert entering_head(model, inputs(50, K)).min() < 0
    assert not proven(model)


def test_a_head_that_is_called_by_keyword_proves_nothing():
    class Keyword(Net):
        def forward(self, x: Tensor) -> Tensor:
            return self.fc(input=self.stem(x))

    model = Keyword(None)
    assert entering_head(model, inputs(50, K)).min() < 0
    assert not proven(model)


def test_a_head_that_is_called_twice_must_be_proven_twice():
    class Twice(Net):
        def forward(self, x: Tensor) -> Tensor:
            h = self.stem(x)
            return self.fc(h) + self.fc(torch.relu(h))

    assert not proven(Twice(None), "fc")


@pytest.mark.parametrize(
    "between",
    [
        lambda h: torch.flatten(F.adaptive_avg_pool2d(torch.relu(h), 1), 1),
        lambda h: F.relu(h).mean(dim=(2, 3)),
        lambda h: F.max_pool2d(h.relu(), 4).squeeze(-1).squeeze(-1),
        lambda h: F.avg_pool2d(h.relu(), 4).view(-1, K),
        lambda h: h.relu().flatten(2).amax(dim=2),
        lambda h: h.relu().permute(0, 2, 3, 1).mean((1, 2)),
    ],
    ids=["adaptive-average", "mean", "max", "view", "amax", "permute"],
)
def test_pooling_keeps_the_proof(between):
    model = ConvNet(between).eval()
    assert proven(model)
    assert entering_head(model, inputs(5, 1, 4, 4)).min() >= 0
    assert not proven(ConvNet(lambda h: between(h) - 1.0))


def test_relu_pool_flatten_dropout_in_a_sequential():
    body = [nn.Conv2d(1, K, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Dropout(), nn.Identity()]
    assert proven(nn.Sequential(*body, nn.Linear(K, 3)))
    assert not proven(nn.Sequential(*body, nn.Linear(K, K), nn.Linear(K, 3)))
    assert not proven(nn.Sequential(body[0], *body[2:], nn.Linear(K, 3)))


@pytest.mark.parametrize(
    "build",
    [
        lambda: CifarResNet(8, 3, width=2),
        lambda: ResNet18(3, width=2),
        lambda: StageReluResNet(8, 3, width=2, stem_channels=3),
        lambda: SmallCNN(3, 3, width=2, num_features=4),
    ],
    ids=["cifar", "resnet18", "stage-relu", "small"],
)
def test_our_backbones_are_proven(build):
    assert proven(build(), "fc")
    assert proven(nn.Sequential(nn.BatchNorm2d(3), build()), "1.fc")


MAKERS = (nn.ReLU, nn.ReLU6, nn.Sigmoid, nn.Softplus, nn.Hardsigmoid)
KEEPERS = (nn.Dropout, nn.Identity, nn.Flatten)
BREAKERS = (nn.GELU, nn.SiLU, nn.Tanh, nn.ELU, nn.LeakyReLU, nn.Mish, nn.LogSigmoid, nn.Hardswish, nn.AlphaDropout)
SIZED = (lambda: nn.LayerNorm(K), lambda: nn.BatchNorm1d(K), lambda: nn.Linear(K, K))


@settings(deadline=None, max_examples=150)
@given(st.lists(st.sampled_from([*MAKERS, *KEEPERS, *BREAKERS, *SIZED]), max_size=6))
def test_a_chain_is_proven_exactly_when_its_last_change_is_a_relu(makes):
    model = nn.Sequential(*(make() for make in makes), nn.Linear(K, 3)).eval()
    changes = [make for make in makes if make not in KEEPERS]
    claimed = proven(model)
    assert claimed == bool(changes and changes[-1] in MAKERS)
    if claimed:
        assert entering_head(model, inputs(20, K), str(len(makes))).min() >= 0


def test_output_is_found_through_what_only_rescales_the_classes():
    for last in ([], [nn.LogSoftmax(dim=1)], [nn.Softmax(dim=1)], [nn.Identity(), nn.LogSoftmax(dim=1)]):
        model = nn.Sequential(nn.Linear(K, K), nn.ReLU(), nn.Linear(K, 3), *last)
        assert tracing.output_module(tracing.trace(model), model) == "2"


def test_output_that_no_module_made_is_none():
    class Tuple(Net):
        def forward(self, x: Tensor):
            return self.fc(x), self.other(x)

    class Sum(Net):
        def forward(self, x: Tensor):
            return self.fc(x) + 1

    for model in (Tuple(None), Sum(None)):
        assert tracing.output_module(tracing.trace(model), model) is None


def test_code_that_cannot_be_followed_is_no_graph():
    class Branches(Net):
        def forward(self, x: Tensor) -> Tensor:
            return self.fc(x if x.sum() > 0 else -x)

    class Raises(Net):
        def forward(self, x: Tensor) -> Tensor:
            raise KeyError("the user's own")

    assert tracing.trace(Branches(None)) is None
    assert tracing.trace(Raises(None)) is None


def test_a_very_deep_network_ends():
    model = nn.Sequential(nn.Linear(K, K), nn.ReLU(), *(nn.Identity() for _ in range(3000)), nn.Linear(K, 3))
    assert proven(model) in (True, False)
    assert not proven(nn.Sequential(nn.Linear(K, K), *(nn.Identity() for _ in range(3000)), nn.Linear(K, 3)))

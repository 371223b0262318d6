"""The step written out by hand: autograd's loss and gradients on the same noise, the same expectation, always finite."""

import copy
import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import bndl
from bndl import DecisionLayer, Objective, calibrate, head_step
from bndl.compact import compact
from bndl.errors import InputError
from bndl.features import FeatureSet
from bndl.head_step import HeadStep
from bndl.objective import kl
from bndl.weibull import cv2

B, K, C = 7, 6, 4


def layer_of(*, dtype: torch.dtype = torch.float64, shape: float | None = None, **given: Any) -> DecisionLayer:
    """Weights of every kind: below the threshold, at it, just above, at the gate's edge, far beyond; shapes that differ."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        layer = DecisionLayer(K, C, dtype=dtype, **given)
        with torch.no_grad():
            layer.weight.copy_(torch.randn(layer.weight.size()) * torch.logspace(-9, 1, layer.num_features))
            layer.weight[0, 0] = 0.0
            layer.weight += layer.alpha_phi
            if layer.bias is not None:
                layer.bias.copy_(torch.tensor([-1.0, 0.0, 0.1, 2.0]))
            for raw in (layer.phi_raw_shape, layer.theta_raw_shape):
                if raw is not None:
                    raw.copy_(torch.rand(raw.size()) * 4 + 1)
            if shape is not None:
                layer.reset_shapes(shape)
    return layer.train()


def data_of(*, dtype: torch.dtype = torch.float64, num: int = B) -> FeatureSet:
    generator = torch.Generator().manual_seed(1)
    features = torch.randn(num, K, generator=generator, dtype=torch.float64).to(dtype)
    return FeatureSet(features, torch.randint(C, (num,), generator=generator))


def step_of(layer: DecisionLayer, data: FeatureSet, objective: Objective, *, seed: int = 5) -> HeadStep:
    generator = torch.Generator().manual_seed(seed)
    return HeadStep(layer, data, rows=torch.arange(len(data)), objective=objective, generator=generator)


def by_autograd(layer: DecisionLayer, data: FeatureSet, objective: Objective, beta: float, noise: Tensor) -> Tensor:
    """The loss as the formula has it, with this noise; its gradients are left in the layer."""
    layer.zero_grad()
    layer._last_theta = layer.theta(data.features)
    logits = F.linear(layer._last_theta.mean, layer.phi().mean * noise, layer.offset())
    loss = F.cross_entropy(logits, data.labels) + kl(layer, len(data), objective=objective, beta=beta)
    loss.backward()
    return loss.detach()


LAYERS = {
    "default": {},
    "thresholds": {"alpha_phi": 0.3, "alpha_theta": 0.1},
    "entry": {"phi_shape": "entry"},
    "signed": {"signed": True, "phi_shape": "entry", "alpha_phi": 0.05},
    "no bias": {"bias": False},
}
OBJECTIVES = {
    "default": Objective(beta=1.0),
    "prior": Objective(beta=2.0, prior_shape=0.7, prior_rate=3.0, activity=0.6, edge=0.4),
    "feature mean": Objective(beta=1.0, phi="feature-mean"),
    "theta alone": Objective(beta=1.0, phi="none"),
    "no KL": Objective(beta=0.0),
}


@pytest.mark.parametrize("objective", OBJECTIVES.values(), ids=OBJECTIVES)
@pytest.mark.parametrize("given", LAYERS.values(), ids=LAYERS)
@pytest.mark.parametrize("num", [B, 1])
def test_loss_and_gradients_are_autograds_on_the_same_noise(given, objective, num):
    layer, data, beta = layer_of(**given), data_of(num=num), 0.8 * objective.beta
    twin = copy.deepcopy(layer)
    noise = step_of(layer, data, objective).noise()
    expected = by_autograd(twin, data, objective, beta, noise)
    loss = step_of(layer, data, objective)(data.features, data.labels, beta)
    assert loss.item() == pytest.approx(expected.item(), rel=1e-12)
    torch.testing.assert_close(layer.weight.grad, twin.weight.grad, rtol=1e-9, atol=1e-13)
    if layer.bias is not None:
        torch.testing.assert_close(layer.bias.grad, twin.bias.grad, rtol=1e-9, atol=1e-15)
    blocked = (twin.weight <= twin.alpha_phi) & (layer.weight.grad == 0)
    assert blocked.any()  # the rectifier had something to do
    assert not torch.allclose(noise, torch.ones_like(noise))


def test_shared_noise_leaves_the_expectation_of_the_gradient_what_it_is():
    layer, data, objective = layer_of(shape=3.0), data_of(), Objective()
    step, twin = step_of(layer, data, objective), copy.deepcopy(layer)
    sums = [[torch.zeros_like(layer.weight) for _ in range(2)] for _ in range(2)]  # of gradients, and of their squares
    draws = 1500
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():  # all entries above zero: the rule of the rectifier is not linear
        for each in (layer, twin):
            each.weight.abs_().add_(0.1)
    for _ in range(draws):
        step(data.features, data.labels, 0.0)
        twin.zero_grad()
        F.cross_entropy(twin(data.features, generator=generator), data.labels).backward()
        for (total, squares), each in zip(sums, (layer, twin), strict=True):
            total += each.weight.grad / draws
            squares += each.weight.grad.square() / draws
    error = sum((squares - total.square()) / draws for total, squares in sums).sqrt()
    z = (sums[0][0] - sums[1][0]) / error
    assert z.abs().max() < 4
    assert 0.6 < z.square().mean().sqrt() < 1.5


def test_the_noise_has_unit_mean_and_the_variance_of_both_its_parts():
    layer = layer_of(phi_shape="entry")
    step = step_of(layer, data_of(), Objective())
    draws = torch.stack([step.noise() for _ in range(8000)])
    theta, phi = (1 / exponent for exponent in step.exponents)
    variance = (1 + cv2(theta)) * (1 + cv2(phi)) - 1
    torch.testing.assert_close(draws.mean(dim=0), torch.ones(C, K).double(), rtol=0, atol=0.06)
    torch.testing.assert_close(draws.var(dim=0), variance, rtol=0.3, atol=0)


def test_without_noise_the_step_is_that_of_the_mean():
    layer, data = layer_of(), data_of()
    with torch.no_grad():
        layer.phi_raw_shape.fill_(math.inf)
        layer.theta_raw_shape.fill_(math.inf)
    step = step_of(layer, data, Objective())
    assert torch.equal(step.noise(), torch.ones(C, K).double())
    expected = F.cross_entropy(copy.deepcopy(layer).eval()(data.features), data.labels)
    assert step(data.features, data.labels, 0.0).item() == pytest.approx(expected.item(), rel=1e-12)


@pytest.mark.parametrize("scale", [0.0, 1e-30, 1e11])
@pytest.mark.parametrize("weights", [0.0, 1e-40, 1e-6, 1e6])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_extremes_are_finite(scale, weights, dtype):
    layer, data = layer_of(dtype=dtype, min_shape=0.1, init_shape=0.2, shape=0.11), data_of(dtype=dtype)
    nn.init.constant_(layer.weight, weights)
    step = step_of(layer, FeatureSet(data.features * scale, data.labels), Objective(beta=1.0))
    for _ in range(20):
        loss = step(data.features * scale, data.labels, 1.0)
        assert loss.isfinite()
        for parameter in (layer.weight, layer.bias):
            assert parameter.grad.isfinite().all()
            assert parameter.grad.dtype == dtype


def test_an_ambient_autocast_changes_nothing():
    ends = []
    for enabled in (False, True):
        layer, data = layer_of(dtype=torch.float32), data_of(dtype=torch.float32)
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=enabled):
            step_of(layer, data, Objective())(data.features, data.labels, 1.0)
        ends.append(layer.weight.grad)
    assert torch.equal(*ends)


def test_gradients_from_elsewhere_move_no_shape():
    layer, data = layer_of(), data_of()
    for parameter in layer.parameters():
        parameter.grad = torch.ones_like(parameter)
    step = step_of(layer, data, Objective())
    before = {name: value.clone() for name, value in layer.state_dict().items()}
    optimizer = torch.optim.AdamW(layer.parameters(), lr=0.1)
    step(data.features, data.labels, 1.0)
    optimizer.step()
    moved = {name for name, value in layer.state_dict().items() if not torch.equal(value, before[name])}
    assert moved == {"weight", "bias"}


# ---------------------------------------------------------------------------------------------------- within bndl.fit


@pytest.fixture
def short_calibration(monkeypatch):
    monkeypatch.setattr(calibrate, "_STEPS", 10)


def problem(num: int, *, seed: int) -> FeatureSet:
    """Features of a ReLU and labels from the softmax of a linear function of them."""
    generator = torch.Generator().manual_seed(seed)
    truth = 3 * torch.eye(K, C) + torch.randn(K, C, generator=torch.Generator().manual_seed(0))
    features = torch.randn(num, K, generator=generator).relu()
    return FeatureSet(features, torch.multinomial((features @ truth).softmax(1), 1, generator=generator)[:, 0])


def fresh() -> DecisionLayer:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return DecisionLayer(K, C)


def fitted(*, by_hand: bool, train: FeatureSet | None = None, **given: Any) -> tuple[DecisionLayer, bndl.FitResult]:
    layer = fresh()
    if not by_hand:
        layer.register_forward_hook(lambda *_: None)
    assert HeadStep.applies(layer, bndl.objective.resolve(given.get("objective", "default"))) == by_hand
    return layer, bndl.fit(layer, train or problem(600, seed=1), problem(400, seed=2), **given)


def test_a_fit_by_hand_is_as_good_as_by_autograd():
    (_, fast), (_, slow) = (fitted(by_hand=by_hand, epochs=6) for by_hand in (True, False))
    assert fast.nll_after < 0.7 * fast.nll_before
    assert fast.nll_after == pytest.approx(slow.nll_after, rel=0.02)
    assert fast.lr == slow.lr


@pytest.mark.usefixtures("short_calibration")
@pytest.mark.parametrize("rows", [2048, 60], ids=["all rows", "some rows"])
def test_the_reported_loss_is_the_same_quantity(rows, monkeypatch):
    monkeypatch.setattr(head_step, "_ROWS", rows)
    losses = []
    for by_hand in (True, False):
        result = fitted(by_hand=by_hand, epochs=8, lr=1e-4, objective=Objective(beta=0.2))[1]
        losses.append([epoch.train_loss for epoch in result.epochs[1:]])
    assert min(losses[0]) > 2 * math.log(C)  # the KL is most of it
    assert losses[0] == pytest.approx(losses[1], rel=0.01 if rows > 600 else 0.05)


def test_an_interrupt_in_an_epoch_leaves_the_best_one(monkeypatch):
    layer, snapshots, original = fresh(), [], HeadStep.__call__

    def interrupted(self, *args):
        snapshots.append({key: value.clone() for key, value in layer.state_dict().items()})
        if len(snapshots) == 6:
            raise KeyboardInterrupt
        return original(self, *args)

    monkeypatch.setattr(HeadStep, "__call__", interrupted)
    with pytest.raises(KeyboardInterrupt):
        bndl.fit(layer, problem(200, seed=1), problem(400, seed=2), lr=0.1, batch_size=100)
    best = snapshots[4]  # two steps an epoch: where the second epoch ended
    assert not torch.equal(best["weight"], snapshots[5]["weight"])
    assert all(torch.equal(value, best[key]) for key, value in layer.state_dict().items())


@pytest.mark.usefixtures("short_calibration")
def test_weights_laid_out_by_columns_learn_the_same():
    ends = []
    for strided in (False, True):
        layer = fresh()
        if strided:
            layer.weight.data = layer.weight.data.t().contiguous().t()
        bndl.fit(layer, problem(100, seed=1), problem(100, seed=2), epochs=2, lr=0.1)
        ends.append(layer.weight.detach())
    torch.testing.assert_close(*ends, rtol=1e-4, atol=1e-5)


class Mine(DecisionLayer):
    """A layer with a forward pass of its own, perhaps."""


@pytest.mark.usefixtures("short_calibration")
def test_every_other_layer_and_objective_goes_its_own_way():
    default, hooked, masked = Objective(), fresh(), fresh()
    hooked.register_forward_pre_hook(lambda *_: None)
    masked.weight.register_hook(lambda gradient: gradient * 0)
    assert HeadStep.applies(fresh(), default)
    assert HeadStep.applies(fresh(), Objective(phi="none"))
    assert not HeadStep.applies(fresh(), bndl.objective.resolve("paper-vit"))
    small = compact(fresh())
    others = [
        hooked,
        masked,
        small,
        Mine(K, C),
        *(DecisionLayer(K, C, theta_shape=shape) for shape in ("sample", "entry")),
    ]
    for layer in (*others, DecisionLayer(K, C, dense_map=True)):
        assert isinstance(layer, DecisionLayer)
        assert not HeadStep.applies(layer, default)
    result = bndl.fit(small, problem(60, seed=1), epochs=1)
    assert result.nll_after < result.nll_before


def test_features_of_another_size_are_refused_in_one_sentence():
    wrong = FeatureSet(torch.rand(30, K + 1), torch.zeros(30, dtype=torch.long))
    with pytest.raises(InputError, match=r"takes features of size 6, got dims \(30, 7\)"):
        bndl.fit(fresh(), wrong, problem(30, seed=1))

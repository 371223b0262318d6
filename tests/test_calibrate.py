"""Calibration: no decision changes, the prediction's likelihood does, and nothing but shapes and scale is touched."""

import copy
import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import bndl
from bndl import DecisionLayer, calibrate
from bndl.calibrate import best_log_scale, scaled_nll
from bndl.draws import SharedDraws, blocks
from bndl.features import FeatureSet
from bndl.weibull import cv2

THETA = ("feature", "sample", "entry")


@pytest.fixture
def few_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """For what must hold after any number of steps."""
    monkeypatch.setattr(calibrate, "_STEPS", 20)


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def problem(count: int, *, seed: int) -> FeatureSet:
    """Labels drawn from softmax(h W): nothing predicts better than those probabilities."""
    generator = seeded(seed)
    h = torch.rand(count, 8, generator=generator) * 2
    labels = torch.multinomial((h @ truth().t()).softmax(1), 1, generator=generator)[:, 0]
    return FeatureSet(h, labels)


def truth() -> Tensor:
    return torch.rand(3, 8, generator=seeded(7)) * 2


def head(*, confidence: float, **arguments: object) -> DecisionLayer:
    """The true weights, but ``confidence`` times as sure of itself as it should be."""
    layer = DecisionLayer(8, 3, **arguments)
    with torch.no_grad():
        layer.weight.copy_(layer.alpha_phi + confidence * truth())
        if layer.bias is not None:
            layer.bias.copy_(torch.tensor([0.0, -0.2, 0.0]))
    return layer


@torch.no_grad()
def predictive_nll(layer: DecisionLayer, data: FeatureSet, num_samples: int = 200) -> float:
    """Of the average of probabilities over the draws: what a user is judged by."""
    shared, parts = SharedDraws(layer, num_samples, seed=3), []
    for tile in blocks(data.features):
        log_probs = torch.cat([part.logits(layer.theta(tile)).log_softmax(-1) for part in shared.slices()], dim=1)
        parts.append(log_probs.logsumexp(1) - math.log(num_samples))
    return F.nll_loss(torch.cat(parts)[: len(data)], data.labels).item()


@pytest.mark.parametrize("theta_shape", THETA)
@pytest.mark.parametrize(("confidence", "count"), [(6.0, 1500), (0.2, 400)], ids=["overconfident", "underconfident"])
def test_lowers_the_predictive_nll_on_other_data_and_changes_no_decision(theta_shape, confidence, count):
    layer, test = head(confidence=confidence, theta_shape=theta_shape).eval(), problem(2000, seed=2)
    decisions, before = layer(test.features).argmax(1), predictive_nll(layer, test)
    calibrate.calibrate(layer, problem(count, seed=1), generator=seeded())
    best = F.cross_entropy(test.features @ truth().t(), test.labels).item()
    assert torch.equal(layer(test.features).argmax(1), decisions)
    assert before > best + 0.1
    assert predictive_nll(layer, test) < best + 0.1 * (before - best)


@pytest.mark.parametrize("theta_shape", THETA)
def test_the_scale_is_the_best_for_what_predict_says_of_all_examples(theta_shape):
    layer, data = head(confidence=6.0, theta_shape=theta_shape).eval(), problem(1100, seed=1)
    calibrate.calibrate(layer, data, generator=seeded(), num_steps=10)

    def loss(scale: float) -> float:
        other = copy.deepcopy(layer)
        calibrate._fold(other, torch.tensor(scale))
        probs = bndl.predict(other, data.features).probs
        return F.nll_loss(probs.double().log(), data.labels).item()

    assert loss(1.0) < min(loss(0.98), loss(1.02))


def test_only_shapes_move_and_all_logits_scale_alike():
    layer, data = head(confidence=6.0, theta_shape="sample", dense_map=True).eval(), problem(600, seed=1)
    assert layer.bias is not None
    with torch.no_grad():
        layer.bias[0] = 2.0
    old, logits = {name: p.detach().clone() for name, p in layer.named_parameters()}, layer(data.features)
    calibrate.calibrate(layer, data, generator=seeded())
    scale = layer.weight[0, 0] / old["weight"][0, 0]
    assert 0 < scale < 0.5
    torch.testing.assert_close(layer.weight, old["weight"] * scale)
    torch.testing.assert_close(layer(data.features), logits * scale)
    for name, parameter in layer.named_parameters():
        if name.startswith("dense_map"):
            assert torch.equal(parameter, old[name])
        else:
            assert not torch.equal(parameter, old[name]), name


@pytest.mark.usefixtures("few_steps")
def test_weights_below_the_threshold_stay_below_it():
    layer, data = head(confidence=6.0, alpha_phi=0.4, alpha_theta=0.2).eval(), problem(600, seed=1)
    with torch.no_grad():
        layer.weight[0, :4] = torch.tensor([0.4, 0.1, -1.0, 0.399])
    removed, logits = layer.phi().mean == 0, layer(data.features)
    calibrate.calibrate(layer, data, generator=seeded())
    assert removed.sum() == 4
    assert torch.equal(layer.phi().mean == 0, removed)
    assert torch.equal(layer(data.features).argmax(1), logits.argmax(1))


@pytest.mark.usefixtures("few_steps")
@pytest.mark.parametrize("count", [100, 900])
def test_the_generator_alone_decides_the_result(count):
    data, layers = problem(count, seed=1), []
    before = torch.get_rng_state()
    for seed in (1, 1, 2):
        with torch.random.fork_rng():
            layers.append(head(confidence=3.0))
        calibrate.calibrate(layers[-1], data, generator=seeded(seed))
    assert torch.equal(torch.get_rng_state(), before)
    first, second, other = (layer.phi_raw_shape for layer in layers)
    assert torch.equal(first, second)
    assert not torch.equal(first, other)


@pytest.mark.usefixtures("few_steps")
def test_leaves_no_gradients_behind():
    layer = head(confidence=3.0)
    calibrate.calibrate(layer, problem(200, seed=1), generator=seeded())
    assert [name for name, parameter in layer.named_parameters() if parameter.grad is not None] == []


@pytest.mark.usefixtures("few_steps")
@pytest.mark.parametrize("theta_shape", THETA)
def test_starts_afresh_whatever_the_shapes_were(theta_shape):
    layers = [head(confidence=3.0, theta_shape=theta_shape, phi_shape="entry") for _ in range(2)]
    with torch.no_grad():
        for name, parameter in layers[1].named_parameters():
            if "shape" in name:
                parameter += 1 + torch.arange(parameter.numel()).view_as(parameter)
    for layer in layers:
        calibrate.calibrate(layer, problem(300, seed=1), generator=seeded())
    assert all(torch.equal(one, other) for one, other in zip(*(layer.parameters() for layer in layers), strict=True))


@pytest.mark.parametrize("theta_shape", THETA)
def test_a_handful_of_examples_buys_no_absurd_noise(theta_shape):
    """The prior outweighs five examples; over-sure ones at that, which noise alone could also explain."""
    layer = head(confidence=6.0, theta_shape=theta_shape, init_shape=10.0)
    data = problem(5, seed=4)
    calibrate.calibrate(layer, data, generator=seeded())
    for shape in (layer.phi().shape, layer.theta(data.features).shape):
        assert 3 < shape.min() <= shape.max() < 30


# -------------------------------------------------------------------------------------------------- a level and departures


def layer_of(weights: Tensor, **arguments: object) -> DecisionLayer:
    layer = DecisionLayer(weights.size(1), len(weights), bias=False, **arguments)
    with torch.no_grad():
        layer.weight.copy_(weights)
    return layer.eval()


def log_shapes(layer: DecisionLayer, data: FeatureSet) -> tuple[Tensor, Tensor]:
    return layer.theta(data.features).shape.detach().log(), layer.phi().shape.detach().log()


def test_data_with_no_use_for_noise_turn_all_of_it_down_together():
    """No one of forty features has much to gain by it: it is their common level that moves."""
    layer = layer_of(3 * torch.rand(3, 40, generator=seeded(7)))
    h = 2 * torch.rand(500, 40, generator=seeded(1))
    data = FeatureSet(h, layer(h).argmax(1).detach())
    calibrate.calibrate(layer, data, generator=seeded())
    for shapes in log_shapes(layer, data):
        fallen = shapes - math.log(10)
        assert fallen.min() > 1.5
        assert fallen.std() < 0.1 * fallen.mean()


@pytest.mark.parametrize("unreliable", [0, 2, 6])
def test_a_feature_that_is_not_to_be_trusted_stands_out(unreliable):
    """It is seen times a random factor, the others as they are."""
    layer, generator = layer_of(2 * torch.rand(3, 8, generator=seeded(7))), seeded(1)
    h = 2 * torch.rand(3000, 8, generator=generator)
    labels = torch.multinomial(layer(h).softmax(1), 1, generator=generator)[:, 0]
    h[:, unreliable] *= 3 * torch.rand(3000, generator=generator).square()
    data = FeatureSet(h, labels)
    calibrate.calibrate(layer, data, generator=seeded())
    theta, phi = log_shapes(layer, data)
    noise = cv2(theta.exp()) + cv2(phi.exp())
    others = torch.arange(8) != unreliable
    assert theta.argmin() == unreliable
    assert noise[unreliable] > 10 * noise[others].max()
    assert theta[others].std() < 0.5  # the others stay together


@pytest.mark.parametrize("offset", [0.0, 100.0, 1000.0])
def test_features_far_from_zero_do_not_drown_in_noise(offset):
    fitted, other = (
        FeatureSet(data.features + offset, data.labels) for data in (problem(600, seed=1), problem(2000, seed=2))
    )
    layer = head(confidence=2.0)
    with torch.no_grad():
        layer.bias.sub_(offset * layer.phi().mean.sum(1))
        layer.bias.sub_(layer.bias.min())
    alone = float(scaled_nll(layer, other).mean())
    calibrate.calibrate(layer, fitted, generator=seeded())
    assert predictive_nll(layer, other) < alone + 0.01


@pytest.mark.usefixtures("few_steps")
@pytest.mark.parametrize("theta_shape", THETA)
def test_a_layer_that_allows_but_little_noise_is_calibrated_within_that(theta_shape):
    layer = head(confidence=3.0, theta_shape=theta_shape, min_shape=20.0, init_shape=40.0)
    data = problem(300, seed=1)
    calibrate.calibrate(layer, data, generator=seeded())
    for shapes in log_shapes(layer, data):
        assert torch.isfinite(shapes).all()
        assert (shapes.exp() >= 20).all()


# ---------------------------------------------------------------------------------------------------------------- the scale


@pytest.mark.parametrize("scale", [0.1, 1.0, 20.0])
def test_the_best_scale_is_where_the_cross_entropy_is_flat(scale):
    data = problem(800, seed=1)
    logits = (data.features @ truth().t()).double() * scale
    log_scale = best_log_scale(logits, data.labels).requires_grad_()
    assert log_scale.exp().item() * scale == pytest.approx(1, rel=0.2)  # the labels were drawn at scale 1
    (slope,) = torch.autograd.grad(F.cross_entropy(logits * log_scale.exp(), data.labels), log_scale)
    assert abs(slope.item()) < 1e-6


@pytest.mark.parametrize("confidence", [0.1, 1.0, 30.0])
def test_scaled_nll_is_temperature_scaling(confidence):
    """The least cross entropy over all scales, so it does not depend on how sure the head was to begin with."""
    layer, data = head(confidence=confidence, bias=False).eval(), problem(800, seed=1)
    found = scaled_nll(layer, data)
    assert found.size() == (800,)
    logits = layer(data.features)
    scales = torch.logspace(-2, 2, 400) / confidence
    best = min(F.cross_entropy(logits * scale, data.labels).item() for scale in scales)
    assert found.mean().item() == pytest.approx(best, rel=1e-4)


@pytest.mark.parametrize("count", [8, 60])
def test_data_that_are_all_predicted_right_do_not_buy_infinite_confidence(count):
    """A small held-out set is often separable; its best temperature is then 0, and other data would pay for it."""
    layer, data = head(confidence=1.0).eval(), problem(2000, seed=1)
    right = layer(data.features).argmax(1) == data.labels
    easy = data.take(right.nonzero().flatten()[:count])
    before = layer(data.features).abs().mean()
    calibrate.calibrate(layer, easy, generator=seeded())
    assert layer(data.features).abs().mean() < 10 * before
    logits = layer(easy.features).detach()
    assert calibrate.best_log_scale(logits, easy.labels, prior=True) < calibrate.best_log_scale(logits, easy.labels)

"""One pass: the fields are what they say, an example's answer is its own, and every kind of input is read."""

import copy
import os
import re
import subprocess
import sys
from dataclasses import FrozenInstanceError, fields

import numpy as np
import pytest
import scipy.stats
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.data import DataLoader, Dataset, TensorDataset

import bndl
from bndl.backbones import SmallCNN
from bndl.decide import Decider
from bndl.draws import BLOCK, SharedDraws, Slice, blocks
from bndl.errors import InputError

METHODS = ("sample", "closed", "paper")
THETA_SHAPES = ("feature", "sample", "entry")
CONTRACT = ("labels", "probs", "p_value", "flip_probability", "certain", "entropy", "aleatoric", "epistemic")


def rows(num: int, size: int, *, seed: int = 0) -> Tensor:
    return torch.randn(num, size, generator=torch.Generator().manual_seed(seed))


def make_layer(in_features: int = 8, num_classes: int = 4, *, seed: int = 0, **given) -> bndl.DecisionLayer:
    """A layer with weights of a trained one's size and shapes between about 1 and 5, no two alike."""
    generator = torch.Generator().manual_seed(seed)
    layer = bndl.DecisionLayer(in_features, num_classes, **given)
    with torch.no_grad():
        layer.weight.copy_(torch.randn(layer.weight.size(), generator=generator).abs())
        if layer.bias is not None:
            layer.bias.copy_(torch.rand(num_classes, generator=generator))
        for name, parameter in layer.named_parameters():
            if name.endswith("raw_shape"):
                parameter.copy_(1 + 4 * torch.rand(parameter.size(), generator=generator))
            elif name.startswith("theta_shape_map"):
                parameter.copy_(0.3 * torch.randn(parameter.size(), generator=generator) + 2 * (parameter.dim() == 1))
            elif name.startswith("dense_map"):
                parameter.add_(0.1 * torch.randn(parameter.size(), generator=generator))
    return layer.eval()


def assert_same_bits(first: bndl.Prediction, second: bndl.Prediction) -> None:
    for field in fields(bndl.Prediction):
        assert torch.equal(getattr(first, field.name), getattr(second, field.name)), field.name


def joined(parts: list[bndl.Prediction]) -> bndl.Prediction:
    return bndl.Prediction(
        **{f.name: torch.cat([getattr(part, f.name) for part in parts]) for f in fields(bndl.Prediction)}
    )


# ---------------------------------------------------------------------------------------------------------- the fields


def test_a_frozen_record_with_the_fields_of_the_contract():
    layer, h = make_layer(), rows(7, 8).abs()
    pred = bndl.predict(layer, h)
    assert isinstance(pred, bndl.Prediction)
    assert len(pred) == 7
    for name in CONTRACT:
        assert getattr(pred, name).size() == ((7, 4) if name == "probs" else (7,)), name
        assert not getattr(pred, name).requires_grad
    assert pred.labels.dtype == torch.int64
    assert pred.certain.dtype == torch.bool
    with pytest.raises(FrozenInstanceError):
        pred.labels = pred.labels


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("num_classes", [2, 3, 17])
def test_what_must_hold_of_any_prediction(method, num_classes):
    layer, h = make_layer(8, num_classes, signed=True), 3 * rows(100, 8)
    pred = bndl.predict(layer, h, method=method)
    assert torch.equal(pred.labels, layer(h).argmax(dim=1))
    torch.testing.assert_close(pred.logits, layer(h).detach())
    torch.testing.assert_close(pred.probs.sum(dim=1), torch.ones(100))
    assert (pred.probs >= 0).all()
    assert (pred.runner_up != pred.labels).all()
    assert torch.equal(pred.runner_up, pred.logits.topk(2, dim=1).indices[:, 1])
    expected = scipy.stats.entropy(pred.probs.double().numpy(), axis=1)
    np.testing.assert_allclose(pred.entropy, expected, rtol=1e-4, atol=1e-6)
    for name in ("p_value", "flip_probability"):
        assert ((getattr(pred, name) >= 0) & (getattr(pred, name) <= 1)).all(), name
    assert (pred.aleatoric > 0).all()
    assert (pred.epistemic > 0).all()
    assert torch.equal(pred.confidence, pred.probs[torch.arange(100), pred.labels])


@pytest.mark.parametrize("method", METHODS)
def test_certain_is_p_at_most_the_level(method):
    layer, h = make_layer(), rows(200, 8).abs()
    strict = bndl.predict(layer, h, method=method, level=0.001)
    loose = bndl.predict(layer, h, method=method, level=0.2)
    assert torch.equal(strict.p_value, loose.p_value)
    for pred, level in ((strict, 0.001), (loose, 0.2)):
        assert torch.equal(pred.certain, pred.p_value <= level)
    assert 0 < strict.certain.sum() < loose.certain.sum() < 200


def test_rows_can_be_chosen():
    pred = bndl.predict(make_layer(), rows(10, 8).abs())
    assert_same_bits(pred[3], pred[3:4])
    assert_same_bits(pred[[1, 5]], joined([pred[1], pred[5]]))
    assert len(pred[pred.certain]) == int(pred.certain.sum())
    assert torch.equal(pred[-1].probs[0], pred.probs[-1])


# -------------------------------------------------------------------------------------------- against draws and scipy


def brute_force(layer: bndl.DecisionLayer, h: Tensor, num: int) -> tuple[np.ndarray, np.ndarray]:
    """Draws of theta (num, B, K) and Phi (num, C, K) by numpy's Weibull, whose parameter is the scale."""
    rng = np.random.default_rng(0)
    drawn = []
    for posterior in (layer.theta(h), layer.phi()):
        mean, shape = (part.detach().double() for part in (posterior.mean, posterior.shape))
        scale = (mean / torch.exp(torch.lgamma(1 + 1 / shape))).numpy()
        drawn.append(scale * rng.weibull(shape.numpy(), size=(num, *mean.size())))
    return drawn[0], drawn[1]


@pytest.mark.parametrize(
    "given",
    [{}, {"theta_shape": "sample", "phi_shape": "entry"}, {"theta_shape": "entry", "signed": True}, {"bias": False}],
    ids=["row", "sample-entry", "entry-signed", "no-bias"],
)
def test_closed_forms_against_a_hundred_thousand_draws(given):
    layer, h = make_layer(6, 4, **given), rows(4, 6).abs()
    with torch.no_grad():  # shapes of a fitted head: at k = 1 a Gaussian says little about a flip
        for name, parameter in layer.named_parameters():
            if name.endswith("raw_shape") or name == "theta_shape_map.bias":
                parameter.add_(3.0)
    pred = bndl.predict(layer, h, num_samples=20_000)
    theta, phi = brute_force(layer, h, 100_000)
    offset = 0 if layer.bias is None else layer.offset().detach().double().numpy()
    logits = np.einsum("sbk,sck->sbc", theta, phi) + offset
    mean_phi = layer.phi().mean.detach().double().numpy()
    for row, (first, second) in enumerate(zip(pred.labels, pred.runner_up, strict=True)):
        difference = logits[:, row, first] - logits[:, row, second]
        from_theta = (theta[:, row] @ (mean_phi[first] - mean_phi[second])).var()
        assert float(pred.aleatoric[row]) == pytest.approx(from_theta, rel=0.04)
        assert float(pred.aleatoric[row] + pred.epistemic[row]) == pytest.approx(difference.var(), rel=0.04)
        gap = float(pred.logits[row, first] - pred.logits[row, second])
        assert gap == pytest.approx(difference.mean(), abs=6 * difference.std() / 300)
        assert float(pred.flip_probability[row]) == pytest.approx((difference < 0).mean(), abs=0.05)
    probs = np.exp(logits - logits.max(axis=2, keepdims=True))
    probs = (probs / probs.sum(axis=2, keepdims=True)).mean(axis=0)
    np.testing.assert_allclose(pred.probs, probs, atol=0.015)


def test_closed_probabilities_are_near_the_drawn_ones():
    layer, h = make_layer(16, 10), rows(100, 16).abs()
    drawn, closed, dense = (
        bndl.predict(layer, h, num_samples=5000).probs,
        bndl.predict(layer, h, method="closed").probs,
        layer(h).softmax(dim=1).detach(),
    )
    to_drawn = [scipy.stats.entropy(drawn.numpy(), probs.numpy(), axis=1).mean() for probs in (closed, dense)]
    assert to_drawn[0] < to_drawn[1]  # or else it is worse than not to know the variance at all


@pytest.mark.parametrize("method", METHODS)
def test_what_is_added_to_all_logits_alike_changes_nothing(method):
    """Softmax ignores it, and conversion adds such constants freely."""
    layer, h = make_layer(16, 10), rows(40, 16).abs()
    before = bndl.predict(layer, h, method=method)
    with torch.no_grad():
        layer.bias.add_(20.0)
    after = bndl.predict(layer, h, method=method)
    torch.testing.assert_close(after.probs, before.probs, rtol=0, atol=1e-4)
    torch.testing.assert_close(after.p_value, before.p_value, rtol=1e-2, atol=1e-6)


def test_the_closed_form_gives_its_decision_the_largest_probability():
    pred = bndl.predict(make_layer(16, 10), rows(100, 16).abs(), method="closed")
    assert torch.equal(pred.probs.argmax(dim=1), pred.labels)


def log_odds_of(logits: Tensor, label: Tensor) -> Tensor:
    """ln p / (1 - p) of a class, from its probability: (..., B, C), (B,) -> (..., B)."""
    p = logits.double().softmax(dim=-1).gather(-1, label[:, None].expand(*logits.size()[:-1], 1))[..., 0]
    return p.log() - torch.log1p(-p)


@pytest.mark.parametrize("given", [{}, {"theta_shape": "entry", "signed": True}, {"bias": False}])
def test_p_is_the_t_test_of_the_log_odds_at_twenty_draws(given):
    """Against twenty thousand draws of a posterior that is narrow, as the closed form is of first order in the noise."""
    layer, h = make_layer(6, 5, **given), 2 * rows(30, 6).abs()
    with torch.no_grad():
        for name, parameter in layer.named_parameters():
            if name.endswith("raw_shape") or name == "theta_shape_map.bias":
                parameter.add_(15.0)
    pred = bndl.predict(layer, h)
    theta, phi = brute_force(layer, h, 20_000)
    offset = 0 if layer.bias is None else layer.offset().detach().double().numpy()
    odds = log_odds_of(torch.from_numpy(np.einsum("sbk,sck->sbc", theta, phi) + offset), pred.labels).numpy()
    at_mean = log_odds_of(pred.logits, pred.labels).numpy()
    assert 5 < (at_mean > 0).sum() < 25
    t = at_mean / odds.std(axis=0) * np.sqrt(20)
    likely = (at_mean > 0) & (pred.confidence > 0.5).numpy()
    np.testing.assert_allclose(scipy.stats.t.isf(pred.p_value[likely] / 2, df=19), t[likely], rtol=0.04)
    np.testing.assert_allclose(pred.p_value, np.where(likely, 2 * scipy.stats.t.sf(t, df=19), 1.0), atol=0.02)
    assert (pred.p_value[~likely] == 1).all()
    assert ((pred.p_value > 1e-3) & (pred.p_value < 1)).any()


def test_a_decision_that_is_probably_wrong_is_never_certain():
    layer, h = make_layer(8, 40), rows(300, 8).abs() / 2
    pred = bndl.predict(layer, h, level=0.999)
    less_than_half = (layer(h).softmax(dim=1).max(dim=1).values.detach() <= 0.5) | (pred.confidence <= 0.5)
    assert 50 < less_than_half.sum() < 300
    assert (pred.p_value[less_than_half] == 1).all()
    assert not pred.certain[less_than_half].any()
    assert pred.certain[~less_than_half].any()


@pytest.mark.parametrize("method", ["sample", "closed"])
def test_of_two_classes_all_others_are_the_runner_up(method):
    layer, h = make_layer(8, 2), rows(100, 8).abs()
    ours, theirs = (bndl.predict(layer, h, method=method, against=against) for against in ("all", "runner-up"))
    assert torch.equal(ours.p_value, theirs.p_value)


def test_what_to_test_against_is_all_or_the_runner_up():
    with pytest.raises(InputError, match="against must be one of all, runner-up, got 'second'"):
        bndl.predict(make_layer(), rows(2, 8).abs(), against="second")


@pytest.mark.parametrize("method", ["sample", "closed"])
def test_against_the_runner_up_p_is_the_t_test_of_the_closed_form_at_twenty_draws(method):
    layer, h = make_layer(), rows(50, 8).abs()
    pred = bndl.predict(layer, h, method=method, against="runner-up")
    top = pred.logits.double().topk(2, dim=1).values
    variance = (pred.aleatoric + pred.epistemic).double()
    z = ((top[:, 0] - top[:, 1]) / variance.sqrt()).numpy()
    np.testing.assert_allclose(pred.p_value, 2 * scipy.stats.t.sf(z * np.sqrt(20), df=19), rtol=1e-4)
    np.testing.assert_allclose(pred.flip_probability, scipy.stats.norm.sf(z), rtol=1e-4)


@pytest.mark.parametrize("theta_shape", THETA_SHAPES)
@pytest.mark.parametrize("num_samples", [2, 20, 50])
def test_the_papers_p_is_scipys_paired_t_test(theta_shape, num_samples):
    layer, h = make_layer(theta_shape=theta_shape), rows(BLOCK + 90, 8, seed=1).abs()
    pred = bndl.predict(layer, h, method="paper", num_samples=num_samples, seed=3)
    shared = SharedDraws(layer, num_samples, seed=3, stratified=False)
    with torch.no_grad():
        parts = [torch.cat([part.logits(layer.theta(tile)) for part in shared.slices()], dim=1) for tile in blocks(h)]
    logits = torch.cat(parts)[: len(h)].double()  # (B, S, C)
    first = logits.gather(2, pred.labels.view(-1, 1, 1).expand(-1, num_samples, 1))[..., 0].numpy()
    second = logits.gather(2, pred.runner_up.view(-1, 1, 1).expand(-1, num_samples, 1))[..., 0].numpy()
    np.testing.assert_allclose(pred.p_value, scipy.stats.ttest_rel(first, second, axis=1).pvalue, rtol=2e-3)
    np.testing.assert_allclose(pred.flip_probability, (first < second).mean(axis=1), atol=1e-12)
    np.testing.assert_allclose(pred.probs, logits.softmax(dim=2).mean(dim=1), atol=1e-6)


def test_the_paper_makes_twenty_draws():
    layer, h = make_layer(), rows(30, 8).abs()
    assert_same_bits(bndl.predict(layer, h, method="paper"), bndl.predict(layer, h, method="paper", num_samples=20))


@pytest.mark.parametrize("method", METHODS)
def test_a_difference_of_zero_is_uncertain(method):
    layer = make_layer(8, 12)
    with torch.no_grad():
        layer.bias.fill_(0.5)
    pred = bndl.predict(layer, torch.zeros(3, 8), method=method, level=0.999)
    assert not pred.certain.any()
    assert pred.p_value.tolist() == [1, 1, 1]
    assert pred.flip_probability.tolist() == [0.5, 0.5, 0.5]
    torch.testing.assert_close(pred.probs, torch.full((3, 12), 1 / 12))


@pytest.mark.parametrize("method", METHODS)
def test_of_equal_logits_the_label_is_the_one_that_argmax_gives(method):
    layer = make_layer(8, 12)
    with torch.no_grad():
        layer.bias.fill_(0.5)
    pred = bndl.predict(layer, torch.zeros(3, 8), method=method)
    assert torch.equal(pred.labels, layer(torch.zeros(3, 8)).argmax(dim=1))
    assert (pred.runner_up != pred.labels).all()


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("theta_shape", ["feature", "sample"])
def test_without_noise_a_difference_is_certain(method, theta_shape):
    layer = make_layer(theta_shape=theta_shape)
    with torch.no_grad():
        layer.phi_raw_shape.fill_(torch.inf)
        if theta_shape == "feature":
            layer.theta_raw_shape.fill_(torch.inf)
        else:
            layer.theta_shape_map.weight.zero_()
            layer.theta_shape_map.bias.fill_(torch.inf)
    h = rows(20, 8).abs()
    pred = bndl.predict(layer, h, method=method, against="runner-up")
    assert pred.certain.all()
    assert (pred.p_value == 0).all()
    likely = layer(h).softmax(dim=1).max(dim=1).values > 0.5
    if method != "paper":
        assert torch.equal(bndl.predict(layer, h, method=method).p_value, (~likely).double())
    assert (pred.flip_probability == 0).all()
    assert (pred.aleatoric == 0).all()
    assert (pred.epistemic == 0).all()
    torch.testing.assert_close(pred.probs, layer(h).softmax(dim=1).detach(), rtol=0, atol=1e-5)


def test_extreme_features_stay_finite():
    layer = make_layer(8, 4)
    h = torch.stack([torch.full((8,), 10.0**e) for e in range(-30, 7)])
    for method in METHODS:
        pred = bndl.predict(layer, h, method=method)
        for field in fields(pred):
            assert torch.isfinite(getattr(pred, field.name)).all(), (method, field.name)
        torch.testing.assert_close(pred.probs.sum(dim=1), torch.ones(len(h)))


# ------------------------------------------------------------------------------------------------------ one's own answer


@pytest.fixture(params=[1, 2], ids=["one-thread", "two-threads"])
def _threads(request):
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("_threads")
@pytest.mark.parametrize("theta_shape", THETA_SHAPES)
def test_a_batch_of_one_is_answered_as_in_a_crowd(theta_shape):
    layer, h = make_layer(64, 30, theta_shape=theta_shape), rows(130, 64).abs()
    whole = bndl.predict(layer, h)
    for row in (0, 63, 64, 129):
        assert_same_bits(bndl.predict(layer, h[row : row + 1]), whole[row])


@pytest.mark.parametrize("theta_shape", THETA_SHAPES)
@pytest.mark.parametrize("method", METHODS)
def test_an_answer_does_not_depend_on_the_batch(method, theta_shape):
    for size, num_classes, given in (
        (13, 7, {"signed": True}),
        (64, 10, {}),
        (33, 3, {"dense_map": True}),
        (5, 2, {"dense_map": True}),
        (5, 2, {}),
    ):
        layer, h = make_layer(size, num_classes, theta_shape=theta_shape, **given), rows(70, size)
        whole = bndl.predict(layer, h, method=method, seed=5)
        for batch_size in (7, 64, 65):
            assert_same_bits(bndl.predict(layer, h, method=method, seed=5, batch_size=batch_size), whole)
        assert_same_bits(bndl.predict(layer, h[:9], method=method, seed=5, batch_size=1), whole[:9])
        order = torch.randperm(70, generator=torch.Generator().manual_seed(1))
        assert_same_bits(bndl.predict(layer, h[order], method=method, seed=5), whole[order])
        assert_same_bits(bndl.predict(layer, h[41:42], method=method, seed=5), whole[41])
        crowd = torch.cat([1e4 * rows(100, size, seed=2), h[41:42], rows(30, size, seed=3)])
        assert_same_bits(bndl.predict(layer, crowd, method=method, seed=5)[100], whole[41])


def test_nor_does_it_through_a_convolutional_backbone():
    torch.manual_seed(0)
    model = bndl.convert(SmallCNN(5, width=8, num_features=16)).eval()
    images = rows(40, 64).view(40, 1, 8, 8)
    whole = bndl.predict(model, images)
    for batch_size in (1, 9, 32):
        pred = bndl.predict(model, images, batch_size=batch_size)
        assert torch.equal(pred.labels, whole.labels)
        torch.testing.assert_close(pred.probs, whole.probs, rtol=0, atol=1e-6)
        torch.testing.assert_close(pred.entropy, whole.entropy, rtol=0, atol=1e-5)
        torch.testing.assert_close(pred.p_value, whole.p_value, rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize("theta_shape", THETA_SHAPES)
def test_the_seed_and_nothing_else_decides_the_bits(theta_shape):
    layer, h = make_layer(theta_shape=theta_shape), rows(20, 8).abs()
    torch.manual_seed(1)
    state = torch.get_rng_state()
    first = bndl.predict(layer, h, seed=7)
    assert torch.equal(torch.get_rng_state(), state)
    torch.manual_seed(2)
    assert_same_bits(bndl.predict(layer, h, seed=7), first)
    assert not torch.equal(bndl.predict(layer, h, seed=8).probs, first.probs)
    closed = [bndl.predict(layer, h, method="closed", seed=seed) for seed in (7, 8)]
    assert_same_bits(*closed)


def test_autocast_around_it_does_not_reach_the_head():
    layer, h = make_layer(64, 5), rows(20, 64).abs()
    with torch.autocast("cpu", torch.bfloat16):
        pred = bndl.predict(layer, h)
    assert_same_bits(pred, bndl.predict(layer, h))


# --------------------------------------------------------------------------------------------------- the backbone's pass


def small_model() -> nn.Sequential:
    torch.manual_seed(0)
    return bndl.convert(nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(), nn.Linear(8, 3)))


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("batch_size", [1, 4, 100])
def test_each_example_passes_the_backbone_once(method, batch_size):
    model, seen, x = small_model(), [], rows(10, 4)
    model[0].register_forward_pre_hook(lambda _, args: seen.append(args[0]))
    bndl.predict(model, x, method=method, batch_size=batch_size)
    assert torch.equal(torch.cat(seen), x)
    assert len(seen) == -(-10 // batch_size)


def test_modes_buffers_and_gradients_are_left_alone():
    model, x = small_model().train(), rows(10, 4)
    model[1].eval()
    modes = [module.training for module in model.modules()]
    state = {key: value.clone() for key, value in model.state_dict().items()}
    pred = bndl.predict(model, x)
    assert_same_bits(bndl.predict(model.eval(), x), pred)  # dropout and noise were off
    model.train()[1].eval()
    with pytest.raises(InputError):
        bndl.predict(model, x * torch.nan)
    assert [module.training for module in model.modules()] == modes
    assert all(torch.equal(value, state[key]) for key, value in model.state_dict().items())
    assert all(parameter.grad is None for parameter in model.parameters())
    assert not any(module._forward_pre_hooks for module in model.modules())


class Labelled(Dataset):
    def __init__(self, x: Tensor) -> None:
        self.x = x

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index: int):
        return self.x[index], 0


def test_every_kind_of_input_gives_the_same_answer():
    layer, h = make_layer(), rows(150, 8).abs()
    expected = bndl.predict(layer, h)
    y = torch.zeros(150, dtype=torch.long)
    kinds = {
        "array": h.numpy(),
        "data set": Labelled(h),
        "tensors": TensorDataset(h),
        "loader": DataLoader(TensorDataset(h), 64),
        "labelled loader": DataLoader(Labelled(h), 40),
        "list": list(h.split(33)),
        "pairs": list(zip(h.split(33), y.split(33), strict=True)),
        "arrays": [part.numpy() for part in h.split(50)],
        "generator": (part for part in h.split(50)),
    }
    for kind in kinds.values():
        assert_same_bits(bndl.predict(layer, kind), expected)
    for kind in ({"x": h}, [{"x": part, "labels": part[:, 0]} for part in h.split(50)]):
        assert_same_bits(bndl.predict(ByName(layer), kind), expected)


class ByName(nn.Module):
    """A model that is called with keywords, as those of Hugging Face."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, *, x: Tensor) -> Tensor:
        return self.layer(x)


def test_labelled_arrays():
    layer, h = make_layer(), rows(10, 8).abs()
    assert_same_bits(bndl.predict(layer, [(h.numpy(), np.zeros(10, dtype=int))]), bndl.predict(layer, h))


def test_arrays_of_numpys_own_precision():
    layer, h = make_layer(), rows(10, 8).abs()
    assert_same_bits(bndl.predict(layer, h.double().numpy()), bndl.predict(layer, h))


def test_a_hugging_face_batch():
    transformers = pytest.importorskip("transformers")
    config = transformers.BertConfig(
        vocab_size=50, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16, num_labels=3
    )
    torch.manual_seed(0)
    model = bndl.convert(transformers.BertForSequenceClassification(config)).eval()
    tokens = {"input_ids": torch.arange(35).view(5, 7), "attention_mask": torch.ones(5, 7, dtype=torch.long)}
    pred = bndl.predict(model, transformers.BatchEncoding(tokens))
    with torch.no_grad():
        torch.testing.assert_close(pred.logits, model(**tokens).logits)
    assert_same_bits(bndl.predict(model, tokens), pred)
    labelled = bndl.predict(model, [transformers.BatchEncoding({**tokens, "labels": torch.zeros(5, dtype=torch.long)})])
    assert_same_bits(labelled, pred)
    assert torch.equal(bndl.predict(model, tokens, batch_size=2).labels, pred.labels)


# ----------------------------------------------------------------------------------------------------- what goes wrong


@pytest.mark.parametrize(
    ("x", "given", "words"),
    [
        (torch.rand(2, 8), {"method": "laplace"}, "method must be one of sample, closed, paper, got 'laplace'"),
        (torch.rand(2, 8), {"num_samples": 0}, "num_samples must be at least 1 for method='sample', got 0"),
        (torch.rand(2, 8), {"method": "paper", "num_samples": 1}, "num_samples must be at least 2 for method='paper'"),
        (torch.rand(2, 8), {"level": 0}, "level is a significance strictly between 0 and 1, got 0"),
        (torch.rand(2, 8), {"level": 5}, "level is a significance strictly between 0 and 1, got 5"),
        (torch.rand(0, 8), {}, r"nothing to predict on: the input has dims \(0, 8\)"),
        ([], {}, "nothing to predict on: the loader gave no batch"),
        (
            torch.rand(2, 3, 8),
            {},
            r"\(2, 3, 8\); .* one row of 8 features .* pool over tokens or positions before the head",
        ),
        (torch.rand(2, 7), {}, r"takes features of size 8, got dims \(2, 7\)"),
        (torch.full((2, 8), torch.nan), {}, "2 of 2 examples have NaN or infinite features"),
        ("images/", {}, "a batch is a tensor, a pair .* got str"),
    ],
)
def test_bad_input_is_said_in_one_sentence(x, given, words):
    with pytest.raises(InputError, match=words) as caught:
        bndl.predict(make_layer(), x, **given)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("batch_size", [0, -1])
def test_a_batch_size_below_one_is_refused(batch_size):
    with pytest.raises(InputError, match="batch_size"):
        bndl.predict(make_layer(), torch.rand(2, 8), batch_size=batch_size)


def test_one_class_is_no_decision():
    with pytest.raises(InputError, match="a decision needs at least two classes, the layer has one"):
        bndl.predict(bndl.DecisionLayer(8, 1), torch.rand(2, 8))


def test_a_model_that_was_not_converted():
    with pytest.raises(bndl.HeadError, match=r"call model = bndl\.convert\(model\) first"):
        bndl.predict(nn.Linear(8, 3), torch.rand(2, 8))


# ------------------------------------------------------------------------------------------------------------- memory


class LargestTensor(TorchDispatchMode):
    """Notes the most numbers that any operation returned in one tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.numel = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        for part in result if isinstance(result, tuple | list) else [result]:
            if isinstance(part, Tensor):
                self.numel = max(self.numel, part.numel())
        return result


def test_no_step_holds_all_draws_of_all_examples():
    layer, h = make_layer(64, 10), rows(6400, 64).abs()
    with LargestTensor() as seen:
        bndl.predict(layer, h, batch_size=6400, num_samples=100)
    assert seen.numel <= 512 * 100 * 10 + 16 * 512  # of a block and padding; S * B * C is 6,400,000


def test_draws_of_a_large_batch_come_in_blocks(monkeypatch):
    sizes = []
    original = Slice.logits

    def watched(self, theta):
        logits = original(self, theta)
        sizes.append(logits.numel())
        return logits

    monkeypatch.setattr(Slice, "logits", watched)
    layer, h = make_layer(64, 10), rows(20_000, 64).abs()
    pred = bndl.predict(layer, h, batch_size=20_000)
    assert len(pred) == 20_000
    assert max(sizes) <= 64 * 512 * 10  # S * B * C is 13 million
    assert sum(sizes) >= 64 * 20_000 * 10
    assert_same_bits(pred[-3:], bndl.predict(layer, h[-3:]))


IMAGENET_HEAD = """
import re, torch, bndl
peak = lambda: int(re.search(r"VmHWM:\\s+(\\d+) kB", open("/proc/self/status").read())[1]) / 1024
bndl.predict(bndl.DecisionLayer(8, 3), torch.rand(4, 8))
layer, h = bndl.DecisionLayer(2048, 1000).eval(), torch.rand(64, 2048)
layer(h)
before = peak()
bndl.predict(layer, h)
print(peak() - before)
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads the peak memory from /proc")
def test_the_head_of_imagenet_stays_within_the_stated_memory():
    steady = {**os.environ, "MALLOC_MMAP_THRESHOLD_": "131072"}  # glibc else keeps freed blocks as it happens to
    command = [sys.executable, "-c", IMAGENET_HEAD]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=steady)
    stated = int(re.search(r"needs at most (\d+) MB", bndl.predict.__doc__)[1])
    assert float(done.stdout) <= stated <= 600


def test_a_head_with_many_weights_draws_in_slices(monkeypatch):
    layer, h = make_layer(), rows(10, 8).abs()
    monkeypatch.setattr("bndl.draws._SLICE", 7 * 512 * 8)
    monkeypatch.setattr("bndl.draws._HELD", 0)
    with LargestTensor() as seen:
        pred = bndl.predict(layer, h, num_samples=2000)
    assert seen.numel <= 64 * 8 * 16
    monkeypatch.undo()
    torch.testing.assert_close(pred.probs, bndl.predict(layer, h, num_samples=2000).probs, rtol=0, atol=0.05)


# ----------------------------------------------------------------------------------------------- no evidence, no certainty


@pytest.mark.parametrize("method", METHODS)
def test_a_decision_that_only_the_bias_made_is_uncertain(method):
    layer = make_layer(4, 3)
    with torch.no_grad():
        layer.bias.copy_(torch.tensor([1.0, 0, 0]))
    pred = bndl.predict(layer, torch.zeros(2, 4), method=method)
    assert pred.labels.tolist() == [0, 0]
    assert pred.p_value.tolist() == [1, 1]
    assert pred.flip_probability.tolist() == [0.5, 0.5]
    assert not pred.certain.any()


def test_a_broken_layer_is_named():
    layer = make_layer()
    with torch.no_grad():
        layer.weight[0, 0] = torch.nan
    with pytest.raises(InputError, match="the decision layer's weight holds NaN"):
        bndl.predict(layer, rows(3, 8))


def test_features_too_large_for_their_variance_are_named():
    with pytest.raises(InputError, match="some beyond 1e"):
        bndl.predict(make_layer(), 1e20 * rows(3, 8).abs())


def test_a_class_without_weights_is_said():
    layer = make_layer()
    with torch.no_grad():
        layer.weight[1] = -1
    with pytest.warns(UserWarning, match="class 1 has no weight left"):
        bndl.predict(layer, rows(3, 8).abs())


def test_a_labelled_batch_and_awkward_arrays():
    layer, h = make_layer(), rows(12, 8).abs()
    plain = bndl.predict(layer, h)
    assert_same_bits(bndl.predict(layer, (h, torch.zeros(12, dtype=torch.long))), plain)
    assert_same_bits(bndl.predict(layer, h.numpy()[::-1]), plain[list(range(11, -1, -1))])
    assert_same_bits(plain[np.int64(3)], plain[3])


# ------------------------------------------------------------------------------------------------------ what is remembered


def test_the_surest_decisions_can_be_told_apart():
    z = torch.tensor([1.0, 8.0, 12.0, 25.0], dtype=torch.float64)
    found = bndl.decide.flip_probability(z, torch.ones_like(z))
    np.testing.assert_allclose(found, scipy.stats.norm.sf(z), rtol=1e-10)


def test_what_does_not_depend_on_the_example_is_made_once():
    layer, h = make_layer(), rows(10, 8).abs()
    first = bndl.predict(layer, h)
    kept = layer.memory
    assert kept is not None
    assert_same_bits(bndl.predict(layer, h), first)
    assert layer.memory is kept
    bndl.predict(layer, h, seed=1)
    assert layer.memory is not kept


@pytest.mark.parametrize("change", ["data", "no_grad", "state", "setting", "shape"])
def test_no_change_of_the_layer_goes_unnoticed(change):
    layer, h = make_layer(), rows(10, 8).abs()
    before = bndl.predict(layer, h)
    with torch.no_grad():
        if change == "data":
            layer.weight.data[0, 0] += 1.0  # no counter of torch sees this
        elif change == "no_grad":
            layer.weight[0, 0] += 1.0
        elif change == "state":
            layer.load_state_dict({**layer.state_dict(), "weight": layer.weight * 2})
        elif change == "shape":
            layer.phi_raw_shape.data[0] += 1.0
        else:
            layer.alpha_phi = 0.05
    after = bndl.predict(layer, h)
    assert not torch.equal(after.probs, before.probs)
    layer.memory = None
    assert_same_bits(bndl.predict(layer, h), after)


def test_training_copies_and_files_forget_it(tmp_path):
    layer, h = make_layer(), rows(10, 8).abs()
    bndl.predict(layer, h)
    assert copy.deepcopy(layer).memory is None
    torch.save(layer, tmp_path / "layer.pt")
    assert torch.load(tmp_path / "layer.pt", weights_only=False).memory is None
    layer.train()
    assert layer.memory is None
    bndl.predict(layer, h)
    assert layer.memory is None


@pytest.mark.parametrize("theta_shape", ["feature", "sample"])
def test_decisions_alone_are_those_of_a_whole_prediction(theta_shape):
    torch.manual_seed(0)
    decider = Decider(bndl.DecisionLayer(12, 5, theta_shape=theta_shape).eval(), num_samples=16, seed=3)
    features = torch.rand(70, 12)
    whole, (labels, probs) = decider(features), decider.decisions(features)
    assert torch.equal(labels, whole.labels)
    assert torch.equal(probs, whole.probs)

"""An explanation adds up to what the layer says, and its intervals are those of the posterior."""

import importlib
import json
import subprocess
import sys

import numpy as np
import pytest
import torch

import bndl.explain as package
from bndl import CompactLayer, DecisionLayer, InputError, compact, convert, predict
from bndl.backbones import SmallCNN
from bndl.explain import class_features, compare_classes, explain, feature_name
from bndl.explain.intervals import difference_interval, product_interval, weight_interval
from bndl.weibull import sample

LAYERS = {
    "plain": {},
    "no bias": {"bias": False},
    "signed": {"signed": True},
    "dense map": {"dense_map": True},
    "thresholds": {"alpha_theta": 0.3, "alpha_phi": 0.05},
    "sample and entry": {"theta_shape": "sample", "phi_shape": "entry"},
    "entry": {"theta_shape": "entry", "phi_shape": "entry", "signed": True},
}


def noisy(layer: DecisionLayer) -> DecisionLayer:
    """Every shape another, so that a wrong one shows."""
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for name, parameter in layer.named_parameters():
            if "shape" in name:
                low, spread = (0.0, 0.1) if name.endswith("map.weight") else (1.0, 2.0)
                parameter.copy_(low + spread * torch.rand(parameter.size(), generator=generator))
    return layer.eval()


@pytest.fixture(params=[*LAYERS, "compact"])
def layer(request) -> DecisionLayer:
    torch.manual_seed(0)
    if request.param == "compact":
        full = noisy(DecisionLayer(20, 5, signed=True))
        with torch.no_grad():
            full.weight[:, 3:31] = 0
        return compact(full).eval()
    return noisy(DecisionLayer(20, 5, **LAYERS[request.param]))


def test_terms_rest_and_bias_add_up_to_the_logit(layer):
    h = torch.randn(6, 20, generator=torch.Generator().manual_seed(1))
    for one, logits in zip(explain(layer, h, against="runner-up", top=4), layer(h).detach(), strict=True):
        assert one.label == one.target == int(logits.argmax())
        assert one.logit == pytest.approx(float(logits[one.target]), abs=1e-5)
        assert sum(t.value for t in one.terms) + one.rest + one.bias == pytest.approx(one.logit, abs=1e-4)
        assert [t.value for t in one.terms] == sorted((t.value for t in one.terms), reverse=True)
        assert len(one.terms) == min(4, one.num_terms)
        for t in one.terms:
            assert t.value == pytest.approx(t.theta * t.weight, rel=1e-5)
            assert 0 < t.low < t.value < t.high
        gap = sum(t.value for t in one.differences) + one.difference_rest + one.bias - one.against_bias
        assert one.against == one.runner_up
        assert gap == pytest.approx(one.logit - float(logits[one.against]), abs=1e-4)
        for t in one.differences:
            assert t.low < t.value < t.high


@torch.no_grad()
def test_intervals_are_those_of_the_layers_own_draws(layer):
    h, generator = torch.randn(2, 20, generator=torch.Generator().manual_seed(2)), torch.Generator().manual_seed(0)
    theta, phi, S = layer.theta(h), layer.phi(), 40_000
    thetas = sample(theta.mean.expand(S, -1, -1), theta.shape, generator=generator)
    weights = sample(phi.mean.expand(S, -1, -1), phi.shape, generator=generator)
    for i, one in enumerate(explain(layer, h, against="runner-up", top=3)):
        for terms, others in ((one.terms, False), (one.differences, True)):
            for t in terms:
                k = layer.feature_ids.tolist().index(t.feature)
                draws = thetas[:, i, k] * (weights[:, one.target, k] - others * weights[:, one.against, k])
                assert float((draws < t.low).double().mean()) == pytest.approx(0.05, abs=0.007)
                assert float((draws < t.high).double().mean()) == pytest.approx(0.95, abs=0.007)


def test_a_compact_layer_calls_its_features_by_their_old_numbers():
    torch.manual_seed(0)
    full = DecisionLayer(20, 5, signed=True).eval()
    with torch.no_grad():
        full.weight[:, 3:31] = 0
    small, h = compact(full), torch.randn(4, 20)
    assert isinstance(small, CompactLayer)
    for before, after in zip(explain(full, h), explain(small, h), strict=True):
        assert [t.feature for t in before.terms] == [t.feature for t in after.terms]
        assert before.text() == after.text()
    assert class_features(full, 2) == class_features(small, 2)


def test_it_says_what_predict_says():
    torch.manual_seed(0)
    model, x = convert(SmallCNN(5)).eval(), torch.rand(7, 1, 8, 8)
    said = predict(model, x, seed=4)
    found = explain(model, x, seed=4, batch_size=3)
    assert [one.label for one in found] == said.labels.tolist()
    torch.testing.assert_close(torch.tensor([one.p_value for one in found]), said.p_value.float(), rtol=1e-4, atol=0)
    torch.testing.assert_close(torch.tensor([one.probability for one in found]), said.confidence, rtol=1e-4, atol=1e-6)
    assert [one.certain for one in found] == said.certain.tolist()


def test_a_bfloat16_model_adds_up_too():
    torch.manual_seed(0)
    model = convert(SmallCNN(5)).to(torch.bfloat16).eval()
    for one in explain(model, torch.rand(3, 1, 8, 8)):
        assert sum(t.value for t in one.terms) + one.rest + one.bias == pytest.approx(one.logit, rel=1e-5)
        assert float(one.map.sum()) == pytest.approx(one.logit - one.bias, rel=1e-4)


def test_any_class_can_be_asked_for():
    layer, h = noisy(DecisionLayer(8, 3)), torch.rand(4, 8)
    found = explain(layer, h, target=[0, 1, 2, 0], against=1, batch_size=3)
    assert [one.target for one in found] == [0, 1, 2, 0]
    assert {one.against for one in found} == {1}
    assert found[1].differences == ()  # a class against itself
    assert "why not b: it is the same class, nothing to compare" in found[1].text("abc")
    for one in (np.int64(2), torch.tensor(2), [2] * 4, np.array([2] * 4), torch.tensor([2] * 4)):
        assert [found.target for found in explain(layer, h, target=one, against="runner-up", batch_size=3)] == [2] * 4
        assert [found.against for found in explain(layer, h, target=0, against=one)] == [2] * 4
    with pytest.raises(InputError, match=r"target: labels must lie in 0\.\.2"):
        explain(layer, h, target=3)
    with pytest.raises(InputError, match="give one each"):
        explain(layer, h, target=[0, 1])
    with pytest.raises(InputError, match="give one each"):
        explain(layer, h, against=[0] * 9)
    with pytest.raises(InputError, match="at least 1"):
        explain(layer, h, top=0)
    with pytest.raises(InputError, match="strictly between 0 and 1"):
        explain(layer, h, level=90)


def test_words_and_json_hold_the_figures():
    layer, h = noisy(DecisionLayer(4, 3, signed=True)), torch.tensor([[1.0, -2.0, 0.5, 0.1]])
    (one,) = explain(layer, h, against=int(layer(h).argsort(descending=True)[0, 1]), top=2)
    words = one.text(["[red]", "$a$", "b"])
    assert f"{one.logit:.3f}" in words
    assert "why not" in words
    assert all(feature_name(t.feature, 4) in words for t in one.terms)
    record = json.loads(json.dumps(one.to_dict()))
    assert record["terms"][0]["value"] == one.terms[0].value
    assert record["map"] is None
    assert feature_name(6, 4) == "f2-"


def test_the_interval_of_a_weight_is_the_weibulls():
    mean, shape = torch.tensor([0.0, 1.0, 2.0]), torch.tensor([3.0, 0.7, 12.0])
    interval = weight_interval(mean, shape, level=0.8)
    draws = sample(mean.expand(200_000, 3), shape, generator=torch.Generator().manual_seed(0))
    expected = torch.quantile(draws, torch.tensor([0.1, 0.9]), dim=0)
    torch.testing.assert_close(torch.stack([interval.low, interval.high]), expected, rtol=0.03, atol=1e-6)


SHAPES = [(10.0, 10.0), (0.3, 0.3), (0.5, 40.0), (40.0, 0.5), (3.0, 1e6), (1e6, 1e6)]


def test_the_interval_of_a_term_is_that_of_sampled_products():
    first, second = (torch.tensor(side) for side in zip(*SHAPES, strict=True))
    mean = torch.full((len(SHAPES),), 2.0)
    interval = product_interval(mean, first, second)
    generator = torch.Generator().manual_seed(0)
    one = sample(torch.ones(400_000, len(SHAPES)), first, generator=generator)
    draws = 2 * one * sample(torch.ones(400_000, len(SHAPES)), second, generator=generator)
    inside = ((draws >= interval.low) & (draws <= interval.high)).double().mean(0)[:-1]
    torch.testing.assert_close(inside, torch.full_like(inside, 0.9), rtol=0, atol=0.003)
    below = (draws < interval.low).double().mean(0)[:-1]
    torch.testing.assert_close(below, torch.full_like(below, 0.05), rtol=0, atol=0.002)
    assert float(interval.low[-1]) == pytest.approx(2, rel=1e-4)


def test_the_interval_of_a_difference_is_that_of_sampled_ones():
    first, second = torch.tensor([1.0, 0.0, 2.0, 0.5]), torch.tensor([0.8, 1.0, 0.0, 0.6])
    shapes = [torch.tensor(values) for values in ([2.0, 5.0, 1.0, 0.6], [10.0, 1.5, 3.0, 0.6], [4.0, 1.0, 20.0, 0.8])]
    interval = difference_interval(first, second, *shapes[:2], theta_shape=shapes[2])
    generator = torch.Generator().manual_seed(0)
    noise = [sample(torch.ones(200_000, 4), shape, generator=generator) for shape in shapes]
    draws = (first * noise[0] - second * noise[1]) * noise[2]
    for end, share in ((interval.low, 0.05), (interval.high, 0.95)):
        below = (draws < end).double().mean(0)
        torch.testing.assert_close(below, torch.full_like(below, share), rtol=0, atol=0.003)


def test_a_class_is_a_list_and_two_classes_differ_by_its_difference():
    layer = noisy(DecisionLayer(12, 3, alpha_phi=0.02))
    phi = layer.phi().mean.detach()
    found = class_features(layer, 1)
    assert {one.feature for one in found} == set((phi[1] > 1e-5).nonzero().flatten().tolist())
    assert [one.weight for one in found] == sorted((one.weight for one in found), reverse=True)
    assert all(0 < one.low < one.weight < one.high for one in found)
    assert class_features(layer, 1, top=2) == found[:2]
    wide = class_features(layer, 1, level=0.99)
    assert all(a.low < b.low < b.high < a.high for a, b in zip(wide, found, strict=True))
    both = compare_classes(layer, 0, 1)
    assert sum(one.difference for one in both) == pytest.approx(float((phi[0] - phi[1]).sum()), abs=1e-5)
    assert all(one.low < one.difference < one.high for one in both)
    for one, mirrored in zip(both, compare_classes(layer, 1, 0), strict=True):
        assert (one.feature, one.difference) == (mirrored.feature, -mirrored.difference)
    with pytest.raises(InputError, match=r"numbered 0\.\.2"):
        class_features(layer, 3)


def test_the_package_is_the_call_and_stays_light():
    assert package.explain is explain
    layer, h = noisy(DecisionLayer(4, 3)), torch.rand(1, 4)
    assert package(layer, h) == explain(layer, h)
    heavy = "captum matplotlib skimage transformers lightning sklearn"
    code = (
        "import sys, torch, importlib; e = importlib.import_module('bndl.explain'); from bndl import DecisionLayer; "
        "e(DecisionLayer(4, 3), torch.rand(2, 4)); "
        f"print([name for name in '{heavy}'.split() if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_what_is_imported_on_demand_is_there():
    assert all(getattr(package, name) is not None for name in package.__all__)
    importlib.import_module("bndl.explain.lime")
    assert callable(package.lime)  # not hidden by the module of its name
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = package.nothing


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ({"target": "cat"}, "target must be a class's number, or one an example, got 'cat'"),
        ({"target": 1.5}, "target must be a class's number"),
        ({"target": True}, "target must be a class's number, or one an example, got True"),
        ({"target": [True, False]}, "target must be a class's number"),
        ({"target": [[0, 1]]}, "one class, or one an example, got dims"),
        ({"target": 10**30}, "target must be a class's number"),
        ({"target": -1}, "target: labels must lie in"),
        ({"target": []}, "give one each"),
        ({"against": "foo"}, "or 'runner-up'; got 'foo'"),
        ({"against": None, "target": object()}, "target must be a class's number"),
        ({"target": 1, "against": 1}, "both class 1"),
        ({"top": 2.5}, "top must be a whole number"),
    ],
)
def test_what_is_no_class_is_refused_in_one_sentence(asked, words):
    with pytest.raises(InputError, match=words) as refused:
        explain(DecisionLayer(8, 3), torch.rand(2, 8), **asked)
    assert "\n" not in str(refused.value)


def test_the_runner_up_is_compared_with_the_decision():
    layer, h = noisy(DecisionLayer(8, 3)), torch.rand(4, 8)
    second = [one.runner_up for one in explain(layer, h)]
    for one in explain(layer, h, target=second, against="runner-up"):
        assert (one.target, one.against) == (one.runner_up, one.label)
        gap = one.logit - one.against_logit
        assert f"behind by {-gap:.3f}: {gap:.3f} = " in one.text()
        assert "ahead" not in one.text()
    assert all("ahead by" in one.text() for one in explain(layer, h, against="runner-up"))


def test_names_must_be_enough():
    (one,) = explain(DecisionLayer(8, 3), torch.rand(1, 8), target=2)
    with pytest.raises(InputError, match="there are 1 names but none for class"):
        one.text(["a"])


def test_a_mean_beyond_its_interval_is_marked():
    h = torch.rand(1, 8) + 0.5
    loud, calm = DecisionLayer(8, 3).eval(), DecisionLayer(8, 3).eval()
    with torch.no_grad():
        for layer, shape in ((loud, 0.12), (calm, 50.0)):
            for name, parameter in layer.named_parameters():
                if "shape" in name:
                    parameter.fill_(torch.tensor(shape).expm1().log())  # softplus gives the shape
    mark = "(mean beyond its interval: very noisy)"
    (one,) = explain(loud, h)
    assert any(t.value > t.high for t in one.terms)
    rows = one.text().splitlines()[2 : 2 + len(one.terms)]
    assert (
        [row.endswith(mark) for row in rows] == [t.beyond for t in one.terms] == [t.value > t.high for t in one.terms]
    )
    assert mark not in explain(calm, h, against="runner-up")[0].text()


def test_classes_are_told_by_a_model_as_by_its_layer():
    model = convert(SmallCNN(5))
    assert class_features(model, 3) == class_features(model.fc, np.int64(3))
    assert compare_classes(model, 3, 1) == compare_classes(model.fc, 3, 1)
    for options in ({"top": -2}, {"top": 0}, {"top": 1.5}):
        with pytest.raises(InputError, match="top must be"):
            class_features(model.fc, 3, **options)
        with pytest.raises(InputError, match="top must be"):
            compare_classes(model.fc, 3, 1, **options)
    for target in ("cat", 1.0, True, -1):
        with pytest.raises(InputError, match="a class's number must be"):
            class_features(model.fc, target)

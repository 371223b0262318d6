"""Faithfulness: curves of models whose reasons are planted, exact deletion of terms, networks that forget."""

import copy

import pytest
import torch
from torch import nn

from bndl import DecisionLayer, InputError, convert, predict
from bndl.backbones import CifarResNet, SmallCNN
from bndl.explain.contributions import contribution_map
from bndl.explain.curves import Curves
from bndl.explain.faithfulness import (
    deletion,
    difference,
    feature_deletion,
    insertion,
    random_orders,
    randomisation_check,
    scorer,
)
from bndl.explain.maps import feature_maps
from bndl.explain.randomisation import forget, main_parts
from bndl.explain.segments import grid


def bright_cell(x):
    """Class 1 is as likely as the top left quarter is bright; nothing else matters."""
    p = x[:, 0, :4, :4].mean(dim=(1, 2)).double()
    return torch.stack([1 - p, p], dim=1)


@pytest.fixture
def images():
    return torch.ones(5, 1, 8, 8)


def one_hot(where, count=5):
    saliency = torch.zeros(count, 2, 2)
    saliency.flatten(1)[:, where] = 1
    return saliency


def test_curves_of_a_planted_reason_are_known(images):
    settings = {"background": "zero", "steps": 4}
    found = deletion(bright_cell, images, one_hot(0), **settings)
    assert found.fractions.tolist() == [0, 0.25, 0.5, 0.75, 1]
    assert found.probability.tolist() == [[1, 0, 0, 0, 0]] * 5
    assert found.auc.tolist() == [0.125] * 5
    assert insertion(bright_cell, images, one_hot(0), **settings).probability.tolist() == [[0, 1, 1, 1, 1]] * 5
    target = torch.ones(5, dtype=torch.int64)
    wrong = deletion(bright_cell, images, -one_hot(0), target=target, **settings)  # the reason comes last
    assert wrong.probability.tolist() == [[1, 1, 1, 1, 0]] * 5
    assert insertion(bright_cell, images, -one_hot(0), target=target, **settings).auc.tolist() == [0.125] * 5
    assert difference(found, wrong).value == 0.125 - 0.875


def test_random_orders_are_between_the_best_and_the_worst_and_seeded(images):
    settings = {"background": "zero", "steps": 4, "cells": (2, 2), "num_orders": 40}
    for mode in ("deletion", "insertion"):
        found = random_orders(bright_cell, images, mode=mode, **settings)
        torch.testing.assert_close(found.auc.mean(), torch.tensor(0.5, dtype=torch.float64), atol=0.06, rtol=0)
        assert torch.equal(found.auc, random_orders(bright_cell, images, mode=mode, **settings).auc)
        assert not torch.equal(found.auc, random_orders(bright_cell, images, mode=mode, seed=1, **settings).auc)


def test_the_target_is_the_decision_on_the_clean_image(images):
    found = deletion(bright_cell, 0.2 * images, one_hot(0), background="zero", steps=4)
    torch.testing.assert_close(found.probability[0], torch.tensor([0.8, 1, 1, 1, 1], dtype=torch.float64))


def test_finer_maps_are_averaged_over_cells_and_coarser_ones_made_larger(images):
    fine = torch.zeros(5, 8, 8)
    fine[:, 1, 2] = 1
    by_cells = deletion(bright_cell, images, fine, background="zero", steps=4, cells=4)
    assert by_cells.probability[0].tolist() == [1, 0, 0, 0, 0]
    segments = grid(images, count=4) * 3  # own segments, numbered with gaps
    own = deletion(bright_cell, images, fine, background="zero", steps=4, cells=segments)
    assert torch.equal(own.probability, by_cells.probability)
    coarse = deletion(bright_cell, images, one_hot(0), background="zero", steps=16, cells=(4, 4))
    assert coarse.probability[0, 4] < 0.3  # three or four of the quarter's cells are gone
    large = deletion(bright_cell, torch.ones(1, 1, 32, 32), torch.rand(1, 32, 32), background="zero", steps=64)
    assert len(large.fractions) == 65  # 8 x 8 cells
    assert len(deletion(bright_cell, images, one_hot(0), steps=100).fractions) == 5  # not more points than cells


def test_equally_salient_cells_come_in_a_random_order_not_from_the_top_left():
    many = torch.ones(40, 1, 8, 8)
    flat = [
        deletion(bright_cell, many[:1], torch.zeros(1, 2, 2), background="zero", steps=4, seed=s).auc for s in range(40)
    ]
    assert 0.3 < float(torch.cat(flat).mean()) < 0.7


def test_batches_do_not_change_the_curves_and_the_mode_comes_back():
    torch.manual_seed(0)
    model = convert(SmallCNN(4)).train()
    x, saliency = torch.rand(6, 1, 16, 16), torch.rand(6, 4, 4)
    first = deletion(model, x, saliency, steps=8)
    assert model.training
    torch.testing.assert_close(first.probability, deletion(model, x, saliency, steps=8, batch_size=5).probability)
    alone = [deletion(model, x[i : i + 1], saliency[i : i + 1], steps=8).probability for i in range(6)]
    torch.testing.assert_close(first.probability, torch.cat(alone))


def test_probabilities_are_the_models_in_either_form_and_of_a_dense_twin():
    torch.manual_seed(0)
    dense = SmallCNN(4).eval()
    x, saliency = torch.rand(3, 1, 16, 16), torch.rand(3, 4, 4)
    plain = deletion(dense, x, saliency, steps=4).probability
    model = convert(copy.deepcopy(dense))
    torch.testing.assert_close(plain, deletion(model, x, saliency, steps=4).probability)
    with torch.no_grad():
        torch.testing.assert_close(plain[:, 0], dense(x).softmax(1).amax(1).double())
    closed = deletion(model, x, saliency, steps=4, method="closed").probability
    expected = predict(model, x, method="closed")
    torch.testing.assert_close(closed[:, 0], expected.confidence.double())
    with pytest.raises(InputError, match="needs a decision layer"):
        scorer(dense, method="closed")


def test_intervals_hold_the_mean_and_pairs_are_paired():
    generator = torch.Generator().manual_seed(0)
    base = torch.rand(100, 1, generator=generator).double()
    fractions = torch.linspace(0, 1, 3, dtype=torch.float64)
    first = Curves(fractions, base.expand(100, 3))
    second = Curves(fractions, base.expand(100, 3) - 0.01)
    summary = first.summary()
    assert summary.auc.low < summary.auc.value < summary.auc.high
    assert all(low < mean < high for low, mean, high in zip(summary.low, summary.mean, summary.high, strict=True))
    gap = difference(first, second)
    assert abs(gap.value - 0.01) < 1e-12
    assert gap.high - gap.low < 1e-9 < summary.auc.high - summary.auc.low
    assert set(summary.to_dict()) == {"fractions", "mean", "low", "high", "auc"}
    with pytest.raises(InputError, match="same examples"):
        difference(first, Curves(fractions, torch.rand(3, 3)))


def test_terms_are_taken_out_exactly():
    layer = DecisionLayer(3, 2).eval()
    with torch.no_grad():
        layer.weight.copy_(torch.tensor([[3.0, 2, 0], [0, 1, 5]]))
        layer.bias.copy_(torch.tensor([0.5, 0]))
    h = torch.tensor([[1.0, 2, 0.5]])  # terms of class 0: 3, 4, 0; logits 7.5 and 4.5
    found = feature_deletion(layer, h, steps=(0, 1, 2))
    assert found.margin[0].tolist() == [3.0, 1.0, -2.0]
    torch.testing.assert_close(found.probability[0], torch.sigmoid(torch.tensor([3.0, 1.0, -2.0]).double()))
    by_difference = feature_deletion(layer, h, steps=(0, 1, 2), order="difference")
    assert by_difference.margin[0].tolist() == [3.0, 0.0, -2.0]  # feature 0 speaks for class 0 alone
    assert feature_deletion(layer, h, target=torch.tensor([1]), steps=1).margin[0].tolist() == [-3.0, -3.5]


def test_only_terms_of_the_decision_are_taken_out():
    layer = DecisionLayer(3, 2).eval()
    with torch.no_grad():
        layer.weight.copy_(torch.tensor([[3.0, 2, 0], [0, 1, 5]]))
        layer.bias.zero_()
    found = feature_deletion(layer, torch.tensor([[1.0, 2, 0.5]]), steps=(2, 3))  # class 0 has two terms
    assert found.margin[0, 2] == found.margin[0, 1] == -2.5


def test_largest_terms_first_beats_random_order():
    torch.manual_seed(0)
    layer = convert(nn.Linear(50, 5), features="nonnegative").eval()
    h = torch.rand(40, 50) ** 3
    named = feature_deletion(layer, h, order="difference")
    drawn = feature_deletion(layer, h, order="random")
    assert difference(named, drawn).high < 0
    assert torch.equal(named.probability[:, 0], drawn.probability[:, 0])
    torch.testing.assert_close(named.probability[:, -1], drawn.probability[:, -1])
    with torch.no_grad():
        torch.testing.assert_close(named.probability[:, 0], layer(h).softmax(1).amax(1).double())


def test_parts_of_a_network_are_found_from_the_top():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.head = nn.Linear(4, 3)  # written first, runs last
            self.blocks = nn.ModuleList([nn.Conv2d(1, 4, 1), nn.Conv2d(4, 4, 1)])

        def forward(self, x):
            for block in self.blocks:
                x = block(x)
            return self.head(x.mean(dim=(2, 3)))

    wrapped = nn.Sequential(nn.Identity(), Net())
    assert main_parts(wrapped, torch.rand(1, 1, 4, 4)) == ("1.head", "1.blocks.1", "1.blocks.0")
    assert main_parts(nn.Sequential(nn.Conv2d(1, 1, 1)), torch.rand(1, 1, 4, 4)) == ("0",)
    small, deep = (main_parts(CifarResNet(depth, 4, width=4), torch.rand(1, 3, 8, 8)) for depth in (8, 110))
    assert small == ("fc", "stages.2", "stages.1", "stages.0", "bn1", "conv1") == deep  # 54 blocks would be too many
    assert "stages.2.1" in main_parts(CifarResNet(20, 4, width=4), torch.rand(1, 3, 8, 8))


@pytest.mark.parametrize("how", ["shuffle", "reset"])
def test_forgetting_is_seeded_complete_and_leaves_the_model_alone(how):
    torch.manual_seed(0)
    model = convert(SmallCNN(4)).eval()
    x = torch.rand(8, 1, 16, 16)
    before, state = copy.deepcopy(model.state_dict()), torch.random.get_rng_state()
    classes = model(x).argmax(1)

    def maps(net, images):
        return contribution_map(net.fc, feature_maps(net, images).maps, classes)

    found, again = (randomisation_check(model, x, maps, how=how, seed=3) for _ in range(2))
    assert found.modules[0] == "fc"
    assert found.correlation.size() == (len(found.modules), 8)
    assert torch.equal(found.correlation, again.correlation)
    assert torch.equal(torch.random.get_rng_state(), state)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert found.correlation[-1].mean() < 0.95  # untrained, and so not far from another draw
    assert len(found.figures()) == len(found.modules)
    same = randomisation_check(model, x, lambda _, images: images[:, 0])
    assert torch.allclose(
        same.correlation, torch.ones_like(same.correlation)
    )  # an edge detector does not read the network
    silent = randomisation_check(model, x, lambda net, images: images[:, 0] * (net is model))
    assert (silent.correlation == 0).all()


@pytest.mark.parametrize("how", ["shuffle", "reset"])
def test_deep_networks_neither_explode_nor_fall_silent_when_they_forget(how):
    torch.manual_seed(0)
    model, x, sizes = convert(CifarResNet(20, 4, width=8)), torch.rand(6, 3, 16, 16), []
    with torch.no_grad():  # channels of very uneven size, which the batch norms were measured on
        for conv in (m for m in model.modules() if isinstance(m, nn.Conv2d)):
            conv.weight.mul_(10 ** torch.empty(len(conv.weight), 1, 1, 1).uniform_(-3, 1))
        for norm in (m for m in model.modules() if isinstance(m, nn.BatchNorm2d)):
            norm.momentum = None
        model.train()(x)
        model.eval()

    def maps(net, images):
        found = feature_maps(net, images).maps
        sizes.append(float(found.abs().mean()))
        return found.mean(dim=1)

    randomisation_check(model, x, maps, how=how)
    assert max(sizes) < 1e3 * sizes[0]
    assert min(sizes) > 1e-3 * min(sizes[0], 1)


def test_shuffling_keeps_the_numbers_and_moves_them():
    conv = nn.Conv2d(3, 8, 3)
    before = conv.weight.detach().clone()
    forget(conv, how="shuffle", seed=1)
    assert not torch.equal(conv.weight, before)
    torch.testing.assert_close(conv.weight.flatten().sort().values, before.flatten().sort().values)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"x": torch.rand(5, 8, 8)}, r"float images \(B, C, H, W\)"),
        ({"x": torch.zeros(5, 1, 8, 8, dtype=torch.uint8)}, "uint8"),
        ({"saliency": torch.rand(4, 2, 2)}, r"\(5, h, w\)"),
        ({"saliency": torch.full((5, 2, 2), torch.nan)}, "NaN"),
        ({"steps": 0}, "steps must be at least 1"),
        ({"batch_size": 0}, "batch_size"),
        ({"background": "noise"}, "background must be one of"),
        ({"cells": (9, 2)}, "at most 8 x 8"),
        ({"target": torch.tensor([0, 1, 2, 0, 0])}, "labels must lie in 0..1"),
    ],
)
def test_what_does_not_fit_is_refused_in_one_sentence(images, change, words):
    settings = {"x": images, "saliency": one_hot(0), **change}
    with pytest.raises(InputError, match=words):
        deletion(bright_cell, settings.pop("x"), settings.pop("saliency"), **settings)


def test_other_arguments_that_do_not_fit(images):
    with pytest.raises(InputError, match="mode must be one of"):
        random_orders(bright_cell, images, mode="both")
    with pytest.raises(InputError, match="num_orders"):
        random_orders(bright_cell, images, num_orders=0)
    with pytest.raises(InputError, match="order must be one of"):
        feature_deletion(DecisionLayer(3, 2), torch.rand(1, 3), order="smallest")
    with pytest.raises(InputError, match="one of them above 0"):
        feature_deletion(DecisionLayer(3, 2), torch.rand(1, 3), steps=(0,))
    with pytest.raises(InputError, match="no part named 'top'"):
        randomisation_check(SmallCNN(3), torch.rand(1, 1, 8, 8), lambda _, x: x[:, 0], modules=["top"])
    with pytest.raises(InputError, match="one map an image"):
        randomisation_check(SmallCNN(3), torch.rand(2, 1, 8, 8), lambda _, x: x)


@pytest.mark.parametrize("steps", [2.5, "two", True, 0])
def test_steps_are_a_whole_number(images, steps):
    with pytest.raises(InputError, match="steps must be"):
        deletion(bright_cell, images, one_hot(0), steps=steps)
    with pytest.raises(InputError, match="steps must be"):
        feature_deletion(DecisionLayer(3, 2), torch.rand(1, 3), steps=steps)


def test_features_are_deleted_from_a_model_as_from_its_layer():
    model = convert(SmallCNN(4))
    h = torch.rand(3, model.fc.in_features)
    assert torch.equal(feature_deletion(model, h).probability, feature_deletion(model.fc, h).probability)
    for wrong in (torch.rand(3, 1, 8, 8), torch.rand(3, 5), [1.0]):
        with pytest.raises(InputError, match="features must be what enters the layer"):
            feature_deletion(model, wrong)
    with pytest.raises(InputError, match="each of steps must be a whole number"):
        feature_deletion(model, h, steps=(1, 2.5))

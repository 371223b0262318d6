"""Metrics against hand-made cases and independent implementations."""

import numpy as np
import pytest
import scipy.stats
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import brier_score_loss, log_loss
from torch import nn

import bndl
from bndl import DecisionLayer, InputError
from bndl.draws import SharedDraws, blocks
from bndl.metrics import (
    accuracy,
    accuracy_by_decile,
    brier_score,
    certain_at,
    effective_features,
    features_per_decision,
    negative_log_likelihood,
    nnz,
    pavpu,
    pavpu_score,
    weights_per_class,
)


def some_probs(seed=0, size=(400, 5)):
    generator = torch.Generator().manual_seed(seed)
    logits = 2 * torch.randn(size, generator=generator)
    return logits.softmax(1), torch.randint(size[1], (size[0],), generator=generator)


def test_nll_is_sklearns_log_loss():
    probs, labels = some_probs()
    whole = probs.double().div(probs.double().sum(1, keepdim=True))
    expected = log_loss(labels, whole, labels=range(5))
    assert float(negative_log_likelihood(probs, labels)) == pytest.approx(expected, rel=1e-6)
    weights = torch.randint(4, (3, 400), generator=torch.Generator().manual_seed(1))
    found = negative_log_likelihood(whole, labels, weights=weights)
    for row, value in zip(weights, found.tolist(), strict=True):
        assert value == pytest.approx(log_loss(labels, whole, labels=range(5), sample_weight=row), rel=1e-12)


def test_a_probability_of_zero_costs_much_but_not_everything():
    probs = torch.tensor([[1.0, 0.0], [0.5, 0.5]])
    assert float(negative_log_likelihood(probs, torch.tensor([1, 0]))) == pytest.approx((87.3365 + np.log(2)) / 2)


def test_brier_is_the_sum_of_sklearns_over_the_classes():
    probs, labels = some_probs()
    probs = probs.double()
    expected = sum(brier_score_loss(labels == c, probs[:, c]) for c in range(5))
    assert float(brier_score(probs, labels)) == pytest.approx(expected, rel=1e-12)
    assert float(brier_score(torch.eye(3), torch.arange(3))) == 0
    assert float(brier_score(torch.eye(3), torch.tensor([1, 2, 0]))) == 2


def test_half_precision_probabilities_are_accepted_and_summed_in_double():
    probs, labels = some_probs()
    for metric in (negative_log_likelihood, brier_score):
        assert metric(probs.bfloat16(), labels).dtype == torch.float64
        assert float(metric(probs.bfloat16(), labels)) == pytest.approx(float(metric(probs, labels)), rel=2e-3)


def test_accuracy_is_the_share():
    assert float(accuracy(torch.tensor([True, False, True, True]))) == 0.75
    weights = torch.tensor([[1.0, 0, 0, 0], [0, 3, 1, 0], [0, 0, 0, 0]])
    assert accuracy(torch.tensor([True, False, True, True]), weights=weights).tolist()[:2] == [1, 0.25]
    assert accuracy(torch.tensor([True, False, True, True]), weights=weights)[2].isnan()


def test_pavpu_counts_and_baseline():
    correct, certain = torch.tensor([True, True, False, False, True]), torch.tensor([True, False, True, False, True])
    result = pavpu(correct, certain)
    counts = result.accurate_certain, result.accurate_uncertain, result.inaccurate_certain, result.inaccurate_uncertain
    assert counts == (2, 1, 1, 1)
    assert (result.value, result.baseline) == (3 / 5, 3 / 5)
    assert float(pavpu_score(correct, certain)) == result.value


@given(st.lists(st.booleans(), min_size=1, max_size=50))
@settings(deadline=None)
def test_everything_certain_is_the_accuracy(correct):
    correct = torch.tensor(correct)
    result = pavpu(correct, torch.ones_like(correct))
    assert result.value == result.baseline == pytest.approx(float(accuracy(correct)))


def test_pavpu_of_the_papers_test_is_that_of_scipys_p_values():
    torch.manual_seed(0)
    layer, h = DecisionLayer(8, 4, init_shape=2.0), torch.randn(200, 8).abs()
    with torch.no_grad():
        layer.weight.copy_(torch.rand(4, 8))
        layer.bias.zero_()
    h[0] = 0  # nothing speaks: the difference is zero in every draw, and scipy's p-value NaN
    truth = torch.randint(4, (200,))
    prediction = bndl.predict(layer, h, method="paper", seed=3)
    shared = SharedDraws(layer, 20, seed=3, stratified=False)
    with torch.no_grad():
        parts = [torch.cat([part.logits(layer.theta(tile)) for part in shared.slices()], dim=1) for tile in blocks(h)]
    pair = [y.view(-1, 1, 1).expand(-1, 20, 1) for y in (prediction.labels, prediction.runner_up)]
    first, second = (torch.cat(parts)[:200].double().gather(2, y)[..., 0].numpy() for y in pair)
    with np.errstate(invalid="ignore", divide="ignore"):
        theirs = torch.as_tensor(scipy.stats.ttest_rel(first, second, axis=1).pvalue)
    assert theirs[0].isnan()
    correct = prediction.labels == truth
    for level in (0.01, 0.05, 0.1):
        ours = pavpu(correct, certain_at(prediction.p_value, level=level))
        assert ours == pavpu(correct, certain_at(theirs, level=level))
        assert 0 < ours.accurate_uncertain + ours.inaccurate_uncertain < 200, "this case is about both kinds"


def test_a_p_value_of_nan_is_uncertain_and_one_at_the_level_is_certain():
    assert certain_at(torch.tensor([0.01, 0.05, 0.06, torch.nan]), level=0.05).tolist() == [True, True, False, False]
    with pytest.raises(InputError, match="level is a significance strictly between 0 and 1, got 5"):
        certain_at(torch.tensor([0.5]), level=5)


def test_deciles_are_equal_in_count_and_ordered_by_doubt():
    uncertainty = torch.linspace(0, 1, 103)
    deciles = accuracy_by_decile(uncertainty.flip(0), uncertainty.flip(0) < 0.5)
    assert sum(deciles.count) == 103
    assert max(deciles.count) - min(deciles.count) <= 1
    assert deciles.accuracy[0] == 1
    assert deciles.accuracy[-1] == 0
    assert list(deciles.accuracy) == sorted(deciles.accuracy, reverse=True)


@given(st.lists(st.tuples(st.integers(0, 30), st.booleans()), min_size=1, max_size=60, unique_by=lambda pair: pair[0]))
@settings(deadline=None)
def test_deciles_without_ties_are_those_of_a_plain_split(pairs):
    uncertainty, correct = (torch.tensor(column) for column in zip(*pairs, strict=True))
    groups = [g for g in torch.tensor_split(correct[uncertainty.argsort()].double(), 10) if len(g)]
    deciles = accuracy_by_decile(uncertainty, correct)
    assert deciles.accuracy == pytest.approx([float(g.mean()) for g in groups], abs=1e-12)
    assert deciles.count == tuple(len(g) for g in groups)


def test_deciles_of_equal_doubt_are_all_alike_whatever_the_order():
    correct = torch.arange(100) < 60
    assert accuracy_by_decile(torch.zeros(100), correct).accuracy == pytest.approx([0.6] * 10)


def test_features_per_decision_counts_the_largest_terms():
    terms = torch.tensor([[8.0, 1.0, 1.0, -3.0], [5.0, 5.0, 0.0, 0.0], [1.0, 1.0, 1.0, 1.0], [0.0, 0.0, 0.0, 0.0]])
    assert effective_features(terms).tolist() == [2, 2, 4, 0]
    assert effective_features(terms, share=0.8).tolist() == [1, 2, 4, 0]
    assert float(features_per_decision(terms)) == (2 + 2 + 4 + 0) / 4
    assert features_per_decision(terms, weights=torch.tensor([[0, 0, 3, 1]])).tolist() == [3]


def test_weights_per_class_counts_active_entries_and_the_dense_map():
    layer = DecisionLayer(4, 2)
    with torch.no_grad():
        layer.weight.copy_(torch.tensor([[1.0, 0, -1, 1e-6], [0.5, 0.5, 0.5, 0]]))
    assert weights_per_class(layer) == 2
    assert nnz(layer) == 4 / 8
    mapped = DecisionLayer(4, 2, dense_map=True)
    assert weights_per_class(mapped) == 2 + 2  # one zero a feature, and the identity map
    assert nnz(mapped) == (4 + 4) / (8 + 16)


def test_a_linear_head_is_counted_by_size_not_sign():
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
    with torch.no_grad():
        model[2].weight.copy_(torch.tensor([[1.0, 0, -1, 1e-6], [-0.5, 0.5, 0.5, -1e-6]]))
    assert nnz(model) == 5 / 8
    assert weights_per_class(model) == 2.5


def test_a_bad_input_is_told_in_a_sentence():
    probs, labels = some_probs(size=(10, 3))
    for metric in (negative_log_likelihood, brier_score):
        for bad, match in (
            (probs[:0], r"dims \(N, C\)"),
            (probs[0], r"dims \(N, C\), at least one example, got float32 of dims \(3,\)"),
            (probs * torch.tensor(torch.nan), "apply softmax"),
            (2 * probs, "rows that sum to 1"),
            (torch.tensor([[1.5, -0.5, 0]] * 10), "non-negative"),
            (labels, "must be floats"),
        ):
            with pytest.raises(InputError, match=match):
                metric(bad, labels)
        with pytest.raises(InputError, match=r"labels must lie in 0\.\.2, got 0 to 3"):
            metric(probs, torch.tensor([3] + 9 * [0]))
        with pytest.raises(InputError, match=r"labels must be whole numbers of dims \(10,\)"):
            metric(probs, labels[:9])
    with pytest.raises(InputError, match=r"correct must be bool, got torch\.int64: compare first"):
        accuracy(labels)
    with pytest.raises(InputError, match="one entry an example and at least one"):
        pavpu(torch.zeros(0, dtype=torch.bool), torch.zeros(0, dtype=torch.bool))
    with pytest.raises(InputError, match=r"dims \(N, K\)"):
        effective_features(torch.zeros(3))
    with pytest.raises(InputError, match="NaN"):
        effective_features(torch.full((3, 2), torch.nan))

"""Metrics against hand-made cases and independent implementations."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import log_loss

from bndl import DecisionLayer
from bndl.metrics import (
    accuracy_by_decile,
    expected_calibration_error,
    features_per_decision,
    negative_log_likelihood,
    pavpu,
    weights_per_class,
)


def some_probs(seed=0, size=(400, 5)):
    generator = torch.Generator().manual_seed(seed)
    logits = 2 * torch.randn(size, generator=generator)
    return logits.softmax(1), torch.randint(size[1], (size[0],), generator=generator)


def test_nll_is_sklearns_log_loss():
    probs, labels = some_probs()
    assert negative_log_likelihood(probs, labels) == pytest.approx(
        log_loss(labels, probs.double().div(probs.double().sum(1, keepdim=True)), labels=range(5)), rel=1e-5
    )


def test_ece_bin_by_bin():
    probs, labels = some_probs()
    confidence, predicted = probs.max(1)
    expected = 0.0
    for b in range(15):
        inside = (confidence > b / 15) & (confidence <= (b + 1) / 15)
        if inside.any():
            gap = (predicted[inside] == labels[inside]).double().mean() - confidence[inside].double().mean()
            expected += float(inside.double().mean() * gap.abs())
    assert expected_calibration_error(probs, labels) == pytest.approx(expected, rel=1e-6)


def test_ece_of_the_certain_and_right_is_zero_and_of_the_certain_and_wrong_is_one():
    sure = torch.eye(3)
    assert expected_calibration_error(sure, torch.arange(3)) == 0
    assert expected_calibration_error(sure, torch.tensor([1, 2, 0])) == 1


def test_pavpu_counts_and_baseline():
    result = pavpu(torch.tensor([True, True, False, False, True]), torch.tensor([True, False, True, False, True]))
    counts = result.accurate_certain, result.accurate_uncertain, result.inaccurate_certain, result.inaccurate_uncertain
    assert counts == (2, 1, 1, 1)
    assert (result.value, result.baseline) == (3 / 5, 3 / 5)


@given(st.lists(st.booleans(), min_size=1, max_size=50))
@settings(deadline=None)
def test_everything_certain_is_the_accuracy(correct):
    correct = torch.tensor(correct)
    result = pavpu(correct, torch.ones_like(correct))
    assert result.value == result.baseline == pytest.approx(float(correct.double().mean()))


def test_deciles_are_equal_in_count_and_ordered_by_doubt():
    uncertainty = torch.linspace(0, 1, 103)
    deciles = accuracy_by_decile(uncertainty.flip(0), uncertainty.flip(0) < 0.5)
    assert sum(deciles.count) == 103
    assert max(deciles.count) - min(deciles.count) <= 1
    assert deciles.accuracy[0] == 1
    assert deciles.accuracy[-1] == 0
    assert list(deciles.accuracy) == sorted(deciles.accuracy, reverse=True)


def test_features_per_decision_counts_the_largest_terms():
    terms = torch.tensor([[8.0, 1.0, 1.0, 0.0], [5.0, 5.0, 0.0, 0.0], [1.0, 1.0, 1.0, 1.0], [0.0, 0.0, 0.0, 0.0]])
    assert features_per_decision(terms) == (2 + 2 + 4 + 0) / 4


def test_weights_per_class_counts_active_entries_and_the_dense_map():
    layer = DecisionLayer(4, 2)
    with torch.no_grad():
        layer.weight.copy_(torch.tensor([[1.0, 0, -1, 1e-6], [0.5, 0.5, 0.5, 0]]))
    assert weights_per_class(layer) == 2
    assert weights_per_class(DecisionLayer(4, 2, dense_map=True)) == 2 + 2  # one zero a feature, and the identity map

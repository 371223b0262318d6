"""Curves with intervals."""

import math

import pytest
import torch
from scipy.stats import binomtest

from bndl.metrics import accuracy_by_decile, estimate, reliability, risk_at_coverage, risk_coverage
from bndl.metrics.bands import bins_of, curve_of, drawn, figures_from, groups_of, wilson


@pytest.fixture(scope="module")
def sample():
    """Uncertainty with ties, and decisions that are wrong more often where it is large."""
    generator = torch.Generator().manual_seed(0)
    uncertainty = (40 * torch.rand(500, generator=generator).double()).round() / 40
    return uncertainty, torch.rand(500, generator=generator) > 0.6 * uncertainty


@pytest.mark.parametrize(("right", "count"), [(0, 9), (3, 9), (9, 9), (431, 1000)])
def test_wilson_is_scipys(right, count):
    found, expected = wilson(right / count, count), binomtest(right, count).proportion_ci(method="wilson")
    assert (found.low, found.high) == pytest.approx((expected.low, expected.high), abs=1e-12)
    assert found.low <= found.value <= found.high


def test_no_examples_no_share():
    assert math.isnan(wilson(math.nan, 0).low)


def test_bins_are_the_reliability_diagram(sample):
    uncertainty, correct = sample
    bins, plain = bins_of(1 - uncertainty, correct, num_bins=7), reliability(1 - uncertainty, correct, num_bins=7)
    assert (bins.lower, bins.count, bins.confidence) == (plain.lower, plain.count, plain.confidence)
    assert tuple(figure.value for figure in bins.accuracy) == plain.accuracy


def test_groups_are_the_deciles_with_their_mean_uncertainty(sample):
    uncertainty, correct = sample
    groups, plain = groups_of(uncertainty, correct), accuracy_by_decile(uncertainty, correct)
    assert tuple(figure.value for figure in groups.accuracy) == plain.accuracy
    assert groups.uncertainty == tuple(sorted(groups.uncertainty))
    assert sum(u * n for u, n in zip(groups.uncertainty, groups.count, strict=True)) == pytest.approx(
        float(uncertainty.sum())
    )


def test_the_curve_has_the_intervals_of_each_of_its_points(sample):
    uncertainty, correct = sample
    curve = curve_of(uncertainty, correct, num_points=10, num_resamples=100, seed=3)
    plain = risk_coverage(uncertainty, correct, num_points=10)
    assert curve.coverage == plain.coverage
    assert tuple(figure.value for figure in curve.risk) == plain.risk
    for coverage, figure in zip(curve.coverage, curve.risk, strict=True):
        own = estimate(
            lambda weights, at=coverage: risk_at_coverage(uncertainty, correct, coverage=at, weights=weights),
            500,
            num_resamples=100,
            seed=3,
        )
        assert (figure.low, figure.high) == pytest.approx((own.low, own.high), abs=1e-12)


def test_a_curve_of_few_examples():
    curve = curve_of(torch.tensor([0.1, 0.2]), torch.tensor([True, False]), num_resamples=5)
    assert curve.coverage == (0.5, 1.0)
    assert [figure.value for figure in curve.risk] == [0.0, 0.5]


def test_an_interval_is_centred_only_where_that_is_asked_for():
    found = torch.tensor([[1.0, 1.0], [2.0, 2.0], [3.0, 3.0]])
    plain, moved = figures_from([0.0, 0.0], found, centred=[False, True])
    assert (plain.low, plain.high) == pytest.approx((1.05, 2.95))
    assert (moved.low, moved.high) == pytest.approx((-0.95, 0.95))


def test_the_same_seed_draws_the_same_resamples():
    draws = [drawn(lambda weights: weights[:, :1], 50, num_resamples=20, seed=seed) for seed in (1, 1, 2)]
    assert draws[0].size() == (20, 1)
    assert torch.equal(draws[0], draws[1])
    assert not torch.equal(draws[0], draws[2])

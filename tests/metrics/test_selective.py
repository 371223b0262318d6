"""Risk and coverage: against their definition, over all orders of ties."""

from itertools import permutations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from bndl import InputError
from bndl.metrics import aurc, risk_at_coverage, risk_coverage

tied = st.lists(st.tuples(st.integers(0, 2), st.booleans()), min_size=1, max_size=6)


def columns(pairs):
    uncertainty, correct = zip(*pairs, strict=True)
    return torch.tensor(uncertainty, dtype=torch.float64), torch.tensor(correct)


def curve(ordered) -> torch.Tensor:
    """Risk among the first n, for all n."""
    wrong = torch.tensor([not right for _, right in ordered], dtype=torch.float64)
    return wrong.cumsum(0) / torch.arange(1, len(wrong) + 1)


@given(tied)
@settings(deadline=None, max_examples=60)
def test_it_is_the_mean_over_all_orders_of_the_ties(pairs):
    orders = [order for order in permutations(pairs) if [u for u, _ in order] == sorted(u for u, _ in order)]
    expected = torch.stack([curve(order) for order in orders]).mean(0)
    assert float(aurc(*columns(pairs))) == pytest.approx(float(expected.mean()), abs=1e-12)
    for n in range(1, len(pairs) + 1):
        found = risk_at_coverage(*columns(pairs), coverage=n / len(pairs))
        assert float(found) == pytest.approx(float(expected[n - 1]), abs=1e-12)
    assert risk_coverage(*columns(pairs)).risk == pytest.approx(expected.tolist(), abs=1e-12)


def test_of_many_examples_it_is_the_mean_of_the_running_risk():
    generator = torch.Generator().manual_seed(0)
    uncertainty = torch.randn(20_000, generator=generator)
    correct = torch.rand(20_000, generator=generator) < torch.sigmoid(2 - uncertainty)
    expected = curve(sorted(zip(uncertainty.tolist(), correct.tolist(), strict=True)))
    assert float(aurc(uncertainty, correct)) == pytest.approx(float(expected.mean()), rel=1e-9)
    found = risk_coverage(uncertainty, correct, num_points=7)
    places = torch.tensor([-(-20_000 * i // 7) for i in range(1, 8)])
    assert found.risk == pytest.approx(expected[places - 1].tolist(), rel=1e-12)
    assert found.coverage == pytest.approx((places / 20_000).tolist())
    assert found.coverage[-1] == 1


def test_a_perfect_order_beats_chance_and_chance_beats_a_perverse_one():
    correct = torch.arange(1000) < 900
    best, worst = torch.arange(1000), -torch.arange(1000)
    chance = torch.zeros(1000)
    assert float(aurc(best, correct)) < 0.01
    assert float(aurc(chance, correct)) == pytest.approx(0.1)
    assert float(aurc(worst, correct)) > 0.3
    assert float(risk_at_coverage(best, correct, coverage=0.9)) == 0
    assert float(risk_at_coverage(worst, correct, coverage=0.1)) == 1


def test_full_coverage_is_the_error_rate_and_a_share_that_is_no_float_is_not_rounded_up():
    correct = torch.arange(100) < 7
    assert float(risk_at_coverage(torch.randn(100), correct, coverage=1.0)) == pytest.approx(0.93)
    assert 0.07 * 100 > 7
    assert float(risk_at_coverage(torch.arange(100), correct, coverage=0.07)) == 0
    assert float(risk_at_coverage(torch.arange(100), correct, coverage=0.071)) == 1 / 8


def test_a_coverage_of_less_than_one_example_is_one_example():
    assert float(risk_at_coverage(torch.arange(3), torch.tensor([False, True, True]), coverage=1e-6)) == 1


def test_a_bad_input_is_told_in_a_sentence():
    right = torch.tensor([True, False])
    for metric in (aurc, risk_coverage, lambda u, c: risk_at_coverage(u, c, coverage=0.5)):
        with pytest.raises(InputError, match="uncertainty holds NaN for 1 of 2 examples: leave them out"):
            metric(torch.tensor([0.5, torch.nan]), right)
        with pytest.raises(
            InputError, match=r"uncertainty must be a tensor of dims \(N,\).*got float32 of dims \(0,\)"
        ):
            metric(torch.tensor([]), right[:0])
        with pytest.raises(InputError, match=r"got float32 of dims \(2, 1\)"):
            metric(torch.zeros(2, 1), right)
        with pytest.raises(InputError, match="got list"):
            metric([0.1, 0.2], right)
    for coverage in (0, 1.5, float("nan")):
        with pytest.raises(InputError, match="coverage is a share"):
            risk_at_coverage(torch.zeros(2), right, coverage=coverage)
    with pytest.raises(InputError, match="num_points"):
        risk_coverage(torch.zeros(2), right, num_points=0)

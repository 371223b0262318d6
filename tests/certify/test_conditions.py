"""The two conditions, on matrices small enough to check by hand, and the bound on what a tolerance gives away."""

import pytest
import torch

from bndl.certify import certify_factors, synthetic
from bndl.certify.conditions import guaranteed_cosine, purest, scaled, zero_region
from bndl.certify.recovery import match

ACTIVE = torch.arange(3)
LIMITS = {"tolerance": 1e-6, "rank_tolerance": 1e-6}


def test_rows_are_scaled_by_their_largest_entry_and_empty_ones_stay():
    rows = scaled(torch.tensor([[1.0, 4.0], [0.0, 0.0], [-2.0, 1.0]]))
    assert rows.tolist() == [[0.25, 1.0], [0.0, 0.0], [-1.0, 0.5]]


def test_the_purest_row_is_led_by_a_feature_and_leaks_its_second_entry():
    feature, leakage = purest(torch.tensor([[1.0, 0.25, 0.5], [0.0, 0.0, 1.0]]))
    assert feature.tolist() == [0, 2]
    assert leakage.tolist() == [0.5, 0.0]


def test_zero_rows_that_span_the_others_are_named():
    rows = torch.tensor([[1.0, 0.5, 0.0], [0.0, 1.0, 0.2], [1.0, 1.0, 1.0], [0.0, 0.1, 1.0]])
    region, inverse = zero_region(rows, 0, active=ACTIVE, ids=torch.tensor([7, 8, 9, 10]), **LIMITS)
    assert (region.count, region.needed, region.rank, region.holds) == (2, 2, 2, True)
    assert sorted(region.witnesses) == [8, 10]
    block = rows[[1, 3]][:, [1, 2]].double()
    least = float(torch.linalg.svdvals(block / block.norm(dim=0))[-1])
    assert least / 2**0.5 <= region.conditioning <= least + 1e-9  # a lower bound, off by sqrt(r - 1) at most
    assert inverse is not None


def test_many_zero_rows_of_deficient_rank_do_not_hold_and_the_absent_feature_is_named():
    rows = scaled(torch.rand(50, 3, generator=torch.Generator().manual_seed(0)))
    rows[:20, 0] = rows[:20, 2] = 0
    region, _ = zero_region(rows, 0, active=ACTIVE, **LIMITS)
    assert (region.count, region.needed, region.rank, region.holds, region.absent) == (20, 2, 1, False, (2,))


def test_proportional_zero_rows_do_not_hold():
    rows = torch.rand(50, 3, generator=torch.Generator().manual_seed(0))
    rows[:20] = torch.tensor([0.0, 1.0, 0.5])
    region, _ = zero_region(rows, 0, active=ACTIVE, **LIMITS)
    assert (region.count, region.rank, region.holds, region.absent) == (20, 1, False, ())


def test_a_rare_direction_far_down_is_found():
    """The first rows lack rank; the search goes on to the one row that completes it."""
    rows = torch.zeros(5000, 3)
    rows[:, 1] = 1
    rows[4321, 2] = 0.5
    region, _ = zero_region(rows, 0, active=ACTIVE, **LIMITS)
    assert region.holds
    assert 4321 in region.witnesses


def test_a_feature_on_its_own_needs_no_zeros():
    region, _ = zero_region(torch.ones(3, 1), 0, active=torch.tensor([0]), **LIMITS)
    assert region.holds
    assert region.needed == 0


def test_exact_zeros_give_a_guarantee_of_one():
    rows = torch.tensor([[0.0, 1.0, 0.2], [0.0, 0.1, 1.0]])
    _, inverse = zero_region(rows, 0, active=ACTIVE, **LIMITS)
    window = torch.tensor([1.0, 0.0, 0.0])
    assert guaranteed_cosine(rows, inverse, window, feature=0, active=ACTIVE, lengths=torch.ones(3)) == 1


@pytest.mark.parametrize("control", ["leaking windows", "leaking zeros"])
def test_no_disguise_goes_further_than_the_bound_allows(control):
    """At a loose tolerance conditions hold nearly; every other exact factorisation stays as close as promised."""
    promised, least = 0, 1.0
    for seed in range(5):
        problem = synthetic.CONTROLS[control](seed)
        found = certify_factors(problem.theta, problem.phi, tolerance=0.02, tolerances=(), rank_tolerances=())
        cosines = match(synthetic.disguised(problem, rounds=5, seed=seed).theta, problem.theta)
        for finding in found.theta:
            assert float(cosines[finding.feature]) >= finding.cosine - 1e-9
            promised += finding.cosine > 0.9
            least = min(least, float(cosines[finding.feature]))
    assert promised > 5
    assert least < 1 - 1e-7  # something did move


def test_a_loose_tolerance_is_refused_where_the_bound_is_poor_and_the_column_moves():
    """The window leaks a thousandth, but of a feature 300 times as strong: conditions pass, the guarantee does not."""
    problem = synthetic.CONTROLS["leaking windows"](0)
    found = certify_factors(problem.theta, problem.phi, tolerance=0.01)
    moved = match(synthetic.disguised(problem, rounds=5).theta, problem.theta)
    for finding in found.theta:
        if float(moved[finding.feature]) < 0.999:
            assert finding.window.holds
            assert finding.zeros.holds
            assert finding.verdict == "not shown"
            assert "another factorisation may be as far" in finding.reason
    assert float(moved.min()) < 0.999

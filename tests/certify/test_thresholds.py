"""Thresholds: what is small is not zero, and the table of other thresholds says what asking would."""

import pytest
import torch

import bndl
from bndl.certify import certify_factors, synthetic

FAST = {"tolerances": (), "rank_tolerances": ()}

# ------------------------------------------------------------------------------------ dust: small, but not zero


def _dust():
    """Features whose share of every sample is tiny; each was once left out of the count, and the others certified."""
    generator = torch.Generator().manual_seed(0)

    def half(rows, columns):
        values = torch.rand(rows, columns, generator=generator, dtype=torch.float64)
        return values * (torch.rand(rows, columns, generator=generator) > 0.5)

    loud = torch.zeros(
        110, 4, dtype=torch.float64
    )  # feature 3 repeats feature 0, only beside a sample that is far louder
    loud[:100, :3] = half(100, 3)
    loud[100:, 1] = 1e9 * (1 + torch.rand(10, generator=generator, dtype=torch.float64))
    loud[100:, 3] = 900 * torch.rand(10, generator=generator, dtype=torch.float64)
    twice = torch.tensor([[1.0, 0, 0, 0.5], [0, 1, 0, 0.5], [0, 0, 1, 0.5], [1, 0, 0, 0.5]], dtype=torch.float64)
    faint = torch.cat([half(60, 3), 1e-8 * half(60, 1)], dim=1)  # features 1 and 2 are one; 3 makes up the rank
    proportional = torch.tensor([[1.0, 0.5, 0.5, 0], [0, 1, 1, 0], [0, 2, 2, 0], [0, 0, 0, 1]], dtype=torch.float64)
    sums = torch.tensor(  # the last row is the sum of the two before it, but for rounding
        [[1.0, 0, 0, 0.5, 0.3], [0, 0.7, 0.3, 0.5, 0.1], [0, 0.3, 0.2, 0.5, 0.6], [0, 1, 0.5, 1, 0.7]],
        dtype=torch.float64,
    )
    return {"loud": (loud, twice), "faint": (faint, proportional), "rounding": (half(200, 4), sums)}


@pytest.mark.parametrize("name", ["loud", "faint", "rounding"])
@pytest.mark.parametrize("tolerance", [0, 1e-6, 0.1])
@pytest.mark.parametrize("rank_tolerance", [1e-7, 1e-6])
def test_dust_counts_as_a_feature_and_makes_up_no_rank(name, tolerance, rank_tolerance):
    found = certify_factors(*_dust()[name], tolerance=tolerance, rank_tolerance=rank_tolerance)
    assert found.identifiable == found.identifiable_rows == ()
    assert (found.num_active, found.rank, found.applicable) == (4, 3, False)
    assert {own.theta_identifiable + own.phi_identifiable for own in found.sensitivity} == {0}


def test_the_dust_that_was_left_out_did_move_a_column():
    theta, phi = _dust()["loud"]
    other = theta[:, :3].clone()
    other[:, 0] += theta[:, 3]
    assert torch.equal(other @ phi[:3], theta @ phi)
    assert torch.cosine_similarity(theta[:, :1], other, dim=0).max() < 0.5
    layer = bndl.DecisionLayer(4, 4)
    with torch.no_grad():
        layer.weight.copy_(phi.T)
    assert bndl.certify(layer, theta.float()).identifiable == ()


def test_a_looser_tolerance_drops_no_feature():
    """A feature below 4 % of each sample's largest stays one at a tolerance of 10 %, and nothing more is certified."""
    generator = torch.Generator().manual_seed(0)
    theta = torch.rand(200, 4, generator=generator) * (torch.rand(200, 4, generator=generator) > 0.5)
    theta[:, 3] *= 0.04 * theta[:, :3].amax(dim=1)
    phi = torch.tensor([[1.0, 0, 0, 0.5, 0], [0, 1, 0, 0.5, 1], [0, 0, 1, 0.5, 0], [1, 0, 0.2, 0.5, 1]])
    found = certify_factors(theta, phi)
    assert {own.num_active for own in found.sensitivity} == {4}
    assert max(own.theta_identifiable for own in found.sensitivity) == len(found.identifiable) == 1


@pytest.mark.parametrize("value", [0, 1e-9, 9e-8])
def test_a_rank_below_what_rounding_leaves_is_refused(value):
    with pytest.raises(bndl.InputError, match=r"rank_tolerance must be at least 1e-07, got .*float32"):
        certify_factors(torch.rand(4, 2), torch.rand(2, 5), rank_tolerance=value)
    with pytest.raises(bndl.InputError, match="rank_tolerances must be at least 1e-07"):
        certify_factors(torch.rand(4, 2), torch.rand(2, 5), rank_tolerances=(value,))


def test_the_table_has_a_row_for_each_threshold_and_agrees_with_asking():
    problem = synthetic.CONTROLS["leaking zeros"](0)
    found = certify_factors(problem.theta, problem.phi)
    assert len({(own.tolerance, own.rank_tolerance) for own in found.sensitivity}) == len(found.sensitivity) == 9
    for own in found.sensitivity:
        limits = {"tolerance": own.tolerance, "rank_tolerance": own.rank_tolerance}
        asked = certify_factors(problem.theta, problem.phi, **limits, **FAST)
        assert own.theta_identifiable == len(asked.identifiable)
        assert own.phi_identifiable == len(asked.identifiable_rows)
    counts = [own.theta_zeros for own in found.sensitivity if own.rank_tolerance == 1e-6]
    assert counts == sorted(counts)
    assert counts[0] == 0 < counts[-1]


def _wide(seed):
    """Entries from 1 down to 1e-6, so that each threshold finds other zeros and other windows."""
    generator = torch.Generator().manual_seed(seed)

    def part(*size):
        on = torch.rand(size, generator=generator) > 0.6
        low = torch.pow(10, -6 * torch.rand(size, generator=generator, dtype=torch.float64))
        return torch.rand(size, generator=generator, dtype=torch.float64) * on * low

    theta, phi = part(60, 5), part(5, 9)
    phi[:, :3] = torch.eye(5, dtype=torch.float64)[:, :3]
    return theta, phi


def _counts(found):
    sides = []
    for findings in (found.theta, found.phi):
        windows = sum(own.window is not None and own.window.holds for own in findings)
        certified = sum(own.verdict == "identifiable" for own in findings)
        sides += [windows, sum(bool(own.zeros.holds) for own in findings), certified]
    return (found.num_active, found.rank, found.applicable, *sides)


def test_each_row_of_the_table_is_what_asking_gives_over_a_wide_range():
    told = set()
    for seed in range(15):
        theta, phi = _wide(seed)
        for own in certify_factors(theta, phi).sensitivity:
            limits = {"tolerance": own.tolerance, "rank_tolerance": own.rank_tolerance}
            asked = certify_factors(theta, phi, **limits, **FAST)
            row = tuple(vars(own).values())[2:]
            assert row == _counts(asked), limits
            told.add(row)
    assert len(told) > 20  # thresholds did matter


def test_a_table_says_where_zero_regions_were_not_searched():
    found = certify_factors(torch.rand(400, 300), torch.rand(300, 10))
    assert {own.theta_zeros for own in found.sensitivity} == {None}
    assert all(own.phi_zeros is None for own in found.sensitivity)

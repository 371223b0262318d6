"""Planted problems, how they are observed, how they are recovered, and the study that puts certificates to the test."""

import pytest
import torch

import bndl
from bndl.certify import certify_factors, synthetic
from bndl.certify.figure import draw
from bndl.certify.recovery import factorize, match
from bndl.certify.study import RECOVERED, VIEWS, study


@pytest.fixture(scope="module")
def small():
    return study(range(2), views=("exact", "probabilities", "probabilities, no anchor"), restarts=2, progress=False)


def test_a_planted_problem_has_certified_columns_and_others():
    certified = rows = others = 0
    for seed in range(10):
        problem = synthetic.planted(seed=seed)
        assert min(problem.theta.min(), problem.phi.min()) == 0
        found = certify_factors(problem.theta, problem.phi, tolerances=(), rank_tolerances=())
        assert found.applicable
        assert found.anchored == 1
        certified, rows = certified + len(found.identifiable), rows + len(found.identifiable_rows)
        others += 6 - len(found.identifiable)
    assert certified >= 10
    assert rows >= 10
    assert others >= 10


def test_matching_sees_through_order_and_scale():
    truth = torch.rand(50, 4, dtype=torch.float64)
    assert torch.allclose(
        match((truth * torch.tensor([3, 1e-3, 7, 100]))[:, [2, 0, 3, 1]], truth), torch.ones(4).double()
    )
    found = truth[:, [2, 0, 3, 1]].clone()
    found[:, 0] = torch.rand(50)  # the third true column was replaced
    assert (match(found, truth) < 1 - 1e-6).tolist() == [False, False, True, False]


def test_probabilities_show_the_logits_where_they_are_anchored_and_not_otherwise():
    problem = synthetic.planted(seed=0)
    assert torch.allclose(synthetic.observe(problem, "probabilities"), problem.logits, atol=1e-9)
    free = synthetic.planted(seed=0, anchored=False)
    assert not torch.allclose(synthetic.observe(free, "probabilities"), free.logits, atol=0.1)


def test_noise_and_labels_come_near_and_follow_the_seed():
    problem = synthetic.planted(seed=0)
    for channel, most in (("noisy", 0.02), ("labels", 0.1)):
        seen = synthetic.observe(problem, channel, seed=1)
        assert 0 < float((seen - problem.logits).norm() / problem.logits.norm()) < most
        assert torch.equal(seen, synthetic.observe(problem, channel, seed=1))
        assert not torch.equal(seen, synthetic.observe(problem, channel, seed=2))
        assert (seen >= 0).all()


def test_every_certified_column_is_recovered_and_no_control_is_certified(small):
    for side in ("theta", "phi"):
        for view in ("exact", "probabilities"):
            recovered, count = small.share(view, side=side, certified=True)
            assert recovered == count > 0
    recovered, count = small.share("exact", side="theta", certified=False)
    assert recovered < count
    assert sum(control.certified for control in small.controls) == 0
    assert len(small.controls) == 2 * len(synthetic.CONTROLS)


def test_without_an_anchor_certified_columns_are_lost_to_softmax(small):
    """The certificate is about logits; probabilities leave each sample's constant open."""
    recovered, count = small.share("probabilities, no anchor", side="theta", certified=True)
    assert recovered < count


def test_the_study_is_drawn(small, tmp_path):
    pytest.importorskip("matplotlib")
    assert draw(small, tmp_path / "study.png").stat().st_size > 10_000
    with pytest.raises(bndl.InputError, match="a picture is written as"):
        draw(small, tmp_path / "study.txt")


def test_bad_requests_are_refused():
    with pytest.raises(bndl.InputError, match="K < C"):
        synthetic.planted(num_features=9, num_classes=9)
    with pytest.raises(bndl.InputError, match="a channel is one of"):
        synthetic.observe(synthetic.planted(), "smoke")
    with pytest.raises(bndl.InputError, match="non-negative"):
        synthetic.disguised(synthetic.CONTROLS["signed weights"](0))
    with pytest.raises(bndl.InputError, match="non-negative matrix"):
        factorize(-torch.rand(4, 3), 2)
    assert RECOVERED == 0.99
    assert {channel for channel, _ in VIEWS.values()} == set(synthetic.CHANNELS)

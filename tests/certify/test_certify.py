"""Certificates: what is said, what does not change it, what is refused, and what goes wrong in one sentence."""

import json

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import bndl
from bndl.certify import certify_factors, synthetic
from bndl.features import FeatureSet

FAST = {"tolerances": (), "rank_tolerances": ()}


def verdicts(found, side="theta"):
    return {finding.feature: finding.verdict for finding in getattr(found, side)}


# ------------------------------------------------------------------------------------------------------------- said


def test_a_planted_problem_is_read_as_it_was_planted():
    """By hand: 0 and 1 have a class of their own; 2 is on only where 0 is, so the zeros of 0 do not span."""
    theta = torch.tensor([[1.0, 0, 0], [0, 1, 0], [1, 0, 1], [1, 1, 0.5], [2, 0.5, 1], [0, 0.3, 0]])
    phi = torch.tensor([[1.0, 0, 0.5, 0], [0, 2, 0.5, 0], [0, 0, 1, 0]])
    found = certify_factors(theta, phi)
    assert (found.num_active, found.rank, found.applicable, found.anchored) == (3, 3, True, 1.0)
    assert verdicts(found) == {0: "not shown", 1: "identifiable", 2: "not shown"}
    assert found.identifiable == (1,)
    first, second, third = found.theta
    assert "so is feature 2" in first.reason
    assert (second.window.witness, second.cosine) == (1, 1.0)
    assert set(second.zeros.witnesses) == {0, 2}
    assert third.window is None or not third.window.holds
    # rows of Phi: samples 0 and 1 use features 0 and 1 alone; among classes, where 0 has no weight there is only class 1
    assert verdicts(found, "phi")[2] == "not shown"
    assert found.phi[0].window.witness == 0
    assert found.phi[0].zeros.count == 1


def test_witnesses_prove_the_rank_to_anyone():
    problem = synthetic.planted(seed=3)
    found = certify_factors(problem.theta, problem.phi)
    assert found.identifiable
    for finding in found.theta:
        if finding.verdict == "identifiable":
            k, others = finding.feature, [own for own in range(6) if own != finding.feature]
            rows = problem.theta[list(finding.zeros.witnesses)]
            assert (rows[:, k] == 0).all()
            assert torch.linalg.matrix_rank(rows[:, others]) == 5
            column = problem.phi[:, finding.window.witness]
            assert column[k] > 0
            assert (column[others] == 0).all()


@pytest.mark.parametrize("seed", range(5))
def test_certified_columns_survive_every_disguise(seed):
    from bndl.certify.recovery import match

    problem = synthetic.planted(seed=seed)
    found = certify_factors(problem.theta, problem.phi, **FAST)
    other = synthetic.disguised(problem, seed=seed)
    assert torch.allclose(other.logits, problem.logits, atol=1e-12)
    assert min(float(other.theta.min()), float(other.phi.min())) >= 0
    theta, phi = match(other.theta, problem.theta), match(other.phi.T, problem.phi.T)
    assert all(theta[k] > 1 - 1e-9 for k in found.identifiable)
    assert all(phi[k] > 1 - 1e-9 for k in found.identifiable_rows)
    assert min(theta.min(), phi.min()) < 1 - 1e-4  # others did move


@pytest.mark.parametrize("control", synthetic.CONTROLS)
@pytest.mark.parametrize("seed", range(20))
def test_controls_are_refused(control, seed):
    problem = synthetic.CONTROLS[control](seed)
    found = certify_factors(problem.theta, problem.phi, **FAST)
    assert found.identifiable == found.identifiable_rows == ()
    inapplicable = control in ("K > C", "signed weights")
    assert set(verdicts(found).values()) == {"not applicable" if inapplicable else "not shown"}
    assert found.applicable != inapplicable


@pytest.mark.parametrize("control", ["leaking windows", "leaking zeros", "deficient zeros", "K > C"])
def test_counting_zeros_would_have_said_yes(control):
    assert all(synthetic.counts_zeros(synthetic.CONTROLS[control](seed)) >= 4 for seed in range(5))


def test_a_rank_below_the_number_of_features_is_not_applicable_even_with_few_features():
    problem = synthetic.planted(seed=0)
    phi = problem.phi.clone()
    phi[5] = phi[4] + phi[3]
    found = certify_factors(problem.theta, phi)
    assert (found.num_active, found.rank) == (6, 5)
    assert set(verdicts(found).values()) == {"not applicable"}
    assert "rank 5" in found.reason


def test_features_without_weight_or_activity_are_pruned():
    problem = synthetic.planted(seed=0)
    theta = torch.cat([problem.theta, torch.zeros(300, 1), torch.rand(300, 1)], dim=1)
    phi = torch.cat([problem.phi, torch.rand(1, 15), torch.zeros(1, 15)])
    found, plain = certify_factors(theta, phi), certify_factors(problem.theta, problem.phi)
    assert (found.num_features, found.num_active) == (8, 6)
    assert verdicts(found) == verdicts(plain)


def test_softmax_alone_identifies_nothing():
    """Any feature may take over a share of another; a constant on all logits makes up for it, and softmax ignores that."""
    problem = synthetic.planted(seed=0)
    k = certify_factors(problem.theta, problem.phi, **FAST).identifiable[0]
    other = (k + 1) % 6
    theta, phi = problem.theta.clone(), problem.phi.clone()
    theta[:, k] += 0.5 * theta[:, other]
    phi[other] -= 0.5 * phi[k]
    phi[other] -= phi[other].min().clamp_max(0)
    assert min(theta.min(), phi.min()) >= 0
    assert torch.allclose((theta @ phi).softmax(dim=1), problem.logits.softmax(dim=1))
    assert torch.cosine_similarity(theta[:, k], problem.theta[:, k], dim=0) < 0.97


# ------------------------------------------------------------------------------------------------ what changes nothing


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 10_000), data=st.data())
def test_order_and_scale_of_features_do_not_matter(seed, data):
    problem = synthetic.planted(num_samples=80, num_features=5, num_classes=12, seed=seed)
    order = torch.tensor(data.draw(st.permutations(range(5))))
    scale = torch.tensor(data.draw(st.lists(st.floats(1e-3, 1e3), min_size=5, max_size=5)), dtype=torch.float64)
    plain = certify_factors(problem.theta, problem.phi, **FAST)
    moved = certify_factors((problem.theta * scale)[:, order], (problem.phi / scale[:, None])[order], **FAST)
    for side in ("theta", "phi"):
        own, other = verdicts(plain, side), verdicts(moved, side)
        assert {int(order[k]): verdict for k, verdict in other.items()} == own
    assert (plain.rank, plain.num_active) == (moved.rank, moved.num_active)


@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 10_000))
def test_order_and_scale_of_samples_and_classes_do_not_matter(seed):
    problem = synthetic.planted(num_samples=80, num_features=5, num_classes=12, seed=seed)
    generator = torch.Generator().manual_seed(seed)
    rows, columns = torch.randperm(80, generator=generator), torch.randperm(12, generator=generator)
    sizes = 0.1 + torch.rand(80, 1, generator=generator), 0.1 + torch.rand(12, generator=generator)
    plain = certify_factors(problem.theta, problem.phi, **FAST)
    moved = certify_factors((problem.theta * sizes[0])[rows], (problem.phi * sizes[1])[:, columns], **FAST)
    assert verdicts(plain) == verdicts(moved)
    assert verdicts(plain, "phi") == verdicts(moved, "phi")


def test_batches_do_not_matter():
    problem = synthetic.planted(seed=1)
    whole = certify_factors(problem.theta, problem.phi, max_rows=100)
    parts = certify_factors(problem.theta.split(7), problem.phi, max_rows=100)
    assert whole == parts
    assert whole.num_searched == 100


def test_a_sample_of_the_rows_is_sound_and_the_same_for_a_seed():
    problem = synthetic.planted(num_samples=3000, seed=2)
    full = certify_factors(problem.theta, problem.phi, **FAST)
    few = certify_factors(problem.theta, problem.phi, max_rows=60, seed=5, **FAST)
    assert set(few.identifiable) <= set(full.identifiable)
    assert few == certify_factors(problem.theta, problem.phi, max_rows=60, seed=5, **FAST)
    assert full.num_searched == 3000


def test_many_features_are_not_applicable_at_once_and_hold_no_samples():
    theta, phi = torch.rand(400, 300), torch.rand(300, 10)
    found = certify_factors(theta, phi)
    assert found.num_searched == 0
    assert set(verdicts(found).values()) == {"not applicable"}
    assert found.rank == 10
    assert "300 active features are more than 10 classes" in found.reason
    assert all(finding.zeros.holds is None for finding in found.theta)


# ------------------------------------------------------------------------------------------------------------- models


def layered(problem):
    """A decision layer with these weights; features are theta itself."""
    layer = bndl.DecisionLayer(*problem.phi.size())
    with torch.no_grad():
        layer.weight.copy_(problem.phi.T)
    return layer


def test_a_model_is_certified_by_its_means_whatever_the_data_come_in():
    problem = synthetic.planted(seed=1)
    layer, theta = layered(problem), problem.theta.float()
    expected = certify_factors(theta, layer.phi().mean.detach().T)
    labels = torch.zeros(300, dtype=torch.long)
    loader = DataLoader(TensorDataset(theta, labels), batch_size=64)
    for data in (
        loader,
        theta,
        theta.numpy(),
        (theta, labels),
        FeatureSet(theta, labels),
        iter([theta[:100], theta[100:]]),
    ):
        assert bndl.certify(layer, data) == expected
    assert expected.identifiable
    assert layer.training  # as it was


def test_a_feature_set_skips_the_backbone():
    problem = synthetic.planted(seed=1)
    model = nn.Sequential(nn.Flatten(), layered(problem))
    found = bndl.certify(model, FeatureSet(problem.theta.float(), torch.zeros(300, dtype=torch.long)))
    assert found == bndl.certify(model, problem.theta.float()[:, :, None])


def test_the_package_is_a_function_and_a_module():
    import bndl.certify.synthetic as module

    assert callable(bndl.certify)
    assert bndl.certify.synthetic is module
    assert "certify" in bndl.__all__


def test_a_certificate_is_saved_as_json(tmp_path):
    problem = synthetic.planted(seed=1)
    found = certify_factors(problem.theta, problem.phi)
    record = json.loads(found.save(tmp_path / "certificate.json").read_text())
    assert record["rank"] == 6
    assert [own["verdict"] for own in record["theta"]] == list(verdicts(found).values())
    with pytest.raises(bndl.FileError, match="there is no folder"):
        found.save(tmp_path / "no" / "certificate.json")


# -------------------------------------------------------------------------------------------------------------- wrong


def test_a_model_without_a_decision_layer_is_told_to_convert():
    with pytest.raises(bndl.HeadError, match=r"bndl.convert\(model\) first"):
        bndl.certify(nn.Linear(4, 3), torch.rand(5, 4))


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ([], "the loader is empty"),
        (torch.full((3, 6), torch.nan), "NaN or infinite"),
        (torch.rand(3, 5), "features of size 6"),
        (np.zeros((0, 6), dtype=np.float32), "at least one example"),
        (7, "a loader"),
    ],
)
def test_bad_data_are_refused_in_one_sentence(data, words):
    with pytest.raises(bndl.InputError, match=words):
        bndl.certify(layered(synthetic.planted(seed=0)), data)


@pytest.mark.parametrize(
    ("theta", "phi", "words"),
    [
        (torch.rand(4, 3), torch.rand(2, 5), r"theta must have dims \(N, 2\)"),
        (torch.rand(4), torch.rand(2, 5), "theta must have dims"),
        (torch.rand(4, 2), torch.rand(2), "phi must be a real matrix"),
        (torch.rand(4, 2), torch.zeros(2, 5), "zero throughout"),
        (torch.rand(4, 2), torch.full((2, 5), torch.inf), "phi holds NaN"),
        (torch.rand(4, 2) / 0, torch.rand(2, 5), "theta holds NaN"),
        (torch.full((4, 2), 1e60, dtype=torch.float64), torch.rand(2, 5), "beyond float32"),
        (None, torch.rand(2, 5), "theta must be a real matrix"),
        (torch.rand(4, 2), None, "phi must be a real matrix"),
        (torch.rand(4, 2) * 1j, torch.rand(2, 5), "theta must be real"),
        (torch.rand(4, 2), torch.rand(2, 5) * 1j, "phi must be a real matrix"),
    ],
)
def test_bad_matrices_are_refused_in_one_sentence(theta, phi, words):
    with pytest.raises(bndl.InputError, match=words):
        certify_factors(theta, phi)


@pytest.mark.parametrize("option", ["tolerance", "rank_tolerance", "min_cosine"])
def test_thresholds_outside_their_range_are_refused(option):
    for value in (1.0, -0.1, float("nan"), "1e-6", None, True, 1j):
        with pytest.raises(bndl.InputError, match=f"{option} must be a number from .* to below 1"):
            certify_factors(torch.rand(4, 2), torch.rand(2, 5), **{option: value})


@pytest.mark.parametrize(
    ("option", "value", "words"),
    [
        ("max_rows", 0, "max_rows must be a whole number"),
        ("max_rows", "9", "max_rows must be a whole number"),
        ("seed", None, "seed must be a whole number"),
        ("tolerances", (2,), "^tolerances must be a number"),
        ("tolerances", 1e-3, "^tolerances must be several numbers"),
        ("rank_tolerances", (2,), "^rank_tolerances must be a number"),
        ("rank_tolerances", ("x",), "^rank_tolerances must be a number"),
    ],
)
def test_other_options_are_refused_by_their_name(option, value, words):
    with pytest.raises(bndl.InputError, match=words):
        certify_factors(torch.rand(4, 2), torch.rand(2, 5), **{option: value})


def test_what_is_no_model_is_refused():
    with pytest.raises(bndl.InputError, match="certify takes a model"):
        bndl.certify(None, torch.rand(5, 4))


def test_silent_samples_say_nothing_and_are_counted():
    problem = synthetic.planted(seed=1)
    theta = torch.cat([torch.zeros(10, 6), problem.theta])
    found, plain = certify_factors(theta, problem.phi), certify_factors(problem.theta, problem.phi)
    assert found.num_silent == 10
    assert verdicts(found) == verdicts(plain)
    assert min(min(own.zeros.witnesses) for own in found.theta if own.zeros.witnesses) >= 10
    nothing = certify_factors(torch.zeros(5, 6), problem.phi)
    assert (nothing.num_active, nothing.rank, nothing.reason) == (0, 0, "no feature is active")

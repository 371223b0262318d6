"""Calibration error: bin by bin, against torchmetrics and netcal, and with bins of equal mass."""

import netcal.metrics
import pytest
import torch
from torchmetrics.classification import MulticlassCalibrationError

from bndl import InputError
from bndl.metrics import calibration_error, calibration_floor, expected_calibration_error, reliability


def some_probs(seed=0, size=(400, 5)):
    generator = torch.Generator().manual_seed(seed)
    logits = 2 * torch.randn(size, generator=generator)
    return logits.softmax(1), torch.randint(size[1], (size[0],), generator=generator)


def test_ece_bin_by_bin():
    probs, labels = some_probs()
    confidence, predicted = probs.max(1)
    expected = 0.0
    for b in range(15):
        inside = (confidence > b / 15) & (confidence <= (b + 1) / 15)
        if inside.any():
            gap = (predicted[inside] == labels[inside]).double().mean() - confidence[inside].double().mean()
            expected += float(inside.double().mean() * gap.abs())
    assert float(expected_calibration_error(probs, labels)) == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("num_bins", [10, 15])
def test_ece_is_that_of_torchmetrics_and_of_netcal(num_bins):
    probs, labels = some_probs(seed=1)
    ours = float(expected_calibration_error(probs, labels, num_bins=num_bins))
    assert ours > 0.1, "this case is about an error that shows"
    theirs = MulticlassCalibrationError(5, n_bins=num_bins, norm="l1")(probs, labels)
    assert ours == pytest.approx(float(theirs), abs=1e-6)
    assert ours == pytest.approx(netcal.metrics.ECE(num_bins).measure(probs.numpy(), labels.numpy()), abs=1e-6)


def test_ece_of_the_certain_and_right_is_zero_and_of_the_certain_and_wrong_is_one():
    sure = torch.eye(3)
    for adaptive in (False, True):
        assert float(expected_calibration_error(sure, torch.arange(3), adaptive=adaptive)) == 0
        assert float(expected_calibration_error(sure, torch.tensor([1, 2, 0]), adaptive=adaptive)) == 1


def test_bins_of_equal_mass_are_a_plain_split_where_nothing_ties():
    generator = torch.Generator().manual_seed(0)
    confidence = torch.rand(153, generator=generator).double().square()
    correct = torch.rand(153, generator=generator) < 0.5
    order = confidence.argsort()
    gap = (correct.double() - confidence)[order]
    sizes = ((torch.arange(153) + 0.5) * 15 / 153).long().bincount()
    assert sizes.max() - sizes.min() <= 1
    expected = sum(abs(float(part.sum())) for part in gap.split(sizes.tolist())) / 153
    assert float(calibration_error(confidence, correct, adaptive=True)) == pytest.approx(expected, rel=1e-12)
    assert expected != pytest.approx(float(calibration_error(confidence, correct)), rel=1e-3)


def test_equal_confidences_share_a_bin_of_equal_mass():
    """Half right at .5 has no gap; cut in the middle by an edge, right ones apart from wrong ones, it would have."""
    confidence, correct = torch.full((100,), 0.5), torch.arange(100) < 50
    assert float(calibration_error(confidence, correct, num_bins=2, adaptive=True)) == 0


def test_equal_confidences_go_where_the_middle_of_their_mass_is():
    """They begin in the first half of the mass, but most of them are in the second: the first bin holds one example."""
    confidence, correct = torch.tensor([0.2] + 9 * [0.6]), torch.tensor([True] + 9 * [False])
    found = float(calibration_error(confidence, correct, num_bins=2, adaptive=True))
    assert found == pytest.approx((0.8 + 9 * 0.6) / 10)


def test_an_edge_belongs_to_the_bin_below():
    confidence, correct = torch.tensor([0.5, 0.7]), torch.tensor([True, False])
    assert float(calibration_error(confidence, correct, num_bins=2)) == pytest.approx((0.5 + 0.7) / 2)


def test_one_bin_is_the_gap_between_the_means():
    probs, labels = some_probs()
    confidence, predicted = probs.double().max(1)
    gap = abs(float((predicted == labels).double().mean() - confidence.mean()))
    for adaptive in (False, True):
        found = expected_calibration_error(probs, labels, num_bins=1, adaptive=adaptive)
        assert float(found) == pytest.approx(gap, rel=1e-12)


def test_the_reliability_diagram_adds_up_to_the_error():
    generator = torch.Generator().manual_seed(0)
    confidence = 0.3 + 0.7 * torch.rand(500, generator=generator)
    correct = torch.rand(500, generator=generator) < confidence.square()
    diagram = reliability(confidence, correct, num_bins=10)
    assert diagram.lower == pytest.approx([b / 10 for b in range(10)])
    assert sum(diagram.count) == 500
    assert diagram.count[:3] == (0, 0, 0)
    assert all(value != value for value in diagram.accuracy[:3] + diagram.confidence[:3]), (
        "nothing to say of no example"
    )
    bins = zip(diagram.count[3:], diagram.confidence[3:], diagram.accuracy[3:], strict=True)
    total = sum(n * abs(a - c) for n, c, a in bins) / 500
    assert total == pytest.approx(float(calibration_error(confidence, correct, num_bins=10)), rel=1e-12)
    for low, mean in zip(diagram.lower[3:], diagram.confidence[3:], strict=True):
        assert low < mean <= low + 0.1 + 1e-9


@pytest.mark.parametrize("metric", [calibration_error, reliability])
def test_a_bad_input_is_told_in_a_sentence(metric):
    right = torch.tensor([True, False])
    with pytest.raises(InputError, match=r"confidence must lie between 0 and 1, but it reaches from 0\.5 to 3"):
        metric(torch.tensor([0.5, 3.0]), right)
    with pytest.raises(InputError, match="confidence holds NaN for 1 of 2"):
        metric(torch.tensor([0.5, torch.nan]), right)
    with pytest.raises(InputError, match="num_bins must be at least 1"):
        metric(torch.tensor([0.5, 0.5]), right, num_bins=0)
    with pytest.raises(InputError, match="correct is of 2 examples, the other argument of 3"):
        metric(torch.tensor([0.5, 0.5, 0.5]), right)


@pytest.mark.parametrize("num", [300, 5000])
def test_the_floor_is_what_labels_drawn_from_the_confidences_give(num):
    generator = torch.Generator().manual_seed(0)
    confidence = 0.1 + 0.9 * torch.rand(num, generator=generator, dtype=torch.float64).sqrt()
    drawn = [torch.rand(num, generator=generator, dtype=torch.float64) < confidence for _ in range(300)]
    mean = sum(float(calibration_error(confidence, correct)) for correct in drawn) / len(drawn)
    assert float(calibration_floor(confidence)) == pytest.approx(mean, rel=0.04)


@pytest.mark.parametrize(("num", "confidence"), [(300, 0.9999), (1, 0.99), (20, 0.999)])
def test_the_floor_holds_where_errors_are_rare(num, confidence):
    hits = torch.distributions.Binomial(num, torch.tensor(confidence, dtype=torch.float64))
    count = torch.arange(num + 1, dtype=torch.float64)
    expected = float((hits.log_prob(count).exp() * (count - num * confidence).abs()).sum() / num)
    assert float(calibration_floor(torch.full((num,), confidence))) == pytest.approx(expected, rel=0.05)


def test_the_floor_of_the_sure_is_zero_and_falls_with_the_root_of_the_number():
    assert float(calibration_floor(torch.ones(50))) == 0
    few, many = (float(calibration_floor(torch.full((num,), 0.7))) for num in (100, 10_000))
    assert few == pytest.approx(10 * many)
    with pytest.raises(InputError, match="num_bins"):
        calibration_floor(torch.ones(3), num_bins=0)

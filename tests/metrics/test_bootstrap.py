"""Bootstrap: a weighted call is a call on the repeated examples, and intervals hold what they promise."""

import functools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from bndl import InputError
from bndl import metrics as m
from bndl.metrics import Figure, bootstrap, estimate, estimate_all, resamples

OF_PAIRS = {
    "aurc": m.aurc,
    "risk": functools.partial(m.risk_at_coverage, coverage=0.63),
    "auroc": m.auroc,
    "aupr": m.average_precision,
    "fpr": m.fpr_at_tpr,
    "ece": functools.partial(m.calibration_error, num_bins=4),
    "adaptive": functools.partial(m.calibration_error, num_bins=4, adaptive=True),
    "accuracy": lambda score, flag, weights=None: m.accuracy(flag, weights=weights),
    "pavpu": lambda score, flag, weights=None: m.pavpu_score(flag, score > 0.5, weights=weights),
}
OF_PROBS = {
    "nll": m.negative_log_likelihood,
    "brier": m.brier_score,
    "ece": m.expected_calibration_error,
    "features": lambda probs, labels, weights=None: m.features_per_decision(probs, weights=weights),
}
entries = st.lists(st.tuples(st.integers(0, 7), st.booleans(), st.integers(0, 4)), min_size=1, max_size=30)


def agree(function, arguments, counts) -> None:
    """Weights are repetitions, and a row's value does not depend on the other rows."""
    rows = torch.stack([counts, torch.ones_like(counts)])
    weighted = function(*arguments, weights=rows)
    assert weighted.dtype == torch.float64
    assert weighted.size() == (2,)
    assert function(*arguments).size() == ()
    repeated = function(*(a.repeat_interleave(counts, dim=0) for a in arguments))
    for found, expected in zip(weighted, (repeated, function(*arguments)), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-12, equal_nan=True)


@pytest.mark.parametrize("name", OF_PAIRS)
@given(case=entries)
@settings(deadline=None, max_examples=40)
def test_weights_are_repetitions_and_the_order_of_the_input_does_not_matter(name, case):
    score, flag, counts = (torch.tensor(column) for column in zip(*case, strict=True))
    score = score / 8
    counts[0] += counts.sum() == 0
    agree(OF_PAIRS[name], (score, flag), counts)
    mirrored = OF_PAIRS[name](score.flip(0), flag.flip(0))
    torch.testing.assert_close(OF_PAIRS[name](score, flag), mirrored, rtol=1e-9, atol=1e-12, equal_nan=True)


@pytest.mark.parametrize("name", OF_PROBS)
def test_weights_are_repetitions_for_probabilities_too(name):
    generator = torch.Generator().manual_seed(0)
    probs = torch.randn(50, 4, generator=generator).softmax(1)
    labels = torch.randint(4, (50,), generator=generator)
    agree(OF_PROBS[name], (probs, labels), torch.randint(3, (50,), generator=generator))


def test_counts_are_those_of_drawing_with_replacement():
    drawn = torch.cat(list(resamples(40, num_resamples=4000, seed=1)))
    assert drawn.size() == (4000, 40)
    assert drawn.dtype == torch.float64
    assert (drawn.sum(1) == 40).all()
    torch.testing.assert_close(drawn.mean(0), torch.ones(40, dtype=torch.float64), rtol=0, atol=0.08)
    assert float(drawn.var()) == pytest.approx(1 - 1 / 40, abs=0.02)
    assert float((drawn == 0).double().mean()) == pytest.approx((1 - 1 / 40) ** 40, abs=0.005)
    assert float((drawn[1:] * drawn[:-1]).mean()) == pytest.approx(1, abs=0.02), "rows are drawn one by one"


def test_the_seed_decides_and_chunks_stay_small(monkeypatch):
    first, same, other = (torch.cat(list(resamples(30, num_resamples=50, seed=s))) for s in (1, 1, 2))
    assert torch.equal(first, same)
    assert not torch.equal(first, other)
    before = torch.random.get_rng_state()
    sizes = [chunk.numel() for chunk in resamples(300_000, num_resamples=7)]
    assert max(sizes) <= 2**23
    assert sum(sizes) == 7 * 300_000
    assert torch.equal(before, torch.random.get_rng_state())
    monkeypatch.setattr(bootstrap, "_CHUNK", 10)
    assert [len(chunk) for chunk in resamples(30, num_resamples=3)] == [1, 1, 1]


def test_two_samples_are_resampled_each_within_itself():
    drawn = torch.cat(list(resamples((5, 20), num_resamples=200)))
    assert drawn.size() == (200, 25)
    assert (drawn[:, :5].sum(1) == 5).all()
    assert (drawn[:, 5:].sum(1) == 20).all()
    score, outside = torch.randn(25), torch.arange(25) >= 5
    figure = estimate(lambda w: m.auroc(score, outside, weights=w), (5, 20), num_resamples=200)
    assert figure.low <= figure.value <= figure.high


def test_the_interval_of_a_mean_is_the_one_of_theory():
    generator = torch.Generator().manual_seed(0)
    correct = torch.rand(2000, generator=generator) < 0.8
    share = float(correct.double().mean())
    figure = estimate(lambda w: m.accuracy(correct, weights=w), 2000, num_resamples=2000, seed=5)
    error = math.sqrt(share * (1 - share) / 2000)
    assert figure.value == share
    assert figure.low == pytest.approx(share - 1.96 * error, abs=0.25 * error)
    assert figure.high == pytest.approx(share + 1.96 * error, abs=0.25 * error)
    narrow = estimate(lambda w: m.accuracy(correct, weights=w), 2000, num_resamples=2000, seed=5, level=0.5)
    assert narrow.high - narrow.low == pytest.approx(2 * 0.6745 * error, rel=0.15)
    assert figure == estimate(lambda w: m.accuracy(correct, weights=w), 2000, num_resamples=2000, seed=5)


def test_intervals_hold_the_truth_as_often_as_they_say():
    """An AUROC of known value, from 150 samples of 60: between 88 % and 99 % of the 95 % intervals hold it."""
    generator, held = torch.Generator().manual_seed(0), 0
    positive = torch.arange(60) < 30
    truth = 0.5 * (1 + math.erf(1 / 2))  # P(x + 1 > y) for two standard normals
    for _ in range(150):
        score = torch.randn(60, generator=generator) + positive
        figure = estimate(lambda w, s=score: m.auroc(s, positive, weights=w), (30, 30), num_resamples=300)
        held += figure.low <= truth <= figure.high
    assert 0.88 <= held / 150 <= 0.99


def test_noise_inflates_the_calibration_error_so_its_interval_is_centred():
    generator = torch.Generator().manual_seed(0)
    confidence = torch.rand(2000, generator=generator)
    correct = torch.rand(2000, generator=generator) < confidence
    plain, centred = (
        estimate(lambda w: m.calibration_error(confidence, correct, weights=w), 2000, num_resamples=300, centred=c)
        for c in (False, True)
    )
    assert plain.value == centred.value
    width = plain.high - plain.low
    assert (plain.low + plain.high) / 2 - plain.value > 0.3 * width, (
        "this case is about resamples that are off the value"
    )
    assert abs((centred.low + centred.high) / 2 - centred.value) < 0.1 * width
    assert centred.low < centred.value < centred.high
    assert centred.high - centred.low == pytest.approx(width, rel=1e-9)


def test_resamples_without_a_value_are_left_out_and_a_value_of_nan_has_no_interval():
    score, positive = torch.tensor([0.3, 0.1, 0.2, 0.4]), torch.tensor([True, False, False, False])
    figure = estimate(lambda w: m.auroc(score, positive, weights=w), 4, num_resamples=200)
    assert 0 <= figure.low <= figure.value <= figure.high <= 1
    none = estimate(lambda w: m.auroc(score, ~positive & positive, weights=w), 4)
    assert all(math.isnan(value) for value in (none.value, none.low, none.high))
    alone = estimate(
        lambda w: m.auroc(score[:2], positive[:2], weights=w) if w is None else torch.full((len(w),), torch.nan), 2
    )
    assert alone.value == 1
    assert math.isnan(alone.low)
    assert math.isnan(alone.high)


def test_many_at_once_are_as_one_by_one():
    correct, score = torch.rand(100) < 0.7, torch.randn(100)
    functions = {
        "accuracy": lambda w: m.accuracy(correct, weights=w),
        "aurc": lambda w: m.aurc(score, correct, weights=w),
        "none": lambda w: m.auroc(score, correct & ~correct, weights=w),
    }
    found = estimate_all(functions, 100, num_resamples=50, seed=3, centred=["aurc"])
    assert isinstance(found["aurc"], Figure)
    for name in ("accuracy", "aurc"):
        assert found[name] == estimate(functions[name], 100, num_resamples=50, seed=3, centred=name == "aurc")
    assert math.isnan(found["none"].value)


def test_a_bad_input_is_told_in_a_sentence():
    for sizes, count in ((0, 10), ((), 10), ((5, 0), 10), (5, 0)):
        with pytest.raises(InputError, match="a bootstrap needs examples and resamples"):
            resamples(sizes, num_resamples=count)
    with pytest.raises(InputError, match="strictly between 0 and 1, got 95"):
        estimate(lambda w: torch.zeros(()), 5, level=95)

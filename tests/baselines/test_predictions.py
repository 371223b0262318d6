"""Predictions of other methods: the test is scipy's, the moments are the Dirichlet's, and without spread half decides."""

import pytest
import scipy.stats
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.distributions import Dirichlet

from bndl.baselines.predictions import from_dirichlet, from_draws, from_logits
from bndl.errors import InputError

S, B, C = 20, 40, 5


def draws(*, seed: int = 0, num: int = S) -> Tensor:
    """Logits (S, B, C) whose classes lie close enough that some decisions are certain and some are not."""
    generator = torch.Generator().manual_seed(seed)
    return 3 * torch.randn(B, C, generator=generator) + torch.randn(num, B, C, generator=generator)


# --------------------------------------------------------------------------------------------------------------- draws


def log_odds(probs: Tensor, label: int) -> Tensor:
    """ln p / (1 - p) of a class: (S, C) -> (S,)."""
    return probs[:, label].log() - torch.log1p(-probs[:, label])


def test_log_odds_of_draws_are_tested_as_scipy_tests_one_sample():
    given = draws()
    prediction = from_draws(given)
    for row, first in enumerate(prediction.labels.tolist()):
        odds = log_odds(given[:, row].double().softmax(1), first)
        expected = scipy.stats.ttest_1samp(odds, 0).pvalue if odds.mean() > 0 else 1
        assert float(prediction.p_value[row]) == pytest.approx(expected, rel=1e-6)
    assert torch.equal(prediction.certain, prediction.p_value <= 0.05)
    for some in (prediction.certain, prediction.p_value == 1, (prediction.p_value > 0.05) & (prediction.p_value < 1)):
        assert 0 < int(some.sum()) < B


def test_with_two_classes_the_test_is_that_of_pairs():
    given = draws()[..., :2]
    prediction, scores = from_draws(given), given.double().numpy()
    pairs = zip(prediction.labels.tolist(), prediction.runner_up.tolist(), strict=True)
    for row, (first, second) in enumerate(pairs):
        pair = scipy.stats.ttest_rel(scores[:, row, first], scores[:, row, second])
        expected = pair.pvalue if pair.statistic > 0 else 1  # the class that is more probable may have the lesser score
        assert float(prediction.p_value[row]) == pytest.approx(expected, rel=1e-6)


def test_a_class_ahead_of_each_other_but_not_of_all_together_is_not_certain():
    spread = 0.01 * draws()[:, :1]
    many = torch.tensor([0.30] + 14 * [0.05]).log()  # 30 % against a runner-up of 5 %, and the rest is 70 %
    two = torch.tensor([0.70] + 3 * [0.10]).log()
    doubted, believed = (from_draws(p + spread[..., :1] * torch.arange(len(p))) for p in (many, two))
    assert (doubted.p_value.tolist(), doubted.flip_probability.tolist()) == ([1], [0])
    assert float(believed.p_value) < 1e-9


def test_the_decision_is_the_largest_average_probability_not_the_largest_average_logit():
    sure_but_alone = torch.tensor([[9.0, 0.0]] + 3 * [[0.0, 2.5]])[:, None]  # the mean logits prefer the first class
    prediction = from_draws(sure_but_alone)
    assert sure_but_alone.mean(0).argmax() == 0
    assert prediction.labels.tolist() == [1]
    assert torch.allclose(prediction.probs, sure_but_alone.double().softmax(2).mean(0))


def test_first_and_second_are_the_largest_of_the_probabilities():
    prediction = from_draws(draws())
    top = prediction.probs.topk(2, dim=1).indices
    assert torch.equal(torch.stack([prediction.labels, prediction.runner_up], dim=1), top)
    assert torch.allclose(prediction.probs.double().sum(1), torch.ones(B).double())
    assert torch.allclose(prediction.entropy.double(), -(prediction.probs * prediction.probs.log()).sum(1), atol=1e-6)


def test_a_decision_flips_as_often_as_the_draws_do():
    given = draws()
    prediction = from_draws(given)
    rows = torch.arange(B)
    flipped = (given[:, rows, prediction.labels] < given[:, rows, prediction.runner_up]).double().mean(0)
    assert torch.allclose(prediction.flip_probability, flipped)
    assert flipped.max() > 0


@pytest.mark.parametrize("source", ["aleatoric", "epistemic"])
def test_the_spread_of_the_draws_is_the_doubt_of_their_source(source: str):
    given = draws()
    prediction = from_draws(given, source=source)
    rows, scores = torch.arange(B), given.log_softmax(2)
    spread = (scores[:, rows, prediction.labels] - scores[:, rows, prediction.runner_up]).var(0)
    other = {"aleatoric": "epistemic", "epistemic": "aleatoric"}[source]
    assert torch.allclose(getattr(prediction, source), spread, rtol=1e-4)
    assert not getattr(prediction, other).any()


def test_draws_that_agree_are_a_softmax():
    logits = draws()[0]
    for field in ("labels", "runner_up", "certain", "flip_probability", "epistemic", "p_value"):
        agreed, alone = (getattr(p, field) for p in (from_draws(logits.expand(S, -1, -1)), from_logits(logits)))
        assert torch.allclose(agreed.double(), alone.double()), field


def test_draws_may_be_probabilities_of_nothing_at_all():
    """A method may be so sure that a class's probability is 0 in every draw; nothing turns into NaN."""
    prediction = from_draws(torch.tensor([[[0.0, -torch.inf, -torch.inf]]]).expand(S, 1, 3).clamp_min(-1e4))
    assert prediction.labels.tolist() == [0]
    assert bool(prediction.certain)
    assert all(bool(torch.isfinite(value).all()) for value in vars(prediction).values())


def test_one_draw_has_no_spread_and_is_refused():
    with pytest.raises(InputError, match="at least two draws, got 1"):
        from_draws(draws(num=1))


# ----------------------------------------------------------------------------------------------------------- Dirichlet


def test_moments_of_a_dirichlet_are_those_of_its_samples():
    alpha = torch.tensor([[9.0, 4.0, 1.0], [0.8, 2.0, 0.5], [30.0, 25.0, 40.0]], dtype=torch.float64)
    torch.manual_seed(0)
    sampled = Dirichlet(alpha).sample((100_000,))  # (S, B, C)
    prediction = from_dirichlet(alpha)
    rows = torch.arange(len(alpha))
    difference = (sampled[:, rows, prediction.labels] / sampled[:, rows, prediction.runner_up]).log()
    assert torch.allclose(prediction.probs.double(), sampled.mean(0), atol=3e-3)
    assert torch.allclose(prediction.epistemic.double(), difference.var(0), rtol=0.03)
    odds = torch.stack([log_odds(sampled[:, row], int(prediction.labels[row])) for row in rows], dim=1)
    t = odds.mean(0) / (odds.var(0) / S).sqrt()
    assert torch.allclose(torch.from_numpy(scipy.stats.t.isf(prediction.p_value / 2, S - 1)), t.clamp_min(0), rtol=0.02)
    assert float(prediction.p_value[2]) == 1  # 42 %: more than each other, less than both
    assert not prediction.aleatoric.any()


def test_a_dirichlet_that_is_all_but_sure_is_certain():
    """Whatever is left for the other classes may be lost in the sum of all concentrations."""
    prediction = from_dirichlet(torch.tensor([[1e20, 1.0, 2.0], [2.0, 1.0, 1e12]]))
    assert prediction.certain.all()
    assert torch.isfinite(prediction.p_value).all()


def test_more_evidence_of_the_same_kind_is_less_doubt():
    shares = torch.tensor([[0.6, 0.3, 0.1]])
    p_values = [float(from_dirichlet(weight * shares).p_value) for weight in (1, 10, 100, 1000)]
    assert p_values == sorted(p_values, reverse=True)
    assert p_values[0] > 0.05 > p_values[-1]


@pytest.mark.parametrize("weight", [1, 10, 1000, 1e6])
def test_no_evidence_makes_a_minority_certain(weight: float):
    prediction = from_dirichlet(weight * torch.tensor([[0.5, 0.3, 0.2], [0.4, 0.3, 0.3]]))
    assert prediction.p_value.tolist() == [1, 1]


def test_equal_concentrations_are_a_tie():
    prediction = from_dirichlet(torch.ones(1, 4))
    assert torch.allclose(prediction.probs, torch.full_like(prediction.probs, 0.25))
    assert not prediction.certain
    assert float(prediction.p_value) == 1
    assert float(prediction.flip_probability) == 0.5


# -------------------------------------------------------------------------------------------------------------- logits


@given(scale=st.floats(1e-3, 1e3), seed=st.integers(0, 1000))
@settings(max_examples=25, deadline=None)
def test_a_softmax_is_certain_exactly_where_it_has_more_than_half_of_the_probability(scale: float, seed: int):
    logits = scale * draws(seed=seed)[0]
    prediction = from_logits(logits)
    likely = logits.double().softmax(1).max(1).values > 0.5
    assert torch.equal(prediction.labels, logits.argmax(1))
    assert torch.allclose(prediction.probs, logits.double().softmax(1), atol=1e-6)
    assert torch.equal(prediction.certain, likely)
    assert torch.equal(prediction.p_value, (~likely).double())
    assert not prediction.flip_probability.any()
    assert not (prediction.aleatoric + prediction.epistemic).any()


def test_a_tie_of_the_first_two_is_doubt():
    prediction = from_logits(torch.tensor([[1.0, 2.0, 2.0], [2.0, 1.0, 1.0]]))
    assert prediction.certain.tolist() == [False, True]
    assert prediction.p_value.tolist() == [1, 0]
    assert prediction.flip_probability.tolist() == [0.5, 0]
    assert prediction.labels.tolist() == [1, 0]
    assert prediction.runner_up.tolist() == [2, 1]

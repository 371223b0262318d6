"""CARD: the diffusion is Gaussian algebra, a right noise network walks back to the label, and draws do no harm."""

from dataclasses import fields
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from bndl.baselines.card import CARD, LabelDiffusion
from bndl.baselines.dense import Dense
from bndl.baselines.diffusion import NoiseNetwork, Schedule, sample
from bndl.baselines.method import Fitted
from bndl.errors import InputError
from bndl.features import FeatureSet
from bndl.metrics import pavpu
from bndl.prediction import Prediction, cat

SMALL = {"num_samples": 20, "num_steps": 25, "width": 32, "num_updates": 300}


def normal(*dims: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(dims, generator=torch.Generator().manual_seed(seed), dtype=dtype)


# ------------------------------------------------------------------------------------------------------------ schedule


@pytest.mark.parametrize("num_steps", [25, 50, 100, 1000])
def test_a_schedule_goes_from_the_label_to_noise_about_the_guide(num_steps: int):
    schedule = Schedule.linear(num_steps)
    assert schedule.num_steps == num_steps
    assert float(schedule.signal[0]) == 1
    assert (schedule.signal.diff() < 0).all()
    assert float(schedule.signal[-1]) < 0.01
    assert ((schedule.betas > 0) & (schedule.betas < 1)).all()


def test_a_thousand_steps_are_the_authors_schedule():
    schedule = Schedule.linear(1000)
    assert torch.allclose(schedule.betas, torch.linspace(1e-4, 0.02, 1000, dtype=torch.float64))


def test_too_few_steps_are_refused():
    with pytest.raises(InputError, match="at least 25 steps to end in noise, got 10"):
        Schedule.linear(10)


def test_steps_add_up_to_the_closed_form_of_the_marginals():
    """y_t = sqrt(1 - b) y_{t-1} + (1 - sqrt(1 - b)) f + sqrt(b) e, t times, has the mean and variance of one jump."""
    schedule, label, guide, count = Schedule.linear(30), 1.0, 0.3, 40_000
    walk, noise = torch.full((count,), label, dtype=torch.float64), normal(30, count)
    for step in range(1, 31):
        decay = (1 - schedule.betas[step - 1]).sqrt()
        walk = decay * walk + (1 - decay) * guide + (1 - decay.square()).sqrt() * noise[step - 1]
        signal = float(schedule.signal[step])
        assert float(walk.mean()) == pytest.approx(signal * label + (1 - signal) * guide, abs=0.02)
        assert float(walk.var()) == pytest.approx(1 - signal**2, rel=0.05)
    at = torch.full((count,), 12)
    jump = schedule.diffuse(torch.full((count, 1), label), torch.full((count, 1), guide), at, normal(count, 1))
    assert float(jump.mean()) == pytest.approx(float(schedule.signal[12] * (label - guide)) + guide, abs=0.02)
    assert float(jump.var()) == pytest.approx(1 - float(schedule.signal[12]) ** 2, rel=0.05)


@given(step=st.integers(1, 60), seed=st.integers(0, 100))
@settings(max_examples=30, deadline=None)
def test_the_step_back_is_the_product_of_two_gaussians(step: int, seed: int):
    """q(y_{t-1} | y_t, y_0) ~ q(y_t | y_{t-1}) q(y_{t-1} | y_0): precisions add, and so do precision-weighted means."""
    schedule = Schedule.linear(60)
    label, guide, noisy = normal(3, seed=seed).tolist()
    beta, before = float(schedule.betas[step - 1]), float(schedule.signal[step - 1])
    decay = (1 - beta) ** 0.5
    back = schedule.reverse(step)
    mean = back.label * label + back.noisy * noisy + back.guide * guide
    if step == 1:  # y_0 itself
        assert back.variance == 0
        assert mean == pytest.approx(label, abs=1e-9)
        return
    ahead, behind = decay**2 / beta, 1 / (1 - before**2)  # precisions of y_{t-1}
    of_ahead, of_behind = (noisy - (1 - decay) * guide) / decay, before * label + (1 - before) * guide
    assert back.variance == pytest.approx(1 / (ahead + behind), rel=1e-6)
    assert mean == pytest.approx((ahead * of_ahead + behind * of_behind) / (ahead + behind), rel=1e-6, abs=1e-9)


@given(step=st.integers(1, 60), seed=st.integers(0, 100))
@settings(max_examples=30, deadline=None)
def test_the_label_is_recovered_from_its_noise(step: int, seed: int):
    schedule = Schedule.linear(60)
    label, guide, noise = normal(3, 4, 5, seed=seed)
    noisy = schedule.diffuse(label, guide, torch.full((4,), step), noise)
    assert torch.allclose(schedule.recover(noisy, guide, step, noise), label)


# ------------------------------------------------------------------------------------------------------------ sampling


def test_a_noise_network_that_is_right_walks_back_to_the_label():
    schedule, S, B, C = Schedule.linear(40), 6, 5, 4
    label, guide = F.one_hot(torch.arange(B) % C, C).double(), normal(B, C).softmax(1)

    steps: list[int] = []

    def right(noisy: Tensor, step: int) -> Tensor:
        steps.append(step)
        signal = float(schedule.signal[step])
        return (noisy - signal * label - (1 - signal) * guide) / (1 - signal**2) ** 0.5

    drawn = sample(schedule, guide, normal(40, S, 1, C), right)
    assert torch.allclose(drawn, label.expand(S, -1, -1))
    assert steps == list(range(40, 0, -1))


def test_a_noise_network_that_knows_the_posterior_draws_from_the_label_distribution():
    """One input whose label is 0 with probability .7: the exact posterior mean of y_0 makes draws with that share."""
    schedule, count = Schedule.linear(200), 4000
    probs = torch.tensor([0.7, 0.3], dtype=torch.float64)

    def posterior(noisy: Tensor, step: int) -> Tensor:
        signal = float(schedule.signal[step])
        rest = 1 - signal**2
        label = (probs.log() + signal * (noisy - (1 - signal) * probs) / rest).softmax(-1)
        return (noisy - signal * label - (1 - signal) * probs) / rest**0.5

    drawn = sample(schedule, probs[None], normal(200, count, 1, 2), posterior)[:, 0]
    assert torch.allclose(drawn.sum(-1), torch.ones(count, dtype=torch.float64), atol=1e-2)
    assert float((drawn.argmax(-1) == 0).double().mean()) == pytest.approx(0.7, abs=0.03)
    assert float(drawn.amax(-1).median()) > 0.99  # each draw is a label, no average


def network(*, num_steps: int = 25, width: int = 8) -> NoiseNetwork:
    """One whose numbers are all away from their start."""
    torch.manual_seed(0)
    made = NoiseNetwork(6, 3, schedule=Schedule.linear(num_steps), width=width, spread=0.2)
    with torch.no_grad():
        for value in [*made.parameters(), *made.buffers()]:
            if value.is_floating_point() and value.size(0) != num_steps + 1:
                value.add_(0.3 * torch.rand(value.size()))
        for layer in (made.first, made.second, made.third):
            layer.embedding.weight.add_(0.3 * torch.randn(layer.embedding.weight.size()))
    return made.eval()


def test_a_network_that_has_folded_its_constants_is_the_same_network():
    made, x = network(), normal(7, 6, dtype=torch.float32)
    guide, noisy = normal(7, 3, seed=1, dtype=torch.float32).softmax(1), normal(4, 7, 3, seed=2, dtype=torch.float32)
    denoise = made.given(x, guide)
    for step in (1, 12, 25):
        plain = torch.stack([made(x, one, guide, torch.full((7,), step)) for one in noisy])
        assert torch.allclose(denoise(noisy, step), plain, atol=1e-5)


def test_a_new_network_is_the_best_linear_estimate_of_the_noise():
    """Of labels that scatter about the guide with the given spread: its error is that of a regression on y_t - f."""
    schedule, spread, count = Schedule.linear(25), 0.2, 20_000
    torch.manual_seed(0)
    new = NoiseNetwork(6, 1, schedule=schedule, width=8, spread=spread).eval()
    guide = torch.zeros(count, 1)
    label, noise = (part.float() for part in normal(2, count, 1))
    for step in (1, 5, 15, 25):
        at = torch.full((count,), step)
        noisy = schedule.diffuse(guide + spread * label, guide, at, noise)
        with torch.no_grad():
            estimate = new(torch.zeros(count, 6), noisy, guide, at)
        slope = float((noisy * noise).sum() / noisy.square().sum())
        assert float(F.mse_loss(estimate, noise)) == pytest.approx(float(F.mse_loss(slope * noisy, noise)), rel=0.01)


# -------------------------------------------------------------------------------------------------------------- method


@pytest.fixture(scope="module")
def digits(digit_parts: Any) -> dict[str, FeatureSet]:
    """Pixels (N, 64) from 0 to 1, in three parts."""
    return {part: getattr(digit_parts, part) for part in ("train", "val", "test")}


@pytest.fixture(scope="module")
def head(digit_parts: Any) -> nn.Linear:
    """A head that knows its training examples by heart, and so is too sure of others."""
    return digit_parts.head


@pytest.fixture(scope="module")
def fitted(digits: dict[str, FeatureSet], head: nn.Linear) -> Fitted:
    return CARD(**SMALL).fit(head, digits["train"], digits["val"], seed=0)


def test_card_decides_about_as_well_as_its_guide(digits: dict[str, FeatureSet], head: nn.Linear, fitted: Fitted):
    test = digits["test"]
    prediction, guide = fitted.predict(test.features), Dense().predictor(head).predict(test.features)
    right, of_guide = prediction.labels == test.labels, guide.labels == test.labels
    assert float(right.double().mean()) > float(of_guide.double().mean()) - 0.02
    counts = pavpu(right, prediction.certain)
    assert counts.value > 0.9
    assert counts.accurate_uncertain + counts.inaccurate_uncertain > 0  # it does doubt
    assert (prediction.aleatoric > 0).all()  # its draws are of labels, so the doubt is the label's
    assert not prediction.epistemic.any()
    assert prediction.flip_probability[~right].mean() > 2 * prediction.flip_probability[right].mean()


def test_the_same_seed_gives_the_same_bits(digits: dict[str, FeatureSet], head: nn.Linear, fitted: Fitted):
    torch.manual_seed(1)
    state = torch.random.get_rng_state()
    again = CARD(**SMALL).fit(head, digits["train"], digits["val"], seed=0)
    first, second, third = (each.predict(digits["test"].features[:200]) for each in (fitted, again, again))
    for field in fields(Prediction):
        assert torch.equal(getattr(first, field.name), getattr(second, field.name)), field.name
        assert torch.equal(getattr(second, field.name), getattr(third, field.name)), field.name
    assert fitted.note == again.note
    assert torch.equal(torch.random.get_rng_state(), state)


def test_an_example_is_drawn_alike_in_any_batch(digits: dict[str, FeatureSet], fitted: Fitted):
    rows = digits["test"].features[:150]
    together, apart = fitted.predict(rows), cat([fitted.predict(part) for part in rows.split(7)])
    assert torch.allclose(together.probs, apart.probs, atol=1e-4)
    assert torch.equal(together.labels, apart.labels)


def test_the_size_counts_the_network_the_head_and_tau(fitted: Fitted):
    K, C, H, T = 64, 10, SMALL["width"], SMALL["num_steps"]
    weights = K * C + K * H + 2 * C * H + 2 * H * H + H * C + 3 * (T + 1) * H
    vectors = C + 3 * H + 3 * (H + 2 * H) + C  # biases, and two numbers of each batch norm
    assert fitted.size.weights == weights
    assert fitted.size.parameters == weights + vectors + 1
    assert fitted.size.nnz > 0.99


def test_card_does_not_harm_a_perfect_guide():
    """Features that are the label: the guide is always right, and so are the draws."""
    labels = torch.arange(600) % 5
    data = FeatureSet(F.one_hot(labels, 5).float() + 0.05 * normal(600, 5).float(), labels)
    guide = nn.Linear(5, 5).requires_grad_(False)
    guide.weight.copy_(10 * torch.eye(5))
    guide.bias.zero_()
    train, val, test = (data.take(torch.arange(start, start + 200)) for start in (0, 200, 400))
    prediction = CARD(**SMALL).fit(guide, train, val, seed=0).predict(test.features)
    assert torch.equal(prediction.labels, test.labels)
    assert prediction.certain.all()
    assert float(prediction.confidence.min()) > 0.99


def test_card_predicts_by_its_own_model_and_from_features(head: nn.Linear):
    with pytest.raises(InputError, match="got Linear: call CARD"):
        CARD().predictor(head)
    model = LabelDiffusion(nn.Linear(4, 3), num_steps=25, width=8, spread=0.1).eval()
    with pytest.raises(InputError, match=r"takes features .* got dict"):
        CARD().predictor(model).predict({"pixel_values": torch.zeros(1, 4)})

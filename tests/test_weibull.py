"""The Weibull by its mean: draws against closed forms, closed forms against scipy, limits, gradients, extremes."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import special
from torch import Tensor
from torch.distributions import Exponential, Gamma, Weibull, kl_divergence

from bndl import weibull

FEW = settings(deadline=None, max_examples=40)
DRAWS = 1_000_000
SHAPES = np.logspace(-1, 6, 701)
MEANS = st.floats(1e-6, 1e6)
ANY_SHAPE = st.floats(-1, 6).map(lambda exponent: 10.0**exponent)


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def double(value: object) -> Tensor:
    return torch.as_tensor(value, dtype=torch.float64)


def log_ratio(shape: np.ndarray) -> np.ndarray:
    """ln Gamma(1 + 2x) - 2 ln Gamma(1 + x), x = 1/k: by scipy's gammaln, and by the zeta series where that cancels."""
    x = 1 / shape
    n = np.arange(2, 40)
    series = ((-1.0) ** n * special.zeta(n) * (2.0**n - 2) / n * x[:, None] ** n).sum(1)
    return np.where(x < 0.1, series, special.gammaln(1 + 2 * x) - 2 * special.gammaln(1 + x))


def log_ratio_slope(shape: np.ndarray) -> np.ndarray:
    """Derivative of the above in k."""
    x = 1 / shape
    n = np.arange(2, 40)
    series = ((-1.0) ** n * special.zeta(n) * (2.0**n - 2) * x[:, None] ** (n - 1)).sum(1)
    return -x * x * np.where(x < 0.1, series, 2 * (special.digamma(1 + 2 * x) - special.digamma(1 + x)))


def cv2_and_slope(shape: Tensor) -> tuple[np.ndarray, np.ndarray]:
    shape = shape.clone().requires_grad_()
    value = weibull.cv2(shape)
    (slope,) = torch.autograd.grad(value.sum(), shape)
    return value.detach().double().numpy(), slope.double().numpy()


# ---------------------------------------------------------------------------------------------------- draws


@pytest.mark.parametrize(("mean", "shape"), [(0.3, 0.8), (1.0, 1.0), (2.5, 3.0), (1e-3, 10.0), (1e4, 200.0)])
def test_a_million_draws_have_the_mean_and_variance_of_the_closed_form(mean, shape):
    drawn = weibull.sample(torch.full((DRAWS,), mean), torch.tensor(shape), generator=seeded()).double()
    cv2 = math.gamma(1 + 2 / shape) / math.gamma(1 + 1 / shape) ** 2 - 1
    assert drawn.mean().item() == pytest.approx(mean, rel=0.01)
    assert drawn.var().item() == pytest.approx(mean**2 * cv2, rel=0.01)
    assert weibull.variance(double(mean), double(shape)).item() == pytest.approx(mean**2 * cv2, rel=1e-7)


@pytest.mark.parametrize("shape", [0.1, 0.5, 30.0, 1e4])
def test_the_logarithm_of_the_noise_has_its_closed_form_mean_and_spread(shape):
    """Shapes at which a million draws say little of the variance: E[ln g] = -gamma/k - ln Gamma(1 + 1/k)."""
    drawn = weibull.noise(weibull.log_exponential(DRAWS, like=double(0), generator=seeded()), double(shape)).log()
    spread = math.pi / math.sqrt(6) / shape
    assert drawn.std().item() == pytest.approx(spread, rel=0.01)
    expected = -np.euler_gamma / shape - special.gammaln(1 + 1 / shape)
    assert drawn.mean().item() == pytest.approx(expected, abs=0.005 * spread)


@FEW
@given(
    dims=st.lists(st.integers(0, 4), max_size=3),
    dtype=st.sampled_from([torch.float32, torch.float64, torch.bfloat16, torch.float16]),
    shape=ANY_SHAPE,
    seed=st.integers(0, 2**40),
)
def test_a_draw_has_the_dims_of_the_mean_and_the_generator_alone_decides_it(dims, dtype, shape, seed):
    mean = torch.ones(dims, dtype=dtype)
    before = torch.get_rng_state()
    first, second = (weibull.sample(mean, torch.tensor(shape), generator=seeded(seed)) for _ in range(2))
    assert first.size() == mean.size()
    assert first.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    assert torch.equal(first, second)
    assert torch.equal(torch.get_rng_state(), before)


def test_other_seeds_give_other_draws():
    first, second = (weibull.sample(torch.ones(9), torch.ones(9), generator=seeded(seed)) for seed in (1, 2))
    assert (first != second).all()


@FEW
@given(mean=st.floats(0, 1e6, width=32), shape=ANY_SHAPE, seed=st.integers(0, 2**40))
def test_draws_are_finite_non_negative_and_differentiable_at_the_extremes(mean, shape, seed):
    means = torch.tensor([mean, 0.0, 1e6], requires_grad=True)
    shapes = torch.full((3,), shape).clamp_min(0.1).requires_grad_()
    drawn = weibull.sample(means, shapes, generator=seeded(seed))
    gradients = torch.autograd.grad(drawn.sum(), (means, shapes))
    assert drawn.isfinite().all()
    assert (drawn >= 0).all()
    assert all(gradient.isfinite().all() for gradient in gradients)


def test_a_mean_of_zero_gives_exactly_zero():
    shapes = torch.tensor([0.1, 1.0, 1e6, math.inf])
    assert torch.equal(weibull.sample(torch.zeros(4), shapes, generator=seeded()), torch.zeros(4))
    assert torch.equal(weibull.variance(torch.zeros(4), shapes), torch.zeros(4))


def test_without_noise_a_draw_is_the_mean_to_the_bit():
    mean = torch.rand(1000, generator=seeded()) * 1e6
    assert torch.equal(weibull.sample(mean, torch.tensor(math.inf), generator=seeded()), mean)
    torch.testing.assert_close(weibull.sample(mean, torch.tensor(1e6), generator=seeded()), mean, rtol=5e-5, atol=0)


def test_a_draw_of_exactly_zero_makes_no_nan(monkeypatch):
    """A generator may return 0; ln 0 = -inf, times 1/k = 0, would be one."""
    monkeypatch.setattr(Tensor, "exponential_", lambda self, generator=None: self.zero_())
    drawn = weibull.sample(torch.ones(4), torch.tensor([0.1, 1.0, 1e6, math.inf]))
    assert drawn.isfinite().all()
    assert drawn[3] == 1


def test_draws_are_differentiable_in_mean_and_shape():
    log_draws = weibull.log_exponential(6, like=double(0), generator=seeded())
    mean, shape = double([0.1, 1, 5, 1, 1, 1e3]), double([0.3, 1, 2, 7, 60, 4])
    torch.autograd.gradcheck(
        lambda m, k: m * weibull.noise(log_draws, k), (mean.requires_grad_(), shape.requires_grad_())
    )


# ---------------------------------------------------------------------------------------------------- cv2


def test_cv2_and_its_gradient_agree_with_scipy_in_double_precision():
    value, slope = cv2_and_slope(double(SHAPES))
    expected = np.expm1(log_ratio(SHAPES))
    np.testing.assert_allclose(value, expected, rtol=1e-9)
    np.testing.assert_allclose(slope, (1 + expected) * log_ratio_slope(SHAPES), rtol=1e-8)


def test_cv2_and_its_gradient_are_good_to_single_precision():
    shapes = torch.tensor(SHAPES, dtype=torch.float32).clamp_min(0.1)
    value, slope = cv2_and_slope(shapes)
    exact = shapes.double().numpy()
    expected = np.expm1(log_ratio(exact))
    np.testing.assert_allclose(value, expected, rtol=1e-5)
    np.testing.assert_allclose(slope, (1 + expected) * log_ratio_slope(exact), rtol=1e-5)


def test_cv2_without_noise_is_zero_with_a_finite_gradient():
    value, slope = cv2_and_slope(torch.tensor([math.inf, 1e30]))
    assert (value[0], slope[0]) == (0, 0)
    assert np.isfinite(value).all()
    assert np.isfinite(slope).all()


@FEW
@given(shape=ANY_SHAPE, factor=st.floats(1.001, 100))
def test_more_shape_is_less_noise(shape, factor):
    less, more = weibull.cv2(torch.tensor([shape * factor, shape]))
    assert 0 < less < more


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_computed_in_float32(dtype):
    mean, shape = torch.tensor([300.0, 1.3], dtype=dtype), torch.tensor([0.5, 3.0], dtype=dtype)
    for got, expected in (
        (weibull.cv2(shape), weibull.cv2(shape.float())),
        (weibull.variance(mean, shape), weibull.variance(mean.float(), shape.float())),
        (weibull.kl_to_gamma(mean, shape), weibull.kl_to_gamma(mean.float(), shape.float())),
        (weibull.sample(mean, shape, generator=seeded()), weibull.sample(mean.float(), shape, generator=seeded())),
    ):
        assert got.dtype == torch.float32
        assert torch.equal(got, expected)


# ---------------------------------------------------------------------------------------------------- KL

KL_CASES = [
    (0.3, 0.6, 1.0, 1.0),
    (1.0, 3.0, 1.0, 1.0),
    (2.5, 1.2, 2.0, 0.5),
    (0.01, 10.0, 0.5, 2.0),
    (20.0, 40.0, 3.0, 0.1),
]


@pytest.mark.parametrize(("mean", "shape", "a", "b"), KL_CASES)
def test_kl_agrees_with_a_million_draws(mean, shape, a, b):
    drawn = weibull.sample(torch.full((DRAWS,), mean).double(), double(shape), generator=seeded())
    posterior = Weibull(double(mean / math.gamma(1 + 1 / shape)), double(shape))
    sampled = (posterior.log_prob(drawn) - Gamma(double(a), double(b)).log_prob(drawn)).mean().item()
    closed = weibull.kl_to_gamma(double(mean), double(shape), prior_shape=a, prior_rate=b).item()
    assert closed > 0.1
    assert closed == pytest.approx(sampled, rel=0.01)


def test_torch_distributions_find_the_closed_form_for_batches():
    scale = torch.rand(3, 1, generator=seeded(1)) + 0.1
    shape, a = torch.rand(4, generator=seeded(2)) + 0.5, torch.rand(2, 1, 4, generator=seeded(3)) + 0.5
    found = kl_divergence(Weibull(scale, shape), Gamma(a, torch.tensor(2.0)))
    assert found.size() == (2, 3, 4)
    mean = (scale * torch.lgamma(1 + 1 / shape).exp()).expand(2, 3, 4)
    for index in np.ndindex(2, 3, 4):
        one = weibull.kl_to_gamma(
            mean[index], shape[index[2]], prior_shape=a[index[0], 0, index[2]].item(), prior_rate=2
        )
        assert found[index].item() == pytest.approx(one.item(), rel=1e-4, abs=1e-6)


@settings(deadline=None, max_examples=200)
@given(mean=MEANS, shape=ANY_SHAPE, a=st.floats(0.05, 50), b=st.floats(0.01, 100))
def test_kl_is_never_negative(mean, shape, a, b):
    cost = weibull.kl_to_gamma(double(mean), double(shape), prior_shape=a, prior_rate=b).item()
    assert cost >= -1e-12 * (1 + b * mean)


@FEW
@given(mean=MEANS, rate=st.floats(0.01, 100))
def test_a_weibull_of_shape_one_is_an_exponential(mean, rate):
    cost = weibull.kl_to_gamma(double(mean), double(1), prior_rate=rate).item()
    expected = kl_divergence(Exponential(double(1 / mean)), Exponential(double(rate))).item()
    assert cost == pytest.approx(expected, rel=1e-9, abs=1e-9)
    matching = weibull.kl_to_gamma(double(1 / rate), double(1), prior_rate=rate).item()
    assert matching == pytest.approx(0, abs=1e-12)


def test_kl_is_differentiable_and_least_at_the_prior():
    mean, shape = double([0.01, 0.7, 3, 50]).requires_grad_(), double([0.4, 1, 3, 80]).requires_grad_()
    assert torch.autograd.gradcheck(
        lambda m, k: weibull.kl_to_gamma(m, k, prior_shape=1.5, prior_rate=0.7), (mean, shape)
    )
    at_prior = (double([0.5]).requires_grad_(), double([1.0]).requires_grad_())
    gradients = torch.autograd.grad(weibull.kl_to_gamma(*at_prior, prior_rate=2.0).sum(), at_prior)
    assert all(gradient.abs().item() < 1e-12 for gradient in gradients)


@FEW
@given(
    mean=st.floats(0, 1e6, width=32, allow_subnormal=False),
    shape=ANY_SHAPE,
    dtype=st.sampled_from([torch.float32, torch.bfloat16]),
)
def test_kl_and_its_gradients_are_finite_and_nothing_at_zero(mean, shape, dtype):
    means = torch.tensor([max(mean, 1e-30), 0.0], dtype=dtype, requires_grad=True)
    shapes = torch.full((2,), max(shape, 0.11), dtype=dtype, requires_grad=True)
    cost = weibull.kl_to_gamma(means, shapes)
    gradients = torch.autograd.grad(cost.sum(), (means, shapes))
    assert cost.isfinite().all()
    assert all(gradient.isfinite().all() for gradient in gradients)
    assert (cost[1], gradients[0][1], gradients[1][1]) == (0, 0, 0)

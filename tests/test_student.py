"""The tail of Student's t: against scipy in both tails, its limits, and its symmetries."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from bndl.student import two_sided_p

DEGREES = [1, 2, 3, 7, 19, 49, 199, 1999]


@pytest.mark.parametrize("df", DEGREES)
def test_agrees_with_scipy_from_the_middle_far_into_the_tails(df):
    t = np.concatenate([np.linspace(0, 12, 2001), np.logspace(-6, 8, 1001)])
    expected = 2 * stats.t.sf(t, df)
    told = expected > 1e-290  # below, the two round to subnormal numbers in their own ways
    assert (expected[told] < 1e-30).any() or df < 7
    found = two_sided_p(torch.from_numpy(t), df=df).numpy()
    np.testing.assert_allclose(found[told], expected[told], rtol=1e-8)
    assert (found[~told] <= 1e-289).all()


@settings(deadline=None, max_examples=60)
@given(t=st.floats(0, 1e8), df=st.integers(1, 3000), more=st.floats(1, 10))
def test_is_a_probability_even_in_t_and_falls_with_it(t, df, more):
    p, mirrored, further = two_sided_p(torch.tensor([t, -t, t * more], dtype=torch.float64), df=df).tolist()
    assert 0 <= further <= p + 1e-12
    assert p <= 1
    assert p == mirrored


@pytest.mark.parametrize("t", [1e-12, 1e-9, 1e-3, 1.0, 1e5, 1e12])
def test_one_degree_of_freedom_is_the_cauchy(t):
    """p = 1 - (2/pi) atan(t), and (2/pi) atan(1/t) where that cancels."""
    found = two_sided_p(torch.tensor(t, dtype=torch.float64), df=1).item()
    if t <= 1:
        assert 1 - found == pytest.approx(2 / math.pi * math.atan(t), rel=1e-9, abs=2e-16)
    assert found == pytest.approx(2 / math.pi * math.atan(1 / t), rel=1e-9)


@pytest.mark.parametrize("df", DEGREES)
def test_limits(df):
    found = two_sided_p(torch.tensor([math.inf, -math.inf, 0.0, -0.0, math.nan, 1e300]), df=df)
    assert found[:4].tolist() == [0, 0, 1, 1]
    assert found[4].isnan()
    assert found[5] == 0


def test_many_degrees_of_freedom_are_the_normal():
    t = torch.linspace(0, 6, 50, dtype=torch.float64)
    torch.testing.assert_close(two_sided_p(t, df=10**6), 2 * torch.special.ndtr(-t), rtol=1e-3, atol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64])
def test_answers_in_double_precision_with_the_dims_of_t(dtype):
    t = torch.tensor([[0, 2, -3]], dtype=dtype)
    found = two_sided_p(t, df=19)
    assert (found.dtype, found.size()) == (torch.float64, t.size())
    np.testing.assert_allclose(found, 2 * stats.t.sf([[0, 2, 3]], 19), rtol=1e-9)

"""Functions for graphs: what they give there is what torch gives elsewhere."""

import pytest
import torch

from bndl import weibull
from bndl.decide import flip_probability, t_test
from bndl.portable import erfc, log_gamma_1p, widened


@pytest.fixture
def exporting(monkeypatch):
    monkeypatch.setattr(torch.compiler, "is_exporting", lambda: True)


def test_erfc_is_exact_to_its_last_digits_in_the_tail_too(exporting):
    x = torch.linspace(0, 9, 20_001)
    wanted = torch.special.erfc(x.double())
    assert ((erfc(x).double() - wanted) / wanted).abs().max() < 1e-5
    assert ((erfc(x.double()) - wanted) / wanted).abs().max() < 2e-7
    assert float(erfc(torch.tensor(torch.inf))) == 0


def test_log_gamma(exporting):
    x = torch.linspace(0, 25, 20_001)
    wanted = torch.lgamma(1 + x.double())
    assert (log_gamma_1p(x.double()) - wanted).abs().max() < 3e-8
    assert ((log_gamma_1p(x) - wanted).abs() / wanted.abs().clamp_min(1)).max() < 5e-6


def test_the_variance_of_the_noise(monkeypatch):
    shape = torch.logspace(-1, 6, 5_001)
    wanted = weibull.cv2(shape.double())
    monkeypatch.setattr(torch.compiler, "is_exporting", lambda: True)
    found = weibull.cv2(shape)
    assert ((found - wanted) / wanted).abs().max() < 2e-4
    assert ((found - wanted) / wanted)[shape > 4].abs().max() < 2e-6  # there it needs no gamma function


def test_tests_in_float32(monkeypatch):
    mean, variance = torch.rand(2, 1000, generator=torch.Generator().manual_seed(0)) * torch.tensor([[5.0], [3.0]])
    mean[0] = 0
    p, flip = t_test(mean, variance), flip_probability(mean, variance)
    monkeypatch.setattr(torch.compiler, "is_exporting", lambda: True)
    assert widened(mean).dtype == t_test(mean, variance).dtype == torch.float32
    assert torch.allclose(t_test(mean, variance).double(), p, rtol=1e-4, atol=1e-6)
    assert torch.allclose(flip_probability(mean, variance).double(), flip, rtol=1e-4, atol=1e-30)


def test_elsewhere_they_are_torchs_own():
    x = torch.rand(10)
    assert torch.equal(erfc(x), torch.special.erfc(x))
    assert torch.equal(log_gamma_1p(x), torch.lgamma(1 + x))
    assert widened(x).dtype == torch.float64

"""Last-layer Laplace: the package's own covariance, the limits of its prior, and doubt where there were no data."""

import importlib
import sys
from dataclasses import replace
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from bndl.baselines.dense import Dense
from bndl.baselines.laplace import PRECISIONS, Laplace, Posterior, normal_points
from bndl.baselines.method import Fitted
from bndl.baselines.temperature import Temperature
from bndl.errors import BndlError, MissingExtraError
from bndl.features import FeatureSet

pytestmark = pytest.mark.usefixtures("laplace_torch")
C, K = 4, 6


def nll(fitted: Fitted, data: FeatureSet) -> float:
    return float(-fitted.predict(data.features).probs.gather(1, data.labels[:, None]).log().mean())


def normal(*dims: int, seed: int = 0) -> Tensor:
    return torch.randn(dims, generator=torch.Generator().manual_seed(seed))


def some(num: int = 300, *, bias: bool = True, seed: int = 0) -> tuple[nn.Linear, FeatureSet]:
    head = nn.Linear(K, C, bias=bias)
    with torch.no_grad():
        for parameter in head.parameters():
            parameter.copy_(normal(*parameter.size(), seed=7))
    data = FeatureSet(normal(num, K, seed=seed), torch.arange(num) % C)
    return head, data


# ---------------------------------------------------------------------------------------------------------- covariance


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize(("precision", "temperature"), [(1.0, 1.0), (0.03, 1.0), (5.0, 20.0)])
def test_the_covariance_is_that_of_the_packages_glm_predictive(
    laplace_torch: ModuleType, bias: bool, precision: float, temperature: float
):
    head, data = some(bias=bias)
    theirs = laplace_torch.KronLaplace(head, "classification", prior_precision=precision, temperature=temperature)
    theirs.fit(torch.utils.data.DataLoader(torch.utils.data.TensorDataset(data.features, data.labels), batch_size=300))
    features = normal(5, K, seed=3)
    mean, covariance = theirs._glm_predictive_distribution(features)
    ours = replace(Posterior.of(head, data), precision=precision, temperature=temperature)
    torch.testing.assert_close(ours.covariance(features), covariance.detach(), rtol=1e-4, atol=1e-6)
    noise = normal_points(4096, 2 * C, seed=0).float().view(-1, 2, C).transpose(0, 1)
    draws = ours.draws(features, noise)
    scale = float(covariance.detach().diagonal(dim1=1, dim2=2).max())
    torch.testing.assert_close(draws.mean(0), mean.detach(), rtol=0, atol=0.05 * scale**0.5)
    sampled = torch.stack([draws[:, row].t().cov() for row in range(len(features))])
    torch.testing.assert_close(sampled, covariance.detach(), rtol=0, atol=0.1 * scale)


def test_twice_the_data_halve_the_covariance_under_a_flat_prior():
    head, data = some()
    twice = FeatureSet(data.features.repeat(2, 1), data.labels.repeat(2))
    once, more = (
        replace(Posterior.of(head, part), precision=0.01).covariance(data.features[:5]) for part in (data, twice)
    )
    # the constant that softmax ignores has no curvature: compare differences of logits
    gap = torch.eye(C)[1:] - torch.eye(C)[0]
    torch.testing.assert_close(gap @ more @ gap.t(), gap @ once @ gap.t() / 2, rtol=0.02, atol=1e-3)


def test_a_direction_without_data_has_more_variance():
    head, data = some()
    flat = FeatureSet(data.features * torch.tensor([1.0] * (K - 1) + [0.01]), data.labels)
    posterior = replace(Posterior.of(head, flat), precision=0.1)
    seen, unseen = torch.eye(K)[:1], torch.eye(K)[-1:]
    assert (posterior.variances(unseen) > 3 * posterior.variances(seen)).sum() >= C - 1


# --------------------------------------------------------------------------------------------------------- predictions


def test_an_infinite_prior_precision_gives_the_dense_predictions(digit_parts: Any):
    posterior = replace(Posterior.of(digit_parts.head, digit_parts.train), precision=1e14)
    prediction = Laplace(64).predicting(posterior).predict(digit_parts.test.features)
    dense = Dense().fit(digit_parts.head, digit_parts.train, digit_parts.val).predict(digit_parts.test.features)
    torch.testing.assert_close(prediction.probs, dense.probs, rtol=0, atol=1e-4)
    assert torch.equal(prediction.labels, dense.labels)
    assert prediction.epistemic.max() < 1e-6


def test_far_from_the_data_doubt_stays_where_a_softmax_has_none(digit_parts: Any):
    """Kristiadi et al. 2020: along a ray the spread of the logits grows as fast as the logits."""
    posterior = replace(Posterior.of(digit_parts.head, digit_parts.train), precision=1.0)
    fitted, features = Laplace().predicting(posterior), digit_parts.test.features[:100]
    near, far, farther = (fitted.predict(scale * features) for scale in (1, 100, 1000))
    assert (far.epistemic > 100 * near.epistemic).all()
    assert (digit_parts.head(100 * features).softmax(dim=1).max(dim=1).values > 0.999).all()
    torch.testing.assert_close(farther.flip_probability, far.flip_probability, rtol=0, atol=0.05)
    assert farther.flip_probability.mean() > 0.01


def test_the_fit_is_as_good_as_temperature_scaling_and_leaves_the_head_alone(digit_parts: Any):
    before, state = digit_parts.head.weight.clone(), torch.get_rng_state()
    parts = (digit_parts.head, digit_parts.train, digit_parts.val)
    fitted = Laplace().fit(*parts, seed=3)
    dense, scaled = (nll(method.fit(*parts), digit_parts.test) for method in (Dense(), Temperature()))
    assert nll(fitted, digit_parts.test) < scaled + 0.02 < dense
    assert torch.equal(digit_parts.head.weight, before)
    assert torch.equal(torch.get_rng_state(), state)
    assert "prior precision" in fitted.note
    assert fitted.size.weights == 640
    features = digit_parts.test.features
    again, whole = Laplace().fit(*parts, seed=3).predict(features), fitted.predict(features)
    assert torch.equal(again.probs, whole.probs)
    torch.testing.assert_close(fitted.predict(features[300:317]).probs, whole.probs[300:317], rtol=1e-4, atol=1e-6)


def test_half_precision_features_and_a_frozen_half_precision_head_will_do(digit_parts: Any):
    half = FeatureSet(digit_parts.train.features.half(), digit_parts.train.labels)
    posterior = Posterior.of(nn.Linear(64, 10).half().requires_grad_(False), half)
    prediction = Laplace(16).predicting(posterior).predict(half.features[:3])
    assert torch.isfinite(prediction.probs).all()


# --------------------------------------------------------------------------------------------------------------- words


def test_without_the_package_the_sentence_names_the_extra(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "laplace", None)
    with pytest.raises(MissingExtraError, match=r'last-layer Laplace needs .* pip install "bndl\[baselines\]"'):
        Posterior.of(*some())


def test_a_torchvision_of_another_build_is_told_in_one_sentence(monkeypatch: pytest.MonkeyPatch):
    def broken(name: str) -> ModuleType:
        raise RuntimeError("operator torchvision::nms does not exist\nmore lines")

    monkeypatch.setattr(importlib, "import_module", broken)
    with pytest.raises(
        BndlError, match=r"\(operator torchvision::nms does not exist\): install the torchvision"
    ) as told:
        Posterior.of(*some())
    assert "\n" not in str(told.value)


def test_noise_is_standard_normal_seeded_and_finite():
    points = normal_points(1024, 8, seed=1)
    torch.testing.assert_close(points.mean(0), torch.zeros(8).double(), rtol=0, atol=0.02)
    torch.testing.assert_close(points.t().cov(), torch.eye(8).double(), rtol=0, atol=0.06)
    assert torch.equal(points, normal_points(1024, 8, seed=1))
    assert not torch.equal(points, normal_points(1024, 8, seed=2))
    assert torch.isfinite(normal_points(4096, 200, seed=0)).all()


# -------------------------------------------------------------------------------------------------------------- real


@pytest.mark.reference
@pytest.mark.slow
def test_on_cifar_it_is_near_temperature_scaling(cifar_parts: Any):
    parts = (cifar_parts.head, cifar_parts.train, cifar_parts.val)
    scaled = nll(Temperature().fit(*parts), cifar_parts.test)
    assert nll(Laplace().fit(*parts), cifar_parts.test) < scaled + 0.01
    # around the head as it is, without a scale of the logits, most of the way from the dense head
    posterior = replace(Posterior.of(cifar_parts.head, cifar_parts.train), temperature=10.0)
    plain = min(nll(Laplace(64).predicting(replace(posterior, precision=one)), cifar_parts.test) for one in PRECISIONS)
    dense = nll(Dense().fit(*parts), cifar_parts.test)
    assert plain < scaled + 0.5 * (dense - scaled)

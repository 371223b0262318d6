"""The elastic net: each point of the path solves its problem, from no weight to nearly all, and it predicts."""

import sys
import warnings
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bndl.baselines import elastic_net
from bndl.baselines.dense import Dense
from bndl.baselines.elastic_net import ALPHA, ElasticNet, path
from bndl.baselines.method import Fitted
from bndl.baselines.temperature import Temperature
from bndl.errors import InputError, MissingExtraError
from bndl.features import FeatureSet

pytest.importorskip("glm_saga")
N, K, C = 240, 8, 3


def nll(fitted: Fitted, data: FeatureSet) -> float:
    return float(-fitted.predict(data.features).probs.gather(1, data.labels[:, None]).log().mean())


@pytest.fixture(scope="module")
def planted() -> FeatureSet:
    """Labels that three of eight features decide, of unequal scale and place; classes are not equally frequent."""
    generator = torch.Generator().manual_seed(0)
    clean = torch.randn(N, K, generator=generator)
    logits = 2 * clean[:, :3] + torch.tensor([0.0, 0.5, 1.0])
    labels = torch.multinomial(logits.softmax(1), 1, generator=generator)[:, 0]
    return FeatureSet(3 + clean * torch.logspace(-1, 1, K), labels)


@pytest.fixture(scope="module")
def solved(planted: FeatureSet) -> list[tuple[float, nn.Linear]]:
    """A path that is followed for as long as it takes."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(elastic_net, "_PATIENCE", 1000)
        return list(elastic_net._follow(planted, C, num_points=6, epochs=250, seed=0))


def standard(planted: FeatureSet, head: nn.Linear) -> tuple[Tensor, Tensor, Tensor]:
    """Standardised features, and the weights (C, K) and bias that they have in the problem."""
    mean, std = planted.features.double().mean(0), planted.features.double().std(0)
    weight = head.weight.detach().double()
    return (planted.features - mean) / std, weight * std, head.bias.detach().double() + weight @ mean


def test_each_point_meets_the_conditions_of_a_minimum(planted: FeatureSet, solved: list[tuple[float, nn.Linear]]):
    """KKT: the slope is -lam (alpha sign(w) + (1 - alpha) w) where w is not zero, and at most lam alpha where it is."""
    for lam, head in solved:
        features, weight, bias = standard(planted, head)
        wrong = (features @ weight.t() + bias).softmax(1) - F.one_hot(planted.labels, C)
        slope, active = wrong.t() @ features / N, weight.abs() > 1e-9
        expected = -lam * (ALPHA * weight.sign() + (1 - ALPHA) * weight)
        slack = 0.02 * lam + 1e-4
        assert ((slope - expected)[active].abs() < slack).all()
        assert (slope[~active].abs() < lam * ALPHA + slack).all()
        assert float(wrong.mean(0).abs().max()) < 1e-3


def test_weights_come_in_along_the_path_from_none(solved: list[tuple[float, nn.Linear]]):
    penalties = [lam for lam, _ in solved]
    counts = [int((head.weight.abs() > 1e-5).sum()) for _, head in solved]
    assert penalties == sorted(penalties, reverse=True)
    assert penalties[0] / penalties[-1] == pytest.approx(1000, rel=1e-3)
    assert counts[0] == 0
    assert counts == sorted(counts)
    assert counts[-1] > 15


def test_the_first_weights_are_those_of_the_features_that_decide(solved: list[tuple[float, nn.Linear]]):
    assert (solved[1][1].weight.abs() > 1e-5).any(dim=0).tolist() == [True] * 3 + [False] * (K - 3)


def test_with_no_weight_the_bias_knows_how_frequent_classes_are(planted: FeatureSet, solved: Any):
    probs = solved[0][1](planted.features[:1]).softmax(1)[0]
    torch.testing.assert_close(probs, torch.bincount(planted.labels) / N, rtol=0, atol=2e-3)


def test_the_least_penalty_is_nearly_no_penalty(planted: FeatureSet, solved: list[tuple[float, nn.Linear]]):
    free = nn.Linear(K, C)
    nn.init.zeros_(free.weight)
    features = standard(planted, free)[0].float()
    optimizer = torch.optim.LBFGS(free.parameters(), max_iter=500, line_search_fn="strong_wolfe")

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = F.cross_entropy(free(features), planted.labels)
        loss.backward()
        return loss

    optimizer.step(closure)
    unpenalised = float(closure().detach())
    last = float(F.cross_entropy(solved[-1][1](planted.features), planted.labels).detach())
    assert unpenalised <= last < unpenalised + 0.01


# ------------------------------------------------------------------------------------------------------------- the method


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(elastic_net, "NUM_POINTS", 8)
    monkeypatch.setattr(elastic_net, "_EPOCHS", 8)


def test_the_fit_is_silent_seeded_and_sparse(digit_parts: Any, capfd: pytest.CaptureFixture[str], quick: None):
    parts, state = (digit_parts.head, digit_parts.train, digit_parts.val), torch.get_rng_state()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fitted = ElasticNet().fit(*parts, seed=1)
    assert capfd.readouterr() == ("", "")
    assert torch.equal(torch.get_rng_state(), state)
    features = digit_parts.test.features
    prediction = fitted.predict(features)
    assert torch.equal(ElasticNet().fit(*parts, seed=1).predict(features).probs, prediction.probs)
    assert prediction.epistemic.max() == 0
    assert fitted.size.weights == 640
    assert 0 < fitted.size.active < 640
    assert f"nnz {fitted.size.nnz:.3f}" in fitted.note
    dense, scaled = (nll(method.fit(*parts), digit_parts.test) for method in (Dense(), Temperature()))
    assert nll(fitted, digit_parts.test) < min(dense, scaled + 0.1)


def test_the_path_ends_near_the_accuracy_of_the_dense_head(digit_parts: Any):
    steps = path(digit_parts.train, digit_parts.val, num_points=6, epochs=15)
    shares = [step.nnz for step in steps]
    assert shares[0] == 0
    assert shares == sorted(shares)
    assert len({step.source for step in steps}) == 1
    test = digit_parts.test
    right = [float((step.head(test.features).argmax(1) == test.labels).double().mean()) for step in steps]
    dense = float((digit_parts.head(test.features).argmax(1) == test.labels).double().mean())
    assert right[-1] > dense - 0.02
    assert right[0] < 0.2


def test_features_that_never_change_get_no_weight(planted: FeatureSet):
    features = torch.cat([planted.features, torch.full((N, 1), 7.0)], dim=1).half()
    steps = path(FeatureSet(features, planted.labels), FeatureSet(features, planted.labels), num_points=2, epochs=2)
    assert all(torch.isfinite(step.head.weight).all() and (step.head.weight[:, -1] == 0).all() for step in steps)


def test_rows_are_left_out_where_they_would_cost_too_much(planted: FeatureSet, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(elastic_net, "_WORK", 50 * K * C)
    assert len(elastic_net._affordable(planted, C, seed=0)) == 50
    assert [elastic_net._epochs(count) for count in (4000, 50_000, 10**6)] == [15, 3, 1]


# --------------------------------------------------------------------------------------------------------------- words


def test_a_path_of_one_point_is_refused(planted: FeatureSet):
    with pytest.raises(InputError, match="at least two points, got num_points=1"):
        path(planted, planted, num_points=1)


def test_without_the_package_the_sentence_names_the_extra(planted: FeatureSet, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "glm_saga", None)
    monkeypatch.setitem(sys.modules, "glm_saga.elasticnet", None)
    with pytest.raises(MissingExtraError, match=r'the elastic net needs .* pip install "bndl\[baselines\]"'):
        path(planted, planted)


# ---------------------------------------------------------------------------------------------------------------- real


@pytest.mark.reference
@pytest.mark.slow
def test_on_cifar_it_is_near_temperature_scaling_with_fewer_weights(cifar_parts: Any, quick: None):
    parts = (cifar_parts.head, cifar_parts.train, cifar_parts.val)
    fitted = ElasticNet().fit(*parts)
    assert nll(fitted, cifar_parts.test) < nll(Temperature().fit(*parts), cifar_parts.test) + 0.03
    assert fitted.size.nnz < 1

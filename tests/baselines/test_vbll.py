"""VBLL: the package's own bound and predictive distribution, faster; variances that shrink with data; and no harm."""

import sys
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bndl.baselines import tuning, vbll
from bndl.baselines.dense import Dense
from bndl.baselines.method import Fitted
from bndl.baselines.temperature import Temperature
from bndl.baselines.vbll import VBLL, VariationalHead
from bndl.errors import HeadError, MissingExtraError
from bndl.features import FeatureSet

package = pytest.importorskip("vbll")
C, K = 4, 6


def nll(fitted: Fitted, data: FeatureSet) -> float:
    return float(-fitted.predict(data.features).probs.gather(1, data.labels[:, None]).log().mean())


def normal(*dims: int, seed: int = 0) -> Tensor:
    return torch.randn(dims, generator=torch.Generator().manual_seed(seed))


def linear(*, bias: bool = True, seed: int = 0) -> nn.Linear:
    head = nn.Linear(K, C, bias=bias)
    with torch.no_grad():
        for number, parameter in enumerate(head.parameters()):
            parameter.copy_(normal(*parameter.size(), seed=10 * seed + number))
    return head


def variational(head: nn.Linear, *, num_data: int = 100, wishart_scale: float = 1.0) -> VariationalHead:
    with torch.random.fork_rng([]):
        torch.manual_seed(0)
        return VariationalHead(head, prior_scale=1.0, wishart_scale=wishart_scale, num_data=num_data)


# ----------------------------------------------------------------------------------------------------- the package's


@pytest.mark.parametrize("bias", [True, False])
def test_loss_and_logits_are_the_packages(bias: bool):
    head = linear(bias=bias)
    ours = variational(head)
    theirs = package.DiscClassification(K + bias, C, regularization_weight=1 / 100, parameterization="diagonal")
    theirs.load_state_dict(ours.layer.state_dict())
    features, labels = normal(30, K, seed=1), torch.arange(30) % C
    longer = F.pad(features, (0, 1), value=1.0) if bias else features
    torch.testing.assert_close(ours(features)(labels), theirs(longer).train_loss_fn(labels))
    mean, spread = ours.moments(features)
    expected = theirs.logit_predictive(longer)
    torch.testing.assert_close(mean, expected.mean)
    torch.testing.assert_close(spread, expected.scale)
    torch.testing.assert_close(mean, head(features))


def test_predictions_are_the_average_softmax_of_the_packages_draws():
    module, features = variational(linear(), wishart_scale=100.0), normal(20, K, seed=1)
    probs = VBLL(num_samples=4096).predictor(module).predict(features).probs
    torch.manual_seed(0)
    theirs = module.layer.predictive(F.pad(features, (0, 1), value=1.0), n_samples=20_000)
    torch.testing.assert_close(probs, theirs.detach().double(), rtol=0, atol=0.015)


@pytest.mark.parametrize("wishart_scale", [0.1, 1.0, 100.0])
def test_the_noise_starts_where_the_bound_leaves_it(wishart_scale: float):
    head = linear()
    for parameter in head.parameters():
        parameter.data.zero_()  # each class one time in C
    module, features = variational(head, num_data=500, wishart_scale=wishart_scale), normal(500, K)

    def slope() -> float:
        module.zero_grad()
        module(features)(torch.arange(500) % C).backward()
        return float(module.layer.noise_logdiag.grad.abs().max())

    settled = slope()
    with torch.no_grad():
        module.layer.noise_logdiag += 0.5
    assert settled < 0.05 * slope()


# ------------------------------------------------------------------------------------------------------------ learning


def test_more_data_leave_less_variance():
    """The posterior's precision of a weight grows as N E[p h^2]: eight times the data, about an eighth of the variance."""
    head, features = linear(), normal(200, K, seed=5)
    labels = torch.multinomial(head(features).detach().softmax(1), 1, generator=torch.Generator().manual_seed(0))[:, 0]
    variances = []
    for times in (1, 8):
        module = variational(head, num_data=200 * times)  # the mean loss over copies is that over the originals
        optimizer = torch.optim.Adam(module.parameters(), lr=0.05)
        for _ in range(400):
            optimizer.zero_grad()
            module(features)(labels).backward()
            optimizer.step()
        variances.append(float((2 * module.layer.W_logdiag.detach()).exp().mean()))
    assert 0.08 < variances[1] / variances[0] < 0.25


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vbll, "SCALES", {"train": ((1.0, 1.0),), "val": ((1.0, 1.0), (10.0, 1.0))})
    monkeypatch.setattr(vbll, "EPOCHS", {"train": 2, "val": 8})
    monkeypatch.setattr(tuning, "LEARNING_RATES", (1e-3,))


@pytest.mark.usefixtures("quick")
def test_the_fit_is_as_good_as_temperature_scaling_and_leaves_the_head_alone(digit_parts: Any):
    before, state = digit_parts.head.weight.clone(), torch.get_rng_state()
    parts = (digit_parts.head, digit_parts.train, digit_parts.val)
    fitted = VBLL().fit(*parts, seed=3)
    dense, scaled = (nll(method.fit(*parts), digit_parts.test) for method in (Dense(), Temperature()))
    assert nll(fitted, digit_parts.test) < scaled + 0.02 < dense
    assert torch.equal(digit_parts.head.weight, before)
    assert torch.equal(torch.get_rng_state(), state)
    assert "prior scale" in fitted.note
    assert (fitted.size.weights, fitted.size.parameters) == (640, 2 * 650 + 10)
    features = digit_parts.test.features
    again, whole = VBLL().fit(*parts, seed=3).predict(features), fitted.predict(features)
    assert torch.equal(again.probs, whole.probs)
    assert whole.epistemic.min() > 0
    torch.testing.assert_close(fitted.predict(features[300:317]).probs, whole.probs[300:317], rtol=1e-4, atol=1e-6)


@pytest.mark.usefixtures("quick")
def test_each_source_has_its_own_weight_of_the_penalty(digit_parts: Any, monkeypatch: pytest.MonkeyPatch):
    seen = []
    tune = tuning.tune

    def listen(method: VBLL, head: nn.Linear, task: tuning.Task, **settings: Any) -> Any:
        seen.append(([name for name, _ in task.sources()], method.num_data))
        return tune(method, head, task, **settings)

    monkeypatch.setattr(vbll, "tune", listen)
    VBLL().fit(digit_parts.head, digit_parts.train, digit_parts.val)
    assert seen == [(["train"], 400), (["val"], 480), (["val"], 480)]


# --------------------------------------------------------------------------------------------------------------- words


def test_a_whole_network_is_refused():
    with pytest.raises(HeadError, match="give it a linear head, not a Sequential"):
        VBLL().dress(nn.Sequential(nn.Linear(3, 2)))


def test_without_the_package_the_sentence_names_the_extra(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "vbll", None)
    vbll._layer_class.cache_clear()
    monkeypatch.setitem(sys.modules, "vbll.utils.distributions", None)
    with pytest.raises(MissingExtraError, match=r'VBLL needs .* pip install "bndl\[baselines\]"'):
        variational(linear())


# ---------------------------------------------------------------------------------------------------------------- real


@pytest.mark.reference
@pytest.mark.slow
@pytest.mark.usefixtures("quick")
def test_on_cifar_it_is_near_temperature_scaling(cifar_parts: Any):
    parts = (cifar_parts.head, cifar_parts.train, cifar_parts.val)
    scaled = nll(Temperature().fit(*parts), cifar_parts.test)
    assert nll(VBLL().fit(*parts), cifar_parts.test) < scaled + 0.01

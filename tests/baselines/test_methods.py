"""Each method has the property that its paper, or its mathematics, promises; on the digits inside scikit-learn."""

import copy
from dataclasses import fields
from typing import Protocol

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributions import Dirichlet, kl_divergence

import bndl
from bndl.backbones.cifar_resnet import ResNet18
from bndl.baselines import METHODS, Method, get_method
from bndl.baselines.belief_matching import BeliefMatching, dirichlet_kl
from bndl.baselines.bndl import BNDL
from bndl.baselines.dense import Dense
from bndl.baselines.ensemble import Ensemble
from bndl.baselines.evidential import Evidential
from bndl.baselines.mc_dropout import MCDropout
from bndl.baselines.method import Size, fresh
from bndl.baselines.nmf import NMF
from bndl.baselines.temperature import Temperature
from bndl.baselines.tuning import Task, tune
from bndl.convert import find_layer
from bndl.errors import InputError
from bndl.features import FeatureSet
from bndl.prediction import Prediction, cat

C = 10


class World(Protocol):
    """Digits and a head that is too sure, see conftest."""

    head: nn.Linear
    train: FeatureSet
    val: FeatureSet
    test: FeatureSet


@pytest.fixture(scope="module")
def world(digit_parts: World) -> World:
    return digit_parts


def close(first: Tensor, second: Tensor, *, atol: float = 1e-6) -> bool:
    return torch.allclose(first.double(), second.double(), atol=atol)


def nll(prediction: Prediction, data: FeatureSet) -> float:
    return float(F.nll_loss(prediction.probs.log(), data.labels))


def accuracy(prediction: Prediction, data: FeatureSet) -> float:
    return float((prediction.labels == data.labels).float().mean())


def dense(world: World) -> Prediction:
    return Dense().predictor(world.head).predict(world.test.features)


# ------------------------------------------------------------------------------------------------------------- registry


@pytest.mark.parametrize("name", METHODS)
def test_every_method_of_the_registry_is_there(name: str):
    method = get_method(name)
    assert isinstance(method, Method)
    assert method.name == name
    assert method.about
    assert method.needs in ("", "baselines")  # the extra that the error of a missing package names


@pytest.mark.parametrize("name", [name for name in METHODS if not get_method(name).needs and name != "card"])
def test_every_method_predicts_no_worse_than_the_head_it_was_given(name: str, world: World):
    fitted = get_method(name).fit(world.head, world.train, world.val, seed=0)
    prediction = fitted.predict(world.test.features)
    assert close(prediction.probs.sum(1), torch.ones(len(world.test)), atol=1e-5)
    assert accuracy(prediction, world.test) > accuracy(dense(world), world.test) - 0.03
    assert nll(prediction, world.test) <= nll(dense(world), world.test)
    assert 0 < fitted.size.nnz <= 1
    assert fitted.size.parameters >= fitted.size.weights > 0


def test_an_unknown_method_is_told_its_neighbour():
    with pytest.raises(InputError, match=r"no method 'laplacian'; did you mean 'laplace'\?"):
        get_method("laplacian")
    with pytest.raises(InputError, match=r"choose from dense, temperature, .*bndl"):
        get_method("zzz")


def test_the_size_of_a_head_counts_every_number_once(world: World):
    head = copy.deepcopy(world.head)
    head.weight[0, :5] = 0
    assert Size.of(head, extra=1) == Size(parameters=64 * C + C + 1, active=64 * C - 5, weights=64 * C)
    assert Size.of(head).nnz == pytest.approx(1 - 5 / (64 * C))


# ---------------------------------------------------------------------------------------------------------- temperature


def test_the_temperature_has_the_least_likelihood_loss(world: World):
    fitted = Temperature().fit(world.head, world.train, world.val)
    logits = fitted.predict(world.val.features).logits.double()
    log_scale = torch.zeros((), dtype=torch.float64, requires_grad=True)
    F.cross_entropy(logits * log_scale.exp(), world.val.labels).backward()
    assert abs(float(log_scale.grad)) < 1e-5


def test_the_temperature_changes_confidence_and_no_decision(world: World):
    fitted = Temperature().fit(world.head, world.train, world.val)
    prediction = fitted.predict(world.test.features)
    assert torch.equal(prediction.labels, dense(world).labels)
    assert nll(prediction, world.test) < 0.8 * nll(dense(world), world.test)
    assert prediction.confidence.mean() < dense(world).confidence.mean()
    assert fitted.size == Size(parameters=64 * C + C + 1, active=64 * C, weights=64 * C)


# ----------------------------------------------------------------------------------------------------------- MC dropout


def test_dropout_at_rate_zero_is_dense(world: World):
    method = MCDropout(rate=0.0)
    prediction = method.predictor(method.dress(fresh(world.head))).predict(world.test.features)
    assert close(prediction.probs, dense(world).probs, atol=1e-6)
    assert prediction.certain.all()
    assert not prediction.epistemic.any()


def test_dropout_on_features_averages_the_softmax_over_masks(world: World):
    method = MCDropout(rate=0.3, num_samples=4000)
    prediction = method.predictor(method.dress(fresh(world.head))).predict(world.test.features[:5])
    torch.manual_seed(1)
    masked = F.dropout(world.test.features[:5].expand(4000, -1, -1), 0.3)
    assert close(prediction.probs, world.head(masked).softmax(2).mean(0), atol=0.03)


def test_dropout_on_features_does_not_see_the_rest_of_the_batch(world: World):
    method = MCDropout(rate=0.3)
    fitted = method.predictor(method.dress(fresh(world.head)), seed=1)
    together = fitted.predict(world.test.features[:40])
    apart = cat([fitted.predict(row) for row in world.test.features[:40].split(1)])
    for field in ("labels", "probs", "p_value", "certain", "epistemic"):
        assert torch.allclose(getattr(together, field).double(), getattr(apart, field).double(), atol=1e-4), field


def test_dropout_stands_between_the_stages_and_before_the_head():
    torch.manual_seed(0)
    model = ResNet18(10, width=4).eval()
    images = torch.randn(2, 3, 32, 32)
    before = model(images)
    dressed = MCDropout(rate=0.2).dress(model)
    found = [path for path, module in dressed.named_modules() if isinstance(module, nn.Dropout)]
    assert found == ["stages.0.1", "stages.1.1", "stages.2.1", "fc.dropout"]
    assert torch.allclose(dressed.eval()(images), before)
    assert not torch.allclose(dressed.train()(images), before)


def test_dropout_of_a_whole_network_passes_it_once_a_sample():
    torch.manual_seed(0)
    method = MCDropout(rate=0.2, num_samples=7)
    model, images = method.dress(ResNet18(10, width=4)), torch.randn(3, 3, 32, 32)
    passes, statistics = [], model.bn1.running_mean.clone()
    model.conv1.register_forward_hook(lambda *_: passes.append(1))
    fitted = method.predictor(model, seed=0)
    first, second = fitted.predict(images), fitted.predict(images)
    assert len(passes) == 2 * 7
    assert torch.equal(first.probs, second.probs)
    assert (first.epistemic > 0).all()
    assert torch.equal(model.bn1.running_mean, statistics)  # only dropout is as in training
    assert all(module.training for module in model.modules())  # as it was before
    assert fitted.note == "rate 0.2"


# ------------------------------------------------------------------------------------------------------ Belief Matching


def test_the_divergence_is_that_of_dirichlets():
    alpha = torch.rand(50, 7, generator=torch.Generator().manual_seed(0), dtype=torch.float64) * 20 + 0.05
    assert torch.allclose(dirichlet_kl(alpha), kl_divergence(Dirichlet(alpha), Dirichlet(torch.ones_like(alpha))))
    assert torch.allclose(dirichlet_kl(torch.ones(1, 7)), torch.zeros(1), atol=1e-5)


@pytest.mark.parametrize(("num_classes", "weight"), [(3, 0.01), (60, 0.003)])
def test_belief_matching_learns_the_bayesian_posterior_of_the_labels_it_counted(num_classes: int, weight: float):
    """One input with N labels: at a KL weight of 1/N the ELBO is largest at Dir(1 + counts), the conjugate posterior."""
    labels = torch.tensor(70 * [0] + 20 * [1] + 10 * [2])
    counts = torch.bincount(labels, minlength=num_classes) / (len(labels) * weight)
    logits = (1 + counts).log().requires_grad_()

    def loss(logits: Tensor) -> Tensor:
        return BeliefMatching().criterion(logits.expand(len(labels), -1), labels, 1.0)

    (gradient,) = torch.autograd.grad(loss(logits), logits)
    assert gradient.abs().max() < 2e-4
    generator = torch.Generator().manual_seed(0)
    for _ in range(10):
        elsewhere = logits.detach() + 0.3 * torch.randn(num_classes, generator=generator)
        assert loss(elsewhere) > loss(logits)


def test_belief_matching_predicts_the_mean_of_its_dirichlet(world: World):
    head = copy.deepcopy(world.head)
    for parameter in head.parameters():
        parameter *= 0.05  # concentrations beyond exp(15) are held there
    prediction, plain = (method.predictor(head).predict(world.test.features) for method in (BeliefMatching(), Dense()))
    assert close(prediction.probs, plain.probs, atol=1e-5)
    assert torch.equal(prediction.labels, plain.labels)
    assert (prediction.epistemic > 0).all()


# ----------------------------------------------------------------------------------------------------------- evidential


def test_without_evidence_all_classes_are_equal():
    head = nn.Linear(4, C).requires_grad_(False)
    head.weight.zero_()
    head.bias.fill_(-100.0)
    prediction = Evidential().predictor(head).predict(torch.ones(2, 4))
    assert close(prediction.probs, torch.full((2, C), 1 / C))
    assert not prediction.certain.any()


def test_the_evidential_loss_is_the_expected_squared_error():
    generator = torch.Generator().manual_seed(0)
    logits, labels = torch.randn(6, 4, generator=generator), torch.tensor([0, 1, 2, 3, 0, 1])
    torch.manual_seed(0)
    sampled = Dirichlet(1 + logits.exp()).sample((50_000,))  # (S, B, C)
    expected = (sampled - F.one_hot(labels, 4)).square().sum(dim=2).mean()
    assert float(Evidential().criterion(logits, labels, 0.0)) == pytest.approx(float(expected), rel=0.01)


def test_the_divergence_costs_evidence_of_wrong_classes_only_and_comes_in_slowly():
    logits = torch.randn(6, 4, generator=torch.Generator().manual_seed(0)).requires_grad_()
    labels = torch.tensor([0, 1, 2, 3, 0, 1])

    def cost(progress: float) -> Tensor:
        method = Evidential(kl_weight=1.0)
        return method.criterion(logits, labels, progress) - method.criterion(logits, labels, 0.0)

    full = cost(1.0)
    (gradient,) = torch.autograd.grad(full, logits)
    right = F.one_hot(labels, 4).bool()
    assert gradient[right].abs().max() < 1e-6
    assert (gradient.sum(dim=1) > 0).all()  # less of all wrong evidence costs less
    assert torch.allclose(cost(0.25), full / 2, rtol=1e-4)
    assert torch.allclose(cost(0.5), full, rtol=1e-4)


def test_more_weight_of_the_divergence_leaves_less_evidence_where_labels_contradict():
    labels, left = torch.tensor(7 * [0] + 3 * [1]), []
    for weight in (0.0, 0.01, 0.1, 1.0):
        logits = torch.full((3,), 2.0, requires_grad=True)
        optimizer = torch.optim.Adam([logits], lr=0.05)
        for _ in range(200):
            optimizer.zero_grad()
            Evidential(weight).criterion(logits.expand(10, -1), labels, 1.0).backward()
            optimizer.step()
        left.append(float(logits.exp().sum().detach()))
    assert left == sorted(left, reverse=True)
    assert left[-1] < 0.1 * left[0]


# ------------------------------------------------------------------------------------------------------------- ensemble


def shaken(head: nn.Linear, seed: int) -> nn.Linear:
    other = copy.deepcopy(head)
    other.weight += torch.randn(other.weight.size(), generator=torch.Generator().manual_seed(seed))
    return other


def test_an_ensemble_is_the_average_of_its_members(world: World):
    members = [shaken(world.head, seed) for seed in range(3)]
    fitted = Ensemble().of(members)
    prediction = fitted.predict(world.test.features)
    average = torch.stack([member(world.test.features).softmax(1) for member in members]).mean(0)
    assert close(prediction.probs, average, atol=1e-6)
    assert (prediction.epistemic > 0).all()
    assert not prediction.aleatoric.any()
    assert fitted.size == Size(parameters=3 * (64 * C + C), active=3 * 64 * C, weights=3 * 64 * C)


def test_members_that_agree_are_one_head(world: World):
    prediction = Ensemble().of([world.head] * 5).predict(world.test.features)
    assert close(prediction.probs, dense(world).probs, atol=1e-6)
    assert not prediction.epistemic.any()


def test_an_ensemble_is_more_doubtful_where_its_members_are_wrong(world: World):
    fitted = Ensemble(num_members=3).fit(world.head, world.train, world.val, seed=0)
    prediction = fitted.predict(world.test.features)
    right = prediction.labels == world.test.labels
    assert prediction.flip_probability[~right].mean() > 2 * prediction.flip_probability[right].mean()


# ------------------------------------------------------------------------------------------------------------------ NMF


def test_nmf_starts_as_the_dense_head(world: World):
    method = NMF()
    prediction = method.predictor(method.dress(fresh(world.head))).predict(world.test.features)
    assert close(prediction.probs, dense(world).probs, atol=1e-4)
    assert torch.equal(prediction.labels, dense(world).labels)


def test_nmf_starts_as_the_dense_head_on_features_of_any_sign(world: World):
    centre = world.val.features.mean(dim=0)
    parts = [FeatureSet(data.features - centre, data.labels) for data in (world.train, world.val)]
    head = copy.deepcopy(world.head)
    head.bias += head.weight @ centre
    first, *_ = NMF().tries(head, Task.of(*parts, seed=0))
    prediction = NMF().predictor(first.module).predict(world.test.features - centre)
    assert torch.equal(prediction.labels, dense(world).labels)
    assert close(prediction.probs, dense(world).probs, atol=1e-3)


def test_nmf_is_the_decision_layer_without_noise(world: World):
    method = NMF()
    logits = method.predictor(method.dress(fresh(world.head))).predict(world.test.features).logits
    apart = []
    for shape in (10.0, 1e3, 1e5):
        layer = bndl.convert(fresh(world.head), features="nonnegative", init_shape=shape).train()
        drawn = layer(world.test.features, generator=torch.Generator().manual_seed(0)).detach()
        apart.append(float((drawn - logits).abs().mean() / logits.abs().mean()))
    assert apart[0] > 10 * apart[1] > 100 * apart[2]
    assert apart[2] < 1e-4


def test_nmf_stays_non_negative_and_noiseless_when_it_learns(world: World):
    *_, last = tune(NMF(), world.head, Task.of(world.train, world.val, seed=0), epochs=10)
    layer = find_layer(last.module)
    start = find_layer(NMF().dress(fresh(world.head)))
    phi = layer.phi().mean
    assert (phi >= 0).all()
    assert (phi == 0).any()
    assert not torch.allclose(phi, start.phi().mean)
    assert torch.equal(layer.phi_raw_shape, start.phi_raw_shape)
    prediction = NMF().predictor(last.module).predict(world.test.features)
    assert torch.allclose(prediction.logits, world.test.features @ phi.t() + layer.offset(), rtol=1e-4, atol=1e-3)
    likely = prediction.logits.double().softmax(1).max(1).values > 0.5
    assert torch.equal(prediction.p_value, (~likely).double())  # no noise, no doubt but a minority's
    assert not prediction.flip_probability.any()
    assert likely.float().mean() > 0.9


def test_nmf_counts_no_shapes(world: World):
    method = NMF()
    fitted = method.predictor(method.dress(fresh(world.head)))
    assert fitted.size.parameters == 64 * C + C
    assert fitted.size.weights == 64 * C
    assert fitted.size.active <= 64 * (C - 1)  # of each feature, the smallest weight is the zero of its scale


# ----------------------------------------------------------------------------------------------------------------- BNDL


def test_bndl_is_convert_fit_and_predict(world: World):
    fitted = BNDL().fit(world.head, world.train, world.val, seed=3)
    layer = bndl.convert(fresh(world.head), features="nonnegative")
    result = bndl.fit(layer, world.train, world.val, seed=3, progress=False)
    wrapped, own = fitted.predict(world.test.features), bndl.predict(layer, world.test.features, seed=3)
    for field in fields(Prediction):
        assert torch.equal(getattr(wrapped, field.name), getattr(own, field.name)), field.name
    assert fitted.note == f"epoch {result.best_epoch}"
    assert fitted.size.active == layer.num_weights()

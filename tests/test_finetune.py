"""A sparse model trained with its backbone: what it regains, what stays zero, what is left alone."""

import copy

import pytest
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import bndl
from bndl.convert import find_layer
from bndl.features import FeatureSet
from bndl.sparsify import run, walk

C, HIDDEN = 10, 48


@pytest.fixture(scope="module", autouse=True)
def quick():
    """Shapes that are nearly right and few second thoughts will do here."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(run, "_STEPS", 20)
        patch.setattr("bndl.calibrate._STEPS", 20)
        patch.setattr(walk, "_HANDFUL", 0)
        patch.setattr(walk, "_EXCHANGES", 1)
        yield


@pytest.fixture(scope="module")
def digits():
    images, labels = load_digits(return_X_y=True)
    x, y = torch.tensor(images, dtype=torch.float32) / 16, torch.tensor(labels)
    order = torch.randperm(len(y), generator=torch.Generator().manual_seed(0))
    return [TensorDataset(x[rows], y[rows]) for rows in order.split([1000, 400, 397])]


@pytest.fixture(scope="module")
def path(digits):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, HIDDEN), nn.BatchNorm1d(HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, C))
    optimizer, (x, y) = torch.optim.Adam(model.parameters(), lr=1e-2), digits[0].tensors
    for _ in range(60):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
    return bndl.sparsify(bndl.convert(model.eval()), digits[0], digits[1], features_per_class=1, num_points=3)


@pytest.fixture(scope="module")
def tuned(path, digits):
    return bndl.finetune(path, digits[0], digits[1], epochs=15, lr=1e-2)


def accuracy(model, data):
    x, y = data.tensors
    with torch.no_grad():
        return float((model.eval()(x).argmax(1) == y).float().mean())


def test_one_weight_a_class_is_enough_once_the_backbone_may_learn(path, tuned, digits):
    before, after, dense = (accuracy(model, digits[2]) for model in (path.best, tuned.model, path.model))
    assert before < 0.9
    assert after > dense - 0.03
    assert tuned.best_epoch > 0
    assert tuned.epochs[tuned.best_epoch].val_nll < tuned.epochs[0].val_nll
    assert tuned.point.nll < path.point.nll
    assert tuned.point.accuracy == pytest.approx(accuracy(tuned.model, digits[1]), abs=0.05)


def test_no_weight_comes_back(path, tuned):
    was, now = (find_layer(model).phi().mean > 0 for model in (path.best, tuned.model))
    assert not (now & ~was).any()
    assert tuned.point.weights == find_layer(tuned.model).num_weights() <= path.point.weights


def test_the_path_and_its_model_are_left_as_they_were(path, digits):
    models = [path.model, path.best]
    before = [copy.deepcopy(model.state_dict()) for model in models]
    modes = [module.training for model in models for module in model.modules()]
    bndl.finetune(path, digits[0], digits[1], epochs=1, lr=1e-2)
    for model, state in zip(models, before, strict=True):
        assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())
    assert [module.training for model in models for module in model.modules()] == modes


def test_what_does_not_help_is_not_kept(path, digits):
    found = bndl.finetune(path, digits[0], digits[1], epochs=1, lr=1e-9)
    assert found.best_epoch == 0
    assert found.point is path.point
    x = digits[2].tensors[0]
    assert torch.equal(found.model(x), path.best.eval()(x))


def test_the_same_seed_gives_the_same_bits_whatever_the_global_one(path, digits):
    found = []
    for state in (1, 2):
        torch.manual_seed(state)
        found.append(bndl.finetune(path, digits[0], digits[1], epochs=2, lr=1e-2, seed=3))
        assert torch.initial_seed() == state
    states = [one.model.state_dict() for one in found]
    assert all(torch.equal(value, states[1][name]) for name, value in states[0].items())
    assert found[0].point == found[1].point


def test_another_point_and_loaders_of_batches(path, digits):
    loaders = DataLoader(digits[0], batch_size=100, shuffle=True), DataLoader(digits[1], batch_size=64)
    found = bndl.finetune(path, *loaders, index=1, epochs=1, lr=1e-3)
    assert found.point.weights <= path.points[1].weights
    assert found.point.weights > path.point.weights


def test_gradients_are_asked_for_where_they_were(path, digits):
    path.model.requires_grad_(False)
    try:
        found = bndl.finetune(path, digits[0], digits[1], epochs=2, lr=1e-2)
        assert found.best_epoch > 0  # it learnt all the same
        assert not any(parameter.requires_grad for parameter in found.model.parameters())
    finally:
        path.model.requires_grad_(True)


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"epochs": 0}, "epochs >= 1"),
        ({"lr": 0.0}, "lr > 0"),
        ({"train_loader": FeatureSet(torch.rand(4, HIDDEN), torch.zeros(4, dtype=torch.long))}, "loaders of inputs"),
        ({"val_loader": None}, "give the val_loader"),
        ({"index": 9}, "there is no point 9"),
    ],
)
def test_what_cannot_be_done_is_said(path, digits, changed, says):
    given = {"train_loader": digits[0], "val_loader": digits[1], **changed}
    with pytest.raises((bndl.InputError, IndexError), match=says):
        bndl.finetune(path, given.pop("train_loader"), given.pop("val_loader"), **given)


def test_a_layer_alone_has_no_backbone_to_train(digits):
    layer = bndl.DecisionLayer(64, C)
    own = bndl.sparsify(layer, digits[0], digits[1], features_per_class=2, num_points=2)
    with pytest.raises(bndl.InputError, match="no backbone"):
        bndl.finetune(own, digits[0], digits[1])


def test_a_last_batch_of_one_does_not_stop_batch_norm(path, digits):
    uneven = TensorDataset(*(tensor[:129] for tensor in digits[0].tensors))
    assert bndl.finetune(path, uneven, digits[1], epochs=1, batch_size=64).epochs[1].train_loss > 0

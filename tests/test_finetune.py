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
    found = bndl.finetune(path, digits[0], digits[1], epochs=1, lr=1.0)
    assert found.best_epoch == 0
    assert found.point is path.point
    x = digits[2].tensors[0]
    assert torch.equal(found.model(x), path.best.eval()(x))


def test_the_same_seed_gives_the_same_bits_whatever_the_global_one(path, digits):
    found = []
    for state in (1, 2):
        torch.manual_seed(state)
        found.append(bndl.finetune(path, digits[0], digits[1], epochs=2, lr=1e-2))
        assert torch.initial_seed() == state
    states = [one.model.state_dict() for one in found]
    assert all(torch.equal(value, states[1][name]) for name, value in states[0].items())
    assert found[0].point == found[1].point


def test_another_point_and_loaders_of_batches(path, digits):
    loaders = DataLoader(digits[0], batch_size=100, shuffle=True), DataLoader(digits[1], batch_size=64)
    found = bndl.finetune(path, *loaders, index=1, epochs=1, lr=1e-3)
    assert found.point.weights <= path.points[1].weights
    assert found.point.weights > path.point.weights


def test_a_frozen_backbone_learns_as_a_whole_and_is_frozen_afterwards(path, digits):
    path.model.requires_grad_(False)
    try:
        found = bndl.finetune(path, digits[0], digits[1], epochs=2, lr=1e-2)
        assert found.best_epoch > 0
        assert not any(parameter.requires_grad for parameter in found.model.parameters())
        assert not torch.equal(found.model[0].weight, path.model[0].weight)
    finally:
        path.model.requires_grad_(True)


def test_what_is_frozen_in_part_stays_so(path, digits):
    path.model[1].requires_grad_(False)
    try:
        found = bndl.finetune(path, digits[0], digits[1], epochs=15, lr=1e-2)
    finally:
        path.model.requires_grad_(True)
    assert found.best_epoch > 0
    assert torch.equal(found.model[1].weight, path.model[1].weight)
    assert not torch.equal(found.model[0].weight, path.model[0].weight)
    assert all(parameter.grad is None for parameter in found.model.parameters())


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"epochs": 0}, "epochs >= 1"),
        ({"lr": 0.0}, "lr > 0"),
        ({"train_loader": FeatureSet(torch.rand(4, HIDDEN), torch.zeros(4, dtype=torch.long))}, "loaders of inputs"),
        ({"val_loader": None}, "give the val_loader"),
        ({"index": 9}, "there is no point 9"),
        ({"batch_size": 2.5}, "whole numbers"),
        ({"lr": "0.1"}, "lr > 0"),
        ({"train_loader": TensorDataset(torch.rand(0, 64), torch.zeros(0))}, "positive length"),
        ({"val_loader": iter([])}, "only once"),
    ],
)
def test_what_cannot_be_done_is_said(path, digits, changed, says):
    given = {"train_loader": digits[0], "val_loader": digits[1], **changed}
    with pytest.raises((bndl.InputError, IndexError), match=says):
        bndl.finetune(path, given.pop("train_loader"), given.pop("val_loader"), **given)


def test_only_the_examples_that_judged_the_path_may_judge_here(path, digits):
    with pytest.raises(bndl.InputError, match="give the val_loader that the path was given"):
        bndl.finetune(path, digits[0], digits[2])
    shuffled = DataLoader(digits[1], batch_size=64, shuffle=True)
    with pytest.raises(bndl.InputError, match=r"shuffle=False|that the path was given"):
        bndl.finetune(path, digits[0], shuffled, epochs=1)
    few = TensorDataset(*(tensor[:15] for tensor in digits[1].tensors))
    with pytest.raises(bndl.InputError, match="cannot tell"):
        bndl.finetune(path, digits[0], few)


def test_a_model_is_no_path(path, digits):
    with pytest.raises(bndl.InputError, match=r"the path that bndl\.sparsify returned"):
        bndl.finetune(path.best, digits[0], digits[1])


@pytest.mark.parametrize("kind", ["none", "missing", "soft", "pair"])
def test_labels_are_not_looked_at(path, digits, kind):
    x, y = digits[0].tensors
    given = {
        "none": TensorDataset(x, torch.full_like(y, -1)),
        "missing": TensorDataset(x),
        "soft": TensorDataset(x, torch.rand(len(x), C)),
        "pair": (x, y),
    }
    found, other = (bndl.finetune(path, data, digits[1], epochs=1, lr=1e-2) for data in (given[kind], digits[0]))
    assert found.epochs[1] == other.epochs[1]


def test_zeros_of_a_dense_map_stay_zero_too(path, digits):
    layer = bndl.DecisionLayer(HIDDEN, C, dense_map=True)
    layer.load_state_dict(path.model[3].state_dict(), strict=False)  # the map is the identity
    model = nn.Sequential(*path.model[:3], layer).eval()
    own = bndl.sparsify(model, digits[0], digits[1], features_per_class=2, num_points=2)
    found = bndl.finetune(own, digits[0], digits[1], epochs=3, lr=1e-2)
    assert found.best_epoch > 0
    assert found.point.weights <= own.point.weights


def test_an_interrupt_returns_the_best_so_far(path, digits):
    x, y = digits[0].tensors

    class Stopped:
        """Batches for five passes, then Ctrl-C."""

        passes = 0

        def __len__(self):
            return 10

        def __iter__(self):
            self.passes += 1
            if self.passes > 5:
                raise KeyboardInterrupt
            return zip(x.split(100), y.split(100), strict=True)

    found = bndl.finetune(path, Stopped(), digits[1], epochs=20, lr=1e-2)
    assert found.interrupted
    assert found.best_epoch == 5
    assert len(found.epochs) == 6
    assert found.point.nll < path.point.nll


def test_the_origin_says_so_and_travels_with_the_file(path, tuned, tmp_path):
    assert "fine-tuned" in find_layer(tuned.model).origin
    assert "fine-tuned" not in find_layer(path.best).origin
    bndl.save(tuned.model, tmp_path / "tuned.safetensors")
    loaded = bndl.load(tmp_path / "tuned.safetensors", backbone=copy.deepcopy(path.model))
    assert find_layer(loaded).origin == find_layer(tuned.model).origin


def test_a_layer_alone_has_no_backbone_to_train(digits):
    layer = bndl.DecisionLayer(64, C)
    own = bndl.sparsify(layer, digits[0], digits[1], features_per_class=2, num_points=2)
    with pytest.raises(bndl.InputError, match="no backbone"):
        bndl.finetune(own, digits[0], digits[1])


def test_a_last_batch_of_one_does_not_stop_batch_norm(path, digits):
    uneven = TensorDataset(*(tensor[:129] for tensor in digits[0].tensors))
    assert bndl.finetune(path, uneven, digits[1], epochs=1, batch_size=64).epochs[1].train_loss > 0

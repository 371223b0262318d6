"""Inputs of every kind become batches; the backbone runs once; what is wrong with data is said in one sentence."""

from collections import UserDict

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

import bndl
from bndl.errors import HeadError, InputError
from bndl.features import FeatureSet, check_labels, evaluating, extract, features_of, iterate, split_batch

K, C = 8, 3
X = torch.randn(10, 4, generator=torch.Generator().manual_seed(0))
Y = torch.arange(10) % C


def model() -> nn.Sequential:
    torch.manual_seed(0)
    return bndl.convert(nn.Sequential(nn.Linear(4, K), nn.BatchNorm1d(K), nn.ReLU(), nn.Dropout(), nn.Linear(K, C)))


def rows(batches) -> Tensor:
    return torch.cat([split_batch(batch)[0] for batch in batches])


class Rows(Dataset):
    def __len__(self) -> int:
        return len(X)

    def __getitem__(self, index: int):
        if index >= len(X):
            raise IndexError(index)
        return X[index], int(Y[index])


class Stream(IterableDataset):
    def __iter__(self):
        yield from X


@pytest.mark.parametrize(
    "data",
    [
        X,
        X.numpy(),
        TensorDataset(X),
        Rows(),
        Stream(),
        DataLoader(Rows(), 4),
        [X[:7], X[7:]],
        [X[:7].numpy(), X[7:].numpy()],
        [(X[:7], Y[:7]), (X[7:], Y[7:])],
        [[X[:7]], [X[7:]]],
    ],
    ids=["tensor", "array", "tensors", "dataset", "stream", "loader", "list", "arrays", "pairs", "singles"],
)
def test_every_kind_of_data_becomes_the_same_rows(data):
    assert torch.equal(rows(iterate(data, batch_size=3)), X)


def test_a_generator_is_consumed_lazily():
    seen = []

    def batches():
        for number in range(3):
            seen.append(number)
            yield X

    stream = iter(iterate(batches(), batch_size=2))
    next(stream)
    assert seen == [0]


@pytest.mark.parametrize("kind", [dict, UserDict])
def test_a_dict_is_cut_along_its_tensors(kind):
    batches = list(iterate(kind({"a": X, "b": 2 * X, "flag": True, "labels": Y}), batch_size=4))
    assert [len(batch["a"]) for batch in batches] == [4, 4, 2]
    assert torch.equal(torch.cat([batch["b"] for batch in batches]), 2 * X)
    assert all(batch["flag"] is True for batch in batches)
    inputs, labels = split_batch(batches[-1])
    assert set(inputs) == {"a", "b", "flag"}
    assert torch.equal(labels, Y[8:])


@pytest.mark.parametrize("key", ["labels", "label"])
def test_labels_of_a_dict(key):
    inputs, labels = split_batch({"x": X, key: Y})
    assert list(inputs) == ["x"]
    assert labels is Y
    assert split_batch({"x": X})[1] is None


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (torch.zeros(0, 4), r"nothing to predict on: the input has dims \(0, 4\)"),
        (torch.tensor(1.0), r"nothing to predict on: the input has dims \(\)"),
        (3, "give a tensor, a dict of tensors, a data set or a loader; got int"),
        ({"a": X, "b": X[:3]}, r"must have one common, positive length, got \[3, 10\]"),
        ({"a": X[:0]}, r"must have one common, positive length, got \[0\]"),
        ({"a": "text"}, r"must have one common, positive length, got \[\]"),
    ],
)
def test_what_cannot_be_cut(data, words):
    with pytest.raises(InputError, match=words):
        iterate(data, batch_size=2)


@pytest.mark.parametrize(
    ("batch", "words"),
    [((X, Y, Y), "got 3 parts"), ((), "got 0 parts"), ("text", "a tensor, a pair .* or a dict, got str")],
)
def test_what_is_no_batch(batch, words):
    with pytest.raises(InputError, match=words):
        split_batch(batch)


def test_evaluating_puts_every_mode_back():
    net = model()
    net[1].eval()
    modes = [module.training for module in net.modules()]
    with evaluating(net):
        assert not any(module.training for module in net.modules())
        assert not torch.is_grad_enabled()
    assert [module.training for module in net.modules()] == modes
    with pytest.raises(KeyError), evaluating(net):
        raise KeyError
    assert [module.training for module in net.modules()] == modes
    assert torch.is_grad_enabled()


def test_features_are_what_enters_the_layer():
    net = model().eval()
    torch.testing.assert_close(features_of(net, X), net[:4](X))
    assert not net[4]._forward_pre_hooks
    layer = bndl.DecisionLayer(4, C)
    assert torch.equal(features_of(layer, X), X)


@pytest.mark.parametrize(
    ("features", "labels", "words"),
    [
        (X.index_fill(0, torch.tensor([4]), torch.nan), Y, r"1 of 10 examples have NaN .* \(first at index 4\)"),
        (X[:0], Y[:0], "the FeatureSet is empty"),
        (X, Y + 1, r"labels must lie in 0..2 for 3 classes, got 1..3"),
        (X, Y[:9], r"one class index an example, dims \(10,\)"),
        (X[:, :3], Y, "takes features of size 4"),
        (X.long(), Y, "takes floating-point features"),
    ],
)
def test_features_that_are_given_are_looked_at_too(features, labels, words):
    layer = bndl.DecisionLayer(4, C)
    given, sound = FeatureSet(features, labels), FeatureSet(X, Y)
    for call in (
        lambda: extract(layer, given),
        lambda: bndl.fit(layer, sound, given),
        lambda: bndl.sparsify(layer, given),
    ):
        with pytest.raises(InputError, match=words):
            call()


@pytest.mark.parametrize("kind", [torch.int32, torch.uint8, "list", "array"])
def test_labels_of_given_features_may_be_any_whole_numbers(kind):
    labels = {"list": Y.tolist(), "array": Y.numpy()}.get(kind) if isinstance(kind, str) else Y.to(kind)
    layer = bndl.DecisionLayer(4, C)
    assert torch.equal(extract(layer, FeatureSet(X, labels)).labels, Y)
    bndl.fit(layer, FeatureSet(X.abs(), labels), FeatureSet(X.abs(), labels), epochs=1, progress=False)


def test_given_features_are_counted_over_all_blocks(monkeypatch):
    monkeypatch.setattr("bndl.features._ROWS", 4)
    bad = X.clone()
    bad[6:8, 1] = torch.nan
    with pytest.raises(InputError, match=r"2 of 10 examples have NaN .* \(first at index 6\)"):
        extract(bndl.DecisionLayer(4, C), FeatureSet(bad, Y))


def test_features_need_one_finite_row_an_example():
    layer = bndl.DecisionLayer(4, C)
    bad = X.clone()
    bad[3, 1], bad[5, 0] = torch.nan, torch.inf
    with pytest.raises(InputError, match=r"2 of 10 examples have NaN or infinite features.* \(first at index 3\)"):
        features_of(layer, bad)
    with pytest.raises(InputError, match=r"given dims \(2, 5, 4\); .* 4 features .* pool over tokens or positions"):
        features_of(layer, X.view(2, 5, 4))
    with pytest.raises(InputError, match=r"takes features of size 4, got dims \(10, 3\)"):
        features_of(layer, X[:, :3])
    assert not layer._forward_pre_hooks


class Calls(nn.Module):
    """Calls its head any number of times in a pass."""

    def __init__(self, times: int) -> None:
        super().__init__()
        self.fc, self.times = bndl.DecisionLayer(4, C), times

    def forward(self, x: Tensor) -> Tensor:
        return sum((self.fc(x) for _ in range(self.times)), x.new_zeros(len(x), C))


@pytest.mark.parametrize("times", [0, 2])
def test_the_layer_must_run_once_a_pass(times):
    with pytest.raises(InputError, match=f"ran {times} times in one pass"):
        features_of(Calls(times), X)


def test_extract_reads_each_example_once_and_in_order():
    net, seen = model().train(), []
    net[0].register_forward_pre_hook(lambda _, args: seen.append(args[0]))
    buffers = {name: value.clone() for name, value in net.named_buffers()}
    data = extract(net, DataLoader(Rows(), 4))
    assert extract(net, data) is data
    assert torch.equal(torch.cat(seen), X)
    assert torch.equal(data.labels, Y)
    torch.testing.assert_close(data.features, net[:4].eval()(X))
    assert not data.features.requires_grad
    assert all(torch.equal(value, buffers[name]) for name, value in net.named_buffers())


def test_extract_gives_float32_of_half_precision():
    net = nn.Sequential(nn.Linear(4, K), nn.Tanh(), nn.Linear(K, C)).bfloat16()
    data = extract(bndl.convert(net), [(X.bfloat16(), Y)])
    assert data.features.dtype == torch.float32


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ([], "the loader is empty"),
        (X, "labels are needed"),
        ([{"input": X}], "labels are needed"),
        ([(X, Y.float())], r"class indices \(integers\), got torch\.float32"),
        ([(X, Y + 1)], r"lie in 0\.\.2 for 3 classes, got 1\.\.3"),
        ([(X, Y - 1)], r"got -1\.\.1"),
        ([(X, Y[:4])], r"dims \(10,\), got \(4,\)"),
        ([(X, nn.functional.one_hot(Y, C))], r"dims \(10,\), got \(10, 3\)"),
    ],
)
def test_extract_says_what_is_wrong(data, words):
    with pytest.raises(InputError, match=words) as caught:
        extract(model(), data)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("labels", [[0, 2, 1], np.array([0, 2, 1]), torch.tensor([0, 2, 1], dtype=torch.uint8)])
def test_labels_of_any_integer_kind(labels):
    checked = check_labels(labels, C, count=3)
    assert checked.dtype == torch.int64
    assert checked.tolist() == [0, 2, 1]


def test_a_model_that_was_not_converted():
    with pytest.raises(HeadError, match=r"bndl\.convert\(model\) first"):
        features_of(nn.Linear(4, 2), X)


def test_feature_set_takes_rows():
    taken = FeatureSet(X, Y).take(torch.tensor([4, 0]))
    assert len(taken) == 2
    assert torch.equal(taken.features, X[[4, 0]])
    assert torch.equal(taken.labels, Y[[4, 0]])


def test_large_images_pass_a_few_at_a_time_and_each_once(monkeypatch):
    monkeypatch.setattr("bndl.features._PIXELS", 3 * 16 * 16)
    torch.manual_seed(0)
    network = bndl.convert(nn.Sequential(nn.Conv2d(3, K, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
                                         nn.Linear(K, C)))  # fmt: skip
    seen, images = [], torch.rand(8, 3, 16, 16, generator=torch.Generator().manual_seed(0))
    network[0].register_forward_pre_hook(lambda _, args: seen.append(args[0]))
    with evaluating(network):
        features = features_of(network, images)
    assert [len(part) for part in seen] == [3, 3, 2]
    assert torch.equal(torch.cat(seen), images)
    seen.clear()
    network.train()  # what a batch does to its statistics is the user's affair
    assert torch.allclose(features_of(network, images), features, atol=1e-6)
    assert [len(part) for part in seen] == [8]


def test_a_layer_is_called_where_somebody_listens():
    layer = bndl.DecisionLayer(K, C).eval()
    h = torch.rand(5, K, generator=torch.Generator().manual_seed(0))
    assert torch.equal(features_of(layer, h), h)
    layer.register_forward_pre_hook(lambda _, args: (2 * args[0],))
    assert torch.equal(features_of(layer, h), 2 * h)

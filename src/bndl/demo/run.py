"""What the demo computes: two networks trained alike on scikit-learn's digits, measured on half of the data."""

import copy
import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from bndl.backbones import SmallCNN
from bndl.calibrate import best_log_scale
from bndl.convert import convert, find_layer
from bndl.data import Holdout, LabelledSet, as_float, load_splits
from bndl.explain import contribution_map, contributions
from bndl.features import evaluating
from bndl.fit import fit
from bndl.layer import DecisionLayer
from bndl.metrics import (
    Deciles,
    PAvPUCounts,
    accuracy_by_decile,
    expected_calibration_error,
    features_per_decision,
    negative_log_likelihood,
    pavpu,
    weights_per_class,
)
from bndl.objective import Objective
from bndl.predict import predict
from bndl.prediction import Prediction

__all__ = ["Case", "Demo", "Row", "run"]

_NUM_FEATURES = 32
_EPOCHS = 60
_BATCH = 64
_LR = 5e-3
_OBJECTIVE = Objective(beta=1e-3)


@dataclass(frozen=True)
class Row:
    """One line of the table, all on the test half."""

    name: str
    accuracy: float
    nll: float
    ece: float
    pavpu: PAvPUCounts
    weights_per_class: float
    features_per_decision: float


@dataclass(frozen=True)
class Case:
    """One test digit: the image (8, 8), where its evidence lies (8, 8), and the terms behind the two best classes."""

    index: int
    image: Tensor
    evidence: Tensor
    truth: int
    label: int
    runner_up: int
    probs: tuple[float, float]
    p_value: float
    flip_probability: float
    terms: Tensor  # (2, K): of the label's logit and of the runner-up's


@dataclass(frozen=True)
class Demo:
    """Everything the table, the text and the picture are made of."""

    rows: tuple[Row, ...]
    surest: tuple[Case, ...]
    least_sure: tuple[Case, ...]
    deciles: Deciles
    phi: Tensor  # (K, C)
    num_test: int
    model: nn.Module


@dataclass(frozen=True)
class _Split:
    images: Tensor
    labels: Tensor


def run(*, seed: int = 0, num_cases: int = 4, stage: Callable[[str], None] = lambda _: None) -> Demo:
    """Train both networks and take the test half apart.

    Args:
        seed: of the split, the initial weights, the order and the noise.
        num_cases: how many of the surest and of the least sure digits to look into.
        stage: is told what is being done, for a progress display.
    """
    stage("reading the digits")
    splits = load_splits("digits", holdout=Holdout(val=0.2, test=0.5, seed=seed))
    assert splits.val is not None
    assert splits.test is not None
    train, val, test = (_tensors(part) for part in (splits.train, splits.val, splits.test))
    with torch.random.fork_rng([]):
        torch.manual_seed(seed)
        dense = SmallCNN(10, num_features=_NUM_FEATURES)
        model = convert(copy.deepcopy(dense))
        stage("training the dense network")
        _train_dense(dense, train, val)
    stage("training with the decision layer")
    loaders = [DataLoader(TensorDataset(s.images, s.labels), _BATCH, shuffle=s is train) for s in (train, val)]
    fit(model, *loaders, freeze=False, epochs=_EPOCHS, lr=_LR, objective=_OBJECTIVE, seed=seed, progress=False)
    stage("looking at the test half")
    return _measure(dense, model.eval(), val, test, num_cases)


def _tensors(part: LabelledSet) -> _Split:
    images, labels = zip(*(part[i] for i in range(len(part))), strict=True)
    return _Split(as_float(torch.stack(images)), torch.tensor(labels))


def _train_dense(model: nn.Module, train: _Split, val: _Split) -> None:
    """The schedule and the choice of epoch of :func:`bndl.fit`, for a network without a decision layer."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=_LR, weight_decay=0.0)
    num_steps, step = _EPOCHS * math.ceil(len(train.labels) / _BATCH), 0
    best, kept = math.inf, model.state_dict()
    for _ in range(_EPOCHS):
        model.train()
        for rows in torch.randperm(len(train.labels)).split(_BATCH):
            step += 1
            rate = _LR * min(1.0, 10 * step / num_steps) * 0.5 * (1 + math.cos(math.pi * step / num_steps))
            optimizer.param_groups[0]["lr"] = rate
            optimizer.zero_grad()
            loss = F.cross_entropy(model(train.images[rows]), train.labels[rows])
            loss.backward()
            optimizer.step()
        with evaluating(model):
            logits = model(val.images)
            val_loss = float(F.cross_entropy(logits * best_log_scale(logits, val.labels).exp(), val.labels))
        if val_loss < best:
            best, kept = val_loss, {key: value.clone() for key, value in model.state_dict().items()}
    model.load_state_dict(kept)


def _measure(dense: SmallCNN, model: nn.Module, val: _Split, test: _Split, num_cases: int) -> Demo:
    layer = find_layer(model)
    prediction = predict(model, test.images, progress=False)
    with evaluating(dense), evaluating(model):
        dense_features: Tensor = dense.features(test.images)
        dense_logits: Tensor = dense.fc(dense_features)
        scale = best_log_scale(dense(val.images), val.labels).exp()
        maps = model.get_submodule("stages")(test.images)
    features = maps.mean(dim=(2, 3))
    correct = prediction.labels == test.labels
    rows = (
        _dense_row("dense", dense_logits, test.labels, dense, dense_features),
        _dense_row("dense, temp. scaled", dense_logits * scale, test.labels, dense, dense_features),
        Row(
            name="BNDL",
            accuracy=float(correct.double().mean()),
            nll=float(negative_log_likelihood(prediction.probs, test.labels)),
            ece=float(expected_calibration_error(prediction.probs, test.labels)),
            pavpu=pavpu(correct, prediction.certain),
            weights_per_class=weights_per_class(model),
            features_per_decision=float(features_per_decision(contributions(layer, features, prediction.labels))),
        ),
    )
    order = prediction.flip_probability.argsort(stable=True).tolist()
    surest = _one_a_class(order, prediction.labels.tolist(), num_cases)
    return Demo(
        rows=rows,
        surest=tuple(_case(i, layer, prediction, test, maps) for i in surest),
        least_sure=tuple(_case(i, layer, prediction, test, maps) for i in order[::-1][:num_cases]),
        deciles=accuracy_by_decile(prediction.flip_probability, correct),
        phi=layer.phi().mean.detach().t(),
        num_test=len(test.labels),
        model=model,
    )


def _one_a_class(order: list[int], labels: list[int], count: int) -> list[int]:
    """The first indices of the order, each of another class: the very surest digits look all alike."""
    first = {labels[i]: i for i in reversed(order)}
    return sorted(first.values(), key=order.index)[:count]


def _dense_row(name: str, logits: Tensor, labels: Tensor, dense: SmallCNN, features: Tensor) -> Row:
    """A dense head draws nothing, so what it gives more than half is certain; its terms have either sign."""
    predicted, probs = logits.argmax(dim=1), logits.softmax(dim=1)
    correct = predicted == labels
    return Row(
        name=name,
        accuracy=float(correct.double().mean()),
        nll=float(negative_log_likelihood(probs, labels)),
        ece=float(expected_calibration_error(probs, labels)),
        pavpu=pavpu(correct, probs.max(dim=1).values > 0.5),
        weights_per_class=float(dense.fc.in_features),
        features_per_decision=float(features_per_decision((features * dense.fc.weight[predicted]).abs())),
    )


def _case(index: int, layer: DecisionLayer, prediction: Prediction, test: _Split, maps: Tensor) -> Case:
    label, runner_up = int(prediction.labels[index]), int(prediction.runner_up[index])
    pair, own = torch.tensor([label, runner_up]), maps[index : index + 1]
    features = own.mean(dim=(2, 3))
    return Case(
        index=index,
        image=test.images[index, 0],
        evidence=contribution_map(layer, own, pair[:1])[0],
        truth=int(test.labels[index]),
        label=label,
        runner_up=runner_up,
        probs=(float(prediction.probs[index, label]), float(prediction.probs[index, runner_up])),
        p_value=float(prediction.p_value[index]),
        flip_probability=float(prediction.flip_probability[index]),
        terms=contributions(layer, features.expand(2, -1), pair),
    )

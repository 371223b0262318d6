"""``bndl.sparsify``: read the features once, walk from dense to sparse, calibrate and measure each point, choose one."""

import copy
import math
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from numbers import Integral, Real
from typing import Any, Literal, get_args

import torch
from torch import nn

from bndl.calibrate import calibrate
from bndl.convert import find_layer
from bndl.decide import Decider
from bndl.errors import InputError
from bndl.features import FeatureSet, extract
from bndl.fit import HELD_OUT, hold_out
from bndl.layer import ACTIVE_ABOVE, DecisionLayer
from bndl.metrics.calibration import expected_calibration_error
from bndl.metrics.likelihood import negative_log_likelihood
from bndl.predict import named
from bndl.progress import track
from bndl.sparsify.noise import tune_noise
from bndl.sparsify.path import SparsePath, SparsePoint
from bndl.sparsify.pool import Head, Pool
from bndl.sparsify.walk import Goal, sweep, walk

__all__ = ["Mode", "Target", "about_missing", "clean", "follow", "measured", "parts", "refined", "sparsify"]

Mode = Literal["prune", "threshold"]
DEFAULT_DROP = 0.01
_STEPS = 60  # of a calibration: 200 did not predict better along a path


@dataclass(frozen=True)
class Target:
    """What to choose by: one of the three, or none for the sparsest within a point of the dense accuracy."""

    nnz: float | None = None
    features_per_class: int | None = None
    max_accuracy_drop: float | None = None

    def __post_init__(self) -> None:
        given = [name for name in ("nnz", "features_per_class", "max_accuracy_drop") if getattr(self, name) is not None]
        if len(given) > 1:
            raise InputError(
                f"give one target, not {len(given)} ({', '.join(given)}): they may ask for different points."
            )
        for name in given:
            _check_number(name, getattr(self, name), whole=name == "features_per_class")
        if self.nnz is not None and not 0 < self.nnz <= 1:
            raise InputError(f"nnz is a share of the weights, above 0 and at most 1, got {self.nnz}.")
        if self.features_per_class is not None and self.features_per_class < 1:
            raise InputError(f"features_per_class must be at least 1, got {self.features_per_class}.")
        if self.max_accuracy_drop is not None and not 0 <= self.max_accuracy_drop < 1:
            raise InputError(
                f"max_accuracy_drop is a share, such as 0.01 for one point of accuracy, got {self.max_accuracy_drop}."
            )

    def goals(self, layer: DecisionLayer, num_points: int) -> list[Goal]:
        """Evenly in the logarithm, from where the layer is to the target, or to one weight a class."""
        _check_number("num_points", num_points, whole=True)
        if num_points < 2:
            raise InputError(f"a path has at least two points, got num_points={num_points}.")
        C, active = layer.out_features, (layer.weight - layer.alpha_phi > ACTIVE_ABOVE).sum(dim=1)
        first, last, each = int(active.sum()), C, self.features_per_class is not None
        if self.features_per_class is not None:
            first, last = int(active.max()), self.features_per_class
        if self.nnz is not None:
            last = int(self.nnz * layer.all_weights() + 1e-6) - (layer.num_weights() - int(active.sum()))
        if last < (1 if each else C):
            least = 1e-6 * math.ceil(1e6 * (layer.num_weights() - int(active.sum()) + C) / layer.all_weights())
            raise InputError(f"nnz={self.nnz} leaves less than one weight a class: it can be {least:g} at the least.")
        if last >= first:
            return []
        counts = {round(first * (last / first) ** (i / (num_points - 1))) for i in range(1, num_points)}
        return [Goal(count, each) for count in sorted(counts, reverse=True)]

    def choose(self, points: list[SparsePoint]) -> int:
        """The last point, or the sparsest that loses at most the drop against the first."""
        if self.nnz is not None or self.features_per_class is not None:
            return len(points) - 1
        drop = DEFAULT_DROP if self.max_accuracy_drop is None else self.max_accuracy_drop
        return max(i for i, point in enumerate(points) if point.accuracy >= points[0].accuracy - drop - 1e-9)


def _check_number(name: str, value: object, *, whole: bool) -> None:
    kind, called = (Integral, "a whole number, such as 20") if whole else (Real, "a number, such as 0.1")
    if isinstance(value, bool) or not isinstance(value, kind):
        raise InputError(f"{name} must be {called}, got {value!r}.")


def sparsify(
    model: nn.Module,
    train_loader: Any,
    val_loader: Any = None,
    *,
    nnz: float | None = None,
    features_per_class: int | None = None,
    max_accuracy_drop: float | None = None,
    num_points: int = 20,
    mode: Mode = "prune",
    batch_size: int = 256,
    seed: int = 0,
    progress: bool | None = None,
    keep: Callable[[SparsePath], None] | None = None,
) -> SparsePath:
    """Take weights out of a model's decision layer, step by step: a path of models from dense to a few weights a class.

    Every example passes the backbone once; it is not changed, nor is ``model``: ``path.best`` is the chosen model,
    ``path[i]`` any other. Weights learn from the training examples and half of the validation examples; the other half
    chooses, fits the scale of the logits and measures.

    Args:
        model: a model with a :class:`bndl.DecisionLayer`, converted or trained, or the layer itself (on features).
        train_loader: batches (inputs, labels) or dicts with ``labels``; also a data set.
        val_loader: examples that the backbone has not seen. Left out, a fifth of the training data is held out.
        nnz: target: at most this share of the weights in use.
        features_per_class: target: at most so many weights for each class.
        max_accuracy_drop: target: the sparsest point whose accuracy is at most this much below the first one's; 0.01,
            one point, is what happens without a target.
        num_points: how many points at most, the given model included, evenly in the logarithm of nnz, down to the target
            or to one weight a class. A fit leaves fewer weights than it may where it needs no more, above half of them
            above all; a point that would have no fewer than the one before is left out.
        mode: ``"prune"``: see :mod:`bndl.sparsify.walk`. ``"threshold"``: the paper's ``ReLU(w - alpha)`` of the dense
            weights for rising alpha, each followed by a fit as long as helps it.
        batch_size: examples of a data set that pass the backbone together.
        seed: the same seed gives the same bits.
        progress: whether to show bars; None: when it takes long and there is a terminal.
        keep: is given the path so far after each point, for those who may be interrupted.
    """
    target = Target(nnz, features_per_class, max_accuracy_drop)
    _check_number("seed", seed, whole=True)
    if torch.is_inference_mode_enabled():
        raise InputError("sparsify fits weights, which torch.inference_mode() forbids: call it outside.")
    if mode not in get_args(Mode):
        raise InputError(f"mode must be one of {', '.join(get_args(Mode))}, got {mode!r}.")
    started, layer = time.monotonic(), find_layer(model)
    if layer.weight.dtype not in (torch.float32, torch.float64):
        raise InputError(
            f"sparsify works in float32, the decision layer is in {layer.weight.dtype}: call model.float() first."
        )
    goals = target.goals(layer, num_points)
    train = extract(model, train_loader, batch_size=batch_size, progress=progress)
    val = None if val_loader is None else extract(model, val_loader, batch_size=batch_size, progress=progress)
    unseen = sorted(set(range(layer.out_features)) - set(train.labels.unique().tolist()))
    if unseen:
        warnings.warn(
            f"{named(unseen)} no training example, so these weights go first and nothing here shows what that costs: give "
            "examples of every class.",
            stacklevel=2,
        )
    if val is None and len(train) < HELD_OUT:
        warnings.warn(
            "too few examples to hold any out: figures are of those that the weights learn from.", stacklevel=2
        )
    points: list[SparsePoint] = []
    judge = (
        parts(train, val, torch.Generator(layer.weight.device).manual_seed(seed))[1].features.sum(dim=1).float().cpu()
    )
    found = follow(layer, train, val, goals, mode=mode, seed=seed)
    with torch.autocast(layer.weight.device.type, enabled=False):  # the backbone may be in half precision, not the fits
        for point in track(found, "sparsify", progress=progress, total=1 + len(goals)):
            points.append(point)
            seconds = time.monotonic() - started
            path = SparsePath(tuple(points), target.choose(points), model, mode, seconds, seed, judge)
            if keep is not None:
                keep(path)
        points[path.chosen] = refined(path.point, layer, train, val, seed=seed)
    path = replace(path, points=tuple(points), seconds=time.monotonic() - started)
    if keep is not None:
        keep(path)
    if path.point.empty_classes:
        warnings.warn(about_missing(path.point, mode), stacklevel=2)
    return path


def about_missing(point: SparsePoint, mode: str) -> str:
    """Classes that no feature can speak for any more."""
    cure = "mode='prune', which leaves one"
    if mode == "prune":
        cure = f"make the features smaller, as a weight of at most {ACTIVE_ABOVE:g} counts as none"
    return f"{named(list(point.empty_classes))} no weight left: ask for more weights, or {cure}."


def follow(
    layer: DecisionLayer, train: FeatureSet, val: FeatureSet | None, goals: list[Goal], *, mode: Mode, seed: int = 0
) -> Iterator[SparsePoint]:
    """The points: the layer as it is, then one for each goal that leaves fewer weights than the point before.

    Args:
        layer: is not changed.
        train: features to learn from.
        val: features that the backbone has not seen, or None.
        goals: decreasing numbers of weights.
        mode: see :func:`sparsify`.
        seed: of everything random.
    """
    generator = torch.Generator(layer.weight.device).manual_seed(seed)
    fitting, judge = parts(train, val, generator)
    dense = copy.deepcopy(layer).eval().requires_grad_(True)
    with torch.enable_grad():
        calibrate(dense, judge if val is None else val, generator=generator, num_steps=_STEPS)
    dense.requires_grad_(False)
    yield measured(dense, judge, seed=seed)
    if not goals:
        return
    start, pool = Head.of(dense), Pool.of(dense, fitting, generator=generator)
    judged = Pool.of(dense, [judge], generator=generator, like=pool)
    heads = (
        sweep(start, pool, goals, generator=generator)
        if mode == "threshold"
        else walk(start, pool, judged, goals, generator=generator)
    )
    quieter, before = 1.0, dense.num_weights()
    for head in heads:
        sparse = copy.deepcopy(dense)
        _write(sparse, head)
        quieter = tune_noise(sparse, judge, start=quieter, generator=generator)
        clean(sparse, last=mode == "prune")
        if sparse.num_weights() < before:  # a fit leaves fewer than it may, so the goal may have been met already
            before = sparse.num_weights()
            yield measured(sparse, judge, seed=seed)


def refined(
    point: SparsePoint, layer: DecisionLayer, train: FeatureSet, val: FeatureSet | None, *, seed: int = 0
) -> SparsePoint:
    """The point with a noise of its own (:func:`bndl.calibrate.calibrate`), where that predicts better."""
    generator = torch.Generator(layer.weight.device).manual_seed(seed)
    judge = parts(train, val, generator)[1]
    sparse = copy.deepcopy(layer).eval().requires_grad_(True)
    sparse.load_state_dict(point.state)
    with torch.enable_grad():
        calibrate(sparse, judge, generator=generator, num_steps=_STEPS)
    clean(sparse.requires_grad_(False), last=not point.empty_classes)
    found = measured(sparse, judge, seed=seed)
    return found if found.nll < point.nll and found.weights == point.weights else point


def parts(train: FeatureSet, val: FeatureSet | None, generator: torch.Generator) -> tuple[list[FeatureSet], FeatureSet]:
    """What to learn from, and what to judge by."""
    if val is None:
        rows, judge = hold_out(train, generator)
        return [train.take(rows)], judge
    order = torch.randperm(len(val), generator=generator, device=generator.device)
    order = order[val.labels.to(order.device)[order].argsort(stable=True)]
    return ([train, val.take(order[1::2])], val.take(order[::2])) if len(val) > 1 else ([train], val)


@torch.no_grad()
def _write(layer: DecisionLayer, head: Head) -> None:
    layer.weight.copy_(head.weight + layer.alpha_phi)
    if layer.bias is not None:
        layer.bias.copy_(head.bias)


@torch.no_grad()
def clean(layer: DecisionLayer, *, last: bool = False) -> None:
    """Weights that count as none are none; ``last``: but for the largest of a class, which then counts."""
    weight = layer.weight - layer.alpha_phi
    if last:
        largest = weight.max(dim=1, keepdim=True)
        kept = torch.where(largest.values > 0, largest.values.clamp_min(2 * ACTIVE_ABOVE), 0)
        weight.scatter_(1, largest.indices, kept)
    layer.weight.copy_(layer.alpha_phi + weight.masked_fill_(weight <= ACTIVE_ABOVE, 0))


@torch.no_grad()
def measured(layer: DecisionLayer, data: FeatureSet, *, seed: int) -> SparsePoint:
    """The figures of a layer on ``data``, and a copy of its parameters."""
    decider = Decider(layer, seed=seed)
    parts = [decider.decisions(block.to(layer.weight)) for block in data.features.split(1024)]
    decided, probs = (torch.cat(part) for part in zip(*parts, strict=True))
    labels = data.labels.cpu()
    right = decided == labels
    active = int((layer.weight - layer.alpha_phi > ACTIVE_ABOVE).sum())
    return SparsePoint(
        nnz=layer.num_weights() / layer.all_weights(),
        weights=layer.num_weights(),
        weights_per_class=active / layer.out_features,
        accuracy=float(right.double().mean()),
        nll=float(negative_log_likelihood(probs, labels)),
        ece=float(expected_calibration_error(probs, labels)),
        empty_classes=tuple(layer.empty_classes()),
        state={name: tensor.detach().clone() for name, tensor in layer.state_dict().items()},
    )

r"""The sparse linear layer of Debuggable Networks (Wong et al. 2021): elastic nets along a path of penalties.

Package ``glm_saga``, on standardised features z, with :math:`\alpha = .99`:

.. math:: \min_{W, b} -\frac{1}{N} \sum_n \ln \mathrm{softmax}(W z_n + b)_{y_n}
    + \lambda \bigl(\alpha \|W\|_1 + \tfrac{1 - \alpha}{2} \|W\|_2^2\bigr)
"""

import importlib
import math
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from bndl.baselines.dense import Dense
from bndl.baselines.method import Fitted, Method, Size
from bndl.baselines.tuning import Task, at_best_temperature, judge
from bndl.errors import InputError, MissingExtraError
from bndl.features import FeatureSet

__all__ = ["ElasticNet", "Step", "path"]

NUM_POINTS = 15
ALPHA = 0.99
_RANGE = 1000  # the first penalty, which leaves no weight, over the last
_BATCH = 32  # where an example costs least: the package makes B C K numbers a step
_VISITS = 150_000  # examples that each penalty sees
_EPOCHS = 15  # at most
_WORK = 1.28e9  # N C K, at most: rows of the training features are left out beyond
_TOLERANCE = 1e-4
_PATIENCE = 3  # epochs without progress of the objective


@dataclass(frozen=True)
class Step:
    """A point of the path.

    Attributes:
        lam: the penalty.
        nnz: share of the weights that are not zero.
        head: of the features as they are; the standardisation is folded in.
        nll: of the held-out fifth of the validation features.
        source: what it has learnt from, ``"train"`` or ``"val"``.
    """

    lam: float
    nnz: float
    head: nn.Linear
    nll: float
    source: str


class ElasticNet(Method):
    """The head of the path that predicts best; a softmax, with no doubt of its own."""

    name = "elastic-net"
    about = "sparse linear layer, the best of a path of elastic nets"
    needs = "baselines"

    def predictor(self, model: nn.Module, *, seed: int = 0) -> Fitted:
        """Softmax of the logits."""
        return Dense().predictor(model, seed=seed)

    def fit(self, head: nn.Linear, train: FeatureSet, val: FeatureSet, *, seed: int = 0) -> Fitted:
        """Follow the path from no weight at all; of the given head only the number of classes is used."""
        steps = path(train, val, seed=seed, num_classes=head.out_features)
        best = min(steps, key=lambda step: step.nll)
        note = f"penalty {best.lam:.2g} on {best.source}, nnz {best.nnz:.3f}"
        return replace(self.predictor(best.head, seed=seed), note=note)


def path(
    train: FeatureSet,
    val: FeatureSet,
    *,
    num_points: int | None = None,
    epochs: int | None = None,
    seed: int = 0,
    num_classes: int | None = None,
) -> list[Step]:
    """Sparse heads from empty to nearly dense, learnt from the source whose best head predicts best.

    Each penalty starts from the solution of the one before. It is not solved to convergence: each sees about 150,000
    examples (3 epochs of 50,000, 15 of 4,000), and for N C K above 1.28e9 a seeded part of the training features. Heads of
    the training features are divided by the temperature that suits most of the validation features. With 50,000 x 256
    features of 100 classes it takes two to three minutes of one core.

    Args:
        train: features that the backbone has seen.
        val: features that it has not seen.
        num_points: penalties, 15 by default, evenly in the logarithm, from the least that leaves no weight to a
            thousandth of it.
        epochs: of each penalty, in place of the bound above.
        seed: of the order of the examples and of the held-out fifth.
        num_classes: C; by default the labels say.
    """
    num_points = NUM_POINTS if num_points is None else num_points
    if num_points < 2:
        raise InputError(f"a path has at least two points, got num_points={num_points}.")
    task = Task.of(train, val, seed=seed)
    classes = num_classes or 1 + int(max(train.labels.max(), val.labels.max()))
    paths = []
    for name, source in task.sources():
        rows = _affordable(source, classes, seed)
        steps = _follow(rows, classes, num_points=num_points, epochs=epochs or _epochs(len(rows)), seed=seed)
        paths.append([_judged(lam, head, name, task) for lam, head in steps])
    return min(paths, key=lambda steps: min(step.nll for step in steps))


def _judged(lam: float, head: nn.Linear, source: str, task: Task) -> Step:
    if source == "train":  # what the backbone has seen looks easier than it is
        head = at_best_temperature(head, task.fitting)
    nll = judge(Dense(), head, task, "").nll
    return Step(lam, Size.of(head).nnz, head.requires_grad_(False), nll, source)


def _epochs(num_data: int) -> int:
    return max(1, min(_EPOCHS, round(_VISITS / num_data)))


def _affordable(data: FeatureSet, num_classes: int, seed: int) -> FeatureSet:
    """A seeded part of the examples, at most ``_WORK`` / (C K), in float32."""
    most = max(1, int(_WORK / (num_classes * data.features.size(1))))
    order = torch.randperm(len(data), generator=torch.Generator().manual_seed(seed))[:most]
    chosen = data.take(order)
    return FeatureSet(chosen.features.float(), chosen.labels)


class _Loader:
    """Batches as the package takes them: features, labels, which examples; in another order each epoch."""

    def __init__(self, features: Tensor, labels: Tensor, seed: int) -> None:
        self.features, self.labels = features, labels
        self.generator = torch.Generator().manual_seed(seed)

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        for rows in torch.randperm(len(self.labels), generator=self.generator).split(_BATCH):
            yield self.features[rows], self.labels[rows], rows


@torch.no_grad()
def _follow(
    data: FeatureSet, num_classes: int, *, num_points: int, epochs: int, seed: int
) -> Iterator[tuple[float, nn.Linear]]:
    """Penalties and heads of the features as they are, the largest penalty first."""
    package = _package()
    mean, std = data.features.mean(dim=0), data.features.std(dim=0)
    std = torch.where(std > 0, std, 1.0)
    scaled = (data.features - mean) / std
    linear, state = _empty(scaled, data.labels, num_classes)
    loader, rate = _Loader(scaled, data.labels, seed), _rate(scaled)
    largest = package.maximum_reg(scaled, data.labels, group=False) / ALPHA
    for lam in torch.logspace(math.log10(largest), math.log10(largest / _RANGE), num_points):
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="Implicit dimension choice")
            state = package.train_saga(
                linear, loader, rate, epochs, lam, ALPHA, group=False, state=state, n_ex=len(data),
                n_classes=num_classes, tol=_TOLERANCE, lookbehind=_PATIENCE, logger=lambda _: None,
            )  # fmt: skip
        yield float(lam), _unscaled(linear, mean, std)


def _empty(scaled: Tensor, labels: Tensor, num_classes: int) -> tuple[nn.Linear, dict[str, Tensor]]:
    """The solution with no weight, whose bias has the classes' frequencies, and SAGA's table of gradients there."""
    linear, C = _blank(scaled.size(1), num_classes), num_classes
    frequency = (torch.bincount(labels, minlength=C) + 1e-3) / (len(labels) + 1e-3 * C)
    linear.weight.zero_()
    linear.bias.copy_(frequency.log())
    slopes = frequency - nn.functional.one_hot(labels, C)
    averages = {"w_grad_avg": slopes.t() @ scaled / len(labels), "b_grad_avg": slopes.mean(dim=0)}
    return linear, {"a_table": slopes, **averages}


def _rate(scaled: Tensor) -> float:
    r"""One over a bound of the loss's curvature in a batch, :math:`(\lambda_{max} + \max_n \|z_n\|^2 / B) / 2`."""
    spread = torch.linalg.eigvalsh(scaled.t() @ scaled / len(scaled))[-1]
    return float(2 / (spread + scaled.square().sum(dim=1).max() / _BATCH))


def _unscaled(linear: nn.Linear, mean: Tensor, std: Tensor) -> nn.Linear:
    """The head of raw features that gives the same logits."""
    head = _blank(linear.in_features, linear.out_features)
    head.weight.copy_(linear.weight / std)
    head.bias.copy_(linear.bias - head.weight @ mean)
    return head


def _blank(in_features: int, out_features: int) -> nn.Linear:
    """A linear layer with no values yet; the usual one draws them from the global generator."""
    blank: nn.Linear = nn.utils.skip_init(nn.Linear, in_features, out_features)
    return blank


def _package() -> Any:
    try:
        return importlib.import_module("glm_saga.elasticnet")
    except ImportError as error:
        raise MissingExtraError("the elastic net", extra="baselines") from error

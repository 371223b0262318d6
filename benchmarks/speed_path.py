"""A path of 20 sparse heads on 50,000 x 512 features of 100 classes: `bndl.sparsify` against glm_saga.

    python benchmarks/speed_path.py [--cache runs/features] [--rounds 1] [--converged 4]

The features are those of the pretrained CIFAR-100 ResNet-32 (256 of them, as they are; from the folder that BNDL_DATA
names) and 256 random non-negative mixtures of them, ReLU(z R) of the standardised z; the dense head is fitted to all 512.
Both paths learn from the same examples: all training features and one half of the validation features. The other half is
for our choices; glm_saga has none to make.

glm_saga gets three epochs a penalty (``--epochs``), far from converged. ``--converged 4`` also solves every fourth penalty
as its authors do, to its own stopping rule (an objective that falls by less than 1e-4 for 3 epochs, at most 2,000 epochs;
main.py of Debuggable Networks). Its batch size and rate are those that suit it best here (see bndl.baselines.elastic_net),
and it follows as many penalties as we make points, in place of its 100.

Times are processor time, which a busy machine disturbs least: all of ours (calibration of the dense and of the chosen head,
choosing, the noise and the figures of each point), and of glm_saga its steps alone. Accuracies are those of the test half,
glm_saga's interpolated in the logarithm of the number of weights.
"""

import argparse
import itertools
import math
import sys
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn

import bndl
from bndl.baselines import elastic_net
from bndl.bench import Claim, Record, main
from bndl.bench.race import Spread
from bndl.compare.subjects import Subject, find_source
from bndl.features import FeatureSet
from bndl.sparsify.run import parts

MOST_EPOCHS = 2000


def widened(subject: Subject, num_features: int) -> dict[str, FeatureSet]:
    """Each part's features and random non-negative mixtures of them."""
    base = subject.train.features.float()
    mean, std = base.mean(dim=0), base.std(dim=0).clamp_min(1e-6)
    extra = num_features - base.size(1)
    mix = torch.randn(base.size(1), extra, generator=torch.Generator().manual_seed(0)) / math.sqrt(base.size(1))

    def of(data: FeatureSet) -> FeatureSet:
        features = data.features.float()
        return FeatureSet(torch.cat([features, ((features - mean) / std @ mix).relu()], dim=1), data.labels)

    return {part: of(getattr(subject, part)) for part in ("train", "val", "test")}


def dense_head(train: FeatureSet, num_classes: int, *, epochs: int = 8) -> nn.Linear:
    """A linear head, trained on the training features with a rate that falls to zero."""
    generator = torch.Generator().manual_seed(0)
    torch.manual_seed(0)
    head = nn.Linear(train.features.size(1), num_classes)
    optimizer = torch.optim.AdamW(head.parameters(), lr=2e-3, weight_decay=1e-2)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, epochs * math.ceil(len(train) / 256))
    for _ in range(epochs):
        for rows in torch.randperm(len(train), generator=generator).split(256):
            optimizer.zero_grad()
            nn.functional.cross_entropy(head(train.features[rows]), train.labels[rows]).backward()
            optimizer.step()
            schedule.step()
    return head.requires_grad_(False)


@torch.no_grad()
def accuracy(model: nn.Module, data: FeatureSet) -> float:
    return float((model.eval()(data.features).argmax(dim=1) == data.labels).double().mean())


def run_ours(head: nn.Linear, data: dict[str, FeatureSet], num_points: int) -> tuple[float, list[dict[str, Any]]]:
    """Seconds, and the points with their accuracy."""
    layer = bndl.convert(head, features="nonnegative")
    started = time.process_time()
    path = bndl.sparsify(layer, data["train"], data["val"], num_points=num_points, progress=False)
    seconds = time.process_time() - started
    both = zip(path.points, path, strict=True)
    return seconds, [{"nnz": point.nnz, "test": accuracy(model, data["test"])} for point, model in both]


@torch.no_grad()
def glm_saga(
    data: FeatureSet, num_classes: int, *, num_points: int, epochs: int, every: int = 1
) -> Iterator[tuple[nn.Linear, dict[str, Any]]]:
    """Heads along the penalties, each from where the one before ended, with what they took."""
    package = elastic_net._package()
    started = time.process_time()
    mean, std = data.features.mean(dim=0), data.features.std(dim=0).clamp_min(1e-12)
    scaled = (data.features - mean) / std
    linear, state = elastic_net._empty(scaled, data.labels, num_classes)
    loader, rate = elastic_net._Loader(scaled, data.labels, 0), elastic_net._rate(scaled)
    largest = package.maximum_reg(scaled, data.labels, group=False) / elastic_net.ALPHA
    penalties = torch.logspace(math.log10(largest), math.log10(largest / elastic_net._RANGE), num_points)
    for index in range(every - 1, num_points, every):
        said: list[str] = []
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="Implicit dimension choice")
            state = package.train_saga(
                linear, loader, rate, epochs, penalties[index], elastic_net.ALPHA, group=False, state=state, verbose=1,
                n_ex=len(data), n_classes=num_classes, tol=1e-4, lookbehind=3, logger=said.append,
            )  # fmt: skip
        taken = {
            "penalty": index + 1,
            "nnz": float((linear.weight.abs() > 1e-5).double().mean()),
            "epochs": len(said) - 1,
            "stopped": "early stop" in said[-1],
            "seconds": time.process_time() - started,
        }
        yield elastic_net._unscaled(linear, mean, std), taken


def run_glm_saga(data: dict[str, FeatureSet], num_classes: int, **options: int) -> tuple[float, list[dict[str, Any]]]:
    """Seconds, and the points with their accuracy, each told as it comes."""
    fitting = parts(data["train"], data["val"], torch.Generator().manual_seed(0))[0]
    both = FeatureSet(torch.cat([d.features for d in fitting]), torch.cat([d.labels for d in fitting]))
    points: list[dict[str, Any]] = []
    for head, taken in glm_saga(both, num_classes, **options):
        points.append({**taken, "test": accuracy(head, data["test"])})
        print("  glm_saga, penalty {penalty}: nnz {nnz:.4f}, accuracy {test:.2%}, {epochs} epochs, {seconds:.0f} s"
              .format(**points[-1]), flush=True)  # fmt: skip
    return points[-1]["seconds"], points


def interpolated(path: list[dict[str, Any]], nnz: float) -> float:
    """The other path's accuracy at a share of the weights; nan outside its range."""
    for (low, first), (high, second) in itertools.pairwise(sorted((point["nnz"], point["test"]) for point in path)):
        if 0 < low <= nnz <= high and low < high:
            return first + (second - first) * math.log(nnz / low) / math.log(high / low)
    return math.nan


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--points", type=int, default=20)
    parser.add_argument("--epochs", type=int, default=3, help="of glm_saga, a penalty (default: 3)")
    parser.add_argument(
        "--converged", type=int, metavar="N", help="also solve every N-th penalty to glm_saga's own stopping rule"
    )
    parser.add_argument("--features", type=int, default=512)
    parser.add_argument("--checkpoint", default="resnet32_cifar100")
    parser.add_argument("--cache", type=Path, default=Path("runs/features"))


def measure(args: argparse.Namespace) -> Record:
    torch.set_num_threads(1)  # processor time is then that of the work
    subject = find_source(args.checkpoint, cache=args.cache).subject
    C, data = subject.head.out_features, widened(subject, args.features)
    head = dense_head(data["train"], C)
    ours, theirs = [], []
    for number in range(args.rounds):
        ways = [lambda: ours.append(run_ours(head, data, args.points)),
                lambda: theirs.append(run_glm_saga(data, C, num_points=args.points, epochs=args.epochs))]  # fmt: skip
        for way in ways[:: -1 if number % 2 else 1]:
            way()
    ratios = [other / own for (own, _), (other, _) in zip(ours, theirs, strict=True)]
    path, few = ours[0][1], theirs[0][1]
    named = f"glm_saga, {args.epochs} epochs, %"
    rows = [
        {"nnz": round(p["nnz"], 4), "ours, %": 1e2 * p["test"], named: 1e2 * interpolated(few, p["nnz"])} for p in path
    ]
    seconds = [Spread.of([taken for taken, _ in found]).median for found in (ours, theirs)]
    notes = [
        f"dense: {accuracy(head, data['test']):.2%}; ours {seconds[0]:.1f} s, glm_saga at {args.epochs} epochs a penalty "
        f"{seconds[1]:.0f} s of processor time; it had converged at {sum(p['stopped'] for p in few)} of {len(few)} penalties"
    ]
    claims = [Claim(f"glm_saga, {args.epochs} epochs a penalty / bndl.sparsify", Spread.of(ratios), 10, "at least")]
    if args.converged:
        taken, points = run_glm_saga(data, C, num_points=args.points, epochs=MOST_EPOCHS, every=args.converged)
        ratio = taken / seconds[0]
        about = f"glm_saga, converged, {len(points)} of {args.points} penalties / bndl.sparsify, all"
        claims.append(Claim(about, Spread(ratio, ratio, ratio), 10, "at least"))
        notes += [
            f"converged: nnz {p['nnz']:.4f}, {p['test']:.2%} (ours there {interpolated(path, p['nnz']):.2%}), "
            f"{p['epochs']} epochs" for p in points
        ]  # fmt: skip
    settings = {"rows": len(data["train"]), "K": args.features, "C": C, "points": args.points, "rounds": args.rounds}
    about = "a path of sparse heads, and its accuracy"
    return Record("speed_path", about, rows, claims, settings, ("glm_saga",), notes)


if __name__ == "__main__":
    sys.exit(main(__doc__, measure, add_arguments, rounds=1))

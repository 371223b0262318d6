"""What a constant of the sparse path is worth, on data that is not the test part.

    python benchmarks/sparse_choices.py [resnet32_cifar100] [--seeds 3] [--mode prune] [--set _EXCHANGES=0 ...]

CIFAR: one half of the validation part serves the path, the other is measured on. Fewer than 20,000 training images: training
and validation images are split anew, a fifth to measure on. `--set` gives names of :mod:`bndl.sparsify.walk`, `refit` or
`pool` another number, so two runs are a comparison. Prints Markdown: accuracy and NLL between the points, in ln nnz, with
the standard error of the mean over the seeds, which split and order the examples.
"""

import argparse
import itertools
import math
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn

from bndl import sparsify
from bndl.baselines.bndl import takes_nonnegative
from bndl.baselines.method import fresh
from bndl.compare.subjects import find_source
from bndl.convert import convert, find_layer
from bndl.data import stratified_split
from bndl.features import FeatureSet
from bndl.sparsify import pool, refit, walk

FEW = 20_000
SHARES = 0.5, 0.3, 0.2, 0.1, 0.05, 0.03, 0.02, 0.01, 0.0079, 0.00525, 0.0043, 0.003, 0.002, 0.0013


def split(data: FeatureSet, share: float, seed: int) -> tuple[FeatureSet, FeatureSet]:
    indices = stratified_split(data.labels.numpy(), {"test": share}, seed=seed).indices
    rest, taken = (data.take(torch.as_tensor(indices[part])) for part in ("train", "test"))
    return rest, taken


def parts(train: FeatureSet, val: FeatureSet, seed: int) -> tuple[FeatureSet, FeatureSet, FeatureSet]:
    """What the weights learn from, what chooses, and what is measured on."""
    if len(train) >= FEW:
        return train, *split(val, 0.5, seed)
    whole = FeatureSet(torch.cat([train.features, val.features]), torch.cat([train.labels, val.labels]))
    rest, kept = split(whole, 0.2, seed)
    return *split(rest, 0.1, seed), kept


@torch.no_grad()
def measure(layer: nn.Module, data: FeatureSet) -> torch.Tensor:
    """Accuracy in per cent and NLL of the mean head."""
    logits = layer.eval()(data.features.float())
    right = (logits.argmax(dim=1) == data.labels).double().mean()
    return torch.stack([100 * right, F.cross_entropy(logits, data.labels).double()])


def between(points: list[tuple[float, torch.Tensor]], share: float) -> torch.Tensor | None:
    """Linear in ln nnz; None outside the path."""
    for (low, a), (high, b) in itertools.pairwise(points):
        if low <= share <= high and low < high:
            return a + (b - a) * math.log(share / low) / math.log(high / low)
    return None


def give(settings: list[str]) -> None:
    for setting in settings:
        name, _, number = setting.partition("=")
        module = next((m for m in (walk, refit, pool) if hasattr(m, name)), None)
        if module is None:
            raise SystemExit(f"{name} is no constant of bndl.sparsify.walk, refit or pool.")
        setattr(module, name, type(getattr(module, name))(float(number)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("subject", nargs="?", default="resnet32_cifar100")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--mode", choices=("prune", "threshold"), default="prune")
    parser.add_argument("--set", nargs="*", default=[], metavar="NAME=NUMBER")
    parser.add_argument("--cache", type=Path, default=Path("runs/features"))
    args = parser.parse_args()
    give(args.set)
    subject = find_source(args.subject, cache=args.cache, ood={}).subject
    kind = "nonnegative" if takes_nonnegative(subject.val) else "signed"
    dense = find_layer(convert(fresh(subject.head), features=kind))
    found: dict[float, list[torch.Tensor]] = {share: [] for share in SHARES}
    for seed in range(args.seeds):
        train, val, kept = parts(subject.train, subject.val, seed)
        path = sparsify(dense, train, val, mode=args.mode, seed=seed, progress=False)
        points = sorted(
            ((p.nnz, measure(layer, kept)) for p, layer in zip(path.points, path, strict=True)), key=lambda p: p[0]
        )
        for share in SHARES:
            value = between(points, share)
            if value is not None:
                found[share].append(value)
    print(f"{args.subject}, {args.mode}, {args.seeds} seeds, {' '.join(args.set) or 'as it is'}\n")
    print("| nnz | accuracy | NLL |\n|---|---|---|")
    for share, values in found.items():
        if len(values) == args.seeds:
            table = torch.stack(values)
            error = table.std(dim=0) / math.sqrt(len(table)) if len(table) > 1 else torch.full((2,), math.nan)
            (accuracy, nll), (of_accuracy, of_nll) = table.mean(dim=0).tolist(), error.tolist()
            print(f"| {share} | {accuracy:.2f} ± {of_accuracy:.2f} % | {nll:.3f} ± {of_nll:.3f} |")


if __name__ == "__main__":
    main()

"""What a constant of the sparse path is worth, on data that is not the test part.

    python benchmarks/sparse_choices.py [resnet32_cifar100] [--seeds 3] [--mode prune] [--set _EXCHANGES=0 ...]

CIFAR: one half of the validation part serves the path, the other is measured on. Fewer than 20,000 training images: training
and validation images are split anew, a fifth to measure on, and a dense head learns from the rest, so that it has not seen
what is measured on (nor must the backbone: Imagenette's learnt elsewhere). `--set` gives names of `bndl.sparsify.walk`,
`refit` or `pool` another number, for a second path from the same head on the same examples. Prints Markdown: accuracy and
NLL of the mean head, between the points in ln nnz, and what the numbers change, each with the standard error of the mean
over the seeds.
"""

import argparse
import itertools
import math
from pathlib import Path
from typing import Literal

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
EPOCHS, BATCH = 100, 128
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


def learnt(head: nn.Linear, data: FeatureSet, seed: int) -> nn.Linear:
    """A dense head of the same size that has seen these examples alone, as the recipe trains one."""
    generator = torch.Generator().manual_seed(seed)
    new = fresh(head)
    with torch.no_grad():
        new.weight.normal_(0, new.in_features**-0.5, generator=generator)
        new.bias.zero_()
    optimizer = torch.optim.SGD(new.parameters(), lr=0.1, momentum=0.9)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, EPOCHS)
    for _ in range(EPOCHS):
        for rows in torch.randperm(len(data), generator=generator).split(BATCH):
            optimizer.zero_grad()
            F.cross_entropy(new(data.features[rows].float()), data.labels[rows]).backward()
            optimizer.step()
        schedule.step()
    return new


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


def give(settings: list[str]) -> list[str]:
    """Set constants; returns the settings that undo it."""
    before = []
    for setting in settings:
        name, _, number = setting.partition("=")
        module = next((m for m in (walk, refit, pool) if hasattr(m, name)), None)
        if module is None:
            raise SystemExit(f"{name} is no constant of bndl.sparsify.walk, refit or pool.")
        before.append(f"{name}={getattr(module, name)}")
        setattr(module, name, type(getattr(module, name))(float(number)))
    return before


def shown(values: list[torch.Tensor]) -> str:
    """Accuracy and NLL with their standard errors, as two cells."""
    table = torch.stack(values)
    error = table.std(dim=0) / math.sqrt(len(table)) if len(table) > 1 else torch.full((2,), math.nan)
    (accuracy, nll), (of_accuracy, of_nll) = table.mean(dim=0).tolist(), error.tolist()
    return f"{accuracy:.2f} ± {of_accuracy:.2f} | {nll:.3f} ± {of_nll:.3f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("subject", nargs="?", default="resnet32_cifar100")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--mode", choices=("prune", "threshold"), default="prune")
    parser.add_argument("--set", nargs="*", default=[], metavar="NAME=NUMBER")
    parser.add_argument("--cache", type=Path, default=Path("runs/features"))
    args = parser.parse_args()
    subject = find_source(args.subject, cache=args.cache, ood={}).subject
    kind: Literal["nonnegative", "signed"] = "nonnegative" if takes_nonnegative(subject.val) else "signed"
    found: dict[float, list[list[torch.Tensor]]] = {share: [] for share in SHARES}
    for seed in range(args.seeds):
        train, val, kept = parts(subject.train, subject.val, seed)
        head = fresh(subject.head) if train is subject.train else learnt(subject.head, train, seed)
        dense = find_layer(convert(head, features=kind))
        paths = []
        for settings in [[], args.set] if args.set else [[]]:
            undo = give(settings)
            path = sparsify(dense, train, val, mode=args.mode, seed=seed, progress=False)
            give(undo)
            points = ((point.nnz, measure(layer, kept)) for point, layer in zip(path.points, path, strict=True))
            paths.append(sorted(points, key=lambda point: point[0]))
        for share in SHARES:
            values = [value for points in paths if (value := between(points, share)) is not None]
            if len(values) == len(paths):
                found[share].append(values)
    print(
        f"{args.subject}, {args.mode}, {args.seeds} seeds{', changed by ' + ' '.join(args.set) if args.set else ''}\n"
    )
    print("| nnz | accuracy % | NLL |" + (" change of accuracy | of NLL |" if args.set else ""))
    print("|---|---|---|" + ("---|---|" if args.set else ""))
    for share, seeds in found.items():
        if len(seeds) == args.seeds:
            cells = [shown([values[0] for values in seeds])]
            cells += [shown([values[1] - values[0] for values in seeds])] if args.set else []
            print(f"| {share} | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()

"""Time of a path of 20 sparse heads, ours against glm_saga's, on 50,000 x 512 features of 100 classes.

    python benchmarks/sparsity_path.py [--points 20] [--epochs 3] [--cache runs/features]

The features are those of the pretrained CIFAR-100 ResNet-32 (256 of them, as they are) and 256 random non-negative mixtures
of them, ReLU(z R) of the standardised z; the dense head is fitted to all 512. Both paths learn from the same training
features in one process, one after the other. Printed is processor time, which a busy machine disturbs least: all of ours
(the calibration of the dense and of the chosen head, choosing on validation features, the noise of each point), and of
glm_saga its steps alone. In the few epochs a penalty that it is given here it does not converge: more raise its time in
proportion. Accuracies are those of the test half at the same number of weights, glm_saga's interpolated in the logarithm.
"""

import argparse
import itertools
import math
import time
from pathlib import Path

import torch
from torch import Tensor, nn

import bndl
from bndl.baselines import elastic_net
from bndl.compare.subjects import Subject, find_source
from bndl.features import FeatureSet


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


def dense_head(train: FeatureSet, num_classes: int, *, epochs: int = 4) -> nn.Linear:
    torch.manual_seed(0)
    head = nn.Linear(train.features.size(1), num_classes)
    optimizer = torch.optim.AdamW(head.parameters(), lr=2e-3, weight_decay=1e-2)
    for _ in range(epochs):
        for rows in torch.randperm(len(train)).split(256):
            optimizer.zero_grad()
            nn.functional.cross_entropy(head(train.features[rows]), train.labels[rows]).backward()
            optimizer.step()
    return head


@torch.no_grad()
def accuracy(logits: Tensor, labels: Tensor) -> float:
    return float((logits.argmax(dim=1) == labels).double().mean())


def interpolated(path: list[tuple[float, float]], nnz: float) -> float:
    """The other path's accuracy at a share of the weights; nan outside its range."""
    path = sorted(path)
    for (low, first), (high, second) in itertools.pairwise(path):
        if 0 < low <= nnz <= high and low < high:
            return first + (second - first) * math.log(nnz / low) / math.log(high / low)
    return math.nan


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--points", type=int, default=20)
    parser.add_argument("--epochs", type=int, default=3, help="of glm_saga, a penalty")
    parser.add_argument("--features", type=int, default=512)
    parser.add_argument("--checkpoint", default="resnet32_cifar100")
    parser.add_argument("--cache", type=Path, default=Path("runs/features"))
    args = parser.parse_args()
    subject = find_source(args.checkpoint, cache=args.cache).subject
    C, data = subject.head.out_features, widened(subject, args.features)
    test = data["test"]
    head = dense_head(data["train"], C)
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads")
    print(f"{len(data['train']):,} x {args.features} features, {C} classes")
    print(f"dense: accuracy {accuracy(head(test.features), test.labels):.2%}", flush=True)
    layer = bndl.convert(head, features="nonnegative")
    started, clock = time.process_time(), time.perf_counter()
    path = bndl.sparsify(layer, data["train"], data["val"], num_points=args.points, progress=False)
    ours = time.process_time() - started
    print(f"ours: {len(path)} points, {ours:.0f} s of processor time, {time.perf_counter() - clock:.0f} s", flush=True)
    found: list[tuple[float, float]] = []
    started, clock = time.process_time(), time.perf_counter()
    steps = elastic_net._follow(data["train"], C, num_points=args.points, epochs=args.epochs, seed=0)
    for _, other in steps:
        nnz = float((other.weight.abs() > 1e-5).double().mean())
        found.append((nnz, accuracy(other(test.features), test.labels)))
        spent = time.process_time() - started
        print(f"  penalty {len(found)}: nnz {nnz:.4f}, accuracy {found[-1][1]:.2%}, {spent:.0f} s", flush=True)
    theirs = time.process_time() - started
    print(
        f"glm_saga: {args.points} penalties, {args.epochs} epochs, {theirs:.0f} s, {time.perf_counter() - clock:.0f} s"
    )
    print(f"ratio: {theirs / ours:.1f}\n\n| nnz | ours | glm_saga |\n|---|---|---|")
    for point, model in zip(path.points, path, strict=True):
        own = accuracy(model.eval()(test.features), test.labels)
        print(f"| {point.nnz:.4f} | {own:.2%} | {interpolated(found, point.nnz):.2%} |")


if __name__ == "__main__":
    main()

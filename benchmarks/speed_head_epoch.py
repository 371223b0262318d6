"""An epoch of head-only training on cached features: `bndl.fit` against a dense `nn.Linear` trained the same way.

    python benchmarks/speed_head_epoch.py [--features 512] [--classes 100] [--examples 50000] [--batch 256]

AdamW, the same batches, in one process, in turns. An epoch of `fit` is the difference between a fit of two epochs and one of
one epoch, which leaves out what is done once (reading, calibrating).
"""

import argparse
import sys
import time

import torch
import torch.nn.functional as F
from torch import nn

import bndl
from bndl.bench import Claim, Record, main
from bndl.bench.race import Spread
from bndl.features import FeatureSet


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--examples", type=int, default=50_000)
    parser.add_argument("--features", type=int, default=512)
    parser.add_argument("--classes", type=int, default=100)
    parser.add_argument("--batch", type=int, default=256)


def dense_epoch(data: FeatureSet, C: int, batch: int) -> float:
    head = nn.Linear(data.features.size(1), C)
    optimizer = torch.optim.AdamW(head.parameters(), lr=1e-3, weight_decay=0.0)
    started = time.process_time()
    for rows in torch.randperm(len(data)).split(batch):
        own = data.take(rows)
        loss = F.cross_entropy(head(own.features), own.labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return time.process_time() - started


def fit_seconds(data: FeatureSet, val: FeatureSet, C: int, batch: int, epochs: int) -> float:
    layer = bndl.DecisionLayer(data.features.size(1), C)
    started = time.process_time()
    bndl.fit(layer, data, val, epochs=epochs, lr=1e-3, batch_size=batch, progress=False)
    return time.process_time() - started


def measure(args: argparse.Namespace) -> Record:
    generator = torch.Generator().manual_seed(0)
    K, C = args.features, args.classes
    h, truth = torch.rand(args.examples + 200, K, generator=generator), torch.randn(K, C, generator=generator)
    labels = (h @ truth).argmax(1)
    data, val = FeatureSet(h[200:], labels[200:]), FeatureSet(h[:200], labels[:200])
    taken: dict[str, list[float]] = {"dense": [], "BNDL": []}
    for _ in range(args.rounds + 1):
        taken["dense"].append(dense_epoch(data, C, args.batch))
        one, two = (fit_seconds(data, val, C, args.batch, epochs) for epochs in (1, 2))
        taken["BNDL"].append(two - one)
    dense, ours = (Spread.of(values[1:]) for values in taken.values())
    ratio = Spread.of([b / a for a, b in zip(taken["dense"][1:], taken["BNDL"][1:], strict=True)])
    rows = [{"": name, "s an epoch": round(s.median, 3)} for name, s in (("dense", dense), ("BNDL", ours))]
    settings = {"examples": args.examples, "K": K, "C": C, "batch": args.batch, "rounds": args.rounds}
    claim = Claim("epoch of BNDL / dense", ratio, 2.0, "at most")
    return Record("speed_head_epoch", "head-only training on cached features", rows, [claim], settings)


if __name__ == "__main__":
    sys.exit(main(__doc__, measure, add_arguments, rounds=5))

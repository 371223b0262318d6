"""An epoch of head-only training on cached features: `bndl.fit` against a dense `nn.Linear` trained the same way.

    python benchmarks/speed_head_epoch.py [--features 512] [--classes 100] [--examples 50000] [--batch 256]

AdamW, the same batches, in one process, in turns. Of `fit` this is what trains the weights, the look at the validation data
after each epoch included; the calibration that follows is done once, whatever the number of epochs.
"""

import argparse
import sys

import torch
import torch.nn.functional as F
from torch import nn

import bndl
from bndl.bench import Claim, Record, main, race
from bndl.elbo import train_weights
from bndl.features import FeatureSet
from bndl.fit import _frozen_task
from bndl.objective import resolve


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--examples", type=int, default=50_000)
    parser.add_argument("--features", type=int, default=512)
    parser.add_argument("--classes", type=int, default=100)
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--epochs", type=int, default=2, help="a round")


def dense_epochs(data: FeatureSet, C: int, batch: int, epochs: int) -> None:
    head = nn.Linear(data.features.size(1), C)
    optimizer = torch.optim.AdamW(head.parameters(), lr=1e-3, weight_decay=0.0)
    for _ in range(epochs):
        for rows in torch.randperm(len(data)).split(batch):
            own = data.take(rows)
            loss = F.cross_entropy(head(own.features), own.labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()


def our_epochs(data: FeatureSet, val: FeatureSet, C: int, batch: int, epochs: int) -> None:
    layer, generator = bndl.DecisionLayer(data.features.size(1), C), torch.Generator().manual_seed(0)
    task = _frozen_task(layer, data, torch.arange(len(data)), val, batch, resolve("default"), generator)
    assert train_weights(task, layer, epochs, (1e-3,), False).history[-1].number == epochs  # it did not stop before


def measure(args: argparse.Namespace) -> Record:
    generator = torch.Generator().manual_seed(0)
    K, C = args.features, args.classes
    h, truth = torch.rand(args.examples + 200, K, generator=generator), torch.randn(K, C, generator=generator)
    labels = (h @ truth).argmax(1)
    data, val = FeatureSet(h[200:], labels[200:]), FeatureSet(h[:200], labels[:200])
    ways = {
        "dense": lambda: dense_epochs(data, C, args.batch, args.epochs),
        "BNDL": lambda: our_epochs(data, val, C, args.batch, args.epochs),
    }
    found = race(ways, rounds=args.rounds)
    rows = [{"": name, "s an epoch": round(found.time(name).median / args.epochs, 3)} for name in ways]
    settings = {"examples": args.examples, "K": K, "C": C, "batch": args.batch, "rounds": args.rounds}
    claim = Claim("epoch of BNDL / dense", found.ratio("BNDL", "dense"), 2.0, "at most")
    return Record("speed_head_epoch", "head-only training on cached features", rows, [claim], settings)


if __name__ == "__main__":
    sys.exit(main(__doc__, measure, add_arguments, rounds=7))

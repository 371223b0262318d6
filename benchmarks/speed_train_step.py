"""A training step with a decision layer against the same step with a dense head.

    python benchmarks/speed_train_step.py                      # ResNet-18, full width, batch 64
    python benchmarks/speed_train_step.py --width 8 --batch 128 --rounds 40

Forward, loss, backward, update; in one process, in turns, on the same random images. With a prior (beta > 0) the step has
the KL term as well; the recipes from scratch have none.
"""

import argparse
import sys
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import nn

import bndl
from bndl.backbones import build
from bndl.bench import Claim, Record, main, race


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--width", type=int, default=64, help="channels of the first stage (64: full width)")
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--classes", type=int, default=10)


def step_of(model: nn.Module, args: argparse.Namespace, *, prior: bool = False) -> Callable[[], None]:
    """A closure that makes one whole step."""
    model.train().to(memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, weight_decay=5e-4)
    images = torch.rand(args.batch, 3, 32, 32).to(memory_format=torch.channels_last)
    labels = torch.randint(0, args.classes, (args.batch,))

    def step() -> None:
        loss = F.cross_entropy(model(images), labels)
        if prior:
            loss = loss + bndl.kl(model, num_data=50_000)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    return step


def measure(args: argparse.Namespace) -> Record:
    torch.manual_seed(0)

    def network() -> nn.Module:
        return build("resnet18", args.classes, width=args.width).model

    ways = {
        "dense": step_of(network(), args),
        "BNDL": step_of(bndl.convert(network()), args),
        "BNDL with a prior": step_of(bndl.convert(network()), args, prior=True),
    }
    found = race(ways, rounds=args.rounds)
    rows = [
        {
            "": name,
            "ms": round(1e3 * found.time(name).median, 1),
            "times dense": round(found.ratio(name, "dense").median, 3),
            "quartiles": "{0.low:.3f} to {0.high:.3f}".format(found.ratio(name, "dense")),
        }
        for name in ways
    ]
    claims = [Claim(f"step of {name} / dense", found.ratio(name, "dense"), 1.05, "at most") for name in list(ways)[1:]]
    settings = {"backbone": f"ResNet-18 width {args.width}", "batch": args.batch, "rounds": args.rounds}
    return Record("speed_train_step", "a training step of the whole network", rows, claims, settings)


if __name__ == "__main__":
    sys.exit(main(__doc__, measure, add_arguments, rounds=15))

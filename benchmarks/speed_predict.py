"""`bndl.predict` (full uncertainty) against the plain forward pass of the same network, and against 20 passes.

    python benchmarks/speed_predict.py [--batch 64] [--rounds 7]

ResNet-18 at full width on CIFAR-sized images. 20 stochastic passes are what the paper's code makes for an estimate, and what
MC dropout makes. All in one process, in turns, on the same random images.
"""

import argparse
import copy
import sys

import torch
from torch import nn

import bndl
from bndl.backbones import build
from bndl.bench import Claim, Record, main, race
from bndl.convert import find_linear

PASSES = 20
MORE = 5  # rounds of the ways that pass once, for each of those that pass 20 times


class Dropping(nn.Module):
    """A network whose last layer sees its features through dropout."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        name, head = find_linear(network)
        network.set_submodule(name, nn.Sequential(nn.Dropout(0.1), head))
        self.network = network

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.network(x)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--width", type=int, default=64, help="channels of the first stage (64: full width)")
    parser.add_argument("--classes", type=int, default=10)


def measure(args: argparse.Namespace) -> Record:
    torch.manual_seed(0)
    dense = build("resnet18", args.classes, width=args.width).model.eval()
    model = bndl.convert(copy.deepcopy(dense)).eval()
    sampling, dropping = bndl.convert(copy.deepcopy(dense)).eval(), Dropping(copy.deepcopy(dense)).eval()
    for module in (*sampling.modules(), *dropping.modules()):
        if isinstance(module, bndl.DecisionLayer | nn.Dropout):
            module.train()
    x = torch.rand(args.batch, 3, 32, 32)

    def plain() -> None:
        with torch.no_grad():
            dense(x)

    def passes(network: nn.Module) -> None:
        with torch.no_grad():
            torch.stack([network(x).softmax(1) for _ in range(PASSES)]).mean(0)

    short = {
        "plain forward": plain,
        "bndl.predict": lambda: bndl.predict(model, x, batch_size=args.batch),
        "bndl.predict, no draws": lambda: bndl.predict(model, x, method="closed", batch_size=args.batch),
    }
    long = {
        "plain forward": plain,
        "20 passes, as the paper's code": lambda: passes(sampling),
        "20 passes of MC dropout": lambda: passes(dropping),
    }
    races = {**dict.fromkeys(long, race(long, rounds=args.rounds))}
    races |= dict.fromkeys(short, race(short, rounds=MORE * args.rounds))  # a small difference of short times
    rows = [
        {
            "": name,
            "ms": round(1e3 * found.time(name).median, 1),
            "times plain": round(found.ratio(name, "plain forward").median, 3),
            "quartiles": "{0.low:.3f} to {0.high:.3f}".format(found.ratio(name, "plain forward")),
        }
        for name, found in {**dict.fromkeys(short), **races}.items()
    ]
    claim = Claim(
        "predict / plain forward", races["bndl.predict"].ratio("bndl.predict", "plain forward"), 1.05, "at most"
    )
    settings = {"backbone": f"ResNet-18 width {args.width}", "batch": args.batch, "rounds": args.rounds}
    return Record("speed_predict", "full uncertainty from one backbone pass", rows, [claim], settings)


if __name__ == "__main__":
    sys.exit(main(__doc__, measure, add_arguments))

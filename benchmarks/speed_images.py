"""Features of large images on a CPU: a whole batch through the backbone at once, against a few images at a time.

    python benchmarks/speed_images.py [--batch 256] [--side 160] [--rounds 3]

EfficientNet-Lite0, random weights and pixels. "A few at a time" is what `bndl.predict`, the feature cache and `bndl predict`
do by themselves; the features are the same but for float noise.
"""

import argparse
import sys

import torch

import bndl
from bndl.backbones import build
from bndl.bench import Claim, Record, main, race
from bndl.features import evaluating, features_of, portion


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--side", type=int, default=160)


def measure(args: argparse.Namespace) -> Record:
    torch.manual_seed(0)
    model = bndl.convert(build("efficientnet-lite0", 10, size=args.side).model)
    x = torch.rand(args.batch, 3, args.side, args.side)
    ways = {
        "all at once": lambda: features_of(model, x, at_once=True),
        "a few at a time": lambda: features_of(model, x),
    }
    with evaluating(model):
        found = race(ways, rounds=args.rounds)
    images = {"all at once": args.batch, "a few at a time": portion(args.side, args.side)}
    rows = [
        {"": name, "images a pass": images[name], "images/s": round(args.batch / found.time(name).median, 1)}
        for name in ways
    ]
    claim = Claim("all at once / a few at a time", found.ratio("all at once", "a few at a time"), 1.0, "at least")
    settings = {"images": args.batch, "side": args.side, "rounds": args.rounds}
    return Record("speed_images", "large images through a backbone", rows, [claim], settings)


if __name__ == "__main__":
    sys.exit(main(__doc__, measure, add_arguments, rounds=3))

"""A compact head of at most 5 % of the weights against the full decision layer and `nn.Linear`.

    python benchmarks/speed_compact.py [--rounds 25] [--predict [--large]]

All run in turns in one process, on one thread, on the same random features: microseconds a call, its own processor time.
"Kept" is the share of features that still have a weight. With --predict: `bndl.predict`, full against compact.
"""

import argparse
import sys
import time
import warnings
from collections.abc import Callable
from functools import partial

import torch
from torch import nn

import bndl
from bndl.bench import Claim, Race, Record, main, race
from bndl.bench.race import Spread

CASES = [(64, 10), (256, 100), (512, 100), (2048, 1000)]  # the first two are the heads of the CIFAR ResNets
SHARES = [(0.05, 1.0), (0.05, 0.3), (0.01, 0.5)]  # weights left, features kept
BATCHES = [1, 8, 64, 256, 1024]


def sparse_layer(K: int, C: int, *, share: float, kept: float) -> bndl.DecisionLayer:
    generator = torch.Generator().manual_seed(0)
    layer = bndl.DecisionLayer(K, C).eval()
    active = torch.rand(C, K, generator=generator) < share / kept
    active &= torch.rand(K, generator=generator) < kept
    with torch.no_grad():
        layer.weight.copy_(torch.where(active, torch.rand(C, K, generator=generator) + 0.1, -0.1))
    return layer


def repeated(ways: dict[str, Callable[[], object]], *, rounds: int) -> Race:
    """A race of as many calls each as take some milliseconds; seconds are those of one call."""
    calls = {}
    for name, call in ways.items():
        call()
        started = time.thread_time()
        call()
        calls[name] = max(1, min(200, int(0.003 / (time.thread_time() - started + 1e-7))))

    def often(call: Callable[[], object], times: int) -> None:
        for _ in range(times):
            call()

    many = {name: partial(often, call, calls[name]) for name, call in ways.items()}
    found = race(many, rounds=rounds, clock=time.thread_time)
    return Race({name: [taken / calls[name] for taken in seconds] for name, seconds in found.seconds.items()})


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--predict", action="store_true")
    parser.add_argument("--large", action="store_true", help="K = 2048, C = 1000 too, for --predict (minutes)")


@torch.no_grad()
def measure(args: argparse.Namespace) -> Record:
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore", ".*no weight left")
    rows, ratios = [], {"full layer": [], "nn.Linear": []}
    for K, C in CASES if not args.predict else CASES[2 : 3 + args.large]:
        linear = nn.Linear(K, C).eval()
        for share, kept in SHARES:
            full = sparse_layer(K, C, share=share, kept=kept)
            small = bndl.compact(full)
            for B in (1, 1024) if args.predict else BATCHES:
                h = torch.rand(B, K, generator=torch.Generator().manual_seed(1))
                call = (lambda model, h: bndl.predict(model, h)) if args.predict else (lambda model, h: model(h))
                ways = {"full layer": partial(call, full, h), "compact": partial(call, small, h)}
                if not args.predict:
                    ways["nn.Linear"] = partial(linear, h)
                found = repeated(ways, rounds=args.rounds)
                row = {"K, C": f"{K}, {C}", "weights": f"{share:.0%}", "kept K": small.num_features, "batch": B}
                row |= {f"{name}, us": round(1e6 * found.time(name).median) for name in ways}
                for name in ways:
                    if name != "compact":
                        ratios[name].append(found.ratio(name, "compact"))
                        row[f"{name} / compact"] = round(ratios[name][-1].median, 2)
                rows.append(row)
    name = "bndl.predict, full / compact" if args.predict else "full layer / compact"
    claims = [Claim(f"{name}, the least of {len(rows)} cases", least(ratios["full layer"]), 1, "at least")]
    if not args.predict:
        large = [ratio for row, ratio in zip(rows, ratios["nn.Linear"], strict=True) if row["K, C"] == "2048, 1000"]
        claims.append(Claim("nn.Linear / compact at 2048x1000, the least of all batches", least(large), 1, "at least"))
    return Record("speed_compact", "heads of few weights", rows, claims, {"rounds": args.rounds, "threads": 1})


def least(ratios: list[Spread]) -> Spread:
    return min(ratios, key=lambda ratio: ratio.median)


if __name__ == "__main__":
    sys.exit(main(__doc__, measure, add_arguments, rounds=25))

"""Time of a compact head against the dense `nn.Linear` and the full decision layer, at several shares of weights left.

    python benchmarks/compact_head.py [--threads 1] [--rounds 25] [--predict [--large]]

All run alternately in one process on the same random features; prints the least time of each over the rounds, which is
what a busy machine disturbs least (one thread: its own processor time; more: wall time), and linear / compact.
"Kept" is the share of features that still have a weight. With --predict: `bndl.predict`, full against compact.
"""

import argparse
import time
import warnings
from collections.abc import Callable
from functools import partial

import torch
from torch import nn

import bndl

CASES = [(512, 100), (2048, 1000)]
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


def race(ways: dict[str, Callable[[], object]], *, rounds: int, clock: Callable[[], float]) -> dict[str, float]:
    """The least seconds of one call of each, over rounds that take turns."""
    repeats, best = {}, {}
    for name, call in ways.items():
        call()
        started = clock()
        call()
        repeats[name] = max(1, min(200, int(0.003 / (clock() - started + 1e-7))))
        best[name] = float("inf")
    for _ in range(rounds):
        for name, call in ways.items():
            started = clock()
            for _ in range(repeats[name]):
                call()
            best[name] = min(best[name], (clock() - started) / repeats[name])
    return best


def mean_path(rounds: int, clock: Callable[[], float], cases: list[tuple[int, int]]) -> None:
    print("| K, C | weights | kept K | batch | linear, us | full layer, us | compact, us | linear / compact |")
    print("|---|---|---|---|---|---|---|---|")
    for K, C in cases:
        linear = nn.Linear(K, C).eval()
        for share, kept in SHARES:
            full = sparse_layer(K, C, share=share, kept=kept)
            small = bndl.compact(full)
            for B in BATCHES:
                h = torch.rand(B, K, generator=torch.Generator().manual_seed(1))
                ways = {"linear": partial(linear, h), "full": partial(full, h), "compact": partial(small, h)}
                best = {name: 1e6 * t for name, t in race(ways, rounds=rounds, clock=clock).items()}
                ratio = best["linear"] / best["compact"]
                print(
                    f"| {K}, {C} | {share:.0%} | {small.num_features} | {B} | {best['linear']:.0f} | {best['full']:.0f} "
                    f"| {best['compact']:.0f} | {ratio:.2f} |",
                    flush=True,
                )


def predictions(rounds: int, clock: Callable[[], float], cases: list[tuple[int, int]]) -> None:
    print(
        "| K, C | weights | kept K | batch | full, ms | compact, ms | full / compact |\n|---|---|---|---|---|---|---|"
    )
    for K, C in cases:
        for share, kept in SHARES:
            full = sparse_layer(K, C, share=share, kept=kept)
            small = bndl.compact(full)
            for B in (1, 1024):
                h = torch.rand(B, K, generator=torch.Generator().manual_seed(1))
                ways = {"full": partial(bndl.predict, full, h), "compact": partial(bndl.predict, small, h)}
                best = {name: 1e3 * t for name, t in race(ways, rounds=rounds, clock=clock).items()}
                print(
                    f"| {K}, {C} | {share:.0%} | {small.num_features} | {B} | {best['full']:.0f} "
                    f"| {best['compact']:.0f} | {best['full'] / best['compact']:.2f} |",
                    flush=True,
                )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=25)
    parser.add_argument("--predict", action="store_true")
    parser.add_argument("--large", action="store_true", help="K = 2048, C = 1000 too, for --predict (minutes)")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    warnings.filterwarnings("ignore", ".*no weight left")
    clock = time.thread_time if args.threads == 1 else time.perf_counter
    print(f"torch {torch.__version__}, {args.threads} threads, {args.rounds} rounds\n")
    with torch.no_grad():
        (predictions if args.predict else mean_path)(
            args.rounds, clock, CASES[: 2 if args.large or not args.predict else 1]
        )


if __name__ == "__main__":
    main()

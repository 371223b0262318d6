"""Time of `bndl.predict` (full uncertainty) against the plain forward pass of the same dense ResNet-20.

    python benchmarks/predict_overhead.py [--batch 256] [--repeats 15]

Both run alternately in one process on the same random images; prints the medians, the spread, and the ratio's quartiles.
"""

import argparse
import copy
import statistics
import time
from collections.abc import Callable

import torch

import bndl
from bndl.backbones import CifarResNet


def timed(call: Callable[[], object]) -> float:
    started = time.perf_counter()
    call()
    return time.perf_counter() - started


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--repeats", type=int, default=15)
    args = parser.parse_args()
    dense = CifarResNet(depth=20).eval()
    model = bndl.convert(copy.deepcopy(dense))
    x = torch.rand(args.batch, 3, 32, 32, generator=torch.Generator().manual_seed(0))

    def plain() -> None:
        with torch.no_grad():
            dense(x)

    ways = {
        "plain forward": plain,
        "predict(method='sample'), 200 draws": lambda: bndl.predict(model, x, batch_size=args.batch),
        "predict(method='closed')": lambda: bndl.predict(model, x, method="closed", batch_size=args.batch),
        "predict(method='paper'), 20 draws": lambda: bndl.predict(model, x, method="paper", batch_size=args.batch),
    }
    for call in ways.values():
        call()
    times: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(args.repeats):
        for name, call in ways.items():
            times[name].append(timed(call))
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads, batch {args.batch}, {args.repeats} rounds\n")
    print("| | median, ms | ratio to plain, median (quartiles) |\n|---|---|---|")
    for name, own in times.items():
        ratios = [a / b for a, b in zip(own, times["plain forward"], strict=True)]
        low, middle, high = statistics.quantiles(ratios, n=4)
        print(f"| {name} | {1000 * statistics.median(own):.1f} | {middle:.3f} ({low:.3f} to {high:.3f}) |")


if __name__ == "__main__":
    main()

"""How the cost of `bndl.predict` on features grows with rows B, features K, classes C, draws S and the share of weights.

    python benchmarks/speed_growth.py [--rounds 5]

One dim is doubled several times, the others stay. The exponent is the slope of ln(time) over ln(size), the smallest size
left out; B, K, C at most 1 each means time O(B K C). Memory is the most that tensors held at once, counted, inputs and head
left out: its exponents say O(BC + KC + BK). In S it is the logits of one block of rows.
"""

import argparse
import math
import sys
import warnings

import torch
from torch import nn

import bndl
from bndl.bench import Claim, PeakMemory, Record, main, race
from bndl.bench.race import Spread

BASE = {"B": 2048, "K": 512, "C": 100, "S": 8}
SWEEPS = {"B": [1024, 2048, 4096, 8192], "K": [256, 512, 1024, 2048], "C": [64, 128, 256, 512], "S": [8, 16, 32, 64]}
SHARES = [0.01, 0.02, 0.04, 0.08, 0.16, 0.32]


def layer_of(K: int, C: int, *, share: float = 1.0) -> bndl.DecisionLayer:
    layer = bndl.convert(nn.Linear(K, C), features="nonnegative").eval()
    if share < 1:
        with torch.no_grad():
            kept = torch.rand(C, K, generator=torch.Generator().manual_seed(0)) < share
            layer.weight.mul_(kept)
        return bndl.compact(layer)
    return layer


def slope(sizes: list[float], values: list[float]) -> float:
    """In logarithms, the first size left out: the least squares line."""
    x, y = ([math.log(v) for v in part[1:]] for part in (sizes, values))
    mx, my = sum(x) / len(x), sum(y) / len(y)
    return sum((a - mx) * (b - my) for a, b in zip(x, y, strict=True)) / sum((a - mx) ** 2 for a in x)


def measure(args: argparse.Namespace) -> Record:
    warnings.filterwarnings("ignore", ".*no weight left")
    rows, claims = [], []
    for dim, sizes in {**SWEEPS, "nnz": SHARES}.items():
        ways, peaks = {}, []
        for size in sizes:
            at = {**BASE, **({dim: size} if dim != "nnz" else {})}
            layer = layer_of(at["K"], at["C"], share=size if dim == "nnz" else 1.0)
            h = torch.rand(at["B"], at["K"], generator=torch.Generator().manual_seed(1))

            def call(layer: bndl.DecisionLayer = layer, h: torch.Tensor = h, S: int = at["S"]) -> None:
                bndl.predict(layer, h, num_samples=S, batch_size=len(h), progress=False)

            call()  # what is made once is made
            with PeakMemory() as memory:
                call()
            peaks.append(memory.peak / 1e6)
            ways[str(size)] = call
        found = race(ways, rounds=args.rounds)
        times = [found.time(str(size)).median for size in sizes]
        power, of_memory = slope(sizes, times), slope(sizes, peaks)
        for size, seconds, peak in zip(sizes, times, peaks, strict=True):
            rows.append({"dim": dim, "size": size, "ms": round(1e3 * seconds, 1), "peak MB": round(peak, 1)})
        rows.append({"dim": dim, "size": "exponent", "ms": round(power, 2), "peak MB": round(of_memory, 2)})
        if dim != "nnz":
            claims.append(Claim(f"exponent of time in {dim}", Spread(power, power, power), 1.15, "at most"))
            claims.append(
                Claim(f"exponent of memory in {dim}", Spread(of_memory, of_memory, of_memory), 1.15, "at most")
            )
    settings = {**BASE, "rounds": args.rounds}
    return Record("speed_growth", "how the cost of predict grows", rows, claims, settings)


if __name__ == "__main__":
    sys.exit(main(__doc__, measure, rounds=5))

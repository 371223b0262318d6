"""The head alone: full uncertainty of cached features against `nn.Linear`, `vbll` (diagonal, 20 draws) and `laplace-torch`.

    python benchmarks/speed_head.py [--sizes 512x100 2048x1000] [--rows 10000] [--rounds 7]

The same random features for all, in one process, in turns. laplace-torch (Kronecker factors, GLM) makes a Jacobian
of B x C x parameters, so it is timed on a few rows and reckoned up to all; where even one row does not fit, it is left out.
Memory is the most that tensors held at once, the inputs and the head not counted.
"""

import argparse
import math
import sys
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import bndl
from bndl.bench import Claim, PeakMemory, Record, main, race

MOST = 4e9  # bytes: the Jacobian of the rows that laplace-torch is timed on


def add_arguments(parser: argparse.ArgumentParser) -> None:
    sizes = ["512x10", "512x100", "768x150", "2048x1000"]
    parser.add_argument("--sizes", nargs="+", default=sizes, metavar="KxC", help=f"default: {' '.join(sizes)}")
    parser.add_argument("--rows", type=int, default=10_000)


def peers(K: int, C: int, h: Tensor) -> tuple[dict[str, Callable[[], object]], dict[str, float]]:
    """The ways, and how many times as many rows as it is given each would have to do."""
    linear = nn.Linear(K, C)
    layer = bndl.convert(linear, features="nonnegative").eval()
    ways: dict[str, Callable[[], object]] = {
        "nn.Linear": lambda: linear(h),
        "bndl.predict": lambda: bndl.predict(layer, h, progress=False),
        "bndl.predict, no draws": lambda: bndl.predict(layer, h, method="closed", progress=False),
    }
    factors = dict.fromkeys(ways, 1.0)
    import vbll

    gaussian = vbll.DiscClassification(K, C, 1.0 / len(h), parameterization="diagonal").eval()
    fitting = max(1, min(len(h), int(MOST / (C * K * 4))))  # it makes a tensor of rows x C x K
    ways["vbll, 20 draws"] = lambda: gaussian(h[:fitting]).predictive.probs
    factors["vbll, 20 draws"] = len(h) / fitting
    few = min(4, int(MOST / (C * (K + 1) * C * 4)))
    if few:
        from laplace import KronLaplace

        fitted = KronLaplace(nn.Linear(K, C), "classification")
        some = h[:256]
        fitted.fit(DataLoader(TensorDataset(some, torch.arange(len(some)) % C), batch_size=64))
        ways["laplace-torch, kron, GLM"] = lambda: fitted(h[:few], pred_type="glm", link_approx="probit")
        factors["laplace-torch, kron, GLM"] = len(h) / few
    return ways, factors


def measure(args: argparse.Namespace) -> Record:
    rows, claims, notes = [], [], []
    for size in args.sizes:
        K, C = map(int, size.split("x"))
        h = torch.rand(args.rows, K, generator=torch.Generator().manual_seed(0))
        ways, factors = peers(K, C, h)
        with torch.no_grad():
            found = race(ways, rounds=args.rounds)
        for name, call in ways.items():
            with torch.no_grad(), PeakMemory() as memory:
                call()
            ours = found.ratio(name, "bndl.predict").median * factors[name]
            rows.append(
                {
                    "K x C": size,
                    "": name,
                    "ms for all rows": round(1e3 * found.time(name).median * factors[name], 1),
                    "times bndl.predict": round(ours, 3),
                    "peak MB of tensors": round(memory.peak / 1e6, 1),
                    "rows timed": round(args.rows / factors[name]),
                }
            )
        if size == "512x100":
            for name, bound in (("vbll, 20 draws", 5), ("laplace-torch, kron, GLM", 100)):
                spread = found.ratio(name, "bndl.predict")
                scaled = type(spread)(*(factors[name] * v for v in (spread.median, spread.low, spread.high)))
                claims.append(Claim(f"{name} / bndl.predict at {size}", scaled, bound, "at least"))
        if "laplace-torch, kron, GLM" not in ways:
            needed = C * (K + 1) * C * 4 / 1e9
            notes.append(f"laplace-torch at {size}: the Jacobian of one row alone would take {needed:.0f} GB.")
        if not math.isclose(factors["vbll, 20 draws"], 1.0):
            needed = args.rows * C * K * 4 / 1e9
            notes.append(
                f"vbll at {size}: a tensor of rows x C x K, {needed:.0f} GB for all rows, so it is timed on fewer."
            )
    settings = {"rows": args.rows, "rounds": args.rounds}
    return Record(
        "speed_head", "the head alone", rows, claims, settings, packages=("vbll", "laplace-torch"), notes=notes
    )


if __name__ == "__main__":
    sys.exit(main(__doc__, measure, add_arguments, rounds=5))

"""Time and memory of certificates at K = 2048 features, C = 1000 classes, 50,000 samples.

    python benchmarks/certify_scale.py [--samples 50000] [--features 2048] [--classes 1000] [--json PATH]

Three heads of that size. "dense": every feature has weights, so K_eff > C and the theorem does not apply. "sparse": 1000
features are left, each with a class of its own, on in half of the samples: every condition is tested for 1000 features and
holds; the worst case. "few": 100 features are left. Batches of theta are made when they are asked for, so what is measured
is the certificate's own; each case runs in a process of its own. Memory is the peak less what the process had before. A
second, of N = 2 x samples, shows what grows with N. Prints Markdown.
"""

import argparse
import json
import multiprocessing
import resource
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass

import torch
from torch import Tensor

from bndl.certify import certify_factors

BATCH = 1000


@dataclass(frozen=True)
class Measured:
    case: str
    samples: int
    num_active: int
    rank: int
    identifiable: int
    identifiable_rows: int
    seconds: float
    cpu_seconds: float
    megabytes: float


def samples(count: int, features: int, *, off: float) -> Iterator[Tensor]:
    """Theta, batch by batch: a share of it zero."""
    for start in range(0, count, BATCH):
        generator = torch.Generator().manual_seed(start)
        values = torch.rand(min(BATCH, count - start), features, generator=generator)
        yield values * (torch.rand(values.size(), generator=generator) >= off)


def head(features: int, classes: int, left: int) -> Tensor:
    """Phi (K, C): dense, or with ``left`` features, each with a class of its own and a few in the others."""
    generator = torch.Generator().manual_seed(0)
    phi = torch.rand(features, classes, generator=generator)
    if left == features:
        return phi
    phi[left:] = 0
    phi[:left] *= torch.rand(left, classes, generator=generator) < 5 / left
    phi[:, :left] = torch.eye(features, left)
    return phi


def measure(case: str, count: int, features: int, classes: int) -> Measured:
    torch.set_num_threads(1)
    left = {"dense": features, "sparse": min(features, classes), "few": min(100, classes)}[case]
    phi = head(features, classes, left)
    certify_factors(samples(200, 20, off=0.5), torch.rand(20, 30))  # what libraries load on first use
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    started, cpu = time.monotonic(), time.process_time()
    found = certify_factors(samples(count, features, off=0.5), phi)
    seconds, cpu = time.monotonic() - started, time.process_time() - cpu
    memory = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    said = len(found.identifiable), len(found.identifiable_rows)
    return Measured(case, count, found.num_active, found.rank, *said, seconds, cpu, memory)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--samples", type=int, default=50_000)
    parser.add_argument("--features", type=int, default=2048)
    parser.add_argument("--classes", type=int, default=1000)
    parser.add_argument("--cases", default="dense,few,sparse")
    parser.add_argument("--double", action="store_true", help="also twice as many samples")
    parser.add_argument("--json", metavar="PATH")
    args = parser.parse_args()
    print(f"K = {args.features}, C = {args.classes}, one core, float32 theta\n")
    print("| head | samples | K_eff | rank | features certified | rows certified | seconds | CPU seconds | MB |")
    print("|---|---|---|---|---|---|---|---|---|")
    found = []
    for count in (args.samples, 2 * args.samples)[: 1 + args.double]:
        for case in args.cases.split(","):
            with multiprocessing.get_context("spawn").Pool(1) as pool:
                m = pool.apply(measure, (case, count, args.features, args.classes))
            found.append(m)
            print(
                f"| {m.case} | {m.samples:,} | {m.num_active} | {m.rank} | {m.identifiable} | {m.identifiable_rows} | "
                f"{m.seconds:.0f} | {m.cpu_seconds:.0f} | {m.megabytes:.0f} |",
                flush=True,
            )
    if args.json:
        with open(args.json, "w") as file:
            json.dump([asdict(own) for own in found], file, indent=1)


if __name__ == "__main__":
    main()

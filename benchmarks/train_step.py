"""Time of a training step with a decision layer against the same step with a dense head, alternately in one run.

python benchmarks/train_step.py                      # ResNet-18, full width, batch 64
python benchmarks/train_step.py --width 8 --batch 128 --rounds 40
"""

import argparse
import json
import statistics
import time
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn

import bndl
from bndl.backbones import build
from bndl.train import Augment


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--width", type=int, default=64, help="channels of the first stage (64: full width)")
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--classes", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--json", type=Path, help="also write the figures here")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    torch.manual_seed(0)
    steps = {
        "dense": step_of(build("resnet18", args.classes, width=args.width).model, args),
        "BNDL": step_of(bndl.convert(build("resnet18", args.classes, width=args.width).model), args),
    }
    augment, images = Augment("cifar", 32), torch.randint(0, 256, (args.batch, 3, 32, 32), dtype=torch.uint8)
    steps["augmentation alone"] = lambda: augment(images)
    times: dict[str, list[float]] = {name: [] for name in steps}
    for number in range(args.rounds + 2):
        for name in sorted(steps, reverse=bool(number % 2)):
            started = time.perf_counter()
            steps[name]()
            if number >= 2:  # the first two rounds warm up
                times[name].append(time.perf_counter() - started)
    print(
        f"torch {torch.__version__}, {args.threads} threads, ResNet-18 width {args.width}, batch {args.batch}, "
        f"{args.classes} classes, {args.rounds} rounds in alternating order"
    )
    record = {}
    for name, values in times.items():
        ratios = [value / base for value, base in zip(values, times["dense"], strict=True)]
        low, middle, high = statistics.quantiles(ratios, n=4)
        record[name] = {"median_ms": 1e3 * statistics.median(values), "ratio": middle, "quartiles": [low, high]}
        print(f"{name:20} {1e3 * statistics.median(values):9.1f} ms   ratio {middle:.3f} ({low:.3f} to {high:.3f})")
    if args.json:
        args.json.write_text(json.dumps(record, indent=2) + "\n")


def step_of(model: nn.Module, args: argparse.Namespace):
    """A closure that makes one whole step: forward, loss, backward, update."""
    model.train().to(memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, weight_decay=5e-4)
    images = torch.rand(args.batch, 3, 32, 32).to(memory_format=torch.channels_last)
    labels = torch.randint(0, args.classes, (args.batch,))
    bayesian = any(isinstance(module, bndl.DecisionLayer) for module in model.modules())

    def step() -> None:
        loss = F.cross_entropy(model(images), labels)
        if bayesian:
            loss = loss + bndl.kl(model, num_data=50_000)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    return step


if __name__ == "__main__":
    main()

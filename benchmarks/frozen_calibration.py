"""Fit only the head of a pretrained CIFAR ResNet on half of the test set, and measure on the other half.

    python benchmarks/frozen_calibration.py --data DIR [--checkpoint resnet20_cifar10] [--seeds 0 1 2] [--variants]

DIR holds cifar-10-batches-py (or cifar-100-python) and weights/. The pretrained networks have seen the whole training set,
so the 10,000 test images are split, seeded and stratified, into 5,000 to fit to and 5,000 for the figures. Prints Markdown;
with --variants also for the other kinds of shape parameter and for the noise alone (no training of the weights).
"""

import argparse
import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from pathlib import Path

import torch
from torch import Tensor, nn

import bndl
from bndl.backbones import cifar_checkpoint, load_cifar_checkpoint
from bndl.calibrate import best_log_scale
from bndl.data import load, stratified_split
from bndl.features import FeatureSet, extract
from bndl.metrics import expected_calibration_error, negative_log_likelihood, pavpu

VARIANTS = (
    ("BNDL", {}, 20),
    ("BNDL, noise only", {}, 0),
    ("BNDL, theta per sample", {"theta_shape": "sample"}, 0),
    ("BNDL, theta per entry", {"theta_shape": "entry"}, 0),
    ("BNDL, Phi per entry", {"phi_shape": "entry"}, 0),
)


@dataclass(frozen=True)
class Row:
    name: str
    accuracy: float
    nll: float
    ece: float
    pavpu: float
    baseline: float
    seconds: float

    def __str__(self) -> str:
        return (
            f"| {self.name} | {self.accuracy:.2%} | {self.nll:.4f} | {self.ece:.2%} "
            f"| {self.pavpu:.2%} ({self.baseline:.2%}) | {self.seconds:.1f} |"
        )


def measure(name: str, probs: Tensor, labels: Tensor, truth: Tensor, certain: Tensor | None, seconds: float) -> Row:
    correct = labels == truth
    counts = pavpu(correct, probs.max(dim=1).values > 0.5 if certain is None else certain)
    nll, ece = float(negative_log_likelihood(probs, truth)), float(expected_calibration_error(probs, truth))
    return Row(name, float(correct.double().mean()), nll, ece, counts.value, counts.baseline, seconds)


def mean(rows: list[Row]) -> Row:
    figures = [statistics.mean(getattr(row, f.name) for row in rows) for f in fields(Row)[1:]]
    return Row(f"{rows[0].name}, mean", *figures)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--checkpoint", default="resnet20_cifar10")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--variants", action="store_true")
    args = parser.parse_args()
    facts = cifar_checkpoint(args.checkpoint)
    network = load_cifar_checkpoint(args.checkpoint, args.data / "weights" / f"{args.checkpoint}.pth")
    images = load(facts.dataset, split="test", root=args.data)
    dense = network.fc
    model = bndl.convert(nn.Sequential(facts.normaliser(), network))
    everything = extract(model, images)
    logits = everything.features @ dense.weight.detach().t() + dense.bias.detach()
    kept = int((model[1].fc(everything.features).argmax(1) == logits.argmax(1)).sum())
    accuracy = int((logits.argmax(1) == everything.labels).sum())
    print(f"{args.checkpoint}: dense head right on {accuracy} of {len(everything)}; converted head agrees on {kept}.\n")
    print("| | accuracy | NLL | ECE | PAvPU (all certain) | seconds to fit |\n|---|---|---|---|---|---|")
    found: dict[str, list[Row]] = {}
    for seed in args.seeds:
        plan = stratified_split(everything.labels.numpy(), {"test": 0.5}, seed=seed)
        fit_part, test = (everything.take(torch.as_tensor(plan.indices[part])) for part in ("train", "test"))
        halves = tuple(logits[torch.as_tensor(plan.indices[part])] for part in ("train", "test"))
        for row in rows(seed, dense, (fit_part, test), halves, args.variants):
            print(replace(row, name=f"{row.name}, split {seed}"), flush=True)
            found.setdefault(row.name, []).append(row)
    for own in found.values():
        print(mean(own))


def rows(
    seed: int, dense: nn.Linear, parts: tuple[FeatureSet, FeatureSet], logits: tuple[Tensor, Tensor], variants: bool
) -> Iterator[Row]:
    (fit_part, test), (fit_logits, test_logits) = parts, logits
    labels = test_logits.argmax(1)
    yield measure("dense", test_logits.softmax(1), labels, test.labels, None, 0.0)
    started = time.perf_counter()
    scaled = test_logits * best_log_scale(fit_logits, fit_part.labels).exp()
    taken = time.perf_counter() - started
    yield measure("temperature scaling", scaled.softmax(1), labels, test.labels, None, taken)
    for name, settings, epochs in VARIANTS if variants else VARIANTS[:1]:
        layer = bndl.convert(dense, features="nonnegative", **settings)
        result = bndl.fit(layer, fit_part, seed=seed, epochs=epochs, progress=False)
        prediction = bndl.predict(layer, test.features)
        yield measure(name, prediction.probs, prediction.labels, test.labels, prediction.certain, result.seconds)


if __name__ == "__main__":
    main()

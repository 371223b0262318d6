"""Fit only the head of a pretrained CIFAR ResNet on half of the test set, and measure on the other half.

    python benchmarks/frozen_calibration.py --data DIR [--checkpoint resnet20_cifar10] [--seeds 0 1 2] [--variants]

DIR holds cifar-10-batches-py (or cifar-100-python) and weights/. The pretrained networks have seen the whole training set,
so the 10,000 test images are split, seeded and stratified, into 5,000 to fit to and 5,000 for the figures. Prints Markdown;
with --variants also for the other kinds of shape parameter and for the noise alone (no training of the weights).
"""

import argparse
import time
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


def row(name: str, probs: Tensor, labels: Tensor, test: Tensor, certain: Tensor | None, seconds: float) -> str:
    correct = labels == test
    counts = pavpu(correct, torch.ones_like(correct) if certain is None else certain)
    return (
        f"| {name} | {correct.double().mean():.2%} | {negative_log_likelihood(probs, test):.4f} "
        f"| {expected_calibration_error(probs, test):.2%} | {counts.value:.2%} ({counts.baseline:.2%}) | {seconds:.1f} |"
    )


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
    for seed in args.seeds:
        plan = stratified_split(everything.labels.numpy(), {"test": 0.5}, seed=seed)
        fit_part, test = (everything.take(torch.as_tensor(plan.indices[part])) for part in ("train", "test"))
        own = tuple(logits[torch.as_tensor(plan.indices[part])] for part in ("train", "test"))
        rows(seed, dense, (fit_part, test), own, args.variants)


def rows(
    seed: int, dense: nn.Linear, parts: tuple[FeatureSet, FeatureSet], logits: tuple[Tensor, Tensor], variants: bool
) -> None:
    (fit_part, test), (fit_logits, test_logits) = parts, logits
    labels = test_logits.argmax(1)
    print(row(f"dense, split {seed}", test_logits.softmax(1), labels, test.labels, None, 0.0))
    started = time.perf_counter()
    scaled = test_logits * best_log_scale(fit_logits, fit_part.labels).exp()
    taken = time.perf_counter() - started
    print(row(f"temperature scaling, split {seed}", scaled.softmax(1), labels, test.labels, None, taken))
    for name, settings, epochs in VARIANTS if variants else VARIANTS[:1]:
        layer = bndl.convert(dense, features="nonnegative", **settings)
        result = bndl.fit(layer, fit_part, seed=seed, epochs=epochs, progress=False)
        prediction = bndl.predict(layer, test.features)
        name = f"{name}, split {seed} (epoch {result.best_epoch} kept)"
        print(
            row(name, prediction.probs, prediction.labels, test.labels, prediction.certain, result.seconds), flush=True
        )


if __name__ == "__main__":
    main()

"""How many stratified draws do what many independent ones do: probabilities, NLL and ECE, and how far the seed moves them.

    python benchmarks/draws_needed.py SUBJECT... [--cache runs/features] [--seeds 8]

A subject is a pretrained checkpoint (`resnet56_cifar10`) or the folder of a finished run with a dense head. The head is
converted, its noise fitted to one half of the validation part and everything measured on the other: the test part is not
looked at. Distances are in total variation, in the mean, from the average of 4,000 independent draws. Prints Markdown.
"""

import argparse
import statistics
from pathlib import Path

import torch
from torch import Tensor

from bndl.baselines.bndl import takes_nonnegative
from bndl.baselines.method import fresh
from bndl.calibrate import calibrate
from bndl.compare.subjects import find_source
from bndl.convert import convert, find_layer
from bndl.data import stratified_split
from bndl.draws import SharedDraws, blocks, posterior
from bndl.layer import DecisionLayer
from bndl.metrics import expected_calibration_error, negative_log_likelihood

COUNTS = (8, 16, 32, 64, 128)
MANY = 4000


@torch.no_grad()
def probabilities(layer: DecisionLayer, features: Tensor, count: int, *, seed: int, stratified: bool) -> Tensor:
    """(B, C): the mean of the softmax over the draws."""
    draws, rows = SharedDraws(layer, count, seed=seed, stratified=stratified), blocks(features)
    totals = [0.0 for _ in rows]
    for part in draws.slices():
        for number, block in enumerate(rows):
            totals[number] += part.logits(posterior(layer, block)).softmax(dim=2).sum(dim=1)
    return torch.cat(totals)[: len(features)] / count


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("subjects", nargs="+")
    parser.add_argument("--cache", type=Path, default=Path("runs/features"))
    parser.add_argument("--seeds", type=int, default=8)
    args = parser.parse_args()
    for name in args.subjects:
        subject = find_source(name, cache=args.cache, ood={}).subject
        kind = "nonnegative" if takes_nonnegative(subject.val) else "signed"
        layer = find_layer(convert(fresh(subject.head), features=kind)).eval()
        halves = stratified_split(subject.val.labels.numpy(), {"test": 0.5}, seed=0).indices
        fitting, judging = (subject.val.take(torch.as_tensor(halves[part])) for part in ("train", "test"))
        calibrate(layer, fitting, generator=torch.Generator().manual_seed(0))
        features, labels = judging.features.float(), judging.labels
        target = probabilities(layer, features, MANY, seed=99, stratified=False)
        ece = float(expected_calibration_error(target, labels))
        nll = float(negative_log_likelihood(target, labels))
        print(f"\n{name}: {layer.weight.numel():,} weights; {MANY:,} independent draws: NLL {nll:.4f}, ECE {ece:.2%}\n")
        print("| draws | distance | NLL | ECE | ECE, spread over seeds |\n|---|---|---|---|---|")
        for count, stratified in (*((count, True) for count in COUNTS), (200, False)):
            found = [probabilities(layer, features, count, seed=s, stratified=stratified) for s in range(args.seeds)]
            apart = statistics.mean(float(0.5 * (p - target).abs().sum(dim=1).mean()) for p in found)
            nll = statistics.mean(float(negative_log_likelihood(p, labels)) for p in found)
            eces = [100 * float(expected_calibration_error(p, labels)) for p in found]
            kind, spread = "stratified" if stratified else "independent", statistics.stdev(eces)
            print(f"| {count} {kind} | {apart:.4f} | {nll:.4f} | {statistics.mean(eces):.2f} % | {spread:.2f} |")


if __name__ == "__main__":
    main()

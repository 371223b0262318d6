"""Dense, temperature scaling and BNDL with default arguments on many splits of the examples that a network has not seen.

    python benchmarks/over_splits.py SUBJECT... [--splits 10] [--ood NAME] [--cache runs/features]

A subject is a pretrained checkpoint (`resnet56_cifar10`) or the folder of a finished run with a dense head. One split's ECE
is an estimate that moves by tenths of a point with the split; here all that the network has not seen is split into halves
again and again, stratified, one half for choices and calibration and the other for the figures. Prints Markdown: means over
the splits, and in how many of them BNDL is at least as good as temperature scaling and as dense.
"""

import argparse
import statistics
from dataclasses import replace
from pathlib import Path

import torch

from bndl.baselines import get_method
from bndl.compare.cells import feature_batches, measure
from bndl.compare.subjects import Subject, find_source
from bndl.data import stratified_split
from bndl.features import FeatureSet
from bndl.metrics.figures import FIGURES, OOD_FIGURES
from bndl.metrics.pavpu import best_threshold, pavpu_score

METHODS = ("dense", "temperature", "bndl")
SHOWN = ("accuracy", "nll", "ece", "aurc", "error_auroc", "pavpu_05")
KINDS = {kind.key: kind for kind in FIGURES if kind.key in SHOWN}
Figures = dict[str, float]


def split(subject: Subject, seed: int) -> Subject:
    """Another split of what the network has not seen."""
    features, labels = (
        torch.cat([getattr(subject.val, name), getattr(subject.test, name)]) for name in ("features", "labels")
    )
    unseen, halves = FeatureSet(features, labels), stratified_split(labels.numpy(), {"test": 0.5}, seed=seed).indices
    val, test = (unseen.take(torch.as_tensor(halves[part])) for part in ("train", "test"))
    return replace(subject, val=val, test=test)


def figures(subject: Subject, method: str, seed: int) -> Figures:
    """Of one method on one split; the margin's threshold is the best on the fitting half."""
    fitted = get_method(method).fit(subject.head, subject.train, subject.val, seed=seed)
    ood = {name: feature_batches(FeatureSet(x, x.new_zeros(len(x)))) for name, x in subject.ood.items()}
    found = measure(fitted, {"val": feature_batches(subject.val), "test": feature_batches(subject.test)}, ood)
    values = {key: float(kind.of(found.test, None)) for key, kind in KINDS.items()}
    threshold = best_threshold(found.val.margin, found.val.correct)
    values["margin"] = float(pavpu_score(found.test.correct, found.test.margin >= threshold))
    for name, outside in found.ood.items():
        values[f"ood/{name}"] = float(OOD_FIGURES[0].of(found.test, outside, None))
    return values


def table(rows: dict[str, list[Figures]]) -> str:
    """Means, and how often BNDL is at least as good."""
    keys = list(rows["dense"][0])
    text = {key: KINDS[key].text if key in KINDS else OOD_FIGURES[0].text for key in keys}
    better = {key: -1 if key in KINDS and KINDS[key].better == "lower" else 1 for key in keys}
    titles = {**{key: kind.heading for key, kind in KINDS.items()}, "margin": "PAvPU, best margin"}
    heads = [titles.get(key, f"OOD AUROC, {key.removeprefix('ood/')}") for key in keys]
    lines = [f"| | {' | '.join(heads)} |", f"|{'---|' * (1 + len(keys))}"]
    for name in METHODS:
        cells = [text[key](statistics.mean(own[key] for own in rows[name])) for key in keys]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    for name in ("temperature", "dense"):
        pairs = list(zip(rows["bndl"], rows[name], strict=True))
        wins = [sum(better[key] * (own[key] - other[key]) >= 0 for own, other in pairs) for key in keys]
        lines.append(f"| splits where bndl >= {name} | {' | '.join(f'{won} of {len(pairs)}' for won in wins)} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("subjects", nargs="+")
    parser.add_argument("--splits", type=int, default=10)
    parser.add_argument("--ood", action="append", default=[])
    parser.add_argument("--cache", type=Path, default=Path("runs/features"))
    args = parser.parse_args()
    for name in args.subjects:
        subject = find_source(name, cache=args.cache, ood={one: one for one in args.ood}).subject
        rows: dict[str, list[Figures]] = {method: [] for method in METHODS}
        for seed in range(args.splits):
            part = split(subject, seed)
            for method in METHODS:
                rows[method].append(figures(part, method, seed))
        print(f"\n{Path(name).name}, {args.splits} splits:\n\n{table(rows)}", flush=True)


if __name__ == "__main__":
    main()

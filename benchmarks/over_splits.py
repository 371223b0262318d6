"""Dense, temperature scaling and BNDL with default arguments on many splits of the examples that a network has not seen.

    python benchmarks/over_splits.py SUBJECT... [--splits 10] [--ood NAME] [--cache runs/features]

A subject is a pretrained checkpoint (`resnet56_cifar10`) or the folder of a finished run with a dense head. One split's ECE
is an estimate that moves by tenths of a point with the split; here all that the network has not seen is split into halves
again and again, stratified, and each half is predicted by what was fitted to the other: figures are of all examples, none of
which chose or calibrated what predicts it. Prints Markdown: means over the splits, in how many of them BNDL is at least as
good as temperature scaling and as dense, and the ECE that chance alone gives a model that is exactly calibrated.
"""

import argparse
import statistics
from dataclasses import replace
from pathlib import Path

import torch

from bndl.baselines import get_method
from bndl.compare.cells import Measured, feature_batches, measure
from bndl.compare.subjects import Subject, find_source
from bndl.data import stratified_split
from bndl.features import FeatureSet
from bndl.metrics import calibration_floor
from bndl.metrics.examples import Examples
from bndl.metrics.figures import FIGURES, OOD_FIGURES
from bndl.metrics.pavpu import best_threshold, pavpu_score

METHODS = ("dense", "temperature", "bndl")
SHOWN = ("accuracy", "nll", "ece", "aurc", "error_auroc", "pavpu_05")
KINDS = {kind.key: kind for kind in FIGURES if kind.key in SHOWN}
FLOOR = "floor"
Figures = dict[str, float]


def split(subject: Subject, seed: int) -> list[Subject]:
    """Another split of what the network has not seen, either half to be fitted to."""
    features, labels = (
        torch.cat([getattr(subject.val, name), getattr(subject.test, name)]) for name in ("features", "labels")
    )
    unseen, halves = FeatureSet(features, labels), stratified_split(labels.numpy(), {"test": 0.5}, seed=seed).indices
    one, other = (unseen.take(torch.as_tensor(halves[part])) for part in ("train", "test"))
    return [replace(subject, val=one, test=other), replace(subject, val=other, test=one)]


def measured(subject: Subject, method: str, seed: int) -> Measured:
    fitted = get_method(method).fit(subject.head, subject.train, subject.val, seed=seed)
    ood = {name: feature_batches(FeatureSet(x, x.new_zeros(len(x)))) for name, x in subject.ood.items()}
    return measure(fitted, {"val": feature_batches(subject.val), "test": feature_batches(subject.test)}, ood)


def figures(halves: list[Subject], method: str, seed: int) -> Figures:
    """Of one method on both halves; the margin's threshold is the best on the half that was fitted to."""
    found = [measured(subject, method, seed) for subject in halves]
    test = Examples.cat([one.test for one in found])
    values = {key: float(kind.of(test, None)) for key, kind in KINDS.items()}
    certain = torch.cat([one.test.margin >= best_threshold(one.val.margin, one.val.correct) for one in found])
    values["margin"] = float(pavpu_score(test.correct, certain))
    for name in found[0].ood:
        values[f"ood/{name}"] = statistics.mean(
            float(OOD_FIGURES[0].of(one.test, one.ood[name], None)) for one in found
        )
    values[FLOOR] = float(calibration_floor(test.confidence))
    return values


def table(rows: dict[str, list[Figures]]) -> str:
    """Means, and how often BNDL is at least as good."""
    keys = list(rows["dense"][0])
    text = {key: KINDS[key].text if key in KINDS else OOD_FIGURES[0].text for key in keys}
    better = {key: -1 if key in KINDS and KINDS[key].better == "lower" else 1 for key in keys}
    titles = {**{key: kind.heading for key, kind in KINDS.items()}, "margin": "PAvPU, best margin"}
    titles[FLOOR] = "ECE of chance alone"
    heads = [titles.get(key, f"OOD AUROC, {key.removeprefix('ood/')}") for key in keys]
    lines = [f"| | {' | '.join(heads)} |", f"|{'---|' * (1 + len(keys))}"]
    for name in METHODS:
        cells = [text[key](statistics.mean(own[key] for own in rows[name])) for key in keys]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    for name in ("temperature", "dense"):
        pairs = list(zip(rows["bndl"], rows[name], strict=True))
        wins = [sum(better[key] * (own[key] - other[key]) >= 0 for own, other in pairs) for key in keys if key != FLOOR]
        lines.append(f"| splits where bndl >= {name} | {' | '.join(f'{won} of {len(pairs)}' for won in wins)} | |")
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
            halves = split(subject, seed)
            for method in METHODS:
                rows[method].append(figures(halves, method, seed))
        print(f"\n{Path(name).name}, {args.splits} splits:\n\n{table(rows)}", flush=True)


if __name__ == "__main__":
    main()

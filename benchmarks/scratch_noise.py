"""Networks that were trained from scratch: dense ones, at their best temperature, converted; and those of BNDL.

    python benchmarks/scratch_noise.py RUN... [--ood cifar100]

RUN are folders of `bndl train`. One with `model.head=dense` gives three rows: as it is, at its best temperature, and its
conversion with the noise fitted. One that learnt with the decision layer (`model.head=bndl`, or `nmf`, which is the same
training where the recipe has neither noise nor prior) gives a row. All is fitted to the validation part, and every figure is
of the test part. Prints Markdown, and the means of several runs.
"""

import argparse
import statistics
from pathlib import Path

import torch
from torch import Tensor, nn

from bndl.baselines.method import fresh
from bndl.baselines.predictions import from_logits
from bndl.calibrate import best_log_scale, calibrate
from bndl.compare.subjects import foreign, images_of
from bndl.convert import convert, find_layer, find_linear
from bndl.data import cached_features
from bndl.decide import Decider
from bndl.features import FeatureSet
from bndl.layer import DecisionLayer
from bndl.metrics.examples import Examples
from bndl.metrics.figures import FIGURES, OOD_FIGURES
from bndl.metrics.pavpu import best_threshold
from bndl.predict import decide_all
from bndl.prediction import Prediction
from bndl.train import Run, load_run

SHOWN = ("accuracy", "nll", "ece", "aurc", "error_auroc", "pavpu_05")
KINDS = [kind for kind in FIGURES if kind.key in SHOWN]
Row = list[float | None]


def features_of_run(run: Run, ood: str, cache: Path) -> tuple[nn.Module, dict[str, FeatureSet], Tensor]:
    """The network, its validation and test features, and those of data of another kind."""
    images = images_of(run)
    model = images.model.eval()
    parts = {part: cached_features(model, getattr(images, part), folder=cache) for part in ("val", "test")}
    return model, parts, cached_features(model, foreign(ood, images), folder=cache).features


def row(inside: Prediction, outside: Prediction, labels: Tensor, threshold: float | None = None) -> Row:
    """Every figure, and the PAvPU of a threshold on the margin where there is one."""
    examples, other = Examples.of(inside, labels), Examples.of(outside, None)
    found: Row = [float(kind.of(examples, None)) for kind in KINDS]
    by_margin = (
        None if threshold is None else float((examples.correct == (examples.margin >= threshold)).double().mean())
    )
    return [*found, by_margin, float(OOD_FIGURES[0].of(examples, other, None))]


def of_dense(head: nn.Linear, parts: dict[str, FeatureSet], other: Tensor) -> dict[str, Row]:
    """The dense head, and at its best temperature."""
    with torch.no_grad():
        val, test, outside = (head(x.float()) for x in (parts["val"].features, parts["test"].features, other))
    scale, truth = best_log_scale(val, parts["val"].labels).exp(), parts["test"].labels
    seen = Examples.of(from_logits(val * scale), parts["val"].labels)
    threshold = best_threshold(seen.margin, seen.correct)
    return {
        "dense": row(from_logits(test), from_logits(outside), truth),
        "temperature scaling": row(from_logits(test * scale), from_logits(outside * scale), truth, threshold),
    }


def of_layer(layer: DecisionLayer, parts: dict[str, FeatureSet], other: Tensor, *, seed: int) -> Row:
    """Calibrated as a run is."""
    calibrate(layer, parts["val"], generator=torch.Generator().manual_seed(seed))
    found = [
        decide_all(layer, x, Decider(layer), batch_size=1024, progress=False) for x in (parts["test"].features, other)
    ]
    return row(found[0], found[1], parts["test"].labels)


def text(name: str, values: Row) -> str:
    writers = [*(kind.text for kind in KINDS), OOD_FIGURES[0].text, OOD_FIGURES[0].text]
    cells = ["" if value is None else write(value) for write, value in zip(writers, values, strict=True)]
    return f"| {name} | {' | '.join(cells)} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=Path, nargs="+")
    parser.add_argument("--ood", default="cifar100")
    parser.add_argument("--cache", type=Path, default=Path("runs/features"))
    args = parser.parse_args()
    headings = [kind.heading for kind in KINDS]
    print(f"| | {' | '.join(headings)} | PAvPU, best margin | OOD AUROC, {args.ood} |\n|{'---|' * (len(headings) + 3)}")
    all_rows: dict[str, list[Row]] = {}
    for folder in args.runs:
        run = load_run(folder)
        model, parts, other = features_of_run(run, args.ood, args.cache)
        seed = run.recipe.train.seed
        if run.recipe.model.head == "dense":
            head = find_linear(model)[1].float()
            layer = find_layer(convert(fresh(head), features="nonnegative")).eval()
            rows = {**of_dense(head, parts, other), "dense, converted": of_layer(layer, parts, other, seed=seed)}
        else:
            rows = {"BNDL": of_layer(find_layer(model), parts, other, seed=seed)}
        for name, values in rows.items():
            print(text(f"{name}, seed {seed}", values), flush=True)
            all_rows.setdefault(name, []).append(values)
    for name, several in all_rows.items():
        if len(several) == 1:
            continue
        means = [None if None in column else statistics.mean(column) for column in zip(*several, strict=True)]
        print(text(f"**{name}**, mean of {len(several)}", means))


if __name__ == "__main__":
    main()

"""A network that was trained from scratch without noise: what fitting the noise afterwards gives, next to the dense network.

    python benchmarks/scratch_noise.py DENSE_RUN BNDL_RUN [--ood cifar100]

Both are folders of `bndl train` (the second with `model.head=bndl` or `nmf`, which is the same training where the recipe has
neither noise nor prior). The noise is fitted to the validation part, and every figure is of the test part. Prints Markdown.
"""

import argparse
from pathlib import Path

import torch
from torch import Tensor

from bndl.baselines.predictions import from_logits
from bndl.calibrate import best_log_scale, calibrate
from bndl.compare.subjects import foreign, images_of
from bndl.convert import find_layer, find_linear
from bndl.data import cached_features
from bndl.decide import Decider
from bndl.features import FeatureSet
from bndl.metrics.examples import Examples
from bndl.metrics.figures import FIGURES, OOD_FIGURES
from bndl.metrics.pavpu import best_threshold
from bndl.predict import decide_all
from bndl.prediction import Prediction
from bndl.train import load_run

SHOWN = ("accuracy", "nll", "ece", "aurc", "error_auroc", "pavpu_05")


def features_of_run(folder: Path, ood: str, cache: Path) -> tuple[torch.nn.Module, dict[str, FeatureSet], Tensor]:
    """The network, its validation and test features, and those of data of another kind."""
    images = images_of(load_run(folder))
    model = images.model.eval()
    parts = {part: cached_features(model, getattr(images, part), folder=cache) for part in ("val", "test")}
    return model, parts, cached_features(model, foreign(ood, images), folder=cache).features


def row(name: str, inside: Prediction, outside: Prediction, labels: Tensor, margin: float | None = None) -> str:
    examples, other = Examples.of(inside, labels), Examples.of(outside, None)
    cells = [kind.text(float(kind.of(examples, None))) for kind in FIGURES if kind.key in SHOWN]
    by_margin = (
        ""
        if margin is None
        else f"{100 * float((examples.correct == (examples.margin >= margin)).double().mean()):.2f}"
    )
    foreign_auroc = OOD_FIGURES[0].text(float(OOD_FIGURES[0].of(examples, other, None)))
    return f"| {name} | {' | '.join(cells)} | {by_margin} | {foreign_auroc} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dense", type=Path)
    parser.add_argument("bndl", type=Path)
    parser.add_argument("--ood", default="cifar100")
    parser.add_argument("--cache", type=Path, default=Path("runs/features"))
    args = parser.parse_args()
    headings = [kind.heading for kind in FIGURES if kind.key in SHOWN]
    print(f"| | {' | '.join(headings)} | PAvPU, best margin | OOD AUROC, {args.ood} |\n|{'---|' * (len(headings) + 3)}")
    model, parts, other = features_of_run(args.dense, args.ood, args.cache)
    head = find_linear(model)[1].float()
    with torch.no_grad():
        val, test, outside = (head(x.float()) for x in (parts["val"].features, parts["test"].features, other))
    scale = best_log_scale(val, parts["val"].labels).exp()
    seen = Examples.of(from_logits(val * scale), parts["val"].labels)
    truth = parts["test"].labels
    print(row("dense", from_logits(test), from_logits(outside), truth))
    threshold = best_threshold(seen.margin, seen.correct)
    print(row("temperature scaling", from_logits(test * scale), from_logits(outside * scale), truth, threshold))
    model, parts, other = features_of_run(args.bndl, args.ood, args.cache)
    layer = find_layer(model)
    calibrate(layer, parts["val"], generator=torch.Generator().manual_seed(0))
    found = [
        decide_all(layer, x, Decider(layer), batch_size=1024, progress=False) for x in (parts["test"].features, other)
    ]
    print(row("BNDL", *found, parts["test"].labels))


if __name__ == "__main__":
    main()

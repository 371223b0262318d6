"""How many features of real heads are certified as they become sparser: CIFAR-10, CIFAR-100, Imagenette.

    python benchmarks/certify_real.py SUBJECT [SUBJECT ...] [--limit N] [--cache DIR] [--out PNG] [--json PATH]

A subject is what ``bndl compare`` takes: a checkpoint (resnet56_cifar10, resnet32_cifar100) or the folder of a run with a
dense head; a file that ``torch.save`` wrote (weight, bias, train, test) will do as well. Its head is converted exactly, and
then made sparser in two ways. "cut": of each class the weights that add most to its logit are kept, nothing is trained.
"sparse": the path of ``bndl.sparsify``, whose weights are trained. Every head on the path is certified on the training
features and measured on the test features. Prints Markdown.
"""

import argparse
import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import torch
from torch import Tensor, nn

import bndl
from bndl.certify import Certificate, certify
from bndl.convert import find_layer
from bndl.features import FeatureSet

KEPT = (None, 50, 20, 10, 5, 4, 3, 2, 1)  # weights a class on the way down
POINTS = 16  # of the path of bndl.sparsify


@dataclass(frozen=True)
class Subject:
    name: str
    head: nn.Linear
    train: FeatureSet
    val: FeatureSet
    test: FeatureSet


@dataclass(frozen=True)
class Point:
    subject: str
    path: str
    weights_a_class: float
    accuracy: float
    num_active: int
    rank: int
    num_classes: int
    windows: int
    zeros: int
    certified: int
    rows_certified: int
    anchored: float
    reason: str


def subject_of(name: str, cache: Path) -> Subject:
    if name.endswith(".pt"):
        stored = torch.load(name)
        head = nn.Linear(stored["weight"].size(1), len(stored["weight"]))
        head.load_state_dict({"weight": stored["weight"], "bias": stored["bias"]})
        return Subject(Path(name).stem, head, *(FeatureSet(*stored[part]) for part in ("train", "val", "test")))
    from bndl.compare.subjects import find_source

    found = find_source(name, cache=cache)
    return Subject(found.name, found.subject.head, found.subject.train, found.subject.val, found.subject.test)


def cut(layer: bndl.DecisionLayer, subject: Subject) -> Iterator[bndl.DecisionLayer]:
    """Keep, for each class, the weights with the largest mean contribution."""
    means = subject.train.features.float().mean(dim=0)
    score = layer.weight.detach() * means
    for kept in KEPT:
        if kept is not None and kept < score.size(1):
            least = score.topk(kept, dim=1).values[:, -1:]
            with torch.no_grad():
                layer.weight.mul_(score >= least)
        if kept is None or kept < score.size(1):
            yield layer


def sparse(layer: bndl.DecisionLayer, subject: Subject) -> Iterator[nn.Module]:
    """The library's path, from dense to one weight a class."""
    from bndl.sparsify import sparsify

    yield from sparsify(layer, subject.train, subject.val, num_points=POINTS)


def point(subject: Subject, path: str, model: nn.Module) -> Point:
    layer = find_layer(model.eval())
    found: Certificate = certify(layer, subject.train, tolerances=(), rank_tolerances=(), batch_size=4096)
    windows = sum(own.window is not None and own.window.holds for own in found.theta)
    zeros = sum(bool(own.zeros.holds) for own in found.theta)
    said = (windows, zeros, len(found.identifiable), len(found.identifiable_rows))
    size = layer.num_weights() / layer.out_features
    facts = (found.num_active, found.rank, layer.out_features)
    return Point(subject.name, path, size, accuracy(layer, subject.test), *facts, *said, found.anchored, found.reason)


@torch.no_grad()
def accuracy(layer: bndl.DecisionLayer, data: FeatureSet) -> float:
    predicted: Tensor = layer(data.features.float()).argmax(dim=1)
    return float((predicted == data.labels).float().mean())


def draw(points: list[Point], path: str) -> None:
    """For each subject the features that are active, have a window and are certified, above the accuracy."""
    from matplotlib.figure import Figure

    from bndl.evaluation.drawing import COLOURS, INK, MIDDLE, PALE, label

    subjects = list(dict.fromkeys(own.subject for own in points))
    page = Figure(figsize=(4.8 * len(subjects) + 0.4, 6.2), dpi=110)
    panels = page.subplots(2, len(subjects), squeeze=False, sharex="col", height_ratios=(3, 1.3))
    shown = {
        "num_active": ("active features", MIDDLE),
        "windows": ("with a window", COLOURS[1]),
        "certified": ("certified", COLOURS[0]),
    }
    for (axes, below), name in zip(panels.T, subjects, strict=True):
        for kind, style in (("cut", ":"), ("sparse", "-")):
            own = [one for one in points if (one.subject, one.path) == (name, kind)]
            x = [one.weights_a_class for one in own]
            for value, (_, colour) in shown.items():
                y = [getattr(one, value) for one in own]
                axes.plot(x, y, style, color=colour, marker="o", markersize=4, linewidth=1.5)
            below.plot(
                x, [100 * one.accuracy for one in own], style, color=INK, marker="o", markersize=3, linewidth=1.2
            )
        classes = next(one.num_classes for one in points if one.subject == name)
        axes.axhline(classes, color=PALE, linewidth=1, zorder=0)
        axes.annotate(
            f"C = {classes}", (0.01, classes), xycoords=("axes fraction", "data"), va="bottom", size=8, color=MIDDLE
        )
        axes.set_xscale("log")
        axes.set_yscale("symlog", linthresh=10, linscale=1.2)
        axes.set_yticks([0, 5, 10, 30, 100, 300, 1000], ["0", "5", "10", "30", "100", "300", "1000"])
        axes.invert_xaxis()
        axes.set_ylim(-0.6, 1.6 * max(one.num_active for one in points if one.subject == name))
        below.set_ylim(0, 100)
        label(axes, name, "", "features")
        label(below, "", "weights a class", "accuracy, %")
        below.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
        for number, (words, colour) in enumerate(shown.values()):
            axes.annotate(
                words, (0.02, 0.22 - 0.055 * number), xycoords="axes fraction", color=colour, weight="bold", size=9
            )
        below.annotate(
            "solid: bndl.sparsify\ndotted: cut, not trained", (0.02, 0.1), xycoords="axes fraction", color=INK, size=8
        )
    page.tight_layout()
    page.savefig(path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("subjects", nargs="*", default=["resnet56_cifar10", "resnet32_cifar100"])
    parser.add_argument("--paths", default="cut,sparse")
    parser.add_argument("--limit", type=int, metavar="N", help="training samples, the first N of a random order")
    parser.add_argument("--cache", type=Path, default=Path("runs/features"))
    parser.add_argument("--out", default="certify_real.png")
    parser.add_argument("--json", metavar="PATH")
    args = parser.parse_args()
    print("| subject | path | weights a class | accuracy | K_eff | rank | with a window | zero region spans | certified | "
          "Phi rows certified | anchored |\n|---|---|---|---|---|---|---|---|---|---|---|")  # fmt: skip
    points = []
    for name in args.subjects:
        subject = subject_of(name, args.cache)
        if args.limit:
            order = torch.randperm(len(subject.train), generator=torch.Generator().manual_seed(0))
            subject = replace(subject, train=subject.train.take(order[: args.limit]))
        for kind, walk in {"cut": cut, "sparse": sparse}.items():
            if kind not in args.paths.split(","):
                continue
            for model in walk(bndl.convert(subject.head, features="nonnegative"), subject):
                p = point(subject, kind, model)
                points.append(p)
                print(
                    f"| {p.subject} | {p.path} | {p.weights_a_class:.1f} | {p.accuracy:.1%} | {p.num_active} | {p.rank} | "
                    f"{p.windows} | {p.zeros} | {p.certified} | {p.rows_certified} | {p.anchored:.0%} |",
                    flush=True,
                )
    draw(points, args.out)
    if args.json:
        Path(args.json).write_text(json.dumps([asdict(own) for own in points], indent=1) + "\n")


if __name__ == "__main__":
    main()

"""Is the explanation true to the model? Deletion and insertion on test images: BNDL's map, the dense model's, random order.

    python benchmarks/faithfulness.py SUBJECT [SUBJECT ...] [--trained RUN] [--images 200] [--cache DIR] [--json PATH]

A subject is what ``bndl compare`` takes: a checkpoint (resnet56_cifar10) or the folder of a run with a dense head. All heads
stand on its one frozen backbone: the dense head and its exact conversion (the same predictor), the sparse head that
``bndl.sparsify`` chooses, and with --trained the BNDL head of a run on the same backbone. The logits of each are scaled to
suit the validation examples (temperature), so that no head looks better by being less sure. Each explanation is judged on
the head that it explains, on the cells of its own map, for the class that the head decides on:

- evidence: where the terms theta_k Phi_kc of the decision come from, which add up to the logit;
- against the runner-up: the same for the difference of two logits (for a converted head, exactly the dense one's);
- CAM: the dense weights of the class times the maps; Grad-CAM: captum's, its ReLU.

A small area is good for deletion, a large one for insertion. Intervals are of a bootstrap over images, differences are
paired. Prints Markdown; also how fast the exact terms decide (features taken out), and the randomisation check of the
evidence map.
"""

import argparse
import copy
import hashlib
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from torch import Tensor, nn

import bndl
from bndl.calibrate import best_log_scale
from bndl.compare.subjects import find_source
from bndl.convert import find_layer, find_linear
from bndl.data import as_float
from bndl.explain.contributions import contribution_map
from bndl.explain.curves import Curves
from bndl.explain.faithfulness import (
    deletion,
    difference,
    feature_deletion,
    insertion,
    random_orders,
    randomisation_check,
)
from bndl.explain.gradcam import grad_cam
from bndl.explain.maps import feature_maps
from bndl.features import FeatureSet, evaluating, features_of
from bndl.metrics.bootstrap import Figure

TAKEN_OUT = (0, 1, 2, 5, 10, 20, 50)
MODES = {"deletion": deletion, "insertion": insertion}


class Remembered:
    """Features of images, kept: the same covered images are asked for by several heads."""

    def __init__(self, model: nn.Module) -> None:
        self.model, self.head, self.known = model, find_linear(model)[1], {}

    def __call__(self, images: Tensor) -> Tensor:
        keys = [hashlib.blake2b(image.contiguous().numpy(), digest_size=16).digest() for image in images]
        new = {key: i for i, key in enumerate(keys) if key not in self.known}
        if new:
            with evaluating(self.model):
                found = features_of(self.model, images[list(new.values())], head=self.head)
            self.known.update(zip(new, found, strict=True))
        return torch.stack([self.known[key] for key in keys])


@dataclass(frozen=True)
class Judged:
    head: str
    map: str
    curves: dict[str, Curves]


def scaled(head: nn.Module, val: FeatureSet) -> nn.Module:
    """The head with weights and bias times 1 / T."""
    head = copy.deepcopy(head).eval()
    with torch.no_grad():
        scale = best_log_scale(head(val.features.float()), val.labels).exp()
        head.weight.mul_(scale)
        head.bias.mul_(scale)
    return head


def heads_of(source: object, images: object, trained: str | None) -> dict[str, nn.Module]:
    subject = source.subject
    converted = bndl.convert(copy.deepcopy(subject.head), features="nonnegative")
    path = bndl.sparsify(converted, subject.train, subject.val, progress=False)
    print(f"sparse head: {path.point.weights_per_class:.1f} weights a class, validation accuracy {path.point.accuracy:.2%} "
          f"(dense {path.points[0].accuracy:.2%})\n")  # fmt: skip
    heads = {"dense": subject.head, "converted": converted, "sparse": find_layer(path.best)}
    if trained:
        from bndl.train import load_run

        other = load_run(trained).model
        x = as_float(images[:2])
        with evaluating(other), evaluating(source.images().model):
            same = torch.allclose(features_of(other, x), Remembered(source.images().model)(x), atol=1e-4)
        if not same:
            raise SystemExit(f"{trained} stands on another backbone")
        heads["trained"] = find_layer(other)
    return {name: scaled(head, subject.val) for name, head in heads.items()}


def maps_of(model: nn.Module, x: Tensor, heads: dict[str, nn.Module], batch: int) -> Iterator[tuple[str, str, Tensor]]:
    """(head, name, maps (B, h, w)) of every explanation, each for the head's own decisions."""
    parts = [feature_maps(model, part, head=find_linear(model)[1]) for part in x.split(batch)]
    maps, features = torch.cat([p.maps for p in parts]), torch.cat([p.features for p in parts])
    for name, head in heads.items():
        logits = head(features)
        first = logits.argmax(dim=1)
        second = logits.scatter(1, first[:, None], -torch.inf).argmax(dim=1)
        if name == "dense":
            yield name, "CAM", torch.einsum("bkhw,bk->bhw", maps, head.weight[first])
            cams = [grad_cam(model, a, target=b) for a, b in zip(x.split(batch), first.split(batch), strict=True)]
            yield name, "Grad-CAM", torch.cat(cams)
            continue
        evidence, other = (contribution_map(head, maps, classes) for classes in (first, second))
        yield name, "evidence", evidence
        yield name, "against the runner-up", evidence - other


@torch.no_grad()
def judge(model: nn.Module, x: Tensor, heads: dict[str, nn.Module], args: argparse.Namespace) -> list[Judged]:
    remembered, found = Remembered(model), []
    settings = {"steps": args.steps, "background": args.background, "batch_size": args.batch}
    with torch.enable_grad():
        explained = [(head, name, maps.detach()) for head, name, maps in maps_of(model, x, heads, args.batch)]
    scores = {name: partial(_scores, head, remembered) for name, head in heads.items()}
    for head, name, maps in explained:
        curves = {mode: way(scores[head], x, maps, **settings) for mode, way in MODES.items()}
        found.append(Judged(head, name, curves))
        print(f"<!-- {head}, {name}: {_line(curves)} -->", flush=True)
    cells = tuple(explained[0][2].size()[1:])
    for head in heads:
        ways = {
            mode: random_orders(scores[head], x, cells=cells, mode=mode, num_orders=args.orders, **settings)
            for mode in MODES
        }
        found.append(Judged(head, "random order", ways))
    print(f"<!-- random: {_line(ways)}; {len(remembered.known)} images passed the backbone -->\n", flush=True)
    return found


def _scores(head: nn.Module, remembered: Remembered, images: Tensor) -> Tensor:
    return head(remembered(images)).double().softmax(dim=1)


def _line(curves: dict[str, Curves]) -> str:
    return ", ".join(f"{mode} {float(own.auc.mean()):.3f}" for mode, own in curves.items())


def show(figure: Figure, *, sign: bool = False) -> str:
    form = "+.3f" if sign else ".3f"
    return f"{figure.value:{form}} ({figure.low:{form}} to {figure.high:{form}})"


def excess(own: Judged, found: list[Judged], mode: str) -> Curves:
    """The curves less those of random orders for the same head."""
    chance = next(other for other in found if (other.head, other.map) == (own.head, "random order"))
    mine = own.curves[mode]
    return Curves(mine.fractions, mine.probability - chance.curves[mode].probability)


def table(found: list[Judged]) -> None:
    cam = next(own for own in found if own.map == "CAM")
    print("| head | explanation | deletion | less random | less random, less CAM's | insertion | less random "
          "| less random, less CAM's |\n|---|---|---|---|---|---|---|---|")  # fmt: skip
    for own in found:
        cells = []
        for mode in MODES:
            cells.append(show(own.curves[mode].summary().auc))
            if own.map == "random order":
                cells += ["", ""]
                continue
            mine, dense = excess(own, found, mode), excess(cam, found, mode)
            cells.append(show(mine.summary().auc, sign=True))
            cells.append("" if own is cam else show(difference(mine, dense), sign=True))
        print(f"| {own.head} | {own.map} | {' | '.join(cells)} |")


def terms(model: nn.Module, x: Tensor, heads: dict[str, nn.Module], batch: int) -> dict[str, dict[str, list[float]]]:
    """P(decision) after the first 1, 2, ... features are taken out."""
    remembered, found = Remembered(model), {}
    features = torch.cat([remembered(part) for part in x.split(batch)])
    print(
        "\n| head | features taken out: | "
        + " | ".join(map(str, TAKEN_OUT))
        + " |\n|---|---|"
        + "---|" * len(TAKEN_OUT)
    )
    for name, head in heads.items():
        if name == "dense":
            continue
        ways = {
            order: feature_deletion(head, features, order=order, steps=TAKEN_OUT) for order in ("term", "difference")
        }
        drawn = [feature_deletion(head, features, order="random", steps=TAKEN_OUT, seed=seed) for seed in range(5)]
        ways["random"] = Curves(drawn[0].fractions, torch.stack([own.probability for own in drawn]).mean(dim=0))
        found[name] = {order: own.probability.mean(dim=0).tolist() for order, own in ways.items()}
        for order, means in found[name].items():
            print(f"| {name} | {order} | " + " | ".join(f"{value:.3f}" for value in means) + " |")
    return found


def forgetting(model: nn.Module, x: Tensor, count: int) -> list[dict[str, object]]:
    converted = bndl.convert(copy.deepcopy(model)).eval()
    x = x[:count]
    with torch.no_grad():
        first, second = converted(x).topk(2, dim=1).indices.unbind(1)

    def evidence(net: nn.Module, images: Tensor) -> Tensor:
        return contribution_map(find_layer(net), feature_maps(net, images).maps, first)

    def contrast(net: nn.Module, images: Tensor) -> Tensor:
        layer, maps = find_layer(net), feature_maps(net, images).maps
        return contribution_map(layer, maps, first) - contribution_map(layer, maps, second)

    found = [randomisation_check(converted, x, way) for way in (evidence, contrast)]
    print(f"\nrandomisation, converted head, {len(x)} images: rank correlation with the trained network's map\n")
    print("| drawn anew, down to | evidence | against the runner-up |\n|---|---|---|")
    rows = list(zip(found[0].modules, *(own.figures() for own in found), strict=True))
    for name, *figures in rows:
        print(f"| {name} | {' | '.join(show(figure) for figure in figures)} |")
    return [{"module": name, "evidence": vars(one), "against the runner-up": vars(two)} for name, one, two in rows]


def run(name: str, args: argparse.Namespace) -> dict[str, object]:
    source = find_source(name, cache=args.cache)
    images = source.images()
    chosen = torch.randperm(len(images.test), generator=torch.Generator().manual_seed(0))[: args.images].sort().values
    data = images.test.subset(chosen)
    raw = torch.stack([data[i][0] for i in range(len(data))])
    x, model = as_float(raw), images.model.eval().to(memory_format=torch.channels_last)
    print(f"\n## {source.name}: {len(x)} test images, {args.steps} steps, background {args.background}\n", flush=True)
    heads = heads_of(source, raw, args.trained if Path(name).is_dir() else None)
    found = judge(model, x, heads, args)
    table(found)
    curves = {
        f"{own.head}, {own.map}": {mode: curves.summary().to_dict() for mode, curves in own.curves.items()}
        for own in found
    }
    facts = {"subject": source.name, "images": len(x), "background": args.background, "curves": curves}
    return {**facts, "terms": terms(model, x, heads, args.batch), "randomisation": forgetting(model, x, args.forget)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("subjects", nargs="*", default=["resnet56_cifar10"])
    parser.add_argument(
        "--trained", metavar="RUN", help="a run with a BNDL head on the backbone of the run that is the subject"
    )
    parser.add_argument("--images", type=int, default=200)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--orders", type=int, default=3, help="random orders an image")
    parser.add_argument("--background", default="blur")
    parser.add_argument("--batch", type=int, default=32, help="images a pass; on a CPU, 4 of 224 px are fastest")
    parser.add_argument("--forget", type=int, default=50, help="images of the randomisation check")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--cache", type=Path, default=Path("runs/features"))
    parser.add_argument("--json", metavar="PATH")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    print(f"torch {torch.__version__}, {args.threads} threads of {os.cpu_count()} cores")
    found = [run(name, args) for name in args.subjects]
    if args.json:
        Path(args.json).write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()

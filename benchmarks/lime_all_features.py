"""Time of `bndl.explain.lime` for all K features of one image against the `lime` package, same perturbations a feature.

    python benchmarks/lime_all_features.py [--data DIR] [--perturbations 1000] [--repeats 3] [--single 2] [--json PATH]

EfficientNet-Lite0 (K = 1280) on a 160-px image of Imagenette (DIR is a folder that holds it; left out, the one that
BNDL_DATA names). Both get the same super-pixels, the same number of perturbations and the same batch size, on one thread;
processor time, taking turns, medians. The `lime` package is timed in both ways that it can be asked for K features:

- all labels in one call: its perturbations pass the backbone once, as ours do, and then it fits each label by itself;
- one feature a call, as the paper's figures were made: every call passes the backbone again. K such calls would take hours,
  so this is the median of a few calls (--single) times K: an estimate, and marked as one.

"Without the passes" is the whole less the time inside the backbone, which is the same network for both.
"""

import argparse
import json
import os
import statistics
import sys
import time
from dataclasses import asdict, dataclass, fields
from importlib.metadata import version
from pathlib import Path

os.environ["TQDM_DISABLE"] = "1"  # lime's bar

import numpy as np
import torch
from lime.lime_image import LimeImageExplainer
from torch import Tensor, nn

import bndl
from bndl.backbones import build
from bndl.convert import find_layer
from bndl.data import Reading, as_float, load
from bndl.explain.lime import lime
from bndl.explain.segments import slic
from bndl.features import evaluating, features_of

SIDE = 160


@dataclass(frozen=True)
class Taken:
    """Seconds in all, those inside the backbone, and those outside."""

    whole: float
    passes: float
    rest: float


class Clock:
    """Adds up the time that a network's forward passes take."""

    def __init__(self, network: nn.Module) -> None:
        self.total = self._started = 0.0
        network.register_forward_pre_hook(lambda *_: self._start())
        network.register_forward_hook(lambda *_: self._stop())

    def _start(self) -> None:
        self._started = time.process_time()

    def _stop(self) -> None:
        self.total += time.process_time() - self._started

    def take(self, call) -> tuple[Taken, object]:
        before, started = self.total, time.process_time()
        result = call()
        whole, passes = time.process_time() - started, self.total - before
        return Taken(whole, passes, whole - passes), result


def theirs(model: nn.Module, image: Tensor, segments: Tensor, labels: range, args: argparse.Namespace) -> object:
    layer = find_layer(model)

    def classifier(images: np.ndarray) -> np.ndarray:
        with evaluating(model):
            inputs = torch.from_numpy(images).permute(0, 3, 1, 2).contiguous()
            return layer.theta(features_of(model, inputs)).mean.numpy()

    return LimeImageExplainer(random_state=0).explain_instance(
        image.permute(1, 2, 0).numpy(),
        classifier,
        labels=labels,
        top_labels=None,
        num_samples=args.perturbations,
        batch_size=args.batch,
        segmentation_fn=lambda _: segments.numpy(),
    )


def alike(ours: object, other: object, num_features: int) -> float:
    """Median rank correlation of both coefficients over features: their perturbations are other draws of the same kind."""
    from bndl.explain.ranks import spearman

    rows = torch.tensor([[value for _, value in sorted(other.local_exp[k])] for k in range(num_features)])
    return float(spearman(ours.coefficients[:num_features], rows).nanmedian())


def middle(taken: list[Taken]) -> Taken:
    """The median of each column by itself."""
    return Taken(*(statistics.median(getattr(own, field.name) for own in taken) for field in fields(Taken)))


def report(found: dict[str, Taken], spread: dict[str, list[Taken]]) -> None:
    ours = found["bndl"]
    print("| | whole, s | inside the backbone, s | without the passes, s | whole / ours | without the passes / ours |")
    print("|---|---|---|---|---|---|")
    for name, own in found.items():
        print(
            f"| {name} | {own.whole:.1f} | {own.passes:.1f} | {own.rest:.2f} | {own.whole / ours.whole:.1f} "
            f"| {own.rest / ours.rest:.0f} |"
        )
    ratios = [a.rest / b.rest for a, b in zip(spread["lime"], spread["bndl"], strict=True)]
    wholes = [a.whole / b.whole for a, b in zip(spread["lime"], spread["bndl"], strict=True)]
    print(f"\nlime, all labels, round by round: whole {min(wholes):.2f} to {max(wholes):.2f}, "
          f"without the passes {min(ratios):.0f} to {max(ratios):.0f}")  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", help="folder that holds Imagenette")
    parser.add_argument("--image", type=int, default=0, help="which of its validation images")
    parser.add_argument("--perturbations", type=int, default=1000)
    parser.add_argument("--count", type=int, default=50, help="super-pixels wanted")
    parser.add_argument("--batch", type=int, default=10, help="images a pass, for both; 10 is what lime does by itself")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--single", type=int, default=2, help="calls of lime for one feature, to estimate K of them")
    parser.add_argument("--json", metavar="PATH")
    args = parser.parse_args()
    torch.set_num_threads(1)
    data = load("imagenette", split="val", root=args.data, reading=Reading(size=SIDE, resize=SIDE))
    model = bndl.convert(build("efficientnet-lite0", pretrained=True, classes=data.classes, size=SIDE).model)
    image = as_float(data[args.image][0])
    segments = slic(image, count=args.count)
    K, M = find_layer(model).num_features, int(segments.max()) + 1
    clock = Clock(model)
    settings = {"segments": segments, "num_perturbations": args.perturbations, "batch_size": args.batch}

    lime(model, image, **{**settings, "num_perturbations": 64})
    theirs(model, image, segments, range(2), argparse.Namespace(**{**vars(args), "perturbations": 64}))
    spread: dict[str, list[Taken]] = {"bndl": [], "lime": [], "single": []}
    for _ in range(args.repeats):
        taken, ours = clock.take(lambda: lime(model, image, **settings))
        spread["bndl"].append(taken)
        taken, other = clock.take(lambda: theirs(model, image, segments, range(K), args))
        spread["lime"].append(taken)
        print(f"round: ours {spread['bndl'][-1]}, lime {taken}", file=sys.stderr, flush=True)
    for k in range(args.single):
        spread["single"].append(clock.take(lambda k=k: theirs(model, image, segments, range(k, k + 1), args))[0])
    found = {"bndl": middle(spread["bndl"]), "lime, all K labels in one call": middle(spread["lime"])}
    if args.single:
        one = middle(spread["single"])
        found["lime, one feature a call, K calls (estimated)"] = Taken(K * one.whole, K * one.passes, K * one.rest)
    versions = [f"{name} {version(name)}" for name in ("torch", "lime", "scikit-learn", "scikit-image")]
    print(f"{', '.join(versions)}; one thread of {os.cpu_count()} cores")
    print(f"K = {K} features, {M} super-pixels, {args.perturbations} perturbations, batch {args.batch}, {SIDE} px\n")
    report(found, spread)
    print(f"median R2 {float(ours.r2.nanmedian()):.2f}, stability {float(ours.stability.nanmedian()):.2f}; "
          f"rank correlation with lime's coefficients (other draws) {alike(ours, other, K):.2f}")  # fmt: skip
    if args.json:
        facts = {"features": K, "parts": M, **{k: v for k, v in vars(args).items() if k not in ("json", "data")}}
        rows = {name: [asdict(own) for own in taken] for name, taken in spread.items()}
        Path(args.json).write_text(json.dumps({"settings": facts, "seconds": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()

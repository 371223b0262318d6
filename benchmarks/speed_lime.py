"""LIME for all K features of one 160-px image: `bndl.explain.lime` against the `lime` package, as many perturbations.

    python benchmarks/speed_lime.py [--data DIR] [--perturbations 1000] [--rounds 3] [--single 2]

EfficientNet-Lite0 (K = 1280) on a 160-px image of Imagenette (DIR is a folder that holds it; left out, the one that
BNDL_DATA names). Both get the same super-pixels, the same number of perturbations and the same batch size, on one thread;
processor time, taking turns, medians. The `lime` package is timed in both ways that it can be asked for K features:

- one feature a call, as the paper's figures were made: every call passes the backbone again. K such calls would take hours,
  so this is the median of a few calls (--single) times K: an estimate, and marked as one;
- all labels in one call: its perturbations pass the backbone once, as ours do, and then it fits each label by itself.

"Without the passes" is the whole less the time inside the backbone, which is the same network for both.
"""

import argparse
import os
import statistics
import sys
import time
from dataclasses import dataclass, fields

os.environ["TQDM_DISABLE"] = "1"  # lime's bar

import numpy as np
import torch
from lime.lime_image import LimeImageExplainer
from torch import Tensor, nn

import bndl
from bndl.backbones import build
from bndl.bench import Claim, Record, main
from bndl.bench.race import Spread
from bndl.convert import find_layer
from bndl.data import Reading, as_float, load
from bndl.explain.lime import lime
from bndl.explain.ranks import spearman
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
    rows = torch.tensor([[value for _, value in sorted(other.local_exp[k])] for k in range(num_features)])
    return float(spearman(ours.coefficients[:num_features], rows).nanmedian())


def middle(taken: list[Taken]) -> Taken:
    """The median of each column by itself."""
    return Taken(*(statistics.median(getattr(own, field.name) for own in taken) for field in fields(Taken)))


def ratio(found: dict[str, list[Taken]], name: str, part: str, *, times: int = 1) -> Spread:
    """How many times as long as ours, round by round."""
    both = zip(found[name], found["bndl"], strict=False)
    return Spread.of([times * getattr(other, part) / getattr(own, part) for other, own in both])


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--data", help="folder that holds Imagenette")
    parser.add_argument("--image", type=int, default=0, help="which of its validation images")
    parser.add_argument("--perturbations", type=int, default=1000)
    parser.add_argument("--count", type=int, default=50, help="super-pixels wanted")
    parser.add_argument("--batch", type=int, default=10, help="images a pass, for both; 10 is what lime does by itself")
    parser.add_argument(
        "--single", type=int, default=2, help="rounds with a call of lime for one feature, to estimate K of them"
    )


def measure(args: argparse.Namespace) -> Record:
    torch.set_num_threads(1)  # processor time is then that of the work
    data = load("imagenette", split="val", root=args.data, reading=Reading(size=SIDE, resize=SIDE))
    model = bndl.convert(build("efficientnet-lite0", pretrained=True, classes=data.classes, size=SIDE).model)
    image = as_float(data[args.image][0])
    segments = slic(image, count=args.count)
    K, M = find_layer(model).num_features, int(segments.max()) + 1
    clock = Clock(model)
    settings = {"segments": segments, "num_perturbations": args.perturbations, "batch_size": args.batch}
    lime(model, image, **{**settings, "num_perturbations": 64})
    theirs(model, image, segments, range(2), argparse.Namespace(**{**vars(args), "perturbations": 64}))
    found: dict[str, list[Taken]] = {"bndl": [], "all": [], "single": []}
    ways = {
        "bndl": lambda: lime(model, image, **settings),
        "all": lambda: theirs(model, image, segments, range(K), args),
    }
    results = {}
    for number in range(args.rounds):
        for name in sorted(ways, reverse=bool(number % 2)):
            taken, results[name] = clock.take(ways[name])
            found[name].append(taken)
        if number < args.single:
            found["single"].append(
                clock.take(lambda k=number: theirs(model, image, segments, range(k, k + 1), args))[0]
            )
        print(f"  round {number + 1} of {args.rounds}", flush=True)
    ours, other = results["bndl"], results["all"]
    names = {"bndl": ("bndl.explain.lime", 1), "single": ("lime, one feature a call, K calls (estimated)", K),
             "all": ("lime, all K labels in one call", 1)}  # fmt: skip
    rows = []
    for name, (shown, times) in names.items():
        if found[name]:
            own = middle(found[name])
            rows.append({
                "": shown, "whole, s": times * own.whole, "inside the backbone, s": times * own.passes,
                "without the passes, s": times * own.rest, "whole / ours": ratio(found, name, "whole", times=times).median,
                "without the passes / ours": ratio(found, name, "rest", times=times).median,
            })  # fmt: skip
    claims = [
        Claim("lime, all labels in one call / ours, without the passes", ratio(found, "all", "rest"), 20, "at least")
    ]
    if found["single"]:
        one = ratio(found, "single", "whole", times=K)
        claims.append(Claim("lime, a call for each of K features (estimated) / ours", one, 20, "at least"))
    whole = ratio(found, "all", "whole")
    notes = [
        f"The whole of one call for all labels takes {whole.median:.2f} ({whole.low:.2f} to {whole.high:.2f}) times ours, "
        "not 20: both make the same passes.",
        f"Median R2 {float(ours.r2.nanmedian()):.2f}, stability {float(ours.stability.nanmedian()):.2f}; "
        f"rank correlation with lime's coefficients (other draws) {alike(ours, other, K):.2f}.",
    ]
    settings = {
        "K": K,
        "super-pixels": M,
        "perturbations": args.perturbations,
        "batch": args.batch,
        "rounds": args.rounds,
    }
    about = "LIME for all features of an image"
    return Record("speed_lime", about, rows, claims, settings, ("lime", "scikit-learn", "scikit-image"), notes)


if __name__ == "__main__":
    sys.exit(main(__doc__, measure, add_arguments, rounds=3))

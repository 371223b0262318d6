"""A path of 20 sparse heads, ours against glm_saga's, on 50,000 x 512 features of 100 classes: accuracy and time.

    python benchmarks/sparsity_path.py [--cache runs/features] [--runs ours few converged] [--out FILE] [--every 1]

The features are those of the pretrained CIFAR-100 ResNet-32 (256 of them, as they are) and 256 random non-negative mixtures
of them, ReLU(z R) of the standardised z; the dense head is fitted to all 512. Both paths learn from the same examples: all
training features and one half of the validation features. The other half is for our choices; glm_saga has none to make.

glm_saga runs twice. ``few``: a few epochs a penalty, far from converged. ``converged``: as its authors run it, to its own
stopping rule (an objective that falls by less than 1e-4 for 3 epochs, at most 2,000 epochs; main.py of Debuggable Networks).
Its batch size and rate are those that suit it best here (see bndl.baselines.elastic_net), and it follows as many penalties
as we make points, in place of its 100. ``--every 4`` solves every fourth penalty only, and says the time of all of them as
an extrapolation: too long a time, as steps from one penalty to the next are then longer.

Times are processor time, which a busy machine disturbs least: all of ours (calibration of the dense and of the chosen head,
choosing, the noise and the figures of each point), and of glm_saga its steps alone. Figures are written as they come, and
a later call with the same ``--out`` adds to them. Accuracies are those of the test half, glm_saga's interpolated in the
logarithm of the number of weights.
"""

import argparse
import itertools
import json
import math
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn

import bndl
from bndl.baselines import elastic_net
from bndl.compare.subjects import Subject, find_source
from bndl.features import FeatureSet
from bndl.files import replacing
from bndl.sparsify.run import parts

MOST_EPOCHS = 2000


def widened(subject: Subject, num_features: int) -> dict[str, FeatureSet]:
    """Each part's features and random non-negative mixtures of them."""
    base = subject.train.features.float()
    mean, std = base.mean(dim=0), base.std(dim=0).clamp_min(1e-6)
    extra = num_features - base.size(1)
    mix = torch.randn(base.size(1), extra, generator=torch.Generator().manual_seed(0)) / math.sqrt(base.size(1))

    def of(data: FeatureSet) -> FeatureSet:
        features = data.features.float()
        return FeatureSet(torch.cat([features, ((features - mean) / std @ mix).relu()], dim=1), data.labels)

    return {part: of(getattr(subject, part)) for part in ("train", "val", "test")}


def dense_head(train: FeatureSet, num_classes: int, *, epochs: int = 8) -> nn.Linear:
    """A linear head, trained on the training features with a rate that falls to zero."""
    generator = torch.Generator().manual_seed(0)
    torch.manual_seed(0)
    head = nn.Linear(train.features.size(1), num_classes)
    optimizer = torch.optim.AdamW(head.parameters(), lr=2e-3, weight_decay=1e-2)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, epochs * math.ceil(len(train) / 256))
    for _ in range(epochs):
        for rows in torch.randperm(len(train), generator=generator).split(256):
            optimizer.zero_grad()
            nn.functional.cross_entropy(head(train.features[rows]), train.labels[rows]).backward()
            optimizer.step()
            schedule.step()
    return head.requires_grad_(False)


@torch.no_grad()
def accuracy(model: nn.Module, data: FeatureSet) -> float:
    return float((model.eval()(data.features).argmax(dim=1) == data.labels).double().mean())


class Figures:
    """What was measured, in a file after every point."""

    def __init__(self, file: Path | None) -> None:
        self.file = file
        self.found: dict[str, Any] = json.loads(file.read_text()) if file is not None and file.exists() else {}

    def put(self, name: str, value: Any) -> None:
        self.found[name] = value
        if self.file is not None:
            with replacing(self.file) as temporary:
                temporary.write_text(json.dumps(self.found, indent=2) + "\n")


def run_ours(head: nn.Linear, data: dict[str, FeatureSet], num_points: int) -> dict[str, Any]:
    layer = bndl.convert(head, features="nonnegative")
    started, clock = time.process_time(), time.perf_counter()
    path = bndl.sparsify(layer, data["train"], data["val"], num_points=num_points, progress=False)
    seconds, wall = time.process_time() - started, time.perf_counter() - clock
    points = [
        {**p.to_dict(), "test": accuracy(model, data["test"])} for p, model in zip(path.points, path, strict=True)
    ]
    return {"seconds": seconds, "wall": wall, "points": points}


@torch.no_grad()
def glm_saga(
    data: FeatureSet, num_classes: int, *, num_points: int, epochs: int, every: int = 1
) -> Iterator[tuple[nn.Linear, dict[str, Any]]]:
    """Heads along the penalties, each from where the one before ended, with what they took."""
    package = elastic_net._package()
    started = time.process_time()
    mean, std = data.features.mean(dim=0), data.features.std(dim=0).clamp_min(1e-12)
    scaled = (data.features - mean) / std
    linear, state = elastic_net._empty(scaled, data.labels, num_classes)
    loader, rate = elastic_net._Loader(scaled, data.labels, 0), elastic_net._rate(scaled)
    largest = package.maximum_reg(scaled, data.labels, group=False) / elastic_net.ALPHA
    penalties = torch.logspace(math.log10(largest), math.log10(largest / elastic_net._RANGE), num_points)
    for index in range(every - 1, num_points, every):
        said: list[str] = []
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="Implicit dimension choice")
            state = package.train_saga(
                linear, loader, rate, epochs, penalties[index], elastic_net.ALPHA, group=False, state=state, verbose=1,
                n_ex=len(data), n_classes=num_classes, tol=1e-4, lookbehind=3, logger=said.append,
            )  # fmt: skip
        taken = {
            "penalty": index + 1,
            "nnz": float((linear.weight.abs() > 1e-5).double().mean()),
            "epochs": len(said) - 1,
            "stopped": "early stop" in said[-1],
            "seconds": time.process_time() - started,
        }
        yield elastic_net._unscaled(linear, mean, std), taken


def run_glm_saga(name: str, data: dict[str, FeatureSet], num_classes: int, figures: Figures, **options: int) -> None:
    fitting = parts(data["train"], data["val"], torch.Generator().manual_seed(0))[0]
    both = FeatureSet(torch.cat([d.features for d in fitting]), torch.cat([d.labels for d in fitting]))
    points: list[dict[str, Any]] = []
    for head, taken in glm_saga(both, num_classes, **options):
        points.append({**taken, "test": accuracy(head, data["test"])})
        figures.put(name, {**options, "seconds": taken["seconds"], "points": points})
        print("  {name}, penalty {penalty}: nnz {nnz:.4f}, accuracy {test:.2%}, {epochs} epochs, {seconds:.0f} s"
              .format(name=name, **points[-1]), flush=True)  # fmt: skip


def interpolated(path: list[tuple[float, float]], nnz: float) -> float:
    """The other path's accuracy at a share of the weights; nan outside its range."""
    for (low, first), (high, second) in itertools.pairwise(sorted(path)):
        if 0 < low <= nnz <= high and low < high:
            return first + (second - first) * math.log(nnz / low) / math.log(high / low)
    return math.nan


def compared(found: dict[str, Any]) -> Iterator[str]:
    """Times, their ratios, and accuracies at the same numbers of weights."""
    ours = found["ours"]
    others = [name for name in ("few", "converged") if name in found]
    yield f"ours: {len(ours['points'])} points, {ours['seconds']:.1f} s of processor time, {ours['wall']:.1f} s"
    for name in others:
        run = found[name]
        done, asked = len(run["points"]), run["num_points"]
        epochs, unstopped = sum(p["epochs"] for p in run["points"]), sum(not p["stopped"] for p in run["points"])
        yield (
            f"glm_saga, {name}: {done} of {asked} penalties, {epochs} epochs, {run['seconds']:.0f} s, "
            f"{run['seconds'] / ours['seconds']:.1f} times ours; {unstopped} not at its stopping rule"
        )
        if done < asked:
            whole = run["seconds"] * asked / done
            yield f"  extrapolated to {asked} penalties: {whole:.0f} s, {whole / ours['seconds']:.1f} times ours"
    yield "\n| nnz | ours |" + "".join(f" glm_saga, {name} |" for name in others)
    yield "|---|---|" + "---|" * len(others)
    for point in ours["points"]:
        theirs = [interpolated([(p["nnz"], p["test"]) for p in found[name]["points"]], point["nnz"]) for name in others]
        cells = ["-" if math.isnan(value) else f"{value:.2%}" for value in theirs]
        yield f"| {point['nnz']:.4f} | {point['test']:.2%} |" + "".join(f" {cell} |" for cell in cells)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--points", type=int, default=20)
    parser.add_argument("--runs", nargs="+", choices=("ours", "few", "converged"), default=["ours", "few"])
    parser.add_argument("--epochs", type=int, default=3, help="of glm_saga, a penalty, in the run named few")
    parser.add_argument("--every", type=int, default=1, help="solve every n-th penalty in the run named converged")
    parser.add_argument("--features", type=int, default=512)
    parser.add_argument("--checkpoint", default="resnet32_cifar100")
    parser.add_argument("--cache", type=Path, default=Path("runs/features"))
    parser.add_argument("--out", type=Path, help="JSON file of the figures; those in it are kept and compared with")
    args = parser.parse_args()
    subject = find_source(args.checkpoint, cache=args.cache).subject
    C, data, figures = subject.head.out_features, widened(subject, args.features), Figures(args.out)
    head = dense_head(data["train"], C)
    figures.put("dense", accuracy(head, data["test"]))
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads")
    print(
        f"{len(data['train']):,} x {args.features} features, {C} classes, dense: {figures.found['dense']:.2%}",
        flush=True,
    )
    if "ours" in args.runs:
        figures.put("ours", run_ours(head, data, args.points))
    for name, epochs, every in (("few", args.epochs, 1), ("converged", MOST_EPOCHS, args.every)):
        if name in args.runs:
            run_glm_saga(name, data, C, figures, num_points=args.points, epochs=epochs, every=every)
    if "ours" in figures.found:
        print("\n".join(compared(figures.found)))


if __name__ == "__main__":
    main()

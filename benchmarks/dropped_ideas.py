"""What was tried for the defaults of `fit` and `predict`, kept or not: five-fold cross-validation on the fitting half alone.

    python benchmarks/dropped_ideas.py [resnet32_cifar100 resnet56_cifar10] [--only WORDS...] [--repeats 1]

Networks are pretrained checkpoints, from the folder that BNDL_DATA names, or runs with a dense head. No image of the other
half, on which the methods are compared, is looked at. Prints a Markdown table for each network: the likelihood, calibration
and ranking of the averaged probabilities, and PAvPU at p = .05 of the decision tested against the runner-up (the paper's
question) and against all other classes together (ours).
"""

import argparse
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bndl import calibrate
from bndl.baselines.bndl import takes_nonnegative
from bndl.baselines.predictions import log_odds
from bndl.compare.subjects import find_source
from bndl.convert import convert, find_layer
from bndl.decide import Decider, odds_test, t_test
from bndl.features import FeatureSet
from bndl.metrics.calibration import calibration_error
from bndl.metrics.detection import auroc
from bndl.metrics.pavpu import best_threshold
from bndl.metrics.selective import aurc
from bndl.predict import decide_all

FOLDS, STEPS = 5, 150
FORMS = ("{:.4f}", "{:.2%}", "{:.4f}", "{:.2%}", "{:.2%}", "{:.2%}")


@dataclass(frozen=True)
class Answer:
    """Of held-out examples: log-probabilities (B, C), labels (B,), whether each is certain by either test."""

    log_probs: Tensor
    labels: Tensor
    runner_up: Tensor
    everyone: Tensor


Fit = Callable[[nn.Linear, FeatureSet, FeatureSet], Answer]


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@torch.no_grad()
def mean_logits(head: nn.Linear, data: FeatureSet) -> Tensor:
    logits: Tensor = head(data.features.float())
    return logits


def scaling(head: nn.Linear, train: FeatureSet, test: FeatureSet) -> Answer:
    """Temperature scaling. For the runner-up: its margin, with the threshold that is best on the rest of the half."""
    scale = calibrate.best_log_scale(mean_logits(head, train), train.labels).exp()
    seen, new = ((mean_logits(head, data) * scale).log_softmax(1) for data in (train, test))
    margins = [-log.exp().topk(2, dim=1).values.diff(dim=1)[:, 0].double() for log in (seen, new)]
    threshold = best_threshold(margins[0], seen.argmax(1) == train.labels)
    return Answer(new, new.argmax(1), margins[1] >= threshold, new.max(1).values.exp() > 0.5)


def learnt(ridge: float) -> Fit:
    """Temperature scaling, and from there weights that learn too: the closer to the given ones the larger ``ridge``, the
    inverse of the variance of a normal prior in units of each feature's standard deviation."""

    def fit(head: nn.Linear, train: FeatureSet, test: FeatureSet) -> Answer:
        scale = calibrate.best_log_scale(mean_logits(head, train), train.labels).exp()
        centre, spread = train.features.mean(0), train.features.std(0).clamp_min(1e-6)
        seen, new = ((data.features.float() - centre) / spread for data in (train, test))
        start = [head.weight.detach() * spread * scale, (head.bias + head.weight @ centre).detach() * scale]
        now = [nn.Parameter(tensor.clone()) for tensor in start]
        optimizer = torch.optim.LBFGS(now, max_iter=60, history_size=8, line_search_fn="strong_wolfe")

        def loss() -> Tensor:
            optimizer.zero_grad()
            moved = sum((own - old).square().sum() for own, old in zip(now, start, strict=True))
            value = F.cross_entropy(F.linear(seen, *now), train.labels) + 0.5 * ridge / len(seen) * moved
            value.backward()
            return value

        optimizer.step(loss)
        log = F.linear(new, *now).detach().log_softmax(1)
        likely = log.max(1).values.exp() > 0.5
        return Answer(log, log.argmax(1), likely, likely)

    return fit


def layered(*, shape: float = 10.0, level: bool = True, last: bool = True, rate: float = 0.0, **settings: str) -> Fit:
    """Our layer: where the prior is centred, whether the level of the noise may move, whether the scale is at last
    fitted to all examples, and the rate of an exponential prior on the noise's standard deviation, about pi / sqrt(6) k,
    in place of the normal one on its level: without evidence for noise there is none."""

    def fit(head: nn.Linear, train: FeatureSet, test: FeatureSet) -> Answer:
        sign = "nonnegative" if takes_nonnegative(train) else "signed"
        layer = find_layer(convert(head, features=sign, **settings))  # a new layer: the head is left alone
        kept, own, final = calibrate._SHAPE, calibrate._Level.take_gradient, calibrate._last_log_scale

        def held(level: calibrate._Level, num_data: int) -> None:
            own(level, num_data)
            assert level.centre.grad is not None
            level.centre.grad.zero_()

        @torch.no_grad()
        def exponential(level: calibrate._Level, num_data: int) -> None:
            own(level, num_data)
            spread = math.pi / math.sqrt(6) * (-level.centre).exp()
            assert level.centre.grad is not None
            level.centre.grad -= (level.centre - level.expected + rate * spread) / num_data

        try:
            calibrate._SHAPE = shape
            if rate or not level:
                calibrate._Level.take_gradient = exponential if rate else held  # type: ignore[method-assign]
            if not last:
                calibrate._last_log_scale = lambda layer, data, rows, log_scale: log_scale
            calibrate.calibrate(layer, train, generator=seeded())
        finally:
            calibrate._last_log_scale = final
            calibrate._SHAPE, calibrate._Level.take_gradient = kept, own  # type: ignore[method-assign]
        found = [
            decide_all(layer, test.features, Decider(layer, against=against), batch_size=1024, progress=False)
            for against in ("runner-up", "all")
        ]
        return Answer(found[1].probs.log(), found[1].labels, found[0].certain, found[1].certain)

    return fit


def bent(own: Fit, by: str) -> Fit:
    """Log-probabilities of ``own``, once more times exp(a + b x), where x is their entropy or the largest probability; or
    times exp(a), and mixed with a share b of all classes alike. a and b by the likelihood, with a standard normal prior."""

    def apply(log: Tensor, a: Tensor, b: Tensor) -> Tensor:
        if by == "all alike":
            share, given = (2 * b - 5).sigmoid(), (log * a.exp()).softmax(1)
            return ((1 - share) * given + share / log.size(1)).log()
        x = -(log.exp() * log).sum(1) if by == "entropy" else log.max(1).values.exp()
        return (log * (a + b * (x - 0.8)).exp()[:, None]).log_softmax(1)

    def fit(head: nn.Linear, train: FeatureSet, test: FeatureSet) -> Answer:
        both = FeatureSet(torch.cat([train.features, test.features]), torch.cat([train.labels, test.labels]))
        answer = own(head, train, both)
        log = answer.log_probs.clamp_min(-70)
        free = nn.Parameter(torch.zeros(2))
        optimizer = torch.optim.LBFGS([free], max_iter=50, line_search_fn="strong_wolfe")

        def loss() -> Tensor:
            optimizer.zero_grad()
            seen = apply(log[: len(train)], *free)
            value = F.nll_loss(seen, train.labels) + 0.5 * free.square().sum() / len(train)
            value.backward()
            return value

        optimizer.step(loss)
        rest = slice(len(train), None)
        bent_log = apply(log[rest], *free).detach()
        return Answer(bent_log, answer.labels[rest], answer.runner_up[rest], answer.everyone[rest])

    return fit


def additive(*, by_rest: bool, test_weight: float, outer: bool) -> Fit:
    """Noise added to the logits, the same for all classes, with a standard deviation exp(a + b r): r is the probability of
    all but the first two classes (b = 0 if not ``by_rest``). Fitted by the predictive likelihood, plus ``test_weight`` times
    the likelihood of right and wrong under the runner-up test; ``outer``: a temperature on the averaged probabilities."""

    def fit(head: nn.Linear, train: FeatureSet, test: FeatureSet) -> Answer:
        scale = calibrate.best_log_scale(mean_logits(head, train), train.labels).exp()
        free = nn.Parameter(
            torch.tensor([-0.5, 0.0, 0.0, 0.0, 0.0])
        )  # a, b, ln inner scale, ln outer, ln slope of the test
        optimizer, generator = torch.optim.Adam([free], 0.05), seeded()
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS)
        mean, labels = mean_logits(head, train) * scale, train.labels
        for _ in range(STEPS):
            rows = torch.randint(len(labels), (512,), generator=generator)
            log, z = _noisy(mean[rows], free, generator, by_rest=by_rest, outer=outer, num_samples=24)
            correct = (mean[rows].argmax(1) == labels[rows]).float()
            loss = F.nll_loss(log, labels[rows])
            if test_weight:
                slope = free[4].exp() * (z - _CRITICAL)
                loss = loss + test_weight * F.binary_cross_entropy_with_logits(slope, correct)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
        with torch.no_grad():
            mean = mean_logits(head, test) * scale
            log, z = _noisy(mean, free, seeded(1), by_rest=by_rest, outer=outer, num_samples=200)
            first = mean.argmax(1)
            odds = log_odds(mean.log_softmax(1), first)
            spread = odds / z.clamp_min(1e-6)  # stands in for the standard deviation of the log-odds
            everyone = odds_test(odds, spread.square()) <= 0.05
        return Answer(log, first, t_test(z, torch.ones_like(z)) <= 0.05, everyone)

    return fit


_CRITICAL = 2.0930 / math.sqrt(20)  # z at which the t-test at S = 20 has p = .05


def _noisy(
    mean: Tensor, free: Tensor, generator: torch.Generator, *, by_rest: bool, outer: bool, num_samples: int
) -> tuple[Tensor, Tensor]:
    """Log of the averaged probabilities (B, C) and z of the first two classes (B,)."""
    top = mean.softmax(1).topk(2, dim=1).values.sum(1)
    spread = (free[0] + by_rest * free[1] * (1 - top)).exp()
    drawn = torch.empty(num_samples, mean.size(1)).exponential_(generator=generator).log()
    noise = (drawn + 0.5772) * math.sqrt(6) / math.pi  # of mean 0 and variance 1, as a Weibull's of large shape
    logits = (mean + spread[:, None] * noise[:, None]) * free[2].exp()
    log = logits.log_softmax(-1).logsumexp(0) - math.log(num_samples)
    gap = -mean.topk(2, dim=1).values.diff(dim=1)[:, 0]
    return (log * free[3].exp()).log_softmax(-1) if outer else log, gap / (math.sqrt(2) * spread)


IDEAS: dict[str, Fit] = {
    "temperature scaling (threshold on the margin / more than half)": scaling,
    "**default: two-level prior**": layered(),
    "the same, the scale as the steps leave it (before)": layered(last=False),
    "two levels, bent by the entropy": bent(layered(), "entropy"),
    "two levels, bent by the largest probability": bent(layered(), "confidence"),
    "two levels, mixed with all classes alike": bent(layered(), "all alike"),
    "the softmax, bent by the entropy": bent(scaling, "entropy"),
    "temperature scaling, weights learn too, ridge 300": learnt(300.0),
    "temperature scaling, weights learn too, ridge 1000": learnt(1000.0),
    "two levels, an exponential prior on the noise, rate 10": layered(rate=10.0),
    "two levels, an exponential prior on the noise, rate 100": layered(rate=100.0),
    "one level, k_0 = 5": layered(shape=5.0, level=False),
    "one level, k_0 = 10 (before)": layered(level=False),
    "one level, k_0 = 20": layered(shape=20.0, level=False),
    "one level, k_0 = 40": layered(shape=40.0, level=False),
    "two levels, a shape for each weight": layered(phi_shape="entry"),
    "two levels, theta's shape read off the example": layered(theta_shape="sample"),
    "noise on the logits": additive(by_rest=False, test_weight=0.0, outer=False),
    "noise on the logits, fitted to the test too": additive(by_rest=False, test_weight=3.0, outer=False),
    "the same, more where other classes crowd": additive(by_rest=True, test_weight=3.0, outer=False),
    "the same, and an outer temperature": additive(by_rest=True, test_weight=3.0, outer=True),
}


def cross_validate(head: nn.Linear, data: FeatureSet, fit: Fit, *, seed: int) -> list[float]:
    """The figures of a row."""
    order, answers, truth = torch.randperm(len(data), generator=seeded(seed)), [], []
    for fold in range(FOLDS):
        inside = torch.cat([order[other::FOLDS] for other in range(FOLDS) if other != fold])
        test = data.take(order[fold::FOLDS])
        answers.append(fit(head, data.take(inside), test))
        truth.append(test.labels)
    labels = torch.cat(truth)
    log, decided, runner_up, everyone = (
        torch.cat([getattr(one, name) for one in answers]) for name in ("log_probs", "labels", "runner_up", "everyone")
    )
    correct, confidence = decided == labels, log.double().exp().gather(1, decided[:, None])[:, 0]
    figures = [
        F.nll_loss(log.double().clamp_min(-70), labels),
        calibration_error(confidence, correct),
        aurc(1 - confidence, correct),
        auroc(1 - confidence, ~correct),
        (correct == runner_up).double().mean(),
        (correct == everyone).double().mean(),
    ]
    return [float(figure) for figure in figures]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("networks", nargs="*", default=["resnet56_cifar10", "resnet32_cifar100"])
    parser.add_argument("--cache", type=Path, default=Path("runs/features"), help="folder of the feature cache")
    parser.add_argument("--only", nargs="+", default=[""], help="ideas whose names hold one of these words")
    parser.add_argument(
        "--repeats", type=int, default=1, help="how many times to draw the folds, for means (default: 1)"
    )
    args = parser.parse_args()
    ideas = {idea: fit for idea, fit in IDEAS.items() if any(word in idea for word in args.only)}
    for name in args.networks:
        subject = find_source(name, cache=args.cache).subject
        data = FeatureSet(subject.val.features.float(), subject.val.labels)
        right = (mean_logits(subject.head, data).argmax(1) == data.labels).double().mean()
        print(f"\n{name}, {len(data)} images, five folds; everything certain: {right:.2%}\n")
        print(
            "| | NLL | ECE | AURC | error AUROC | PAvPU, runner-up | PAvPU, all others |\n|---|---|---|---|---|---|---|"
        )
        for idea, fit in ideas.items():
            rows = [cross_validate(subject.head, data, fit, seed=seed) for seed in range(args.repeats)]
            means = torch.tensor(rows, dtype=torch.float64).mean(dim=0).tolist()
            cells = [form.format(mean) for form, mean in zip(FORMS, means, strict=True)]
            print(f"| {idea} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()

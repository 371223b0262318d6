"""From examples to records: every figure with its interval, curves, and what is outside."""

import math
from collections.abc import Callable
from functools import partial
from typing import Any, get_args

import torch
from torch import Tensor

from bndl.evaluation.record import Certainty, ClassAccuracy, Evaluation, Outside, Sparsity
from bndl.evaluation.stream import Plan
from bndl.evaluation.ways import Ways
from bndl.metrics.bands import Groups, bins_of, curve_of, drawn, figures_from, groups_of, wilson
from bndl.metrics.bootstrap import Figure, Statistic, estimate_all
from bndl.metrics.calibration import calibration_floor
from bndl.metrics.detection import auroc, average_precision, fpr_at_tpr
from bndl.metrics.examples import Examples, Uncertainty
from bndl.metrics.figures import FIGURES, LEVELS, ood_figures_of
from bndl.metrics.inputs import weighted_mean
from bndl.metrics.pavpu import certain_at, pavpu
from bndl.metrics.selective import aurc
from bndl.progress import track

__all__ = ["CENTRED", "SHIFT_FIGURES", "kinds_of", "measure", "outside_of", "shifted_figures"]

KINDS: tuple[Uncertainty, ...] = get_args(Uncertainty)
SHIFT_FIGURES = ("accuracy", "nll", "ece")
_INFLATED = ("ece", "adaptive_ece")  # noise only adds to a calibration error, so its resamples lie too high
CENTRED = tuple(key in _INFLATED for key in SHIFT_FIGURES)
_OF_ERRORS = {"auroc": "error_auroc", "aupr": "error_aupr", "fpr95": "error_fpr95", "aurc": "aurc"}
_NUM_BINS = 40  # of the entropy
_LEAST = 100  # resamples, where so many were asked for: fewer give no interval
_SHARE = 5  # the kinds beside the rule have one resample in this many


def kinds_of(*sets: Examples) -> tuple[Uncertainty, ...]:
    """The kinds of uncertainty that are known of all examples and not the same for all of them."""

    def tells(by: Uncertainty) -> bool:
        values = torch.cat([examples.uncertainty(by) for examples in sets])
        return bool(values.isfinite().all() and values.min() < values.max())

    return tuple(by for by in KINDS if tells(by))


def measure(
    examples: Examples, *, name: str, data: str, classes: tuple[str, ...], ways: Ways, plan: Plan
) -> Evaluation:
    """All that one pass over labelled data tells.

    Args:
        examples: one number an example.
        name: what predicted.
        data: on what.
        classes: names of the classes.
        ways: what decided, for its size.
        plan: seed and number of resamples.
    """
    options: dict[str, Any] = {"num_resamples": plan.num_resamples, "seed": plan.seed}
    kinds = kinds_of(examples)
    steps: dict[str, Callable[[], Any]] = {
        "figures": lambda: estimate_all(_functions(examples), len(examples), centred=_INFLATED, **options),
        "curve": lambda: curve_of(examples.uncertainty(), examples.correct, **options),
        **{by: partial(_errors, examples, by, plan=plan) for by in kinds if by != "confidence"},
    }
    done = {key: step() for key, step in track(list(steps.items()), "intervals", progress=plan.progress)}
    figures: dict[str, Figure] = done["figures"]
    by_rule = {key: figures[long] for key, long in _OF_ERRORS.items()}
    return Evaluation(
        name=name,
        data=data,
        num_examples=len(examples),
        classes=classes,
        figures={kind.key: figures[kind.key] for kind in FIGURES},
        ece_floor=float(calibration_floor(examples.confidence)),
        pavpu=tuple(_certainty(examples, level, figures, num_samples=ways.num_samples) for level in LEVELS),
        errors={by: by_rule if by == "confidence" else done[by] for by in kinds},
        deciles=_deciles(examples, kinds),
        reliability=bins_of(examples.confidence, examples.correct),
        risk_coverage=done["curve"],
        per_class=_per_class(examples, classes),
        sparsity=_sparsity(ways, figures.get("num_features"), num_classes=len(classes)),
        ood={},
        shift=None,
        sepin=None,
        seed=plan.seed,
        num_resamples=plan.num_resamples,
        seconds=0.0,
        examples=examples,
    )


def _deciles(examples: Examples, kinds: tuple[Uncertainty, ...]) -> dict[str, Groups]:
    """By each kind, by the confidence in any case, and by the p-values as in the paper.

    Those of a deterministic softmax are 0 or 1 and give no order; they are left out.
    """
    unsure: dict[str, Tensor] = {by: examples.uncertainty(by) for by in KINDS if by in kinds or by == "confidence"}
    p_value = examples.p_value.nan_to_num(nan=1.0)  # a difference of exactly zero is uncertain
    if p_value.min() < p_value.max() and (examples.aleatoric + examples.epistemic).any():
        unsure["p_value"] = p_value
    return {by: groups_of(values, examples.correct) for by, values in unsure.items()}


def _functions(examples: Examples) -> dict[str, Statistic]:
    """The list of figures, how much PAvPU gains on calling everything certain, and features a decision."""
    right = examples.correct.double()

    def gain(level: float) -> Statistic:
        agreed = (examples.correct == certain_at(examples.p_value, level=level)).double()
        return lambda weights: weighted_mean(agreed - right, weights)

    functions: dict[str, Statistic] = {kind.key: partial(kind.of, examples) for kind in FIGURES}
    functions |= {f"gain_{level}": gain(level) for level in LEVELS}
    if not examples.num_features.isnan().any():
        functions["num_features"] = lambda weights: weighted_mean(examples.num_features, weights)
    return functions


def _errors(examples: Examples, by: Uncertainty, *, plan: Plan) -> dict[str, Figure]:
    """How well one kind of uncertainty finds the errors."""
    unsure, wrong = examples.uncertainty(by), ~examples.correct
    functions: dict[str, Statistic] = {
        "auroc": lambda weights: auroc(unsure, wrong, weights=weights),
        "aupr": lambda weights: average_precision(unsure, wrong, weights=weights),
        "fpr95": lambda weights: fpr_at_tpr(unsure, wrong, weights=weights),
        "aurc": lambda weights: aurc(unsure, examples.correct, weights=weights),
    }
    return estimate_all(functions, len(examples), num_resamples=_fewer(plan), seed=plan.seed)


def _fewer(plan: Plan) -> int:
    return max(min(plan.num_resamples, _LEAST), plan.num_resamples // _SHARE)


def _certainty(examples: Examples, level: float, figures: dict[str, Figure], *, num_samples: int) -> Certainty:
    counts = pavpu(examples.correct, certain_at(examples.p_value, level=level))
    return Certainty(
        level=level,
        num_samples=num_samples,
        counts=counts,
        value=figures[f"pavpu_{round(100 * level):02d}"],
        baseline=counts.baseline,
        gain=figures[f"gain_{level}"],
    )


def _per_class(examples: Examples, classes: tuple[str, ...]) -> tuple[ClassAccuracy, ...]:
    count = examples.truth.bincount(minlength=len(classes)).tolist()
    right = examples.truth[examples.correct].bincount(minlength=len(classes)).tolist()
    return tuple(
        ClassAccuracy(name, n, wilson(hits / n if n else math.nan, n))
        for name, n, hits in zip(classes, count, right, strict=True)
    )


def _sparsity(ways: Ways, num_features: Figure | None, *, num_classes: int) -> Sparsity | None:
    size = ways.size
    if size is None:
        return None
    return Sparsity(size.nnz, size.active, size.weights, size.active / num_classes, num_features)


def outside_of(inside: Examples, outside: Examples, *, num_classes: int, plan: Plan) -> Outside:
    """How well uncertainty tells data of another kind from the evaluated data.

    Args:
        inside: the evaluated data.
        outside: the others.
        num_classes: C, for the largest entropy.
        plan: seed and number of resamples.
    """
    most = math.log(num_classes)
    counts = [
        (examples.entropy / most * _NUM_BINS).long().clamp(0, _NUM_BINS - 1).bincount(minlength=_NUM_BINS).tolist()
        for examples in (inside, outside)
    ]
    figures: dict[str, dict[str, Figure]] = {
        by: ood_figures_of(
            inside,
            outside,
            by=by,
            num_resamples=plan.num_resamples if by == "entropy" else _fewer(plan),
            seed=plan.seed,
        )
        for by in track(kinds_of(inside, outside), "intervals", progress=plan.progress)
    }
    edges = tuple(most * i / _NUM_BINS for i in range(_NUM_BINS + 1))
    return Outside(len(outside), figures, edges, tuple(counts[0]), tuple(counts[1]))


def shifted_figures(examples: Examples, *, plan: Plan) -> tuple[dict[str, Figure], Tensor]:
    """Accuracy, NLL and ECE of corrupted examples, and what their resamples gave (R, 3), for means over corruptions."""
    kinds = [kind for kind in FIGURES if kind.key in SHIFT_FIGURES]

    def statistics(weights: Tensor | None) -> Tensor:
        return torch.stack([kind.of(examples, weights) for kind in kinds], dim=-1)

    found = drawn(statistics, len(examples), num_resamples=plan.num_resamples, seed=plan.seed)
    figures = figures_from(statistics(None).tolist(), found, centred=CENTRED)
    return dict(zip([kind.key for kind in kinds], figures, strict=True)), found

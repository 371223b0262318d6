"""The figures that evaluations and comparisons print: each a function of Examples, what is better, how it is written."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Literal

import torch
from torch import Tensor

from bndl.metrics.bootstrap import Figure, estimate_all
from bndl.metrics.calibration import calibration_error
from bndl.metrics.detection import auroc, average_precision, fpr_at_tpr
from bndl.metrics.examples import Examples, Uncertainty
from bndl.metrics.inputs import weighted_mean
from bndl.metrics.pavpu import certain_at, pavpu_score
from bndl.metrics.selective import aurc, risk_at_coverage

__all__ = ["FIGURES", "LEVELS", "OOD_FIGURES", "FigureKind", "figures_of", "ood_figures_of"]

_CENTRED = ("ece", "adaptive_ece")  # a resample's bins are noisier, so its error is larger
LEVELS = (0.01, 0.05, 0.1)
"""Significance levels of PAvPU."""

Of = Callable[..., Tensor]


@dataclass(frozen=True)
class FigureKind:
    """A figure.

    Attributes:
        key: its name in JSON.
        heading: its name in tables.
        of: Examples (for OOD figures two, inside and outside) and weights (R, N) or None -> (R,) or ().
        better: ``"higher"`` or ``"lower"``.
        percent: whether it is written as a percentage, or else with four decimals.
    """

    key: str
    heading: str
    of: Of
    better: Literal["higher", "lower"]
    percent: bool

    def text(self, value: float) -> str:
        """A value as it stands in a table."""
        return f"{100 * value:.2f}" if self.percent else f"{value:.4f}"


def _pavpu_at(level: float) -> Of:
    return lambda e, w: pavpu_score(e.correct, certain_at(e.p_value, level=level), weights=w)


FIGURES: tuple[FigureKind, ...] = (
    FigureKind("accuracy", "accuracy", lambda e, w: weighted_mean(e.correct.double(), w), "higher", True),
    FigureKind("nll", "NLL", lambda e, w: -weighted_mean(e.log_likelihood, w), "lower", False),
    FigureKind("brier", "Brier", lambda e, w: weighted_mean(e.brier, w), "lower", False),
    FigureKind("ece", "ECE", lambda e, w: calibration_error(e.confidence, e.correct, weights=w), "lower", True),
    FigureKind(
        "adaptive_ece",
        "ECE, adaptive",
        lambda e, w: calibration_error(e.confidence, e.correct, adaptive=True, weights=w),
        "lower",
        True,
    ),
    FigureKind("aurc", "AURC", lambda e, w: aurc(e.uncertainty(), e.correct, weights=w), "lower", False),
    FigureKind(
        "risk_at_80",
        "risk at 80 %",
        lambda e, w: risk_at_coverage(e.uncertainty(), e.correct, coverage=0.8, weights=w),
        "lower",
        True,
    ),
    FigureKind(
        "error_auroc", "error AUROC", lambda e, w: auroc(e.uncertainty(), ~e.correct, weights=w), "higher", True
    ),
    FigureKind(
        "error_aupr",
        "error AUPR",
        lambda e, w: average_precision(e.uncertainty(), ~e.correct, weights=w),
        "higher",
        True,
    ),
    FigureKind(
        "error_fpr95", "error FPR95", lambda e, w: fpr_at_tpr(e.uncertainty(), ~e.correct, weights=w), "lower", True
    ),
    FigureKind("pavpu_01", "PAvPU p=.01", _pavpu_at(0.01), "higher", True),
    FigureKind("pavpu_05", "PAvPU p=.05", _pavpu_at(0.05), "higher", True),
    FigureKind("pavpu_10", "PAvPU p=.1", _pavpu_at(0.1), "higher", True),
)
"""Errors are ranked by one rule for all methods: the probability of the decision."""


def _detecting(detect: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """How well uncertainty tells the examples of ``outside`` from those of ``inside``, by one of its kinds."""

    def of(inside: Examples, outside: Examples, weights: Tensor | None, *, by: Uncertainty = "entropy") -> Tensor:
        score = torch.cat([inside.uncertainty(by), outside.uncertainty(by)])
        return detect(score, torch.arange(len(score)) >= len(inside), weights=weights)

    return of


OOD_FIGURES: tuple[FigureKind, ...] = (
    FigureKind("auroc", "OOD AUROC", _detecting(auroc), "higher", True),
    FigureKind("aupr", "OOD AUPR", _detecting(average_precision), "higher", True),
    FigureKind("fpr95", "OOD FPR95", _detecting(fpr_at_tpr), "lower", True),
)
"""Foreign examples are told by one rule for all methods: the entropy of the probabilities."""


def figures_of(examples: Examples, *, num_resamples: int = 1000, seed: int = 0) -> dict[str, Figure]:
    """Every figure by its key, with 95 % bootstrap intervals over examples."""
    functions = {kind.key: partial(kind.of, examples) for kind in FIGURES}
    return estimate_all(functions, len(examples), num_resamples=num_resamples, seed=seed, centred=_CENTRED)


def ood_figures_of(
    inside: Examples, outside: Examples, *, by: Uncertainty = "entropy", num_resamples: int = 1000, seed: int = 0
) -> dict[str, Figure]:
    """Every OOD figure by its key, with intervals; both sets are resampled, each within itself."""
    functions = {kind.key: partial(kind.of, inside, outside, by=by) for kind in OOD_FIGURES}
    return estimate_all(functions, (len(inside), len(outside)), num_resamples=num_resamples, seed=seed)

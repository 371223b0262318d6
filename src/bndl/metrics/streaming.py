"""The metrics as ``torchmetrics.Metric``s: batch by batch, and over several processes.

Where sums are enough, sums are all that is kept; where an order is needed, two numbers an example. States are float64, and
gathering them gives what one process would have computed (a process may have no example at all).
"""

import functools
from collections.abc import Callable
from typing import Any, ClassVar

import torch
from torch import Tensor
from torchmetrics import Metric
from torchmetrics.utilities import dim_zero_cat

from bndl.errors import InputError
from bndl.metrics.brier import squared_distance
from bndl.metrics.calibration import calibration_error, check_num_bins, equal_width_bins
from bndl.metrics.deciles import Deciles, accuracy_by_decile
from bndl.metrics.detection import auroc, average_precision, fpr_at_tpr
from bndl.metrics.inputs import as_flags, as_scores
from bndl.metrics.likelihood import log_likelihood
from bndl.metrics.pavpu import PAvPUCounts, certain_at, check_level
from bndl.metrics.selective import aurc, check_coverage, risk_at_coverage
from bndl.metrics.sparsity import effective_features

__all__ = [
    "AURC",
    "AccuracyByDecile",
    "BrierScore",
    "CalibrationError",
    "Detection",
    "EffectiveFeatures",
    "NegativeLogLikelihood",
    "PAvPU",
    "RiskAtCoverage",
]


class _Float64(Metric):
    """What all have in common. ``dtype`` is what torchmetrics gathers from a process that has no example."""

    is_differentiable: bool = False
    higher_is_better: bool | None = False
    full_state_update: bool = False

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.set_dtype(torch.float64)


class _Mean(_Float64):
    """The mean of one number an example."""

    total: Tensor
    count: Tensor

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        for name in ("total", "count"):
            self.add_state(name, torch.zeros((), dtype=torch.float64), dist_reduce_fx="sum")

    def _add(self, values: Tensor) -> None:
        self.total += values.sum().to(self.total.device)
        self.count += len(values)

    def compute(self) -> Tensor:
        """The mean over all examples."""
        _check_count(self.count)
        return self.total / self.count


class _Pairs(_Float64):
    """A score and a flag an example, kept for an order."""

    names: ClassVar[tuple[str, str]] = ("uncertainty", "correct")
    score: list[Tensor]
    flag: list[Tensor]

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.add_state("score", [], dist_reduce_fx="cat")
        self.add_state("flag", [], dist_reduce_fx="cat")

    def _add(self, score: Tensor, flag: Tensor, **bounds: float) -> None:
        score = as_scores(self.names[0], score, **bounds)
        flag = as_flags(self.names[1], flag, num_examples=len(score))
        self.score.append(score.to(self.device))
        self.flag.append(flag.to(self.device, torch.float64))

    def _pairs(self) -> tuple[Tensor, Tensor]:
        if not len(self.score):
            _check_count(torch.zeros(()))
        return dim_zero_cat(self.score), dim_zero_cat(self.flag) > 0


class _Sealed:
    """Something that torchmetrics does not look into."""

    def __init__(self, value: Any) -> None:
        self.value = value


class _Record(_Float64):
    """A metric whose result is a frozen dataclass, which torchmetrics, looking for tensors in it, would refuse."""

    def _wrap_compute(self, compute: Callable[[], Any]) -> Callable[[], Any]:
        wrapped = super()._wrap_compute(lambda: _Sealed(compute()))

        @functools.wraps(compute)
        def unsealed() -> Any:
            return wrapped().value

        return unsealed


class NegativeLogLikelihood(_Mean):
    """:func:`bndl.metrics.negative_log_likelihood`; keeps a sum and a count."""

    def update(self, probs: Tensor, labels: Tensor) -> None:
        """Add examples: ``probs`` (N, C), true classes ``labels`` (N,)."""
        self._add(-log_likelihood(probs, labels))


class BrierScore(_Mean):
    """:func:`bndl.metrics.brier_score`; keeps a sum and a count."""

    def update(self, probs: Tensor, labels: Tensor) -> None:
        """Add examples: ``probs`` (N, C), true classes ``labels`` (N,)."""
        self._add(squared_distance(probs, labels))


class EffectiveFeatures(_Mean):
    """:func:`bndl.metrics.features_per_decision` (NEC); keeps a sum and a count.

    Args:
        share: of what speaks for a decision that has to be explained.
        **kwargs: of ``torchmetrics.Metric``.
    """

    def __init__(self, share: float = 0.9, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.share = share

    def update(self, contributions: Tensor) -> None:
        """Add examples: ``contributions`` (N, K), the terms of the chosen class's logit."""
        self._add(effective_features(contributions, share=self.share))


class CalibrationError(_Pairs):
    """:func:`bndl.metrics.calibration_error`; keeps sums a bin or, if adaptive, two numbers an example.

    Args:
        num_bins: number of bins.
        adaptive: bins of equal mass in place of equal width.
        **kwargs: of ``torchmetrics.Metric``.
    """

    names = ("confidence", "correct")
    gap: Tensor
    count: Tensor

    def __init__(self, num_bins: int = 15, *, adaptive: bool = False, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        check_num_bins(num_bins)
        self.num_bins, self.adaptive = num_bins, adaptive
        self.add_state("gap", torch.zeros(num_bins, dtype=torch.float64), dist_reduce_fx="sum")
        self.add_state("count", torch.zeros((), dtype=torch.float64), dist_reduce_fx="sum")

    def update(self, confidence: Tensor, correct: Tensor) -> None:
        """Add examples: ``confidence`` (N,) of the decisions, and whether they are ``correct`` (N,) bool."""
        if self.adaptive:
            self._add(confidence, correct, low=0.0, high=1.0 + 1e-6)
            return
        confidence = as_scores("confidence", confidence, low=0.0, high=1.0 + 1e-6).to(self.device)
        gap = as_flags("correct", correct, num_examples=len(confidence)).to(self.device).double() - confidence
        self.gap.index_add_(0, equal_width_bins(confidence, self.num_bins), gap)
        self.count += len(gap)

    def compute(self) -> Tensor:
        """The error over all examples."""
        if self.adaptive:
            return calibration_error(*self._pairs(), num_bins=self.num_bins, adaptive=True)
        _check_count(self.count)
        return self.gap.abs().sum() / self.count


class AURC(_Pairs):
    """:func:`bndl.metrics.aurc`; keeps two numbers an example."""

    def update(self, uncertainty: Tensor, correct: Tensor) -> None:
        """Add examples: ``uncertainty`` (N,), larger is less sure; ``correct`` (N,) bool."""
        self._add(uncertainty, correct)

    def compute(self) -> Tensor:
        """The area over all examples."""
        return aurc(*self._pairs())


class RiskAtCoverage(_Pairs):
    """:func:`bndl.metrics.risk_at_coverage`; keeps two numbers an example.

    Args:
        coverage: share of the examples that get an answer, in (0, 1].
        **kwargs: of ``torchmetrics.Metric``.
    """

    def __init__(self, coverage: float = 0.8, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        check_coverage(coverage)
        self.coverage = coverage

    def update(self, uncertainty: Tensor, correct: Tensor) -> None:
        """Add examples: ``uncertainty`` (N,), larger is less sure; ``correct`` (N,) bool."""
        self._add(uncertainty, correct)

    def compute(self) -> Tensor:
        """The risk over all examples."""
        return risk_at_coverage(*self._pairs(), coverage=self.coverage)


class Detection(_Pairs):
    """How well a score finds positives: errors, or data of another kind (OOD); keeps two numbers an example."""

    names = ("score", "positive")
    higher_is_better = None

    def update(self, score: Tensor, positive: Tensor) -> None:
        """Add examples: ``score`` (N,), larger speaks for positive; ``positive`` (N,) bool."""
        self._add(score, positive)

    def compute(self) -> dict[str, Tensor]:
        """``auroc``, ``aupr`` and ``fpr95`` over all examples; NaN where only one class is present."""
        score, positive = self._pairs()
        return {
            "auroc": auroc(score, positive),
            "aupr": average_precision(score, positive),
            "fpr95": fpr_at_tpr(score, positive, tpr=0.95),
        }


class AccuracyByDecile(_Pairs, _Record):
    """:func:`bndl.metrics.accuracy_by_decile`; keeps two numbers an example.

    Args:
        num_groups: number of groups.
        **kwargs: of ``torchmetrics.Metric``.
    """

    higher_is_better = True

    def __init__(self, num_groups: int = 10, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.num_groups = num_groups

    def update(self, uncertainty: Tensor, correct: Tensor) -> None:
        """Add examples: ``uncertainty`` (N,), larger is less sure; ``correct`` (N,) bool."""
        self._add(uncertainty, correct)

    def compute(self) -> Deciles:
        """Accuracy and size of each group, over all examples."""
        return accuracy_by_decile(*self._pairs(), num_groups=self.num_groups)


class PAvPU(_Record):
    """:func:`bndl.metrics.pavpu`; keeps four counts.

    A p-value falls with the number S of draws of its test, so the result belongs to that S: S = 20 for those of
    :func:`bndl.predict`.

    Args:
        level: significance at or below which a decision is certain; a NaN p-value is uncertain.
        **kwargs: of ``torchmetrics.Metric``.
    """

    higher_is_better = True
    counts: Tensor

    def __init__(self, level: float = 0.05, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        check_level(level)
        self.level = level
        self.add_state("counts", torch.zeros(4, dtype=torch.int64), dist_reduce_fx="sum")

    def update(self, p_value: Tensor, correct: Tensor) -> None:
        """Add examples: ``p_value`` (N,) of the decision tests, and whether decisions are ``correct`` (N,) bool."""
        certain = as_flags("p_value", certain_at(p_value, level=self.level)).to(self.device)
        correct = as_flags("correct", correct, num_examples=len(certain)).to(self.device)
        self.counts += (2 * ~correct + ~certain).bincount(minlength=4)

    def compute(self) -> PAvPUCounts:
        """The four counts over all examples, with value and baseline."""
        _check_count(self.counts.sum())
        return PAvPUCounts(*self.counts.tolist())


def _check_count(count: Tensor) -> None:
    if not count > 0:
        raise InputError("there is no example to compute the metric of: call update first.")

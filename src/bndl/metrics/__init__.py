"""How good predictions are; one file a metric.

Functions take tensors and return float64 tensors. With ``weights`` (R, N), such as the counts of
:func:`bndl.metrics.resamples`, they return R values from one call. The classes are ``torchmetrics.Metric``s for training
loops and several processes; they need torchmetrics and are loaded when asked for. Accuracy has none of ours:
``torchmetrics.classification.MulticlassAccuracy(num_classes, average="micro")`` is it.
"""

from typing import TYPE_CHECKING, Any

from bndl.errors import MissingExtraError
from bndl.metrics.accuracy import accuracy
from bndl.metrics.bootstrap import Figure, estimate, estimate_all, resamples
from bndl.metrics.brier import brier_score
from bndl.metrics.calibration import (
    Reliability,
    calibration_error,
    calibration_floor,
    expected_calibration_error,
    reliability,
)
from bndl.metrics.deciles import Deciles, accuracy_by_decile
from bndl.metrics.detection import auroc, average_precision, fpr_at_tpr
from bndl.metrics.examples import Examples
from bndl.metrics.likelihood import negative_log_likelihood
from bndl.metrics.pavpu import PAvPUCounts, best_threshold, certain_at, pavpu, pavpu_score
from bndl.metrics.selective import RiskCoverage, aurc, risk_at_coverage, risk_coverage
from bndl.metrics.sepin import Sepin, sepin, sepin_of
from bndl.metrics.sparsity import effective_features, features_per_decision, nnz, weights_per_class

if TYPE_CHECKING:
    from bndl.metrics.sepin_metric import SEPIN
    from bndl.metrics.streaming import (
        AURC,
        AccuracyByDecile,
        BrierScore,
        CalibrationError,
        Detection,
        EffectiveFeatures,
        NegativeLogLikelihood,
        PAvPU,
        RiskAtCoverage,
    )

__all__ = [
    "AURC",
    "SEPIN",
    "AccuracyByDecile",
    "BrierScore",
    "CalibrationError",
    "Deciles",
    "Detection",
    "EffectiveFeatures",
    "Examples",
    "Figure",
    "NegativeLogLikelihood",
    "PAvPU",
    "PAvPUCounts",
    "Reliability",
    "RiskAtCoverage",
    "RiskCoverage",
    "Sepin",
    "accuracy",
    "accuracy_by_decile",
    "aurc",
    "auroc",
    "average_precision",
    "best_threshold",
    "brier_score",
    "calibration_error",
    "calibration_floor",
    "certain_at",
    "effective_features",
    "estimate",
    "estimate_all",
    "expected_calibration_error",
    "features_per_decision",
    "fpr_at_tpr",
    "negative_log_likelihood",
    "nnz",
    "pavpu",
    "pavpu_score",
    "reliability",
    "resamples",
    "risk_at_coverage",
    "risk_coverage",
    "sepin",
    "sepin_of",
    "weights_per_class",
]

_STREAMING = (
    "AURC",
    "AccuracyByDecile",
    "BrierScore",
    "CalibrationError",
    "Detection",
    "EffectiveFeatures",
    "NegativeLogLikelihood",
    "PAvPU",
    "RiskAtCoverage",
)


def __getattr__(name: str) -> Any:
    if name not in (*_STREAMING, "SEPIN"):
        raise AttributeError(f"module 'bndl.metrics' has no attribute {name!r}")
    try:
        import torchmetrics  # noqa: F401
    except ImportError as error:
        raise MissingExtraError(f"bndl.metrics.{name}", extra="metrics") from error
    if name == "SEPIN":
        from bndl.metrics.sepin_metric import SEPIN

        return SEPIN
    from bndl.metrics import streaming

    return getattr(streaming, name)

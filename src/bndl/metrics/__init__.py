"""How good predictions are, as plain functions of tensors; one file a metric."""

from bndl.metrics.calibration import expected_calibration_error, negative_log_likelihood
from bndl.metrics.deciles import Deciles, accuracy_by_decile
from bndl.metrics.pavpu import PAvPU, pavpu
from bndl.metrics.sparsity import features_per_decision, weights_per_class

__all__ = [
    "Deciles",
    "PAvPU",
    "accuracy_by_decile",
    "expected_calibration_error",
    "features_per_decision",
    "negative_log_likelihood",
    "pavpu",
    "weights_per_class",
]

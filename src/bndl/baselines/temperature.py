"""Temperature scaling (Guo et al. 2017): one number, fitted to held-out data, that divides all logits."""

from torch import nn

from bndl.baselines.dense import linear_logits
from bndl.baselines.method import Fitted, Method, Size, fresh
from bndl.baselines.predictions import from_logits
from bndl.calibrate import best_log_scale
from bndl.features import FeatureSet, Inputs
from bndl.prediction import Prediction

__all__ = ["Temperature"]


class Temperature(Method):
    """The dense head with calibrated confidence; no decision changes."""

    name = "temperature"
    about = "dense head, logits divided by one fitted number"

    def fit(self, head: nn.Linear, train: FeatureSet, val: FeatureSet, *, seed: int = 0) -> Fitted:
        """The temperature with the least cross entropy on all validation features."""
        copied = fresh(head)
        scale = best_log_scale(linear_logits(copied, copied, val.features.float()), val.labels).exp()

        def predict(inputs: Inputs) -> Prediction:
            return from_logits(linear_logits(copied, copied, inputs) * scale)

        return Fitted(predict, Size.of(copied, extra=1), note=f"T = {1 / float(scale):.3f}")

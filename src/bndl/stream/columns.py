"""A batch of predictions as columns, the same in every format."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pyarrow as pa

from bndl.prediction import Prediction
from bndl.reasons import Reasons

__all__ = ["Columns", "Probs", "class_names"]

Probs = Literal["all", "top", "none"]
_MEASURES = ("p_value", "certain", "flip_probability", "entropy", "aleatoric", "epistemic")


@dataclass(frozen=True)
class Columns:
    """Which columns there are.

    Attributes:
        classes: the names of the C classes.
        probs: all probabilities, that of the decision, or none.
        reasons: whether there is a column of them.
    """

    classes: tuple[str, ...]
    probs: Probs = "top"
    reasons: bool = False

    def names(self) -> list[str]:
        """In the order of the output."""
        shown = [] if self.probs == "none" else ["probability"]
        lists = [*(["probs"] if self.probs == "all" else []), *(["reasons"] if self.reasons else [])]
        return ["source", "label", "class", *shown, "runner_up", *_MEASURES, *lists]

    def batch(self, source: pa.Array, found: Prediction, reasons: Reasons | None) -> pa.RecordBatch:
        """The predictions of B examples, named by ``source`` (B,).

        ``probs`` are lists of C numbers, ``reasons`` lists of {feature, contribution} without terms of 0.
        """
        labels = pa.array(found.labels.numpy().astype(np.int32))
        columns: dict[str, Any] = {
            "source": source,
            "label": labels,
            "class": pa.array(self.classes, pa.string()).take(labels),
            "probability": found.confidence.numpy(),
            "runner_up": found.runner_up.numpy().astype(np.int32),
            **{name: getattr(found, name).numpy() for name in _MEASURES},
        }
        if self.probs == "all":
            flat = pa.array(found.probs.contiguous().view(-1).numpy())
            columns["probs"] = pa.FixedSizeListArray.from_arrays(flat, len(self.classes))
        if reasons is not None:
            columns["reasons"] = _lists(reasons)
        names = self.names()
        return pa.RecordBatch.from_arrays([pa.array(columns[name]) for name in names], names=names)


def _lists(reasons: Reasons) -> pa.Array:
    real = reasons.values > 0
    offsets = np.concatenate([[0], real.sum(dim=1).cumsum(0).numpy()]).astype(np.int32)
    pairs = pa.StructArray.from_arrays(
        [pa.array(reasons.features[real].numpy().astype(np.int32)), pa.array(reasons.values[real].numpy())],
        names=["feature", "contribution"],
    )
    return pa.ListArray.from_arrays(pa.array(offsets), pairs)


def class_names(names: Sequence[str] | None, num_classes: int) -> tuple[str, ...]:
    """The names, or the numbers where there are none."""
    return tuple(map(str, range(num_classes))) if names is None else tuple(names)

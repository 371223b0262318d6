"""What an evaluation is made of: ways to decide, a stream of examples, figures of them, records, tables."""

from bndl.evaluation.record import (
    Certainty,
    ClassAccuracy,
    Evaluation,
    Outside,
    SepinAt,
    Shift,
    Shifted,
    Sparsity,
)
from bndl.evaluation.table import table_of
from bndl.evaluation.ways import Ways, ways_of

__all__ = [
    "Certainty",
    "ClassAccuracy",
    "Evaluation",
    "Outside",
    "SepinAt",
    "Shift",
    "Shifted",
    "Sparsity",
    "Ways",
    "table_of",
    "ways_of",
]

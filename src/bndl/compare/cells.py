"""A cell: one method on one subject with one seed; measured once, kept on disk, so that tables cost nothing."""

import json
import time
import zipfile
import zlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bndl._version import __version__
from bndl.baselines import Fitted
from bndl.baselines.method import Size
from bndl.features import FeatureSet, Inputs
from bndl.files import replacing
from bndl.metrics.bootstrap import resamples
from bndl.metrics.examples import Examples
from bndl.metrics.figures import FIGURES, OOD_FIGURES
from bndl.metrics.pavpu import best_threshold, pavpu_score

__all__ = ["Cell", "Failure", "Measured", "measure", "read_cell", "write_cell"]

NUM_RESAMPLES = 1000
_BATCH = 1024
Batches = Iterable[tuple[Inputs, Tensor]]


@dataclass(frozen=True)
class Cell:
    """What was measured.

    Attributes:
        subject: name of the subject.
        method: name of the method.
        seed: of everything random in it.
        figures: value of each figure, by its key; ``ood/NAME/KEY`` for data of another kind.
        draws: each figure on the same bootstrap resamples of the examples (R,).
        size: how many numbers the decision needs.
        seconds_to_fit: on features, or of the whole training.
        seconds_to_predict: the test part, from features or from images.
        num_test: examples of the test part.
        note: what was chosen on the validation part.
        sepin: SEPIN@k by k, where it was asked for.
    """

    subject: str
    method: str
    seed: int
    figures: Mapping[str, float]
    draws: Mapping[str, Tensor]
    size: Size
    seconds_to_fit: float
    seconds_to_predict: float
    num_test: int
    note: str = ""
    sepin: Mapping[str, float] | None = None


@dataclass(frozen=True)
class Failure:
    """A cell that could not be computed, and why; it is tried again the next time."""

    subject: str
    method: str
    seed: int
    reason: str


@dataclass(frozen=True)
class Measured:
    """What a fitted method said of each part, one number an example."""

    val: Examples
    test: Examples
    ood: Mapping[str, Examples]
    seconds: float


def measure(fitted: Fitted, parts: Mapping[str, Batches], ood: Mapping[str, Batches]) -> Measured:
    """Predict everything, in batches, and keep one number an example.

    Args:
        fitted: the method.
        parts: batches (inputs, labels) of ``"val"`` and ``"test"``.
        ood: batches of data of another kind, whose labels are ignored.
    """
    val = _examples(fitted.predict, parts["val"], known=True)
    started = time.perf_counter()
    test = _examples(fitted.predict, parts["test"], known=True)
    seconds = time.perf_counter() - started
    others = {name: _examples(fitted.predict, batches, known=False) for name, batches in ood.items()}
    return Measured(val, test, others, seconds)


def feature_batches(data: FeatureSet) -> Batches:
    """Batches of cached features, in float32."""
    for start in range(0, len(data), _BATCH):
        rows = slice(start, start + _BATCH)
        yield data.features[rows].float(), data.labels[rows]


def _examples(predict: Callable[[Inputs], Any], batches: Batches, *, known: bool) -> Examples:
    return Examples.cat([Examples.of(predict(inputs), labels if known else None) for inputs, labels in batches])


def figures_with_draws(measured: Measured) -> tuple[dict[str, float], dict[str, Tensor]]:
    """Every figure, and its values on bootstrap resamples, which are the same for all methods of a subject."""
    threshold = best_threshold(measured.val.margin, measured.val.correct)
    test = measured.test
    functions: dict[str, Callable[[Tensor | None], Tensor]] = {kind.key: partial(kind.of, test) for kind in FIGURES}
    functions["pavpu_margin"] = lambda w: pavpu_score(test.correct, test.margin >= threshold, weights=w)
    figures, draws = _drawn(functions, len(test))
    for name, outside in measured.ood.items():
        of_ood = {f"ood/{name}/{kind.key}": partial(kind.of, test, outside) for kind in OOD_FIGURES}
        own = _drawn(of_ood, (len(test), len(outside)))
        figures, draws = figures | own[0], draws | own[1]
    return figures, draws


def _drawn(
    functions: Mapping[str, Callable[[Tensor | None], Tensor]], sizes: int | tuple[int, int]
) -> tuple[dict[str, float], dict[str, Tensor]]:
    figures = {key: float(function(None)) for key, function in functions.items()}
    draws: dict[str, list[Tensor]] = {key: [] for key in functions}
    for weights in resamples(sizes, num_resamples=NUM_RESAMPLES):
        for key, function in functions.items():
            draws[key].append(function(weights))
    return figures, {key: torch.cat(parts) for key, parts in draws.items()}


def write_cell(folder: Path, cell: Cell, measured: Measured, *, key: str) -> None:
    """Write the figures, their resamples and the examples; ``cell.json`` comes last, so a cell without it is none.

    Args:
        folder: of this cell alone.
        cell: the figures.
        measured: the examples.
        key: what the cell depends on, see :func:`read_cell`.
    """
    folder.mkdir(parents=True, exist_ok=True)
    measured.test.save(folder / "test.npz")
    for name, outside in measured.ood.items():
        outside.save(folder / f"ood-{name}.npz")
    with replacing(folder / "resamples.npz") as temporary, temporary.open("wb") as file:
        arrays: dict[str, Any] = {name: values.numpy() for name, values in cell.draws.items()}
        np.savez(file, **arrays)
    record = {name: value for name, value in vars(cell).items() if name != "draws"}
    record |= {"size": asdict(cell.size), "figures": {k: _finite(v) for k, v in cell.figures.items()}}
    with replacing(folder / "cell.json") as temporary:
        temporary.write_text(json.dumps({"version": __version__, "key": key, **record}, indent=2) + "\n")


def read_cell(folder: Path, *, key: str) -> Cell | None:
    """A finished cell with this key; None where there is none, it depends on something else, or it is damaged."""
    try:
        record = json.loads((folder / "cell.json").read_text())
        if record.pop("key") != key:
            return None
        record.pop("version")
        figures = {name: torch.nan if value is None else float(value) for name, value in record.pop("figures").items()}
        if not {kind.key for kind in FIGURES} <= figures.keys():
            return None
        with np.load(folder / "resamples.npz", allow_pickle=False) as file:
            draws = {name: torch.from_numpy(file[name]) for name in figures}
        return Cell(**{**record, "size": Size(**record["size"])}, figures=figures, draws=draws)
    except (OSError, ValueError, TypeError, KeyError, AttributeError, EOFError, zipfile.BadZipFile, zlib.error):
        return None


def _finite(value: float) -> float | None:
    return value if np.isfinite(value) else None

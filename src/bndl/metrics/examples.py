"""One number an example of all that any figure needs, so that no (N, C) is ever kept; saved as .npz."""

import operator
import os
import zipfile
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Literal, SupportsIndex, get_args

import numpy as np
import torch
from torch import Tensor

from bndl.errors import FileError, InputError
from bndl.files import replacing
from bndl.metrics.brier import squared_distance
from bndl.metrics.likelihood import log_likelihood
from bndl.prediction import Prediction

__all__ = ["Examples", "Uncertainty"]

Uncertainty = Literal["confidence", "entropy", "flip_probability", "margin", "epistemic"]
_KINDS = {"correct": torch.bool, "truth": torch.int64, "labels": torch.int64}  # all others are float64


@dataclass(frozen=True)
class Examples:
    """N examples, on the CPU; float64 where nothing else is said.

    Attributes:
        correct: (N,) bool, whether the label is the true class; all False where that is not known.
        confidence: (N,) probability of the label.
        entropy: (N,) of the probabilities, in nats.
        log_likelihood: (N,) ln p(true class), NaN where that is not known.
        brier: (N,) squared distance of the probabilities from the truth, NaN where that is not known.
        margin: (N,) confidence minus the largest other probability; negative where another class has the largest.
        p_value: (N,) of the decision test, at its S draws.
        flip_probability: (N,) P(the second class beats the first).
        aleatoric: (N,) the data's part of the variance of the decision.
        epistemic: (N,) the model's part.
        truth: (N,) int64 true classes, -1 where not known, as for data of another kind (OOD).
        labels: (N,) int64 decisions.
        num_features: (N,) how many features the decision uses; NaN where not known.
    """

    correct: Tensor
    confidence: Tensor
    entropy: Tensor
    log_likelihood: Tensor
    brier: Tensor
    margin: Tensor
    p_value: Tensor
    flip_probability: Tensor
    aleatoric: Tensor
    epistemic: Tensor
    truth: Tensor
    labels: Tensor
    num_features: Tensor

    def __post_init__(self) -> None:
        for field in fields(self):
            value, kind = getattr(self, field.name), _KINDS.get(field.name, torch.float64)
            if not isinstance(value, Tensor) or value.dtype != kind or value.size() != self.labels.size():
                raise InputError(f"{field.name} must be {kind} of dims (N,), as many as labels: see Examples.of.")
        if self.labels.dim() != 1:
            raise InputError("labels must have dims (N,): see Examples.of.")

    @classmethod
    def of(cls, prediction: Prediction, truth: Tensor | None, *, num_features: Tensor | None = None) -> "Examples":
        """Take from a prediction what figures need.

        Args:
            prediction: of N examples.
            truth: (N,) true classes; None where there are none to know.
            num_features: (N,) how many features each decision uses, see :func:`bndl.metrics.effective_features`.
        """
        unknown = torch.full((len(prediction),), torch.nan, dtype=torch.float64)
        labels, probs = prediction.labels, prediction.probs
        if truth is not None:
            truth = truth.detach().cpu()
            log, brier, truth = log_likelihood(probs, truth), squared_distance(probs, truth), truth.long()
        else:
            log, brier, truth = unknown, unknown, torch.full_like(labels, -1)
        confidence = prediction.confidence.double()
        others = probs.scatter(1, labels[:, None], -torch.inf).max(dim=1).values.double()
        kept = ("p_value", "flip_probability", "aleatoric", "epistemic", "entropy")
        return cls(
            correct=labels == truth,
            confidence=confidence,
            log_likelihood=log,
            brier=brier,
            margin=confidence - others,
            truth=truth,
            labels=labels,
            num_features=unknown if num_features is None else num_features.detach().cpu().double(),
            **{name: getattr(prediction, name).double() for name in kept},
        )

    @classmethod
    def cat(cls, parts: Sequence["Examples"]) -> "Examples":
        """One after the other."""
        if not parts:
            raise InputError("there is nothing to put together: give at least one part.")
        return cls(**{f.name: torch.cat([getattr(part, f.name) for part in parts]) for f in fields(cls)})

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: SupportsIndex | slice | Tensor | list[int]) -> "Examples":
        """The chosen examples (one for a single index)."""
        rows = [operator.index(index)] if isinstance(index, SupportsIndex) and not isinstance(index, Tensor) else index
        return Examples(**{f.name: getattr(self, f.name)[rows] for f in fields(self)})

    def uncertainty(self, by: Uncertainty = "confidence") -> Tensor:
        """How unsure each decision is (N,), larger is less sure.

        Args:
            by: ``"confidence"`` (1 minus it), ``"entropy"``, ``"flip_probability"``, ``"margin"`` (its negative) or
                ``"epistemic"``.
        """
        if by not in get_args(Uncertainty):
            raise InputError(f"uncertainty is by one of {', '.join(get_args(Uncertainty))}, got {by!r}.")
        value: Tensor = getattr(self, by)
        return 1 - value if by == "confidence" else -value if by == "margin" else value

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write as .npz, whole or not at all."""
        arrays = {f.name: getattr(self, f.name).numpy() for f in fields(self)}
        with replacing(path) as temporary, temporary.open("wb") as file:
            np.savez(file, **arrays)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> "Examples":
        """Read what :meth:`save` wrote; nothing in the file is run."""
        if not Path(path).is_file():
            raise FileError(f"there is no file {path}: give one that Examples.save wrote.")
        try:
            with np.load(path, allow_pickle=False) as file:
                return cls(**{f.name: torch.from_numpy(file[f.name]) for f in fields(cls)})
        except (OSError, ValueError, TypeError, KeyError, EOFError, zipfile.BadZipFile, zlib.error) as error:
            raise FileError(f"{path} is damaged or was not written by Examples.save: write it again.") from error

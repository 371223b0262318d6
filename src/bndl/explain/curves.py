"""Curves of a probability as an input is taken apart, their area, and how sure a mean or a difference of them is."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from bndl.errors import InputError
from bndl.metrics.bootstrap import Figure, estimate, resamples

__all__ = ["Curves", "Summary", "difference"]


@dataclass(frozen=True)
class Summary:
    """The mean curve over images with its bootstrap interval at each point, and the area under it."""

    fractions: tuple[float, ...]
    mean: tuple[float, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]
    auc: Figure

    def to_dict(self) -> dict[str, Any]:
        """As JSON can hold it."""
        auc = {"value": self.auc.value, "low": self.auc.low, "high": self.auc.high}
        names = ("fractions", "mean", "low", "high")
        return {**{name: list(getattr(self, name)) for name in names}, "auc": auc}


@dataclass(frozen=True)
class Curves:
    """One curve for each of B examples, at T + 1 shares of what was taken out (or put in), in float64.

    Attributes:
        fractions: (T + 1,) from 0 to 1.
        probability: (B, T + 1) of the target class.
        margin: (B, T + 1) its logit less the largest of the others; None where only probabilities are known.
    """

    fractions: Tensor
    probability: Tensor
    margin: Tensor | None = None

    def __len__(self) -> int:
        return len(self.probability)

    @property
    def auc(self) -> Tensor:
        """(B,) area under each curve by the trapezoid rule, in [0, 1]."""
        return torch.trapezoid(self.probability, self.fractions, dim=1)

    def summary(self, *, level: float = 0.95, num_resamples: int = 1000, seed: int = 0) -> Summary:
        """Means over the examples, with bootstrap intervals that hold ``level`` of the resamples."""
        B = len(self)
        draws = torch.cat([w @ self.probability / B for w in resamples(B, num_resamples=num_resamples, seed=seed)])
        ends = torch.tensor([(1 - level) / 2, (1 + level) / 2], dtype=draws.dtype)
        low, high = draws.quantile(ends, dim=0)
        auc = _mean_figure(self.auc, level=level, num_resamples=num_resamples, seed=seed)
        columns = (self.fractions, self.probability.mean(dim=0), low, high)
        fractions, mean, least, most = (tuple(column.tolist()) for column in columns)
        return Summary(fractions, mean, least, most, auc)


def difference(
    first: Curves, second: Curves, *, level: float = 0.95, num_resamples: int = 1000, seed: int = 0
) -> Figure:
    """Mean of first less second area over the same examples, with the interval of a paired bootstrap."""
    if len(first) != len(second):
        raise InputError(f"a paired difference needs the same examples, got {len(first)} and {len(second)}.")
    return _mean_figure(first.auc - second.auc, level=level, num_resamples=num_resamples, seed=seed)


def _mean_figure(values: Tensor, *, level: float, num_resamples: int, seed: int) -> Figure:
    def mean(weights: Tensor | None) -> Tensor:
        return values.mean() if weights is None else weights @ values / len(values)

    return estimate(mean, len(values), num_resamples=num_resamples, seed=seed, level=level)

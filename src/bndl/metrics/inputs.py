"""What the metrics take: checks of dims, kinds and values, and the weights of a bootstrap."""

import torch
from torch import Tensor

from bndl.errors import InputError

__all__ = ["as_flags", "as_probs", "as_rows", "as_scores", "weighted_mean"]

_ROW_SUM = 1e-2  # how far from 1 the probabilities of an example may add up, which bfloat16 needs


def as_scores(name: str, values: Tensor, *, low: float = -torch.inf, high: float = torch.inf) -> Tensor:
    """One number an example (N,), as float64; neither empty nor NaN, and within the bounds."""
    _check_vector(name, values)
    numbers = values.detach().double()
    if numbers.isnan().any():
        raise InputError(
            f"{name} holds NaN for {int(numbers.isnan().sum())} of {len(numbers)} examples: leave them out."
        )
    if numbers.min() < low or numbers.max() > high:
        raise InputError(
            f"{name} must lie between {low:g} and {high:g}, but it reaches from {numbers.min():g} to {numbers.max():g}."
        )
    return numbers


def as_flags(name: str, values: Tensor, *, num_examples: int | None = None) -> Tensor:
    """One bool an example (N,), as many as there are scores."""
    _check_vector(name, values)
    if values.dtype != torch.bool:
        raise InputError(f"{name} must be bool, got {values.dtype}: compare first, such as labels == truth.")
    if num_examples is not None and len(values) != num_examples:
        raise InputError(
            f"{name} is of {len(values)} examples, the other argument of {num_examples}: give both of the same."
        )
    return values.detach()


def as_probs(probs: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Probabilities (N, C), whose rows sum to 1, in their own precision; and true classes (N,), as int64."""
    if not isinstance(probs, Tensor) or probs.dim() != 2 or not probs.is_floating_point() or not probs.numel():
        raise InputError(f"probs must be floats of dims (N, C), at least one example, got {_what(probs)}.")
    _check_vector("labels", labels)
    if labels.is_floating_point() or labels.dtype == torch.bool or len(labels) != len(probs):
        raise InputError(f"labels must be whole numbers of dims ({len(probs)},), got {_what(labels)}.")
    probs, labels = probs.detach(), labels.detach().to(probs.device, torch.int64)
    if labels.min() < 0 or labels.max() >= probs.size(1):
        raise InputError(f"labels must lie in 0..{probs.size(1) - 1}, got {int(labels.min())} to {int(labels.max())}.")
    sums = probs.sum(dim=1, dtype=torch.float64)
    if not ((sums - 1).abs() < _ROW_SUM).all() or probs.min() < 0:  # NaN fails the first
        raise InputError(
            "probs must be non-negative with rows that sum to 1, and not NaN: apply softmax to logits first."
        )
    return probs, labels


def as_rows(weights: Tensor | None, num_examples: int, *, device: torch.device | None = None) -> Tensor:
    """Weights (R, N) as float64; (1, N) ones for None."""
    if weights is None:
        return torch.ones(1, num_examples, dtype=torch.float64, device=device)
    if not isinstance(weights, Tensor) or weights.dim() != 2 or weights.size(1) != num_examples or not len(weights):
        raise InputError(f"weights must have dims (R, {num_examples}), a row a resample, got {_what(weights)}.")
    rows = weights.detach().to(device, torch.float64)
    if not (rows.min() >= 0 and rows.max() < torch.inf):
        raise InputError("weights must be finite and non-negative: give how often each example was drawn.")
    return rows


def weighted_mean(values: Tensor, weights: Tensor | None) -> Tensor:
    """Mean of float64 values (N,): dims (), or (R,) with weights (R, N)."""
    if weights is None:
        return values.mean()
    rows = as_rows(weights, len(values), device=values.device)
    return rows @ values / rows.sum(dim=1)


def _check_vector(name: str, values: Tensor) -> None:
    if not isinstance(values, Tensor) or values.dim() != 1 or not len(values):
        raise InputError(
            f"{name} must be a tensor of dims (N,), one entry an example and at least one, got {_what(values)}."
        )


def _what(values: object) -> str:
    if isinstance(values, Tensor):
        return f"{str(values.dtype).removeprefix('torch.')} of dims {tuple(values.size())}"
    return type(values).__name__

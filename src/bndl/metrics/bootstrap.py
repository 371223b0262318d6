"""How far chance could have moved a figure: bootstrap intervals, many resamples a call."""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from bndl.errors import InputError

__all__ = ["Figure", "Statistic", "estimate", "estimate_all", "resamples"]

Statistic = Callable[[Tensor | None], Tensor]
_CHUNK = 2**20  # numbers of a chunk of resamples: small enough that memory is used again, large enough to sort rarely


@dataclass(frozen=True)
class Figure:
    """A measured value, and the interval that its bootstrap resamples fill."""

    value: float
    low: float
    high: float


def resamples(num_examples: int | Sequence[int], *, num_resamples: int = 1000, seed: int = 0) -> Iterator[Tensor]:
    """How often each example is drawn when N are drawn from N with replacement: chunks (R, N) of float64 counts.

    Args:
        num_examples: N; or the sizes of several samples that were concatenated, such as (inside, outside): each is
            resampled within itself.
        num_resamples: rows of all chunks together.
        seed: the same seed gives the same bits.
    Yields:
        (R, N) counts; a chunk has at most 2**20 numbers (8 MB), or one row.
    """
    sizes = [num_examples] if isinstance(num_examples, int) else list(num_examples)
    if not sizes or min(sizes) < 1 or num_resamples < 1:
        raise InputError(f"a bootstrap needs examples and resamples, got sizes {sizes} and {num_resamples} resamples.")
    generator = torch.Generator().manual_seed(seed)
    return _chunks(sizes, num_resamples, generator)


def _chunks(sizes: list[int], num_resamples: int, generator: torch.Generator) -> Iterator[Tensor]:
    most = max(1, _CHUNK // sum(sizes))
    for start in range(0, num_resamples, most):
        num_rows = min(most, num_resamples - start)
        yield torch.cat([_counts(size, num_rows, generator) for size in sizes], dim=1)


def _counts(size: int, num_rows: int, generator: torch.Generator) -> Tensor:
    drawn = torch.randint(size, (num_rows, size), generator=generator)
    drawn += size * torch.arange(num_rows)[:, None]
    return drawn.flatten().bincount(minlength=num_rows * size).view(num_rows, size).double()


def estimate(
    function: Statistic,
    num_examples: int | Sequence[int],
    *,
    num_resamples: int = 1000,
    seed: int = 0,
    level: float = 0.95,
    centred: bool = False,
) -> Figure:
    """A figure with its percentile bootstrap interval.

    Args:
        function: weights (R, N), or None for the data as they are, to values (R,) or (); such as
            ``lambda weights: aurc(uncertainty, correct, weights=weights)``.
        num_examples: N, or the sizes of several samples that are resampled each within itself.
        num_resamples: how many; 1000 give the ends of a 95 % interval to about a fortieth of its width.
        seed: the same seed gives the same interval.
        level: share of the resamples within the interval.
        centred: move the interval by as much as the resamples' mean is off the value. A resample repeats examples, which is
            noise; a statistic that noise inflates, such as the calibration error, is larger in nearly all resamples, and
            without this its interval may not even hold its value.
    Returns:
        The figure; all NaN where the value is. Resamples without a value (one class only) are left out.
    """
    figures = estimate_all(
        {"": function},
        num_examples,
        num_resamples=num_resamples,
        seed=seed,
        level=level,
        centred=[""] if centred else [],
    )
    return figures[""]


def estimate_all(
    functions: Mapping[str, Statistic],
    num_examples: int | Sequence[int],
    *,
    num_resamples: int = 1000,
    seed: int = 0,
    level: float = 0.95,
    centred: Collection[str] = (),
) -> dict[str, Figure]:
    """:func:`estimate` of many figures from the same resamples, which are drawn once.

    Args:
        functions: name to function; see :func:`estimate`.
        num_examples: N, or the sizes of several samples that are resampled each within itself.
        num_resamples: how many.
        seed: the same seed gives the same intervals.
        level: share of the resamples within the interval.
        centred: names of the functions whose interval is to be centred.
    """
    if not 0 < level < 1:
        raise InputError(f"level is the share of resamples in the interval, strictly between 0 and 1, got {level}.")
    values = {name: float(function(None)) for name, function in functions.items()}
    drawn: dict[str, list[Tensor]] = {name: [] for name, value in values.items() if value == value}
    if drawn:
        for weights in resamples(num_examples, num_resamples=num_resamples, seed=seed):
            for name, found in drawn.items():
                found.append(functions[name](weights).cpu())
    return {
        name: _figure(value, drawn.get(name, []), level=level, centred=name in centred)
        for name, value in values.items()
    }


def _figure(value: float, drawn: list[Tensor], *, level: float, centred: bool) -> Figure:
    found = torch.cat(drawn).double() if drawn else torch.empty(0, dtype=torch.float64)
    found = found[~found.isnan()]
    if not len(found):
        return Figure(value, torch.nan, torch.nan)
    if centred:
        found = found - found.mean() + value
    ends = torch.tensor([(1 - level) / 2, (1 + level) / 2], dtype=torch.float64)
    low, high = found.quantile(ends).tolist()
    return Figure(value, low, high)

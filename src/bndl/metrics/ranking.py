"""Examples in the order of a score, with ties kept together: what all metrics of an order are made of."""

from dataclasses import dataclass

import torch
from torch import Tensor

__all__ = ["Ranking", "before", "expected_sum", "rank"]


@dataclass(frozen=True)
class Ranking:
    """An order of N examples, in G groups of equal scores.

    Attributes:
        order: (N,) indices of the examples.
        ends: (G,) the place in ``order`` of each group's last example.
    """

    order: Tensor
    ends: Tensor

    def cumulate(self, rows: Tensor, *values: Tensor) -> list[Tensor]:
        """Sums of weight (R, G) up to the end of each group, then those of weight times each of ``values`` (N,)."""
        ordered = rows[:, self.order]
        sums = [ordered.cumsum(dim=1), *((ordered * v[self.order]).cumsum(dim=1) for v in values)]
        return sums if len(self.ends) == len(self.order) else [total[:, self.ends] for total in sums]


def rank(score: Tensor, *, descending: bool = False) -> Ranking:
    """Sort (N,) float64 scores once; equal ones (also -0 and 0) form a group."""
    ordered, order = score.sort(descending=descending, stable=True)
    last = torch.ones_like(order, dtype=torch.bool)
    last[:-1] = ordered[1:] != ordered[:-1]
    return Ranking(order, last.nonzero()[:, 0])


def before(sums: Tensor) -> Tensor:
    """Cumulative sums (R, G) at the start of each group."""
    return torch.cat([sums.new_zeros(len(sums), 1), sums[:, :-1]], dim=1)


def expected_sum(count: Tensor, total: Tensor, first: Tensor) -> Tensor:
    r"""Expected sum of a value over the ``first`` n of the order, ties broken at random.

    .. math:: T_{g-1} + (n - A_{g-1})\,\frac{T_g - T_{g-1}}{A_g - A_{g-1}}, \qquad A_{g-1} < n \le A_g

    Args:
        count: (R, G) cumulative weights A.
        total: (R, G) cumulative weighted values T.
        first: (R, P) numbers n of examples, above 0 and at most the last of ``count``.
    Returns:
        (R, P).
    """
    group = torch.searchsorted(count, first).clamp_max(count.size(1) - 1)
    end, start = count.gather(1, group), before(count).gather(1, group)
    reached, held = total.gather(1, group), before(total).gather(1, group)
    return held + (first - start) * (reached - held) / (end - start)

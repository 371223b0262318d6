"""The two conditions of partial identifiability, on a matrix whose rows are samples or classes.

Both sides of the theorem use the same two functions: theta_k needs a window among the classes and a zero region among the
samples, and row k of Phi needs a window among the samples and a zero region among the classes. Rows are scaled so that
their largest entry is 1: neither condition depends on the scale of a row.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from bndl.certify.record import ZeroRegion

__all__ = ["Inverse", "guaranteed_cosine", "purest", "scaled", "zero_region"]

_WORK = 2e10  # multiplications that one feature's test may take
_RANK_UP_TO = 512  # features up to which a failing rank is computed in full
_SINGULAR = 1e-6  # of a failing region's rank: eigenvalues of a Gram matrix tell no smaller ones from zero


def scaled(rows: Tensor) -> Tensor:
    """Rows (n, K) divided by their largest absolute entry; rows of zeros stay."""
    largest = rows.abs().amax(dim=1, keepdim=True)
    return rows / torch.where(largest > 0, largest, 1)


def purest(rows: Tensor) -> tuple[Tensor, Tensor]:
    """For each scaled row (n, K) the feature (n,) that leads it, and the leakage (n,): the second largest entry."""
    if rows.size(1) == 1:
        return torch.zeros(len(rows), dtype=torch.long), torch.zeros(len(rows), dtype=rows.dtype)
    top = rows.abs().topk(2, dim=1)
    return top.indices[:, 0], top.values[:, 1]


@dataclass(frozen=True)
class Inverse:
    """The witnesses of a zero region as positions in ``rows``, and the inverse of their block (r - 1, r - 1).

    ``first`` is the conditioning of the first search: where it exceeds the tolerance there is no second one.
    """

    positions: Tensor
    others: Tensor
    inverse: Tensor
    first: float = 1.0


def zero_region(
    rows: Tensor, feature: int, *, active: Tensor, tolerance: float, rank_tolerance: float, ids: Tensor | None = None
) -> tuple[ZeroRegion, Inverse | None]:
    """Whether the rows where a feature is zero span all other features, by r - 1 independent witnesses.

    LU with row pivoting of the zero rows picks the witnesses; the inverse of their block bounds its smallest singular
    value from below: :math:`\\sigma_{\\min}(W) \\ge 1 / \\|W^{-1}\\|_F`.

    Args:
        rows: (n, K), scaled; in random order, as the first ones are tried first.
        feature: its column.
        active: columns (K_eff,) that take part, ``feature`` among them.
        tolerance: entries up to this are zero.
        rank_tolerance: a smaller singular value, columns having length one, is zero.
        ids: numbers (n,) by which rows are called.
    """
    positions = (rows[:, feature].abs() <= tolerance).nonzero().flatten()
    others = active[active != feature]
    needed, count = len(others), len(positions)
    if not needed:
        return ZeroRegion(count, 0, 0, conditioning=1.0, holds=True), Inverse(positions[:0], others, rows[:0, :0])
    best, first, found = 0.0, None, None
    most = min(count, max(4 * needed, int(_WORK / needed**2)))
    sizes = (min(2 * needed + 64, most), most) if count >= needed else ()
    for size, precision in zip(sizes, (torch.float32, torch.float64), strict=False):
        block = rows[positions[:size]][:, others]
        chosen = _pivots(block.to(precision))  # single precision picks good witnesses at half the price, nearly always
        conditioning, inverse = _inverse(block[chosen].double())
        first = conditioning if first is None else first
        if conditioning > best:
            best, found = conditioning, Inverse(positions[chosen], others, inverse, first)
        if best > rank_tolerance:
            break
    if found is None or best <= rank_tolerance:
        return _deficient(rows, positions[:most], others, count=count, conditioning=best), found
    named = found.positions if ids is None else ids[found.positions]
    return ZeroRegion(count, needed, needed, best, tuple(named.tolist()), holds=True), found


def _pivots(block: Tensor) -> Tensor:
    """The rows (n,) that Gaussian elimination with row pivoting takes as pivots of a block (m, n), m >= n."""
    _, swaps, _ = torch.linalg.lu_factor_ex(block)
    order = list(range(len(block)))
    for row, other in enumerate(swaps.tolist()):
        order[row], order[other - 1] = order[other - 1], order[row]
    return torch.tensor(order[: block.size(1)])


def _inverse(block: Tensor) -> tuple[float, Tensor]:
    """A lower bound on the least singular value of a block (n, n), columns scaled to length one, and its inverse."""
    lengths = block.norm(dim=0)
    if not (lengths > 0).all():
        return 0.0, block
    inverse, info = torch.linalg.inv_ex(block / lengths)
    size = float(inverse.norm())
    if int(info) or not size < float("inf"):
        return 0.0, block
    return 1 / size, inverse / lengths[:, None]


def _deficient(rows: Tensor, positions: Tensor, others: Tensor, *, count: int, conditioning: float) -> ZeroRegion:
    """A zero region that does not span the others: its rank, and who is missing, where that is affordable."""
    needed = len(others)
    if needed > _RANK_UP_TO:
        return ZeroRegion(count, needed, conditioning=conditioning, holds=False)
    block = rows[positions][:, others].double()
    lengths = block.norm(dim=0)
    absent = tuple(others[lengths == 0].tolist())
    block = block / torch.where(lengths > 0, lengths, 1)
    gram = block.T @ block if len(block) > needed else block @ block.T
    values = torch.linalg.eigvalsh(gram).clamp_min(0).sqrt()
    rank = int((values > _SINGULAR * values.max()).sum()) if len(values) and float(values.max()) > 0 else 0
    return ZeroRegion(count, needed, min(rank, needed - 1), conditioning, absent=absent, holds=False)


def guaranteed_cosine(
    rows: Tensor, region: Inverse, window: Tensor, *, feature: int, active: Tensor, lengths: Tensor
) -> float:
    r"""How close a column of any other exact factorisation must be to this one, when zeros are not quite zero.

    With witnesses :math:`W` (r - 1 rows without column k), :math:`w` their entries of feature k and :math:`x` what they
    add to the window's class, whose weight of k is :math:`\alpha`, some column of any other factorisation is
    proportional to :math:`\theta_k + \sum_{l \ne k} q_l \theta_l` with
    :math:`|q| \le |W^{-1}| (r x / \alpha + w)`, entry by entry (docs/theory.md has the proof). So the sine of the angle
    is at most :math:`\sum_l |q_l| \|\theta_l\| / \|\theta_k\|`: zero where zeros are exact.

    Args:
        rows: (n, K), scaled.
        region: of :func:`zero_region`.
        window: row (K,) of the other matrix that uses the feature alone, or nearly.
        feature: k.
        active: columns (K_eff,) that take part.
        lengths: norms (K,) of the columns of the unscaled matrix.
    """
    if not len(region.others):
        return 1.0
    witnesses = rows[region.positions].double()
    entries = witnesses[:, active] @ window[active].double()
    spill = len(active) * entries / window[feature].double() + witnesses[:, feature]
    q = region.inverse.abs() @ spill.abs()
    sine = float(q @ lengths[region.others].double() / lengths[feature].double())
    return max(0.0, 1 - sine**2) ** 0.5 if sine < 1 else 0.0

"""One pass over the samples: what certificates need of Theta, in memory that does not grow with N."""

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from bndl.certify.conditions import purest, scaled
from bndl.errors import InputError

__all__ = ["SEARCH_UP_TO", "Seen", "see"]

SEARCH_UP_TO = 128  # features up to which every zero region is searched, window or not, applicable or not


@dataclass(frozen=True)
class Seen:
    """What was seen of Theta, its columns in units of what a feature can add to a logit (theta_k max_c Phi_kc).

    Attributes:
        count: samples, N.
        silent: samples with no active feature.
        signed: whether an entry was negative.
        anchored: samples with a class that no active feature speaks for.
        active: (K,), whether the feature is on anywhere, however little.
        lengths: (K,), norms of the columns.
        zeros: (K,), samples where the feature is zero at the tolerance.
        pure: (K,), the sample that uses the feature most nearly alone; -1 where it leads none.
        pure_rows: (K, K), these samples, scaled.
        leakage: (K,), what others add there, as a share.
        spectrum: singular values of Theta Phi, rows and then columns scaled; descending, the largest is 1.
        rows: (n, K), samples with their largest contribution scaled to 1, in random order; None when there are more
            features than classes, and too many to search.
        ids: (n,), which samples these are.
    """

    count: int
    silent: int
    signed: bool
    anchored: int
    active: Tensor
    lengths: Tensor
    zeros: Tensor
    pure: Tensor
    pure_rows: Tensor
    leakage: Tensor
    spectrum: Tensor
    rows: Tensor | None
    ids: Tensor


class _Reservoir:
    """A uniform sample of rows: those with the smallest of one random number a row."""

    def __init__(self, size: int, width: int, *, seed: int) -> None:
        self.size, self.width = size, width
        self.generator = torch.Generator().manual_seed(seed)
        self.rows = torch.empty(0, width)
        self.ids, self.keys = torch.empty(0, dtype=torch.long), torch.empty(0, dtype=torch.float64)
        self.filled, self.open = 0, True

    def add(self, rows: Tensor, ids: Tensor) -> None:
        keys = torch.rand(len(rows), dtype=torch.float64, generator=self.generator)
        if not self.open or not len(rows):
            return
        if not len(self.rows):  # pages of an empty tensor cost nothing until they are written
            self.rows, self.ids = torch.empty(self.size, self.width), torch.empty(self.size, dtype=torch.long)
            self.keys = torch.full((self.size,), torch.inf, dtype=torch.float64)
        order = torch.cat([self.keys[: self.filled], keys]).argsort()[: self.size]
        fresh = order[order >= self.filled] - self.filled
        kept = torch.zeros(self.size, dtype=torch.bool)
        kept[order[order < self.filled]] = True
        places = (~kept).nonzero().flatten()[: len(fresh)]
        self.rows[places], self.ids[places], self.keys[places] = rows[fresh].float(), ids[fresh], keys[fresh]
        self.filled = min(self.size, self.filled + len(rows))

    def close(self) -> None:
        """Hold nothing, now and later."""
        self.open, self.rows = False, torch.empty(0, self.width)

    def result(self) -> tuple[Tensor | None, Tensor]:
        """Rows in random order, and which samples they are."""
        if not self.open:
            return None, torch.empty(0, dtype=torch.long)
        order = self.keys[: self.filled].argsort()
        return self.rows[order], self.ids[order]


class _Tally:
    """Sums over the samples; ``classes`` (C, K) is Phi transposed, in units."""

    def __init__(self, classes: Tensor, *, tolerance: float) -> None:
        C, K = classes.size()
        self.classes, self.tolerance = classes.double(), tolerance
        self.spoken = (classes.T != 0).float()
        self.count = self.silent = self.anchored = 0
        self.signed = False
        self.active, self.zeros = torch.zeros(K, dtype=torch.bool), torch.zeros(K, dtype=torch.long)
        self.squares = torch.zeros(K, dtype=torch.float64)
        self.pure, self.pure_rows = torch.full((K,), -1), torch.zeros(K, K)
        self.leakage = torch.full((K,), torch.inf)
        self.narrow = K <= C  # then Theta's Gram matrix is the smaller one, otherwise that of the logits
        size = K if self.narrow else C
        self.gram = torch.zeros(size, size, dtype=torch.float64)

    def add(self, added: Tensor) -> tuple[Tensor, Tensor]:
        """Contributions (B, K), float64 -> the samples that say something, scaled, float32; and their numbers."""
        loud = (added != 0).any(dim=1)
        rows, ids = scaled(added[loud]).float(), self.count + loud.nonzero().flatten()
        quiet = len(added) - len(rows)
        self.count, self.silent = self.count + len(added), self.silent + quiet
        self.anchored += quiet + int(((rows != 0).float() @ self.spoken == 0).any(dim=1).sum())
        self.signed |= bool((added < 0).any())
        self.active |= (added != 0).any(dim=0)
        self.squares += added.square().sum(dim=0)
        if len(rows):
            size = rows.abs()
            self.zeros += (size <= self.tolerance).sum(dim=0)
            self._note_purest(rows, ids)
            block = rows.double() if self.narrow else rows.double() @ self.classes.T
            self.gram.addmm_(block.T, block)
        return rows, ids

    def _note_purest(self, rows: Tensor, ids: Tensor) -> None:
        """Keep, for each feature, the sample with the least leakage; of equals the first."""
        feature, leak = purest(rows)
        least = torch.full_like(self.leakage, torch.inf).scatter_reduce(0, feature, leak, "amin")
        tied = (leak == least[feature]).nonzero().flatten()
        first = torch.full_like(self.pure, len(rows)).scatter_reduce(0, feature[tied], tied, "amin")
        better = (least < self.leakage).nonzero().flatten()
        chosen = first[better]
        self.leakage[better], self.pure[better], self.pure_rows[better] = least[better], ids[chosen], rows[chosen]

    def spectrum(self) -> Tensor:
        """Singular values of Theta Phi, its columns scaled to length one; the largest is 1."""
        gram = self.classes @ self.gram @ self.classes.T if self.narrow else self.gram
        lengths = gram.diagonal().clamp_min(0).sqrt()
        used = (lengths > 0).nonzero().flatten()
        if not len(used):
            return torch.zeros(1, dtype=torch.float64)
        gram = gram[used][:, used] / lengths[used] / lengths[used][:, None]
        values = torch.linalg.eigvalsh(gram).clamp_min(0).sqrt().flip(0)
        spectrum: Tensor = values / values[0]
        return spectrum


def see(
    batches: Iterable[Tensor], weights: Tensor, *, units: Tensor, tolerance: float, max_rows: int, seed: int
) -> Seen:
    """Go through the samples once.

    Args:
        batches: of theta (B, K).
        weights: (C, K), Phi transposed, divided by the units.
        units: (K,), what theta is multiplied by: the feature's largest weight.
        tolerance: shares up to this are zero.
        max_rows: how many samples are kept to search for witnesses.
        seed: of which ones.
    """
    C, K = weights.size()
    tally, reservoir = _Tally(scaled(weights), tolerance=tolerance), _Reservoir(max_rows, K, seed=seed)
    for theta in batches:
        rows, ids = tally.add(_checked(theta, K) * units.double())
        if int(tally.active.sum()) > max(C, SEARCH_UP_TO):
            reservoir.close()
        reservoir.add(rows, ids)
    if not tally.count:
        raise InputError("the loader is empty: it gave no example to certify on.")
    kept, ids = reservoir.result()
    return Seen(
        count=tally.count,
        silent=tally.silent,
        signed=tally.signed,
        anchored=tally.anchored,
        active=tally.active,
        lengths=tally.squares.sqrt(),
        zeros=tally.zeros,
        pure=tally.pure,
        pure_rows=tally.pure_rows,
        leakage=tally.leakage,
        spectrum=tally.spectrum(),
        rows=kept,
        ids=ids,
    )


def _checked(theta: Tensor, width: int) -> Tensor:
    if theta.dim() != 2 or theta.size(1) != width:
        raise InputError(f"theta must have dims (N, {width}), one column a row of Phi, got {tuple(theta.size())}.")
    if not torch.isfinite(theta).all():
        raise InputError("theta holds NaN or infinite values: check the inputs and the backbone.")
    theta = theta.detach().cpu()
    if not torch.isfinite(theta.float()).all():
        raise InputError("theta has entries beyond float32, 3e38: scale it down.")
    return theta.float().double()  # what is certified are the float32 numbers; their products do not overflow

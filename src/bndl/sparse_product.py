r"""Products with a head of few weights, :math:`l = \theta \Phi^T + b`, each by the fastest of three ways.

Which one is a rule in the dims alone, so the same head always takes the same way for as many rows. It was measured by
``benchmarks/speed_compact.py`` in float32 on one core (AVX2, MKL). A dense product takes 25 to 40 ps a multiplication, bags
of rows (``embedding_bag`` over theta transposed, as many rows at a time as stay in the cache) 15 to 70 ps a weight and row,
0.6 ns for each number that is transposed, and 0.1 us a row at least; a compressed-row product for a few rows 0.1 to 0.3 ns
a weight and row, and 4 us more for the call, 1.5 for a single row. In units of a dense multiplication that is:
"""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

__all__ = ["Bags", "MeanProduct", "bags_are_faster", "rows_are_faster"]

FEW = 16  # rows: below it the compressed rows are used, from it on the bags
_TABLE = 2**17  # numbers of theta that the bags read at once, so that they stay in the cache


def bags_are_faster(num_weights: int, num_classes: int, num_features: int) -> bool:
    """Whether bags beat the dense product on many rows: C K > 2 nnz + 25 (C + K) + 5,000."""
    C, K = num_classes, num_features
    return 2 * num_weights + 25 * (C + K) + 5_000 < C * K


def rows_are_faster(num_rows: int, num_weights: int, num_classes: int, num_features: int) -> bool:
    """Whether compressed rows beat the dense product on so few rows B of theta.

    One: C K > 8 nnz + 20,000. More: B (C K - 4 nnz) > 200,000, which makes good what the call takes longer.
    """
    dense = num_classes * num_features
    if num_rows == 1:
        return dense > 8 * num_weights + 20_000
    return num_rows * (dense - 4 * num_weights) > 200_000


@dataclass(frozen=True)
class Bags:
    """The weights of each class as a bag, in the order of their features.

    Attributes:
        features: (nnz,) the feature of each weight.
        values: (nnz,) the weight.
        starts: (C,) where each class's bag begins.
    """

    features: Tensor
    values: Tensor
    starts: Tensor

    @classmethod
    def of(cls, weights: Tensor, values: Tensor | None = None) -> "Bags":
        """The non-zero entries of ``weights`` (C, K), or at their places ``values`` (nnz,)."""
        classes, features = weights.nonzero().t().contiguous()
        counts = torch.bincount(classes, minlength=len(weights))
        own = weights[classes, features] if values is None else values
        return cls(features, own, counts.cumsum(0) - counts)

    @property
    def classes(self) -> Tensor:
        """(nnz,) the class of each weight, ascending."""
        counts = F.pad(self.starts, (0, 1), value=len(self.values)).diff()
        return torch.arange(len(self.starts), device=counts.device).repeat_interleave(counts)

    def repeated(self, values: Tensor) -> "Bags":
        """S heads with these weights (S, nnz) in the same places, as one of S C classes."""
        S, count = values.size()
        copies = torch.arange(S, device=values.device)[:, None]
        return Bags(
            features=self.features.repeat(S),
            values=values.flatten(),
            starts=(self.starts + count * copies).flatten(),
        )

    def __call__(self, theta: Tensor, bias: Tensor | None = None) -> Tensor:
        """theta (B, K), what is negative counting as 0 -> products with each class's weights (B, C), plus the bias (C,)."""
        (B, K), C = theta.size(), len(self.starts)
        sums, tile = theta.new_empty(B, C), min(256, max(32, _TABLE // K // 16 * 16))
        for start in range(0, B, tile):
            table = theta[start : start + tile].t().clone(memory_format=torch.contiguous_format).relu_()
            own = self.sums(table).t()
            part = sums[start : start + tile]
            part.copy_(own) if bias is None else torch.add(own, bias, out=part)
        return sums

    def sums(self, table: Tensor) -> Tensor:
        """A table (K, B) of features, one after the other -> products with each class's weights (C, B)."""
        return F.embedding_bag(self.features, table, self.starts, mode="sum", per_sample_weights=self.values)

    def compressed(self, num_columns: int) -> Tensor:
        """The weights in compressed rows (C, num_columns)."""
        ends = F.pad(self.starts, (0, 1), value=len(self.values)).int()
        dims = (len(self.starts), num_columns)
        with warnings.catch_warnings():  # torch calls the layout a beta; what is used of it here is tested
            warnings.filterwarnings("ignore", "Sparse CSR")
            return torch.sparse_csr_tensor(ends, self.features.int(), self.values, dims, check_invariants=False)


class MeanProduct:
    """The mean weights of a head, laid out once for every number of rows: theta (B, K) -> logits (B, C).

    Args:
        weights: (C, K) float32, the mean of Phi transposed.
        bias: (C,) or None.
        columns: the place of each of the K features among those of ``h``, and how many those are, if theta is ``h`` but
            for a threshold: then it is given whole, and a sparse product reads the features where they are. None if not.
        state: what tells these weights from others, kept for the caller, as are ``owners``.
    """

    owners: Sequence[Tensor] = ()

    def __init__(self, weights: Tensor, bias: Tensor | None, *, columns: tuple[Tensor, int] | None, state: Any) -> None:
        self.state, (C, K) = state, weights.size()
        self.whole = columns is not None
        self.kept = None if columns is None or columns[1] == K else columns[0].clone()
        self.bias = weights.new_zeros(C) if bias is None else bias.clone()
        self.column = self.bias[:, None]
        self.rows: Tensor | None = None
        self.bags: Bags | None = None
        # reading all features costs the bags less than choosing most of them
        self.kept_for_bags = None if columns is None or columns[1] < 2 * K else self.kept
        by_rows = [False] * FEW
        if weights.device.type == "cpu":  # elsewhere nothing was measured
            bags = Bags.of(weights)
            placed = bags if columns is None else replace(bags, features=columns[0][bags.features])
            if torch.backends.mkl.is_available():
                by_rows = [rows_are_faster(B, len(bags.values), C, K) for B in range(FEW)]
            if any(by_rows):
                self.rows = placed.compressed(K if columns is None else columns[1])
            if bags_are_faster(len(bags.values), C, K):
                self.bags = placed if self.kept_for_bags is None else bags
        self.by_rows = tuple(by_rows)
        always_sparse = self.bags is not None and all(by_rows[1:])
        if columns is not None and 3 * columns[1] < 4 * K:  # and the dense product, to multiply a few with zeros
            self.kept = None
            weights = weights.new_zeros(C, columns[1]).index_copy(1, columns[0], weights)
        self.dense = None if always_sparse else weights.clone().t()  # (K, C)

    def __call__(self, theta: Tensor) -> Tensor:
        """Logits (B, C) of all features if ``columns`` told their places, else of the K; what is negative counts as 0."""
        B = theta.size(0)
        if B >= FEW and self.bags is not None:
            own = theta if self.kept_for_bags is None else theta.index_select(1, self.kept_for_bags)
            return self.bags(own, self.bias)
        if self.rows is not None and B < FEW and (self.by_rows[B] or self.dense is None):
            if B == 1:
                return torch.addmv(self.bias, self.rows, theta[0].relu()).unsqueeze(0)
            table = torch.clamp_min(theta.t(), 0, out=theta.new_empty(theta.size(1), B))  # transposed in the same call
            return torch.addmm(self.column, self.rows, table).t().contiguous()
        assert self.dense is not None
        chosen = theta.relu() if self.kept is None else theta.index_select(1, self.kept).relu_()
        return torch.addmm(self.bias, chosen, self.dense)  # what F.linear does, a microsecond sooner

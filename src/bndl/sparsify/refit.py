r"""Fit the weights that are left: projected Adam on cached features, :math:`\Phi \ge 0`, everything outside a mask 0.

The objective is that of :mod:`bndl.sparsify.pool`. Many weights are fitted by dense products; few, where a processor gains
by it, by products that touch no other: sums of bags for the logits, and their slopes sampled at the mask.
"""

import math
import warnings

import torch
from torch import Tensor

from bndl.sparse_product import Bags
from bndl.sparsify.pool import BATCH, Head, Pool

__all__ = ["refit"]

_VISITS = 25_000  # examples a pass, at most
_LEAST_STEPS = 50  # a pass
_RATE = 0.05  # of the root mean square of the weights
_LARGEST_RATE = 0.05
_BETAS = (0.9, 0.99)
_WARM_UP = 0.1
_LISTED = 1 / 8  # of the weights, at most, of at least so many: then those in use are fitted as a list
_LARGE = 2**13


@torch.no_grad()
def refit(head: Head, mask: Tensor, pool: Pool, *, passes: float, generator: torch.Generator) -> Head:
    """Train the weights under ``mask`` (C, K), from where they are, with a warm-up and a cosine decay."""
    form = (_Listed if _is_sparse(mask, pool) else _Dense)(head, mask, pool)
    weights, bias = _Adam(form.u), _Adam(form.bias)
    largest = min(_LARGEST_RATE, _RATE * float(form.u.square().sum() / mask.sum()) ** 0.5)
    num_steps = round(passes * max(_LEAST_STEPS, math.ceil(min(_VISITS, len(pool.labels)) / BATCH)))
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Sparse CSR")  # torch calls the layout of the sampled slopes a beta
        for step, batch in enumerate(pool.batches(num_steps, generator), start=1):
            warm = min(1.0, step / max(1.0, _WARM_UP * num_steps))
            rate = largest * warm * 0.5 * (1 + math.cos(math.pi * step / num_steps))
            of_weights, of_bias = form.slopes(batch)
            weights.step(of_weights, rate)
            form.project()
            if pool.has_bias:
                bias.step(of_bias, rate)
    return Head(form.weight(), form.bias)


def _is_sparse(mask: Tensor, pool: Pool) -> bool:
    """Whether a list is faster: measured on processors alone, in float32."""
    plain = pool.z.device.type == "cpu" and pool.z.dtype == torch.float32
    return plain and mask.numel() >= _LARGE and int(mask.sum()) <= _LISTED * mask.numel()


class _Dense:
    """All weights (C, K) of the features that have one, times the mask."""

    def __init__(self, head: Head, mask: Tensor, pool: Pool) -> None:
        self.pool, self.whole = pool, head.weight
        self.columns = mask.any(dim=0).nonzero().flatten()
        self.few = len(self.columns) <= 0.75 * mask.size(1)  # then only these are read
        self.allowed = (mask[:, self.columns] if self.few else mask).to(head.weight.dtype)
        self.u, self.bias = (
            (head.weight[:, self.columns] if self.few else head.weight) * self.allowed,
            head.bias.clone(),
        )

    def slopes(self, batch: int) -> tuple[Tensor, Tensor]:
        """Of the objective on a batch, in the weights and in the bias."""
        rows = self.pool.rows(batch)
        z = self.pool.z[rows].index_select(1, self.columns) if self.few else self.pool.z[rows]
        residuals = self.pool.residuals(torch.addmm(self.bias, z, self.u.t()), rows)
        of_weights = torch.addmm(self.u, residuals.t(), z, beta=self.pool.ridge, alpha=1 / len(z))
        return of_weights, residuals.mean(dim=0)

    def project(self) -> None:
        """No weight below zero, none outside the mask."""
        self.u.clamp_(min=0).mul_(self.allowed)

    def weight(self) -> Tensor:
        """(C, K)."""
        return torch.zeros_like(self.whole).index_copy_(1, self.columns, self.u) if self.few else self.u


class _Listed:
    """The weights under the mask alone (nnz,), row by row."""

    def __init__(self, head: Head, mask: Tensor, pool: Pool) -> None:
        self.pool, self.mask = pool, mask
        self.u, self.bias = head.weight[mask], head.bias.clone()
        self.bags = Bags.of(mask, values=self.u)
        self.places = Bags.of(mask, values=torch.zeros_like(self.u)).compressed(mask.size(1))

    def slopes(self, batch: int) -> tuple[Tensor, Tensor]:
        """Of the objective on a batch, in the weights and in the bias."""
        z = self.pool.turned(batch)
        residuals = self.pool.turned_residuals(self.bags.sums(z).add_(self.bias[:, None]), batch)
        sampled = torch.sparse.sampled_addmm(self.places, residuals, z.t(), beta=0.0, alpha=1 / z.size(1))
        return sampled.values().add_(self.u, alpha=self.pool.ridge), residuals.mean(dim=1)

    def project(self) -> None:
        """No weight below zero."""
        self.u.clamp_(min=0)

    def weight(self) -> Tensor:
        """(C, K)."""
        return self.u.new_zeros(self.mask.size()).masked_scatter_(self.mask, self.u)


class _Adam:
    """Adam of one tensor, in place."""

    def __init__(self, tensor: Tensor) -> None:
        self.tensor, self.count = tensor, 0
        self.first, self.second = torch.zeros_like(tensor), torch.zeros_like(tensor)

    def step(self, gradient: Tensor, rate: float) -> None:
        """Go against the mean gradient over the root of the mean square."""
        self.count += 1
        self.first.lerp_(gradient, 1 - _BETAS[0])
        self.second.mul_(_BETAS[1]).addcmul_(gradient, gradient, value=1 - _BETAS[1])
        root = math.sqrt(1 - _BETAS[1] ** self.count)
        spread = self.second.sqrt().add_(1e-8 * root)
        self.tensor.addcdiv_(self.first, spread, value=-rate * root / (1 - _BETAS[0] ** self.count))

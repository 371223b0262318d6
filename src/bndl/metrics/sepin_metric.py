"""SEPIN, streaming: one sum a feature, added up over batches and processes."""

from typing import Any

import torch
from torch import Tensor

from bndl.errors import InputError
from bndl.metrics.sepin import TEMPERATURE, Sepin, information_sums
from bndl.metrics.streaming import _check_count, _Record

__all__ = ["SEPIN"]


class SEPIN(_Record):
    """:func:`bndl.metrics.sepin.sepin` of two views of images; keeps a sum a feature, and a count.

    Each ``update`` is one batch whose images are each other's negatives, so keep batches of one size, and mixed.

    Args:
        num_features: K.
        temperature: that similarities are divided by.
        **kwargs: of ``torchmetrics.Metric``.

    Example:
        >>> metric = SEPIN(num_features=512)
        >>> metric.update(torch.rand(64, 512), torch.rand(64, 512))
        >>> at_10 = metric.compute().at(10)
    """

    higher_is_better = True
    total: Tensor
    count: Tensor

    def __init__(self, num_features: int, *, temperature: float = TEMPERATURE, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        if num_features < 1:
            raise InputError(f"num_features must be at least 1, not {num_features}.")
        self.num_features, self.temperature = num_features, temperature
        self.add_state("total", torch.zeros(num_features, dtype=torch.float64), dist_reduce_fx="sum")
        self.add_state("count", torch.zeros((), dtype=torch.float64), dist_reduce_fx="sum")

    def update(self, u: Tensor, v: Tensor) -> None:
        """Add a batch: features (B, K) of one view and of another view of the same images."""
        if u.dim() != 2 or u.size(1) != self.num_features:
            dims = tuple(u.size())
            raise InputError(f"SEPIN was made for {self.num_features} features an image, got a view of dims {dims}.")
        self.total += information_sums(u, v, temperature=self.temperature).to(self.total.device)
        self.count += len(u)

    def compute(self) -> Sepin:
        """The values of all batches so far, of all processes."""
        _check_count(self.count)
        return Sepin(self.total / self.count)

"""SEPIN, streaming: one sum a feature, added up over batches and processes."""

from typing import Any

import torch
from torch import Tensor

from bndl.errors import InputError, MissingExtraError
from bndl.metrics.sepin import TEMPERATURE, information_sums

try:
    import torchmetrics
except ImportError as error:
    raise MissingExtraError("a streaming metric", extra="metrics") from error

__all__ = ["SEPIN"]


class SEPIN(torchmetrics.Metric):
    """Conditional information of each feature, from two views of images; see :func:`bndl.metrics.sepin.sepin`.

    Each ``update`` is one batch whose images are each other's negatives, so keep batches of one size. ``compute`` gives
    the values (K,), because torchmetrics refuses a frozen dataclass; ``Sepin(values)`` has the rest.

    Args:
        num_features: K.
        temperature: that similarities are divided by.
        **settings: of ``torchmetrics.Metric``.

    Example:
        >>> metric = SEPIN(num_features=512)
        >>> metric.update(torch.rand(64, 512), torch.rand(64, 512))
        >>> at_10 = Sepin(metric.compute()).at(10)
    """

    is_differentiable = False
    higher_is_better = True
    full_state_update = False
    total: Tensor
    count: Tensor

    def __init__(self, num_features: int, *, temperature: float = TEMPERATURE, **settings: Any) -> None:
        super().__init__(**settings)
        if num_features < 1:
            raise InputError(f"num_features must be at least 1, not {num_features}.")
        self.num_features, self.temperature = num_features, temperature
        self.add_state("total", torch.zeros(num_features, dtype=torch.float64), dist_reduce_fx="sum")
        self.add_state("count", torch.zeros((), dtype=torch.int64), dist_reduce_fx="sum")

    def update(self, u: Tensor, v: Tensor) -> None:
        """Add a batch: features (B, K) of one view and of another view of the same images."""
        if u.dim() != 2 or u.size(1) != self.num_features:
            dims = tuple(u.size())
            raise InputError(f"SEPIN was made for {self.num_features} features an image, got a view of dims {dims}.")
        self.total += information_sums(u, v, temperature=self.temperature)
        self.count += len(u)

    def compute(self) -> Tensor:
        """The values (K,) float64 of all batches so far, of all processes; NaN before the first."""
        return self.total / self.count

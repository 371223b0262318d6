"""What is computed from a layer once and kept with it, until one of its numbers changes."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor

from bndl.layer import DecisionLayer

__all__ = ["remembered"]

T = TypeVar("T")


@dataclass(frozen=True)
class _Memory:
    """Something made from a layer, and all that it was made from."""

    key: tuple[Any, ...]
    numbers: list[Tensor]
    made: Any


def remembered(make: Callable[..., T], layer: DecisionLayer, **given: Any) -> T:
    """``make(layer, **given)``, or what it gave last time if neither its arguments nor the layer have changed since.

    Every number of the layer is compared with a copy, so that no way of changing one goes unnoticed. The last thing made
    in ``eval()`` is kept with the layer; ``train()`` forgets it, and so do copies and files.
    """
    key = (make, *given.items(), *layer.settings.items())
    numbers = [tensor.detach() for tensor in (*layer.parameters(), *layer.buffers())]
    kept = layer.memory
    if isinstance(kept, _Memory) and kept.key == key and _same(kept.numbers, numbers):
        made: T = kept.made
        return made
    made = make(layer, **given)
    if not layer.training:
        layer.memory = _Memory(key, [tensor.clone() for tensor in numbers], made)
    return made


def _same(old: list[Tensor], new: list[Tensor]) -> bool:
    return len(old) == len(new) and all(
        a.dtype == b.dtype and a.device == b.device and torch.equal(a, b) for a, b in zip(old, new, strict=True)
    )

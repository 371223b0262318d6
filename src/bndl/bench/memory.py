"""How many bytes of tensors are alive at most: counted, not sampled, so that the same code gives the same number."""

import weakref
from typing import Any

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

__all__ = ["PeakMemory"]


class PeakMemory(TorchDispatchMode):
    """Inside, the bytes of all storages that operations made and that are still alive; ``peak`` is the most there were.

    What was there before does not count. Scratch space inside an operation is not seen.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.peak, self.now = 0, 0
        self._alive: set[int] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run the operation and count what it made."""
        kwargs = kwargs or {}
        given = {leaf.untyped_storage()._cdata for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)}
        result = func(*args, **kwargs)
        for leaf in tree_leaves(result):
            if isinstance(leaf, Tensor):
                self._count(leaf, given)
        return result

    def _count(self, tensor: Tensor, given: set[int]) -> None:
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key in self._alive or key in given:
            return
        self._alive.add(key)
        size = storage.nbytes()
        self.now += size
        self.peak = max(self.peak, self.now)
        weakref.finalize(storage, self._forget, key, size)

    def _forget(self, key: int, size: int) -> None:
        self._alive.discard(key)
        self.now -= size

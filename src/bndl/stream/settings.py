"""How to predict a source into a file: what the user may choose, and what is left to us."""

from dataclasses import asdict, dataclass
from typing import Any, get_args

import torch

from bndl.decide import Method
from bndl.errors import InputError
from bndl.stream.columns import Probs
from bndl.stream.source import Source

__all__ = ["Settings", "Sizes"]

_EXAMPLES, _ROWS = 256, 4096  # a batch: through a backbone, through the layer alone
_SHARD_EXAMPLES, _SHARD_ROWS, _SHARD_NUMBERS = 1024, 65_536, 2**24


@dataclass(frozen=True)
class Settings:
    """How to predict. What is None is chosen by the source.

    Attributes:
        method: as for :func:`bndl.predict`.
        level: as for :func:`bndl.predict`.
        seed: as for :func:`bndl.predict`.
        probs: which probabilities are written: of ``"all"`` classes, of the decision (``"top"``), or ``"none"``.
        reasons: how many of the largest terms of each decision are written.
        batch_size: examples at a time. Predictions from features do not depend on it.
        shard_rows: examples a shard: what a kill may cost.
        workers: threads: for images those that decode, for features those that compute.
    """

    method: Method = "sample"
    level: float = 0.05
    seed: int = 0
    probs: Probs = "top"
    reasons: int = 0
    batch_size: int | None = None
    shard_rows: int | None = None
    workers: int | None = None

    def __post_init__(self) -> None:
        for name, value, allowed in (("method", self.method, Method), ("probs", self.probs, Probs)):
            if value not in get_args(allowed):
                raise InputError(f"{name} must be one of {', '.join(get_args(allowed))}, got {value!r}.")
        if not 0 < self.level < 1:
            raise InputError(f"level is a significance strictly between 0 and 1, got {self.level}.")
        for name, least in (("reasons", 0), ("batch_size", 1), ("shard_rows", 1), ("workers", 1)):
            given = getattr(self, name)
            if given is not None and given < least:
                raise InputError(f"{name} must be at least {least}, got {given}.")

    def sizes(self, source: Source, num_classes: int) -> "Sizes":
        """What was left open, chosen; features have large shards unless their rows are wide."""
        width = num_classes + 16 if self.probs == "all" else 16
        shard = _SHARD_EXAMPLES if source.images else max(1024, min(_SHARD_ROWS, _SHARD_NUMBERS // width))
        return Sizes(
            batch=self.batch_size or (_EXAMPLES if source.images else _ROWS),
            shard=self.shard_rows or shard,
            threads=self.workers or torch.get_num_threads(),
        )

    def identity(self, source: Source, num_classes: int) -> dict[str, Any]:
        """What of it decides on the bytes of the output."""
        sizes = self.sizes(source, num_classes)
        own = {
            name: value for name, value in asdict(self).items() if name not in ("batch_size", "shard_rows", "workers")
        }
        # a backbone may differ in the last bits with the batch, the layer does not
        return own | {"shard": sizes.shard, "batch": sizes.batch if source.images else None}


@dataclass(frozen=True)
class Sizes:
    """How many examples a batch and a shard have, and how many threads work."""

    batch: int
    shard: int
    threads: int

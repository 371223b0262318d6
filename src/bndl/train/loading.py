"""Batches for the engine: the same order for the same seed and epoch, on one process or on many."""

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import lightning as L
import torch
from torch import Tensor
from torch.utils.data import BatchSampler, DataLoader, Dataset
from torch.utils.data.distributed import DistributedSampler

from bndl.data import ArraySet, LabelledSet
from bndl.errors import InputError
from bndl.features import FeatureSet

__all__ = ["Augmented", "Batches", "Loaders", "loader", "num_workers"]

Batch = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class Batches(Dataset[Batch]):
    """A data set that gives whole batches: arrays and features are indexed once, images on disk decoded one by one."""

    data: LabelledSet | FeatureSet

    def __len__(self) -> int:
        return len(self.data)

    def __getitems__(self, rows: Sequence[int]) -> Batch:
        """The batch of these examples: inputs (B, ...) as they are stored, labels (B,) int64."""
        index = torch.as_tensor(rows, dtype=torch.int64)
        if isinstance(self.data, FeatureSet):
            return self.data.features[index].float(), self.data.labels[index]  # they may be stored in half precision
        if isinstance(self.data, ArraySet) and self.data.transform is None:
            return self.data.inputs[index], self.data.labels[index]
        return torch.stack([self.data[row][0] for row in rows]), self.data.labels[index]


def _as_is(batch: Any) -> Any:
    return batch


def num_workers(data: LabelledSet | FeatureSet) -> int:
    """Processes that decode images, one a core and at most eight; what lies in memory needs none."""
    in_memory = isinstance(data, FeatureSet | ArraySet)
    return 0 if in_memory else min(8, len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 4)


def loader(
    data: LabelledSet | FeatureSet,
    *,
    batch_size: int,
    shuffle: bool = False,
    seed: int = 0,
    num_replicas: int = 1,
    rank: int = 0,
    workers: int | None = None,
) -> DataLoader[Any]:
    """Batches of a set for one of ``num_replicas`` processes.

    The order depends on seed and epoch alone. Step t of all processes together holds the examples that step t of one
    process with the same global batch would.

    Args:
        data: examples in memory, on disk, or features.
        batch_size: examples a batch of this process.
        shuffle: a new order each epoch; an incomplete last batch is then left out, unless it is the only one.
        seed: of the order.
        num_replicas: how many processes share the data.
        rank: which of them this is.
        workers: processes that decode images; None chooses.
    """
    sampler: DistributedSampler[Any] = DistributedSampler(
        Batches(data),
        num_replicas=num_replicas,
        rank=rank,
        shuffle=shuffle,
        seed=seed,
        drop_last=shuffle and len(data) >= batch_size * num_replicas,  # or examples would be repeated to fill a batch
    )
    workers = num_workers(data) if workers is None else workers
    return DataLoader(
        Batches(data),
        batch_sampler=BatchSampler(sampler, batch_size, drop_last=shuffle and len(sampler) >= batch_size),
        collate_fn=_as_is,
        num_workers=workers,
        persistent_workers=workers > 0,
        pin_memory=torch.cuda.is_available(),
        generator=torch.Generator(),  # leaves the global one alone
    )


class Augmented:
    """Shuffled batches whose inputs are augmented, for a loop that is not Lightning's; each pass has an order of its own.

    An incomplete last batch is left out, as by :func:`loader`.

    Args:
        data: examples as they are stored.
        augment: inputs (B, ...) to inputs, at random, such as :class:`bndl.train.Augment`.
        batch_size: examples a batch.
        seed: of the order.
    """

    def __init__(
        self, data: LabelledSet, augment: Callable[[Tensor], Tensor], *, batch_size: int, seed: int = 0
    ) -> None:
        self.dataset, self.augment, self.passes = data, augment, 0
        self.loader = loader(data, batch_size=batch_size, shuffle=True, seed=seed)

    def __len__(self) -> int:
        return len(self.loader)

    def __iter__(self) -> Iterator[Batch]:
        sampler = getattr(self.loader.batch_sampler, "sampler", None)
        assert isinstance(sampler, DistributedSampler)
        sampler.set_epoch(self.passes)
        self.passes += 1
        return ((self.augment(inputs), labels) for inputs, labels in self.loader)


class Loaders(L.LightningDataModule):
    """Training and validation batches for a trainer; the batch size is that of all processes together.

    Args:
        train: what to learn from.
        val: what to choose the epoch by.
        batch_size: examples a step, all processes together; must be a multiple of their number.
        seed: of the order.
        workers: processes that decode images, for each process of the trainer; None chooses.
    """

    def __init__(
        self,
        train: LabelledSet | FeatureSet,
        val: LabelledSet | FeatureSet,
        *,
        batch_size: int,
        seed: int = 0,
        workers: int | None = None,
    ) -> None:
        super().__init__()
        if not len(train) or not len(val):
            raise InputError(f"there are {len(train)} training and {len(val)} validation examples: both are needed.")
        self.parts = {"train": train, "val": val}
        self.batch_size, self.seed, self.workers = batch_size, seed, workers

    @property
    def num_val(self) -> int:
        """Validation examples of all processes together."""
        return len(self.parts["val"])

    def train_dataloader(self) -> DataLoader[Any]:
        """Shuffled batches."""
        return self._loader("train", shuffle=True)

    def val_dataloader(self) -> DataLoader[Any]:
        """Batches in order."""
        return self._loader("val", shuffle=False)

    def _loader(self, part: str, *, shuffle: bool) -> DataLoader[Any]:
        world, rank = (self.trainer.world_size, self.trainer.global_rank) if self.trainer else (1, 0)
        if self.batch_size % world:
            raise InputError(f"a batch of {self.batch_size} cannot be shared by {world} processes: choose a multiple.")
        return loader(
            self.parts[part],
            batch_size=self.batch_size // world,
            shuffle=shuffle,
            seed=self.seed,
            num_replicas=world,
            rank=rank,
            workers=self.workers,
        )

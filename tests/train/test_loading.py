"""Batches: the same as item by item, in an order of seed and epoch alone, shared by processes without loss."""

from itertools import chain
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image

from bndl.data import ArraySet, FolderSet, LabelledSet, as_float, load
from bndl.errors import InputError
from bndl.features import FeatureSet
from bndl.train import Augmented, Loaders, loader
from bndl.train.loading import Batches


def images(num: int, *, num_classes: int = 3) -> ArraySet:
    """Images that can be told apart: pixel (0, 0) is the example's number."""
    pixels = torch.zeros(num, 1, 4, 4, dtype=torch.uint8)
    pixels[:, 0, 0, 0] = torch.arange(num)
    names = tuple(f"class {label}" for label in range(num_classes))
    return ArraySet("numbered", torch.arange(num) % num_classes, names, pixels)


def numbers(batches) -> list[list[int]]:
    return [inputs[:, 0, 0, 0].tolist() for inputs, _ in batches]


def flat(lists) -> list[int]:
    return list(chain.from_iterable(lists))


def epoch_of(data, epoch: int, **given) -> list[list[int]]:
    batches = loader(data, shuffle=True, **given)
    batches.batch_sampler.sampler.set_epoch(epoch)
    return numbers(batches)


@pytest.fixture
def folder_set(tmp_path) -> LabelledSet:
    generator = np.random.default_rng(0)
    for number in range(12):
        place = tmp_path / ("ant", "bee", "cat")[number % 3]
        place.mkdir(exist_ok=True)
        Image.fromarray(generator.integers(0, 256, (9, 11, 3), dtype=np.uint8)).save(place / f"{number}.png")
    whole = load(tmp_path, split="train")
    assert isinstance(whole, FolderSet)
    return whole


# -------------------------------------------------------------------------------------------------------- what they hold


@pytest.mark.parametrize("kind", ["array", "transformed array", "folder", "transformed folder"])
def test_a_batch_is_its_items(kind, folder_set):
    data = images(12) if "array" in kind else folder_set
    if "transformed" in kind:
        data = data.transformed(as_float)
    rows = [5, 0, 5, len(data) - 1]
    inputs, labels = Batches(data).__getitems__(rows)
    assert len(Batches(data)) == len(data)
    assert inputs.dtype == (torch.float32 if "transformed" in kind else torch.uint8)
    assert torch.equal(inputs, torch.stack([data[row][0] for row in rows]))
    assert torch.equal(labels, torch.tensor([data[row][1] for row in rows]))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_a_batch_of_features_is_its_rows(dtype):
    generator = torch.Generator().manual_seed(0)
    data = FeatureSet(torch.randn(10, 4, generator=generator).to(dtype), torch.arange(10) % 3)
    inputs, labels = Batches(data).__getitems__([7, 2, 2])
    assert inputs.dtype == torch.float32
    assert torch.equal(inputs, data.features[[7, 2, 2]].float())
    assert torch.equal(labels, data.labels[[7, 2, 2]])


@pytest.mark.slow
def test_workers_give_what_one_process_gives(folder_set):
    alone = list(loader(folder_set, batch_size=3, shuffle=True, seed=1, workers=0))
    helped = list(loader(folder_set, batch_size=3, shuffle=True, seed=1, workers=2))
    assert len(alone) == len(helped) >= 2
    for (inputs, labels), (same_inputs, same_labels) in zip(alone, helped, strict=True):
        assert torch.equal(inputs, same_inputs)
        assert torch.equal(labels, same_labels)


def test_what_lies_in_memory_needs_no_workers(folder_set):
    features = FeatureSet(torch.zeros(4, 2), torch.zeros(4, dtype=torch.int64))
    assert loader(images(4), batch_size=2).num_workers == 0
    assert loader(features, batch_size=2).num_workers == 0
    assert loader(folder_set, batch_size=2).num_workers > 0
    assert loader(folder_set, batch_size=2, workers=0).num_workers == 0


# -------------------------------------------------------------------------------------------------------------- the order


def test_the_order_is_of_seed_and_epoch_alone():
    data, order = images(40), {}
    for seed in (0, 1):
        for epoch in (0, 1, 2):
            torch.manual_seed(seed + 10 * epoch)  # the caller's own state must not matter
            order[seed, epoch] = epoch_of(data, epoch, batch_size=8, seed=seed)
            torch.manual_seed(99)
            assert epoch_of(data, epoch, batch_size=8, seed=seed) == order[seed, epoch]
    for seed in (0, 1):
        assert len({str(order[seed, epoch]) for epoch in (0, 1, 2)}) == 3
    assert order[0, 0] != order[1, 0]
    assert all(sorted(flat(batches)) == list(range(40)) for batches in order.values())


def test_without_shuffling_all_come_once_and_in_order():
    assert numbers(loader(images(10), batch_size=4)) == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    assert numbers(loader(images(3), batch_size=4)) == [[0, 1, 2]]


@pytest.mark.parametrize(
    ("num", "batch_size", "sizes"),
    [(10, 4, [4, 4]), (8, 4, [4, 4]), (4, 4, [4]), (3, 4, [3]), (1, 4, [1]), (5, 4, [4])],
)
def test_an_incomplete_last_batch_is_left_out_unless_it_is_the_only_one(num, batch_size, sizes):
    batches = loader(images(num), batch_size=batch_size, shuffle=True)
    assert len(batches) == len(sizes)
    assert [len(batch) for batch in numbers(batches)] == sizes


def test_what_is_left_out_is_another_each_epoch():
    seen = [flat(epoch_of(images(10), epoch, batch_size=4)) for epoch in range(12)]
    assert set().union(*seen) == set(range(10))


# ------------------------------------------------------------------------------------------------------- many processes


@pytest.mark.parametrize("num_replicas", [2, 4])
@pytest.mark.parametrize(("num", "global_batch"), [(48, 8), (48, 48), (51, 8), (60, 16)])
def test_a_step_of_many_processes_is_a_step_of_one(num, global_batch, num_replicas):
    data = images(num)
    for epoch in (0, 3):
        alone = epoch_of(data, epoch, batch_size=global_batch, seed=7)
        shares = [
            epoch_of(data, epoch, batch_size=global_batch // num_replicas, seed=7, num_replicas=num_replicas, rank=rank)
            for rank in range(num_replicas)
        ]
        together = [sorted(flat(step)) for step in zip(*shares, strict=True)]
        assert together == [sorted(step) for step in alone]
        if num % global_batch == 0:
            assert sorted(flat(together)) == list(range(num))


def test_a_rest_that_nearly_fills_a_batch_makes_no_extra_step_on_two_processes():
    data = images(15)
    alone = epoch_of(data, 0, batch_size=8)
    shares = [epoch_of(data, 0, batch_size=4, num_replicas=2, rank=rank) for rank in (0, 1)]
    assert [len(share) for share in shares] == [len(alone)] * 2 == [1, 1]


def data_module(*, batch_size: int, world_size: int = 1, rank: int = 0, num: int = 24) -> Loaders:
    module = Loaders(images(num), images(9), batch_size=batch_size, seed=3)
    module.trainer = SimpleNamespace(world_size=world_size, global_rank=rank)
    return module


def test_the_batch_size_is_that_of_all_processes():
    alone = numbers(data_module(batch_size=8).train_dataloader())
    shares = [numbers(data_module(batch_size=8, world_size=4, rank=rank).train_dataloader()) for rank in range(4)]
    assert [len(batch) for batch in alone] == [8] * 3
    assert all(len(batch) == 2 for share in shares for batch in share)
    assert [sorted(flat(step)) for step in zip(*shares, strict=True)] == [sorted(step) for step in alone]


def test_loaders_validate_on_each_example_once_and_train_in_a_new_order():
    module = data_module(batch_size=4)
    assert flat(numbers(module.val_dataloader())) == list(range(9))
    train = module.train_dataloader()
    order = flat(numbers(train))
    assert order != list(range(24))
    assert order == flat(epoch_of(images(24), 0, batch_size=4, seed=3))


def test_two_processes_validate_on_every_example():
    shares = [flat(numbers(data_module(batch_size=4, world_size=2, rank=r).val_dataloader())) for r in (0, 1)]
    assert set(shares[0]) | set(shares[1]) == set(range(9))


@pytest.mark.parametrize("part", ["train_dataloader", "val_dataloader"])
def test_a_batch_that_cannot_be_shared(part):
    with pytest.raises(InputError, match=r"^a batch of 10 cannot be shared by 4 processes: choose a multiple\.$"):
        getattr(data_module(batch_size=10, world_size=4), part)()


@pytest.mark.parametrize(("num_train", "num_val"), [(0, 3), (3, 0)])
def test_nothing_to_learn_from_or_to_choose_by(num_train, num_val):
    words = f"^there are {num_train} training and {num_val} validation examples: both are needed"
    with pytest.raises(InputError, match=words):
        Loaders(images(num_train), images(num_val), batch_size=2)


def test_augmented_batches_have_an_order_for_each_pass_and_change_the_inputs():
    data = images(6)
    batches = Augmented(data, lambda inputs: inputs + 100, batch_size=2, seed=0)
    assert len(batches) == 3
    assert batches.dataset is data
    first, second = (flat(numbers(batches)) for _ in range(2))
    assert sorted(first) == sorted(second) == list(range(100, 106))
    assert first != second
    assert flat(numbers(Augmented(data, lambda inputs: inputs + 100, batch_size=2, seed=0))) == first

"""Splits: a partition, stratified, seeded, and the same after being written down."""

import json

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from bndl.data import SplitPlan, stratified_split
from bndl.errors import InputError

SHARES = {"val": 0.1, "test": 0.2}


@given(
    counts=st.lists(st.integers(3, 60), min_size=1, max_size=6),
    val=st.floats(0.01, 0.49),
    test=st.floats(0.01, 0.49),
    seed=st.integers(0, 2**31),
)
def test_a_partition_with_each_class_everywhere_near_its_share(
    counts: list[int], val: float, test: float, seed: int
) -> None:
    labels = np.random.default_rng(seed).permutation(np.repeat(np.arange(len(counts)), counts))
    plan = stratified_split(labels, {"val": val, "test": test}, seed=seed)
    assert sorted(np.concatenate(list(plan.indices.values())).tolist()) == list(range(len(labels)))
    for label, count in enumerate(counts):
        have = {part: int((labels[chosen] == label).sum()) for part, chosen in plan.indices.items()}
        assert min(have.values()) >= 1
        assert have["val"] <= max(1, count * val + 0.5)
        if count * val >= 1 and have["train"] > 1:
            assert abs(have["val"] - count * val) <= 1


def test_shares_are_exact_where_they_can_be() -> None:
    labels = torch.arange(10).repeat(100)
    plan = stratified_split(labels, SHARES)
    for part, each in (("val", 10), ("test", 20), ("train", 70)):
        assert labels[torch.from_numpy(plan.indices[part])].bincount().tolist() == [each] * 10


def test_the_seed_decides_and_nothing_else() -> None:
    labels = torch.arange(10).repeat(30)
    first = stratified_split(labels, SHARES, seed=3).to_json()
    np.random.seed(0)
    torch.manual_seed(0)
    before = (np.random.get_state()[1].tolist(), torch.get_rng_state().tolist())  # type: ignore[index, union-attr]
    assert stratified_split(labels, SHARES, seed=3).to_json() == first
    assert (np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()) == before  # type: ignore[index, union-attr]
    assert stratified_split(labels, SHARES, seed=4).to_json()["indices"] != first["indices"]


def test_written_down_and_read_back() -> None:
    labels = torch.arange(4).repeat(25)
    plan = stratified_split(labels, SHARES, seed=5)
    again = SplitPlan.from_json(json.loads(json.dumps(plan.to_json())))
    again.check(labels)
    assert again.to_json() == plan.to_json()
    with pytest.raises(InputError, match="100 other examples than these 99"):
        again.check(labels[1:])
    with pytest.raises(InputError, match="other examples"):
        again.check(labels.flip(0))


def test_a_spoilt_record() -> None:
    record = stratified_split(torch.arange(4).repeat(25), SHARES).to_json()
    record["indices"]["val"][0] = record["indices"]["train"][0]
    with pytest.raises(InputError, match="every example exactly once"):
        SplitPlan.from_json(record)
    with pytest.raises(InputError, match="no split record"):
        SplitPlan.from_json({"seed": 1})


def test_tiny_class() -> None:
    with pytest.raises(InputError, match=r"Class 'owl' has 2 example\(s\), too few .* train, val, test"):
        stratified_split([0] * 9 + [1] * 2, SHARES, classes=("ant", "owl"))
    plan = stratified_split([0] * 9 + [1] * 3, SHARES)
    assert all((chosen >= 9).sum() == 1 for chosen in plan.indices.values())


@pytest.mark.parametrize("shares", [{"val": 0.0}, {"val": 1.0}, {"val": 0.6, "test": 0.5}, {"val": -0.1}])
def test_wrong_shares(shares: dict[str, float]) -> None:
    with pytest.raises(InputError, match="above 0 and add up to less than 1"):
        stratified_split([0, 1] * 10, shares)


def test_large_shares_of_a_small_class_leave_one_for_train() -> None:
    plan = stratified_split([0] * 4 + [1] * 4, {"val": 0.45, "test": 0.45})
    assert {part: len(chosen) for part, chosen in plan.indices.items()} == {"train": 2, "val": 2, "test": 4}


def test_no_labels() -> None:
    with pytest.raises(InputError, match="N > 0"):
        stratified_split([], SHARES)

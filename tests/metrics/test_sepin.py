"""SEPIN: the one-pass leave-one-out equals deleting columns, and the values mean what they should.

Run as a script, this file is one of two processes: ``test_sepin.py RANK STORE OUT``.
"""

import math
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import bndl
import bndl.metrics
from bndl.data import ArraySet, load
from bndl.errors import HeadError, InputError
from bndl.metrics.sepin import Sepin, info_nce, information_sums, sepin, sepin_of


def views(
    num: int, num_features: int, *, seed: int = 0, noise: float = 0.5, relu: bool = True
) -> tuple[Tensor, Tensor]:
    """Independent features, seen twice with noise of their own."""
    generator = torch.Generator().manual_seed(seed)
    shared = torch.randn(num, num_features, generator=generator)
    pair = [shared + noise * torch.randn(num, num_features, generator=generator) for _ in range(2)]
    one, other = (view.relu() if relu else view for view in pair)
    return one, other


def deleted(u: Tensor, i: int) -> Tensor:
    return torch.cat([u[:, :i], u[:, i + 1 :]], dim=1)


def naive(u: Tensor, v: Tensor, *, temperature: float) -> Tensor:
    """Delete the column, compute the bound again."""
    full = info_nce(u, v, temperature=temperature)
    return torch.stack(
        [full - info_nce(deleted(u, i), deleted(v, i), temperature=temperature) for i in range(u.size(1))]
    )


@pytest.mark.parametrize("temperature", [0.02, 0.2, 1.0])
@pytest.mark.parametrize("relu", [True, False])
@pytest.mark.parametrize("num_features", [2, 7, 20])
def test_one_pass_is_deleting_each_column(temperature, relu, num_features):
    u, v = views(40, num_features, relu=relu)
    ours = sepin(u, v, temperature=temperature, batch_size=40).values
    torch.testing.assert_close(ours, naive(u, v, temperature=temperature), atol=1e-5, rtol=1e-5)


def test_the_bound_is_the_cross_entropy_of_finding_the_partner():
    u, v = views(30, 8)
    logits = nn.functional.normalize(u) @ nn.functional.normalize(v).t() / 0.3
    loss = nn.functional.cross_entropy(logits, torch.arange(30))
    assert float(info_nce(u, v, temperature=0.3)) == pytest.approx(math.log(30) - float(loss), abs=1e-5)
    same = torch.eye(30)
    assert 0.999 * math.log(30) < float(info_nce(same, same, temperature=0.05)) <= math.log(30)


@given(seed=st.integers(0, 1000), concentration=st.floats(0, 8), density=st.floats(0.1, 1))
@settings(max_examples=40, deadline=None)
def test_it_holds_for_sparse_vectors_and_for_those_of_nearly_one_feature(seed, concentration, density):
    u, v = views(24, 6, seed=seed)
    generator = torch.Generator().manual_seed(seed)
    kept = torch.rand(24, 6, generator=generator) < density
    u, v = u.double() * kept, v.double() * kept
    u[:, 0] *= 10**concentration
    v[:, 0] *= 10**concentration
    u[u < 1e-5 * u.amax(dim=1, keepdim=True)] = 0  # what counts as nothing would be something to the naive way
    v[v < 1e-5 * v.amax(dim=1, keepdim=True)] = 0
    ours = sepin(u, v, batch_size=24).values
    torch.testing.assert_close(ours, naive(u, v, temperature=0.2), atol=1e-5, rtol=1e-5)


def test_vectors_of_one_feature_alone_have_similarity_zero_without_it():
    u = torch.eye(4)
    values = sepin(u, u, temperature=0.5, batch_size=4).values
    # without feature i, image i is like none: uniform over 4; the others see e^(1/t) for themselves and 1 for three
    full = math.log(4) + math.log(math.exp(2) / (math.exp(2) + 3))
    without = (3 * full + 0) / 4
    torch.testing.assert_close(values, torch.full((4,), full - without, dtype=torch.float64))


def test_dead_features_and_dead_images_give_zero_and_no_nan():
    u, v = views(50, 10)
    u[:, 3] = v[:, 3] = 0
    u[7] = v[8] = 0
    values = sepin(u, v, batch_size=25).values
    assert values.isfinite().all()
    assert values[3] == 0
    assert (values != 0).sum() == 9
    nothing = sepin(torch.zeros(6, 3), torch.zeros(6, 3)).values
    assert torch.equal(nothing, torch.zeros(3, dtype=torch.float64))
    assert torch.equal(sepin(torch.rand(6, 1), torch.rand(6, 1)).values.isfinite(), torch.tensor([True]))


def test_a_dead_feature_changes_no_other():
    u, v = views(50, 10)
    wide = [torch.cat([view, torch.zeros(50, 5)], dim=1) for view in (u, v)]
    torch.testing.assert_close(sepin(*wide).values[:10], sepin(u, v).values, atol=1e-12, rtol=0)


@given(seed=st.integers(0, 100))
@settings(max_examples=15, deadline=None)
def test_permuting_features_permutes_values_and_scale_does_not_matter(seed):
    u, v = views(60, 9, seed=seed)
    generator = torch.Generator().manual_seed(seed)
    order = torch.randperm(9, generator=generator)
    values = sepin(u, v, batch_size=30).values
    torch.testing.assert_close(sepin(u[:, order], v[:, order], batch_size=30).values, values[order], atol=1e-6, rtol=0)
    scales = [10 ** (6 * torch.rand(60, 1, generator=generator) - 3) for _ in range(2)]
    torch.testing.assert_close(sepin(u * scales[0], v * scales[1], batch_size=30).values, values, atol=1e-6, rtol=0)
    torch.testing.assert_close(sepin(u * 1e30, v * 1e-30, batch_size=30).values, values, atol=1e-6, rtol=0)


def test_independent_features_say_something_and_a_repeated_one_little():
    u, v = views(2000, 8, noise=0.1)
    alone = sepin(u, v).values
    assert (alone > 0.05).all()
    doubled = sepin(torch.cat([u, u[:, :1]], dim=1), torch.cat([v, v[:, :1]], dim=1)).values
    assert doubled[0] == pytest.approx(float(doubled[8]), abs=1e-6)
    assert doubled[0] < 0.5 * alone[0]
    assert doubled[0] < 0.5 * doubled[1:8].min()


def test_noise_says_nothing():
    u, v = views(2000, 8, noise=0.1)
    generator = torch.Generator().manual_seed(1)
    noisy = [torch.cat([view, torch.rand(2000, 1, generator=generator)], dim=1) for view in (u, v)]
    values = sepin(*noisy).values
    assert values[8] < 0
    assert (values[:8] > 0).all()


def test_at_k_is_the_mean_of_the_largest_and_never_grows():
    u, v = views(400, 30)
    result = sepin(u, v)
    ordered = result.values.sort(descending=True).values
    assert result.at(1) == float(ordered[0])
    assert result.at(10) == pytest.approx(float(ordered[:10].mean()), rel=1e-12)
    curve = [result.at(k) for k in (1, 2, 5, 10, 20, 30)]
    assert curve == sorted(curve, reverse=True)
    assert result.at(1000) == result.at(30) == pytest.approx(result.all, rel=1e-12)
    with pytest.raises(InputError, match="k >= 1"):
        result.at(0)


def test_batches_are_of_equal_size_and_averaged():
    u, v = views(70, 5)
    halves = [information_sums(u[part], v[part]) for part in (slice(0, 35), slice(35, 70))]
    torch.testing.assert_close(sepin(u, v, batch_size=64).values, sum(halves) / 70, atol=1e-12, rtol=0)


@pytest.mark.parametrize(
    ("u", "v", "options", "message"),
    [
        (torch.rand(4, 3), torch.rand(4, 2), {}, "one size"),
        (torch.rand(4), torch.rand(4), {}, "one size"),
        (torch.rand(0, 3), torch.rand(0, 3), {}, "nothing to measure"),
        (torch.full((4, 3), math.nan), torch.rand(4, 3), {}, "NaN"),
        (torch.rand(4, 3), torch.rand(4, 3), {"temperature": 0.0}, "at least 0.02"),
        (torch.rand(4, 3), torch.rand(4, 3), {"batch_size": 1}, "negatives"),
    ],
)
def test_what_makes_no_sense_is_told(u, v, options, message):
    with pytest.raises(InputError, match=message):
        sepin(u, v, **options)


class Shift(nn.Module):
    """An augmentation: a little brighter or darker, at random."""

    def forward(self, images: Tensor) -> Tensor:
        assert images.is_floating_point()
        assert images.max() <= 1
        return images * (0.8 + 0.2 * torch.rand(len(images), 1, 1, 1))


@pytest.fixture(scope="module")
def digits() -> ArraySet:
    found = load("digits", split="train")
    assert isinstance(found, ArraySet)
    return found


@pytest.fixture
def dense() -> nn.Module:
    with torch.random.fork_rng([]):
        torch.manual_seed(0)
        return nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.ReLU(), nn.Dropout(0.5), nn.Linear(16, 10))


def test_a_model_before_and_after_its_conversion_has_the_same_features(dense, digits):
    before = sepin_of(dense, digits, augment=Shift(), num_images=300)
    after = sepin_of(bndl.convert(dense), digits, augment=Shift(), num_images=300)
    assert before.values.size() == (16,)
    assert torch.equal(before.values, after.values)
    assert before.values.max() > 0


def test_the_seed_decides_and_the_global_generator_is_left_alone(dense, digits):
    dense.train()
    state = torch.get_rng_state()
    first = sepin_of(dense, digits, augment=Shift(), num_images=200, seed=3)
    assert torch.equal(torch.get_rng_state(), state)
    assert dense.training
    torch.rand(5)
    again = sepin_of(dense, digits, augment=Shift(), num_images=200, seed=3)
    other = sepin_of(dense, digits, augment=Shift(), num_images=200, seed=4)
    assert torch.equal(first.values, again.values)
    assert not torch.equal(first.values, other.values)


def test_it_is_theta_that_counts(dense, digits):
    model = bndl.convert(dense)
    model[4].alpha_theta = 1e6  # no feature is left
    assert torch.equal(sepin_of(model, digits, augment=Shift(), num_images=50).values, torch.zeros(16).double())
    signed = bndl.convert(nn.Sequential(nn.Flatten(), nn.Linear(64, 5), nn.Linear(5, 10)))
    assert len(sepin_of(signed, digits, augment=Shift(), num_images=50).values) == 10
    with pytest.raises(HeadError):
        sepin_of(nn.Flatten(), digits, augment=Shift())


def test_no_images_is_told(dense, digits):
    with pytest.raises(InputError, match="needs images"):
        sepin_of(dense, digits, augment=Shift(), num_images=0)


def test_the_metric_is_the_function():
    u, v = views(90, 12)
    metric = bndl.metrics.SEPIN(12, temperature=0.3)
    with pytest.raises(InputError), pytest.warns(UserWarning, match="before the ``update``"):
        metric.compute()
    for part in (slice(0, 30), slice(30, 60), slice(60, 90)):
        metric.update(u[part], v[part])
    expected = sepin(u, v, temperature=0.3, batch_size=30)
    result = metric.compute()
    assert isinstance(result, Sepin)
    torch.testing.assert_close(result.values, expected.values, atol=1e-12, rtol=0)
    assert result.at(3) == pytest.approx(expected.at(3), rel=1e-9)
    metric.reset()
    metric.update(u[:30], v[:30])
    torch.testing.assert_close(
        metric.compute().values, sepin(u[:30], v[:30], temperature=0.3).values, atol=1e-12, rtol=0
    )
    with pytest.raises(InputError, match="12 features"):
        metric.update(u[:, :5], v[:, :5])


@pytest.mark.slow
def test_two_processes_add_up_to_one(tmp_path: Path):
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    commands = [[sys.executable, __file__, str(rank), str(tmp_path / "store"), str(tmp_path)] for rank in range(2)]
    processes = [subprocess.Popen(command, env=environment) for command in commands]
    try:
        assert [process.wait(timeout=500) for process in processes] == [0, 0]
    finally:
        for process in processes:
            process.kill()
    u, v = views(80, 12)
    expected = sepin(u, v, batch_size=20).values
    for rank in range(2):
        torch.testing.assert_close(torch.load(tmp_path / f"{rank}.pt"), expected, atol=1e-12, rtol=0)


def one_of_two(rank: int, store: str, out: Path) -> None:
    torch.distributed.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    u, v = views(80, 12)
    metric = bndl.metrics.SEPIN(12)
    for start in (0, 40):
        part = slice(start + 20 * rank, start + 20 * rank + 20)
        metric.update(u[part], v[part])
    torch.save(metric.compute().values, out / f"{rank}.pt")
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    torch.set_num_threads(1)
    one_of_two(int(sys.argv[1]), sys.argv[2], Path(sys.argv[3]))

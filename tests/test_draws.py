"""Shared draws: the seed decides the bits, the batch does not, and many of them approach the closed form."""

import itertools
import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor

from bndl import DecisionLayer, draws
from bndl.draws import TILE, SharedDraws, blocks, default_num_samples, pad_columns

FEW = settings(deadline=None, max_examples=25)
THETA, PHI = ("feature", "sample", "entry"), ("row", "entry")
KINDS = list(itertools.product(THETA, PHI))


def make(in_features: int = 5, out_features: int = 3, **arguments: Any) -> DecisionLayer:
    """A layer whose shapes differ from entry to entry and, where they may, from example to example."""
    with torch.random.fork_rng(), torch.no_grad():
        torch.manual_seed(0)
        layer = DecisionLayer(in_features, out_features, **({"init_shape": 3.0} | arguments))
        for parameter in layer.parameters():
            parameter += 0.3 * torch.randn(parameter.size())
    return layer.eval().requires_grad_(False)


def rows(count: int, in_features: int = 5, seed: int = 0) -> Tensor:
    return torch.rand(count, in_features, generator=torch.Generator().manual_seed(seed)) * 2


def sampled(layer: DecisionLayer, h: Tensor, num_samples: int, *, seed: int = 0) -> Tensor:
    """All sampled logits (B, S, C), tile by tile."""
    shared = SharedDraws(layer, num_samples, seed=seed)
    parts = [torch.cat([part.logits(layer.theta(tile)) for part in shared.slices()], dim=1) for tile in blocks(h)]
    return torch.cat(parts)[: len(h)]


@pytest.mark.parametrize(("theta_shape", "phi_shape"), KINDS)
def test_many_draws_approach_the_closed_form(theta_shape, phi_shape):
    layer, h = make(theta_shape=theta_shape, phi_shape=phi_shape), rows(4)
    drawn = sampled(layer, h, 20_000, seed=1)
    theta, phi = layer.theta(h), layer.phi()
    m, v, P, V = theta.mean, theta.variance, phi.mean, phi.variance
    own = torch.diag_embed((v + m.square()) @ V.t())
    covariance = torch.einsum("bk,ck,dk->bcd", v, P, P) + own
    spread = covariance.diagonal(dim1=1, dim2=2).sqrt()
    assert ((drawn.mean(1) - layer(h)).abs() < 0.03 * spread).all()
    centred = drawn - drawn.mean(1, keepdim=True)
    found = centred.mT @ centred / drawn.size(1)
    assert ((found - covariance).abs() < 0.06 * spread[:, :, None] * spread[:, None, :]).all()


@pytest.mark.parametrize(("theta_shape", "phi_shape"), KINDS)
def test_the_seed_decides_the_bits(theta_shape, phi_shape):
    layer, h = make(theta_shape=theta_shape, phi_shape=phi_shape), rows(10)
    before = torch.get_rng_state()
    first = sampled(layer, h, 30, seed=4)
    assert first.size() == (10, 30, 3)
    assert torch.equal(sampled(layer, h, 30, seed=4), first)
    assert (sampled(layer, h, 30, seed=5) != first).all()
    assert torch.equal(torch.get_rng_state(), before)


@FEW
@given(
    kind=st.sampled_from(KINDS),
    dense=st.booleans(),
    dims=st.tuples(st.integers(1, 40), st.integers(1, 20)),
    count=st.integers(2, 3 * TILE),
    budget=st.sampled_from([1, 600, 2**26]),
    seed=st.integers(0, 999),
)
@example(kind=("entry", "row"), dense=False, dims=(5, 2), count=70, budget=2**26, seed=0)
@example(kind=("feature", "row"), dense=True, dims=(5, 2), count=70, budget=2**26, seed=0)
def test_an_example_never_depends_on_its_batch(kind, dense, dims, count, budget, seed):
    """To the last bit: wherever it stands, whatever rows are around it, however many slices the draws come in."""
    layer, h = make(*dims, theta_shape=kind[0], phi_shape=kind[1], dense_map=dense), rows(count, dims[0])
    order = torch.randperm(count, generator=torch.Generator().manual_seed(seed))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(draws, "_SLICE", budget)
        patch.setattr(draws, "_HELD", budget)
        together = sampled(layer, h, 9)
        assert torch.equal(sampled(layer, h[order], 9), together[order])
        assert torch.equal(sampled(layer, h[order[:1]], 9), together[order[:1]])


@pytest.mark.parametrize("held", [0, 2**26])
@pytest.mark.parametrize(("theta_shape", "phi_shape"), KINDS)
def test_a_small_budget_draws_in_slices_as_many_as_asked_for(theta_shape, phi_shape, held, monkeypatch):
    """Slices share one generator, so their bits are not those of one slice; their number and their law are."""
    layer = make(theta_shape=theta_shape, phi_shape=phi_shape)
    theta, largest = layer.theta(rows(TILE)), draws.BLOCK * layer.out_features
    monkeypatch.setattr(draws, "_HELD", held)
    monkeypatch.setattr(draws, "_SLICE", 7 * largest)
    shared = SharedDraws(layer, 40, seed=2)
    first = [part.logits(theta) for part in shared.slices()]
    assert [part.size() for part in first] == [(TILE, size, 3) for size in (7, 7, 7, 7, 7, 5)]
    assert torch.cat(first, dim=1)[0, :, 0].unique().numel() == 40  # no slice repeats another's draws
    assert all(torch.equal(one, part.logits(theta)) for one, part in zip(first, shared.slices(), strict=True))

    monkeypatch.setattr(draws, "_SLICE", 900 * largest)
    sliced = sampled(layer, rows(4), 9_000)
    monkeypatch.undo()
    whole = sampled(layer, rows(4), 9_000)
    error = (whole.var(1) * 2 / 9_000).sqrt()
    assert ((sliced.mean(1) - whole.mean(1)).abs() < 5 * error).all()
    torch.testing.assert_close(sliced.var(1), whole.var(1), rtol=0.15, atol=0)


@pytest.mark.parametrize(("held", "same"), [(0, False), (2**26, True)])
def test_draws_are_kept_only_when_they_fit(held, same, monkeypatch):
    monkeypatch.setattr(draws, "_HELD", held)
    shared = SharedDraws(make(), 5, seed=0)
    assert (next(iter(shared.slices())).weights is next(iter(shared.slices())).weights) == same


def test_the_bias_is_added_once():
    with_bias, without = make(), make(bias=False)
    without.load_state_dict({name: value for name, value in with_bias.state_dict().items() if name != "bias"})
    offset = with_bias.offset()
    assert offset is not None
    torch.testing.assert_close(sampled(with_bias, rows(3), 5), sampled(without, rows(3), 5) + offset)


@pytest.mark.parametrize("theta_shape", THETA)
def test_without_noise_each_draw_is_the_mean(theta_shape):
    layer, h = make(theta_shape=theta_shape), rows(6)
    for name, parameter in layer.named_parameters():
        if "raw_shape" in name or name == "theta_shape_map.bias":
            parameter.fill_(torch.inf)
    torch.testing.assert_close(sampled(layer, h, 5), layer(h)[:, None].expand(6, 5, 3))


@pytest.mark.parametrize("theta_shape", THETA)
def test_layers_in_bfloat16_are_drawn_in_float32(theta_shape):
    layer = make(theta_shape=theta_shape).bfloat16()
    drawn = sampled(layer, rows(6), 4000)
    assert drawn.dtype == torch.float32
    torch.testing.assert_close(drawn.mean(1), layer(rows(6)), rtol=0.1, atol=0.1)


@FEW
@given(count=st.integers(0, 3 * TILE), K=st.integers(1, 5))
def test_blocks_cover_the_rows_once_and_hold_whole_tiles(count, K):
    h = rows(count, K)
    cut = blocks(h)
    assert all(len(block) % TILE == 0 for block in cut)
    assert sum(map(len, cut)) == -(-count // TILE) * TILE
    assert torch.equal(torch.cat(cut)[:count], h)
    assert not torch.cat(cut)[count:].any()


@FEW
@given(dims=st.lists(st.integers(1, 40), min_size=1, max_size=3))
def test_padding_appends_zero_columns_to_a_multiple_of_16(dims):
    matrix = torch.ones(dims)
    padded = pad_columns(matrix)
    extra = padded.size(-1) - dims[-1]
    assert padded.size(-1) % 16 == 0
    assert 0 <= extra < 16
    assert torch.equal(padded, F.pad(matrix, (0, extra)))


@pytest.mark.parametrize("num_samples", [8, 64])
def test_each_of_the_draws_of_an_entry_falls_into_a_part_of_its_own(num_samples):
    """And which draw falls where is another matter for each entry."""
    like, generator = torch.zeros(1), torch.Generator().manual_seed(0)
    strata = draws._Strata(num_samples, 30, 7, like=like, generator=generator)
    logs = torch.cat([strata(range(1)), strata(range(1, num_samples))])
    survival, low = (-logs.exp()).exp().sort(dim=0).values, torch.arange(num_samples)[:, None, None] / num_samples
    assert ((survival > low - 1e-5) & (survival < low + 1 / num_samples + 1e-5)).all()
    orders = strata.orders.float() - strata.orders.float().mean(dim=0)
    alike = (orders.t() @ orders).triu(1).sum() / orders.square().sum()
    assert abs(float(alike)) < 4 / math.sqrt(2 * (num_samples - 1))  # orders that are alike would make logits vary more


def test_stratified_draws_are_nearer_to_the_expectation_than_as_many_independent_ones():
    layer, h = make(64, 10, init_shape=5.0), rows(200, 64)
    theta = draws.posterior(layer, blocks(h)[0])

    def probs(num_samples: int, seed: int, *, stratified: bool) -> Tensor:
        shared = SharedDraws(layer, num_samples, seed=seed, stratified=stratified)
        logits = torch.cat([part.logits(theta) for part in shared.slices()], dim=1)
        return logits.softmax(dim=2).mean(dim=1)

    target = probs(20_000, 99, stratified=False)
    error = {
        kind: sum(float((probs(16, seed, stratified=kind) - target).abs().mean()) for seed in range(5))
        for kind in (True, False)
    }
    assert error[True] < 0.5 * error[False]


@pytest.mark.parametrize(
    ("dims", "expected"),
    [
        ((64, 10), 64),
        ((256, 100), 64),
        ((300, 100), 56),
        ((380, 100), 40),
        ((499, 100), 16),
        ((512, 100), 8),
        ((2048, 1000), 8),
    ],
)
def test_large_heads_are_drawn_less_often(dims, expected):
    with torch.device("meta"):
        layer = DecisionLayer(*dims)
    assert default_num_samples(layer) == expected


def test_a_lone_tile_has_the_bits_that_it_has_among_others():
    """Two threads and many features: where a lone product would be shared out between threads, and add up otherwise."""
    generator, before = torch.Generator().manual_seed(0), torch.get_num_threads()
    tiles = torch.rand(3 * TILE, 1280, generator=generator)
    weight, bias = torch.rand(1280, 48, generator=generator), torch.rand(48, generator=generator)
    torch.set_num_threads(2)
    try:
        for extra in (None, bias):
            assert torch.equal(draws.product(tiles[:TILE], weight, extra), draws.product(tiles, weight, extra)[:TILE])
    finally:
        torch.set_num_threads(before)

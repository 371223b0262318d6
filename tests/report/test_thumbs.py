"""Thumbs: tiles where they say they are, colours where the heat is, and as many as there is room for."""

import base64
import io

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from bndl.report.budget import fit_thumbs
from bndl.report.features import shown_of
from bndl.report.thumbs import Album, heated, shrunk

image = pytest.importorskip("PIL.Image")


def pages(thumbs) -> list[np.ndarray]:
    return [
        np.asarray(image.open(io.BytesIO(base64.b64decode(one.uri.split(",")[1]))).convert("RGB"))
        for one in thumbs.sheets
    ]


def plain(colour: int, side: int) -> torch.Tensor:
    return torch.full((3, side, side), colour, dtype=torch.uint8)


def test_each_tile_is_found_where_it_lies_whatever_its_size():
    album = Album()
    colours = [(7 * number) % 256 for number in range(1100)]
    sides = [48 if number % 5 else 144 for number in range(1100)]
    for number, (colour, side) in enumerate(zip(colours, sides, strict=True)):
        assert album.add(plain(colour, side)) == number
    thumbs = album.sheets(quality=60)
    sheets = pages(thumbs)
    assert [page.shape[1::-1] for page in sheets] == [(one.width, one.height) for one in thumbs.sheets]
    for (sheet, x, y, width, height), colour, side in zip(thumbs.tiles, colours, sides, strict=True):
        assert width == height == side
        own = sheets[sheet][y : y + height, x : x + width].astype(int)
        assert np.abs(own - colour).max() <= 4, "a neighbour bled into the tile"
    assert len(album.sheets(quality=60, count=10).tiles) == 10
    assert album.sheets(quality=60) == thumbs


def test_no_tiles_make_no_sheets():
    assert Album().sheets(quality=80).sheets == ()


def test_images_of_any_kind_are_shrunk():
    generator = torch.Generator().manual_seed(0)
    digits = torch.randint(256, (2, 1, 8, 8), generator=generator, dtype=torch.uint8)
    small = shrunk(digits, 48)
    assert small.size() == (2, 3, 48, 48)
    assert torch.equal(small[0, 0, ::6, ::6], digits[0, 0]), "each pixel of a digit stays a square"
    photo = torch.rand(1, 3, 100, 160, generator=generator)
    assert shrunk(photo, 48).dtype == torch.uint8
    flat = torch.full((1, 3, 224, 224), 77, dtype=torch.uint8)
    assert (shrunk(flat, 144) == 77).all()
    ramp = torch.arange(160).expand(1, 1, 100, 160).to(torch.uint8)  # cut at the centre: columns 30 to 130
    assert 30 <= int(shrunk(ramp, 48).min()) < 33
    assert 126 < int(shrunk(ramp, 48).max()) <= 130


def test_the_heat_is_where_the_colour_is():
    heat = torch.zeros(4, 4)
    heat[1, 2] = 3.0
    shown = heated(plain(100, 48), heat, smooth=False).int()
    spread = (shown.amax(dim=0) - shown.amin(dim=0)).view(4, 12, 4, 12).float().mean(dim=(1, 3))
    assert int(spread.argmax()) == 6
    assert spread.flatten().sort().values[-2] == 0, "no heat, no colour"
    assert torch.equal(heated(plain(100, 48), heat), heated(plain(100, 48), 5 * heat)), "scaled to its own largest"
    weak = heated(plain(100, 48), heat, most=30.0)
    assert (weak.int() - 85).abs().max() < (shown - 85).abs().max()
    assert (heated(plain(100, 48), torch.zeros(4, 4)) == 85).all()


@given(
    values=st.lists(st.floats(-1, 5, width=16), min_size=1, max_size=60),
    top=st.integers(1, 6),
    moderate=st.integers(0, 5),
)
@settings(max_examples=100, deadline=None)
def test_shown_examples_are_active_distinct_and_in_order(values, top, moderate):
    theta = torch.tensor(values)
    shown = shown_of(theta, num_top=top, num_moderate=moderate)
    chosen = [*shown.top, *shown.moderate]
    assert len(set(chosen)) == len(chosen)
    assert all(theta[i] > 0 for i in chosen)
    active = int((theta > 0).sum())
    assert len(shown.top) == min(top, active)
    assert len(shown.moderate) == min(moderate, active - len(shown.top))
    ordered = [float(theta[i]) for i in chosen]
    assert ordered == sorted(ordered, reverse=True)
    assert ordered[: len(shown.top)] == sorted((v for v in theta.tolist() if v > 0), reverse=True)[: len(shown.top)]


def test_moderate_ones_lie_around_the_median_of_the_active():
    theta = torch.cat([torch.arange(1.0, 102.0), torch.zeros(500)])  # the median of the active is 51
    shown = shown_of(theta, num_top=4, num_moderate=3)
    assert [float(theta[i]) for i in shown.top] == [101, 100, 99, 98]
    assert sorted(float(theta[i]) for i in shown.moderate) == [50, 51, 52]


@pytest.mark.parametrize("budget", [40_000, 120_000, 400_000, 10_000_000])
def test_thumbs_fit_the_room_that_there_is(budget):
    album, generator = Album(), torch.Generator().manual_seed(0)
    for _ in range(500):
        album.add(torch.randint(256, (3, 48, 48), generator=generator, dtype=torch.uint8))
    found = fit_thumbs(album, needed=10, budget=budget)
    size = sum(len(one.uri) for one in found.thumbs.sheets)
    assert size <= budget
    assert 10 <= found.count <= 500
    assert len(found.thumbs.tiles) == found.count
    if budget == 10_000_000:
        assert (found.count, found.quality) == (500, 80)
    else:
        assert size > 0.5 * budget, "room was wasted"
    assert fit_thumbs(album, needed=10, budget=budget) == found
    assert fit_thumbs(album, needed=450, budget=1).count == 450

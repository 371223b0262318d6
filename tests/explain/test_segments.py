"""Parts of an image: every pixel belongs to exactly one, numbered without gaps; what stands in for them."""

import importlib

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from bndl import InputError
from bndl.errors import MissingExtraError
from bndl.explain.segments import background, blur, check_segments, grid, patches, segment_means, slic


@given(height=st.integers(1, 40), width=st.integers(1, 40), share=st.floats(0, 1))
def test_a_grid_has_about_as_many_cells_as_asked_for_without_gaps(height, width, share):
    count = max(1, round(share * height * width))
    cells = grid(torch.empty(3, height, width), count=count)
    numbers, sizes = cells.unique(return_counts=True)
    assert cells.size() == (height, width)
    assert numbers.tolist() == list(range(len(numbers)))
    assert len(numbers) <= 2 * count + 2
    assert len(numbers) >= count / 2 - 2
    assert int(sizes.min()) >= 1


def test_the_cells_of_a_grid_are_nearly_square_and_equal():
    cells = grid(torch.empty(3, 160, 160), count=50)
    _, sizes = cells.unique(return_counts=True)
    assert len(sizes) == 49
    assert sizes.max() / sizes.min() < 1.2
    assert grid(torch.empty(1, 10, 40), count=4).unique(dim=0).size() == (1, 40)  # one row of four


def test_patches_are_those_of_a_vit():
    image = torch.arange(8.0 * 12).view(1, 8, 12)
    cut = patches(image, side=4)
    rows = torch.nn.functional.unfold(image[None], 4, stride=4)[
        0
    ].t()  # (patches, pixels) as a ViT's projection sees them
    for number, row in enumerate(rows):
        assert set(image[0][cut == number].tolist()) == set(row.tolist())
    with pytest.raises(InputError, match="do not tile"):
        patches(image, side=5)


@pytest.mark.parametrize("channels", [1, 3, 4])
def test_super_pixels_follow_colours(channels):
    image = torch.zeros(channels, 32, 32)
    image[:, :, 13:] = 5.0  # as the model takes it: no need to lie in [0, 1]
    found = slic(image, count=16)
    assert found.unique().tolist() == list(range(int(found.max()) + 1))
    assert 8 <= int(found.max()) + 1 <= 24
    left, right = found[:, :13].unique(), found[:, 13:].unique()
    assert not set(left.tolist()) & set(right.tolist())
    assert torch.equal(found, slic(image, count=16))


def test_noise_is_cut_into_super_pixels_all_the_same():
    found = slic(torch.rand(3, 32, 32, generator=torch.Generator().manual_seed(0)), count=20)
    assert 10 <= int(found.max()) + 1 <= 30


def test_without_scikit_image_the_message_names_the_extra_and_the_grid(monkeypatch):
    real = importlib.import_module

    def missing(name, *rest):
        if name.startswith("skimage"):
            raise ImportError(name)
        return real(name, *rest)

    monkeypatch.setattr(importlib, "import_module", missing)
    with pytest.raises(MissingExtraError, match=r"segments='grid' needs nothing.*bndl\[explain\]"):
        slic(torch.rand(3, 8, 8), count=4)
    assert int(grid(torch.rand(3, 8, 8), count=4).max()) == 3


def test_means_of_segments_and_their_background():
    image = torch.rand(3, 10, 12)
    cells = grid(image, count=6)
    means = segment_means(image, cells)
    shown = background(image, "mean", segments=cells)
    for m in range(int(cells.max()) + 1):
        torch.testing.assert_close(means[:, m], image[:, cells == m].mean(dim=1))
        torch.testing.assert_close(shown[:, cells == m], means[:, m, None].expand(3, int((cells == m).sum())))
    torch.testing.assert_close(background(image, "mean"), image.mean(dim=(1, 2), keepdim=True).expand(3, 10, 12))
    assert (background(image, "zero") == 0).all()


def test_a_blur_keeps_a_constant_and_the_mean_but_no_detail():
    image = torch.rand(2, 3, 40, 30, generator=torch.Generator().manual_seed(0))
    assert blur(image).size() == image.size()
    torch.testing.assert_close(blur(torch.full((3, 20, 20), 0.7)), torch.full((3, 20, 20), 0.7))
    assert blur(image).std() < 0.2 * image.std()
    torch.testing.assert_close(blur(image).mean(), image.mean(), atol=0.02, rtol=0)
    spot = torch.zeros(1, 41, 41)
    spot[0, 20, 20] = 1
    spread = blur(spot, sigma=2.0)[0]
    torch.testing.assert_close(spread, spread.t())
    torch.testing.assert_close(
        (spread.sum(0) * (torch.arange(41) - 20) ** 2).sum(), torch.tensor(4.0), atol=0.2, rtol=0
    )


def test_segments_of_ones_own_are_renumbered_and_checked():
    image = torch.rand(3, 2, 3)
    assert check_segments(torch.tensor([[5, 5, 9], [5, 7, 9]]), image).tolist() == [[0, 0, 2], [0, 1, 2]]
    with pytest.raises(InputError, match=r"one number a pixel, dims \(2, 3\), got \(3, 2\)"):
        check_segments(torch.zeros(3, 2, dtype=torch.int64), image)
    with pytest.raises(InputError, match="whole numbers"):
        check_segments(torch.zeros(2, 3), image)


@pytest.mark.parametrize("count", [0, 65])
def test_a_count_that_does_not_fit_is_refused(count):
    for cut in (grid, slic):
        with pytest.raises(InputError, match="count must be from 1 to 64"):
            cut(torch.rand(3, 8, 8), count=count)


def test_pixels_that_are_not_finite_are_refused():
    with pytest.raises(InputError, match="NaN or infinite"):
        slic(torch.full((3, 8, 8), torch.nan), count=4)

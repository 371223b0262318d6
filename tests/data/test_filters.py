"""What corruptions are made of, against scipy, Pillow, and the slow way."""

import numpy as np
import PIL.Image
import pytest
import scipy.ndimage
import torch
from torch import Tensor

from bndl.data import filters
from bndl.data.filters import Draws


def photos(num: int = 2, height: int = 16, width: int = 16) -> Tensor:
    return torch.rand(num, 3, height, width, generator=torch.Generator().manual_seed(0))


def close(ours: Tensor, theirs: np.ndarray, *, atol: float = 1e-5) -> None:
    torch.testing.assert_close(ours, torch.from_numpy(np.array(theirs, dtype=np.float32)), atol=atol, rtol=0)


def test_draws_belong_to_the_image():
    whole, some = Draws("0 fog", [3, 4, 5]), Draws("0 fog", [5, 3])
    for kind in ("uniform", "normal"):
        first, second = getattr(whole, kind)(4, 4), getattr(some, kind)(4, 4)
        assert torch.equal(first[[2, 0]], second)
        assert not torch.equal(first[0], first[1])
    assert not torch.equal(Draws("1 fog", [3]).uniform(4), Draws("0 fog", [3]).uniform(4))
    again = Draws("0 fog", [3])
    assert not torch.equal(again.uniform(4), again.uniform(4))


def test_draws_have_their_law():
    draws = Draws("law", range(40))
    assert float(draws.uniform(1000).mean()) == pytest.approx(0.5, abs=0.01)
    assert float(draws.normal(1000).std()) == pytest.approx(1, abs=0.02)
    counts = draws.poisson(torch.full((40, 1000), 4.0))
    assert float(counts.mean()) == pytest.approx(4, abs=0.05)
    assert float(counts.var()) == pytest.approx(4, abs=0.1)


@pytest.mark.parametrize("sigma", [0.05, 0.4, 1.5, 12.0])
def test_gaussian_is_scipy(sigma):
    images = photos(height=16, width=20)
    ours = filters.along(images, filters.gaussian_matrix(16, sigma), filters.gaussian_matrix(20, sigma))
    close(ours, scipy.ndimage.gaussian_filter(images.numpy(), (0, 0, sigma, sigma), mode="reflect", truncate=4.0))


@pytest.mark.parametrize("factor", [1.0, 1.07, 1.25, 2.25, 4.5])
@pytest.mark.parametrize("size", [8, 32, 33])
def test_zoom_is_scipy(factor, size):
    images = photos(1, size, size)
    ours = filters.along(images, filters.zoom_matrix(size, factor), filters.zoom_matrix(size, factor))[0]
    shown = int(np.ceil(size / factor))
    top = (size - shown) // 2
    theirs = scipy.ndimage.zoom(
        images[0, :, top : top + shown, top : top + shown].numpy(), (1, factor, factor), order=1
    )
    cut = (theirs.shape[1] - size) // 2
    close(ours, theirs[:, cut : cut + size, cut : cut + size])


@pytest.mark.parametrize("share", [0.95, 0.85, 0.65, 0.3])
def test_box_is_pillow(share):
    images = photos(1, 32, 32)
    ours = filters.along(images, *[filters.box_matrix(32, int(32 * share))] * 2)[0, 0]
    grey = PIL.Image.fromarray(images[0, 0].numpy())
    small = grey.resize((int(32 * share),) * 2, PIL.Image.Resampling.BOX)
    close(ours, np.asarray(small.resize((32, 32), PIL.Image.Resampling.BOX)))


def test_along_sums_over_pairs():
    images = photos()
    rows, columns = torch.rand(3, 5, 16), torch.rand(3, 7, 16)
    expected = sum(row @ images @ column.t() for row, column in zip(rows, columns, strict=True))
    torch.testing.assert_close(filters.along(images, rows, columns), expected)


@pytest.mark.parametrize(("radius", "alias_blur"), [(0.3, 0.4), (1.5, 0.1), (3, 0.1), (10, 0.5)])
def test_a_disk_is_round_and_its_filter_is_a_correlation(radius, alias_blur):
    kernel = filters.disk_kernel(radius, alias_blur=alias_blur)
    assert float(kernel.sum()) == pytest.approx(1, abs=1e-3)
    assert torch.equal(kernel, kernel.t())
    assert torch.equal(kernel, kernel.flip(0))
    images = photos(1, 12, 14)  # the largest disk reaches beyond the whole image
    theirs = scipy.ndimage.correlate(images[0, 0].numpy(), kernel.numpy(), mode="mirror")
    close(filters.filter_taps(images, kernel)[0, 0], theirs)


def test_motion_leaves_a_fading_trail_along_its_angle():
    dot = torch.zeros(3, 1, 21, 21)
    dot[:, :, 10, 10] = 1
    trails = filters.motion_blur(dot, torch.tensor([0.0, 90.0, 45.0]), radius=3, sigma=2)[:, 0]
    assert torch.equal(trails[0, 10, :4], torch.zeros(4))
    across = trails[0, 10, 4:11]  # a pixel sees what lies ahead of it, so the trail is behind
    assert (across.diff() > 0).all()
    torch.testing.assert_close(trails[1], trails[0].t())
    torch.testing.assert_close(trails.sum(dim=(1, 2)), torch.ones(3))
    assert torch.equal(trails[2] > 0, torch.diag(trails[2].diagonal() > 0))


def test_blurs_keep_a_flat_image_flat():
    flat = torch.full((2, 3, 16, 16), 0.3)
    torch.testing.assert_close(filters.motion_blur(flat, torch.tensor([10.0, -80.0]), radius=9, sigma=2.5), flat)
    torch.testing.assert_close(filters.along(flat, *[filters.gaussian_matrix(16, 2.0)] * 2), flat)
    torch.testing.assert_close(
        filters.filter_taps(flat, filters.disk_kernel(4, alias_blur=0.5)), flat, atol=1e-3, rtol=0
    )


@pytest.mark.parametrize(("height", "width"), [(8, 8), (32, 32), (40, 24)])
def test_plasma_fills_the_range_and_is_rougher_with_less_decay(height, width):
    smooth, rough = (filters.plasma(Draws("p", range(20)), height, width, decay=decay) for decay in (3.0, 1.2))
    for cloud in (smooth, rough):
        assert cloud.size() == (20, height, width)
        assert cloud.min() >= 0
        assert cloud.max() <= 1
    assert rough.diff(dim=2).abs().mean() > 2 * smooth.diff(dim=2).abs().mean()


@pytest.mark.parametrize("reach", [1, 2, 4])
@pytest.mark.parametrize(("height", "width"), [(10, 10), (14, 11)])
def test_pixels_at_once_are_pixels_one_after_another(reach, height, width):
    images = photos(3, height, width)
    ours = filters.jitter(images, Draws("s", range(3)), reach=reach)
    shift = (Draws("s", range(3)).uniform(2, height, width) * 2 * reach).floor().long() - reach
    for number in range(3):
        slow = images[number].clone()
        for row in range(height - reach, reach, -1):
            for column in range(width - reach, reach, -1):
                down, right = shift[number, :, row, column].tolist()
                slow[:, row, column] = slow[:, row + down, column + right]
        assert torch.equal(ours[number], slow)
        assert not torch.equal(ours[number], images[number])

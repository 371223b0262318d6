"""Augmentation: images stay images, each has its own draw, the seed decides, and a crop is a crop."""

import pytest
import torch
from torch import Tensor

from bndl.data import as_float
from bndl.errors import InputError
from bndl.train import Augment
from bndl.train.augment import AUGMENTATIONS

KINDS = ("cifar", "imagenet")


def photos(num: int, side: int, *, channels: int = 3, seed: int = 0) -> Tensor:
    """Noise: no shift of it looks like another, and no pixel is 0."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(1, 256, (num, channels, side, side), generator=generator, dtype=torch.uint8)


def seeded(augment: Augment, images: Tensor, seed: int = 0) -> Tensor:
    torch.manual_seed(seed)
    return augment(images)


def test_the_kinds_are_those_of_a_recipe():
    assert tuple(AUGMENTATIONS) == ("none", "cifar", "imagenet")


@pytest.mark.parametrize("kind", AUGMENTATIONS)
@pytest.mark.parametrize(("channels", "side"), [(1, 8), (3, 32), (3, 7)])
@pytest.mark.parametrize("given", ["uint8", "float"])
def test_images_stay_images(kind, channels, side, given):
    images = photos(5, side, channels=channels)
    augmented = seeded(Augment(kind, side), images if given == "uint8" else as_float(images))
    assert augmented.size() == images.size()
    assert augmented.dtype == torch.float32
    assert augmented.min() >= 0
    assert augmented.max() <= 1 + 1e-6


def test_none_is_the_images_as_floats():
    images = photos(3, 8)
    before = torch.get_rng_state()
    assert torch.equal(Augment("none", 8)(images), as_float(images))
    assert torch.equal(Augment("none", 8)(as_float(images)), as_float(images))
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("kind", KINDS)
def test_bytes_and_floats_are_changed_alike(kind):
    images = photos(4, 16)
    augment = Augment(kind, 16)
    assert torch.equal(seeded(augment, images), seeded(augment, as_float(images)))


@pytest.mark.parametrize("kind", KINDS)
def test_the_global_seed_decides(kind):
    images = photos(6, 16)
    first = seeded(Augment(kind, 16), images, seed=1)
    assert torch.equal(seeded(Augment(kind, 16), images, seed=1), first)
    assert not torch.equal(seeded(Augment(kind, 16), images, seed=2), first)


@pytest.mark.parametrize("kind", KINDS)
def test_each_image_of_a_batch_has_its_own_draw(kind):
    images = photos(1, 16).expand(16, -1, -1, -1)
    augmented = seeded(Augment(kind, 16), images)
    assert len({image.numpy().tobytes() for image in augmented}) >= 12
    assert sum(torch.equal(image, as_float(images[0])) for image in augmented) <= 2


def shifted(image: Tensor, down: int, right: int, *, flip: bool) -> Tensor:
    """The window of an image (C, H, W), padded with zeros, that lies this many pixels from its own place."""
    side, pad = image.size(-1), max(abs(down), abs(right))
    padded = torch.nn.functional.pad(image, (pad, pad, pad, pad))
    window = padded[:, pad + down : pad + down + side, pad + right : pad + right + side]
    return window.flip(-1) if flip else window


@pytest.mark.parametrize(("side", "reach"), [(32, 4), (8, 1), (5, 1)])
def test_a_cifar_crop_is_the_image_moved_by_an_eighth_at_most_and_perhaps_flipped(side, reach):
    images = photos(60, side)
    augmented = seeded(Augment("cifar", side), images)
    moves = [(down, right) for down in range(-reach - 1, reach + 2) for right in range(-reach - 1, reach + 2)]
    found = []
    for image, result in zip(as_float(images), augmented, strict=True):
        fits = [
            (down, right, flip)
            for down, right in moves
            for flip in (False, True)
            if torch.equal(shifted(image, down, right, flip=flip), result)
        ]
        assert len(fits) == 1
        found += fits
    down, right, flip = (set(values) for values in zip(*found, strict=True))
    assert down == right == set(range(-reach, reach + 1))
    assert flip == {False, True}
    assert 15 < sum(flipped for *_, flipped in found) < 45


def test_an_imagenet_crop_shows_a_part_of_the_image():
    ramp = torch.linspace(0, 1, 32).expand(20, 1, 32, 32)  # brightness is the column
    augmented = seeded(Augment("imagenet", 32), ramp)
    spans = augmented.amax(dim=(1, 2, 3)) - augmented.amin(dim=(1, 2, 3))
    assert spans.max() > 0.75
    assert spans.min() < 0.6
    rising = (augmented.diff(dim=-1) > 0).all(dim=-1).flatten(1).all(dim=1)
    falling = (augmented.diff(dim=-1) < 0).all(dim=-1).flatten(1).all(dim=1)
    assert (rising | falling).all()
    assert rising.any()
    assert falling.any()


def test_a_kind_that_is_none():
    with pytest.raises(InputError, match=r"^there is no augmentation 'strong'; choose from none, cifar, imagenet\.$"):
        Augment("strong", 8)


def test_augmentation_learns_nothing():
    assert not list(Augment("cifar", 8).parameters())
    assert not Augment("cifar", 8).state_dict()

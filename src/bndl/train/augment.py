"""Augmentation on the batch, by kornia."""

from collections.abc import Callable, Mapping

from torch import Tensor, nn

from bndl.data import as_float
from bndl.errors import InputError, MissingExtraError

__all__ = ["AUGMENTATIONS", "Augment"]

# what each kind does to images of side `size`; the names are kornia's, imported when they are needed
_Step = tuple[str, dict[str, object]]
_FLIP: _Step = ("RandomHorizontalFlip", {"p": 0.5})
AUGMENTATIONS: Mapping[str, Callable[[int], tuple[_Step, ...]]] = {
    "none": lambda size: (),
    "cifar": lambda size: (
        ("RandomCrop", {"size": (size, size), "padding": max(1, size // 8), "cropping_mode": "slice"}),
        _FLIP,
    ),
    "imagenet": lambda size: (
        ("RandomResizedCrop", {"size": (size, size), "scale": (0.08, 1.0), "ratio": (3 / 4, 4 / 3)}),
        _FLIP,
    ),
}
"""``cifar``: a crop after padding by an eighth, and a flip; ``imagenet``: a crop of random size and ratio, and a flip."""


class Augment(nn.Module):
    """Images (B, C, H, W), uint8 or floats in [0, 1], to floats of the same dims, each changed at random.

    The draws come from torch's global generator, so whoever seeds that repeats them.

    Args:
        kind: one of :data:`AUGMENTATIONS`.
        size: side of the images.
    """

    def __init__(self, kind: str, size: int) -> None:
        super().__init__()
        if kind not in AUGMENTATIONS:
            raise InputError(f"there is no augmentation {kind!r}; choose from {', '.join(AUGMENTATIONS)}.")
        steps = AUGMENTATIONS[kind](size)
        if not steps:
            self.steps = nn.Sequential()
            return
        try:
            import kornia.augmentation
        except ImportError as error:
            raise MissingExtraError("augmentation", extra="train") from error
        self.steps = nn.Sequential(*(getattr(kornia.augmentation, name)(**options) for name, options in steps))

    def forward(self, images: Tensor) -> Tensor:
        """The images as floats in [0, 1], augmented."""
        augmented: Tensor = self.steps(images if images.is_floating_point() else as_float(images))
        return augmented

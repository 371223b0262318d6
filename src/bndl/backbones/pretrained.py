"""Pretrained CIFAR networks: what each checkpoint expects, and how to load it from a local file."""

import re
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from os import PathLike
from pathlib import Path
from types import MappingProxyType

import torch
import torch.fx
from torch import Tensor, nn

from bndl.backbones.cifar_resnet import CifarResNet, ResidualNet, StageReluResNet
from bndl.errors import FileError, InputError


@dataclass(frozen=True)
class CifarCheckpoint:
    """What has to be known about a checkpoint to use it.

    Attributes:
        dataset: the data that it was trained on, ``"cifar10"`` or ``"cifar100"``.
        num_classes: C.
        num_features: K, inputs of its last layer.
        mean: of each channel, for images in [0, 1].
        std: of each channel, for images in [0, 1].
        test_accuracy: measured on all 10,000 test images, in [0, 1].
        build: makes the network, untrained.
    """

    dataset: str
    num_classes: int
    num_features: int
    mean: tuple[float, float, float]
    std: tuple[float, float, float]
    test_accuracy: float
    build: Callable[[], ResidualNet]

    def normaliser(self) -> "Normalise":
        """Return the module that brings images to the scale that this checkpoint was trained at."""
        return Normalise(self.mean, self.std)


_IMAGENET_MEAN, _IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)

CIFAR_CHECKPOINTS: Mapping[str, CifarCheckpoint] = MappingProxyType(
    {
        "resnet20_cifar10": CifarCheckpoint(
            dataset="cifar10",
            num_classes=10,
            num_features=64,
            mean=_IMAGENET_MEAN,
            std=_IMAGENET_STD,
            test_accuracy=0.9173,
            build=partial(CifarResNet, 20, 10),
        ),
        "resnet56_cifar10": CifarCheckpoint(
            dataset="cifar10",
            num_classes=10,
            num_features=64,
            mean=_IMAGENET_MEAN,
            std=_IMAGENET_STD,
            test_accuracy=0.9339,
            build=partial(CifarResNet, 56, 10),
        ),
        "resnet32_cifar100": CifarCheckpoint(
            dataset="cifar100",
            num_classes=100,
            num_features=256,
            mean=(0.5071, 0.4867, 0.4408),
            std=(0.2675, 0.2565, 0.2761),
            test_accuracy=0.7169,
            build=partial(StageReluResNet, 32, 100),
        ),
    }
)
"""The checkpoints that :func:`load_cifar_checkpoint` knows, by name."""


def cifar_checkpoint(name: str) -> CifarCheckpoint:
    """Look a checkpoint up by name; an unknown one raises :class:`InputError` with the names that there are."""
    if name not in CIFAR_CHECKPOINTS:
        raise InputError(f"There is no checkpoint named {name!r}: choose one of {', '.join(CIFAR_CHECKPOINTS)}.")
    return CIFAR_CHECKPOINTS[name]


def load_cifar_checkpoint(name: str, path: str | PathLike[str]) -> ResidualNet:
    """Load a pretrained network from a local ``.pth`` file.

    Args:
        name: one of :data:`CIFAR_CHECKPOINTS`.
        path: the file. Only tensors are unpickled from it, never code.

    Returns:
        The network on the CPU in eval mode. It expects images normalised by ``cifar_checkpoint(name).normaliser()``.
    """
    model = cifar_checkpoint(name).build()
    state = {_our_key(key): value for key, value in _read_tensors(Path(path)).items()}
    try:
        model.load_state_dict(state)
    except RuntimeError as error:
        raise FileError(
            f"{path} does not hold the weights of {name}, for {_first_mismatch(model, state)}: "
            "give the file of that network."
        ) from error
    return model.eval()


def normalise(images: Tensor, mean: Tensor, std: Tensor) -> Tensor:
    """Return (images - mean) / std a channel, after bringing bytes to [0, 1].

    Args:
        images: (..., C, H, W), uint8 in 0..255 or floating point in [0, 1].
        mean: (C,).
        std: (C,), positive.

    Returns:
        A floating-point tensor of the dims of ``images``.
    """
    if images.ndim < 3 or images.size(-3) != mean.numel():
        raise InputError(
            f"Images must have dims (..., {mean.numel()}, H, W), but {tuple(images.size())} came: "
            "put the channels third from last."
        )
    if images.dtype == torch.uint8:
        images = images.to(mean.dtype) / 255
    elif not images.is_floating_point():
        raise InputError(f"Images must be uint8 in 0..255 or floats in [0, 1], but {images.dtype} came: convert them.")
    return (images - mean[:, None, None]) / std[:, None, None]


# The checks above read dims and dtype, which a symbolic trace does not have: it records the call as one node instead.
torch.fx.wrap("normalise")


class Normalise(nn.Module):
    """:func:`normalise` as a module, to stand before a network: ``nn.Sequential(Normalise(mean, std), network)``.

    Args:
        mean: of each channel, for images in [0, 1].
        std: of each channel, positive.
    """

    mean: Tensor
    std: Tensor

    def __init__(self, mean: tuple[float, ...], std: tuple[float, ...]) -> None:
        super().__init__()
        if len(mean) != len(std) or not all(value > 0 for value in std):
            raise InputError(
                f"A positive std is needed for each of the {len(mean)} means, but std={std} was given: mend it."
            )
        # Constants, not weights: they stay out of the state dict.
        self.register_buffer("mean", torch.tensor(mean), persistent=False)
        self.register_buffer("std", torch.tensor(std), persistent=False)

    def forward(self, images: Tensor) -> Tensor:
        """Map images (..., C, H, W), uint8 or floats in [0, 1], to normalised floats of the same dims."""
        return normalise(images, self.mean, self.std)


def _read_tensors(path: Path) -> dict[str, Tensor]:
    """Read a flat mapping from names to tensors, or raise :class:`FileError`."""
    if not path.is_file():
        raise FileError(f"There is no checkpoint file at {path}: give the path of a .pth file.")
    try:
        _verify_checksums(path)
        content = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # damaged bytes make torch.load raise almost anything, from EOFError to KeyError
        raise FileError(f"{path} is damaged or no PyTorch checkpoint: download or write it again.") from error
    if isinstance(content, dict) and isinstance(content.get("state_dict"), dict):
        content = content["state_dict"]
    if not isinstance(content, dict) or not all(
        isinstance(k, str) and isinstance(v, Tensor) for k, v in content.items()
    ):
        raise FileError(f"{path} holds no mapping from names to tensors: give a file written from a state dict.")
    return content


def _verify_checksums(path: Path) -> None:
    """Raise ``BadZipFile`` if a record's bytes were changed, which ``torch.load`` does not notice."""
    if zipfile.is_zipfile(path):  # PyTorch before 1.6 wrote bare pickles, which have no checksums
        with zipfile.ZipFile(path) as archive:
            changed = archive.testzip()
        if changed is not None:
            raise zipfile.BadZipFile(f"{changed} does not match its checksum")


def _our_key(key: str) -> str:
    """Translate the files' names to ours: ``module.layer1.0.x`` is ``stages.0.0.x``, ``linear.x`` is ``fc.x``."""
    key = key.removeprefix("module.")
    key = re.sub(r"^layer(\d+)\.", lambda match: f"stages.{int(match[1]) - 1}.", key)
    return re.sub(r"^linear\.", "fc.", key)


def _first_mismatch(model: nn.Module, state: Mapping[str, Tensor]) -> str:
    """Say in a few words where ``state`` first departs from the model's own."""
    ours = model.state_dict()
    for key, value in ours.items():
        if key not in state and not key.endswith("num_batches_tracked"):  # older files do without this counter
            return f"{key} is missing"
        if key in state and state[key].size() != value.size():
            return f"{key} has dims {tuple(state[key].size())} instead of {tuple(value.size())}"
    return f"{next((key for key in state if key not in ours), 'a tensor of the file')} is not part of it"

"""From a name to a network that is ready to train or to use: ours, a checkpoint, or one of timm, torchvision, the hub."""

import os
import re
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

from bndl.backbones import efficientnet
from bndl.backbones.cifar_resnet import CifarResNet, ResNet18
from bndl.backbones.dims import require_positive
from bndl.backbones.libraries import (
    LIBRARIES,
    Channels,
    Found,
    Logits,
    Wish,
    guess,
    in_one_sentence,
    plain_linear,
    reason,
)
from bndl.backbones.pretrained import CIFAR_CHECKPOINTS, Normalise, load_cifar_checkpoint
from bndl.backbones.small_cnn import SmallCNN
from bndl.convert import find_linear, replace_everywhere
from bndl.data.registry import DATA_VARIABLE
from bndl.errors import FileError, HeadError, InputError

__all__ = ["Backbone", "ImageClassifier", "backbone_names", "build"]

_CIFAR10 = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
_OURS = ("resnet18", "resnet20", "resnet32", "resnet44", "resnet56", "resnet110", "small-cnn")


@dataclass(frozen=True)
class Backbone:
    """A network ready to train or to use.

    Attributes:
        name: what it was asked for by.
        model: images (B, 3, H, W), uint8 or floats in [0, 1], to logits (B, C); it normalises them itself.
        size: side of the square images that it expects.
        resize: length of the shorter side before the crop to ``size``.
        pretrained: whether it holds trained weights; it is in eval mode then, else in training mode.
        classes: names of the C outputs of a pretrained head where they are known, else None.
    """

    name: str
    model: nn.Module
    size: int
    resize: int
    pretrained: bool
    classes: tuple[str, ...] | None


class ImageClassifier(nn.Sequential):
    """``normalise``, then ``network``; it knows where its head is, which :func:`bndl.convert` asks it for."""

    head: str = ""

    def get_classifier(self) -> nn.Module:
        """Return the head, under the name that timm gave this method."""
        return self.get_submodule(self.head)


def backbone_names() -> tuple[str, ...]:
    """Return the networks that have a name of their own; ``timm:``, ``torchvision:`` and ``hf:`` add thousands."""
    return (*_OURS, *CIFAR_CHECKPOINTS, efficientnet.NAME)


def build(
    name: str,
    num_classes: int | None = None,
    *,
    pretrained: bool = False,
    classes: Sequence[str] | None = None,
    width: int | None = None,
    in_channels: int = 3,
    mean: Channels | None = None,
    std: Channels | None = None,
    size: int | None = None,
) -> Backbone:
    """Make a network by name, one that :func:`bndl.convert` takes as it is.

    Args:
        name: one of :func:`backbone_names`, ``resnetD`` of any depth D = 6n + 2, ``timm:NAME``, ``torchvision:NAME``,
            ``hf:OWNER/NAME`` or ``hf:FOLDER``. The CIFAR checkpoints are always pretrained; their files are looked for
            in ``weights`` of the folder in ``BNDL_DATA``, of ``data`` and of the current folder.
        num_classes: C. A pretrained head with another number of outputs makes room for a fresh one; None keeps it.
        pretrained: fill in trained weights.
        classes: keep these outputs of a pretrained head, by name and in this order: ``load("imagenette").classes``.
        width: channels of the first stage, for our own networks.
        in_channels: channels of the images, for ``small-cnn``.
        mean: of each channel, for images in [0, 1]; by default what a pretrained network was trained with, else that
            of CIFAR (our own networks) or ImageNet (others).
        std: of each channel, likewise.
        size: side of the images; by default what a pretrained network was trained with, else 32 or 224.
    """
    if num_classes is not None and num_classes < 2:
        raise InputError(f"num_classes must be at least 2, but {num_classes} was given: a decision has alternatives.")
    if size is not None:
        require_positive(size=size)
    told = None not in (mean, std, size)
    found = _open(name, Wish(name.partition(":")[2] or name, num_classes, pretrained, width, in_channels, size, told))
    old = _find_head(name, found.network)
    head, labels = _choose_head(name, old, found.classes, num_classes, classes)
    replace_everywhere(found.network, old, head)
    normalise = Normalise(mean or found.mean, std or found.std)
    model = ImageClassifier(OrderedDict(normalise=normalise, network=found.network))
    model.head = next(path for path, module in model.named_modules() if module is head)
    side = size or found.size
    _check_runs(name, model, (in_channels, side, side))
    model.train(not found.pretrained)
    return Backbone(name, model, side, round(found.resize * side / found.size), found.pretrained, labels)


def _open(name: str, wish: Wish) -> Found:
    """Find out who makes this network, and have it made."""
    prefix, _, rest = name.partition(":")
    ours = name in _OURS or re.fullmatch(r"resnet[1-9]\d*", name)
    if not (ours or name in CIFAR_CHECKPOINTS or name == efficientnet.NAME or (rest and prefix in LIBRARIES)):
        meant = guess(name, [*backbone_names(), *(f"{library}:{rest}" for library in LIBRARIES if rest)])
        listing = ", ".join((*backbone_names(), "timm:NAME", "torchvision:NAME", "hf:OWNER/NAME", "hf:FOLDER"))
        raise InputError(f"There is no backbone named {name!r}{meant} (Names: {listing}.)")
    if wish.width is not None and not ours:
        raise InputError(f"{name} has a width of its own: leave width out, or take one of {', '.join(_OURS)}.")
    if wish.in_channels != 3 and name != "small-cnn":
        raise InputError(f"{name} reads 3 channels, but in_channels={wish.in_channels} was given: take small-cnn.")
    if ours:
        return _open_ours(wish)
    if name in CIFAR_CHECKPOINTS:
        return _open_checkpoint(wish)
    if name == efficientnet.NAME:
        return _open_efficientnet(wish)
    with in_one_sentence(name, extra=prefix):
        return LIBRARIES[prefix](wish)


def _find_head(name: str, network: nn.Module) -> nn.Linear:
    """The linear layer that ``convert`` would swap."""
    try:
        return find_linear(network.classifier if isinstance(network, Logits) else network)[1]
    except HeadError as error:
        raise HeadError(f"{name} does not end in one linear layer that could be swapped: take another.") from error


def _choose_head(
    name: str, head: nn.Linear, known: Sequence[str] | None, num_classes: int | None, classes: Sequence[str] | None
) -> tuple[nn.Linear, tuple[str, ...] | None]:
    """The head to use and the names of its outputs: the one that is there, some of its rows, or a fresh one."""
    if classes is None:
        if num_classes is None or num_classes == head.out_features:
            return head, None if known is None else tuple(known)
        return nn.Linear(head.in_features, num_classes), None
    if known is None:
        raise InputError(f"The outputs of {name} have no names to keep some by: give num_classes instead of classes.")
    for label in classes:
        if label not in known:
            raise InputError(f"{name} has no output named {label!r}{guess(label, known)}")
    if len({*classes}) != len(classes) or len(classes) < 2 or num_classes not in (None, len(classes)):
        raise InputError(f"classes must be two or more, each once, and num_classes their number, not {num_classes}.")
    return plain_linear(head, [known.index(label) for label in classes]), tuple(classes)


def _check_runs(name: str, model: nn.Module, dims: tuple[int, ...]) -> None:
    try:
        with torch.no_grad():
            model.eval()(torch.zeros(1, *dims))
    except Exception as error:  # the network's own code, on images that it may not be made for
        raise InputError(
            f"{name} cannot read images of dims {dims} ({reason(error)}): check size, mean and std."
        ) from error


def _open_ours(wish: Wish) -> Found:
    if wish.pretrained:
        raise InputError(f"{wish.name} has no trained weights here: take one of {', '.join(CIFAR_CHECKPOINTS)}.")
    settings = {} if wish.width is None else {"width": wish.width}
    network: nn.Module
    if wish.name == "small-cnn":
        network = SmallCNN(wish.new_classes(), wish.in_channels, **settings)
    elif wish.name == "resnet18":
        network = ResNet18(wish.new_classes(), **settings)
    else:
        network = CifarResNet(int(wish.name.removeprefix("resnet")), wish.new_classes(), **settings)
    mean: Channels = (0.4914, 0.4822, 0.4465)
    std: Channels = (0.2470, 0.2435, 0.2616)
    if wish.in_channels != 3:  # not CIFAR: pixels in [-1, 1]
        mean = std = (0.5,) * wish.in_channels
    return Found(network, mean, std, size=32, resize=32)


def _open_checkpoint(wish: Wish) -> Found:
    roots = [Path(root, "weights") for root in (os.environ.get(DATA_VARIABLE), "data", ".") if root]
    paths = [root / f"{wish.name}.pth" for root in roots]
    path = next((path for path in paths if path.exists()), None)
    if path is None:
        looked = ", ".join(str(root.absolute()) for root in roots)
        raise FileError(f"{wish.name}.pth was not found in {looked}; put it there, or set {DATA_VARIABLE}.")
    facts = CIFAR_CHECKPOINTS[wish.name]
    network = load_cifar_checkpoint(wish.name, path)
    return Found(network, facts.mean, facts.std, 32, 32, True, _CIFAR10 if facts.dataset == "cifar10" else None)


def _open_efficientnet(wish: Wish) -> Found:
    num_classes = 1000 if wish.pretrained else wish.new_classes()
    side = wish.size or efficientnet.SIZE
    network = efficientnet.efficientnet_lite0(num_classes, pretrained=wish.pretrained, size=side)
    facts = (efficientnet.MEAN, efficientnet.STD, efficientnet.SIZE, efficientnet.RESIZE)
    return Found(network, *facts, wish.pretrained, efficientnet.IMAGENET_CLASSES if wish.pretrained else None)

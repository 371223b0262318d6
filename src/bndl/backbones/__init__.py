"""The networks that we define ourselves, and the pretrained weights that fit them."""

from bndl.backbones.cifar_resnet import CifarResNet, ResidualNet, ResNet18, StageReluResNet
from bndl.backbones.pretrained import (
    CIFAR_CHECKPOINTS,
    CifarCheckpoint,
    Normalise,
    cifar_checkpoint,
    load_cifar_checkpoint,
    normalise,
)
from bndl.backbones.small_cnn import SmallCNN

__all__ = [
    "CIFAR_CHECKPOINTS",
    "CifarCheckpoint",
    "CifarResNet",
    "Normalise",
    "ResNet18",
    "ResidualNet",
    "SmallCNN",
    "StageReluResNet",
    "cifar_checkpoint",
    "load_cifar_checkpoint",
    "normalise",
]

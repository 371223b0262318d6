"""The networks that we define ourselves, and the pretrained weights that fit them."""

from bndl.backbones.cifar_resnet import CifarResNet, ResidualNet, ResNet18, StageReluResNet
from bndl.backbones.efficientnet import IMAGENETTE
from bndl.backbones.pretrained import (
    CIFAR_CHECKPOINTS,
    CifarCheckpoint,
    Normalise,
    cifar_checkpoint,
    load_cifar_checkpoint,
    normalise,
)
from bndl.backbones.small_cnn import SmallCNN
from bndl.backbones.zoo import Backbone, ImageClassifier, backbone_names, build

__all__ = [
    "CIFAR_CHECKPOINTS",
    "IMAGENETTE",
    "Backbone",
    "CifarCheckpoint",
    "CifarResNet",
    "ImageClassifier",
    "Normalise",
    "ResNet18",
    "ResidualNet",
    "SmallCNN",
    "StageReluResNet",
    "backbone_names",
    "build",
    "cifar_checkpoint",
    "load_cifar_checkpoint",
    "normalise",
]

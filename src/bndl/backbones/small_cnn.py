"""A small convolutional network for digits: scikit-learn's 8x8 or MNIST's 28x28."""

import torch
from torch import Tensor, nn

from bndl.backbones.dims import require_positive


class SmallCNN(nn.Module):
    """Three 3x3 convolutions with batch norm and ReLU, a global average and the linear layer ``fc``.

    The map is halved once, after the first convolution: the 4x4 that is left of an 8x8 digit still shows where a
    feature is. ``stages`` is one module, so a hook on it sees that map before pooling.

    Args:
        num_classes: C.
        in_channels: channels of the images.
        width: channels of the first convolution; the second has twice as many.
        num_features: K, channels of the last map and inputs of ``fc``.
    """

    def __init__(self, num_classes: int, in_channels: int = 1, *, width: int = 32, num_features: int = 64) -> None:
        super().__init__()
        require_positive(num_classes=num_classes, in_channels=in_channels, width=width, num_features=num_features)
        self.stages = nn.Sequential(
            *_convolution(in_channels, width),
            nn.MaxPool2d(2),
            *_convolution(width, 2 * width),
            *_convolution(2 * width, num_features),
        )
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(num_features, num_classes)

    def features(self, images: Tensor) -> Tensor:
        """Map images (B, in_channels, H, W) to the non-negative features (B, K) that ``fc`` reads."""
        return torch.flatten(self.pool(self.stages(images)), 1)

    def forward(self, images: Tensor) -> Tensor:
        """Map images (B, in_channels, H, W), H and W at least 2, to logits (B, C)."""
        logits: Tensor = self.fc(self.features(images))
        return logits


def _convolution(in_channels: int, out_channels: int) -> tuple[nn.Module, nn.Module, nn.Module]:
    """3x3 convolution that keeps H and W, batch norm, ReLU."""
    convolution = nn.Conv2d(in_channels, out_channels, 3, padding=1, bias=False)
    return convolution, nn.BatchNorm2d(out_channels), nn.ReLU()

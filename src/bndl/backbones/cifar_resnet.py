"""Residual networks for 32x32 images: He et al.'s CIFAR ResNets, a stage-wise ReLU variant of them, and ResNet-18.

All of them read the same way: a 3x3 stem, ``stages`` whose last map is non-negative, a ``pool`` and a linear ``fc``.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from torch.nn.functional import pad, relu

from bndl.backbones.dims import blocks_per_stage, require_positive


class ZeroPadShortcut(nn.Module):
    """He et al.'s option A: subsample the map and pad the new channels with zeros; it has no parameters.

    Args:
        in_channels: channels that come in.
        out_channels: channels that leave, at least ``in_channels``.
        stride: keep every ``stride``-th row and column.
    """

    def __init__(self, in_channels: int, out_channels: int, stride: int) -> None:
        super().__init__()
        extra = out_channels - in_channels
        self.stride = stride
        self.channels_before = extra // 2
        self.channels_after = extra - extra // 2

    def forward(self, x: Tensor) -> Tensor:
        """Map (B, in_channels, H, W) to (B, out_channels, ceil(H / stride), ceil(W / stride))."""
        kept = x[:, :, :: self.stride, :: self.stride]
        return pad(kept, (0, 0, 0, 0, self.channels_before, self.channels_after))


class ProjectionShortcut(nn.Sequential):
    """He et al.'s option B: a strided 1x1 convolution and batch norm, (B, in, H, W) to (B, out, H/stride, W/stride)."""

    def __init__(self, in_channels: int, out_channels: int, stride: int) -> None:
        super().__init__(
            nn.Conv2d(in_channels, out_channels, 1, stride=stride, bias=False),
            nn.BatchNorm2d(out_channels),
        )


Shortcut = Callable[[int, int, int], nn.Module]


class ResidualSum(nn.Module):
    """Two 3x3 convolutions plus a shortcut, with no activation after the sum.

    Args:
        in_channels: channels that come in.
        out_channels: channels that leave.
        stride: of the first convolution and of the shortcut.
        shortcut: makes the shortcut where the map changes its dims; elsewhere it is the identity.
    """

    def __init__(self, in_channels: int, out_channels: int, *, stride: int, shortcut: Shortcut) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(in_channels, out_channels, 3, stride=stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(out_channels)
        self.conv2 = nn.Conv2d(out_channels, out_channels, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(out_channels)
        same_dims = stride == 1 and in_channels == out_channels
        self.shortcut = nn.Identity() if same_dims else shortcut(in_channels, out_channels, stride)

    def forward(self, x: Tensor) -> Tensor:
        """Map (B, in_channels, H, W) to (B, out_channels, H / stride, W / stride), of either sign."""
        hidden = relu(self.bn1(self.conv1(x)))
        total: Tensor = self.bn2(self.conv2(hidden)) + self.shortcut(x)
        return total


class BasicBlock(ResidualSum):
    """He et al.'s basic block: a :class:`ResidualSum` with a ReLU after the sum."""

    def forward(self, x: Tensor) -> Tensor:
        """Map (B, in_channels, H, W) to a non-negative (B, out_channels, H / stride, W / stride)."""
        return relu(super().forward(x))


class ResidualNet(nn.Module):
    """What the networks of this file share: 3x3 stem, stages, pool and the linear layer ``fc``.

    ``stages`` is one module, so a hook on it sees the last map before pooling.

    Args:
        stem_channels: channels of the 3x3 stem.
        stages: one module a resolution; the last one's map must be non-negative.
        pool: averages the last map; what it leaves is flattened to ``num_features``.
        num_features: K, inputs of ``fc``.
        num_classes: C, outputs of ``fc``.
    """

    def __init__(
        self, stem_channels: int, stages: Sequence[nn.Module], *, pool: nn.Module, num_features: int, num_classes: int
    ) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, stem_channels, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(stem_channels)
        self.stages = nn.Sequential(*stages)
        self.pool = pool
        self.fc = nn.Linear(num_features, num_classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def features(self, images: Tensor) -> Tensor:
        """Map images (B, 3, 32, 32) to the non-negative features (B, K) that ``fc`` reads."""
        stem = relu(self.bn1(self.conv1(images)))
        return torch.flatten(self.pool(self.stages(stem)), 1)

    def forward(self, images: Tensor) -> Tensor:
        """Map normalised images (B, 3, 32, 32) to logits (B, C)."""
        logits: Tensor = self.fc(self.features(images))
        return logits


class CifarResNet(ResidualNet):
    """The CIFAR ResNet of He et al. (2016), section 4.2, with parameter-free shortcuts.

    Args:
        depth: 6n + 2 for n blocks in each of the three stages: 20, 32, 44, 56, 110, ...
        num_classes: C.
        width: channels of the first stage; the features are its fourfold, K = 64 at width 16.
    """

    def __init__(self, depth: int = 20, num_classes: int = 10, *, width: int = 16) -> None:
        num_blocks = blocks_per_stage(depth)
        require_positive(width=width, num_classes=num_classes)
        channels = [width, width, 2 * width, 4 * width]
        stages = [
            nn.Sequential(*_blocks(BasicBlock, ZeroPadShortcut, channels[i : i + 2], num_blocks, stride=stride))
            for i, stride in enumerate((1, 2, 2))
        ]
        super().__init__(width, stages, pool=nn.AdaptiveAvgPool2d(1), num_features=4 * width, num_classes=num_classes)


class StageReluResNet(ResidualNet):
    """A CIFAR ResNet whose only ReLU outside the blocks is the one that ends each stage.

    It has projection shortcuts, and keeps a 2x2 grid when pooling, so that each channel gives four features. This is
    the network of the checkpoint ``resnet32_cifar100``. The images must be 32x32.

    Args:
        depth: 6n + 2 for n blocks in each of the three stages.
        num_classes: C.
        width: channels of the first stage; the features are its sixteenfold, K = 256 at width 16.
        stem_channels: channels of the stem.
    """

    def __init__(self, depth: int = 32, num_classes: int = 100, *, width: int = 16, stem_channels: int = 64) -> None:
        num_blocks = blocks_per_stage(depth)
        require_positive(width=width, stem_channels=stem_channels, num_classes=num_classes)
        channels = [stem_channels, width, 2 * width, 4 * width]
        stages = [
            nn.Sequential(
                *_blocks(ResidualSum, ProjectionShortcut, channels[i : i + 2], num_blocks, stride=stride), nn.ReLU()
            )
            for i, stride in enumerate((1, 2, 2))
        ]
        super().__init__(stem_channels, stages, pool=nn.AvgPool2d(4), num_features=16 * width, num_classes=num_classes)


class ResNet18(ResidualNet):
    """ResNet-18 for CIFAR: a 3x3 stem without max pooling and four stages of two basic blocks.

    Args:
        num_classes: C.
        width: channels of the first stage; the features are its eightfold, K = 512 at width 64.
    """

    def __init__(self, num_classes: int = 10, *, width: int = 64) -> None:
        require_positive(width=width, num_classes=num_classes)
        channels = [width, width, 2 * width, 4 * width, 8 * width]
        stages = [
            nn.Sequential(*_blocks(BasicBlock, ProjectionShortcut, channels[i : i + 2], 2, stride=stride))
            for i, stride in enumerate((1, 2, 2, 2))
        ]
        super().__init__(width, stages, pool=nn.AdaptiveAvgPool2d(1), num_features=8 * width, num_classes=num_classes)


def _blocks(
    block: type[ResidualSum], shortcut: Shortcut, channels: Sequence[int], num_blocks: int, *, stride: int
) -> list[ResidualSum]:
    """Blocks of one stage, from ``channels[0]`` to ``channels[1]``; only the first has a stride."""
    before, after = channels
    first = block(before, after, stride=stride, shortcut=shortcut)
    return [first, *(block(after, after, stride=1, shortcut=shortcut) for _ in range(num_blocks - 1))]

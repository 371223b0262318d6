r"""Where a feature looks: the map that a CNN averages into its features, found during one pass.

A feature that is an average of a map, :math:`h_k = \frac{1}{HW} \sum_p M_{kp}`, needs no further method to be placed in the
image: the map is an exact decomposition of it, and of every logit, see :func:`bndl.explain.contribution_map`.
"""

import math
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bndl.convert import find_layer, find_linear
from bndl.errors import InputError
from bndl.explain.arguments import shown, whole
from bndl.features import Head, Inputs, evaluating, features_of
from bndl.layer import DecisionLayer
from bndl.weibull import at_least_float32

__all__ = ["FeatureMaps", "feature_maps", "features_and_maps", "head_of", "upsample"]

_KEPT = 12  # maps that are remembered until the pass ends; the one that is pooled is among the last
_TOLERANCE = {torch.float16: 5e-3, torch.bfloat16: 3e-2}  # of the largest feature
_FINE = 1e-4


@dataclass(frozen=True)
class FeatureMaps:
    """The maps whose averages are the features.

    Attributes:
        maps: (B, in_features, H, W), float32 or better; the mean over H and W is the feature. They are >= 0 where the
            features have left a ReLU, of any sign in front of a signed layer.
        features: (B, in_features) what enters the decision layer.
        module: the dotted name of the module that the maps came out of, or went into.
        is_input: whether they went into it.
    """

    maps: Tensor
    features: Tensor
    module: str
    is_input: bool = False

    def __len__(self) -> int:
        return len(self.maps)

    def of(self, feature: Tensor) -> Tensor:
        """The map (B, H, W) of one feature of each example, (B,) of their numbers; a negative part's sign is turned."""
        in_features = self.maps.size(1)
        feature = feature.to(self.maps.device)
        if len(feature) != len(self.maps) or not 0 <= int(feature.min()) <= int(feature.max()) < 2 * in_features:
            raise InputError(f"give one feature an example, {len(self.maps)} numbers from 0 to {2 * in_features - 1}.")
        rows = torch.arange(len(self.maps), device=self.maps.device)
        sign = torch.where(feature < in_features, 1.0, -1.0).to(self.maps.dtype)
        return self.maps[rows, feature % in_features] * sign[:, None, None]


def feature_maps(model: nn.Module, x: Inputs, *, head: Head | None = None) -> FeatureMaps:
    """The maps that the model averages into its features, found by listening to all its modules during one pass.

    Averages over the whole map, as of ResNet and EfficientNet, and over the cells of a grid, are found alike; a feature of
    one cell has a map that is 0 elsewhere.

    Args:
        model: a model with a decision layer, or with a linear head.
        x: one batch: a tensor (B, ...) or a dict of tensors.
        head: which layer's features; by default the decision layer, or else the linear head.
    Raises:
        InputError: the features are no averages of a map, as those of a ViT, of a text model, or of another pooling.
    """
    head = head_of(model) if head is None else head
    with evaluating(model):
        _, found = features_and_maps(model, x, head=head)
    if found is None:
        raise InputError(
            f"the features of {type(model).__name__} are no averages of a map of pixels, so no map is exact: "
            "use LIME (bndl.explain.lime), which takes any model."
        )
    return found


def head_of(model: nn.Module) -> Head:
    """The model's decision layer, or its linear head where it has none."""
    if any(isinstance(module, DecisionLayer) for module in model.modules()):
        return find_layer(model)
    return find_linear(model)[1]


def features_and_maps(model: nn.Module, x: Inputs, *, head: Head) -> tuple[Tensor, FeatureMaps | None]:
    """Features (B, in_features), and their maps where there are any, from one pass of the model as it stands."""
    with _listening(model, head.in_features) as caught:
        features = features_of(model, x, head=head, at_once=True)
    # of maps that fit, the largest: a grid that was pooled fits itself
    for _, candidate in sorted(enumerate(caught), key=lambda pair: (-pair[1].map[0, 0].numel(), -pair[0])):
        maps = _pooled_to(candidate.map, features)
        if maps is not None:
            return features, FeatureMaps(maps, features, candidate.module, candidate.is_input)
    return features, None


def upsample(maps: Tensor, size: tuple[int, int]) -> Tensor:
    """Maps (..., h, w) at the size (H, W) of the image, bilinear: for showing, the sum over pixels is another."""
    if maps.dim() < 2 or 0 in maps.size()[-2:]:
        raise InputError(f"give maps (..., h, w) of at least one pixel, got dims {tuple(maps.size())}.")
    if not isinstance(size, tuple | list) or len(size) != 2:
        raise InputError(f"size must be (H, W) of the image, got {shown(size)}.")
    size = (whole(size[0], name="the height", least=1), whole(size[1], name="the width", least=1))
    flat = at_least_float32(maps).reshape(1, -1, *maps.size()[-2:])
    large = F.interpolate(flat, size=size, mode="bilinear", align_corners=False)
    return large.reshape(*maps.size()[:-2], *size)


class _Candidate(NamedTuple):
    map: Tensor
    module: str
    is_input: bool


@contextmanager
def _listening(model: nn.Module, in_features: int) -> Iterator["deque[_Candidate]"]:
    """Collect the last 4-D tensors with fitting channels that modules give or take."""
    caught: deque[_Candidate] = deque(maxlen=_KEPT)

    def hear(name: str, value: Any, *, is_input: bool) -> None:
        if not isinstance(value, Tensor) or not _may_be(value, in_features):
            return
        if caught and caught[-1].map is value:
            if is_input:
                return  # said already, by the module that made it
            caught.pop()  # a container gives what its last part gave; an activation may have worked in place
        caught.append(_Candidate(value, name, is_input))

    handles = []
    for name, module in model.named_modules():
        handles.append(
            module.register_forward_pre_hook(
                lambda _, args, name=name: hear(name, args[0] if args else None, is_input=True)
            )
        )
        handles.append(module.register_forward_hook(lambda _, __, out, name=name: hear(name, out, is_input=False)))
    try:
        yield caught
    finally:
        for handle in handles:
            handle.remove()


def _may_be(value: Tensor, in_features: int) -> bool:
    """Whether the average over cells of a map of these dims has ``in_features`` numbers."""
    if value.dim() != 4 or not value.is_floating_point() or value.size(2) * value.size(3) == 1:
        return False
    return _cells(value, in_features) > 0


def _cells(maps: Tensor, in_features: int) -> int:
    """Cells along a side of the grid that the maps would be averaged over; 0 where it cannot be."""
    channels, height, width = maps.size()[1:]
    side = math.isqrt(in_features // channels) if channels else 0
    fits = side > 0 and side * side * channels == in_features and height % side == 0 and width % side == 0
    return side if fits else 0


def _pooled_to(maps: Tensor, features: Tensor) -> Tensor | None:
    """The maps (B, in_features, H, W) whose averages are the features; None where they are not."""
    cells = _cells(maps, features.size(1))
    tolerance = max(_TOLERANCE.get(t.dtype, _FINE) for t in (maps, features))
    maps, wanted = at_least_float32(maps), at_least_float32(features)
    if len(maps) != len(wanted):
        return None
    means = F.adaptive_avg_pool2d(maps, cells).flatten(1)
    if not bool(((means - wanted).abs() <= tolerance * wanted.abs().max() + 1e-9).all()):
        return None
    if cells > 1:
        maps = _spread(maps, cells)
    if tolerance == _FINE:
        return maps
    # half precision rounded the average: bring the maps to the features that the layer really saw
    if bool((maps >= 0).all()):
        return maps * (wanted / means.clamp_min(torch.finfo(means.dtype).tiny))[..., None, None]
    return maps + (wanted - means)[..., None, None]


def _spread(maps: Tensor, cells: int) -> Tensor:
    """(B, c, H, W) -> (B, c cells^2, H, W): a map for each cell, 0 outside it, whose mean is that of the cell."""
    height, width = maps.size()[2:]
    marks = torch.eye(cells * cells, dtype=maps.dtype, device=maps.device).view(-1, cells, cells)
    marks = marks.repeat_interleave(height // cells, dim=1).repeat_interleave(width // cells, dim=2)
    return (maps[:, :, None] * marks * cells**2).flatten(1, 2)

"""The images behind the examples: read when they are needed, shrunk, on the album once; where features look."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from bndl.data.sets import LabelledSet
from bndl.errors import InputError
from bndl.explain.contributions import contribution_map, has_contribution_map
from bndl.explain.maps import FeatureMaps, feature_maps
from bndl.features import evaluating
from bndl.layer import DecisionLayer
from bndl.progress import track
from bndl.report.thumbs import LARGE, SMALL, Album, heated, shrunk

__all__ = ["Pictures", "channels_last", "pictures_of"]

_BATCH = 8  # images that pass the backbone together: more do not fit a processor's cache
Ready = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Pictures:
    """The images of a data set, and their thumbs in the album.

    Attributes:
        model: what looks at them.
        layer: its decision layer.
        data: what they are read from; None where the examples are no images.
        ready: images (B, C, H, W) uint8 -> as the model takes them.
        has_maps: whether the features are averages of maps, so that heat can be shown.
        album: where thumbs go.
    """

    model: nn.Module
    layer: DecisionLayer
    data: LabelledSet | None
    ready: Ready
    has_maps: bool
    album: Album = field(default_factory=Album)
    _small: dict[int, Tensor] = field(default_factory=dict, repr=False)
    _thumbs: dict[int, int] = field(default_factory=dict, repr=False)

    @property
    def numbers(self) -> dict[int, int]:
        """Example -> thumb, of those that have one."""
        return self._thumbs

    def read(self, examples: list[int]) -> Tensor:
        """Images (B, C, H, W) as they are stored; a small copy of each is kept."""
        assert self.data is not None
        images = torch.stack([self.data[example][0] for example in examples])
        self._small.update(zip(examples, shrunk(images, SMALL), strict=True))
        return images

    def thumb(self, example: int) -> int | None:
        """The thumb of an example, made when it is asked for first."""
        if self.data is None:
            return None
        if example not in self._thumbs:
            if example not in self._small:
                self.read([example])
            self._thumbs[example] = self.album.add(self._small[example])
        return self._thumbs[example]

    def overlays(self, pairs: Iterable[tuple[int, int]]) -> dict[tuple[int, int], int]:
        """Thumbs of where a feature looks, for pairs (feature, example); none where the network has no maps."""
        if self.data is None or not self.has_maps:
            return {}
        wanted: dict[int, list[int]] = {}
        for feature, example in pairs:
            wanted.setdefault(example, []).append(feature)
        found: dict[tuple[int, int], int] = {}
        examples = sorted(wanted)
        for start in track(range(0, len(examples), _BATCH), "where features look"):
            part = examples[start : start + _BATCH]
            maps = self.maps(self.read(part))
            for row, example in enumerate(part):
                for feature in wanted[example]:
                    heat = _of_feature(maps, row, feature)
                    found[feature, example] = self.album.add(heated(self._small[example], heat))
        return found

    def maps(self, images: Tensor) -> FeatureMaps:
        """The maps behind the features of some images, as they are stored."""
        return feature_maps(self.model, self.ready(images))

    def evidence(self, images: Tensor, classes: Tensor) -> Tensor | None:
        """Where the score of a class comes from, (B, H, W); None where the network has no maps."""
        if not self.has_maps:
            return None
        maps = self.maps(images).maps
        return contribution_map(self.layer, maps, classes.to(maps.device)).cpu()

    def large(self, images: Tensor) -> Tensor:
        """(B, 3, S, S) uint8, for what is looked at closely."""
        return shrunk(images, LARGE)


@contextmanager
def channels_last(model: nn.Module) -> Iterator[None]:
    """Inside, images enter the model in the memory layout that convolutions on a CPU are a fifth faster with."""

    def turned(_: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
        return tuple(
            one.contiguous(memory_format=torch.channels_last) if isinstance(one, Tensor) and one.dim() == 4 else one
            for one in args
        )

    hook = model.register_forward_pre_hook(turned)
    try:
        yield
    finally:
        hook.remove()


def _of_feature(maps: FeatureMaps, row: int, feature: int) -> Tensor:
    """The map (H, W) of a feature in one image, >= 0."""
    channel = feature % maps.maps.size(1)
    heat = maps.maps[row, channel]
    return (heat if feature < maps.maps.size(1) else -heat).clamp_min(0).cpu()


def pictures_of(model: nn.Module, layer: DecisionLayer, data: LabelledSet | None, ready: Ready) -> tuple[Pictures, str]:
    """The pictures of a data set, and what cannot be had of them, in a sentence ("" if nothing).

    Args:
        model: with the decision layer.
        layer: that layer.
        data: what the examples are read from, or None.
        ready: images (B, C, H, W) uint8 -> as the model takes them.
    """
    if data is None or not len(data) or data[0][0].dim() != 3:
        return Pictures(model, layer, None, ready, False), "The examples are no images, so there are no thumbnails."
    if not has_contribution_map(layer):
        return Pictures(model, layer, data, ready, False), "The layer's dense map mixes all features: no heat maps."
    try:
        with evaluating(model):
            feature_maps(model, ready(data[0][0][None]))
    except InputError:
        return Pictures(
            model, layer, data, ready, False
        ), "The network's features are no averages of maps: no heat maps."
    return Pictures(model, layer, data, ready, True), ""

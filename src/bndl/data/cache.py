"""The feature cache: what a frozen backbone makes of a data set, computed once, kept on disk, read through a memory map.

A cache is a folder named by a key of everything that makes the features; its header lists the parts of the key, so that
one can see why a cache was not used. Labels are not stored: they come with the data.
"""

import json
import logging
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from bndl.convert import find_layer, find_linear
from bndl.data.mapped import MappedRows, bytes_of
from bndl.data.sets import LabelledSet, as_float, digest
from bndl.errors import InputError
from bndl.features import FeatureSet, Head, check_labels, evaluating, features_of
from bndl.layer import DecisionLayer
from bndl.progress import track

__all__ = ["cached_features"]

_LOG = logging.getLogger(__name__)
_TOLERANCE = 0.02  # of a row's largest feature: half precision stays far below, other code or weights do not


def cached_features(
    model: nn.Module,
    data: LabelledSet,
    *,
    folder: str | os.PathLike[str],
    key: str = "",
    dtype: torch.dtype = torch.float32,
    head: str | None = None,
    batch_size: int = 256,
    num_workers: int = 0,
    progress: bool | None = None,
) -> FeatureSet:
    """Features of ``data`` from the cache in ``folder``, which is built first where it is not there yet.

    The cache is found by the backbone's weights, buffers and modules, the data's fingerprint, the transform and the dtype,
    whatever the weights of the head: they are what trains on it. When it is opened, three examples pass the backbone to
    see whether it still makes these features; if not, or if a file is damaged, it is built again. A build that was killed
    goes on where it was (to the same bits, for the same ``batch_size``); of two processes one builds, the other waits. The
    features are never all in memory, so a cache may be larger than it.

    Args:
        model: a classifier that ends in one ``nn.Linear`` or :class:`bndl.DecisionLayer`; converting it keeps its cache.
        data: what to pass through the backbone; its transform must not be random.
        folder: where caches live, one subfolder each. It is made if need be.
        key: names the data's transform, so that another transform has another cache. Only None and
            :func:`bndl.data.as_float` are known without it.
        dtype: of the stored features: float32, or float16 or bfloat16 for half the disk.
        head: dotted path of a linear head, where it cannot be told.
        batch_size: examples a pass.
        num_workers: processes that load the data.
        progress: whether to show a bar; None: when it takes longer than two seconds and there is a terminal.
    Returns:
        Features (N, K), memory-mapped (writing to them changes nothing on disk), and the data's labels, on the CPU.
    """
    _check(data, key, dtype, batch_size)
    path, layer = _find_head(model, head)
    check_labels(data.labels, layer.out_features, count=len(data))
    parts = {
        "backbone": _digest_of_backbone(model, layer),
        "head": f"{path}: {layer.in_features} features",
        "data": data.fingerprint,
        "transform": "none" if data.transform is None else "as_float" if data.transform is as_float else "other",
        "key": key,
        "dtype": str(dtype).removeprefix("torch."),
    }
    place = Path(folder) / digest([json.dumps(parts).encode()])
    name = f"{type(model).__name__} on {data.name}"
    cache = MappedRows(place, (len(data), layer.in_features), dtype, name, parts)
    source = _Source(model, layer, data, dtype, batch_size, num_workers, progress)
    with evaluating(model):
        features, _ = _find(cache, source, partial=False)
        return FeatureSet(features if len(features) else _build(cache, source), data.labels)


def _check(data: LabelledSet, key: str, dtype: torch.dtype, batch_size: int) -> None:
    if not isinstance(data, LabelledSet):
        raise InputError(
            f"the cache takes a bndl.data.LabelledSet, which knows its content; got {type(data).__name__}."
        )
    if len(data) == 0:
        raise InputError(f"{data.name} is empty: there are no features to cache.")
    if data.transform not in (None, as_float) and not key:
        raise InputError(
            f'{data.name} has a transform of its own, which the cache cannot tell from others: name it with key="...".'
        )
    if dtype not in (torch.float16, torch.bfloat16, torch.float32) or batch_size < 1:
        raise InputError(f"need dtype float32, float16 or bfloat16 and batch_size >= 1, got {dtype} and {batch_size}.")


def _find_head(model: nn.Module, head: str | None) -> tuple[str, Head]:
    """The head's dotted path and the head, converted or not."""
    if any(isinstance(module, DecisionLayer) for module in model.modules()):
        layer = find_layer(model)
        return next(path for path, module in model.named_modules() if module is layer), layer
    return find_linear(model, head)


def _digest_of_backbone(model: nn.Module, head: nn.Module) -> str:
    """Hash all modules (their class and settings) and all tensors, buffers of any kind too, but those of the head."""
    # every name of what has several: a tensor that the head shares is the backbone's as well
    modules = list(model.named_modules(remove_duplicate=False))
    inside = tuple(f"{path}." if path else "" for path, module in modules if module is head)
    tensors = [*model.named_parameters(remove_duplicate=False), *model.named_buffers(remove_duplicate=False)]

    def chunks() -> Iterator[bytes | memoryview]:
        for path, module in modules:
            if not f"{path}.".startswith(inside):
                settings = re.sub(r" at 0x[0-9a-fA-F]+", "", module.extra_repr())  # a function's differs by process
                yield f"{path} {type(module).__module__}.{type(module).__qualname__} {settings}".encode()
        for path, tensor in tensors:
            if not path.startswith(inside):
                yield f"{path} {tuple(tensor.size())} {tensor.dtype}".encode()
                yield bytes_of(tensor.cpu())

    return digest(chunks())


@dataclass(frozen=True)
class _Source:
    """What makes the features: the data, on their way through the backbone to the head. Its model is in ``eval()``."""

    model: nn.Module
    head: Head
    data: LabelledSet
    dtype: torch.dtype
    batch_size: int
    num_workers: int
    progress: bool | None

    def batches(self, start: int) -> Iterator[Tensor]:
        """Features (B, K) of the examples from ``start`` on, as they are stored, finite."""
        loader = DataLoader(
            self.data,
            batch_size=self.batch_size,
            sampler=range(start, len(self.data)),
            num_workers=self.num_workers,
            generator=torch.Generator(),  # leaves the global one alone
        )
        for inputs, _ in track(loader, "features", progress=self.progress):
            try:
                stored = self._features(inputs)
                if torch.isinf(stored).any():
                    raise InputError("some features do not fit float16 (65504): give dtype=torch.bfloat16 or float32.")
            except InputError as error:
                raise InputError(f"in the batch of {len(inputs)} from example {start} on, {error}") from error
            yield stored
            start += len(stored)

    def makes(self, features: Tensor) -> bool:
        """Whether the first, the middle and the last of these features (R, K) are what comes out now."""
        rows = sorted({0, len(features) // 2, len(features) - 1})
        fresh = self._features(torch.stack([self.data[row][0] for row in rows])).float()
        apart = (fresh - features[rows].float()).abs().amax(dim=1)
        within = _TOLERANCE * fresh.abs().amax(dim=1) + torch.finfo(self.dtype).smallest_normal
        return bool((apart <= within).all())

    def _features(self, inputs: Tensor) -> Tensor:
        return features_of(self.model, inputs, head=self.head).to(self.dtype).cpu()


def _find(cache: MappedRows, source: _Source, *, partial: bool) -> tuple[Tensor, str]:
    """The rows of the cache that can be used (R, K), all or also some, and what is wrong with those that cannot."""
    nothing = torch.empty(0, cache.dims[1], dtype=cache.dtype)
    try:
        features = cache.read()
    except ValueError as error:
        return nothing, str(error)
    if not partial and len(features) < cache.dims[0]:
        return nothing, ""
    if len(features) and not source.makes(features):
        return nothing, "the backbone's code or the transform is another"
    return features, ""


def _build(cache: MappedRows, source: _Source) -> Tensor:
    """Compute what is missing, as the only process that does, and open the whole."""
    _LOG.info("building the feature cache %s of %s, or waiting for the process that does", cache.place, cache.name)
    with cache.locked():
        features, fault = _find(cache, source, partial=True)  # another process may have built it meanwhile
        if fault:
            _LOG.warning("building the feature cache %s again: %s", cache.place, fault)
        if len(features) < cache.dims[0]:
            start = len(features)
            del features  # the map, before the file changes
            cache.append(source.batches(start), start=start)
            features, fault = _find(cache, source, partial=False)
            if fault:
                raise InputError(
                    f"the features of {cache.name} differ from one pass to the next and cannot be cached: take what is "
                    "random out of the transform and the backbone."
                )
    return features

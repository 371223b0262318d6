"""From inputs to features: read any kind of batch, run the backbone once, catch what enters the decision layer."""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

from bndl.convert import find_layer
from bndl.errors import InputError
from bndl.layer import DecisionLayer
from bndl.progress import track

__all__ = [
    "FeatureSet",
    "extract",
    "features_of",
    "fitting",
    "iterate",
    "one_pass",
    "paired",
    "passed",
    "portion",
    "within_bounds",
]

Inputs: TypeAlias = Tensor | Mapping[str, Any]
Head: TypeAlias = nn.Linear | DecisionLayer
_LABEL_KEYS = ("labels", "label")
_PIXELS = 2**17  # of images in a pass on a CPU: more leave its caches, and each takes up to twice as long
_ROWS = 2**16  # of features that are looked at together
_LARGEST = 1e12  # of a feature: variances take its square times that of a weight


@dataclass(frozen=True)
class FeatureSet:
    """What the decision layer sees of a data set: features (N, in_features), labels (N,) int64.

    The features may be in half precision, and on disk (see :func:`bndl.data.cache.cached_features`): use them by batches.
    """

    features: Tensor
    labels: Tensor

    def __len__(self) -> int:
        return len(self.labels)

    def take(self, indices: Tensor) -> "FeatureSet":
        """The examples at these indices, copied."""
        indices = indices.to(self.features.device)
        return FeatureSet(self.features[indices], self.labels[indices])

    def like(self, tensor: Tensor) -> "FeatureSet":
        """The same examples on the device of ``tensor``, the features in its dtype too."""
        return FeatureSet(self.features.to(tensor), self.labels.to(tensor.device))


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Everything in ``eval()`` and without gradients inside, each module's own mode back afterwards."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        for module, mode in modes:
            module.training = mode


def split_batch(batch: Any) -> tuple[Inputs, Tensor | None]:
    """A batch as loaders give it -> (inputs, labels or None): a tensor, a pair, or a dict with a ``labels`` key."""
    if isinstance(batch, Mapping):
        labels = next((batch[key] for key in _LABEL_KEYS if key in batch), None)
        return {key: _tensor(value) for key, value in batch.items() if key not in _LABEL_KEYS}, labels
    if isinstance(batch, list | tuple):
        if len(batch) not in (1, 2):
            raise InputError(f"a batch is (inputs,) or (inputs, labels), got {len(batch)} parts.")
        inputs = _tensor(batch[0])
        if not isinstance(inputs, Tensor | Mapping):
            raise InputError(
                f"the inputs of a batch are a tensor, an array or a dict of them, got {type(inputs).__name__}."
            )
        return inputs, batch[1] if len(batch) == 2 else None
    if isinstance(batch, np.ndarray | Tensor):
        return _tensor(batch), None
    raise InputError(f"a batch is a tensor, a pair (inputs, labels) or a dict, got {type(batch).__name__}.")


def iterate(x: Any, *, batch_size: int) -> Iterable[Any]:
    """Anything to predict on -> batches: a tensor, array or dict is cut, a data set is loaded, a loader is taken as is."""
    if batch_size < 1:
        raise InputError(f"batch_size must be at least 1, got {batch_size}.")
    if _is_pair(x):
        x = _tensor(x[0])
    x = _tensor(x)
    if isinstance(x, Tensor):
        if x.dim() == 0 or len(x) == 0:
            raise InputError(f"nothing to predict on: the input has dims {tuple(x.size())}; give at least one example.")
        return [x[i : i + batch_size] for i in range(0, len(x), batch_size)]
    if isinstance(x, Mapping):
        return _cut_mapping(x, batch_size)
    if isinstance(x, Dataset):
        return DataLoader(x, batch_size=batch_size, generator=torch.Generator())  # leaves the global one alone
    if isinstance(x, Iterable):
        return x
    raise InputError(f"give a tensor, a dict of tensors, a data set or a loader; got {type(x).__name__}.")


def _is_pair(x: Any) -> bool:
    """Whether it is one labelled batch; a loader of two batches would be a list."""
    return isinstance(x, tuple) and len(x) == 2 and all(isinstance(part, Tensor | np.ndarray) for part in x)


def paired(data: Any) -> Any:
    """One labelled batch as a data set, anything else as it is."""
    if not _is_pair(data):
        return data
    x, labels = data
    if len(x) != len(labels):
        raise InputError(f"there are {len(x)} examples and {len(labels)} labels: give one label for each.")
    return TensorDataset(_tensor(x), _tensor(labels))


def _tensor(x: Any) -> Any:
    """An array as a tensor, anything else as it is."""
    return torch.from_numpy(np.ascontiguousarray(x)) if isinstance(x, np.ndarray) else x


def _cut_mapping(x: Mapping[str, Any], batch_size: int) -> list[dict[str, Any]]:
    x = {key: _tensor(value) for key, value in x.items()}
    sizes = {len(value) for value in x.values() if isinstance(value, Tensor)}
    if len(sizes) != 1 or 0 in sizes:
        raise InputError(f"the tensors of a batch dict must have one common, positive length, got {sorted(sizes)}.")
    (size,) = sizes
    return [
        {key: value[i : i + batch_size] if isinstance(value, Tensor) else value for key, value in x.items()}
        for i in range(0, size, batch_size)
    ]


def one_pass(model: nn.Module, inputs: Inputs, *, head: Head | None = None) -> tuple[Tensor, Tensor]:
    """What enters the decision layer (B, in_features) and what leaves it (B, C), from one pass of the model as it stands.

    Whatever the model does with the layer's output, a softmax or a wrapper, is left aside. ``head`` is another of its
    layers to listen to.
    """
    layer = find_layer(model) if head is None else head
    caught: list[tuple[Tensor, Tensor]] = []
    hook = layer.register_forward_hook(lambda _, args, output: caught.append((args[0], output)))
    try:
        if isinstance(inputs, Mapping):
            device = layer.weight.device
            model(**{k: v.to(device) if isinstance(v, Tensor) else v for k, v in inputs.items()})
        else:
            model(fitting(inputs, model, layer.weight.device))
    finally:
        hook.remove()
    if len(caught) != 1:
        raise InputError(f"the decision layer ran {len(caught)} times in one pass; this function needs exactly one.")
    return caught[0]


def fitting(inputs: Tensor, model: nn.Module, device: torch.device) -> Tensor:
    """The inputs on the model's device; floating-point ones in the dtype of its first layer (numpy's is float64)."""
    dtype = next((p.dtype for p in model.parameters() if p.is_floating_point()), inputs.dtype)
    return inputs.to(device, dtype if inputs.is_floating_point() else inputs.dtype)


def features_of(model: nn.Module, inputs: Inputs, *, head: Head | None = None, at_once: bool = False) -> Tensor:
    """What enters the decision layer, or ``head``, (B, in_features), finite, each example passing the model once.

    The model is taken as it stands. In ``eval()`` on a CPU large images pass it a few at a time, unless they are to pass
    ``at_once``: for those who listen to other layers.
    """
    layer = find_layer(model) if head is None else head
    found = one_pass(model, inputs, head=layer)[0] if at_once else passed(model, inputs, head=layer)
    return _checked(found, layer.in_features)


def passed(model: nn.Module, inputs: Inputs, *, head: Head) -> Tensor:
    """What enters the head, as it comes: a few large images at a time, and without a pass where the model is the head."""
    if model is head and isinstance(head, DecisionLayer) and isinstance(inputs, Tensor) and not head._forward_pre_hooks:
        features = fitting(inputs, head, head.weight.device)
        head.check(features)
        return features
    parts: Iterable[Inputs] = [inputs]
    if isinstance(inputs, Tensor) and inputs.dim() == 4 and head.weight.device.type == "cpu" and not _learns(model):
        parts = inputs.split(portion(*inputs.size()[2:]))
    caught = [one_pass(model, part, head=head)[0] for part in parts]
    return caught[0] if len(caught) == 1 else torch.cat(caught)


def _learns(model: nn.Module) -> bool:
    """Whether some module is in ``train()``, and may look at the batch as a whole."""
    return any(module.training for module in model.modules())


def portion(height: int, width: int) -> int:
    """How many images of this size pass a network fastest on a CPU."""
    return max(1, _PIXELS // max(1, height * width))


def _checked(features: Tensor, in_features: int) -> Tensor:
    if features.dim() != 2:
        raise InputError(
            f"the decision layer was given dims {tuple(features.size())}; predictions need one row of {in_features} "
            "features an example, (B, K): pool over tokens or positions before the head."
        )
    if not features.numel():
        return features
    blocks = features.split(_ROWS)  # they may be on disk
    ends = [torch.aminmax(block) for block in blocks]  # both nan if one is
    if not all(low > -_LARGEST and high < _LARGEST for low, high in ends):
        bad = torch.cat([~within_bounds(block) for block in blocks]).nonzero().flatten()
        raise InputError(
            f"{len(bad)} of {len(features)} examples have NaN or infinite features, or some beyond {_LARGEST:.0e} "
            f"(first at index {int(bad[0])}): check the inputs and the backbone."
        )
    return features


def within_bounds(features: Tensor) -> Tensor:
    """Which examples (B,) have features that can be computed with: finite, and not huge."""
    return (features.abs() < _LARGEST).all(dim=1)


def extract(model: nn.Module, data: Any, *, batch_size: int = 256, progress: bool | None = None) -> FeatureSet:
    """Features and labels of a whole labelled data set, each example passing the backbone once."""
    layer = find_layer(model)
    if isinstance(data, FeatureSet):
        return _sound(data, layer)
    features, labels = [], []
    with evaluating(model):
        for batch in track(iterate(paired(data), batch_size=batch_size), "features", progress=progress):
            inputs, target = split_batch(batch)
            if target is None:
                raise InputError("labels are needed: give batches (inputs, labels), or dicts with a 'labels' key.")
            features.append(features_of(model, inputs))
            labels.append(check_labels(target, layer.out_features, count=len(features[-1])))
    if not any(len(part) for part in features):
        raise InputError("the loader is empty: it gave no example.")
    return FeatureSet(torch.cat(features).to(layer.phi().mean.dtype), torch.cat(labels).to(features[0].device))


def _sound(data: FeatureSet, layer: DecisionLayer) -> FeatureSet:
    """Features that are there already, if they fit the layer."""
    if not len(data.features):
        raise InputError("the FeatureSet is empty: it holds no example.")
    labels = check_labels(data.labels, layer.out_features, count=len(data.features))
    layer.check(data.features)
    _checked(data.features, layer.in_features)
    return data if labels is data.labels else replace(data, labels=labels)


def check_labels(labels: Any, num_classes: int, *, count: int) -> Tensor:
    """Labels (B,) as int64, or one sentence on what is wrong with them."""
    try:
        labels = torch.as_tensor(labels)
    except (TypeError, ValueError) as error:
        raise InputError(f"labels must be class indices (integers), got {type(labels).__name__} ({error}).") from error
    if labels.dim() != 1 or len(labels) != count:
        raise InputError(f"labels must be one class index an example, dims ({count},), got {tuple(labels.size())}.")
    if labels.is_floating_point() or labels.is_complex() or labels.dtype == torch.bool:
        raise InputError(f"labels must be class indices (integers), got {labels.dtype}.")
    if len(labels) and not 0 <= int(labels.min()) <= int(labels.max()) < num_classes:
        raise InputError(
            f"labels must lie in 0..{num_classes - 1} for {num_classes} classes, "
            f"got {int(labels.min())}..{int(labels.max())}."
        )
    checked: Tensor = labels.long()
    return checked

"""The example that a model is traced with: its tensors by name, and what else the model is given."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from bndl.errors import BndlError, InputError
from bndl.export.files import first_line
from bndl.features import Inputs, features_of, fitting, split_batch
from bndl.layer import DecisionLayer

__all__ = ["Example", "prepared"]


@dataclass(frozen=True)
class Example:
    """A batch, as a graph takes it.

    Attributes:
        inputs: its tensors by the names that the file calls them; two rows at least, as torch.export takes a single one for
            a constant.
        named: whether the model is given a dict of them; else there is one.
        fixed: what else is in that dict: constants of the graph.
    """

    inputs: dict[str, Tensor]
    named: bool = False
    fixed: dict[str, Any] = field(default_factory=dict)

    def for_model(self, given: tuple[Tensor, ...]) -> Inputs:
        """Other tensors in the place of these, as the model takes them."""
        return {**dict(zip(self.inputs, given, strict=True)), **self.fixed} if self.named else given[0]

    def rows(self, rows: slice) -> dict[str, Tensor]:
        """Some of its rows."""
        return {name: value[rows] for name, value in self.inputs.items()}


def prepared(model: nn.Module, layer: DecisionLayer, batch: Any) -> Example:
    """A batch as predict takes it -> the example, which the model has passed."""
    found: Inputs = split_batch(batch)[0]
    try:
        if isinstance(found, Mapping):
            tensors = {k: _doubled(v.to(layer.weight.device)) for k, v in found.items() if isinstance(v, Tensor)}
            example = Example(tensors, True, {k: v for k, v in found.items() if k not in tensors})
        else:
            x = _doubled(fitting(found, model, layer.weight.device))
            example = Example({"features" if model is layer else "images" if x.dim() == 4 else "inputs": x})
        features_of(
            model, example.for_model(tuple(example.inputs.values()))
        )  # refuses what is not finite, or has wrong dims
    except BndlError:
        raise
    except Exception as error:  # a model may do anything
        raise InputError(
            f"the model cannot take this example ({first_line(error)}): give a batch (B, ...) as the model takes it, a dict "
            "if it takes several."
        ) from error
    return example


def _doubled(x: Tensor) -> Tensor:
    if x.dim() < 1 or not len(x):
        raise InputError(f"the example is empty, or no batch (dims {tuple(x.size())}): give one of at least one row.")
    return x.contiguous() if len(x) > 1 else torch.cat([x, x])  # a view's strides would be a condition of the graph

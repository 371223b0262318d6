"""What :func:`bndl.sparsify` returns: the points of the path, and a model for each."""

import copy
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn

from bndl.convert import find_layer
from bndl.errors import InputError

__all__ = ["SparsePath", "SparsePoint"]


@dataclass(frozen=True)
class SparsePoint:
    """A decision layer with few weights, measured on validation examples that its weights have not learnt from.

    Attributes:
        nnz: share of the weights in use, of all that the decision could use (a dense map's are counted).
        weights: how many are in use.
        weights_per_class: the same, a class; without those of a dense map.
        accuracy: of the decisions.
        nll: negative log-likelihood of the predictive probabilities. As the scale of the logits was fitted to these
            examples, an optimistic figure, as is the ECE.
        ece: expected calibration error.
        empty_classes: classes without any weight, which no feature can speak for.
        state: the layer's parameters.
    """

    nnz: float
    weights: int
    weights_per_class: float
    accuracy: float
    nll: float
    ece: float
    empty_classes: tuple[int, ...] = ()
    state: dict[str, Tensor] = field(default_factory=dict, repr=False, compare=False)

    def to_dict(self) -> dict[str, Any]:
        """The figures, for JSON."""
        names = ("nnz", "weights", "weights_per_class", "accuracy", "nll", "ece")
        return {**{name: getattr(self, name) for name in names}, "empty_classes": list(self.empty_classes)}


@dataclass(frozen=True)
class SparsePath:
    """Decision layers from dense to sparse.

    ``path[i]`` is the model of point i, ``path.best`` that of the chosen one: copies with the same backbone (its
    parameters are shared, not copied) and a head of their own. The model that was given is left as it was.

    Attributes:
        points: from dense to sparse; the first is the model as it was given, its noise calibrated.
        chosen: index of the point that the target picked.
        model: the model that was given.
        mode: how the path was made.
        seconds: time taken, the backbone's pass included.
        seed: of everything random in it, such as which half of the validation examples judged.
        judge: sum of the features of each example that judged, which tells them from others.
    """

    points: tuple[SparsePoint, ...]
    chosen: int
    model: nn.Module = field(repr=False)
    mode: str = "prune"
    seconds: float = 0.0
    seed: int = 0
    judge: Tensor | None = field(default=None, repr=False, compare=False)

    def __len__(self) -> int:
        return len(self.points)

    def __getitem__(self, index: int) -> nn.Module:
        """The model of a point."""
        if not -len(self.points) <= index < len(self.points):
            raise IndexError(f"the path has {len(self.points)} points, there is no point {index}.")
        layer = find_layer(self.model)
        own = {id(tensor) for tensor in (*layer.parameters(), *layer.buffers())}
        shared = {id(t): t for t in (*self.model.parameters(), *self.model.buffers()) if id(t) not in own}
        model = copy.deepcopy(self.model, shared)
        find_layer(model).load_state_dict(self.points[index].state)
        return model

    def __iter__(self) -> Iterator[nn.Module]:
        """The models, from dense to sparse."""
        return (self[index] for index in range(len(self.points)))

    @property
    def best(self) -> nn.Module:
        """The chosen model."""
        return self[self.chosen]

    @property
    def point(self) -> SparsePoint:
        """The chosen point."""
        return self.points[self.chosen]

    def at(self, nnz: float) -> int:
        """Index of the point with the most weights among those with at most this share in use."""
        fitting = [index for index, point in enumerate(self.points) if point.nnz <= nnz]
        if not fitting:
            raise InputError(
                f"the sparsest point of the path has nnz {min(point.nnz for point in self.points):.4f}, none is at or below "
                f"{nnz}: call sparsify with nnz={nnz}."
            )
        return max(fitting, key=lambda index: self.points[index].nnz)

    def to_dict(self) -> dict[str, Any]:
        """The figures, for JSON."""
        return {
            "mode": self.mode,
            "chosen": self.chosen,
            "seconds": self.seconds,
            "points": [point.to_dict() for point in self.points],
        }

"""A model with its decision, as one graph: from inputs to all that ``predict`` says."""

import contextlib
import io
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields

import torch
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram

from bndl.decide import Decider
from bndl.errors import BndlError, InputError
from bndl.export.example import Example
from bndl.export.files import first_line
from bndl.features import one_pass, within_bounds
from bndl.prediction import Prediction
from bndl.reasons import top_reasons
from bndl.weibull import at_least_float32

__all__ = ["Answers", "FromPixels", "constant", "dims", "traced"]

_LONGEST = 2**13  # tokens: of more a pass may take minutes
_FIELDS = tuple(field.name for field in fields(Prediction))


class FromPixels(nn.Module):
    """A model of images in [0, 1] that takes uint8, 0 to 255."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, images: Tensor) -> Tensor:
        """What the model says of images (B, C, H, W) uint8."""
        if images.is_floating_point():
            raise InputError("FromPixels takes whole numbers from 0 to 255: give uint8, or the model as it is.")
        said: Tensor = self.model(images.float() / 255)
        return said


class Answers(nn.Module):
    """Inputs -> what predict says, by name: the graph that is written."""

    def __init__(self, model: nn.Module, decider: Decider, example: Example, *, reasons: int) -> None:
        super().__init__()
        self.model, self.decider, self.example = model, decider, example
        self.finite = [x.is_floating_point() and bool(x.isfinite().all()) for x in example.inputs.values()]
        self.reasons = min(reasons, decider.layer.num_features)

    def forward(self, *given: Tensor) -> dict[str, Tensor]:
        """One pass of the example's tensors, or others in their place."""
        layer = self.decider.layer
        raw = given[0] if self.model is layer else one_pass(self.model, self.example.for_model(given))[0]
        h = at_least_float32(raw)
        said = self.decider(h)
        found = {name: _portable(getattr(said, name)) for name in _FIELDS}
        sound = within_bounds(h)  # predict refuses others
        for x, finite in zip(given, self.finite, strict=True):
            if finite and x is not raw:  # a runtime's pooling may lose a NaN on the way to the features
                sound = sound & torch.isfinite(x).reshape(x.size(0), -1).all(dim=1)
        found["certain"] = found["certain"] & sound.cpu()
        if self.reasons:
            why = top_reasons(layer, h, said.labels, top=self.reasons)
            found["reason_features"] = torch.where(why.values > 0, why.features, -1)
            found["reason_terms"] = why.values
        return found


def _portable(value: Tensor) -> Tensor:
    return value.float() if value.dtype == torch.float64 else value


def traced(answers: Answers) -> ExportedProgram:
    """The graph, for any number of rows, and of tokens if the model is one for all of them."""
    inputs = answers.example.inputs
    program = _trace(answers, fixed=False)
    free = dims(program, inputs)
    if all(_goes_along(program, answers, given) for given in _of_other_lengths(program, inputs, free)):
        return program
    return _trace(answers, fixed=True)


def _trace(answers: Answers, *, fixed: bool) -> ExportedProgram:
    inputs = tuple(answers.example.inputs.values())
    batch = Dim("batch")
    free = tuple({0: batch, 1: Dim.AUTO} if _of_tokens(value) and not fixed else {0: batch} for value in inputs)
    try:
        with contextlib.redirect_stderr(io.StringIO()):  # where it fails, it prints its graph
            return torch.export.export(answers, inputs, dynamic_shapes=(free,))
    except BndlError:
        raise
    except Exception as error:  # a model may do anything
        raise InputError(
            f"torch.export cannot follow this model ({first_line(error)}): its forward pass must be the same for any "
            "batch, whatever the values."
        ) from error


def _of_other_lengths(
    program: ExportedProgram, inputs: dict[str, Tensor], free: dict[str, tuple[int | str, ...]]
) -> Iterator[tuple[Tensor, ...]]:
    """The example with fewer and more tokens, and with just so many that the graph is no longer told to be right."""
    ends = [end for span in program.range_constraints.values() for end in (span.lower - 1, span.upper + 1)]
    for name in {free[name][1] for name, x in inputs.items() if _of_tokens(x)}:
        if not isinstance(name, str):
            continue
        tokens = next(x for key, x in inputs.items() if free[key][1:] == (name,))
        length = tokens.size(1)
        lengths = {length // 2, length - 1, length + 1, 2 * length, *(int(x) for x in ends if x < _LONGEST)}
        most = _LONGEST if tokens.device.type == "cpu" else length  # a GPU does not survive an index beyond its table
        for count in sorted(x for x in lengths if 1 < x <= most):
            times = -(-count // length)
            yield tuple(
                x[:2].repeat(1, times)[:, :count].contiguous() if free[key][1:] == (name,) else x[:2]
                for key, x in inputs.items()
            )


def _goes_along(program: ExportedProgram, answers: Answers, given: tuple[Tensor, ...]) -> bool:
    """Whether the graph takes these inputs, if the model does."""
    try:
        answers(*given)
    except Exception:  # of more tokens than it has places for, say
        return True
    try:
        program.module()(*given)
    except Exception:  # the model goes another way there
        return False
    return True


def _of_tokens(value: Tensor) -> bool:
    return value.dim() == 2 and not value.is_floating_point()


@contextmanager
def constant(model: nn.Module) -> Iterator[None]:
    """No parameter asks for gradients inside, nor then in the file."""
    learning = [parameter for parameter in model.parameters() if parameter.requires_grad]
    for parameter in learning:
        parameter.requires_grad_(False)
    try:
        yield
    finally:
        for parameter in learning:
            parameter.requires_grad_(True)


def dims(program: ExportedProgram, inputs: dict[str, Tensor]) -> dict[str, tuple[int | str, ...]]:
    """Of each input, its dims as the graph has them; one that may be any number by a name."""
    taken = set(program.graph_signature.user_inputs)
    values = [node.meta["val"] for node in program.graph.nodes if node.op == "placeholder" and node.name in taken]
    names: dict[str, str] = {}

    def told(dim: int | torch.SymInt, place: int) -> int | str:
        number = dim if isinstance(dim, int) else dim.node.maybe_as_int()  # what the model fixed is a symbol, too
        if number is not None:
            return int(number)
        lengths = sum(name.startswith("length") for name in names.values())
        return names.setdefault(str(dim), "batch" if place == 0 else f"length{lengths + 1}" if lengths else "length")

    return {
        name: tuple(told(dim, place) for place, dim in enumerate(value.shape))
        for name, value in zip(inputs, values, strict=True)
    }

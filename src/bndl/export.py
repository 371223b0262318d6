"""A model and all that ``predict`` says as one file that runs without bndl: ONNX, or torch's own ``.pt2``."""

import contextlib
import io
import os
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import Dim

from bndl._version import __version__
from bndl.convert import find_layer
from bndl.decide import Against, Decider, Method, check_settings
from bndl.errors import BndlError, InputError
from bndl.features import Inputs, evaluating, features_of, fitting, one_pass, split_batch
from bndl.files import replacing
from bndl.graph_files import SUFFIXES, first_line, quiet, runner, write_graph
from bndl.layer import DecisionLayer
from bndl.predict import about_empty
from bndl.prediction import Prediction
from bndl.reasons import top_reasons
from bndl.weibull import at_least_float32

__all__ = ["Exported", "FromPixels", "Port", "export"]

_FIELDS = tuple(field.name for field in fields(Prediction))
_REASONS = ("reason_features", "reason_terms")
_MAY_DIFFER = 1e-3  # between the probabilities of the file and of predict; other rounding makes a millionth


@dataclass(frozen=True)
class Port:
    """What goes in or comes out: its name, dtype and dims; a dim that may be any number has a name."""

    name: str
    dtype: str
    dims: tuple[int | str, ...]


@dataclass(frozen=True)
class Exported:
    """A file that was written.

    Attributes:
        path: of the file.
        inputs: what it takes.
        outputs: what it gives: the fields of :class:`bndl.Prediction`, and ``reason_features``, ``reason_terms``.
        size: in bytes.
        differences: of each output, the largest difference to :func:`bndl.predict` on the example, as far as the file
            could be run here; None where it was not.
    """

    path: Path
    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]
    size: int
    differences: dict[str, float] | None


class _Answers(nn.Module):
    """Inputs -> what predict says, as a tuple: the graph that is written."""

    def __init__(self, model: nn.Module, decider: Decider, *, keys: tuple[str, ...], reasons: int) -> None:
        super().__init__()
        self.model, self.decider, self.keys, self.reasons = model, decider, keys, reasons

    @property
    def names(self) -> tuple[str, ...]:
        """Of the outputs."""
        return (*_FIELDS, *(_REASONS if self.reasons else ()))

    def forward(self, *given: Tensor) -> tuple[Tensor, ...]:
        """One pass of one tensor, or of one for each key of a dict."""
        layer = self.decider.layer
        inputs: Inputs = dict(zip(self.keys, given, strict=True)) if self.keys else given[0]
        h = at_least_float32(given[0] if self.model is layer else one_pass(self.model, inputs)[0])
        said = self.decider(h)
        found = tuple(_portable(getattr(said, name)) for name in _FIELDS)
        if not self.reasons:
            return found
        why = top_reasons(layer, h, said.labels, top=self.reasons)
        return (*found, torch.where(why.values > 0, why.features, -1), why.values)


class FromPixels(nn.Module):
    """A model of images in [0, 1] that takes uint8, 0 to 255."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, images: Tensor) -> Tensor:
        """What the model says of images (B, C, H, W) uint8."""
        said: Tensor = self.model(images.float() / 255)
        return said


def export(
    model: nn.Module,
    path: str | os.PathLike[str],
    example: Any,
    *,
    method: Method = "sample",
    against: Against = "all",
    num_samples: int | None = None,
    seed: int = 0,
    level: float = 0.05,
    reasons: int = 0,
    classes: tuple[str, ...] | None = None,
    about: Mapping[str, Any] | None = None,
    opset: int | None = None,
    check: bool = True,
) -> Exported:
    """Write the model, with its uncertainty, to a file that runs where there is neither bndl nor, for ONNX, torch.

    The file gives what :func:`bndl.predict` gives with the same arguments, for a batch of any size, to the rounding of
    float32 (probabilities to about 1e-5): the draws are in it as constants. A p below 1e-38 is 0. Where a feature is NaN
    or infinite, which predict refuses, no decision is certain.

    Args:
        model: a model with a :class:`bndl.DecisionLayer`, or the layer itself.
        path: a name that ends in ``.onnx``, for ONNX Runtime and all that read its format, or in ``.pt2``, for
            ``torch.export.load``.
        example: a batch as the model takes it: a tensor or array (B, ...), or a Hugging Face batch (dict). It tells the
            dims, of which the first, and the second of tokens, may be any number later; and the file is tried on it.
        method: as for :func:`bndl.predict`, like the next four; ``"closed"`` makes the smallest file.
        against: what the decision is tested against.
        num_samples: draws S.
        seed: of the draws.
        level: significance below which a decision is certain.
        reasons: give also the so many largest terms of each decision: ``reason_features`` (B, N), numbers of features
            or -1 where there are fewer, and ``reason_terms`` (B, N), what each adds to the decision's logit.
        classes: names of the C classes, to be kept in the file.
        about: more to be kept in the file; what JSON can hold.
        opset: version of ONNX's operators; by default the exporter's, which always works.
        check: run the file on the example, if ``onnxruntime`` is installed, before it takes its place.
    Raises:
        InputError: the model cannot be exported; the sentence says why.
        BndlError: the file does not say what the model says, and was not written.
    """
    path = Path(path)
    check_settings(method, against, num_samples, level)
    if path.suffix not in SUFFIXES:
        raise InputError(f"{path} names no format: let it end in {' or '.join(SUFFIXES)}.")
    if reasons < 0:
        raise InputError(f"reasons is how many terms to give of each decision, 0 for none, got {reasons}.")
    layer = find_layer(model)
    if classes is not None and len(classes) != layer.out_features:
        raise InputError(f"{len(classes)} classes are named, the layer has {layer.out_features}: name each of them.")
    if empty := layer.empty_classes():
        warnings.warn(about_empty(empty), stacklevel=2)
    decider = Decider(
        layer, method=method, against=against, num_samples=num_samples, seed=seed, level=level, dense=True
    )
    if method != "closed":
        decider.draws.hold()  # draws are constants of the graph, not something that it does
    settings = {
        "method": method,
        "against": against,
        "samples": decider.draws.num_samples,
        "seed": seed,
        "level": level,
    }
    record = {"bndl": __version__, **settings, "classes": classes, **(about or {})}
    with evaluating(model), quiet(), replacing(path) as temporary:
        inputs, keys = _prepared(model, layer, example)
        answers = _Answers(model, decider, keys=keys, reasons=min(reasons, layer.num_features))
        expected = dict(zip(answers.names, answers(*inputs.values()), strict=True))
        program = _traced(answers, inputs)
        write_graph(
            program, {k: _free(v) for k, v in inputs.items()}, answers.names, temporary, about=record, opset=opset
        )
        differences = _compared(temporary, inputs, expected) if check else None
        size = temporary.stat().st_size
    given = tuple(_port(name, value, _free(value)) for name, value in inputs.items())
    return Exported(path, given, tuple(_port(*found, ("batch",)) for found in expected.items()), size, differences)


def _prepared(model: nn.Module, layer: DecisionLayer, example: Any) -> tuple[dict[str, Tensor], tuple[str, ...]]:
    """The example by the names that the file calls its inputs; and if it is a dict, its keys.

    It has two rows at least, as torch.export takes a single one for a constant.
    """
    found: Inputs = split_batch(example)[0]
    if isinstance(found, Mapping):
        given = {k: _doubled(v.to(layer.weight.device)) for k, v in found.items() if isinstance(v, Tensor)}
        features_of(model, given)  # refuses what is not finite, or has the wrong dims
        return given, tuple(given)
    if found.dim() < 2:
        raise InputError(f"the example has dims {tuple(found.size())}: give a batch (B, ...), as the model takes it.")
    x = _doubled(fitting(found, model, layer.weight.device))
    features_of(model, x)
    return {"features" if model is layer else "images" if x.dim() == 4 else "inputs": x}, ()


def _free(value: Tensor) -> tuple[str, ...]:
    """Names of the first dims, which may be any number: the batch, and the length of tokens."""
    return ("batch", "length") if value.dim() == 2 and not value.is_floating_point() else ("batch",)


def _doubled(x: Tensor) -> Tensor:
    if not len(x):
        raise InputError("the example is empty: give a batch of at least one.")
    return x if len(x) > 1 else torch.cat([x, x])


def _traced(answers: _Answers, inputs: dict[str, Tensor]) -> torch.export.ExportedProgram:
    batch = Dim("batch")
    free = tuple({0: batch, 1: Dim.AUTO} if len(_free(value)) == 2 else {0: batch} for value in inputs.values())
    try:
        with contextlib.redirect_stderr(io.StringIO()):  # where it fails, it prints its graph
            return torch.export.export(answers, tuple(inputs.values()), dynamic_shapes=(free,))
    except BndlError:
        raise
    except Exception as error:  # a model may do anything
        raise InputError(
            f"torch.export cannot follow this model ({first_line(error)}): its forward pass must be the same for any "
            "batch, whatever the values."
        ) from error


def _compared(path: Path, inputs: dict[str, Tensor], expected: dict[str, Tensor]) -> dict[str, float] | None:
    """The largest difference of each output, of the whole example and of its first row by itself."""
    run = runner(path)
    if run is None:
        return None
    largest = dict.fromkeys(expected, 0.0)
    for rows in (slice(None), slice(1)):
        given = {name: value[rows] for name, value in inputs.items()}
        try:
            found = run(given)
        except Exception as error:
            raise BndlError(
                f"the exported graph fails on a batch of {len(next(iter(given.values())))} ({first_line(error)}), so "
                "nothing was written: the model's forward pass must be the same for any batch."
            ) from error
        for (name, wanted), value in zip(expected.items(), found, strict=True):
            difference = (value.double() - wanted[rows].double()).abs().max()
            largest[name] = max(largest[name], float(difference.nan_to_num(torch.inf)))
    if largest["probs"] > _MAY_DIFFER:
        raise BndlError(
            f"the exported graph gives other probabilities than the model, by up to {largest['probs']:.2g}, so nothing was "
            "written: is there something random in the model's forward pass?"
        )
    return largest


def _port(name: str, value: Tensor, free: tuple[str, ...]) -> Port:
    return Port(name, str(value.dtype).removeprefix("torch."), (*free, *value.size()[len(free) :]))


def _portable(value: Tensor) -> Tensor:
    return value.float() if value.dtype == torch.float64 else value

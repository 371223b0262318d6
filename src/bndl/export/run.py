"""``bndl.export``: trace the model with its decision, write that, try the file, and let it take its place."""

import json
import os
import threading
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from bndl._version import __version__
from bndl.convert import find_layer
from bndl.decide import Against, Decider, Method, check_settings
from bndl.errors import InputError
from bndl.export.example import prepared
from bndl.export.files import format_of, quiet, require_onnx, write_graph
from bndl.export.graph import Answers, constant, dims, traced
from bndl.export.trial import tried
from bndl.features import evaluating
from bndl.files import replacing
from bndl.layer import DecisionLayer
from bndl.predict import about_empty

__all__ = ["Exported", "Port", "export"]

_ONE_AT_A_TIME = threading.Lock()  # torch's tracer has one state for all threads


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
        differences: of each output, the largest difference to :func:`bndl.predict` on the example; of those that are
            whole numbers or yes and no, the share that differs; None where the file was not run.
    """

    path: Path
    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]
    size: int
    differences: dict[str, float] | None


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
    classes: Sequence[str] | None = None,
    about: Mapping[str, Any] | None = None,
    opset: int | None = None,
    check: bool = True,
) -> Exported:
    """Write the model, with its uncertainty, to a file that runs where there is neither bndl nor, for ONNX, torch.

    The file gives what :func:`bndl.predict` gives with the same arguments, for a batch of any size, to the rounding of
    float32 (probabilities to some 1e-5): the draws are in it as constants. A p below 1e-38 is 0. Where an input or a
    feature is NaN or infinite, or a feature beyond 1e12, no decision is certain: predict refuses such features. An input
    that is not finite somewhere in the example may be so later. Let nothing else of torch run in other threads meanwhile.

    Args:
        model: a model with a :class:`bndl.DecisionLayer`, or the layer itself.
        path: a name that ends in ``.onnx``, for ONNX Runtime and all that read its format, or in ``.pt2``, for
            ``torch.export.load``.
        example: a batch as the model takes it: a tensor or array (B, ...), or a Hugging Face batch (dict). It tells the
            dims, of which the first, and the second of tokens if the model allows it, may be any number later; and the
            file is tried on it. What a dict holds besides tensors is a constant of the file.
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
    layer = find_layer(model)
    _check(path, layer, reasons, classes, opset)
    decider = Decider(
        layer, method=method, against=against, num_samples=num_samples, seed=seed, level=level, dense=True
    )
    settings = {
        "method": method,
        "against": against,
        "samples": int(decider.draws.num_samples),
        "seed": int(seed),
        "level": level,
    }
    notes = _notes({**settings, "classes": None if classes is None else [str(name) for name in classes]}, about or {})
    if empty := layer.empty_classes():
        warnings.warn(about_empty(empty), stacklevel=2)
    if method != "closed":
        decider.draws.hold()  # draws are constants of the graph, not something that it does
    off = torch.autocast(layer.weight.device.type, enabled=False)
    with replacing(path) as temporary, _ONE_AT_A_TIME, quiet(), evaluating(model), constant(model), off:
        answers = Answers(model, decider, prepared(model, layer, example), reasons=reasons)
        written = _write(answers, temporary, notes, opset=opset, check=check)
    return replace(written, path=path)


def _write(answers: Answers, path: Path, notes: dict[str, Any], *, opset: int | None, check: bool) -> Exported:
    """Write the file and try it."""
    inputs = answers.example.inputs
    outputs = answers(*inputs.values())
    if twice := inputs.keys() & outputs.keys():
        raise InputError(f"the model has an input called {min(twice)!r}, as is an output of the file: rename it.")
    program = traced(answers)
    free = dims(program, inputs)
    about = json.dumps({**notes, "inputs": [*inputs], "outputs": [*outputs]})
    write_graph(program, free, tuple(outputs), path, about=about, opset=opset)
    lengths = {n: (x.size(1) + 1) // 2 for n, x in inputs.items() if isinstance(free[n][-1], str) and x.dim() > 1}
    differences = tried(path, answers, lengths) if check else None
    taken = tuple(Port(name, _dtype(x), free[name]) for name, x in inputs.items())
    given = tuple(Port(name, _dtype(x), ("batch", *x.size()[1:])) for name, x in outputs.items())
    return Exported(path, taken, given, path.stat().st_size, differences)


def _check(path: Path, layer: DecisionLayer, reasons: int, classes: Sequence[str] | None, opset: int | None) -> None:
    """Refuse what cannot be, before the work."""
    if format_of(path) == ".onnx":
        require_onnx()
    elif opset is not None:
        raise InputError(f"opset is a version of ONNX's operators, and {path.name} is not ONNX: leave it out.")
    if not isinstance(opset, int | None) or not isinstance(reasons, int) or isinstance(reasons, bool) or reasons < 0:
        raise InputError(
            f"reasons is how many terms to give of each decision, 0 for none, and opset a version: whole numbers; got "
            f"{reasons!r} and {opset!r}."
        )
    if isinstance(classes, str | Mapping):
        raise InputError(f"classes are a list of names, in the order of their numbers, got {type(classes).__name__}.")
    if classes is not None and len(classes) != layer.out_features:
        raise InputError(f"{len(classes)} classes are named, the layer has {layer.out_features}: name each of them.")


def _notes(ours: dict[str, Any], theirs: Mapping[str, Any]) -> dict[str, Any]:
    """What is kept in the file as JSON."""
    notes = {"bndl": __version__, **ours}
    if taken := {*theirs} & {*notes, "inputs", "outputs"}:
        raise InputError(f"about holds {min(taken)!r}, which the file says itself: use another name.")
    try:
        json.dumps(dict(theirs), allow_nan=False)
    except (TypeError, ValueError) as error:
        raise InputError(f"about cannot be kept in the file ({error}): give a dict of what JSON can hold.") from error
    return {**notes, **theirs}


def _dtype(value: Tensor) -> str:
    return str(value.dtype).removeprefix("torch.")

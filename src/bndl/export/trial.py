"""The trial of a finished file: does it say what the model says?"""

import re
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from bndl.errors import BndlError, InputError
from bndl.export.example import Example
from bndl.export.files import first_line, format_of
from bndl.export.graph import Answers

__all__ = ["runner", "tried"]

_MAY_DIFFER = 1e-3  # between the probabilities of the file and of predict; other rounding makes a millionth
_MAY_DECIDE_OTHERWISE = 0.05  # of the examples: those on an edge, where a rounding decides


def tried(path: Path, answers: Answers, lengths: dict[str, int]) -> dict[str, float] | None:
    """How far the file is from the model, on the example and on parts of it; None where it cannot be run here.

    Args:
        path: of the file.
        answers: the model.
        lengths: of the inputs that may be of another length, that length on which they are to be tried, too.
    Returns:
        Of each output the largest difference; of those that are whole numbers or yes and no, the share that differs.
    """
    run = runner(path)
    if run is None:
        return None
    found: dict[str, float] = {}
    for given in _parts(answers.example, lengths):
        try:
            wanted = answers(*given.values())
        except Exception:  # the model itself does not take this length
            continue
        differences = _differences(run(given), wanted)
        _judge(differences, count=len(wanted["labels"]))
        found = {name: max(difference, found.get(name, 0.0)) for name, difference in differences.items()}
    return found


def _parts(example: Example, lengths: dict[str, int]) -> list[dict[str, Tensor]]:
    """The example whole, its first row alone, and with fewer tokens."""
    parts = [example.rows(slice(None)), example.rows(slice(1))]
    shorter = {name: x[:, : lengths[name]] if name in lengths else x for name, x in example.inputs.items()}
    return [*parts, shorter] if lengths else parts


def _judge(differences: dict[str, float], *, count: int) -> None:
    """Refuse a file that says something else; a single decision may be on an edge, where a rounding makes it."""
    if differences["probs"] > _MAY_DIFFER:
        raise BndlError(
            f"the exported graph gives other probabilities than the model, by up to {differences['probs']:.2g}, so nothing "
            "was written: is there something random in the model's forward pass? check=False writes it unchecked."
        )
    otherwise = max(differences["labels"], differences["certain"])
    if otherwise > _MAY_DECIDE_OTHERWISE and round(otherwise * count) > 1:
        raise BndlError(
            f"the exported graph decides otherwise than the model in {otherwise:.0%} of the example, so nothing was "
            "written: are its decisions ties? check=False writes it unchecked."
        )


def _differences(found: list[Tensor], wanted: dict[str, Tensor]) -> dict[str, float]:
    return {name: _apart(value, wanted[name]) for name, value in zip(wanted, found, strict=True)}


def _apart(found: Tensor, wanted: Tensor) -> float:
    if not found.is_floating_point():
        return float((found != wanted).double().mean())
    return float((found.double() - wanted.double()).abs().max().nan_to_num(torch.inf))


def runner(path: Path) -> Callable[[dict[str, Tensor]], list[Tensor]] | None:
    """Runs the file on inputs by name, on the CPU; None where there is no ONNX Runtime."""
    run = _in_torch(path) if format_of(path) == ".pt2" else _in_onnx_runtime(path)
    if run is None:
        return None

    def guarded(given: dict[str, Tensor]) -> list[Tensor]:
        try:
            return run(given)
        except Exception as error:
            dims = ", ".join(str(tuple(x.size())) for x in given.values())
            raise BndlError(
                f"the exported graph fails on a batch of dims {dims} ({first_line(error)}), so nothing was written: the "
                "model's forward pass must be the same for any batch."
            ) from error

    return guarded


def _in_torch(path: Path) -> Callable[[dict[str, Tensor]], list[Tensor]]:
    try:
        module = torch.export.load(path).module()
    except Exception as error:  # what depends on the values of inputs is written, and not read
        raise InputError(
            f"torch cannot read back what it wrote of this model ({first_line(error)}): write .onnx."
        ) from error
    return lambda given: list(module(*given.values()).values())


def _in_onnx_runtime(path: Path) -> Callable[[dict[str, Tensor]], list[Tensor]] | None:
    try:
        import onnxruntime
    except ImportError:
        return None
    try:
        session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    except Exception as error:  # an operator that it lacks, or lacks for this dtype; a format that is too new for it
        raise InputError(
            f"ONNX Runtime {onnxruntime.__version__} cannot run this model ({_reason(error)}): export it in float32 "
            "(model.float()), leave opset out, write a .pt2 file, or export it unchecked for another runtime."
        ) from error
    return lambda given: [
        torch.from_numpy(value) for value in session.run(None, {name: x.cpu().numpy() for name, x in given.items()})
    ]


def _reason(error: Exception) -> str:
    """What ONNX Runtime says, without its codes and the name of a file that will not be."""
    return re.sub(r"^\[ONNXRuntimeError\][ :\d]*[A-Z_ ]*: |Load model from .*? failed:", "", first_line(error))

"""Traced graphs as files, ONNX or torch's ``.pt2``, without a trace of the machine they come from."""

import io
import logging
import re
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.fx import GraphModule

from bndl._version import __version__
from bndl.errors import InputError, MissingExtraError

__all__ = ["first_line", "format_of", "quiet", "require_onnx", "write_graph"]

_LARGEST = 2 * 10**9  # bytes: what one ONNX file can hold
_TALKING = (
    "torch._export.non_strict_utils",
    "torch.fx.experimental.symbolic_shapes",
    "torch.onnx._internal.exporter._compat",
    "torch.onnx._internal.exporter._registration",
    "onnxscript.version_converter",
)
_NOTED = ("stack_trace", "nn_module_stack", "source_fn_stack", "torch_fn")  # whose files a node comes from
_MEANINGS = {
    "labels": "the decision: the class with the largest mean logit",
    "probs": "predictive probabilities of all classes, averaged over the posterior",
    "logits": "mean logits; the terms of a decision add up to its one, less the bias",
    "runner_up": "the class that came second",
    "p_value": "of the t-test, at S = 20 draws, of the decision; its alternative is in the metadata",
    "flip_probability": "probability that the second class beats the first",
    "certain": "whether p_value is at most the level in the metadata; never where inputs or features are not finite",
    "entropy": "of the probabilities, in nats",
    "aleatoric": "variance of the difference of the first two logits that comes from the example",
    "epistemic": "variance of the same difference that comes from the model",
    "reason_features": "numbers of the features with the largest terms in the decision's logit, largest first; -1: no more",
    "reason_terms": "what each of them adds to the decision's logit, less its bias",
}


def format_of(path: Path) -> str:
    """The suffix, of those that are known."""
    suffix = path.suffix.lower()
    if suffix not in (".onnx", ".pt2"):
        raise InputError(f"{path} names no format: let it end in .onnx or .pt2.")
    return suffix


def write_graph(
    program: ExportedProgram,
    inputs: Mapping[str, tuple[int | str, ...]],
    outputs: tuple[str, ...],
    path: Path,
    *,
    about: str,
    opset: int | None = None,
) -> None:
    """Write a traced graph, in the format of the path's suffix.

    Args:
        program: the graph.
        inputs: what to call its inputs, and their dims; those that may be any number by a name.
        outputs: what to call its outputs.
        path: of the file.
        about: JSON that is kept in it: in ONNX the metadata ``bndl``, in a ``.pt2`` the extra file ``bndl.json``.
        opset: version of ONNX's operators; None: the exporter's.
    """
    for module in program.graph_module.modules():
        for node in module.graph.nodes if isinstance(module, GraphModule) else ():
            for key in _NOTED:
                node.meta.pop(key, None)
    if format_of(path) == ".onnx":
        _write_onnx(program, inputs, outputs, path, about=about, opset=opset)
        return
    program.example_inputs = None  # the user's own data
    archive = io.BytesIO()  # a path's name would be written in it
    try:
        torch.export.save(program, archive, extra_files={"bndl.json": about})
    except Exception as error:  # an operator of the user's own
        raise InputError(f"torch cannot write this model to a file ({first_line(error)}): try .onnx.") from error
    path.write_bytes(archive.getbuffer())


def _write_onnx(
    program: ExportedProgram,
    inputs: Mapping[str, tuple[int | str, ...]],
    outputs: tuple[str, ...],
    path: Path,
    *,
    about: str,
    opset: int | None,
) -> None:
    require_onnx()
    names = {"input_names": list(inputs), "output_names": list(outputs)}
    try:
        written = torch.onnx.export(program, **names, opset_version=opset, dynamo=True, verbose=False)  # type: ignore[arg-type]
    except ImportError as error:  # torch looks for what an older exporter lacks
        raise MissingExtraError("ONNX", extra="export") from error
    except Exception as error:  # an operator that ONNX does not have, a version that is not known
        raise InputError(f"ONNX cannot hold this model ({_obstacle(error)}): try a .pt2 file.") from error
    assert written is not None
    model = written.model
    if opset is not None and model.opset_imports[""] != opset:
        raise InputError(
            f"the model cannot be written in version {opset} of ONNX's operators, only in {model.opset_imports['']} or near "
            "it: leave opset out."
        )
    if sum(v.const_value.nbytes for v in model.graph.initializers.values() if v.const_value) > _LARGEST:
        raise InputError("the model is larger than the 2 GB that one ONNX file can hold: write a .pt2 file.")
    _name_dims(model.graph, inputs)
    _note(model, about)
    import onnx_ir

    onnx_ir.save(model, path)


def require_onnx() -> None:
    """Refuse where what writes ONNX is not installed."""
    try:
        import onnx_ir  # noqa: F401
        import onnxscript  # noqa: F401
    except ImportError as error:
        raise MissingExtraError("ONNX", extra="export") from error


def _note(model: Any, about: str) -> None:
    """What the file says of itself; nothing of where it was made."""
    from onnx import helper

    for node in model.graph:
        node.metadata_props.clear()
        node.doc_string = None
    for value in (*model.graph.inputs, *model.graph.outputs):
        value.metadata_props.clear()
    for value in model.graph.outputs:
        value.doc_string = _MEANINGS[str(value.name)]
    model.metadata_props["bndl"] = about
    model.producer_name, model.producer_version = "bndl", __version__
    versions = [helper.make_opsetid(domain, version) for domain, version in model.opset_imports.items()]
    model.ir_version = helper.find_min_ir_version_for(versions, ignore_unknown=True)  # for the sake of older runtimes


def _obstacle(error: Exception) -> str:
    """What the exporter stumbled on: the first cause of what it says."""
    cause: BaseException = error
    while cause.__cause__ is not None:
        cause = cause.__cause__
    operator = re.search(r"No ONNX function found for <OpOverload\(op='(.+?)'", str(cause))
    return f"it has nothing for torch's {operator[1]}" if operator else first_line(cause)


def _name_dims(graph: Any, inputs: Mapping[str, tuple[int | str, ...]]) -> None:
    """Call dims that may be any number what they are, not what the tracer called them."""
    import onnx_ir

    names = {
        str(dim): name
        for value in graph.inputs
        for dim, name in zip(value.shape, inputs[value.name], strict=True)
        if isinstance(name, str)
    }
    values = (*graph.inputs, *(value for node in graph for value in node.outputs))
    for value in values:
        if value.shape is not None:
            value.shape = onnx_ir.Shape([names.get(str(dim), dim) for dim in value.shape])


def first_line(error: BaseException) -> str:
    """What an error says, in short."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return lines[0].split(" For more information")[0].strip().rstrip(".:!")[:200]


@contextmanager
def quiet() -> Iterator[None]:
    """Without what the exporters say of themselves."""
    loggers = [logging.getLogger(name) for name in _TALKING]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)

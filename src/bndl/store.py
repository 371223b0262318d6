"""Models in and out of safetensors files: no pickle, a readable header, nothing half-written."""

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from bndl._version import __version__
from bndl.compact import CompactLayer, index_fault
from bndl.convert import find_layer, replace_everywhere
from bndl.errors import FileError, InputError, MissingExtraError
from bndl.files import replacing
from bndl.layer import DecisionLayer

if TYPE_CHECKING:
    from bndl.edit import Editor

__all__ = ["load", "read_header", "save"]

_FORMAT = "bndl"
_FORMAT_VERSION = 1


def save(
    model: nn.Module,
    path: str | os.PathLike[str],
    *,
    classes: Sequence[str] | None = None,
    head_only: bool = False,
    edits: "Editor | None" = None,
) -> Path:
    """Write the model's weights and what is needed to build its decision layer again; atomically.

    The header (JSON, readable with any safetensors tool) holds the versions, the head's place and settings, and the names
    of the classes.

    Args:
        model: a model with a :class:`bndl.DecisionLayer`, or the layer itself.
        path: the file to write; replaced as a whole if it exists.
        classes: names of the classes, in the order of the labels.
        head_only: leave the backbone's weights out (a few kilobytes; the backbone must come with its own).
        edits: the editor of this model, whose edits are kept in the header; ``bndl.edit.Editor.load(path, model)`` brings
            them back, to be undone or gone on with.
    Returns:
        The path.
    """
    _safetensors()  # said before any work
    model, path = _unwrapped(model), Path(path)
    layer = find_layer(model)
    if broken := [name for name, p in layer.named_parameters() if torch.isnan(p).any()]:
        raise InputError(f"the decision layer's {broken[0]} holds NaN: train the model again before saving it.")
    head = next(name for name, module in model.named_modules() if module is layer)
    names = None if classes is None else [str(name) for name in classes]
    if names is not None and len(names) != layer.out_features:
        raise InputError(f"the model has {layer.out_features} classes, got {len(names)} names.")
    if edits is not None and edits.layer is not layer:
        raise InputError("these are the edits of another model: give the editor that was made of this one.")
    header = {
        "format_version": _FORMAT_VERSION,
        "bndl": __version__,
        "torch": torch.__version__,
        "head": head,
        "head_only": head_only,
        "origin": layer.origin,
        "settings": layer.settings,
        "classes": names,
    } | ({} if edits is None else {"edits": edits.to_dict()})
    prefix = f"{head}." if head else ""
    aliases = tuple(name for name in _names(model, layer) if name != prefix)
    state = {k: v for k, v in model.state_dict().items() if not k.startswith(aliases)}
    state = {k: v for k, v in state.items() if not head_only or k.startswith(prefix)}
    metadata = {"format": _FORMAT, "header": json.dumps(header)}
    with replacing(path) as temporary:
        temporary.write_bytes(to_bytes(state, metadata))
    return path


def to_bytes(state: dict[str, Tensor], metadata: dict[str, str]) -> bytes:
    """A safetensors file; the same tensors and metadata give the same bytes, which the library alone does not promise."""
    raw = _safetensors().torch.save(_unshared(state), metadata=metadata)
    length = int.from_bytes(raw[:8], "little")
    header = json.loads(raw[8 : 8 + length])
    header["__metadata__"] = dict(sorted(header["__metadata__"].items()))
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)  # tensors begin at a multiple of eight
    return bytes(len(text).to_bytes(8, "little") + text + raw[8 + length :])


def load(path: str | os.PathLike[str], *, backbone: nn.Module | None = None) -> nn.Module:
    """Read a saved model, in ``eval()`` mode.

    Args:
        path: a file that :func:`save` wrote.
        backbone: the model's architecture, its head an ``nn.Linear`` or a decision layer already. It is changed in place,
            and only once the whole file has been found good. Left out, the decision layer alone is returned; it takes
            features.
    Raises:
        FileError: the file is missing, damaged, foreign, or of another architecture.
    """
    path = Path(path)
    header, state = _read(path)
    prefix = f"{header['head']}." if header["head"] else ""
    own = {key[len(prefix) :]: value for key, value in state.items() if key.startswith(prefix)}
    layer = _build_layer(path, header, own)
    _load_strictly(path, layer, own)
    layer.origin = str(header.get("origin", ""))
    if backbone is None:
        return layer.eval()
    if not header["head"]:
        raise FileError(f"{path} holds a decision layer without a backbone: call bndl.load without backbone=.")
    old = _find_place(path, backbone, header["head"], layer)
    if not header["head_only"]:
        others = {key: value for key, value in state.items() if not key.startswith(prefix)}
        _check_backbone(path, backbone, others, old)
        backbone.load_state_dict(others, strict=False)
    device = next((p.device for p in old.parameters()), torch.device("cpu"))
    replace_everywhere(backbone, old, layer.to(device))
    return backbone.eval()


def read_header(path: str | os.PathLike[str]) -> dict[str, Any]:
    """The header of a saved model: versions, classes, settings of the head. The weights are not read."""
    safetensors, path = _safetensors(), Path(path)
    if not path.is_file():
        raise FileError(f"there is no file {path}: check the path, or write it with bndl.save.")
    try:
        with safetensors.safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
    except (safetensors.SafetensorError, OSError) as error:
        raise FileError(
            f"{path} is damaged or no safetensors file ({error}): write it again with bndl.save."
        ) from error
    if metadata.get("format") != _FORMAT:
        raise FileError(f"{path} is a safetensors file, but bndl.save did not write it: give one that it wrote.")
    try:
        header: dict[str, Any] = json.loads(metadata["header"])
        version, _ = header["format_version"], (header["head"], header["head_only"], header["settings"])
    except (KeyError, TypeError, json.JSONDecodeError) as error:
        raise FileError(f"the header of {path} is damaged: write the file again with bndl.save.") from error
    if version != _FORMAT_VERSION:
        raise FileError(f"{path} has format version {version}, this bndl reads {_FORMAT_VERSION}: update bndl.")
    return header


def _safetensors() -> Any:
    """The package, with its part for torch, imported when it is needed."""
    try:
        import safetensors
        import safetensors.torch
    except ImportError as error:
        raise MissingExtraError("saving and loading", extra="io") from error
    return safetensors


def _read(path: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    header, safetensors = read_header(path), _safetensors()
    try:
        return header, safetensors.torch.load_file(path)
    except (safetensors.SafetensorError, OSError) as error:
        raise FileError(f"{path} is damaged ({error}): write it again with bndl.save.") from error


def _build_layer(path: Path, header: dict[str, Any], state: dict[str, Tensor]) -> DecisionLayer:
    try:
        kind = CompactLayer if "num_kept" in header["settings"] else DecisionLayer
        with torch.device("meta"):  # an edited setting must not ask for all memory
            built = kind(**header["settings"])
            expected = {k: v.size() for k, v in built.state_dict().items()}
    except (TypeError, InputError, RuntimeError) as error:
        raise FileError(
            f"the settings in {path} build no decision layer ({_first_line(error)}): write it again."
        ) from error
    if expected != {k: v.size() for k, v in state.items()}:
        raise FileError(f"the head in {path} is incomplete or has other dims than its settings say.")
    if isinstance(built, CompactLayer) and (fault := index_fault(state["kept"], built.total_features)):
        raise FileError(f"the head in {path} is damaged ({fault}): write it again with bndl.save.")
    with torch.random.fork_rng([]):  # a new layer draws weights, which are overwritten here
        return kind(**header["settings"])


def _load_strictly(path: Path, layer: DecisionLayer, state: dict[str, Tensor]) -> None:
    dtypes = {value.dtype for value in state.values() if value.is_floating_point()}
    layer.to(next(iter(dtypes), torch.float32))
    try:
        layer.load_state_dict(state)
    except RuntimeError as error:
        raise FileError(f"the head in {path} is incomplete or has other dims ({_first_line(error)}).") from error
    for name, value in state.items():
        if not torch.isfinite(value).all():
            raise FileError(f"{name} in {path} holds NaN or infinite values: the file is damaged, or the model was.")


def _check_backbone(path: Path, backbone: nn.Module, state: dict[str, Tensor], old: nn.Module) -> None:
    expected = {k: v.size() for k, v in backbone.state_dict().items() if not k.startswith(_names(backbone, old))}
    for name, value in state.items():
        if value.isnan().any():  # but -inf may be a mask
            raise FileError(f"{name} in {path} holds NaN: the file is damaged, or the model was.")
    found = {k: v.size() for k, v in state.items()}
    if expected != found:
        odd = sorted(k for k in expected.keys() | found.keys() if expected.get(k) != found.get(k))
        raise FileError(
            f"{path} does not fit this backbone: {len(odd)} entries differ, first {odd[0]} "
            f"({_dims(found.get(odd[0]))} in the file, {_dims(expected.get(odd[0]))} in the model)."
        )


def _dims(size: torch.Size | None) -> str:
    return "missing" if size is None else str(tuple(size))


def _find_place(path: Path, backbone: nn.Module, head: str, layer: DecisionLayer) -> nn.Module:
    try:
        old = backbone.get_submodule(head)
    except AttributeError as error:
        raise FileError(f"{path} has its head at {head!r}, which {type(backbone).__name__} does not have.") from error
    if isinstance(old, nn.Linear | DecisionLayer) and old.in_features != layer.in_features:
        raise FileError(
            f"{path} does not fit this backbone: its head takes {layer.in_features} features, "
            f"{head!r} takes {old.in_features}."
        )
    return old


def _unwrapped(model: nn.Module) -> nn.Module:
    """The model inside torch.compile's, DataParallel's or DistributedDataParallel's wrapper."""
    while True:
        inner = getattr(model, "_orig_mod", None)
        if isinstance(model, nn.DataParallel | nn.parallel.DistributedDataParallel):
            inner = model.module
        if not isinstance(inner, nn.Module):
            return model
        model = inner


def _names(model: nn.Module, part: nn.Module) -> tuple[str, ...]:
    """Prefixes in the state dict of every name that the model has for a part of it."""
    return tuple(f"{name}." for name, module in model.named_modules(remove_duplicate=False) if module is part)


def _unshared(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """Tensors that own their memory, as the format asks for."""
    return {key: value.detach().cpu().clone().contiguous() for key, value in state.items()}


def _first_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return (lines[1] if len(lines) > 1 else lines[0]).rstrip(".")

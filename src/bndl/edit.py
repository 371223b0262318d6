r"""Change the decision layer by hand, see what that fixes and what it breaks, take it back, keep it with the model.

An edit multiplies weights of one feature, for a class or for all: :math:`\Phi_{kc} \leftarrow f\,\Phi_{kc}`, f >= 0. The
logits follow at once, :math:`l_c \leftarrow l_c - (1 - f)\,\theta_k \Phi_{kc}`; nothing is trained.
"""

import base64
import copy
import hashlib
import json
import math
import operator
import os
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from numbers import Real
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from bndl.convert import find_layer
from bndl.effect import ClassEffect, Effect, compared
from bndl.errors import FileError, InputError
from bndl.features import extract
from bndl.files import replacing
from bndl.layer import DecisionLayer

__all__ = ["ClassEffect", "Edit", "Editor", "Effect", "effect", "fingerprint"]

_FORMAT, _VERSION = "bndl-edits", 1
_LARGEST = 1e6  # of a factor: beyond it float32 would soon overflow


@dataclass(frozen=True)
class Edit:
    """Multiply the weights of a feature.

    Attributes:
        feature: its number among all features (``layer.feature_ids``); of a signed layer k >= ``in_features`` is the
            negative part.
        target: the class whose weight it is, or None for all classes.
        factor: what the weight is multiplied by; 0 drops it.
        note: why, for whoever reads it later.
    """

    feature: int
    target: int | None = None
    factor: float = 0.0
    note: str = ""

    def __post_init__(self) -> None:
        # numbers of numpy and torch become Python's, which JSON takes
        object.__setattr__(self, "feature", _index("feature", self.feature))
        if self.target is not None:
            object.__setattr__(self, "target", _index("target", self.target))
        object.__setattr__(self, "factor", _factor(self.factor))
        if not isinstance(self.note, str):
            raise InputError(f"the note of an edit is a text, got {type(self.note).__name__}.")


def _index(name: str, value: Any) -> int:
    try:
        if not isinstance(value, bool) and getattr(value, "dtype", None) != torch.bool and operator.index(value) >= 0:
            return operator.index(value)
    except TypeError:
        pass
    raise InputError(f"the {name} of an edit is a number from 0 on, got {value!r}.")


def _factor(value: Any) -> float:
    try:
        factor = float(value) if not isinstance(value, bool) and isinstance(value, Real) else math.nan
    except OverflowError:  # a huge int
        factor = math.inf
    if not 0 <= factor <= _LARGEST:
        raise InputError(f"the factor of an edit lies between 0 and {_LARGEST:.0e}, got {value!r}.")
    return factor


@dataclass(frozen=True)
class _Done:
    """An edit that was made: the feature's column of weights (C,) before and after it."""

    edit: Edit
    column: int
    before: Tensor
    after: Tensor


class Editor:
    """Edits of a model's decision layer, made in place, in order; each can be undone to the last bit.

    Args:
        model: a model with a :class:`bndl.DecisionLayer`, compact or not, or the layer itself.

    Example:
        >>> editor = Editor(DecisionLayer(8, 3))
        >>> editor.drop(5, target=2, note="looks at the frame")
        Edit(feature=5, target=2, factor=0.0, note='looks at the frame')
        >>> editor.undo()
        Edit(feature=5, target=2, factor=0.0, note='looks at the frame')
    """

    def __init__(self, model: nn.Module) -> None:
        self.model, self.layer = model, find_layer(model)
        self._before = fingerprint(self.layer)
        self._done: list[_Done] = []
        self._undone: list[Edit] = []

    @property
    def edits(self) -> tuple[Edit, ...]:
        """What was done and not undone, in order."""
        return tuple(done.edit for done in self._done)

    def drop(self, feature: int, target: int | None = None, *, note: str = "") -> Edit:
        """Take a weight out, or with ``target=None`` the feature out of all classes."""
        return self.apply(Edit(feature, target, 0.0, note))

    def scale(self, feature: int, factor: float, target: int | None = None, *, note: str = "") -> Edit:
        """Multiply a weight, or with ``target=None`` all weights of the feature."""
        return self.apply(Edit(feature, target, factor, note))

    def apply(self, edit: Edit) -> Edit:
        """Make an edit; what was undone before it can no longer be redone."""
        self._apply(edit)
        self._undone.clear()
        return edit

    def undo(self) -> Edit:
        """Take the last edit back: the weights are what they were, bit for bit."""
        if not self._done:
            raise InputError("there is no edit to undo.")
        last = self._done[-1]
        if not torch.equal(self.layer.weight.detach()[:, last.column], last.after):
            raise InputError("the weights were changed by something else since the last edit: load the model again.")
        self._write(last.column, last.before)
        self._undone.append(self._done.pop().edit)
        return last.edit

    def redo(self) -> Edit:
        """Make the edit again that was undone last."""
        if not self._undone:
            raise InputError("there is no edit to make again.")
        self._apply(self._undone[-1])
        return self._undone.pop()

    def reset(self) -> None:
        """Undo all."""
        while self._done:
            self.undo()

    def effect(self, data: Any, *, batch_size: int = 256, progress: bool | None = None) -> Effect:
        """What all edits so far fix and break; see :func:`effect`."""
        after, original = self.layer, copy.deepcopy(self.layer)
        with torch.no_grad():
            for done in reversed(self._done):
                original.weight[:, done.column] = done.before
        features = extract(self.model, data, batch_size=batch_size, progress=progress)
        return compared(original, after, features)

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready: the edits, which head they are of, and the columns that they changed, as they were."""
        first = {done.column: done.before for done in reversed(self._done)}
        ids = self.layer.feature_ids.tolist()
        return {
            "format": _FORMAT,
            "version": _VERSION,
            "before": self._before,
            "after": fingerprint(self.layer),
            "edits": [asdict(edit) for edit in self.edits],
            "columns": {str(ids[column]): _encoded(values) for column, values in sorted(first.items())},
        }

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the edits as JSON, whole or not at all; ``bndl.save(model, path, edits=editor)`` keeps them in the model."""
        with replacing(path) as temporary:
            temporary.write_text(json.dumps(self.to_dict(), indent=1) + "\n", encoding="utf-8")
        return Path(path)

    @classmethod
    def load(cls, path: str | os.PathLike[str], model: nn.Module) -> "Editor":
        """An editor of the model with the edits that a file holds, which can be undone.

        Args:
            path: what :meth:`save` wrote, a model's file that ``bndl.save(..., edits=editor)`` wrote, or the list that a
                report's page saved, which does not say which head it is of.
            model: the model before these edits, which are made now; or after them, as it was saved.
        Raises:
            FileError: the file is missing or damaged, or the edits are those of another head.
        """
        record, editor = _read(Path(path)), cls(model)
        kept = editor.layer.weight.detach().clone()
        try:
            edits = [Edit(**one) for one in (record if isinstance(record, list) else record["edits"])]
            if isinstance(record, list):  # of a page: made to the head as it stands
                record = {"before": editor._before, "after": None}
            elif editor._before == record["after"] != record["before"]:
                for feature, text in record["columns"].items():
                    editor._write(editor._column(int(feature)), _decoded(text, like=kept[:, 0]))
                editor._before = fingerprint(editor.layer)
            if editor._before != record["before"]:
                raise InputError("they were made to another one")
            for edit in edits:
                editor._apply(edit)
            if record["after"] not in (None, fingerprint(editor.layer)):
                raise InputError("they give other weights than they did")
        except (KeyError, TypeError, ValueError, AttributeError, RuntimeError) as error:  # InputError is a ValueError
            editor._write(slice(None), kept)
            reason = str(error).rstrip(".") if isinstance(error, InputError) else "a part is missing or damaged"
            raise FileError(
                f"the edits in {path} do not fit this decision layer ({reason}): load the model that they belong to."
            ) from error
        return editor

    @torch.no_grad()
    def _apply(self, edit: Edit) -> None:
        column = self._column(edit.feature)
        if edit.target is not None and edit.target >= self.layer.out_features:
            raise InputError(f"the layer has classes 0..{self.layer.out_features - 1}, got {edit.target}.")
        before = self.layer.weight.detach()[:, column].clone()
        mean = self.layer.phi().mean.detach()[:, column]
        # a mean of 0 stays as it is; a weight of 0 is below any threshold alpha, so that nothing is left of it
        scaled = torch.zeros_like(mean) if edit.factor == 0 else edit.factor * mean + self.layer.alpha_phi
        chosen = mean > 0
        if edit.target is not None:
            chosen &= torch.arange(len(mean), device=mean.device) == edit.target
        after = torch.where(chosen, scaled.to(before.dtype), before) if edit.factor != 1 else before
        if not after.isfinite().all():
            raise InputError(f"a factor of {edit.factor:g} makes a weight overflow: choose a smaller one.")
        self._write(column, after)
        self._done.append(_Done(edit, column, before, after))

    def _column(self, feature: int) -> int:
        ids = self.layer.feature_ids
        found = (ids == feature).nonzero().flatten().tolist()
        if found:
            return int(found[0])
        total = getattr(self.layer, "total_features", self.layer.num_features)
        if 0 <= feature < total:
            raise InputError(f"feature {feature} has no weight in this compact layer: choose one of its feature_ids.")
        raise InputError(f"the layer has features 0..{total - 1}, got {feature}.")

    @torch.no_grad()
    def _write(self, column: int | slice, values: Tensor) -> None:
        self.layer.weight[:, column] = values.to(self.layer.weight.device)


def effect(
    model: nn.Module, edits: Iterable[Edit], data: Any, *, batch_size: int = 256, progress: bool | None = None
) -> Effect:
    """What edits would fix and break; the model is left as it is.

    Args:
        model: a model with a :class:`bndl.DecisionLayer`, or the layer itself.
        edits: to make to it as it stands, in order.
        data: labelled examples: a loader, a data set, or a :class:`bndl.features.FeatureSet`. Each passes the backbone once.
        batch_size: examples a pass, unless ``data`` is a loader.
        progress: as in :func:`bndl.predict`.
    """
    layer = find_layer(model)
    edited = Editor(copy.deepcopy(layer))
    for edit in edits:
        edited.apply(edit)
    return compared(layer, edited.layer, extract(model, data, batch_size=batch_size, progress=progress))


def fingerprint(layer: DecisionLayer) -> str:
    """32 hex digits that change with any setting or any bit of a decision layer."""
    state = hashlib.blake2b(json.dumps(layer.settings, sort_keys=True).encode(), digest_size=16)
    for name, tensor in sorted(layer.state_dict().items()):
        state.update(f"{name} {tuple(tensor.size())} {tensor.dtype} ".encode())
        state.update(_bytes(tensor))
    return state.hexdigest()


def _bytes(tensor: Tensor) -> bytes:
    """Of any dtype; numpy has no bfloat16."""
    return tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


def _encoded(values: Tensor) -> str:
    return base64.b64encode(_bytes(values)).decode("ascii")


def _decoded(text: str, *, like: Tensor) -> Tensor:
    """A column as it was encoded, with the dims and dtype of ``like``; ValueError where it has others."""
    raw = base64.b64decode(text, validate=True)
    return torch.frombuffer(bytearray(raw), dtype=like.dtype).reshape(like.size())


def _read(path: Path) -> dict[str, Any] | list[Any]:
    """The record in a JSON file, or in the header of a model's file; or the list of edits of a page."""
    if not path.is_file():
        raise FileError(f"there is no file {path}: give one that Editor.save or bndl.save wrote.")
    try:
        if path.suffix == ".safetensors":
            from bndl.store import read_header

            record = read_header(path).get("edits")
            if record is None:
                raise FileError(f"{path} was saved without edits: there are none to load.")
        else:
            record = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise FileError(f"{path} is damaged or holds no edits: write it again with Editor.save.") from error
    if isinstance(record, list):
        return record
    if not isinstance(record, dict) or record.get("format") != _FORMAT:
        raise FileError(f"{path} holds no edits of a decision layer: give a file that Editor.save wrote.")
    if record.get("version") != _VERSION:
        raise FileError(
            f"{path} has edits of version {record.get('version')!r}, this bndl reads {_VERSION}: update bndl."
        )
    return record

"""A source through a model into a file: reading, computing and writing at once, in memory that does not grow."""

import time
from collections.abc import Callable, Generator, Iterator
from contextlib import closing, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from torch import Tensor

from bndl._version import __version__
from bndl.data.folder import Damaged
from bndl.data.sets import as_float, digest
from bndl.decide import Decider
from bndl.errors import FileError, InputError
from bndl.features import passed
from bndl.reasons import top_reasons
from bndl.stream.columns import Columns
from bndl.stream.formats import Format, format_of
from bndl.stream.pipeline import Behind, ahead, in_order, one_thread_each
from bndl.stream.place import Note, Place
from bndl.stream.settings import Settings, Sizes
from bndl.stream.source import Batch, Source, cut
from bndl.stream.subject import Predictor

__all__ = ["Summary", "check_out", "predict_to_file"]

_DEPTH = 2  # batches that wait between two stages
_LARGEST = 1e12  # of a feature, as in bndl.features
_SHOWN = 5


@dataclass(frozen=True)
class Summary:
    """What was done.

    Attributes:
        rows: in the output.
        certain: how many of the decisions are.
        before: examples that an earlier start had done.
        seconds: that this start took.
        rate: examples a second, in this start.
        damaged: what could not be read and was left out.
    """

    rows: int
    certain: int
    before: int
    seconds: float
    rate: float
    damaged: tuple[Damaged, ...]


def predict_to_file(
    predictor: Predictor,
    source: Source,
    out: Path,
    *,
    settings: Settings | None = None,
    resume: bool = False,
    overwrite: bool = False,
    tell: Callable[[int, int], None] = lambda done, total: None,
) -> Summary:
    """Predict on all of a source, as :func:`bndl.predict` does to the last bit, and write a row for each example.

    The output appears at the end, whole. Until then finished shards are kept in ``FILE.part`` beside it, from which
    ``resume`` goes on, to the same bytes as if nothing had happened.

    Args:
        predictor: see :func:`bndl.stream.load_predictor`.
        source: see :func:`bndl.stream.open_source`.
        out: ``*.parquet``, ``*.csv`` or ``*.jsonl``.
        settings: how.
        resume: go on with what is in ``FILE.part``, if it was begun with the same model, source and settings.
        overwrite: replace the output, and begin again.
        tell: is given how many examples are done, and of how many, after every batch.
    """
    count, settings = source.count, settings or Settings()
    sizes = settings.sizes(source, len(predictor.classes))
    columns = Columns(predictor.classes, settings.probs, settings.reasons > 0)
    kind = format_of(out, columns)
    place = Place(out, identity=_identity(predictor, source, settings, out))
    with place.opened(resume=resume, overwrite=overwrite) as notes:
        started, before = time.monotonic(), min(count, len(notes) * sizes.shard)
        _Run(predictor, source, settings, sizes, columns, kind, place, tell).go_on(notes, before)
        rows, damaged = (
            sum(note.rows for note in notes),
            tuple(Damaged(*pair) for note in notes for pair in note.damaged),
        )
        if not rows:
            first = f"{damaged[0].path} ({damaged[0].reason})"
            raise FileError(f"none of the {count} images can be decoded, the first is {first}: check them.")
        if not source.images and source.fingerprint() != place.identity["source"]:
            raise FileError("the source changed while it was read: give --overwrite to begin again.")
        place.finish(kind.join, notes)
        seconds = time.monotonic() - started
    certain = sum(note.certain for note in notes)
    return Summary(rows, certain, before, seconds, (count - before) / max(seconds, 1e-9), damaged)


def check_out(out: Path, *, resume: bool = False, overwrite: bool = False) -> None:
    """Say what speaks against writing there, before a model is loaded."""
    format_of(out, Columns(()))
    Place(out, identity={}).check(resume=resume, overwrite=overwrite)


def _identity(predictor: Predictor, source: Source, settings: Settings, out: Path) -> dict[str, str]:
    """What decides on every byte of the output, by the names that people have for it."""
    own = settings.identity(source, len(predictor.classes))
    return {
        "model": predictor.fingerprint(),
        "source": source.fingerprint(),
        "setting": digest([repr(sorted(own.items())).encode(), out.suffix.lower().encode()]),
        "version of bndl or torch": f"{__version__} {torch.__version__}",
    }


@dataclass(frozen=True)
class _Made:
    """A batch of the output."""

    batch: Batch
    rows: pa.RecordBatch | None
    certain: int


@dataclass(frozen=True)
class _Run:
    """One start of a run."""

    predictor: Predictor
    source: Source
    settings: Settings
    sizes: Sizes
    columns: Columns
    format: Format
    place: Place
    tell: Callable[[int, int], None]

    def go_on(self, notes: list[Note], start: int) -> None:
        """Make the shards that are missing; ``notes`` grows with each."""
        if start >= self.source.count:
            return
        bounds = cut(start, self.source.count, shard=self.sizes.shard, size=self.sizes.batch)
        writer = _Writer(self.place, self.format, notes, self.sizes.shard, self.source.count)
        with (
            closing(ahead(self.source.batches(bounds), depth=_DEPTH)) as batches,
            closing(self._computed(batches)) as computed,
            Behind(writer.take, depth=_DEPTH) as behind,
        ):
            for made in computed:
                behind.put(made)
                self.tell(made.batch.bounds[1], self.source.count)

    def _computed(self, batches: Iterator[Batch]) -> Generator[_Made, None, None]:
        """The layer alone: a batch a thread. A backbone: a batch at a time, with all of torch's threads."""
        own, layer = self.settings, self.predictor.layer
        decider = Decider(layer, method=own.method, seed=own.seed, level=own.level)
        several = not self.source.images and layer.weight.device.type == "cpu"
        with one_thread_each() if several else nullcontext():
            if own.method != "closed":
                decider.draws.slices()  # made once, before the threads ask for them
            yield from in_order(
                batches, lambda batch: self._made(batch, decider), threads=self.sizes.threads if several else 1
            )

    @torch.no_grad()
    def _made(self, batch: Batch, decider: Decider) -> _Made:
        if batch.inputs is None:
            return _Made(batch, None, 0)
        layer = decider.layer
        if self.source.images:
            features = passed(self.predictor.model, as_float(batch.inputs), head=layer)
        else:
            features = batch.inputs.to(layer.weight)
        self._check(features, batch)
        found = decider(features)
        own = self.settings.reasons
        reasons = top_reasons(layer, features, found.labels, top=own) if own else None
        names = np.arange(*batch.bounds) if batch.names is None else batch.names
        rows = self.columns.batch(pa.array(names), found, reasons)
        return _Made(replace(batch, inputs=None), rows, int(found.certain.sum()))

    def _check(self, features: Tensor, batch: Batch) -> None:
        if features.dim() != 2:
            raise InputError(f"the decision layer was given dims {tuple(features.size())}, not one row an example.")
        low, high = features.aminmax()
        if float(low) > -_LARGEST and float(high) < _LARGEST:  # nan is not
            return
        bad = (~(features.abs() < _LARGEST)).any(dim=1).nonzero().flatten().tolist()
        start = batch.bounds[0]
        names = [self._name(batch, row, start) for row in bad[:_SHOWN]]
        more = f" and {len(bad) - _SHOWN} more near them" if len(bad) > _SHOWN else ""
        raise InputError(
            f"{', '.join(names)}{more}: NaN or infinite features, or some beyond {_LARGEST:.0e}; mend or drop them."
        )

    def _name(self, batch: Batch, row: int, start: int) -> str:
        return str(batch.names[row]) if self.source.images else self.source.name(start + row)


class _Writer:
    """Gathers batches to shards; ``notes`` grows with each that is on disk."""

    def __init__(self, place: Place, kind: Format, notes: list[Note], shard: int, count: int) -> None:
        self.place, self.format, self.notes, self.shard, self.count = place, kind, notes, shard, count
        self.held: list[_Made] = []

    def take(self, made: _Made) -> None:
        """One more; the last of a shard writes it."""
        self.held.append(made)
        end = made.batch.bounds[1]
        if end % self.shard and end < self.count:
            return
        batches = [held.rows for held in self.held if held.rows is not None]
        damaged = tuple((entry.path, entry.reason) for held in self.held for entry in held.batch.damaged)
        note = Note(sum(map(len, batches)), sum(held.certain for held in self.held), 0, damaged)
        self.notes.append(self.place.commit(len(self.notes), lambda path: self._write(batches, path), note))
        self.held = []

    def _write(self, batches: list[Any], path: Path) -> None:
        if batches:
            self.format.write(batches, path)

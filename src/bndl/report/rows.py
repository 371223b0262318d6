"""The examples as columns: as many rows as there is room for, all mistakes before a fair sample of the rest."""

from collections.abc import Iterable
from pathlib import PurePath
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bndl.data.folder import FolderSet
from bndl.data.sets import LabelledSet
from bndl.report.decided import Decided
from bndl.report.figures import deciles_of
from bndl.report.schema import Array, ExampleRows, Phi

__all__ = ["choose_rows", "example_rows", "names_of", "num_rows", "surest_mistakes"]

_FIXED = 4 + 3 * 2 + 3 * 4 + 1 + 1 + 4  # bytes of a row beside its logits and theta
_BASE64 = 4 / 3
_WANTED, _MISTAKES = 0.25, 0.75  # of the rows at most, where not all fit: what is right has to be seen as well


def num_rows(budget: int, *, num_classes: int, num_features: int, name_length: float) -> int:
    """How many rows fit into so many bytes of JSON."""
    each = _BASE64 * (_FIXED + 4 * num_classes + 2 * num_features) + (name_length + 3 if name_length else 0)
    return max(1, int(budget / each))


def surest_mistakes(decided: Decided) -> list[int]:
    """The wrong decisions: certain ones first, each kind by its probability to flip, ties by the class's probability."""
    told = decided.prediction
    wrong = (told.labels != decided.truth).nonzero().flatten()
    keys = (-told.confidence[wrong], told.flip_probability[wrong], ~told.certain[wrong])  # the last counts most
    return [int(i) for i in wrong[torch.from_numpy(np.lexsort([key.numpy() for key in keys]))]]


def choose_rows(
    decided: Decided, needed: Iterable[int], *, wanted: Iterable[int] = (), most: int, seed: int = 0
) -> list[int]:
    """Which examples get a row, ascending: all, or those needed, some of those wanted, mistakes, a sample by the seed.

    Args:
        decided: what was decided.
        needed: examples that the report cannot do without.
        wanted: examples that it speaks of elsewhere.
        most: how many rows there is room for.
        seed: of the sample.
    """
    if len(decided) <= most:
        return list(range(len(decided)))
    chosen = dict.fromkeys(needed)
    order = torch.randperm(len(decided), generator=torch.Generator().manual_seed(seed)).tolist()
    for examples, share in ((wanted, _WANTED), (surest_mistakes(decided), _MISTAKES), (order, 1.0)):
        for example in examples:
            if len(chosen) >= share * most:
                break
            chosen.setdefault(example)
    return sorted(chosen)


def names_of(data: LabelledSet | None) -> tuple[str, ...] | None:
    """The examples' file names, where they are files: the last folder and the name."""
    if not isinstance(data, FolderSet):
        return None
    return tuple("/".join(PurePath(file).parts[-2:]) for file in data.files)


def example_rows(
    decided: Decided,
    rows: list[int],
    *,
    features: list[int],
    theta: Tensor,
    thumbs: dict[int, int],
    names: tuple[str, ...] | None,
) -> ExampleRows:
    """The columns of these rows.

    Args:
        decided: what was decided.
        rows: examples.
        features: numbers of the features whose theta is kept.
        theta: (N, F) of these, of all examples.
        thumbs: example -> thumb.
        names: of all examples, or None.
    """
    told, index = decided.prediction, torch.tensor(rows)

    def column(values: Tensor, kind: Any) -> Array:
        return values[index].numpy().astype(kind)

    columns = [decided.column[number] for number in features]
    half = theta[index].clamp_max(torch.finfo(torch.float16).max)
    return ExampleRows(
        count=len(rows),
        all=len(rows) == len(decided),
        id=np.array(rows, dtype=np.uint32),
        label=column(told.labels, np.uint16),
        truth=column(decided.truth, np.uint16),
        runner=column(told.runner_up, np.uint16),
        prob=column(told.confidence, np.float32),
        p=column(told.p_value.nan_to_num(nan=1.0), np.float32),
        flip=column(told.flip_probability, np.float32),
        decile=deciles_of(decided.evaluation, decided.examples)[2][rows],
        certain=column(told.certain, np.uint8),
        thumb=np.array([thumbs.get(example, -1) for example in rows], dtype=np.int32),
        names=None if names is None else tuple(names[example] for example in rows),
        logits=column(told.logits, np.float32),
        theta_features=tuple(features),
        theta=half.numpy().astype(np.float16),
        phi=Phi(tuple(features), decided.phi[:, columns].t().numpy().astype(np.float32)),
        bias=tuple(decided.bias.tolist()),
    )

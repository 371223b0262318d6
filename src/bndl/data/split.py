"""Stratified, seeded splits of labels into parts, that can be written down and read back."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import Tensor

from bndl.data.sets import digest
from bndl.errors import InputError

Indices = np.ndarray[Any, np.dtype[np.int64]]


@dataclass(frozen=True)
class Holdout:
    """How much of the training part to hold out where a data set does not store that part itself.

    Attributes:
        val: share of each class for validation, carved out if no validation part is stored; 0 for none.
        test: share of each class for testing, carved out if only a training part is stored; 0 for none.
        seed: the split depends on it and on the labels alone.
        val_as_test: where train and val are stored but no test, take val as the test part, as papers do with
            ImageNet, and carve validation out of train.
    """

    val: float = 0.1
    test: float = 0.2
    seed: int = 0
    val_as_test: bool = False


@dataclass(frozen=True, eq=False)
class SplitPlan:
    """Which example belongs to which part.

    Attributes:
        seed: the seed that made it.
        fractions: share of each class asked for each held-out part.
        indices: for ``"train"`` and each held-out part, sorted int64 positions in the labels that were split.
        labels_digest: hash of those labels, so that a plan is never applied to other data.
    """

    seed: int
    fractions: Mapping[str, float]
    indices: Mapping[str, Indices]
    labels_digest: str

    def to_json(self) -> dict[str, Any]:
        """Return plain dicts, lists and numbers for ``json.dump``."""
        return {
            "seed": self.seed,
            "fractions": dict(self.fractions),
            "indices": {part: chosen.tolist() for part, chosen in self.indices.items()},
            "labels_digest": self.labels_digest,
        }

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> "SplitPlan":
        """Read back what :meth:`to_json` wrote."""
        try:
            indices = {str(part): np.asarray(chosen, dtype=np.int64) for part, chosen in record["indices"].items()}
            fractions = {str(part): float(share) for part, share in record["fractions"].items()}
            plan = cls(int(record["seed"]), fractions, indices, str(record["labels_digest"]))
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise InputError(f"This is no split record ({error!r}); write one with SplitPlan.to_json.") from error
        together = np.sort(np.concatenate([np.empty(0, np.int64), *plan.indices.values()]))
        if not np.array_equal(together, np.arange(len(together))):
            raise InputError("The split record does not hold every example exactly once; make the split anew.")
        return plan

    def check(self, labels: Tensor) -> None:
        """Raise unless ``labels`` (N,) are those that were split."""
        if self.labels_digest != digest_of_labels(labels.numpy()):
            count = sum(len(chosen) for chosen in self.indices.values())
            raise InputError(
                f"The split record was made for {count} other examples than these {len(labels)}; "
                "give the data it was made for or make a new split."
            )


def digest_of_labels(labels: np.ndarray[Any, Any]) -> str:
    """Hash labels (N,) as int64."""
    return digest([np.ascontiguousarray(labels, dtype=np.int64).tobytes()])


def stratified_split(
    labels: Tensor | Sequence[int] | np.ndarray[Any, Any],
    fractions: Mapping[str, float],
    *,
    seed: int = 0,
    classes: Sequence[str] | None = None,
) -> SplitPlan:
    """Split examples so that every class has nearly the same share in every part, and at least one example.

    Args:
        labels: (N,) integers.
        fractions: share of each held-out part, e.g. ``{"val": 0.1, "test": 0.2}``; the rest is ``"train"``.
        seed: of a generator of its own.
        classes: names for error messages.
    Returns:
        A plan with the indices of ``"train"`` and of each key of ``fractions``.
    """
    values = np.asarray(labels, dtype=np.int64)
    _check_fractions(fractions)
    if values.ndim != 1 or not len(values):
        raise InputError(f"A split needs labels of dims (N,) with N > 0, not {values.shape}.")
    generator = np.random.default_rng(seed)
    chosen: dict[str, list[Indices]] = {part: [] for part in ("train", *fractions)}
    for label in np.unique(values).tolist():
        members = generator.permutation(np.flatnonzero(values == label))
        if len(members) <= len(fractions):
            shown = classes[label] if classes is not None and 0 <= label < len(classes) else label
            raise InputError(
                f"Class {shown!r} has {len(members)} example(s), too few to give one to each of "
                f"{', '.join(chosen)}; add examples, drop the class, or hold out fewer parts."
            )
        counts = _counts(len(members), list(fractions.values()))
        pieces = np.split(members, np.cumsum(counts))
        for part, piece in zip((*fractions, "train"), pieces, strict=True):
            chosen[part].append(piece)
    indices = {part: np.sort(np.concatenate(pieces)) for part, pieces in chosen.items()}
    return SplitPlan(seed, dict(fractions), indices, digest_of_labels(values))


def _check_fractions(fractions: Mapping[str, float]) -> None:
    if "train" in fractions:
        raise InputError("Give the shares of the held-out parts only: train is what is left.")
    if any(not 0 < share < 1 for share in fractions.values()) or sum(fractions.values()) >= 1:
        shown = ", ".join(f"{part}={share}" for part, share in fractions.items())
        raise InputError(f"Held-out shares must each be above 0 and add up to less than 1, not {shown}.")


def _counts(total: int, shares: Sequence[float]) -> list[int]:
    """How many of ``total`` go to each held-out part: rounded, at least one each, and one left for train."""
    counts = [max(1, round(total * share)) for share in shares]
    while sum(counts) >= total:
        counts[counts.index(max(counts))] -= 1
    return counts

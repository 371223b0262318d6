"""What the classes are made of, and which features of theirs the report shows."""

from bndl.explain.classes import ClassWeight, class_features
from bndl.report.decided import Decided
from bndl.report.pictures import Pictures
from bndl.report.schema import ClassRecord, Confused, Weight

__all__ = ["class_lists", "class_records", "listed_features"]

_TOP = 12  # weights of a class that are listed
_CONFUSED = 5


def class_lists(decided: Decided) -> list[tuple[ClassWeight, ...]]:
    """The largest weights of each class."""
    return [class_features(decided.layer, target, top=_TOP) for target in range(len(decided.classes))]


def listed_features(decided: Decided, lists: list[tuple[ClassWeight, ...]], *, most: int) -> list[int]:
    """The features to show, ascending: all that have a weight, or those of the lists, or of the first places in these.

    Args:
        decided: what was decided.
        lists: the largest weights of each class.
        most: how many there is room for.
    """
    used = decided.active.any(dim=0).nonzero().flatten().tolist()
    if len(used) <= most:
        return sorted(decided.numbers[column] for column in used)
    ranked = [(place, -own.weight, own.feature) for one in lists for place, own in enumerate(one)]
    chosen = dict.fromkeys(feature for _, _, feature in sorted(ranked))
    return sorted(list(chosen)[:most])


def class_records(
    decided: Decided, lists: list[tuple[ClassWeight, ...]], pictures: Pictures
) -> tuple[ClassRecord, ...]:
    """One record a class."""
    return tuple(_record(decided, target, own, pictures) for target, own in enumerate(lists))


def _record(decided: Decided, target: int, own: tuple[ClassWeight, ...], pictures: Pictures) -> ClassRecord:
    measured = decided.evaluation.per_class[target]
    example = class_example(decided, target)
    total = float(decided.phi[target].double().sum())
    return ClassRecord(
        index=target,
        name=decided.classes[target],
        count=measured.count,
        accuracy=measured.accuracy,
        bias=float(decided.bias[target]),
        num_weights=int(decided.active[target].sum()),
        features=tuple(Weight(one.feature, one.weight, one.low, one.high) for one in own),
        rest=max(0.0, total - sum(one.weight for one in own)),
        confused=_confused(decided, target),
        example=None if example is None else pictures.thumb(example),
    )


def class_example(decided: Decided, target: int) -> int | None:
    """The surest example of a class that was told right, or any of it; None where there is none."""
    own = decided.truth == target
    right = own & (decided.prediction.labels == target)
    rows = (right if right.any() else own).nonzero().flatten()
    return int(rows[decided.prediction.flip_probability[rows].argmin()]) if len(rows) else None


def _confused(decided: Decided, target: int) -> tuple[Confused, ...]:
    """What examples of a class were taken for, the most often first."""
    labels = decided.prediction.labels[(decided.truth == target) & (decided.prediction.labels != target)]
    counts = labels.bincount(minlength=len(decided.classes))
    order = counts.argsort(descending=True, stable=True)[:_CONFUSED].tolist()
    return tuple(Confused(other, int(counts[other])) for other in order if counts[other])

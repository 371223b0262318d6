"""From a name or a path to examples: find the data set, tell its format, carve out the parts it does not store."""

import difflib
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from bndl.data import arrays, cifar, digits, folder, hub, idx, parquet
from bndl.data.sets import LabelledSet, Reading, Source
from bndl.data.split import Holdout, SplitPlan, stratified_split
from bndl.errors import FileError, InputError

PARTS = ("train", "val", "test")
DATA_VARIABLE = "BNDL_DATA"
_READING = Reading()
_HOLDOUT = Holdout()

# each format tells by the names of files whether a path is its own; the first that says yes opens it
_FORMATS: tuple[tuple[Callable[[Path], bool], Callable[[Path, Reading], Source]], ...] = (
    (cifar.detect, cifar.open_source),
    (idx.detect, idx.open_source),
    (arrays.detect, arrays.open_source),
    (parquet.detect, parquet.open_source),
    (folder.detect, folder.open_source),
)
_UNDERSTOOD = (
    "a CIFAR folder or .tar.gz, class folders of images, a folder of idx files, an .npz, a folder of .npy pairs, "
    "Parquet"
)


@dataclass(frozen=True)
class _Known:
    """A data set with a name of its own: where it is looked for, and where it comes from."""

    places: tuple[str, ...]
    origin: str


_KNOWN: Mapping[str, _Known] = {
    "cifar10": _Known(
        ("cifar-10-batches-py", "cifar-10-python.tar.gz"), "https://www.cs.toronto.edu/~kriz/cifar-10-python.tar.gz"
    ),
    "cifar100": _Known(
        ("cifar-100-python", "cifar-100-python.tar.gz"), "https://www.cs.toronto.edu/~kriz/cifar-100-python.tar.gz"
    ),
    "mnist": _Known(("mnist", "MNIST/raw", "MNIST"), "https://ossci-datasets.s3.amazonaws.com/mnist/"),
    "fashion-mnist": _Known(
        ("fashion-mnist", "fashion", "FashionMNIST/raw"), "https://github.com/zalandoresearch/fashion-mnist"
    ),
    "imagenet": _Known(
        ("imagenet", "ILSVRC2012", "ILSVRC/Data/CLS-LOC"), "https://image-net.org, as train/CLASS and val/CLASS folders"
    ),
    "places10": _Known(
        ("places10", "places-10"),
        "http://places2.csail.mit.edu: ten of its classes, as train/CLASS and val/CLASS folders",
    ),
    "imagenette": _Known(
        ("imagenette2-160", "imagenette160", "imagenette2-320", "imagenette2", "imagenette"),
        "https://s3.amazonaws.com/fast-ai-imageclas/imagenette2-160.tgz",
    ),
}


@dataclass(frozen=True)
class Splits:
    """The parts of a data set, disjoint.

    Attributes:
        train: what to learn from.
        val: what to choose a model by, or None.
        test: what to report on, or None.
        plan: how the training part was carved, to be written down with a run; None if nothing was carved.
    """

    train: LabelledSet
    val: LabelledSet | None
    test: LabelledSet | None
    plan: SplitPlan | None


def names() -> tuple[str, ...]:
    """Return the data sets that have a name of their own."""
    return ("digits", *_KNOWN)


def load(
    source: str | Path,
    *,
    split: str = "train",
    holdout: Holdout = _HOLDOUT,
    reading: Reading = _READING,
    root: str | Path | None = None,
) -> LabelledSet:
    """Read one part of a data set.

    A part that is stored is read as it is. A validation part that is not stored is carved out of the training part,
    and so is a test part if nothing but training data is stored: stratified, by ``holdout``, so that parts loaded with
    the same ``holdout`` never overlap, and ``train`` is what is left.

    Args:
        source: a name of :func:`names`, a hub name ``hf:owner/set``, or a path.
        split: ``"train"``, ``"val"`` or ``"test"``.
        holdout: what to carve out, and its seed.
        reading: image size, strictness, label column.
        root: where named data sets lie; else the folder in ``BNDL_DATA``, then ``data`` and the current folder.
    Returns:
        A set whose items are ``(x, y)``: uint8 images (C, H, W) or float32 features (K,), and an int.
    """
    if split not in PARTS:
        raise InputError(f"There is no split {split!r}; take one of {', '.join(PARTS)}.")
    found = _hold_out_val(find(source, reading=reading, root=root), holdout)
    fractions = _to_carve(found, holdout)
    if split != "train" and split not in fractions:
        if split not in found.readers:
            raise _no_such_part(found, split)
        return found.readers[split]()
    stored = found.readers["train"]()
    if not fractions:
        return stored
    plan = stratified_split(stored.labels, fractions, seed=holdout.seed, classes=stored.classes)
    return stored.subset(plan.indices[split])


def load_splits(
    source: str | Path,
    *,
    holdout: Holdout = _HOLDOUT,
    reading: Reading = _READING,
    root: str | Path | None = None,
    plan: SplitPlan | None = None,
) -> Splits:
    """Read all parts of a data set, each as :func:`load` would, and the plan that carved them.

    Args:
        source: as in :func:`load`.
        holdout: as in :func:`load`; ignored where ``plan`` says it.
        reading: as in :func:`load`.
        root: as in :func:`load`.
        plan: a plan that was written down with an earlier run, to carve the same parts again.
    """
    found = _hold_out_val(find(source, reading=reading, root=root), holdout)
    parts = {part: reader() for part, reader in found.readers.items()}
    stored = parts["train"]
    fractions = _to_carve(found, holdout)
    if plan is None and fractions:
        plan = stratified_split(stored.labels, fractions, seed=holdout.seed, classes=stored.classes)
    if plan is not None:
        plan.check(stored.labels)
        twice = [part for part in plan.indices if part != "train" and part in found.readers]
        if twice:
            raise InputError(f"The split record carves {twice[0]} out of train, but {found.name} stores it already.")
        parts |= {part: stored.subset(indices) for part, indices in plan.indices.items()}
    return Splits(parts["train"], parts.get("val"), parts.get("test"), plan)


def find(source: str | Path, *, reading: Reading = _READING, root: str | Path | None = None) -> Source:
    """Find a data set and tell its format, without reading its examples."""
    if isinstance(source, str):  # a Path is never a name
        if source.startswith(hub.PREFIX):
            return hub.open_source(source, reading)
        if source == "digits":
            return digits.open_source()
        if source in _KNOWN:
            return _open_path(_place(source, _KNOWN[source], root), reading)
    path = Path(source).expanduser()
    if not path.exists():
        raise _unknown(str(source), path)
    return _open_path(path, reading)


def _open_path(path: Path, reading: Reading) -> Source:
    try:
        for detect, open_source in _FORMATS:
            if detect(path):
                return open_source(path, reading)
        raise _no_format(path)
    except PermissionError as error:
        raise FileError(f"{error.filename} may not be read by this user; mend its permissions.") from error


def _hold_out_val(source: Source, holdout: Holdout) -> Source:
    if holdout.val_as_test and "val" in source.readers and "test" not in source.readers:
        return Source(source.name, {"train": source.readers["train"], "test": source.readers["val"]})
    return source


def _to_carve(source: Source, holdout: Holdout) -> dict[str, float]:
    """Return the share of the training part to carve out for each part that is not stored."""
    fractions = {}
    if "val" not in source.readers and holdout.val:
        fractions["val"] = holdout.val
    if len(source.readers) == 1 and holdout.test:
        fractions["test"] = holdout.test
    return fractions


def _no_such_part(source: Source, split: str) -> InputError:
    cure = "take val, or set val_as_test to carve a new val" if "val" in source.readers else "hold out more than 0"
    return InputError(f"{source.name} stores {', '.join(source.readers)} but no {split} part; {cure}.")


def _place(name: str, known: _Known, root: str | Path | None) -> Path:
    """Return where a named data set lies."""
    variable = os.environ.get(DATA_VARIABLE)
    roots = [Path(root)] if root is not None else [Path(place) for place in (variable, "data", ".") if place]
    for base in roots:
        for place in known.places:
            if (base / place).exists():
                return base / place
    looked = ", ".join(str(base.absolute()) for base in roots)
    raise FileError(
        f"{name} was not found in {looked}; put {known.places[0]} there (from {known.origin}), or set {DATA_VARIABLE}."
    )


def _unknown(text: str, path: Path) -> FileError:
    """Say what a source that is neither a name nor a path may have meant."""
    parent = path.parent
    beside = [entry.name for entry in parent.iterdir()] if parent.is_dir() else []
    close = difflib.get_close_matches(text.lower(), names(), n=2)
    close += [str(parent / entry) for entry in difflib.get_close_matches(path.name, beside, n=2)]
    if text.count("/") == 1 and not text.startswith((".", "/", "~")):
        close.append(f"{hub.PREFIX}{text}")
    guess = f"; did you mean {' or '.join(close)}?" if close else ""
    return FileError(
        f"{text!r} is neither a known data set nor a path{guess} "
        f"(Names: {', '.join(names())}, {hub.PREFIX}owner/set. Paths: {_UNDERSTOOD}.)"
    )


def _no_format(path: Path) -> InputError:
    inside = sorted(entry for entry in path.iterdir() if any(d(entry) for d, _ in _FORMATS)) if path.is_dir() else []
    guess = f"; did you mean {' or '.join(str(entry) for entry in inside[:3])}?" if inside else ""
    return InputError(f"{path} is no data set that is understood{guess} (Understood: {_UNDERSTOOD}.)")

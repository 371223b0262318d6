"""A run as the subject of a report: its model, its data or others, their features, and what to write on top."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from bndl.data import LabelledSet, cached_features
from bndl.errors import InputError
from bndl.evaluation.of_run import limited, other_data, own_part
from bndl.explain.subject import Subject, load_subject
from bndl.features import FeatureSet
from bndl.report.collect import About, Options, collect
from bndl.report.edited import head_words
from bndl.report.schema import ReportData
from bndl.train.loading import num_workers

__all__ = ["Opened", "open_run", "report_of"]

_OPTIMISTIC = "The validation part was used to choose and to calibrate, so its figures are optimistic."
_OTHER_NAMES = "The classes of these data have other names than the run's: labels were taken by number."
Stage = Callable[[str], None]


def _silent(stage: str) -> None:
    pass


@dataclass(frozen=True)
class Opened:
    """A run with the data that it is shown on, and what its decision layer sees of them."""

    subject: Subject
    data: LabelledSet
    features: FeatureSet
    about: About


def open_run(
    folder: Path,
    *,
    head: Path | None = None,
    source: str | None = None,
    part: str | None = None,
    limit: int | None = None,
    cache: Path | None = None,
    names: Path | None = None,
    seed: int = 0,
    stage: Stage = _silent,
) -> Opened:
    """Load a run and its data; each example passes the backbone once, or never if its features are cached.

    Args:
        folder: of a finished run.
        head: a file with another head for it, such as ``bndl sparsify`` writes.
        source: other data, by name or path; by default the run's own.
        part: ``"test"`` (the default) or ``"val"``.
        limit: at most so many examples, chosen by the seed.
        cache: folder of cached features; by default ``features`` in the run's folder.
        names: a text file of what to call the classes.
        seed: of that choice.
        stage: is told what is being done.
    """
    if limit is not None and limit < 1:
        raise InputError(f"a report needs at least one example, got a limit of {limit}.")
    stage("loading the run")
    subject = load_subject(folder, head=head, names=names)
    run, own = subject.run, subject.run.recipe.data.name
    said = {} if head is None else {f"the head is that of {Path(head).name}": head_words(subject, Path(head))}
    notes = [f"{text[0].upper()}{text[1:]}." for text in (said.get(one, one) for one in subject.about) if text]
    if source is None or source == own or str(Path(source).expanduser().absolute()) == own:
        name, part = own, part or "test"
        data = own_part(run, part)
        notes += [_OPTIMISTIC] if part == "val" else []
    else:
        name = source
        data, part = other_data(source, run, part=part)
        notes += [_OTHER_NAMES] if data.classes != run.classes else []
    whole, data = len(data), limited(data, limit, seed=seed)
    notes += [f"{len(data):,} of {whole:,} examples, chosen by seed {seed}."] if len(data) < whole else []
    stage(f"features of {len(data):,} images, from the cache or into it")
    features = cached_features(
        subject.model,
        data,
        folder=cache or folder / "features",
        key="" if data.transform is None else f"side {run.side}",
        batch_size=64,
        num_workers=num_workers(data),
    )
    about = About(
        title=run.recipe.name,
        run=folder.absolute().name,
        data=f"{Path(name).name} {part}",
        backbone=run.recipe.model.backbone,
        notes=tuple(notes),
    )
    return Opened(subject, data, features, about)


def report_of(opened: Opened, *, options: Options | None = None, stage: Stage = _silent) -> ReportData:
    """Everything the report shows of a run.

    Args:
        opened: the run and its data.
        options: how much goes in.
        stage: is told what is being done.
    """
    subject = opened.subject
    return collect(
        subject.model,
        opened.data,
        features=opened.features,
        classes=subject.classes,
        about=opened.about,
        options=options,
        ready=subject.inputs,
        dense=subject.dense,
        stage=stage,
    )

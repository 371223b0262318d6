"""``bndl predict``: a run, a folder of images or a table of features, one command, a table of predictions."""

import argparse
import sys
import time
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from bndl.cli.console import console, count, fail, number, seed, write_json
from bndl.cli.opening import PLAIN
from bndl.errors import InputError

if TYPE_CHECKING:
    from bndl.stream import Predictor, Source, Summary

__all__ = ["add_arguments", "run"]

_PATIENCE = 2.0  # seconds without a bar
_LISTED = 10  # damaged images
_EPILOG = """examples:
  bndl predict runs/photos holiday/ --out holiday.csv
  bndl predict runs/photos holiday/ --out holiday.jsonl --reasons 3 --probs all
  bndl predict head.safetensors features.parquet --out predictions.parquet
  bndl predict head.safetensors features.npy --out predictions.parquet --resume

Stopped or killed, it goes on with --resume, to the same bytes. Columns: source (a file, or a row's number), label, class,
probability, runner_up, p_value, certain, flip_probability, entropy, aleatoric, epistemic."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's options."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = _EPILOG
    parser.add_argument(
        "model", type=Path, metavar="MODEL", help="folder of a run of bndl train, or a decision layer's .safetensors"
    )
    parser.add_argument(
        "source",
        type=Path,
        metavar="SOURCE",
        help="an image or a folder of images; features as .npy, .npz or .parquet, or a folder of .parquet",
    )
    parser.add_argument(
        "--out", type=Path, required=True, metavar="FILE", help="what to write: *.parquet, *.csv or *.jsonl"
    )
    parser.add_argument("--head", type=Path, metavar="FILE", help="a model of this run that bndl sparsify wrote")
    parser.add_argument(
        "--method", choices=("sample", "closed", "paper"), default="sample", help="as in bndl.predict (default: sample)"
    )
    parser.add_argument("--level", type=float, default=0.05, help="p at which a decision is certain (default: 0.05)")
    parser.add_argument("--seed", type=seed, default=0, help="of the draws (default: 0)")
    parser.add_argument(
        "--probs", choices=("all", "top", "none"), default="top", help="which probabilities (default: the decision's)"
    )
    parser.add_argument("--reasons", type=number, default=0, metavar="N", help="the N largest terms of each decision")
    parser.add_argument("--strict", action="store_true", help="stop at an image that is damaged; else it is left out")
    parser.add_argument("--batch-size", type=count, metavar="N", help="examples at a time")
    parser.add_argument("--shard-rows", type=count, metavar="N", help="examples a shard: what a kill may cost")
    parser.add_argument("--workers", type=count, metavar="N", help="threads that decode images or compute features")
    how = parser.add_mutually_exclusive_group()
    how.add_argument("--resume", action="store_true", help="go on with a run that was stopped")
    how.add_argument("--overwrite", action="store_true", help="replace the file, and begin again")
    parser.add_argument("--json", action="store_true", help="print the summary as JSON")


class _Meter:
    """A bar with rows a second and the time left, once two seconds have passed and if there is a terminal."""

    def __init__(self) -> None:
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        rate = TextColumn("{task.fields[rate]:,.0f} rows/s")
        columns = (TextColumn("predict"), BarColumn(), MofNCompleteColumn(), rate, TimeRemainingColumn())
        self.bar = Progress(*columns, console=console(stderr=True), transient=True)
        self.task: Any = None
        self.first, self.started, self.terminal = 0, time.monotonic(), sys.stderr.isatty()

    def __call__(self, done: int, total: int) -> None:
        """So many rows of all are done."""
        passed = time.monotonic() - self.started
        if self.task is None:
            self.first, self.task = done, self.bar.add_task("", total=total, completed=done, rate=0.0)
        if self.terminal and passed > _PATIENCE and not self.bar.live.is_started:
            self.bar.start()
        self.bar.update(self.task, completed=done, rate=(done - self.first) / max(passed, 1e-9))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.bar.stop()


def run(args: argparse.Namespace) -> int:
    """Load, predict, tell."""
    from bndl.stream import load_predictor, predict_to_file, to_text

    settings, messages = _settings(args), console(stderr=True)
    predictor = load_predictor(args.model, head=args.head)
    source, shown = _source(args, predictor), to_text(str(args.source))
    messages.print(f"{'; '.join(predictor.about)}: {source.count:,} examples of {shown}", **PLAIN)
    try:
        with _Meter() as meter:
            summary = predict_to_file(
                predictor,
                source,
                args.out,
                settings=settings,
                resume=args.resume,
                overwrite=args.overwrite,
                tell=meter,
            )
    except KeyboardInterrupt:
        part = args.out.with_name(f"{args.out.name}.part")
        if not part.exists():
            raise
        return fail(f"interrupted; what is done is kept in {part}: the same command with --resume goes on.", code=130)
    if args.json:
        write_json(_record(args, summary))
    else:
        _tell(args, summary)
    return 0


def _settings(args: argparse.Namespace) -> Any:
    from bndl.stream import Settings, check_out

    _check_apart(args.source, args.out)
    check_out(args.out, resume=args.resume, overwrite=args.overwrite)
    return Settings(
        method=args.method,
        level=args.level,
        seed=args.seed,
        probs=args.probs,
        reasons=args.reasons,
        batch_size=args.batch_size,
        shard_rows=args.shard_rows,
        workers=args.workers,
    )


def _check_apart(source: Path, out: Path) -> None:
    """Nothing that is read may be written over."""
    there, here = source.resolve(), out.resolve()
    inside = there in here.parents and out.suffix.lower() == ".parquet" and out.exists()
    if here == there or inside:
        raise InputError(f"{out} is what is read: choose another --out.")


def _source(args: argparse.Namespace, predictor: "Predictor") -> "Source":
    import torch

    from bndl.stream import open_source

    return open_source(
        args.source,
        in_features=predictor.layer.in_features,
        read=predictor.read,
        workers=args.workers or torch.get_num_threads(),
        strict=args.strict,
    )


def _record(args: argparse.Namespace, summary: "Summary") -> dict[str, Any]:
    return {
        "file": str(args.out),
        "rows": summary.rows,
        "certain": summary.certain / summary.rows,
        "rows_before": summary.before,
        "seconds": summary.seconds,
        "rows_per_second": summary.rate,
        "damaged": [{"source": entry.path, "reason": entry.reason} for entry in summary.damaged],
    }


def _tell(args: argparse.Namespace, summary: "Summary") -> None:
    from bndl.stream import to_text

    messages, damaged = console(stderr=True), summary.damaged
    for entry in damaged[:_LISTED]:
        name = entry.path if entry.path.isprintable() else repr(entry.path)
        messages.print(f"left out, it cannot be decoded: {name} ({entry.reason})", **PLAIN)
    if len(damaged) > _LISTED:
        messages.print(f"and {len(damaged) - _LISTED:,} more, which --json lists", **PLAIN)
    before = f", {summary.before:,} of them from before" if summary.before else ""
    console().print(
        f"{summary.rows:,} rows{before}, {summary.certain / summary.rows:.1%} certain, {summary.rate:,.0f} rows/s "
        f"in {summary.seconds:.1f} s\nWritten to {to_text(str(args.out))}",
        **PLAIN,
    )

"""Memory and speed of the feature cache: build it, and train a head on it, at N and at N / 2.

    python benchmarks/feature_cache.py [--rows 200000] [--features 2048] [--folder DIR] [--json PATH]

A cheap backbone (one random layer) on examples that are made from their number, so that nothing but the cache holds the
features; float16 on disk. Each size runs in a process of its own. Memory is a stage's peak less what the process had
before the build: anonymous pages (sampled every 5 ms), which is what a program really needs, and all resident pages (the
kernel's VmHWM), which counts pages of the mapped file as well: the kernel keeps those while it has room, and drops them
when it has not. The epoch's time is that of `bndl.fit` with one epoch less that with none; "shuffled read" only gathers
batches of 256 rows in random order, the file having been dropped from the system's cache. Prints Markdown.
"""

import argparse
import json
import multiprocessing
import os
import re
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import bndl
from bndl.data import LabelledSet
from bndl.data.cache import cached_features
from bndl.features import FeatureSet

WIDTH, C, VALIDATION, BATCH = 64, 10, 5000, 256


@dataclass(frozen=True)
class Stage:
    rows: int
    name: str
    seconds: float
    anonymous_mb: float
    resident_mb: float

    def __str__(self) -> str:
        speed = f"{self.rows / self.seconds:,.0f}"
        return f"| {self.rows:,} | {self.name} | {speed} | {self.anonymous_mb:.0f} | {self.resident_mb:.0f} |"


class Numbers(LabelledSet):
    """Noise about one point a class, made from the example's number."""

    def read(self, index: int) -> Tensor:
        label = int(self.labels[index])
        noise = torch.randn(WIDTH, generator=torch.Generator().manual_seed(len(self) + index))
        return noise + 0.5 * nn.functional.one_hot(torch.tensor(label), WIDTH)

    def content(self) -> Iterator[bytes]:
        yield f"{len(self)} {WIDTH}".encode()


def numbers(rows: int) -> Numbers:
    return Numbers(f"{rows} numbers", torch.arange(rows) % C, tuple(map(str, range(C))))


def status(field: str) -> float:
    """A figure of this process, in MB."""
    return int(re.search(rf"{field}:\s+(\d+) kB", Path("/proc/self/status").read_text())[1]) / 1024


class Meter:
    """Measures stages against the process as it is now."""

    def __init__(self, rows: int) -> None:
        self.rows, self.anonymous, self.resident = rows, status("RssAnon"), status("VmRSS")
        self.stages: list[Stage] = []

    @contextmanager
    def stage(self, name: str, *, less: float = 0.0) -> Iterator[None]:
        Path("/proc/self/clear_refs").write_text("5")  # VmHWM starts again
        done, peak = threading.Event(), [status("RssAnon")]

        def sample() -> None:
            while not done.wait(0.005):
                peak[0] = max(peak[0], status("RssAnon"))

        watcher = threading.Thread(target=sample)
        watcher.start()
        started = time.perf_counter()
        try:
            yield
        finally:
            seconds = time.perf_counter() - started - less
            done.set()
            watcher.join()
        memory = peak[0] - self.anonymous, status("VmHWM") - self.resident
        self.stages.append(Stage(self.rows, name, seconds, *memory))


def network(features: int) -> nn.Module:
    torch.manual_seed(0)
    return bndl.convert(nn.Sequential(nn.Linear(WIDTH, features), nn.ReLU(), nn.Linear(features, C)))


def drop_from_cache(file: Path) -> None:
    with file.open("rb") as opened:
        os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def shuffled_read(found: FeatureSet) -> None:
    for rows in torch.randperm(len(found), generator=torch.Generator().manual_seed(0)).split(BATCH):
        found.take(rows)


def timed(call: Callable[[], Any]) -> float:
    started = time.perf_counter()
    call()
    return time.perf_counter() - started


def run(rows: int, features: int, folder: Path) -> list[Stage]:
    """All stages at one size, in this process."""
    model, data = network(features), numbers(rows)
    settings = {"dtype": torch.float16, "batch_size": BATCH, "progress": False}
    held_out = cached_features(model, numbers(VALIDATION), folder=folder / "held out", **settings)
    meter = Meter(rows)
    with meter.stage("build"):
        found = cached_features(model, data, folder=folder / "train", **settings)
    idle = timed(lambda: bndl.fit(network(features), found, held_out, epochs=0, progress=False))
    with meter.stage("one epoch", less=idle):
        bndl.fit(network(features), found, held_out, epochs=1, progress=False)
    del found  # what is mapped cannot be dropped
    drop_from_cache(next(folder.glob("train/*/features.bin")))
    found = cached_features(model, data, folder=folder / "train", **settings)
    with meter.stage("shuffled read"):
        shuffled_read(found)
    return meter.stages


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument("--features", type=int, default=2048)
    parser.add_argument("--folder", type=Path, help="default: a temporary one")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    stages: list[Stage] = []
    threads = torch.get_num_threads()
    print(f"torch {torch.__version__}, {threads} threads, {args.features} features in float16, {C} classes\n")
    print("| rows | stage | rows/s | anonymous memory, MB | resident memory, MB |\n|---|---|---|---|---|")
    for rows in (args.rows // 2, args.rows):
        folder = Path(tempfile.mkdtemp(dir=args.folder, prefix="bndl-cache-"))
        try:
            with multiprocessing.get_context("spawn").Pool(1) as pool:
                own = pool.apply(run, (rows, args.features, folder))
            print(*own, sep="\n", flush=True)
            stages += own
        finally:
            shutil.rmtree(folder)
    if args.json:
        figures = [asdict(stage) for stage in stages]
        args.json.write_text(json.dumps({"features": args.features, "threads": threads, "stages": figures}, indent=1))


if __name__ == "__main__":
    main()

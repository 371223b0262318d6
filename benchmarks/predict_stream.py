"""Rows a second of `bndl predict` end to end, from a file of features to a file of predictions, full uncertainty.

    python benchmarks/predict_stream.py [--rows 1000000] [--folder DIR] [--repeats 3] [--json FILE]

The features, random and written once to --folder (2 GB each as Parquet and .npy; a temporary folder by default), pass a
decision layer of K = 512 and C = 100, in one process with all cores. "Plain" is `h @ W`, the logits alone, on the same rows
in memory, nothing read and nothing written: what the share is of. "Compute" is `bndl.predict` on them in memory, likewise.
All take turns; medians of the repeats, and in brackets the least and the largest. On a machine that is busy with other
things, "rows a processor second", all threads together, tells more than rows a second.
"""

import argparse
import json
import os
import platform
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import torch

import bndl
from bndl.stream import Predictor, Settings, open_source, predict_to_file

K, C, CHUNK, BATCH = 512, 100, 65_536, 4096


def write_features(folder: Path, rows: int) -> dict[str, Path]:
    """The same features as .npy and as Parquet, unless they are there."""
    paths = {"npy": folder / f"features-{rows}.npy", "parquet": folder / f"features-{rows}.parquet"}
    if all(path.exists() for path in paths.values()):
        return paths
    generator = torch.Generator().manual_seed(0)
    schema = pa.schema([("features", pa.list_(pa.float32(), K))])
    array = np.lib.format.open_memmap(paths["npy"], "w+", np.float32, (rows, K))
    with pa.parquet.ParquetWriter(paths["parquet"], schema) as writer:
        for start in range(0, rows, CHUNK):
            part = torch.randn(min(CHUNK, rows - start), K, generator=generator).relu_().numpy()
            array[start : start + len(part)] = part
            lists = pa.FixedSizeListArray.from_arrays(pa.array(part.ravel()), K)
            writer.write_table(pa.table([lists], schema=schema))
    array.flush()
    return paths


def plain(features: torch.Tensor, weight: torch.Tensor) -> None:
    for start in range(0, len(features), BATCH):
        features[start : start + BATCH] @ weight


def computed(features: torch.Tensor, layer: bndl.DecisionLayer, *, method: str) -> None:
    for start in range(0, len(features), CHUNK):
        bndl.predict(layer, features[start : start + CHUNK], method=method)


def streamed(path: Path, layer: bndl.DecisionLayer, out: Path, *, settings: Settings) -> None:
    predictor = Predictor(layer, tuple(f"class {c}" for c in range(C)))
    predict_to_file(predictor, open_source(path, in_features=K), out, settings=settings, overwrite=True)


@dataclass
class Rates:
    """Rows a second of the clock, and of the processor, in each repeat."""

    clock: list[float] = field(default_factory=list)
    processor: list[float] = field(default_factory=list)


def race(ways: dict[str, Callable[[], None]], *, rows: int, repeats: int) -> dict[str, Rates]:
    """They take turns, in an order that turns round."""
    rates = {name: Rates() for name in ways}
    for repeat in range(repeats):
        for name, call in list(ways.items())[:: 1 if repeat % 2 == 0 else -1]:
            clock, processor = time.perf_counter(), time.process_time()
            call()
            rates[name].processor.append(rows / (time.process_time() - processor))
            rates[name].clock.append(rows / (time.perf_counter() - clock))
            print(f"  {name}: {rates[name].clock[-1]:,.0f} rows/s", flush=True)
    return rates


def measure(folder: Path, args: argparse.Namespace) -> dict[str, Rates]:
    paths = write_features(folder, args.rows)
    torch.manual_seed(0)
    layer = bndl.DecisionLayer(K, C).eval()
    features = torch.from_numpy(np.load(paths["npy"]))
    weight = layer.weight.detach().t().contiguous()
    ways: dict[str, Callable[[], None]] = {"plain product": partial(plain, features, weight)}
    for method in args.methods.split(","):
        settings = Settings(method=method, probs=args.probs)
        if args.compute:
            ways[f"bndl.predict in memory, {method}"] = partial(computed, features, layer, method=method)
        for source in args.sources.split(","):
            out = folder / f"predictions.{args.format}"
            name = f"{source} -> {args.format}, {method}"
            ways[name] = partial(streamed, paths[source], layer, out, settings=settings)
    plain(features[:CHUNK], weight)  # warm
    return race(ways, rows=args.rows, repeats=args.repeats)


def shown(found: list[float]) -> str:
    return f"{statistics.median(found):,.0f} ({min(found):,.0f} .. {max(found):,.0f})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--folder", type=Path, help="where the features are, or are put and stay")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--methods", default="sample,closed")
    parser.add_argument("--sources", default="npy,parquet")
    parser.add_argument("--format", default="parquet", choices=("parquet", "csv", "jsonl"))
    parser.add_argument("--probs", default="top", choices=("all", "top", "none"))
    parser.add_argument("--compute", action="store_true", help="bndl.predict in memory as well")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    about = {"torch": torch.__version__, "pyarrow": pa.__version__, "bndl": bndl.__version__, "cores": os.cpu_count()}
    about |= {"machine": platform.machine(), "rows": args.rows, "K": K, "C": C, "load": os.getloadavg()[0]}
    print(", ".join(f"{name} {value}" for name, value in about.items()), flush=True)
    with tempfile.TemporaryDirectory() as temporary:
        folder = args.folder or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        rates = measure(folder, args)
    limit = {kind: statistics.median(found) for kind, found in vars(rates["plain product"]).items()}
    print("\n| | rows/s | of plain | rows a processor second | of plain |\n|---|---|---|---|---|")
    for name, found in rates.items():
        cells = [f"{shown(own)} | {statistics.median(own) / limit[kind]:.1%}" for kind, own in vars(found).items()]
        print(f"| {name} | {' | '.join(cells)} |", flush=True)
    if args.json:
        record = {"about": about, "rows_per_second": {name: vars(own) for name, own in rates.items()}}
        args.json.write_text(json.dumps(record, indent=2) + "\n")


if __name__ == "__main__":
    main()

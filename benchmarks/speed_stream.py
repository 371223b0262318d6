"""Rows a second of `bndl predict` end to end, from a file of features to a file of predictions, full uncertainty.

    python benchmarks/speed_stream.py [--rows 1000000] [--folder DIR] [--rounds 3]

The features, random and written once to --folder (2 GB each as Parquet and .npy; a temporary folder by default), pass a
decision layer of K = 512 and C = 100, in one process with all cores. "Plain product" is `h @ W`, the logits alone, on the
same rows in memory, nothing read and nothing written: what the share is of. "In memory" is `bndl.predict` on them, likewise.
Peak memory is that of a process of `bndl predict` of its own, for an eighth of the rows and for all of them.
"""

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import torch

import bndl
from bndl.bench import Record, main, race
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


def ways_of(folder: Path, args: argparse.Namespace) -> dict[str, Callable[[], None]]:
    paths = write_features(folder, args.rows)
    torch.manual_seed(0)
    layer = bndl.DecisionLayer(K, C).eval()
    features = torch.from_numpy(np.load(paths["npy"]))
    ways: dict[str, Callable[[], None]] = {
        "plain product": partial(plain, features, layer.weight.detach().t().contiguous())
    }
    for method in args.methods.split(","):
        ways[f"in memory, {method}"] = partial(computed, features, layer, method=method)
        for source in args.sources.split(","):
            out, settings = folder / f"predictions.{args.format}", Settings(method=method, probs=args.probs)
            ways[f"{source} to {args.format}, {method}"] = partial(
                streamed, paths[source], layer, out, settings=settings
            )
    return ways


OWN_PEAK = """
import re, sys
from pathlib import Path
from bndl.cli import main
main(sys.argv[1:])
print(int(re.search(r"VmHWM:\\s+(\\d+)", Path("/proc/self/status").read_text())[1]) // 1024)
"""


def peak_memory(folder: Path, rows: int) -> str:
    """Of the command, in a process of its own, on some of the rows and on all (Linux)."""
    bndl.save(bndl.DecisionLayer(K, C).eval(), folder / "head.safetensors")
    features, said = np.load(folder / f"features-{rows}.npy", mmap_mode="r"), []
    for count in (rows // 8, rows):
        np.save(folder / "some.npy", features[:count])
        command = ["predict", "head.safetensors", "some.npy", "--out", "some.parquet", "--overwrite"]
        run = [sys.executable, "-c", OWN_PEAK, *command]
        printed = subprocess.run(run, cwd=folder, check=True, capture_output=True, text=True).stdout
        said.append(f"{printed.split()[-1]} MB at {count:,} rows")
    return f"Peak memory of bndl predict: {', '.join(said)}."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--folder", type=Path, help="where the features are, or are put and stay")
    parser.add_argument("--methods", default="sample,closed")
    parser.add_argument("--sources", default="npy,parquet")
    parser.add_argument("--format", default="parquet", choices=("parquet", "csv", "jsonl"))
    parser.add_argument("--probs", default="top", choices=("all", "top", "none"))


def measure(args: argparse.Namespace) -> Record:
    with tempfile.TemporaryDirectory() as temporary:
        folder = args.folder or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        ways = ways_of(folder, args)
        found = race(ways, rounds=args.rounds, warm_up=0, tell=lambda line: print(f"  {line}", flush=True))
        memory = peak_memory(folder, args.rows)
    rows = [
        {
            "": name,
            "rows/s": f"{args.rows / found.time(name).median:,.0f}",
            "share of the plain product": "{0.median:.1%} ({0.low:.1%} to {0.high:.1%})".format(
                found.ratio("plain product", name)
            ),
        }
        for name in ways
    ]
    settings = {"rows": args.rows, "K": K, "C": C, "rounds": args.rounds}
    return Record("speed_stream", "rows a second, from file to file", rows, [], settings, ("pyarrow",), [memory])


if __name__ == "__main__":
    sys.exit(main(__doc__, measure, add_arguments, rounds=3))

"""An exported file with its uncertainty against the same network exported plainly, both in ONNX Runtime.

    python benchmarks/speed_export.py [--batch 64]

ResNet-18 at full width on CIFAR-sized images: one file that gives logits, as `torch.onnx.export` makes it, and those of
`bndl.export` that give all that predict says, with draws, without, and with reasons. The two of a head alone, 512 x 100,
are what the network adds nothing to. All in one process, in turns, on the same random inputs.
"""

import argparse
import copy
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn

import bndl
from bndl.backbones import build
from bndl.bench import Claim, Race, Record, main, race
from bndl.errors import MissingExtraError
from bndl.export.files import quiet

HEAD, ROWS = (512, 100), 1000


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--width", type=int, default=64, help="channels of the first stage (64: full width)")


def plain(model: nn.Module, path: Path, x: Tensor) -> None:
    """Write the model's logits alone, as anybody would."""
    free = ({0: torch.export.Dim("batch")},)
    with torch.no_grad(), quiet():
        written = torch.onnx.export(model, (x,), dynamic_shapes=free, dynamo=True, verbose=False)
    assert written is not None
    written.save(path)


def opened(path: Path, x: Tensor) -> Callable[[], object]:
    """A call that runs the file in ONNX Runtime."""
    try:
        import onnxruntime
    except ImportError as error:
        raise MissingExtraError("ONNX Runtime", extra="export") from error
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")  # or those that have run disturb the next
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    given = {session.get_inputs()[0].name: x.numpy()}
    return lambda: session.run(None, given)


def exported(folder: Path, dense: nn.Module, model: nn.Module, x: Tensor) -> dict[str, Path]:
    """The files, by what they are called in the table."""
    ways = {
        "bndl.export": {},
        "bndl.export, three reasons": {"reasons": 3},
        "bndl.export, no draws": {"method": "closed"},
    }
    paths = {"plain": folder / "plain.onnx"}
    plain(dense, paths["plain"], x[:2])
    for number, (name, settings) in enumerate(ways.items()):
        paths[name] = bndl.export(model, folder / f"{number}.onnx", x[:2], **settings).path
    return paths


def rows(about: str, paths: dict[str, Path], found: Race) -> list[dict[str, object]]:
    return [
        {
            "": f"{about}: {name}",
            "ms": round(1e3 * found.time(name).median, 2),
            "times plain": round(found.ratio(name, "plain").median, 3),
            "quartiles": "{0.low:.3f} to {0.high:.3f}".format(found.ratio(name, "plain")),
            "MB": round(paths[name].stat().st_size / 1e6, 2) if name in paths else "",
        }
        for name in found.seconds
    ]


def measure(args: argparse.Namespace) -> Record:
    torch.manual_seed(0)
    dense = build("resnet18", HEAD[1], width=args.width).model.eval()
    model = bndl.convert(copy.deepcopy(dense)).eval()
    linear = nn.Linear(*HEAD)
    layer = bndl.convert(nn.Sequential(nn.ReLU(), copy.deepcopy(linear))).eval()
    images, features = torch.rand(args.batch, 3, 32, 32), torch.rand(ROWS, HEAD[0])
    with tempfile.TemporaryDirectory() as place:
        folders = [Path(place, name) for name in ("network", "head")]
        for folder in folders:
            folder.mkdir()
        whole = exported(folders[0], dense, model, images)
        head = exported(folders[1], nn.Sequential(nn.ReLU(), linear).eval(), layer, features)
        of_whole = {name: opened(path, images) for name, path in whole.items()}
        of_head = {name: opened(path, features) for name, path in head.items()}
        of_whole["bndl.predict, in torch"] = lambda: bndl.predict(model, images, batch_size=args.batch)
        of_head["bndl.predict, in torch"] = lambda: bndl.predict(layer, features)
        races = [race(ways, rounds=args.rounds) for ways in (of_whole, of_head)]
        network = f"ResNet-18, {args.batch} images"
        table = rows(network, whole, races[0]) + rows(f"head {HEAD[0]}x{HEAD[1]}, {ROWS} rows", head, races[1])
    claim = Claim("exported with its uncertainty / plainly", races[0].ratio("bndl.export", "plain"), 1.05, "at most")
    settings = {"backbone": f"ResNet-18 width {args.width}", "batch": args.batch, "rounds": args.rounds}
    return Record("speed_export", "what uncertainty costs in an exported file", table, [claim], settings)


if __name__ == "__main__":
    sys.exit(main(__doc__, measure, add_arguments, rounds=15))

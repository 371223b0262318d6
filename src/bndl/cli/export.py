"""``bndl export``: a run, or a decision layer, as one file for ONNX Runtime or torch alone."""

import argparse
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bndl.cli.console import console, count, number, plain, seed, write_json
from bndl.cli.opening import PLAIN
from bndl.errors import FileError, InputError

if TYPE_CHECKING:
    from torch import Tensor, nn

    from bndl.export import Exported

__all__ = ["add_arguments", "run"]

_TRIED = 16  # examples that the file is run on
_COLOURS = {1: "grey", 3: "red, green, blue"}
_EPILOG = """examples:
  bndl export runs/photos                                   # photos.onnx; takes uint8 images, gives all that predict says
  bndl export runs/photos --head runs/photos/sparse/model.safetensors --reasons 3 --out small.onnx
  bndl export head.safetensors --method closed --out head.pt2

The file needs no bndl where it runs. Before it takes its place it is tried on a few examples, beside bndl.predict."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's options."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = _EPILOG
    parser.add_argument(
        "model", type=Path, metavar="MODEL", help="folder of a run of bndl train, or a decision layer's .safetensors"
    )
    parser.add_argument(
        "--out", type=Path, metavar="FILE", help="what to write: *.onnx or *.pt2 (default: the model's name, .onnx)"
    )
    parser.add_argument("--head", type=Path, metavar="FILE", help="a model of this run that bndl sparsify wrote")
    parser.add_argument(
        "--floats", action="store_true", help="take images as floats in [0, 1] (default: as uint8, 0 to 255)"
    )
    parser.add_argument(
        "--reasons", type=number, default=0, metavar="N", help="give the N largest terms of each decision, too"
    )
    parser.add_argument(
        "--method",
        choices=("sample", "closed", "paper"),
        default="sample",
        help="as in bndl.predict (default: sample); closed makes the smallest file",
    )
    parser.add_argument(
        "--num-samples", type=count, metavar="S", help="draws in the file (default: as many as bndl.predict makes)"
    )
    parser.add_argument("--level", type=float, default=0.05, help="p at which a decision is certain (default: 0.05)")
    parser.add_argument("--seed", type=seed, default=0, help="of the draws (default: 0)")
    parser.add_argument(
        "--opset", type=count, metavar="N", help="version of ONNX's operators (default: the exporter's)"
    )
    parser.add_argument("--no-check", action="store_true", help="do not run the file")
    parser.add_argument("--json", action="store_true", help="print what was written as JSON")


@dataclass(frozen=True)
class _Loaded:
    """What is exported, and what it is tried on.

    Attributes:
        model: as it is exported.
        classes: their names.
        about: in words, what was loaded.
        example: a batch for the model.
        tried: in words, what that is.
        inputs: what to keep in the file about what it takes.
    """

    model: "nn.Module"
    classes: tuple[str, ...]
    about: tuple[str, ...]
    example: "Tensor"
    tried: str
    inputs: dict[str, Any]


def run(args: argparse.Namespace) -> int:
    """Load, export, tell."""
    from bndl.export import export

    place = args.model.resolve()
    out = args.out or Path(f"{place.name if place.is_dir() else place.stem}.onnx")
    loaded = _run(args) if args.model.is_dir() else _layer(args)
    messages = console(stderr=True)
    messages.print("; ".join(loaded.about), **PLAIN)
    with messages.status(f"tracing it, writing {plain(str(out))}, running that"):
        written = export(
            loaded.model,
            out,
            loaded.example,
            method=args.method,
            num_samples=args.num_samples,
            seed=args.seed,
            level=args.level,
            reasons=args.reasons,
            classes=loaded.classes,
            about=loaded.inputs,
            opset=args.opset,
            check=not args.no_check,
        )
    if args.json:
        write_json({**asdict(written), "path": str(out), "tried_on": loaded.tried, **loaded.inputs})
    else:
        _tell(written, loaded.tried if not args.no_check else None)
    return 0


def _layer(args: argparse.Namespace) -> _Loaded:
    """A decision layer alone, and random features."""
    import torch

    from bndl.stream import load_predictor

    if args.floats:
        raise InputError(f"--floats is about images, and {args.model} takes features: leave it out.")
    found = load_predictor(args.model, head=args.head)
    features = torch.rand(_TRIED, found.layer.in_features, generator=torch.Generator().manual_seed(args.seed))
    if found.layer.signed:
        features = features.mul_(2).sub_(1)
    return _Loaded(found.model, found.classes, found.about, features, f"{_TRIED} random rows of features", {})


def _run(args: argparse.Namespace) -> _Loaded:
    """A run's model, and images of its test part, or random ones where its data are away."""
    import torch

    from bndl.data import as_float
    from bndl.explain.subject import load_subject
    from bndl.export import FromPixels

    found = load_subject(args.model, head=args.head)
    run = found.run
    try:
        data = found.data()
        spread = torch.linspace(0, len(data) - 1, min(_TRIED, len(data))).long()  # as they may be sorted by class
        images = torch.stack([data.read(index) for index in spread.tolist()])
        tried = f"{len(images)} images of the run's test part"
    except (FileError, InputError):
        dims = (_TRIED, run.channels, run.side, run.side)
        images = torch.randint(0, 256, dims, dtype=torch.uint8, generator=torch.Generator().manual_seed(args.seed))
        tried = f"{_TRIED} random images, as the run's data cannot be read"
    pixels = "floats from 0 to 1" if args.floats else "whole numbers from 0 to 255"
    resize = run.recipe.data.resize or run.side
    made = (
        f"shorter side to {resize} (bilinear), centre {run.side} x {run.side}, {_COLOURS.get(run.channels, 'planes')}"
    )
    inputs = {"pixels": pixels, "channels": run.channels, "side": run.side, "resize": resize, "preparation": made}
    model = found.model if args.floats else FromPixels(found.model)
    example = as_float(images) if args.floats else images
    return _Loaded(model, run.classes, found.about, example, tried, inputs)


def _tell(written: "Exported", tried: str | None) -> None:
    from rich import box
    from rich.table import Table

    out, differences = console(), written.differences
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for heading in ("", "name", "dims", *(["differs by"] if differences else [])):
        table.add_column(heading, justify="right" if heading == "differs by" else "left")
    for place, ports in (("takes", written.inputs), ("gives", written.outputs)):
        for index, port in enumerate(ports):
            dims = ", ".join(map(str, port.dims))
            cells = [place if index == 0 else "", port.name, f"{port.dtype} ({dims})"]
            if differences:
                cells.append(f"{differences[port.name]:.0e}".replace("0e+00", "0") if port.name in differences else "")
            table.add_row(*cells)
    out.print(table)
    if differences:
        out.print(f"differs by: the most from bndl.predict, or the share that differs, on {tried}", **PLAIN)
    elif tried is not None:
        out.print('not run: with onnxruntime (pip install "bndl[export]") it is compared with bndl.predict', **PLAIN)
    out.print(f"Written: {plain(str(written.path))}, {written.size / 1e6:.1f} MB\n\n{_use(written)}", **PLAIN)


def _use(written: "Exported") -> str:
    """How to run it."""
    name, given = plain(written.path.name), ", ".join(port.name for port in written.inputs)
    if written.path.suffix.lower() == ".pt2":
        return f'import torch\nsaid = torch.export.load("{name}").module()({given})\nsaid["labels"], said["certain"]'
    feed = ", ".join(f'"{port.name}": {port.name}' for port in written.inputs)
    return (
        f'import onnxruntime\nsession = onnxruntime.InferenceSession("{name}")\n'
        f'labels, probs, certain = session.run(["labels", "probs", "certain"], {{{feed}}})'
    )

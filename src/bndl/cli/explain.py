"""``bndl explain``: a run, some images, one command: a figure like the paper's, and all reasons as JSON."""

import argparse
import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bndl.cli.console import console, count, number, plain, seed, write_json
from bndl.cli.opening import PLAIN, add_names_argument
from bndl.errors import FileError, InputError
from bndl.files import replacing

if TYPE_CHECKING:
    from torch import Tensor, nn

    from bndl.data import LabelledSet
    from bndl.explain import Explanation
    from bndl.explain.figure import Look, Picture
    from bndl.explain.subject import Subject

__all__ = ["add_arguments", "run"]

_LARGEST_HEAT = 4096  # pixels: the maps of networks are written, heat of the image's size is not
_EPILOG = """examples:
  bndl explain runs/photos holiday.jpg
  bndl explain runs/photos a.jpg b.jpg c.jpg --dense runs/photos-dense --rule activation
  bndl explain runs/cifar10 --example 17 --example 42 --map gradcam --out figures
  bndl explain runs/cifar10 --head runs/cifar10/sparse/model.safetensors --example 17 --against cat"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's options."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = _EPILOG
    parser.add_argument("folder", type=Path, metavar="RUN", help="folder of a finished run; a dense head is converted")
    parser.add_argument("images", nargs="*", type=Path, metavar="IMAGE", help="image files of any size")
    parser.add_argument(
        "--example", type=number, action="append", default=[], metavar="N", help="image N of the run's own data"
    )
    parser.add_argument(
        "--part", choices=("test", "val"), default="test", help="which part --example counts in (default: test)"
    )
    parser.add_argument("--head", type=Path, metavar="FILE", help="a model of this run that bndl sparsify wrote")
    add_names_argument(parser)
    parser.add_argument(
        "--label", metavar="CLASS", help="explain this class, by name or number (default: the decision)"
    )
    parser.add_argument("--against", metavar="CLASS", help="why not this one (default: the truth or the runner-up)")
    parser.add_argument(
        "--rule",
        choices=("weight", "activation", "contribution"),
        default="contribution",
        help="show the feature with the largest Phi, theta, or product (default: contribution)",
    )
    parser.add_argument(
        "--map",
        choices=("channel", "gradcam", "lime"),
        help="how the feature is placed in the image (default: channel where that is exact, else lime)",
    )
    parser.add_argument(
        "--dense", type=Path, metavar="RUN", help="a dense run to draw below (default: RUN if it is dense)"
    )
    parser.add_argument("--top", type=count, default=10, metavar="N", help="terms to list (default: 10)")
    parser.add_argument(
        "--fit-noise", action="store_true", help="fit the noise of a converted dense head to validation data: slower"
    )
    parser.add_argument("--out", type=Path, metavar="DIR", help="where to write (default: RUN/explanation)")
    parser.add_argument("--seed", type=seed, default=0, help="of draws and perturbations (default: 0)")
    parser.add_argument("--json", action="store_true", help="print everything as JSON in place of the text")


@dataclass(frozen=True)
class _Images:
    """What to explain: pixels (B, C, H, W) uint8, what to call each, and the true classes where they are known."""

    pixels: "Tensor"
    names: tuple[str, ...]
    truths: tuple[int | None, ...]


def run(args: argparse.Namespace) -> int:
    """Load, explain, draw, tell."""
    from bndl.explain.figure import MOST, draw
    from bndl.explain.looks import dense_looks, our_looks
    from bndl.explain.subject import load_subject

    if not 1 <= len(args.images) + len(args.example) <= MOST:
        raise InputError(f"give 1 to {MOST} images: files, or --example N of the run's own data.")
    subject = load_subject(args.folder, head=args.head, names=args.names, fit_noise=args.fit_noise)
    label, against = (None if name is None else subject.class_index(name) for name in (args.label, args.against))
    dense = subject.dense if args.dense is None else _dense_twin(args.dense, subject)
    images = _read(args, subject)
    folder = _writable(args.out or args.folder / "explanation")
    found = _explained(args, subject, images, label, against)
    x, how = subject.inputs(images.pixels), {"rule": args.rule, "method": args.map, "seed": args.seed}
    looks = [our_looks(subject, x, found, **how)]
    looks += [] if dense is None else [dense_looks(dense, x, subject.classes, target=label, **how)]
    record = {
        "run": str(args.folder),
        "about": list(subject.about),
        "classes": list(subject.classes),
        "rule": args.rule,
        "images": [_record(subject, images, i, found[i], [own[i] for own in looks]) for i in range(len(found))],
    }
    with replacing(folder / "explanation.json") as temporary:
        temporary.write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
    pictures = [_picture(subject, images, i, label, [own[i] for own in looks]) for i in range(len(found))]
    draw(pictures, folder / "explanation.png", title=f"Where the feature of the largest {args.rule} looks")
    if args.json:
        write_json({"folder": str(folder), **record})
    else:
        _tell(subject, images, found, folder)
    return 0


# ------------------------------------------------------------------------------------------------------------- reading


def _read(args: argparse.Namespace, subject: "Subject") -> _Images:
    import torch

    for file in args.images:
        if not file.is_file():
            raise FileError(f"there is no image {file}: check the path.")
    pixels = [subject.run.read(file)[0] for file in args.images]
    names, truths = [file.name for file in args.images], list[int | None]([None] * len(args.images))
    if args.example:
        data = _part(args.part, subject)
        for number in args.example:
            if number >= len(data):
                raise InputError(
                    f"the {args.part} part has {len(data)} examples, numbered from 0: there is no {number}."
                )
            image, truth = data[number]
            pixels.append(image)
            names.append(f"{args.part} example {number}")
            truths.append(truth)
    return _Images(torch.stack(pixels), tuple(names), tuple(truths))


def _part(part: str, subject: "Subject") -> "LabelledSet":
    if part in subject.parts:
        return subject.data(part)
    other = "val" if part == "test" else "test"
    cure = f"choose --part {other}" if other in subject.parts else "give files of images"
    raise InputError(f"the data of this run have no {part} part: {cure}.")


def _dense_twin(folder: Path, subject: "Subject") -> "nn.Module":
    from bndl.train import load_run

    run = load_run(folder)
    if run.recipe.model.head != "dense":
        raise InputError(f"{folder} has a {run.recipe.model.head} head: --dense takes a run with a dense one.")
    if run.classes != subject.run.classes or (run.channels, run.side) != (subject.run.channels, subject.run.side):
        raise InputError(f"{folder} was trained on other classes or other images than {subject.run.folder}.")
    return run.model.to(subject.layer.weight.device)


def _writable(folder: Path) -> Path:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise FileError(f"cannot write to {folder} ({error.strerror}): choose another --out.") from error
    return folder


# ---------------------------------------------------------------------------------------------------------- explaining


def _explained(
    args: argparse.Namespace, subject: "Subject", images: _Images, label: int | None, against: int | None
) -> "list[Explanation]":
    """Of each image the label, or the decision; against the truth where that is another, else the runner-up."""
    from bndl.explain import explain

    x, options = subject.inputs(images.pixels), {"top": args.top, "seed": args.seed}
    if against is not None:
        return explain(subject.model, x, target=label, against=against, **options)
    found = explain(subject.model, x, target=label, against="runner-up", **options)
    others = [
        next(c for c in (truth, one.label, one.runner_up) if c is not None and c != one.target)
        for one, truth in zip(found, images.truths, strict=True)
    ]
    if others == [one.against for one in found]:
        return found
    return explain(subject.model, x, target=label, against=others, **options)


# ------------------------------------------------------------------------------------------------------------- telling


def _picture(subject: "Subject", images: _Images, i: int, label: int | None, looks: "list[Look]") -> "Picture":
    from bndl.explain.figure import Picture

    shown = label if images.truths[i] is None else images.truths[i]
    return Picture(images.pixels[i], images.names[i], None if shown is None else subject.classes[shown], tuple(looks))


def _record(subject: "Subject", images: _Images, i: int, one: "Explanation", looks: "list[Look]") -> dict[str, Any]:
    truth = images.truths[i]
    return {
        "image": images.names[i],
        "truth": None if truth is None else subject.classes[truth],
        "prediction": subject.classes[one.label],
        "explanation": one.to_dict(),
        "looks": [
            {
                "model": look.model,
                "prediction": look.prediction,
                "feature": look.feature,
                "why": look.why,
                "heat": look.heat.tolist() if look.heat.numel() <= _LARGEST_HEAT else None,
            }
            for look in looks
        ],
    }


def _tell(subject: "Subject", images: _Images, found: "list[Explanation]", folder: Path) -> None:
    out = console()
    out.print(plain("; ".join(subject.about)), **PLAIN)
    classes = [plain(name) for name in subject.classes]
    for name, one in zip(images.names, found, strict=True):
        out.print(f"\n{plain(name)}\n{one.text(classes)}", **PLAIN)
    out.print(f"\nWritten to {plain(str(folder))}: explanation.png, explanation.json", **PLAIN)

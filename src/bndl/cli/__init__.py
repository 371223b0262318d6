"""The command line: ``bndl COMMAND``; one file a command, imported when it is called."""

import argparse
import importlib
import os
import sys
from collections.abc import Sequence

from bndl._version import __version__
from bndl.cli.console import fail
from bndl.errors import BndlError

__all__ = ["main"]

COMMANDS = {
    "demo": "train on scikit-learn's digits, show what the decision layer adds, draw a picture",
    "train": "train a classifier by a recipe, on your data or a known set; stop it, resume it, on one device or many",
    "evaluate": "measure a run: calibration, errors, certainty, other data, corruptions; a table, JSON and a picture",
    "predict": "predict a folder of images or a table of features, however large, with full uncertainty; resumable",
    "compare": "methods side by side on the same data: one table with intervals; the paper's tables beside ours",
    "sparsify": "take weights out of a run's decision layer, down to a few a class: a path, a table, a picture, a model",
    "explain": "why a run decides as it does on an image: the features that add up to the decision, and where they look",
    "report": "one HTML file about a run, to read and to mail: trust, classes, features, mistakes, what-if",
    "explore": "the same page with a live model behind it, in your browser",
    "certify": "which features of a run are provably identifiable, with witnesses; or test the certificate itself",
    "export": "a run as one ONNX file, with its uncertainty in it; or as torch's .pt2",
    "bench": "the claims of speed, measured here, next to the packages they compare with",
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; the exit code. 0: done; 1: a bug; 2: bad input, said in one sentence; 130: interrupted."""
    argv = sys.argv[1:] if argv is None else list(argv)
    try:
        parser = _parser(argv[0] if argv else None)
        args = parser.parse_args(argv)
        if args.command is None:
            parser.print_help()
            return 0
        return int(args.run(args))
    except BndlError as error:
        return fail(str(error), code=2)
    except KeyboardInterrupt:
        return fail("interrupted; files that were finished are kept, nothing is half-written.", code=130)
    except BrokenPipeError:  # the reader of our output went away, as head does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


def _parser(chosen: str | None) -> argparse.ArgumentParser:
    """All commands with their one line of help; the arguments of the chosen one."""
    parser = argparse.ArgumentParser(
        prog="bndl",
        description="How sure a classifier is, and why: the Bayesian Non-negative Decision Layer.",
        epilog="bndl COMMAND --help tells more of a command.",
    )
    parser.add_argument("--version", action="version", version=f"bndl {__version__}")
    subparsers = parser.add_subparsers(dest="command", metavar="COMMAND", title="commands")
    for name, summary in COMMANDS.items():
        subparser = subparsers.add_parser(name, help=summary, description=f"{summary[0].upper()}{summary[1:]}.")
        if name == chosen:
            command = importlib.import_module(f"bndl.cli.{name}")
            command.add_arguments(subparser)
            subparser.set_defaults(run=command.run)
    return parser

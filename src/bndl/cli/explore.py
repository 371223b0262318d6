"""``bndl explore``: a run's report as a page that answers: images, LIME, edits on all data, the edited model."""

import argparse
import os
import sys
import threading
import webbrowser
from typing import Any

from bndl.cli.console import console, write_json
from bndl.cli.opening import PLAIN, add_run_arguments, add_size_arguments, opened, options, stages
from bndl.errors import FileError, MissingExtraError

__all__ = ["add_arguments", "run"]

_EPILOG = """examples:
  bndl explore runs/photos
  bndl explore runs/cifar10 --head runs/cifar10/sparse/model.safetensors --port 0
  bndl explore runs/cifar10 --host 0.0.0.0 --token "$(openssl rand -hex 16)"

Whoever can log in to this machine can open a page at 127.0.0.1; on a machine that you share, give a --token."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's options."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = _EPILOG
    add_run_arguments(parser)
    add_size_arguments(parser, faithfulness=0, lime=0)
    parser.add_argument("--host", default="127.0.0.1", help="where to listen (default: 127.0.0.1, this machine alone)")
    parser.add_argument("--port", type=_port, default=8765, help="0 for any free one (default: 8765)")
    parser.add_argument(
        "--token",
        metavar="TEXT",
        help="what a reader must know; needed for any host but this machine (default: BNDL_TOKEN of the environment)",
    )
    parser.add_argument("--no-browser", action="store_true", help="do not open a browser")
    parser.add_argument("--json", action="store_true", help="print the address as JSON once it answers")


def _port(text: str) -> int:
    if not text.isdecimal() or int(text) > 65535:
        raise argparse.ArgumentTypeError(f"a port is a whole number from 0 to 65535, got {text!r}")
    return int(text)


def run(args: argparse.Namespace) -> int:
    """Bind, load, collect, serve."""
    stage = stages()
    if not args.folder.is_dir():
        raise FileError(f"there is no folder {args.folder}: give that of a finished run of bndl train.")
    try:
        import fastapi  # noqa: F401
        import uvicorn  # noqa: F401
    except ImportError as error:
        raise MissingExtraError("the explorer", extra="explore") from error
    from bndl.report.security import Rules
    from bndl.report.server import bind, create_app, serve

    token = args.token if args.token is not None else os.environ.get("BNDL_TOKEN") or None
    Rules.of(args.host, port=args.port, token=token)  # what is wrong with it is said before a port is taken
    bound = bind(args.host, args.port)
    try:
        port = int(bound.getsockname()[1])
        rules = Rules.of(args.host, port=port, token=token)
        app = create_app(_session(args, stage), rules=rules)
        stage("ready")
        serve(app, bound, ready=lambda: _tell(args, port, guarded=rules.token is not None))
    finally:
        bound.close()
    console(stderr=True).print("Stopped.")
    return 0


def _session(args: argparse.Namespace, stage: Any) -> Any:
    """The run, opened and measured."""
    from bndl.report.of_run import report_of
    from bndl.report.session import Session

    run = opened(args, stage)
    report = report_of(run, options=options(args), stage=stage).to_dict()
    return Session(run, report, seed=args.seed)


def _tell(args: argparse.Namespace, port: int, *, guarded: bool) -> None:
    """Say where it is, and go there."""
    from bndl.report.security import is_loopback

    host = f"[{args.host}]" if ":" in args.host else args.host
    url = f"http://{host}:{port}/"
    if args.json:
        write_json({"url": url, "port": port, "run": str(args.folder), "token": guarded})
    else:
        console().print(f"Open {url}{'?token=...' if guarded else ''} (Ctrl-C ends it)", **PLAIN)
    sys.stdout.flush()  # whoever reads it through a pipe waits for it
    if not args.no_browser and not guarded and is_loopback(args.host):
        threading.Thread(target=webbrowser.open, args=(url,), daemon=True).start()

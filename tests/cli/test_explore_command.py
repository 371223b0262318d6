"""``bndl explore`` as a user meets it before a page is open: what it refuses, and how it starts and ends."""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import urllib.request
from pathlib import Path

import pytest
import yaml

from bndl import cli
from bndl.cli import main

pytest.importorskip("fastapi")
pytest.importorskip("uvicorn")
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")

RECORD = {
    "about": "a test",
    "needs": {"data": "digits", "hours": "0", "machine": "any"},
    "data": {"name": "digits", "val": 0.1},
    "model": {"backbone": "small-cnn", "width": 4, "head": "dense"},
    "train": {"epochs": 1, "batch_size": 256},
}
START = "import sys; from bndl import cli; cli.COMMANDS.setdefault('explore', ''); sys.exit(cli.main(sys.argv[1:]))"
TOKEN = "a-token-that-nobody-guesses"


@pytest.fixture(autouse=True)
def _registered(monkeypatch):
    monkeypatch.setitem(cli.COMMANDS, "explore", "the report, alive")
    monkeypatch.delenv("BNDL_TOKEN", raising=False)


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    base = tmp_path_factory.mktemp("runs")
    (base / "tiny.yaml").write_text(yaml.safe_dump(RECORD))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("bndl.calibrate._STEPS", 20)
        assert main(["train", str(base / "tiny.yaml"), "--out", str(base / "dense")]) == 0
    return base / "dense"


def refused(capsys, *args: str) -> str:
    """What a command that is refused says: one sentence, nothing on standard output."""
    capsys.readouterr()
    assert main(["explore", *args, "--no-browser"]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    told = [line for line in err.strip().splitlines() if line.startswith("bndl: ")]
    assert len(told) == 1
    return told[0]


def test_a_port_that_is_taken_is_said_before_any_work(capsys, folder):
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        said = refused(capsys, str(folder), "--port", str(port))
    assert f"port {port} of 127.0.0.1 cannot be had" in said
    assert "--port" in said
    assert not (folder / "features").exists()


def test_other_machines_need_a_token(capsys, folder):
    assert "a token is needed" in refused(capsys, str(folder), "--host", "0.0.0.0", "--port", "0")
    assert "at least 12" in refused(capsys, str(folder), "--host", "0.0.0.0", "--port", "0", "--token", "1234")


def test_a_run_that_is_none(capsys, tmp_path):
    assert "there is no folder" in refused(capsys, str(tmp_path / "nowhere"), "--port", "0")
    assert "is no run's folder" in refused(capsys, str(tmp_path), "--port", "0")


def test_an_extra_that_is_missing_is_named(capsys, folder, monkeypatch):
    monkeypatch.setitem(sys.modules, "fastapi", None)
    assert 'pip install "bndl[explore]"' in refused(capsys, str(folder))


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["--port", "99999"], "from 0 to 65535"),
        (["--port", "x"], "from 0 to 65535"),
        (["--limit", "0"], "at least 1"),
        ([], "RUN"),
    ],
)
def test_options_are_checked(args, words, capsys):
    with pytest.raises(SystemExit) as stop:
        main(["explore", *(["run"] if args else []), *args])
    assert stop.value.code == 2
    assert words in capsys.readouterr().err


@pytest.mark.slow
def test_it_starts_answers_and_ends_with_ctrl_c(folder):
    command = [
        sys.executable,
        "-c",
        START,
        "explore",
        str(folder),
        "--port",
        "0",
        "--no-browser",
        "--json",
        "--limit",
        "40",
    ]
    environment = {**os.environ, "BNDL_TOKEN": TOKEN}
    server = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)
    assert server.stdout is not None
    impatience = threading.Timer(240, server.kill)  # a server that does not start must not hold up the tests
    impatience.start()
    try:
        text = ""
        while not text.rstrip().endswith("}"):
            line = server.stdout.readline()
            assert line, f"it did not start: {text}"
            text += line
        record = json.loads(text)
        assert record["token"] is True
        assert TOKEN not in text
        request = urllib.request.Request(record["url"] + "api/examples", headers={"authorization": f"Bearer {TOKEN}"})
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(request, timeout=180) as response:
            assert json.load(response)["total"] == 40
    finally:
        server.send_signal(signal.SIGINT)
        out, said = server.communicate(timeout=180)
        impatience.cancel()
    assert server.returncode == 0, said
    assert said.strip().endswith("Stopped.")
    assert "Traceback" not in said
    assert TOKEN not in said + out

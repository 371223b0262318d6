"""What the tests of the page share: a browser, and the file of a made-up report."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from visit import ARGUMENTS, CHROMIUM, DATA

from bndl.report.page import write


@pytest.fixture(scope="module")  # not longer: its event loop would be in the way of tests that start their own
def browser() -> Iterator[Any]:
    playwright = pytest.importorskip("playwright.sync_api", reason="Playwright for Python is not installed")
    if CHROMIUM is None:
        without = pytest.fail if os.environ.get("BNDL_BROWSER") == "required" else pytest.skip
        without("no chromium on the path: apt-get install chromium")
    with playwright.sync_playwright() as running:
        started = running.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        yield started
        started.close()


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(DATA, tmp_path_factory.mktemp("page") / "report.html")

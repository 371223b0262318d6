"""The explorer in a real browser, with its real server: upload, ask, LIME, edit everything, save."""

import os
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from explored import image_file, tiny_run
from visit import row_values

pytest.importorskip("fastapi")
pytest.importorskip("uvicorn")
pytestmark = [pytest.mark.filterwarnings("ignore::UserWarning"), pytest.mark.slow]
SHOTS = os.environ.get("BNDL_SHOTS")  # a folder to put pictures into, for those who want to look
START = "import sys; from bndl import cli; cli.COMMANDS.setdefault('explore', ''); sys.exit(cli.main(sys.argv[1:]))"


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return tiny_run(tmp_path_factory.mktemp("runs"))


@pytest.fixture(scope="module")
def address(folder) -> Iterator[str]:
    """A server on a free port of this machine, ended by Ctrl-C as a user would."""
    command = [sys.executable, "-c", START, "explore", str(folder), "--port", "0", "--no-browser"]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert server.stdout is not None
    try:
        ready, _, _ = select.select([server.stdout], [], [], 240)
        line = server.stdout.readline() if ready else ""
        found = re.search(r"http://127\.0\.0\.1:\d+/", line)
        assert found, f"it did not start: {line}"
        yield found[0]
    finally:
        server.send_signal(signal.SIGINT)
        try:
            _, said = server.communicate(timeout=180)
        except subprocess.TimeoutExpired:
            server.kill()
            raise
    assert server.returncode == 0, said
    assert said.strip().endswith("Stopped.")
    assert "Traceback" not in said


class Visit:
    """The explorer's page; at the end it must have said nothing and asked nobody but its server."""

    def __init__(self, browser: Any, address: str, *, hash: str = "", width: int = 1280, **options: Any) -> None:
        size = {"width": width, "height": 900}
        self.context = browser.new_context(viewport=size, reduced_motion="reduce", **options)
        self.said: list[str] = []
        self.address = address
        self.context.route(re.compile(rf"^(?!{re.escape(address)}|data:|blob:)"), self._refuse)
        self.page = self.context.new_page()
        self.page.set_default_timeout(180_000)
        self.page.on("console", lambda message: self.said.append(f"{message.type}: {message.text}"))
        self.page.on("pageerror", lambda error: self.said.append(str(error)))
        self.page.goto(address + hash)

    def _refuse(self, route: Any) -> None:
        self.said.append(f"asked {route.request.url}")
        route.abort()

    def __enter__(self) -> Any:
        return self.page

    def __exit__(self, kind: Any, *_: object) -> None:
        self.context.close()
        if kind is None:
            assert self.said == []


def shot(page: Any, name: str, where: str) -> None:
    if SHOTS:
        page.wait_for_timeout(400)
        page.locator(where).screenshot(path=f"{SHOTS}/{name}.png")


def upload(page: Any, raw: bytes, name: str = "holiday <b>.png") -> None:
    page.set_input_files("#ask-file", {"name": name, "mimeType": "image/png", "buffer": raw})


def half_done(route: Any) -> None:
    """A job that is always in the middle, however fast the machine; stopping it is real."""
    if route.request.method != "GET":
        route.continue_()
    else:
        route.fulfill(json={"job": "", "state": "running", "done": 500, "total": 1000, "error": ""})


def edit(page: Any) -> None:
    """Switch the feature off that is chosen at first, in all classes."""
    page.locator("[data-factor='0']").click()


@pytest.mark.parametrize("width", [1280, 390])
def test_a_picture_is_uploaded_and_answered(browser, address, width) -> None:
    with Visit(browser, address, width=width) as page:
        assert page.locator(".over").inner_text().lower() == "bndl explorer"
        page.locator("#ask .tile img[src]").first.wait_for()
        upload(page, image_file(side=60))
        page.locator("#answer .waterfall").first.wait_for()
        assert "holiday <b>.png" in page.locator(".answer-head").inner_text()
        assert page.locator("#answer b").count() == 0  # a name is text
        for table in page.locator("#answer .waterfall").all():
            total = float(table.locator("[data-total]").get_attribute("data-total"))
            assert sum(row_values(table)) == pytest.approx(total, abs=1e-9)
            assert table.locator(".warning").count() == 0
        assert page.locator("#answer .answer-views img").count() == 3
        assert page.locator("#answer svg .draw").count() > 3
        assert page.evaluate("document.documentElement.scrollWidth") == width
        shot(page, f"ask-{width}", "#ask")


def test_lime_runs_with_progress_and_can_be_stopped(browser, address) -> None:
    with Visit(browser, address, hash="#ask=3") as page:
        page.locator("#lime-run").wait_for()
        page.route(re.compile("/api/jobs/"), half_done)
        page.select_option("#lime-size", "1000")
        page.click("#lime-run")
        page.wait_for_function("() => document.querySelector('#lime-status').textContent.startsWith('500 of')")
        assert page.locator("#lime-progress").get_attribute("value") == "0.5"
        page.click("#lime-stop")
        assert page.locator("#lime-status").inner_text() == "Stopped."
        page.unroute(re.compile("/api/jobs/"))
        page.select_option("#lime-size", "300")
        page.click("#lime-run")
        page.wait_for_function(
            "() => Number(document.querySelector('#lime-progress').value) > 0 || document.querySelector('.lime-result img')"
        )
        page.locator(".lime-result img").wait_for()
        first = page.locator(".lime-result img").get_attribute("src")
        assert page.locator(".lime-result").inner_text().startswith("feature f")
        page.select_option("#lime-what", index=1)
        page.wait_for_function("first => document.querySelector('.lime-result img').src !== first", arg=first)
        assert "300 passes" in page.locator(".lime-result").inner_text()
        shot(page, "lime-1280", ".lime")


@pytest.mark.parametrize("width", [1280, 390])
def test_an_edit_is_decided_on_all_data_and_saved(browser, address, folder, width) -> None:
    kept = {path.name for path in (folder / "edited").iterdir()} if (folder / "edited").exists() else set()
    with Visit(browser, address, hash="#ask=0", width=width) as page:
        page.locator("#answer .waterfall").first.wait_for()
        assert page.locator("#save-model").is_disabled()
        edit(page)
        page.locator("#whole .tile").first.wait_for()
        page.locator("#answer .edited").wait_for()
        assert "With your 1 edit." in page.locator("#answer .edited").inner_text()
        effect = page.evaluate("bndl.whatif.effect()")
        counts = page.locator("#whole-effect .big").all_text_contents()
        assert page.evaluate("bndl.rows.all")
        assert counts[2:] == [str(len(effect["fixed"])), str(len(effect["broken"]))]
        assert page.locator("#whole .halves h3").all_text_contents() == [
            f"Mended ({len(effect['fixed'])})",
            f"Broken ({len(effect['broken'])})",
        ]
        shot(page, f"edits-{width}", "#whatif")
        page.click("#save-model")
        page.locator("#save-said code").first.wait_for()
        (new,) = {path.name for path in (folder / "edited").iterdir()} - kept
        assert f"edited/{new}/" in page.locator("#save-said").inner_text()
        page.click("#edit-undo")
        page.wait_for_function("() => document.querySelectorAll('#whole-effect .big')[3].textContent === '0'")
        page.wait_for_function("() => !document.querySelector('#answer .edited')")
        assert not page.locator("#save-model").is_visible()
        page.click("#edit-redo")
        page.wait_for_function(
            "count => document.querySelectorAll('#whole-effect .big')[3].textContent === count", arg=counts[3]
        )
        assert page.evaluate("document.documentElement.scrollWidth") == width


def test_examples_are_chosen_and_trouble_is_told(browser, address) -> None:
    with Visit(browser, address) as page:
        page.locator("#ask .tile").first.wait_for()
        page.select_option("#ask-outcome", "right")
        page.select_option("#ask-decile", "0")
        page.wait_for_function("() => !document.querySelector('#ask .tile.wrong')")
        tile = page.locator("#ask .tile").first
        number = tile.get_attribute("data-example")
        tile.click()
        page.locator(".badge.good").wait_for()
        assert page.url.endswith(f"#ask={number}")
        page.fill("#ask-number", "99999")
        page.keyboard.press("Enter")
        assert "numbered from 0" in page.locator("#ask-said").inner_text()
        page.fill("#ask-number", "11")
        page.keyboard.press("Enter")
        page.wait_for_function("() => document.querySelector('.answer-head')?.textContent.includes('example 11')")
        page.select_option("#ask-against", index=2)
        other = page.locator("#ask-against option").nth(2).inner_text()
        page.wait_for_function(
            "name => document.querySelector('#answer .two').textContent.includes(`For ${name}`)", arg=other
        )
        upload(page, b"x" * (10 * 2**20 + 1), "large.png")  # is not even sent
        page.locator("#answer .trouble").wait_for()
        assert "larger than 10 MB" in page.locator("#answer .trouble").inner_text()


def test_what_is_no_image_is_said_politely(browser, address) -> None:
    visit = Visit(browser, address, color_scheme="dark")
    page = visit.page
    upload(page, b"no image", "x.png")
    page.locator("#answer .trouble").wait_for()
    assert "no image that can be read" in page.locator("#answer .trouble").inner_text()
    upload(page, image_file())
    page.locator("#answer .waterfall").first.wait_for()
    shot(page, "dark", "#ask")
    visit.context.close()
    assert [line for line in visit.said if "415" not in line] == []


def test_many_clicks_end_with_the_last_one(browser, address) -> None:
    with Visit(browser, address) as page:
        page.locator("#ask .tile").first.wait_for()
        for number in (1, 2, 3, 4, 5, 6):
            page.evaluate("number => { location.hash = `#ask=${number}`; }", number)
        page.wait_for_function("() => document.querySelector('.answer-head')?.textContent.includes('example 6')")
        time.sleep(1)
        assert "example 6 " in page.locator(".answer-head").inner_text()

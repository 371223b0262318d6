"""The page as a file: what is in it, what it may do, and what no name can make it do."""

import base64
import hashlib
import html
import json
import re
import stat

import pytest
from sample import HOSTILE, sample

from bndl.errors import FileError, InputError
from bndl.report.page import SCRIPTS, render, write


def embedded(page: str) -> str:
    found = re.search(r'<script type="application/json" id="bndl-data">(.*?)</script>', page, flags=re.DOTALL)
    assert found
    return found[1]


def policy(page: str) -> dict[str, list[str]]:
    found = re.search(r'http-equiv="Content-Security-Policy" content="([^"]*)"', page)
    assert found
    rules = [rule.split() for rule in html.unescape(found[1]).split(";")]
    return {name: sources for name, *sources in rules}


def digest(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def test_the_data_come_back_as_they_went_in() -> None:
    data = sample(count=40, hostile=True)
    assert json.loads(embedded(render(data))) == data


def test_no_name_leaves_the_data() -> None:
    data = sample(count=40, hostile=True)
    page = render(data)
    inside = embedded(page)
    assert not set("<>&\u2028") & set(inside)
    assert inside.isascii()
    outside = page.replace(inside, "")
    for name in HOSTILE[:3]:
        assert name not in outside
    assert html.escape(HOSTILE[1]) in outside  # the title, as text


def test_a_name_that_looks_like_a_place_in_the_template_stays_a_name() -> None:
    data = sample(count=40)
    data["meta"]["title"] = "{{data}} {{csp}}"
    assert "<title>{{data}} {{csp}}</title>" in render(data)


def test_a_title_that_no_file_can_hold_does_not_stop_the_report() -> None:
    data = sample(count=40)
    data["meta"]["title"] = "caf\udce9"  # how Python reads a file name that is not UTF-8
    assert "<title>caf?</title>" in render(data)
    render(data).encode()


def test_only_our_own_text_may_run() -> None:
    page = render(sample(count=40))
    rules = policy(page)
    scripts = re.findall(r"<script>(.*?)</script>", page, flags=re.DOTALL)
    (style,) = re.findall(r"<style>(.*?)</style>", page, flags=re.DOTALL)
    assert rules["default-src"] == ["'none'"]
    assert rules["script-src"] == [digest(scripts[0])]
    assert len(scripts) == 1
    assert rules["style-src"] == [digest(style)]
    assert rules["img-src"] == ["data:"]
    assert "connect-src" not in rules
    assert not re.search(r"unsafe|http", " ".join(source for sources in rules.values() for source in sources))


def test_the_page_asks_nobody_for_anything() -> None:
    page = render(sample(count=40, images=False))
    without_names = page.replace("http://www.w3.org/2000/svg", "")
    assert not re.search(r"https?://|//cdn|@import|url\(", without_names)
    assert not re.search(r'\b(?:src|srcset)=["\']', without_names)


def test_markup_is_never_made_of_strings() -> None:
    page = render(sample(count=40, images=False))
    (script,) = re.findall(r"<script>(.*?)</script>", page, flags=re.DOTALL)
    for way in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "Function("):
        assert way not in script


@pytest.mark.parametrize("live", [False, True])
def test_a_live_page_may_ask_its_own_server(live: bool) -> None:
    data = sample(count=40)
    data["meta"]["live"] = live
    page = render(data, extra_scripts=["window.extra = 1;\r\n"] if live else [])
    rules = policy(page)
    assert rules.get("connect-src") == (["'self'"] if live else None)
    assert ("blob:" in rules["img-src"]) is live
    assert (digest("window.extra = 1;\n") in rules["script-src"]) is live


def test_a_script_that_would_end_early_is_refused() -> None:
    with pytest.raises(InputError, match="end it early"):
        render(sample(count=40), extra_scripts=["'</SCRIPT>'"])


def test_what_is_around_the_data_is_small() -> None:
    page = render(sample(count=40, images=False))
    assert len(page) - len(embedded(page)) < 121_000


def test_a_number_that_is_not_finite_is_named() -> None:
    data = sample(count=40)
    data["trust"]["deciles"][3]["accuracy"] = float("nan")
    with pytest.raises(InputError, match=re.escape("trust.deciles[3].accuracy")):
        render(data)


def test_data_of_another_format_are_refused() -> None:
    with pytest.raises(InputError, match="format 2"):
        render({**sample(count=40), "format": 2})


def test_the_file_is_whole_or_not_there(tmp_path) -> None:
    path = write(sample(count=40), tmp_path / "report.html")
    assert path.read_text(encoding="utf-8").startswith("<!doctype html>")
    assert [entry.name for entry in tmp_path.iterdir()] == ["report.html"]
    assert stat.S_ISREG(path.stat().st_mode)
    with pytest.raises(FileError):
        write(sample(count=40), tmp_path / "nowhere" / "report.html")


def test_the_same_data_give_the_same_bytes() -> None:
    assert render(sample(count=40, seed=3)) == render(sample(count=40, seed=3))


def test_scripts_are_read_in_an_order_in_which_each_finds_what_it_needs() -> None:
    assert SCRIPTS[0] == "data.js"
    assert SCRIPTS[-1] == "main.js"
    assert len(set(SCRIPTS)) == len(SCRIPTS)

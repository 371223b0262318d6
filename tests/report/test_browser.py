"""The page in a real browser: what it shows is what the data say, and nothing leaves the machine."""

from itertools import pairwise
from typing import Any

import pytest
from sample import sample
from visit import DATA, Visit, arrays, row_values

from bndl.report.page import write


def width_of(page: Any) -> int:
    return int(page.evaluate("document.documentElement.scrollWidth"))


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"measured": False},
        {"images": False},
        {"images": False, "measured": False},
        {"hostile": True},
        {"count": 30, "num_classes": 2, "num_features": 3, "embedded": 2},
    ],
    ids=["whole", "not-measured", "no-images", "bare", "hostile", "tiny"],
)
@pytest.mark.parametrize("width", [390, 1280])
def test_it_opens_without_a_word_and_without_a_sideways_scroll(browser, tmp_path, options, width) -> None:
    path = write(sample(**options), tmp_path / "report.html")
    with Visit(browser, path, width=width) as page:
        assert page.locator("main > section").count() == 8
        page.locator("#features").scroll_into_view_if_needed()
        assert width_of(page) == width
        assert page.title() == sample(**options)["meta"]["title"]


def test_names_are_text(browser, tmp_path) -> None:
    data = sample(hostile=True)
    with Visit(browser, write(data, tmp_path / "report.html"), hash="#example=3") as page:
        assert page.locator("main img, main b:not(.counts b), main script").count() == 0
        shown = page.locator("#classes .card h3").all_text_contents()
        assert shown == data["meta"]["classes"]
        assert data["examples"]["names"][3] in page.locator("dialog h3").inner_text()


def test_what_was_not_measured_says_so(browser, tmp_path) -> None:
    with Visit(browser, write(sample(measured=False), tmp_path / "report.html")) as page:
        assert page.locator("#verdict .missing").all_text_contents() == ["not measured"] * 5
        assert "not measured" in page.locator("#faithfulness").inner_text()


def test_waterfalls_add_up_to_the_logit(browser, file) -> None:
    with Visit(browser, file, hash="#mistake=5") as page:
        record = DATA["mistakes"][5]
        for number, side in enumerate(("predicted", "true")):
            table = page.locator("#mistakes .waterfall").nth(number)
            total = float(table.locator("[data-total]").get_attribute("data-total"))
            assert total == pytest.approx(record[side]["logit"], abs=1e-6)
            assert sum(row_values(table)) == pytest.approx(total, abs=1e-9)
            assert table.locator("[data-total]").inner_text() == f"{record[side]['logit']:.2f}"
            assert table.locator(".warning").count() == 0


def test_a_waterfall_that_does_not_add_up_is_not_hidden(browser, tmp_path) -> None:
    data = sample()
    data["mistakes"][0]["predicted"]["rest"] += 1.0
    with Visit(browser, write(data, tmp_path / "report.html")) as page:
        assert "add up to" in page.locator("#mistakes .warning").inner_text()


def test_an_example_of_the_page_adds_up_too(browser, file) -> None:
    _, _, logits, _ = arrays(DATA)
    with Visit(browser, file, hash="#example=17") as page:
        table = page.locator("dialog .waterfall").first
        total = float(table.locator("[data-total]").get_attribute("data-total"))
        assert total == pytest.approx(float(logits[17].max()), abs=1e-5)
        assert sum(row_values(table)) == pytest.approx(total, abs=1e-9)
        page.keyboard.press("Escape")
        assert page.locator("dialog").count() == 0


def test_a_decile_filters_examples_and_mistakes(browser, file) -> None:
    _, _, logits, truth = arrays(DATA)
    deciles = DATA["trust"]["deciles"]
    with Visit(browser, file) as page:
        everything = page.locator("#mistakes .mistake-item").count()
        bar = page.locator(".decile").nth(9)
        bar.click()
        assert bar.get_attribute("aria-pressed") == "true"
        assert page.url.endswith("#decile=9")
        wrong = round(deciles[9]["count"] * (1 - deciles[9]["accuracy"]))
        assert page.locator("#examples-said").inner_text().startswith(f"{deciles[9]['count']} examples, {wrong} wrong")
        kept = page.evaluate("bndl.data.mistakes.filter(one => bndl.rows.decile[one.row] === 9).length")
        assert page.locator("#mistakes .mistake-item").count() == kept < everything
        bar.click()
        assert page.locator("#mistakes .mistake-item").count() == everything
        page.select_option("#examples-outcome", "wrong")
        assert page.locator("#examples-said").inner_text().startswith(f"{(logits.argmax(1) != truth).sum()} examples")


@pytest.mark.parametrize(
    ("hash", "where"),
    [
        ("#class=3", "#classes .card[data-class='3']"),
        ("#feature=12", "#features .card[data-feature='12']"),
        ("#mistake=5", "#mistakes .mistake"),
        ("#decile=9", ".decile[aria-pressed='true'][data-decile='9']"),
        ("#compare=3,5", "#compare[open] .difference"),
        ("#example=7", "dialog[open]"),
        ("#decile=0&class=2", "#classes .card[data-class='2']"),
    ],
)
def test_an_address_leads_to_its_place(browser, file, hash, where) -> None:
    with Visit(browser, file, hash=hash) as page:
        place = page.locator(where)
        place.wait_for(state="visible")
        page.wait_for_function("scrollY > 100 || document.querySelector('dialog[open]')")
        box = place.bounding_box()
        assert box is not None
        assert 0 <= box["y"] < 844


def test_an_address_of_nothing_is_ignored(browser, file) -> None:
    with Visit(browser, file, hash="#class=99") as page:
        for hash in (
            "feature=-1",
            "mistake=1e9",
            "decile=77",
            "example=4000",
            "%%%=%",
            "compare=1",
            "x=1",
            "__proto__=1",
        ):
            page.evaluate("hash => { location.hash = hash; }", hash)
            page.evaluate("new Promise(requestAnimationFrame)")
        assert page.locator("dialog").count() == 0
        assert page.evaluate("bndl.filter.decile") is None


def test_the_keyboard_is_enough(browser, file) -> None:
    with Visit(browser, file) as page:
        page.keyboard.press("Tab")
        assert page.evaluate("document.activeElement.textContent") == "Skip to the verdict"
        page.locator(".decile").first.focus()
        page.keyboard.press("ArrowRight")
        page.keyboard.press("Enter")
        assert page.evaluate("bndl.filter.decile") == 1
        page.keyboard.press("Enter")
        page.locator(".mistake-item[aria-pressed='true']").focus()
        page.keyboard.press("ArrowDown")
        assert page.url.endswith("#mistake=1")
        assert page.evaluate("document.activeElement.classList.contains('mistake-item')")
        page.locator("#examples .tile").first.focus()
        page.keyboard.press("Enter")
        page.locator("dialog[open]").wait_for()
        page.keyboard.press("Escape")
        assert page.locator("dialog").count() == 0


def test_everything_has_a_name_for_those_who_listen(browser, file) -> None:
    with Visit(browser, file) as page:
        assert page.locator("h1").count() == 1
        assert page.locator("main section[aria-labelledby]").count() == 8
        nameless = """nodes => nodes.filter(node => !(node.getAttribute('aria-label') || node.textContent.trim()
            || (node.labels && node.labels.length))).length"""
        assert page.locator("button, a, select, input").evaluate_all(nameless) == 0
        assert page.locator("canvas:not([aria-label]), svg[role]:not([aria-label])").count() == 0
        levels = page.locator("h1, h2, h3, h4").evaluate_all("nodes => nodes.map(node => Number(node.tagName[1]))")
        assert all(after - before <= 1 for before, after in pairwise(levels))


def contrast(page: Any, selector: str) -> float:
    script = """node => {
        const parse = text => text.match(/[\\d.]+/g).slice(0, 3).map(Number);
        const light = c => { const s = c / 255; return s <= 0.04045 ? s / 12.92 : ((s + 0.055) / 1.055) ** 2.4; };
        const of = text => { const [r, g, b] = parse(text).map(light); return 0.2126 * r + 0.7152 * g + 0.0722 * b; };
        const [a, b] = [of(getComputedStyle(node).color), of(getComputedStyle(document.body).backgroundColor)];
        return (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    }"""
    return float(page.locator(selector).first.evaluate(script))


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_letters_can_be_read_in_both_themes(browser, file, scheme) -> None:
    with Visit(browser, file, color_scheme=scheme) as page:
        for selector in ("h1", ".lead", "a.feature-link", ".was", ".note"):
            assert contrast(page, selector) >= 4.5, selector
        dark = page.evaluate("getComputedStyle(document.body).backgroundColor")
        for _ in range(2):
            page.click("#theme")  # auto, light, dark
        assert page.evaluate("document.documentElement.dataset.theme") == "dark"
        assert (page.evaluate("getComputedStyle(document.body).backgroundColor") == dark) is (scheme == "dark")


def test_many_rows_and_classes_are_no_burden(browser, tmp_path) -> None:
    data = sample(count=10_000, num_classes=100, num_features=60, embedded=60, images=False)
    with Visit(browser, write(data, tmp_path / "report.html")) as page:
        assert page.evaluate("document.querySelectorAll('*').length") < 8_000
        page.evaluate("bndl.whatif.apply([{feature: 1, target: null, factor: 0}])")
        assert page.evaluate("document.querySelectorAll('*').length") < 8_000
        page.fill("#classes-search", "number 77")
        assert page.locator("#classes .card").count() == 1
        page.evaluate("location.hash = '#class=93'")
        page.locator("#classes .card[data-class='93']").wait_for()


PAINTED = """nodes => nodes.map(node => {
    const copy = new OffscreenCanvas(node.width, node.height).getContext('2d', { willReadFrequently: true });
    copy.drawImage(node, 0, 0);
    return copy.getImageData(0, 0, node.width, node.height).data.some(value => value > 0);
})"""


@pytest.mark.parametrize("how", ["event", "media", "pdf"])
def test_what_is_printed_has_its_pictures(browser, file, how) -> None:
    with Visit(browser, file) as page:
        canvases = page.locator("canvas.thumb")
        canvases.first.scroll_into_view_if_needed()
        page.wait_for_function(f"() => ({PAINTED})([...document.querySelectorAll('canvas.thumb')]).some(Boolean)")
        assert not all(canvases.evaluate_all(PAINTED)), "all are in sight already: nothing is shown"
        if how == "event":
            page.evaluate("dispatchEvent(new Event('beforeprint'))")
        elif how == "media":
            page.emulate_media(media="print")
            page.evaluate("new Promise(requestAnimationFrame)")
        else:
            page.pdf()
        painted = canvases.evaluate_all(PAINTED)
        assert len(painted) > 50
        assert all(painted)


def test_mistakes_come_the_surest_first(browser, file) -> None:
    with Visit(browser, file) as page:
        shown = page.evaluate("bndl.data.mistakes.map(({row}) => [1 - bndl.rows.certain[row], bndl.rows.flip[row]])")
        assert shown == sorted(shown)
        assert "the surest first" in page.locator("#mistakes .lead").inner_text()
        assert page.get_by_role("group", name="mistakes, the surest first").count() == 1


@pytest.mark.parametrize(
    ("last", "words"),
    [
        (0.45, "still agree to 0.45: they depend partly on the image alone"),
        (0.2, "agree to 0.20 only: they depend on what was learned"),
        (None, ""),
    ],
)
def test_the_randomisation_check_comes_to_a_conclusion(browser, tmp_path, last, words) -> None:
    data = sample()
    data["faithfulness"]["randomisation"][-1]["correlation"] = last
    with Visit(browser, write(data, tmp_path / "report.html")) as page:
        said = page.locator("#faithfulness .found").text_content()
        assert words in said
        assert bool(said) is bool(words)


def test_a_live_script_finds_the_hook(browser, tmp_path) -> None:
    script = """bndl.onReady((page) => {
        const box = page.make.h("div", { id: "here" });
        page.addSection("live", "An image of yours", box, { lead: "Choose one.", before: "whatif" });
        page.showWaterfall(box, page.data.mistakes[0].predicted);
        page.whatif.onChange((edits) => { box.dataset.edits = String(edits.length); });
        page.whatif.apply([{ feature: 1, target: 0, factor: 0.5, note: "" }]);
    });"""
    path = write(sample(), tmp_path / "report.html", extra_scripts=[script])
    with Visit(browser, path) as page:
        order = page.locator("main > section").evaluate_all("nodes => nodes.map(node => node.id)")
        assert order.index("live") == order.index("whatif") - 1
        assert page.locator("#nav a").all_text_contents().index("An image of yours") == order.index("live")
        assert page.locator("#here [data-total]").count() == 1
        assert page.locator("#here").get_attribute("data-edits") == "1"

"""What-if edits in a real browser: the page computes what Python computes."""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sample import sample
from visit import DATA, Visit, arrays

import bndl
from bndl.edit import Edit, Editor
from bndl.report.page import write


def labels_of(page: Any) -> list[int]:
    return list(page.evaluate("Array.from({length: bndl.rows.count}, (_, row) => bndl.whatif.labelOf(row))"))


def test_a_weight_that_is_zeroed_gives_the_predictions_of_arithmetic(browser, file) -> None:
    theta, phi, logits, truth = arrays(DATA)
    feature = 3
    target = int(phi[feature].argmax())
    expected = logits.astype(np.float64)
    expected[:, target] -= theta[:, feature].astype(np.float64) * phi[feature, target]
    before, after = logits.argmax(axis=1), expected.argmax(axis=1)
    mended = int(((before != truth) & (after == truth)).sum())
    broken = int(((before == truth) & (after != truth)).sum())
    assert mended + broken > 0
    with Visit(browser, file) as page:
        page.select_option("#edit-feature", str(feature))
        page.select_option("#edit-class", str(target))
        page.click("[data-factor='0']")
        assert labels_of(page) == after.tolist()
        shown = page.locator("#effect .big").all_inner_texts()
        assert [float(text.rstrip(" %\u202f")) for text in shown[:2]] == pytest.approx(
            [100 * (before == truth).mean(), 100 * (after == truth).mean()], abs=0.051
        )
        assert [int(text) for text in shown[2:]] == [mended, broken]
        assert page.locator("#whatif .tiles a").count() == min(12, mended) + min(12, broken)


def test_edits_agree_with_the_editor(browser, tmp_path) -> None:
    data = sample(num_features=18, embedded=18, seed=5)
    edits = [Edit(2, None, 0.25), Edit(7, 1, 0.0), Edit(2, 2, 2.0), Edit(11, None, 1.55)]
    theta, phi, _, _ = arrays(data)
    layer = bndl.DecisionLayer(*phi.shape).eval()
    with torch.no_grad():
        layer.weight.copy_(torch.from_numpy(phi.T.copy()))
        layer.bias.copy_(torch.tensor(data["examples"]["bias"]))
    editor = Editor(layer)
    for edit in edits:
        editor.apply(edit)
    with torch.no_grad():
        logits = layer(torch.from_numpy(theta.astype(np.float32)))
    plain = [{"feature": e.feature, "target": e.target, "factor": e.factor, "note": e.note} for e in edits]
    with Visit(browser, write(data, tmp_path / "report.html")) as page:
        page.evaluate("edits => bndl.whatif.apply(edits)", plain)
        assert labels_of(page) == logits.argmax(dim=1).tolist()
        shown = np.array(page.evaluate("[0, 1, 2, 3].map(row => bndl.whatif.logitsOf(row))"))
        assert shown == pytest.approx(logits[:4].numpy(), abs=1e-4)


def test_edits_are_undone_and_saved(browser, file) -> None:
    with Visit(browser, file) as page:
        changes = "bndl.whatif.edits.map(edit => [edit.feature, edit.target, edit.factor])"
        page.select_option("#edit-feature", "4")
        page.fill("#edit-note", "looks at <b>water</b>")
        page.locator("#edit-factor").focus()
        for _ in range(4):
            page.keyboard.press("ArrowLeft")
        assert page.evaluate(changes) == [[4, None, 0.8]]
        page.click("[data-factor='0']")
        assert page.evaluate(changes) == [[4, None, 0]]
        page.click("#edit-undo")
        assert page.evaluate(changes) == [[4, None, 0.8]]
        page.click("#edit-redo")
        assert page.evaluate(changes) == [[4, None, 0]]
        assert "looks at <b>water</b>" in page.locator(".edit-list").inner_text()
        with page.expect_download() as download:
            page.click("#edit-save")
        saved = json.loads(Path(download.value.path()).read_text())
        assert [Edit(**one) for one in saved] == [Edit(4, None, 0, "looks at <b>water</b>")]
        page.click("#edit-reset")
        assert page.evaluate(changes) == []
        assert labels_of(page) == page.evaluate("Array.from(bndl.rows.label)")


def test_what_is_worth_a_try_does_what_it_says(browser, file) -> None:
    with Visit(browser, file) as page:
        idea = page.locator(".edit-ideas li").first
        said = re.search(r"mends (\d+), breaks (\d+)", idea.inner_text())
        assert said
        idea.locator("button").click()
        assert page.locator("#effect .big").all_inner_texts()[2:] == [said[1], said[2]]

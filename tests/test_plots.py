"""Panels have what their titles promise, and pages are written whole."""

import math
from dataclasses import replace

import pytest
import torch
from matplotlib.figure import Figure as Page

import bndl
from bndl import plots
from bndl.baselines.predictions import from_draws
from bndl.data import ArraySet


class Noisy:
    """Sampled logits of images whose first pixel is the class."""

    def __init__(self, sharpness: float) -> None:
        self.sharpness = sharpness

    def predict(self, images):
        generator = torch.Generator().manual_seed(len(images))
        draws = torch.randn(5, len(images), 4, generator=generator)
        truth = images[:, 0, 0, 0].long().clamp_max(3)
        return from_draws(draws + self.sharpness * torch.nn.functional.one_hot(truth, 4))


@pytest.fixture(scope="module")
def evaluations():
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(4, (200, 1, 8, 8), generator=generator, dtype=torch.uint8)
    data = ArraySet("squares", images[:, 0, 0, 0].long(), tuple("abcd"), images)
    options = {"ood": {"noise": images[:50]}, "shift": {"fog": (1, 3), "contrast": (3,)}, "num_resamples": 10}
    return {name: bndl.evaluate(Noisy(s), data, **options) for name, s in (("weak", 1.0), ("strong", 3.0))}


@pytest.fixture
def axes():
    return Page().subplots()


def titles(page):
    return [axes.get_title(loc="left") for axes in page.axes if axes.axison]


@pytest.fixture
def pages(monkeypatch):
    """The pages that are written."""
    kept = []
    save = Page.savefig
    monkeypatch.setattr(Page, "savefig", lambda self, *args, **kwargs: (kept.append(self), save(self, *args, **kwargs)))
    return kept


ALL = [
    "Reliability",
    "Accuracy by uncertainty decile",
    "Risk and coverage",
    "Outside: noise",
    "Under corruption: accuracy",
    "Under corruption: ECE",
]


@pytest.mark.parametrize(
    ("suffix", "begin"), [(".png", b"\x89PNG"), (".svg", b"<?xml"), (".pdf", b"%PDF"), (".PNG", b"\x89PNG")]
)
def test_a_page_in_every_format(suffix, begin, evaluations, tmp_path, pages):
    path = plots.overview(evaluations["weak"], tmp_path / f"page{suffix}")
    assert path.read_bytes().startswith(begin)
    assert [entry.name for entry in tmp_path.iterdir()] == [path.name]
    assert titles(pages[0]) == ALL


def test_several_on_one_page(evaluations, tmp_path, pages):
    plots.overview(evaluations, tmp_path / "page.png")
    assert titles(pages[0]) == ALL
    texts = [text.get_text() for axes in pages[0].axes for text in axes.texts]
    for name in evaluations:
        assert sum(text.startswith(name) for text in texts) == len(ALL)


def test_only_panels_that_have_data(evaluations, tmp_path, pages):
    plots.overview(replace(evaluations["weak"], ood={}, shift=None), tmp_path / "page.png")
    assert titles(pages[0]) == ALL[:3]


def test_reliability_shows_bins_and_counts(evaluations, axes):
    one = evaluations["weak"]
    plots.reliability(one, axes)
    points = axes.containers[0].lines[0].get_xydata()
    used = [i for i, count in enumerate(one.reliability.count) if count]
    assert points[:, 0].tolist() == pytest.approx([one.reliability.confidence[i] for i in used])
    assert points[:, 1].tolist() == pytest.approx([one.reliability.accuracy[i].value for i in used])
    texts = {text.get_text() for text in axes.texts}
    assert {str(count) for count in one.reliability.count if count} <= texts


def test_deciles_are_not_smoothed(evaluations, axes):
    one = evaluations["weak"]
    plots.deciles(one, axes)
    values = axes.containers[0].lines[0].get_ydata().tolist()
    accuracy = [100 * figure.value for figure in one.deciles["p_value"].accuracy]
    assert values == pytest.approx(accuracy)
    assert "groups of 20 by p-value" in axes.get_xlabel()


def test_deciles_by_the_kind_that_all_have(evaluations, axes):
    poor = replace(evaluations["strong"], deciles={"confidence": evaluations["strong"].deciles["confidence"]})
    plots.deciles({"poor": poor, "rich": evaluations["weak"]}, axes)
    assert "by confidence" in axes.get_xlabel()
    with pytest.raises(bndl.InputError, match="poor has no entropy to order by; it has confidence"):
        plots.deciles({"poor": poor}, axes, by="entropy")


def test_risk_coverage_ends_at_the_error_rate(evaluations, axes):
    one = evaluations["strong"]
    plots.risk_coverage(one, axes)
    x, y = axes.lines[0].get_data()
    assert (x[-1], y[-1]) == pytest.approx((100, 100 * (1 - one.figures["accuracy"].value)))
    assert len(axes.collections) == 1  # the band


def test_histograms_show_shares_of_both(evaluations, axes):
    plots.ood(evaluations["weak"], axes)
    shares = [patch.get_data().values for patch in axes.patches]
    assert len(shares) == 4  # outline and area of each
    assert all(share.sum() == pytest.approx(100) for share in shares)


def test_shift_begins_with_the_clean_figure(evaluations, axes):
    one = evaluations["weak"]
    plots.shift(one, axes, figure="nll")
    mean = axes.lines[-1].get_xydata().tolist()
    assert mean[0] == pytest.approx([0, one.figures["nll"].value])
    assert mean[-1] == pytest.approx([3, one.shift.means[-1].figures["nll"].value])
    assert {"fog", "contrast"} <= {text.get_text() for text in axes.texts}


def test_names_are_no_formulas(evaluations, tmp_path):
    named = {"$_{x$ and $^$": evaluations["weak"]}
    assert plots.overview(named, tmp_path / "page.svg").is_file()


def test_what_cannot_be_drawn(evaluations, axes, tmp_path):
    one = evaluations["weak"]
    bare = replace(one, ood={}, shift=None)
    for call, words in (
        (lambda: plots.overview(one, tmp_path / "page.jpg"), "a picture is written as .png, .svg, .pdf, not as '.jpg'"),
        (lambda: plots.overview({}, tmp_path / "page.png"), "with at least one"),
        (lambda: plots.overview({str(i): one for i in range(9)}, tmp_path / "page.png"), "at most 8 evaluations"),
        (lambda: plots.reliability(3, axes), "give an evaluation"),
        (lambda: plots.shift(bare, axes), "evaluate with shift=True first"),
        (lambda: plots.shift(one, axes, figure="brier"), "figure is one of accuracy, nll, ece"),
        (lambda: plots.ood(bare, axes), "there is none"),
        (lambda: plots.ood(one, axes, name="other"), "name='other'; there is noise"),
    ):
        with pytest.raises(bndl.InputError, match=words.replace("(", r"\(")):
            call()
    assert not list(tmp_path.iterdir())
    with pytest.raises(bndl.FileError, match="cannot write"):
        plots.overview(one, tmp_path / "nowhere" / "page.png")


def test_a_flawless_model_can_be_drawn(tmp_path):
    images = torch.arange(4, dtype=torch.uint8).repeat(5)[:, None, None, None].expand(-1, 1, 8, 8)
    found = bndl.evaluate(Noisy(100.0), (images, images[:, 0, 0, 0].long()), num_resamples=5)
    assert math.isnan(found.figures["error_auroc"].value)
    plots.overview(found, tmp_path / "page.png")

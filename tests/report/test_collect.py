"""The report's data: the same figures as elsewhere, terms that add up, edits in the page as edits in Python, enough room."""

import base64
import copy
import json
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from torch import nn

import bndl
from bndl.cli import main
from bndl.data.sets import ArraySet
from bndl.edit import Edit, Editor
from bndl.errors import InputError
from bndl.features import FeatureSet
from bndl.report import About, Options, collect
from bndl.report.of_run import Opened, open_run, report_of

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")

RECORD = {
    "about": "a test",
    "needs": {"data": "digits", "hours": "0", "machine": "any"},
    "data": {"name": "digits", "val": 0.05},
    "model": {"backbone": "small-cnn", "width": 4, "head": "bndl"},
    "train": {"epochs": 2, "batch_size": 128},
}
QUICK = Options(num_faithful=6, num_lime=2, num_perturbations=40, num_resamples=20)
KINDS = {"id": "u4", "label": "u2", "truth": "u2", "runner": "u2", "prob": "f4", "p": "f4", "flip": "f4"}
KINDS |= {"decile": "u1", "certain": "u1", "thumb": "i4", "logits": "f4", "theta": "f2"}


@pytest.fixture(scope="module")
def opened(tmp_path_factory) -> Opened:
    base = tmp_path_factory.mktemp("runs")
    (base / "tiny.yaml").write_text(yaml.safe_dump(RECORD))
    assert main(["train", str(base / "tiny.yaml"), "--out", str(base / "run")]) == 0
    return open_run(base / "run")


@pytest.fixture(scope="module")
def record(opened) -> dict:
    """As the page reads it."""
    return json.loads(json.dumps(report_of(opened, options=QUICK).to_dict(), allow_nan=False))


def array(text: str, kind: str) -> np.ndarray:
    return np.frombuffer(base64.b64decode(text), dtype=f"<{kind}")


def columns(record: dict) -> dict[str, np.ndarray]:
    """The rows' columns; logits (n, C) and theta (n, F)."""
    examples = record["examples"]
    found = {name: array(examples[f"{name}_b64"], kind) for name, kind in KINDS.items()}
    n = examples["count"]
    return found | {"logits": found["logits"].reshape(n, -1), "theta": found["theta"].reshape(n, -1)}


# ------------------------------------------------------------------------------------------------------------- figures


def test_the_figures_are_those_of_evaluate(opened, record):
    whole = bndl.evaluate(opened.subject.model, opened.data, num_resamples=20)
    verdict, trust = record["verdict"], record["trust"]
    for key in ("accuracy", "ece", "nll"):
        for end in ("value", "low", "high"):
            assert verdict[key][end] == pytest.approx(getattr(whole.figures[key], end), rel=1e-4), key
    certainty = next(one for one in whole.pavpu if one.level == 0.05)
    assert verdict["pavpu"]["value"] == pytest.approx(certainty.value.value)
    assert verdict["pavpu_baseline"] == pytest.approx(certainty.baseline)
    assert verdict["nnz"] == pytest.approx(whole.sparsity.nnz)
    assert verdict["weights_per_class"] == pytest.approx(whole.sparsity.weights_per_class)
    assert verdict["features_per_decision"]["value"] == pytest.approx(whole.sparsity.features_per_decision.value)
    counts = trust["counts"]
    assert counts["certain_right"] + counts["uncertain_wrong"] == pytest.approx(
        verdict["pavpu"]["value"] * len(opened.data)
    )
    groups = whole.deciles[trust["by"]]
    assert [one["count"] for one in trust["deciles"]] == list(groups.count)
    assert [one["accuracy"] for one in trust["deciles"]] == pytest.approx([one.value for one in groups.accuracy])
    assert trust["risk"]["risk"][-1] == pytest.approx(1 - verdict["accuracy"]["value"])
    assert sum(one["count"] for one in trust["reliability"]) == len(opened.data)
    assert [one["accuracy"]["value"] for one in record["classes"]] == pytest.approx(
        [one.accuracy.value for one in whole.per_class]
    )


def test_rows_are_the_predictions(opened, record):
    told = bndl.predict(
        opened.subject.model, torch.stack([x for x, _ in (opened.data[i] for i in range(len(opened.data)))])
    )
    rows = columns(record)
    assert record["examples"]["all"] is True
    assert rows["id"].tolist() == list(range(len(opened.data)))
    assert rows["label"].tolist() == told.labels.tolist()
    assert rows["truth"].tolist() == opened.data.labels.tolist()
    assert rows["certain"].astype(bool).tolist() == told.certain.tolist()
    np.testing.assert_allclose(rows["logits"], told.logits, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(rows["prob"], told.confidence, rtol=1e-4)
    right = rows["label"] == rows["truth"]
    for number, one in enumerate(record["trust"]["deciles"]):
        own = rows["decile"] == number
        assert own.sum() == one["count"]
        assert rows["flip"][own].max() <= one["most"] * (1 + 1e-6)
    assert right.mean() == pytest.approx(record["verdict"]["accuracy"]["value"])


# ---------------------------------------------------------------------------------------------------------------- terms


def test_the_terms_of_a_mistake_add_up_to_its_scores(record):
    rows = columns(record)
    assert record["mistakes"], "two epochs leave mistakes"
    for mistake in record["mistakes"]:
        row = mistake["row"]
        assert mistake["predicted"]["class"] == rows["label"][row] != rows["truth"][row] == mistake["true"]["class"]
        for side in (mistake["predicted"], mistake["true"]):
            total = side["bias"] + sum(term["value"] for term in side["terms"]) + side["rest"]
            assert total == pytest.approx(side["logit"], abs=1e-4)
            assert side["logit"] == pytest.approx(float(rows["logits"][row, side["class"]]), abs=1e-4)
            assert len(side["terms"]) <= 12
            values = [term["value"] for term in side["terms"]]
            assert values == sorted(values, reverse=True)
            assert all(term["low"] <= term["value"] <= term["high"] for term in side["terms"])


def test_mistakes_come_the_surest_first_by_what_the_page_calls_sure(record):
    rows = columns(record)
    shown = [mistake["row"] for mistake in record["mistakes"]]
    keys = [(not rows["certain"][row], rows["flip"][row], -rows["prob"][row]) for row in shown]
    assert keys == sorted(keys)
    wrong = np.flatnonzero(rows["label"] != rows["truth"])
    assert rows["certain"][shown].sum() == min(len(shown), rows["certain"][wrong].sum())
    probabilities = [rows["prob"][row] for row in shown]
    assert probabilities != sorted(probabilities, reverse=True), "the two orders are the same here: nothing is shown"


def test_the_logits_are_the_terms_of_all_features(record):
    """Every feature of so small a network is listed, so that nothing is left over."""
    rows, examples = columns(record), record["examples"]
    phi = array(examples["phi"]["weights_b64"], "f4").reshape(len(examples["theta_features"]), -1)
    assert examples["phi"]["features"] == examples["theta_features"]
    sums = rows["theta"].astype(np.float64) @ phi + np.array(examples["bias"])
    assert record["meta"]["num_used"] == len(examples["theta_features"])
    np.testing.assert_allclose(sums, rows["logits"], rtol=2e-3, atol=2e-3)


EDITS = [
    [Edit(3)],
    [Edit(0, 4, 0.0)],
    [Edit(5, 1, 2.5)],
    [Edit(2), Edit(7, 3, 0.5), Edit(7, None, 0.25)],
]


@pytest.mark.parametrize("edits", EDITS, ids=lambda edits: f"{len(edits)} edits of {edits[0].feature}")
def test_an_edit_in_the_page_decides_as_in_python(opened, record, edits):
    rows, examples = columns(record), record["examples"]
    listed = examples["theta_features"]
    phi = array(examples["phi"]["weights_b64"], "f4").reshape(len(listed), -1)
    factor = np.ones_like(phi, dtype=np.float64)
    for edit in edits:
        target = slice(None) if edit.target is None else edit.target
        factor[listed.index(edit.feature), target] *= edit.factor
    logits = rows["logits"] - rows["theta"].astype(np.float64) @ (phi * (1 - factor))
    model = copy.deepcopy(opened.subject.model)
    editor = Editor(model)
    for edit in edits:
        editor.apply(edit)
    after = bndl.predict(model, torch.stack([opened.data[i][0] for i in range(len(opened.data))]))
    best = np.sort(logits, axis=1)
    clear = best[:, -1] - best[:, -2] > 5e-3  # theta is in half precision
    assert clear.mean() > 0.99
    assert (logits.argmax(axis=1) == after.labels.numpy())[clear].all()
    assert (after.labels.numpy() != rows["label"]).any(), "the edits show nothing"
    effect = editor.effect(opened.features)
    wrong = rows["label"] != rows["truth"]
    fixed = wrong & (logits.argmax(axis=1) == rows["truth"])
    assert abs(int(fixed.sum()) - len(effect.fixed)) <= (~clear).sum()


# ------------------------------------------------------------------------------------------------- classes and features


def test_classes_and_features_refer_to_each_other(opened, record):
    phi = opened.subject.layer.phi().mean.detach()
    features = {one["feature"]: one for one in record["features"]}
    for one in record["classes"]:
        weights = phi[one["index"]]
        assert one["num_weights"] == int((weights > 1e-5).sum())
        assert sum(own["weight"] for own in one["features"]) + one["rest"] == pytest.approx(
            float(weights.sum()), rel=1e-4
        )
        for own in one["features"]:
            assert own["weight"] == pytest.approx(float(weights[own["feature"]]), rel=1e-5)
            assert own["low"] <= own["weight"] <= own["high"]
            assert any(back["index"] == one["index"] for back in features[own["feature"]]["classes"])
    rows = columns(record)
    taken = {(int(t), int(p)) for t, p in zip(rows["truth"], rows["label"], strict=True) if t != p}
    assert {(one["index"], c["other"]) for one in record["classes"] for c in one["confused"]} <= taken


def test_top_images_are_the_most_active_and_moderate_ones_are_not(record):
    rows, listed = columns(record), record["examples"]["theta_features"]
    for one in record["features"]:
        theta = np.sort(rows["theta"][:, listed.index(one["feature"])].astype(np.float64))[::-1]
        active = theta[theta > 0]
        assert one["active"] == pytest.approx(len(active) / len(theta), abs=5e-3)
        top = [own["theta"] for own in one["top"]]
        np.testing.assert_allclose(top, theta[: len(top)], rtol=2e-3)
        if len(active) >= 20:
            low, high = np.quantile(active, [0.3, 0.7])
            assert all(low - 1e-3 <= own["theta"] <= high + 1e-3 for own in one["moderate"])
        assert not {own["example"] for own in one["top"]} & {own["example"] for own in one["moderate"]}


# --------------------------------------------------------------------------------------------------------------- thumbs


def test_every_thumb_lies_on_its_sheet(record):
    sheets, tiles = record["thumbs"]["sheets"], record["thumbs"]["tiles"]
    for sheet, x, y, width, height in tiles:
        assert 0 <= x <= x + width <= sheets[sheet]["width"]
        assert 0 <= y <= y + height <= sheets[sheet]["height"]
    numbers = [one["example"] for one in record["classes"]]
    numbers += [
        own[key] for one in record["features"] for own in (*one["top"], *one["moderate"]) for key in ("id", "map")
    ]
    numbers += [one[key] for one in record["mistakes"] for key in ("image", "map", "map_truth")]
    assert all(0 <= number < len(tiles) for number in numbers)
    thumbs = columns(record)["thumb"]
    assert thumbs.max() < len(tiles)
    assert thumbs[[one["row"] for one in record["mistakes"]]].min() >= 0
    assert [one["lime"] is not None for one in record["mistakes"]].count(True) == 2
    assert tiles[record["mistakes"][0]["image"]][3] > tiles[record["classes"][0]["example"]][3]


def test_thumbs_show_their_examples(opened, record):
    image = pytest.importorskip("PIL.Image")
    import io

    tiles, sheets = record["thumbs"]["tiles"], record["thumbs"]["sheets"]
    pages = [image.open(io.BytesIO(base64.b64decode(one["uri"].split(",")[1]))) for one in sheets]
    for row, number in list(enumerate(columns(record)["thumb"]))[:40]:
        if number >= 0:
            sheet, x, y, width, height = tiles[number]
            shown = pages[sheet].crop((x, y, x + width, y + height)).convert("L").resize((8, 8), image.Resampling.BOX)
            stored = opened.data[row][0][0].numpy()
            assert np.abs(np.asarray(shown).astype(float) - stored).mean() < 12


# ------------------------------------------------------------------------------------------------------------- the whole


def test_the_same_seed_gives_the_same_report(opened, record):
    again = json.loads(json.dumps(report_of(opened, options=QUICK).to_dict()))
    assert again["meta"].pop("created")
    first = {**record, "meta": {key: value for key, value in record["meta"].items() if key != "created"}}
    assert again == first


def test_faithfulness_is_measured_or_left_out(opened, record):
    found = record["faithfulness"]
    assert found["images"] == 6
    for key in ("deletion", "insertion", "feature_deletion"):
        for name in ("bndl", "random"):
            curve = found[key][name]
            assert curve["fractions"][0] == 0
            assert curve["fractions"][-1] == 1
            assert len(curve["mean"]) == len(curve["fractions"])
            assert all(
                low <= mean <= high for low, mean, high in zip(curve["low"], curve["mean"], curve["high"], strict=True)
            )
    assert found["deletion"]["dense"] is None
    assert all(-1 <= one["correlation"] <= 1 for one in found["randomisation"])
    without = report_of(opened, options=Options(num_faithful=0, num_lime=0, num_resamples=5)).to_dict()
    assert without["faithfulness"] is None
    assert "Faithfulness was not measured." in without["meta"]["about"]
    assert all(one["lime"] is None for one in without["mistakes"])


def test_lime_does_without_scikit_image(opened, monkeypatch):
    monkeypatch.setitem(sys.modules, "skimage", None)
    monkeypatch.setitem(sys.modules, "skimage.segmentation", None)
    monkeypatch.setattr("bndl.report.mistakes._GRID_BELOW", 1)
    found = report_of(opened, options=Options(num_faithful=0, num_lime=1, num_perturbations=20, num_resamples=5))
    assert found.mistakes[0].lime is not None


# ----------------------------------------------------------------------------------------------------- other subjects


def layer_of(num_features: int, num_classes: int, **settings) -> bndl.DecisionLayer:
    with torch.random.fork_rng([]):
        torch.manual_seed(0)
        return bndl.DecisionLayer(num_features, num_classes, **settings).eval()


def drawn(num_examples: int, num_features: int, num_classes: int) -> FeatureSet:
    generator = torch.Generator().manual_seed(0)
    features = torch.rand(num_examples, num_features, generator=generator)
    return FeatureSet(features, torch.randint(num_classes, (num_examples,), generator=generator))


def test_features_without_images_have_a_report_too():
    layer = layer_of(6, 3)
    found = json.loads(json.dumps(collect(layer, None, features=drawn(50, 6, 3), options=QUICK).to_dict()))
    assert found["meta"]["images"] is False
    assert any("no images" in note for note in found["meta"]["about"])
    assert found["thumbs"] == {"sheets": [], "tiles": []}
    assert (columns(found)["thumb"] == -1).all()
    assert found["classes"][0]["example"] is None
    assert found["mistakes"][0]["image"] is None
    assert found["mistakes"][0]["predicted"]["terms"]
    assert found["faithfulness"]["deletion"] is None
    assert found["faithfulness"]["feature_deletion"]["bndl"]["mean"]


def images_of(num_examples: int, num_classes: int, side: int = 16) -> ArraySet:
    generator = torch.Generator().manual_seed(1)
    images = torch.randint(256, (num_examples, 3, side, side), generator=generator, dtype=torch.uint8)
    labels = torch.randint(num_classes, (num_examples,), generator=generator)
    return ArraySet("noise", labels, tuple(f"<b>{c}</b>" for c in range(num_classes)), images)


@pytest.mark.parametrize(
    "settings", [{}, {"signed": True}, {"dense_map": True}, {"bias": False, "alpha_phi": 0.1}], ids=str
)
def test_a_network_without_maps_is_shown_without_heat(settings):
    with torch.random.fork_rng([]):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Flatten(), nn.Linear(3 * 16 * 16, 8), nn.Tanh(), layer_of(8, 3, **settings)).eval()
    data = images_of(40, 3)
    ready = lambda images: images.float() / 255  # noqa: E731
    found = collect(model, data, ready=ready, options=QUICK, about=About("<i>")).to_dict()
    assert found["meta"]["classes"] == ["<b>0</b>", "<b>1</b>", "<b>2</b>"]  # the page escapes, the data do not
    assert any("no heat maps" in note for note in found["meta"]["about"])
    assert found["features"][0]["top"][0]["map"] is None
    assert found["features"][0]["top"][0]["id"] is not None
    assert found["mistakes"][0]["lime"] is not None
    assert found["faithfulness"]["insertion"] is None
    assert found["meta"]["signed"] is settings.get("signed", False)
    if settings.get("signed"):
        assert any(one["label"].endswith("-") for one in found["features"])


def test_a_compact_head_is_shown_by_the_numbers_of_its_features():
    layer = layer_of(6, 3)
    with torch.no_grad():
        layer.weight[:, [0, 4]] = 0.0
    compact = bndl.compact(layer)
    found = collect(compact, None, features=drawn(50, 6, 3), options=QUICK).to_dict()
    assert [one["feature"] for one in found["features"]] == [1, 2, 3, 5]
    assert (found["meta"]["num_features"], found["meta"]["num_used"]) == (6, 4)


def test_what_does_not_fit_together_is_refused():
    with pytest.raises(InputError, match="needs labelled examples"):
        collect(layer_of(6, 3), None)
    with pytest.raises(InputError, match="40 examples but features of 50"):
        collect(layer_of(6, 3), images_of(40, 3), features=drawn(50, 6, 3))
    with pytest.raises(InputError, match="num_top must be at least 1"):
        Options(num_top=0)


# ------------------------------------------------------------------------------------------------------------------ room


def test_little_room_keeps_all_mistakes_that_fit_and_a_fair_sample(opened, record):
    small = Options(
        num_faithful=0,
        num_lime=0,
        num_resamples=5,
        num_features=20,
        num_mistakes=6,
        max_row_bytes=30_000,
        max_bytes=250_000,
    )
    found = json.loads(json.dumps(report_of(opened, options=small).to_dict()))
    rows, everything = columns(found), columns(record)
    assert found["examples"]["all"] is False
    assert 20 < found["examples"]["count"] < len(everything["id"])
    assert len(found["examples"]["logits_b64"]) + len(found["examples"]["theta_b64"]) < 30_000
    assert (rows["label"] == everything["label"][rows["id"]]).all()
    assert (rows["label"] == rows["truth"]).any()
    for mistake in found["mistakes"]:
        assert rows["label"][mistake["row"]] != rows["truth"][mistake["row"]]
    assert len(json.dumps(found, separators=(",", ":"))) <= 250_000 < len(json.dumps(record))


@pytest.mark.parametrize(("num_examples", "num_classes", "num_features"), [(10_000, 10, 300), (4_000, 100, 64)])
def test_the_page_stays_below_five_megabytes(num_examples, num_classes, num_features, tmp_path):
    """Of noise, which no JPEG can shrink."""
    from bndl.report import page

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.stem = nn.Sequential(nn.Conv2d(3, num_features, 4, stride=4), nn.ReLU())
            self.head = layer_of(num_features, num_classes)

        def forward(self, x):
            return self.head(self.stem(x).mean(dim=(2, 3)))

    data, features = images_of(num_examples, num_classes), drawn(num_examples, num_features, num_classes)
    features = FeatureSet(features.features, data.labels)
    options = Options(num_faithful=0, num_lime=0, num_resamples=2)
    found = collect(Net().eval(), data, features=features, ready=lambda images: images.float() / 255, options=options)
    path = page.write(found.to_dict(), tmp_path / "report.html")
    assert path.stat().st_size < 5_000_000
    assert found.examples.count >= 2_000
    assert 60 <= len(found.features) <= 120
    assert found.features[0].top[0].map is not None


def test_the_report_of_other_data_and_of_a_sparse_head(opened, tmp_path):
    model = copy.deepcopy(opened.subject.model)
    editor = Editor(model)
    editor.drop(1)
    bndl.save(model, tmp_path / "edited.safetensors", classes=opened.subject.classes, edits=editor)
    again = open_run(opened.subject.run.folder, head=tmp_path / "edited.safetensors", part="val", limit=30)
    found = report_of(again, options=QUICK).to_dict()
    assert found["meta"]["num_examples"] == 30
    assert found["meta"]["data"] == "digits val"
    assert any("optimistic" in note for note in found["meta"]["about"])
    assert any("edited.safetensors" in note for note in found["meta"]["about"])
    assert 1 not in {one["feature"] for one in found["features"]}
    assert Path(again.subject.run.folder / "features").is_dir()

"""Everything that ``evaluate`` measures, against direct computation; and what it refuses."""

import copy
import json
import math
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import bndl
from bndl.baselines import get_method
from bndl.data import load_splits
from bndl.data.shift import shifted
from bndl.evaluate import evaluate_all
from bndl.evaluation import table_of
from bndl.evaluation.stream import Plan
from bndl.evaluation.ways import dense
from bndl.explain import contributions
from bndl.features import FeatureSet
from bndl.metrics import (
    accuracy_by_decile,
    aurc,
    auroc,
    average_precision,
    brier_score,
    effective_features,
    expected_calibration_error,
    negative_log_likelihood,
    nnz,
    pavpu,
)
from bndl.metrics.calibration import calibration_error
from bndl.metrics.figures import FIGURES, figures_of

R = 20


class Tiny(nn.Module):
    """A network on digits (B, 1, 8, 8), uint8 or floats in [0, 1]; counts its passes."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Flatten(), nn.Linear(64, 24), nn.ReLU())
        self.fc = nn.Linear(24, 10)
        self.passes = 0

    def forward(self, images):
        self.passes += 1
        return self.fc(self.body(images if images.is_floating_point() else images / 255))


@pytest.fixture(scope="module")
def digits():
    return load_splits("digits").test


@pytest.fixture(scope="module")
def plain():
    """A dense network, trained a little: it makes errors."""
    torch.manual_seed(0)
    model, train = Tiny(), load_splits("digits").train
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for rows in torch.cat([torch.randperm(len(train)) for _ in range(2)]).split(128):
        optimizer.zero_grad()
        F.cross_entropy(model(train.inputs[rows]), train.labels[rows]).backward()
        optimizer.step()
    return model.eval()


@pytest.fixture(scope="module")
def model(plain):
    converted = bndl.convert(copy.deepcopy(plain), features="nonnegative", init_shape=2.0)
    with torch.no_grad():
        converted.fc.weight.sub_(0.1)  # so that some weights are zero
    return converted.eval()


@pytest.fixture(scope="module")
def evaluation(model, digits):
    return bndl.evaluate(model, digits, num_resamples=R)


def record(evaluation):
    return {key: value for key, value in evaluation.to_dict().items() if key != "seconds"}


# -------------------------------------------------------------------------------------------------------- the figures


def test_figures_are_those_of_the_prediction(model, digits, evaluation):
    prediction = bndl.predict(model, digits.inputs)
    labels, correct = digits.labels, prediction.labels == digits.labels
    unsure = 1 - prediction.confidence.double()
    expected = {
        "accuracy": correct.double().mean(),
        "nll": negative_log_likelihood(prediction.probs, labels),
        "brier": brier_score(prediction.probs, labels),
        "aurc": aurc(unsure, correct),
        "error_auroc": auroc(unsure, ~correct),
        "error_aupr": average_precision(unsure, ~correct),
        "pavpu_05": pavpu(correct, prediction.certain).value,
    }
    for key, value in expected.items():
        assert evaluation.figures[key].value == pytest.approx(float(value), rel=1e-6), key
    agreeing = prediction.labels == prediction.probs.argmax(dim=1)
    if agreeing.all():
        ece = expected_calibration_error(prediction.probs, labels)
        assert evaluation.figures["ece"].value == pytest.approx(float(ece), rel=1e-5)
    assert 0.5 < evaluation.figures["accuracy"].value < 1
    assert set(evaluation.figures) == {kind.key for kind in FIGURES}


def test_every_figure_has_an_interval_around_it(evaluation):
    expected = figures_of(evaluation.examples, num_resamples=R)
    for key, figure in evaluation.figures.items():
        assert figure.value == expected[key].value
        assert figure.high - figure.low == pytest.approx(expected[key].high - expected[key].low)
    for key in ("accuracy", "nll", "brier", "ece", "adaptive_ece", "aurc", "error_auroc", "pavpu_05"):
        figure = evaluation.figures[key]
        assert figure.low <= figure.value <= figure.high
        assert figure.low < figure.high


def test_the_calibration_error_stands_next_to_what_chance_alone_gives(evaluation):
    confidence = evaluation.examples.confidence
    generator = torch.Generator().manual_seed(0)
    rights = [torch.rand(len(confidence), generator=generator) < confidence for _ in range(200)]
    by_chance = torch.stack([calibration_error(confidence, right) for right in rights]).mean()
    assert evaluation.ece_floor == pytest.approx(float(by_chance), rel=0.15)
    lines = evaluation.table().splitlines()
    place = next(number for number, line in enumerate(lines) if line.startswith("ECE, %"))
    assert lines[place + 1].split() == ["of", "chance", "alone", f"{100 * evaluation.ece_floor:.2f}"]


def test_an_evaluation_without_what_chance_alone_gives_is_still_read(evaluation):
    record = evaluation.to_dict()
    del record["ece_floor"]
    older = bndl.Evaluation.from_dict(record)
    assert math.isnan(older.ece_floor)
    assert next(line for line in older.table().splitlines() if "chance alone" in line).split()[-1] == "-"


def test_pavpu_stands_next_to_its_counts_and_its_baseline(model, digits, evaluation):
    prediction = bndl.predict(model, digits.inputs)
    correct = prediction.labels == digits.labels
    assert [at.level for at in evaluation.pavpu] == [0.01, 0.05, 0.1]
    for at in evaluation.pavpu:
        assert at.counts == pavpu(correct, prediction.p_value <= at.level)
        assert (at.value.value, at.baseline) == (at.counts.value, evaluation.figures["accuracy"].value)
        assert at.gain.value == pytest.approx(at.value.value - at.baseline)
        assert at.num_samples == 20
    assert evaluation.pavpu[0].counts.accurate_uncertain + evaluation.pavpu[0].counts.inaccurate_uncertain > 0


def test_errors_by_each_kind_of_uncertainty(evaluation):
    assert set(evaluation.errors) == {"confidence", "entropy", "flip_probability", "margin", "epistemic"}
    examples = evaluation.examples
    for by, figures in evaluation.errors.items():
        unsure = examples.uncertainty(by)
        assert figures["auroc"].value == pytest.approx(float(auroc(unsure, ~examples.correct)))
        assert figures["aurc"].value == pytest.approx(float(aurc(unsure, examples.correct)))
        accuracy = tuple(figure.value for figure in evaluation.deciles[by].accuracy)
        assert accuracy == accuracy_by_decile(unsure, examples.correct).accuracy
    assert evaluation.errors["confidence"]["aurc"] == evaluation.figures["aurc"]
    assert set(evaluation.deciles) == {*evaluation.errors, "p_value"}
    assert evaluation.deciles["p_value"].uncertainty[-1] == pytest.approx(
        float(examples.p_value.sort().values[-35:].mean())
    )


def test_classes_add_up_to_the_whole(digits, evaluation):
    assert [one.name for one in evaluation.per_class] == list(digits.classes)
    assert sum(one.count for one in evaluation.per_class) == len(digits) == evaluation.num_examples
    right = sum(one.count * one.accuracy.value for one in evaluation.per_class)
    assert right / len(digits) == pytest.approx(evaluation.figures["accuracy"].value)


def test_sparsity_counts_what_decisions_use(model, digits, evaluation):
    with torch.no_grad():
        features = model.body(digits.inputs / 255)
    terms = contributions(model.fc, features, bndl.predict(model, digits.inputs).labels)
    assert evaluation.sparsity.nnz == nnz(model) < 1
    assert evaluation.sparsity.weights_per_class == pytest.approx(nnz(model) * 24)
    assert evaluation.sparsity.features_per_decision.value == pytest.approx(float(effective_features(terms).mean()))


# ---------------------------------------------------------------------------------------------------------- streaming


def test_each_example_passes_once_whatever_is_measured(model, digits):
    model.passes = 0
    bndl.evaluate(model, digits, batch_size=100, num_resamples=R)
    assert model.passes == math.ceil(len(digits) / 100)


def test_the_size_of_batches_does_not_matter(model, digits, evaluation):
    with torch.no_grad():
        features = model.body(digits.inputs / 255)
    small, whole = (
        bndl.evaluate(model.fc, FeatureSet(features, digits.labels), batch_size=size, num_resamples=R)
        for size in (7, 1000)
    )
    assert record(small) == record(whole)
    images = bndl.evaluate(model, digits, batch_size=7, num_resamples=R)
    for key, figure in images.figures.items():
        assert figure.value == pytest.approx(evaluation.figures[key].value, rel=1e-4, abs=1e-6)


def test_data_of_every_kind(model, digits, evaluation):
    pairs = TensorDataset(digits.inputs, digits.labels)
    loader = DataLoader(pairs, batch_size=256)
    arrays = (digits.inputs.numpy(), digits.labels.numpy())
    for data in (pairs, loader, list(loader), (digits.inputs, digits.labels), arrays, digits.transformed(lambda x: x)):
        found = bndl.evaluate(model, data, num_resamples=R)
        assert found.figures == evaluation.figures
        assert record(found)["reliability"] == record(evaluation)["reliability"]


def test_a_model_is_left_as_it_was(model, digits):
    model.train()
    state = torch.random.get_rng_state()
    bndl.evaluate(model, digits, num_resamples=R)
    assert model.training
    assert torch.equal(state, torch.random.get_rng_state())
    model.eval()


def test_the_same_seed_gives_the_same_figures(model, digits, evaluation):
    again, other = (bndl.evaluate(model, digits, num_resamples=R, seed=seed) for seed in (0, 1))
    assert record(again) == record(evaluation)
    assert other.figures["accuracy"].value == evaluation.figures["accuracy"].value
    assert other.figures["accuracy"] != evaluation.figures["accuracy"]


# ------------------------------------------------------------------------------------------------- models of every kind


def test_a_dense_model_is_what_it_is_compared_with(plain, digits):
    found = bndl.evaluate(plain, digits, num_resamples=R)
    with torch.no_grad():
        logits = plain(digits.inputs)
    assert found.name == "dense"
    assert found.figures["nll"].value == pytest.approx(float(F.cross_entropy(logits, digits.labels)), rel=1e-6)
    assert set(found.errors) == {"confidence", "entropy", "margin"}  # it has no other doubt
    assert set(found.deciles) == set(found.errors)  # a p-value of 0 or 1 gives no order
    right, likely = logits.argmax(1) == digits.labels, logits.double().softmax(1).max(1).values > 0.5
    assert 0 < likely.sum() < len(digits)
    assert all(at.counts == pavpu(right, likely) for at in found.pavpu)
    assert found.sparsity.nnz == 1
    converted = bndl.evaluate(bndl.convert(copy.deepcopy(plain)), digits, num_resamples=R)
    assert converted.figures["accuracy"] == found.figures["accuracy"]


def test_a_fitted_method_on_features(plain, digits):
    with torch.no_grad():
        features = plain.body(digits.inputs / 255)
    fitted = get_method("dense").predictor(plain.fc)
    half = bndl.evaluate(fitted, FeatureSet(features.half(), digits.labels), num_resamples=R)
    found = bndl.evaluate(fitted, FeatureSet(features, digits.labels), num_resamples=R)
    assert found.figures == bndl.evaluate(plain, digits, num_resamples=R).figures
    assert half.figures["nll"].value == pytest.approx(found.figures["nll"].value, rel=1e-2)
    assert found.sparsity.weights == 240
    assert found.sparsity.features_per_decision is None


def test_anything_that_predicts(model, digits, evaluation):
    class Mine:
        def predict(self, x):
            return bndl.predict(model, x)

    found = bndl.evaluate(Mine(), digits, num_resamples=R)
    assert (found.name, found.figures, found.sparsity) == ("Mine", evaluation.figures, None)


def test_ways_share_the_backbone(plain, digits):
    ways = dense(plain, {"as it is": 1.0, "cooler": 3.0})
    plain.passes = 0
    found = evaluate_all(ways, digits, Plan(num_resamples=R, batch_size=100))
    assert plain.passes == math.ceil(len(digits) / 100)
    assert list(found) == ["as it is", "cooler"]
    assert found["as it is"].figures["accuracy"] == found["cooler"].figures["accuracy"]
    assert found["as it is"].figures["nll"] != found["cooler"].figures["nll"]
    lines = table_of(found).splitlines()
    assert lines[2].split() == ["as", "it", "is", "cooler"]


def test_the_papers_test_states_its_draws(model, digits):
    found = bndl.evaluate(model, digits, method="paper", num_samples=5, num_resamples=R)
    assert {at.num_samples for at in found.pavpu} == {5}
    assert "S = 5 draws" in found.table()


# ------------------------------------------------------------------------------------------------------- other data


def test_data_of_another_kind(model, digits, evaluation):
    torch.manual_seed(1)
    noise = torch.randint(256, (60, 1, 8, 8), dtype=torch.uint8)
    labels = torch.full((60,), 99)  # of other classes: nobody asks
    found = bndl.evaluate(model, digits, ood={"noise": noise, "same": (digits.inputs, labels[:1].repeat(len(digits)))},
                          num_resamples=R)  # fmt: skip
    assert found.figures == evaluation.figures
    assert list(found.ood) == ["noise", "same"]
    noisy, same = found.ood["noise"], found.ood["same"]
    entropy = torch.cat([bndl.predict(model, x).entropy for x in (digits.inputs, noise)])
    direct = auroc(entropy, torch.arange(len(entropy)) >= len(digits))
    assert noisy.figures["entropy"]["auroc"].value == pytest.approx(float(direct))
    assert same.figures["entropy"]["auroc"].value == pytest.approx(0.5)
    assert (sum(noisy.inside), sum(noisy.outside)) == (len(digits), 60)
    assert noisy.edges[-1] == pytest.approx(math.log(10))
    assert "Told from noise (60 examples)" in found.table()


def test_shift_is_the_evaluation_of_shifted_data(plain, digits):
    part = digits.subset(range(120))
    found = bndl.evaluate(plain, part, shift={"gaussian_noise": (1, 5), "fog": (5,)}, num_resamples=R, batch_size=50)
    cells = {(cell.corruption, cell.severity): cell.figures for cell in found.shift.cells}
    assert list(cells) == [("gaussian_noise", 1), ("gaussian_noise", 5), ("fog", 5)]
    for (name, severity), figures in cells.items():
        own = bndl.evaluate(plain, shifted(part, name, severity=severity), num_resamples=R).figures
        for key in ("accuracy", "nll"):
            assert figures[key].value == pytest.approx(own[key].value, rel=1e-5)
            assert (figures[key].low, figures[key].high) == pytest.approx((own[key].low, own[key].high), rel=1e-5)
        assert figures["ece"].value == pytest.approx(own["ece"].value, rel=1e-4)
        assert figures["ece"].low <= figures["ece"].value <= figures["ece"].high
    assert [mean.severity for mean in found.shift.means] == [1, 5]
    assert found.shift.means[0].figures == cells["gaussian_noise", 1]  # the mean of one
    worst = found.shift.means[1].figures["nll"]
    both = [cells["gaussian_noise", 5]["nll"], cells["fog", 5]["nll"]]
    assert worst.value == pytest.approx((both[0].value + both[1].value) / 2)
    assert worst.low < worst.value < worst.high


def test_shift_of_floats_is_that_of_pixels(model, digits):
    pixels, labels = digits.inputs[:40], digits.labels[:40]
    first, second = (
        bndl.evaluate(model, (images, labels), shift="gaussian_noise", num_resamples=R, batch_size=16).shift
        for images in (pixels, pixels / 255)
    )
    assert len(first.cells) == 5
    for one, other in zip(first.cells, second.cells, strict=True):
        assert one.figures["nll"].value == pytest.approx(other.figures["nll"].value, rel=1e-4)


def test_all_corruptions_are_meant_by_true(model, digits):
    found = bndl.evaluate(model, digits.subset(range(10)), shift=True, num_resamples=2)
    assert len(found.shift.cells) == 75
    assert len({cell.corruption for cell in found.shift.cells}) == 15
    assert found.examples is not None
    assert len(found.examples) == 10


def test_what_was_done_is_handed_out_on_the_way(model, digits):
    stages = []
    plan = Plan(ood={"other": digits}, shift={"fog": (1, 2)}, num_resamples=2, keep=lambda found: stages.append(found))
    evaluate_all(bndl.evaluation.ways_of(model), digits.subset(range(20)), plan)
    found = [stage["BNDL"] for stage in stages]
    assert [len(one.ood) for one in found] == [0, 1, 1, 1]
    assert [0 if one.shift is None else len(one.shift.cells) for one in found] == [0, 0, 1, 2]
    assert [one.seconds for one in found] == sorted(one.seconds for one in found)


def test_sepin_when_it_is_asked_for(model, digits, evaluation):
    assert evaluation.sepin is None

    def noisy(images):
        return images + 0.05 * torch.randn_like(images)

    found = bndl.evaluate(model, digits.subset(range(64)), sepin=noisy, num_resamples=R)
    assert list(found.sepin.at) == ["1", "10", "100", "1000", "all"]
    values = list(found.sepin.at.values())
    assert values == sorted(values, reverse=True)
    assert (found.sepin.num_features, found.sepin.num_images) == (24, 64)
    pair = bndl.evaluate(model, (digits.inputs[:64], digits.labels[:64]), sepin=noisy, num_resamples=R)
    assert pair.sepin == found.sepin


# --------------------------------------------------------------------------------------------------------------- JSON


@pytest.fixture(scope="module")
def full(model, digits):
    part = digits.subset(range(30))
    return bndl.evaluate(model, part, ood={"noise": part}, shift={"fog": (1,)}, num_resamples=5)


def test_json_and_back(full, tmp_path):
    path = full.save(tmp_path / "evaluation.json")
    assert full.to_json() == path.read_text()
    again = bndl.Evaluation.load(path)
    assert again.to_json() == full.to_json()
    assert again.examples is None
    assert again.pavpu == full.pavpu
    assert again.table() == full.table()
    assert [entry.name for entry in tmp_path.iterdir()] == ["evaluation.json"]


def test_what_has_no_value_is_null(full, model, digits):
    right = bndl.predict(model, digits.inputs).labels == digits.labels
    flawless = bndl.evaluate(model, digits.subset(right.nonzero()[:30, 0]), num_resamples=R)
    assert math.isnan(flawless.figures["error_auroc"].value)
    assert flawless.figures["accuracy"].value == 1
    text = flawless.to_json()
    assert "NaN" not in text
    assert json.loads(text)["figures"]["error_auroc"] == {"value": None, "low": None, "high": None}
    assert math.isnan(bndl.Evaluation.from_dict(json.loads(text)).figures["error_auroc"].value)
    assert "error AUROC, %" in flawless.table()


@pytest.mark.parametrize(
    "damage",
    [
        lambda text: text[: len(text) // 2],
        lambda text: "[]",
        lambda text: "[" * 100_000,
        lambda text: text.replace('"num_examples": 30', '"num_examples": "30"'),
        lambda text: text.replace('"num_examples": 30', '"num_example": 30'),
        lambda text: text.replace('"pavpu"', '"pavpy"'),
        lambda text: text.replace('"format_version": 1', '"format_version": 2'),
        lambda text: text.replace('"classes": [', '"classes": [1,'),
    ],
)
def test_a_damaged_file_is_one_sentence(damage, full, tmp_path):
    path = tmp_path / "evaluation.json"
    changed = damage(full.to_json())
    assert changed != full.to_json()
    path.write_text(changed)
    with pytest.raises(bndl.FileError, match="is damaged or no evaluation") as caught:
        bndl.Evaluation.load(path)
    assert len(str(caught.value).splitlines()) == 1


def test_a_file_that_is_not_there(tmp_path, full):
    with pytest.raises(bndl.FileError, match="there is no file"):
        bndl.Evaluation.load(tmp_path / "none.json")
    with pytest.raises(bndl.FileError, match="it is a folder"):
        full.save(tmp_path)


def test_the_table_has_every_figure(full):
    table = full.table()
    for kind in FIGURES[:3]:
        assert kind.heading in table
        assert kind.text(full.figures[kind.key].value) in table
    for words in ("30 examples of 10 classes", "more than all certain", "severity 1: NLL", "features a decision"):
        assert words in table
    side_by_side = table_of({"one": full, "other": replace(full, ood={}, shift=None)})
    assert len(max(side_by_side.splitlines(), key=len)) < 100


# ------------------------------------------------------------------------------------------------------------ refused


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"num_resamples": 0}, "num_resamples must be at least 1"),
        ({"batch_size": 0}, "batch_size must be at least 1"),
        ({"classes": ["a", "b"]}, "the model has 10 classes, got 2 names"),
        ({"ood": [1]}, 'ood is a dict of a name to data, such as {"svhn": loader}'),
        ({"ood": {"none": []}}, "none gave no example"),
        ({"shift": "fogg"}, "there is no corruption 'fogg'; did you mean 'fog'"),
        ({"shift": {"fog": (0,)}}, "a severity is a whole number from 1 to 5, not 0"),
        ({"method": "guess"}, "method"),
    ],
)
def test_arguments_are_checked(change, words, model, digits):
    with pytest.raises(bndl.InputError, match=words.replace("(", r"\(")):
        bndl.evaluate(model, digits.subset(range(5)), **{"num_resamples": 2, **change})


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda x, y: x, "labels are needed"),
        (lambda x, y: (x, y + 1), r"labels must lie in 0\.\.9 for 10 classes"),
        (lambda x, y: (x, y[:-1]), "the inputs have dims .* the labels"),
        (lambda x, y: (x, y.float()), "labels must be class indices"),
        (lambda x, y: (x[:0], y[:0]), "gave no example"),
        (lambda x, y: [], "gave no example"),
        (lambda x, y: (x / 255 * math.nan, y), "NaN"),
        (lambda x, y: 3, "give a tensor"),
    ],
)
@pytest.mark.parametrize("kind", ["layer", "dense"])
def test_bad_data_is_one_sentence(make, words, kind, model, plain, digits):
    data = make(digits.inputs, digits.labels)
    with pytest.raises(bndl.InputError, match=words):
        bndl.evaluate(model if kind == "layer" else plain, data, num_resamples=2)


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (3, "give a torch.nn.Module, a fitted method"),
        (type("Clf", (), {"predict": lambda self, x: x.sum(dim=(1, 2, 3))})(), "predict must give a bndl.Prediction"),
        (nn.Sequential(nn.Flatten(), nn.ReLU()), "no nn.Linear"),
    ],
)
def test_what_is_no_model(wrong, words, digits):
    with pytest.raises(bndl.BndlError, match=words):
        bndl.evaluate(wrong, digits, num_resamples=2)


def test_only_decision_layers_have_methods(plain, digits):
    with pytest.raises(bndl.InputError, match="method and num_samples are of decision layers"):
        bndl.evaluate(plain, digits, method="paper")


def test_shift_needs_images_that_can_be_read_again(model, digits):
    with pytest.raises(bndl.InputError, match="no iterator"):
        bndl.evaluate(model, iter([(digits.inputs, digits.labels)]), shift=True)
    features = FeatureSet(torch.rand(10, 24), digits.labels[:10])
    with pytest.raises(bndl.InputError, match=r"corruptions need images \(B, C, H, W\)"):
        bndl.evaluate(model.fc, features, shift="fog", num_resamples=2)
    with pytest.raises(bndl.InputError, match=r"uint8 or floats in \[0, 1\]"):
        bndl.evaluate(model, (digits.inputs.float(), digits.labels), shift="fog", num_resamples=2)


def test_sepin_needs_images_and_a_network(model, digits):
    with pytest.raises(bndl.InputError, match="SEPIN chooses and augments images itself"):
        bndl.evaluate(model, DataLoader(digits), sepin=True)
    with pytest.raises(bndl.InputError, match="SEPIN looks into a network"):
        bndl.evaluate(get_method("dense").predictor(nn.Linear(4, 3)), digits, sepin=True)


def test_one_example_is_enough(model, digits):
    found = bndl.evaluate(model, digits.subset([0]), ood={"one": digits.inputs[:1]}, num_resamples=3)
    assert found.num_examples == 1
    assert found.errors == {}
    assert found.deciles["confidence"].count == (1,)
    assert bndl.Evaluation.from_dict(found.to_dict()).table() == found.table()


def test_a_class_without_weights_is_told(model, digits):
    bare = copy.deepcopy(model)
    with torch.no_grad():
        bare.fc.weight[3] = -1.0
    with pytest.warns(UserWarning, match="class 3 has no weight left"):
        bndl.evaluate(bare, digits.subset(range(20)), num_resamples=2)

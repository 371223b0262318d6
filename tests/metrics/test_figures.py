"""The figures that tables print are the metrics they are named after, with intervals that hold them."""

import pytest
import torch

from bndl.baselines.predictions import from_draws
from bndl.metrics import Examples, accuracy, aurc, auroc, calibration_error, negative_log_likelihood, pavpu
from bndl.metrics.figures import FIGURES, OOD_FIGURES, figures_of, ood_figures_of

N, C = 400, 5


@pytest.fixture(scope="module")
def case():
    generator = torch.Generator().manual_seed(0)
    logits = 2 * torch.randn(N, C, generator=generator)
    truth = torch.multinomial(logits.softmax(1), 1, generator=generator)[:, 0]
    prediction = from_draws(logits + torch.randn(20, N, C, generator=generator))
    return prediction, truth, Examples.of(prediction, truth)


def test_each_figure_is_its_metric(case):
    prediction, truth, examples = case
    found = {key: figure.value for key, figure in figures_of(examples, num_resamples=10).items()}
    correct = prediction.labels == truth
    assert found["accuracy"] == pytest.approx(float(accuracy(correct)))
    assert found["nll"] == pytest.approx(float(negative_log_likelihood(prediction.probs, truth)))
    assert found["ece"] == pytest.approx(float(calibration_error(prediction.confidence, correct)))
    assert found["aurc"] == pytest.approx(float(aurc(1 - prediction.confidence, correct)))
    assert found["error_auroc"] == pytest.approx(float(auroc(1 - prediction.confidence, ~correct)))
    for level, key in ((0.01, "pavpu_01"), (0.05, "pavpu_05"), (0.1, "pavpu_10")):
        assert found[key] == pytest.approx(pavpu(correct, prediction.p_value <= level).value)
    assert list(found) == [kind.key for kind in FIGURES]


def test_every_interval_holds_its_value_and_is_seeded(case):
    examples = case[2]
    found = figures_of(examples, num_resamples=200, seed=3)
    for key, figure in found.items():
        assert figure.low <= figure.value <= figure.high, key
        assert figure.high - figure.low < 0.5
    assert found == figures_of(examples, num_resamples=200, seed=3)
    assert found["nll"] != figures_of(examples, num_resamples=200, seed=4)["nll"]


def test_foreign_examples_are_told_by_their_entropy(case):
    inside = case[2]
    outside = Examples.of(from_draws(torch.zeros(2, 100, C)), None)  # knows nothing of them
    found = ood_figures_of(inside, outside, num_resamples=50)
    assert found["auroc"].value == 1
    assert found["fpr95"].value == 0
    assert list(found) == [kind.key for kind in OOD_FIGURES]
    assert ood_figures_of(inside, inside, num_resamples=50)["auroc"].value == pytest.approx(0.5)


def test_figures_are_written_as_people_read_them():
    texts = {kind.key: kind.text(0.12345) for kind in FIGURES}
    assert texts["accuracy"] in ("12.34", "12.35")
    assert texts["nll"] in ("0.1234", "0.1235")

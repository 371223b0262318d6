"""Detection against scikit-learn, with ties and weights; and where there is nothing to detect."""

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from sklearn.metrics import average_precision_score, roc_auc_score, roc_curve

from bndl import InputError
from bndl.metrics import auroc, average_precision, fpr_at_tpr

METRICS = (auroc, average_precision, fpr_at_tpr)
cases = st.lists(st.tuples(st.integers(0, 4), st.booleans(), st.integers(0, 3)), min_size=2, max_size=40)


def theirs(score, positive, weight, *, tpr=0.95):
    false, true, _ = roc_curve(positive, score, sample_weight=weight, drop_intermediate=False)
    return [
        roc_auc_score(positive, score, sample_weight=weight),
        average_precision_score(positive, score, sample_weight=weight),
        false[np.argmax(true >= tpr - 1e-12)],
    ]


@given(cases)
@settings(deadline=None)
def test_they_are_those_of_sklearn(case):
    score, positive, weight = (np.array(column) for column in zip(*case, strict=True))
    assume(weight[positive].sum() > 0 < weight[~positive].sum())
    arguments = torch.as_tensor(score), torch.as_tensor(positive)
    assert [float(metric(*arguments)) for metric in METRICS] == pytest.approx(
        theirs(score, positive, np.ones_like(weight)), abs=1e-12
    )
    found = [metric(*arguments, weights=torch.as_tensor(weight)[None]) for metric in METRICS]
    assert [value.size() for value in found] == [(1,)] * 3
    used = weight > 0  # scikit-learn's own curve does not drop examples without weight
    expected = theirs(score[used], positive[used], weight[used])
    assert [float(value) for value in found] == pytest.approx(expected, abs=1e-12)


def test_on_many_examples_and_at_other_rates():
    generator = torch.Generator().manual_seed(0)
    positive = torch.rand(3000, generator=generator) < 0.2
    score = torch.randn(3000, generator=generator) + positive
    for tpr in (0.5, 0.8, 0.95, 1.0):
        expected = theirs(score.numpy(), positive.numpy(), None, tpr=tpr)[2]
        assert float(fpr_at_tpr(score, positive, tpr=tpr)) == pytest.approx(expected, abs=1e-12)


def test_it_is_blind_to_the_scale_and_infinite_scores_have_a_place():
    score = torch.tensor([-torch.inf, 0.0, -0.0, 1.0, torch.inf])
    positive = torch.tensor([False, True, False, False, True])
    plain = torch.tensor([0.0, 1, 1, 2, 3])
    for metric in METRICS:
        assert float(metric(score, positive)) == float(metric(plain, positive))


def test_one_class_alone_gives_nan_and_so_does_a_resample_without_the_other():
    score, positive = torch.tensor([0.1, 0.7, 0.3]), torch.tensor([True, False, False])
    weights = torch.tensor([[1, 1, 1], [0, 2, 1], [3, 0, 0], [1, 0, 2]])
    for metric in METRICS:
        assert metric(score, torch.ones(3, dtype=torch.bool)).isnan()
        assert metric(score, torch.zeros(3, dtype=torch.bool)).isnan()
        assert metric(score, positive, weights=weights).isnan().tolist() == [False, True, True, False]


def test_a_bad_input_is_told_in_a_sentence():
    positive = torch.tensor([True, False])
    for metric in METRICS:
        with pytest.raises(InputError, match="score holds NaN"):
            metric(torch.tensor([torch.nan, 0]), positive)
        with pytest.raises(InputError, match="positive must be bool"):
            metric(torch.zeros(2), torch.tensor([1, 0]))
        for weights in (torch.ones(2), torch.ones(1, 3), torch.ones(0, 2)):
            with pytest.raises(InputError, match=r"weights must have dims \(R, 2\), a row a resample, got float32 of"):
                metric(torch.zeros(2), positive, weights=weights)
        for bad in (-1.0, torch.nan, torch.inf):
            with pytest.raises(InputError, match="weights must be finite and non-negative"):
                metric(torch.zeros(2), positive, weights=torch.tensor([[1.0, bad]]))
    with pytest.raises(InputError, match="tpr is a share of the positives"):
        fpr_at_tpr(torch.zeros(2), positive, tpr=95)

"""BNDLClassifier: scikit-learn's own checks, and what our users do with it."""

import numpy as np
import pytest
from sklearn.datasets import load_digits, load_iris
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss
from sklearn.model_selection import GridSearchCV, train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import MinMaxScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

from bndl import BNDLClassifier


@pytest.mark.slow
@parametrize_with_checks([BNDLClassifier(random_state=0)])
def test_sklearn_says_it_is_an_estimator(estimator, check):
    check(estimator)


@pytest.fixture(scope="module")
def digits():
    X, y = load_digits(return_X_y=True)
    return train_test_split(X, y, test_size=0.5, random_state=0, stratify=y)


def test_as_accurate_as_logistic_regression_and_calibrated(digits):
    X, X_test, y, y_test = digits
    ours = BNDLClassifier(random_state=0).fit(X, y)
    dense = LogisticRegression(max_iter=1000).fit(X / 16, y)
    assert ours.score(X_test, y_test) > dense.score(X_test / 16, y_test) - 0.02
    assert log_loss(y_test, ours.predict_proba(X_test)) < 0.3


def test_uncertainty_points_at_mistakes(digits):
    X, X_test, y, y_test = digits
    clf = BNDLClassifier(random_state=0).fit(X, y)
    pred = clf.predict_uncertainty(X_test)
    wrong = clf.classes_[pred.labels] != y_test
    assert pred.flip_probability[wrong].mean() > 5 * pred.flip_probability[~wrong].mean()


def test_works_in_a_pipeline_and_a_grid_search():
    X, y = load_iris(return_X_y=True)
    search = GridSearchCV(
        make_pipeline(MinMaxScaler(), BNDLClassifier(random_state=0, epochs=2)),
        {"bndlclassifier__C": [0.1, 10.0]},
        cv=3,
    )
    assert search.fit(X, y).best_score_ > 0.85


def test_labels_of_any_type_and_a_class_with_one_example():
    X, y = load_iris(return_X_y=True)
    names = np.array(["setosa", "versicolor", "virginica"])[y].astype(object)
    names[0] = "unheard-of"
    clf = BNDLClassifier(random_state=0, epochs=1).fit(X, names)
    assert list(clf.classes_) == ["setosa", "unheard-of", "versicolor", "virginica"]
    assert clf.predict_proba(X).shape == (150, 4)


def test_one_class_is_refused_in_a_sentence():
    with pytest.raises(ValueError, match="at least 2 classes, got 1 class"):
        BNDLClassifier().fit(np.eye(3), [1, 1, 1])


def test_same_random_state_same_bits(digits):
    X, X_test, y, _ = digits
    first, second = (BNDLClassifier(random_state=3, epochs=2).fit(X, y).predict_proba(X_test) for _ in range(2))
    assert np.array_equal(first, second)

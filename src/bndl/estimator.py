"""BNDLClassifier: the decision layer as a scikit-learn estimator, for embeddings and tables."""

from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from bndl.errors import MissingExtraError
from bndl.features import FeatureSet
from bndl.fit import fit
from bndl.layer import DecisionLayer
from bndl.predict import predict
from bndl.prediction import Prediction

try:
    from sklearn.base import BaseEstimator, ClassifierMixin
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import train_test_split
    from sklearn.preprocessing import StandardScaler
    from sklearn.utils import check_random_state
    from sklearn.utils.multiclass import check_classification_targets
    from sklearn.utils.validation import check_is_fitted, validate_data
except ImportError as error:
    raise MissingExtraError("BNDLClassifier", extra="sklearn") from error

__all__ = ["BNDLClassifier"]


class BNDLClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """Logistic regression that knows how sure it is: a decision layer on standardised features.

    A dense logistic regression is fitted to four fifths of the data and converted exactly; the posterior's noise (and,
    where that pays, the weights) is fitted with the help of the rest. Classes too rare to be shared stay in both parts.

    Args:
        C: inverse strength of the logistic regression's L2 penalty.
        max_iter: its largest number of iterations.
        epochs: passes over the data to train the layer's weights by the ELBO; 0 only fits the noise.
        lr: peak learning rate of these passes.
        random_state: seed, or numpy RandomState.

    Attributes:
        classes_: (C,) the labels, sorted.
        n_features_in_: number of columns of X.
        n_iter_: iterations that the logistic regression took.
        layer_: the fitted :class:`bndl.DecisionLayer`, on standardised features split by sign.
        scaler_: the fitted ``StandardScaler``.

    Example:
        >>> from sklearn.datasets import load_iris
        >>> X, y = load_iris(return_X_y=True)
        >>> BNDLClassifier(random_state=0).fit(X, y).predict_proba(X[:2]).shape
        (2, 3)
    """

    def __init__(
        self, *, C: float = 1.0, max_iter: int = 1000, epochs: int = 20, lr: float = 1e-3, random_state: Any = None
    ) -> None:
        self.C = C
        self.max_iter = max_iter
        self.epochs = epochs
        self.lr = lr
        self.random_state = random_state

    def fit(self, X: Any, y: Any) -> Self:
        """Fit to X, array-like (N, K), and labels y (N,) of any type."""
        X, y = validate_data(self, X, y, dtype=np.float64)
        check_classification_targets(y)
        self.classes_, codes = np.unique(y, return_inverse=True)
        if len(self.classes_) < 2:
            raise ValueError(f"BNDLClassifier needs at least 2 classes, got 1 class: {self.classes_[0]!r}.")
        seed = int(check_random_state(self.random_state).randint(np.iinfo(np.int32).max))
        self.scaler_ = StandardScaler().fit(X)
        train, val = _share(codes, seed)
        dense = self._dense(self.scaler_.transform(X[train]), codes[train])
        with torch.random.fork_rng([]):  # the new layer's weights are overwritten by the regression's
            self.layer_ = DecisionLayer(X.shape[1], len(self.classes_), signed=True)
        self.layer_.copy_linear(dense)
        parts = [FeatureSet(self._features(X[rows]), torch.tensor(codes[rows])) for rows in (train, val)]
        fit(self.layer_, *parts, epochs=self.epochs, lr=self.lr, seed=seed, progress=False)
        self.layer_.eval()
        return self

    def predict_proba(self, X: Any) -> NDArray[np.float64]:
        """Calibrated probabilities (N, C), in the order of ``classes_``."""
        probs = self.predict_uncertainty(X).probs.double()
        result: NDArray[np.float64] = (probs / probs.sum(dim=1, keepdim=True)).numpy()
        return result

    def predict(self, X: Any) -> NDArray[Any]:
        """The most probable class of each row (N,).

        Where two classes are close it may differ from ``predict_uncertainty(X).labels``, which have the largest mean score.
        """
        probs = self.predict_proba(X)
        chosen: NDArray[Any] = self.classes_[probs.argmax(axis=1)]
        return chosen

    def predict_uncertainty(self, X: Any) -> Prediction:
        """Everything the layer knows: p-values, flip probabilities, entropy; labels are indices into ``classes_``."""
        check_is_fitted(self)
        X = validate_data(self, X, dtype=np.float64, reset=False)
        return predict(self.layer_, self._features(X), progress=False)

    def _features(self, X: NDArray[np.float64]) -> torch.Tensor:
        return torch.tensor(self.scaler_.transform(X), dtype=torch.float32)

    def _dense(self, X: NDArray[np.float64], codes: NDArray[np.int64]) -> nn.Linear:
        """A multinomial logistic regression as an ``nn.Linear`` with one output a class."""
        regression = LogisticRegression(C=self.C, max_iter=self.max_iter).fit(X, codes)
        self.n_iter_ = int(regression.n_iter_.max())
        weight, bias = torch.tensor(regression.coef_), torch.tensor(regression.intercept_)
        if len(weight) == 1:  # two classes: scikit-learn keeps the difference of their logits
            weight, bias = torch.cat([0 * weight, weight]), torch.cat([0 * bias, bias])
        linear = nn.Linear(weight.size(1), len(weight), dtype=weight.dtype)
        linear.load_state_dict({"weight": weight, "bias": bias})
        return linear


def _share(codes: NDArray[np.int64], seed: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Row indices for the regression (every class in it) and, a stratified fifth, for the noise."""
    rows, counts = np.arange(len(codes)), np.bincount(codes)
    num_val = max(len(counts), round(0.2 * len(codes)))
    if counts.min() < 2 or len(codes) - num_val < len(counts):
        return rows, rows
    train, val = train_test_split(rows, test_size=num_val, stratify=codes, random_state=seed)
    return train, val

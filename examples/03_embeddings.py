"""Embeddings or a table, with scikit-learn: probabilities to rely on, and which rows to look at by hand."""

from sklearn.datasets import load_breast_cancer
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss
from sklearn.model_selection import train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import bndl

X, y = load_breast_cancer(return_X_y=True)
X_train, X_test, y_train, y_test = train_test_split(X, y, test_size=0.4, stratify=y, random_state=0)

dense = make_pipeline(StandardScaler(), LogisticRegression()).fit(X_train, y_train)
ours = bndl.BNDLClassifier(random_state=0).fit(X_train, y_train)
for name, model in (("logistic regression", dense), ("BNDL", ours)):
    print(
        f"{name}: accuracy {model.score(X_test, y_test):.1%}, NLL {log_loss(y_test, model.predict_proba(X_test)):.3f}"
    )

doubt = ours.predict_uncertainty(X_test).flip_probability
order = doubt.argsort(descending=True)[:10].numpy()
wrong = (ours.predict(X_test) != y_test).sum()
print(f"mistakes: {wrong}; among the ten least sure rows: {(ours.predict(X_test)[order] != y_test[order]).sum()}")

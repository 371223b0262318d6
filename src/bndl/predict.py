"""One backbone pass -> Prediction: label, probabilities, decision test, and whose doubt it is."""

import warnings
from typing import Any

import torch
from torch import nn

from bndl.convert import find_layer
from bndl.decide import Against, Decider, Method, check_settings
from bndl.errors import InputError
from bndl.features import evaluating, features_of, iterate, split_batch
from bndl.memory import remembered
from bndl.prediction import Prediction, cat
from bndl.progress import track

__all__ = ["about_empty", "decide_all", "named", "predict"]

_EXAMPLES, _ROWS = 256, 4096  # a batch: through a backbone, through the layer alone


def predict(
    model: nn.Module,
    x: Any,
    *,
    method: Method = "sample",
    against: Against = "all",
    num_samples: int | None = None,
    seed: int = 0,
    level: float = 0.05,
    batch_size: int | None = None,
    progress: bool | None = None,
) -> Prediction:
    """Predict, with each example passing the backbone exactly once.

    An example's answer depends on the example, the model and the seed: not on what else is in the batch, nor on the
    batch's size (bit for bit in the head; a backbone may differ in the last bits of float32). Beyond the inputs, the
    features of one batch and the result, a head of up to two million weights needs at most 600 MB. What does not depend on
    the example is computed once and kept with the layer, until one of its numbers changes or it goes to ``train()``.

    Args:
        model: a model with a :class:`bndl.DecisionLayer`, or the layer itself (then ``x`` are features).
        x: a tensor or array (B, ...), a Hugging Face batch (dict), a data set, or a loader of any of these, labelled or
            not (labels are ignored).
        method: ``"sample"``: probabilities from seeded head-only draws, everything else in closed form. ``"closed"``: no
            draw at all, probabilities by the extended probit approximation (fast, less calibrated). ``"paper"``: 20
            draws for everything, the paired t-test on the sampled logits of the first two classes.
        against: what the decision is tested against in closed form: ``"all"`` other classes together, or the
            ``"runner-up"``, as the paper does (see this module's formulas; with two classes it is the same).
        num_samples: draws S for the probabilities. They are stratified (:mod:`bndl.draws`), so that by default 64 are
            enough for small heads and 8 for those of over 50,000 weights; for ``"paper"`` 20 independent ones.
        seed: the same seed gives the same bits.
        level: significance below which a decision is ``certain``.
        batch_size: how many examples of a tensor, dict or data set pass the backbone together; by default 256, and 4096
            where the model is a layer.
        progress: whether to show a bar; None: when it takes longer than two seconds and there is a terminal.
    """
    check_settings(method, against, num_samples, level)
    layer = find_layer(model)
    decider = remembered(
        Decider, layer, method=method, against=against, num_samples=num_samples, seed=seed, level=level
    )
    if empty := layer.empty_classes():
        warnings.warn(about_empty(empty), stacklevel=2)
    size = batch_size if batch_size is not None else _ROWS if model is layer else _EXAMPLES
    return decide_all(model, x, decider, batch_size=size, progress=progress)


def decide_all(model: nn.Module, x: Any, decider: "Decider", *, batch_size: int, progress: bool | None) -> Prediction:
    """Every batch of ``x`` through the model once, and its features through the decider."""
    parts = []
    with evaluating(model):
        for batch in track(iterate(x, batch_size=batch_size), "predict", progress=progress):
            features = features_of(model, split_batch(batch)[0])
            with torch.autocast(features.device.type, enabled=False):
                parts.append(decider(features))
    if not parts:
        raise InputError("nothing to predict on: the loader gave no batch.")
    return cat(parts)


def about_empty(classes: list[int]) -> str:
    """What to say of classes that lost all their weights."""
    return (
        f"{named(classes)} no weight left, so no feature can speak for it: train with a smaller beta, lower alpha_phi, or "
        "give it more examples."
    )


def named(classes: list[int]) -> str:
    """The subject and verb of a sentence about classes."""
    return f"class {classes[0]} has" if len(classes) == 1 else f"classes {', '.join(map(str, classes))} have"

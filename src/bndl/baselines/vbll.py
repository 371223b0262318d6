r"""Variational Bayesian last layer (Harrison et al. 2024), package ``vbll``: a Gaussian over the head's weights, learnt by a bound.

.. math:: \mathcal{L} = -\frac{1}{N} \sum_n \Bigl(\mu_{n y_n} - \ln \sum_c e^{\mu_{nc} + \sigma^2_{nc} / 2}\Bigr)
    + \frac{1}{N} \bigl(\mathrm{KL}(W) - \ln p(\Sigma)\bigr), \qquad
    \mu = W h, \quad \sigma^2_c = \sum_k h_k^2 S_{ck} + \Sigma_c
"""

import functools
import importlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from bndl.baselines.method import Fitted, Method, Size
from bndl.baselines.predictions import from_draws
from bndl.baselines.tuning import Candidate, Task, tune
from bndl.errors import MissingExtraError
from bndl.features import FeatureSet, Inputs
from bndl.predict import Prediction, cat

__all__ = ["VBLL", "Layer"]

r"""The sparse linear layer of Debuggable Networks (Wong et al. 2021): elastic-net logistic regressions along a path of penalties.

Package ``glm_saga``, on standardised features z, with :math:`\alpha = .99`:

.. math:: \min_{W, b} -\frac{1}{N} \sum_n \ln \mathrm{softmax}(W z_n + b)_{y_n}
    + \lambda \bigl(\alpha \|W\|_1 + \tfrac{1 - \alpha}{2} \|W\|_2^2\bigr)
"""

import importlib
import math
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from bndl.baselines.dense import Dense
from bndl.baselines.method import Fitted, Method, Size
from bndl.baselines.tuning import Task, judge
from bndl.errors import MissingExtraError
from bndl.features import FeatureSet

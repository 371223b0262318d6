r"""Variational Bayesian last layer (Harrison et al. 2024): a Gaussian over the head's weights, learnt by a bound, and noise.

Package ``vbll``, its discriminative classifier with a diagonal covariance S of the weights and noise :math:`\Sigma`:

.. math:: \mathcal{L} = -\frac{1}{N} \sum_n \Bigl(\mu_{n y_n} - \ln \sum_c e^{\mu_{nc} + \sigma^2_{nc} / 2}\Bigr)
    + \frac{1}{N} \bigl(\mathrm{KL}(W) - \ln p(\Sigma)\bigr), \qquad
    \mu_c = \sum_k \bar W_{ck} h_k, \quad \sigma^2_c = \sum_k S_{ck} h_k^2 + \Sigma_c
"""

import functools
import importlib
import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bndl.baselines.laplace import normal_points
from bndl.baselines.method import Fitted, Method, Size
from bndl.baselines.predictions import from_draws
from bndl.baselines.tuning import Candidate, Task, tune
from bndl.errors import HeadError, MissingExtraError
from bndl.features import FeatureSet, Inputs
from bndl.layer import ACTIVE_ABOVE
from bndl.prediction import Prediction, cat

__all__ = ["VBLL", "VariationalHead"]

# (prior scale, Wishart scale) and the epochs to try on each source
SCALES = {"train": ((0.01, 1.0), (1.0, 1.0)), "val": ((0.1, 1.0), (1.0, 1.0), (10.0, 1.0), (1.0, 100.0))}
EPOCHS = {"train": 5, "val": 20}  # the training features are many and their likelihood says little
_TRIAL_SAMPLES = 64  # draws that choose among them
_BATCH = 256


class VariationalHead(nn.Module):
    """The package's layer, which has no bias, behind a feature that is always one, from the weights of a trained head."""

    def __init__(self, head: nn.Linear, *, prior_scale: float, wishart_scale: float, num_data: int) -> None:
        super().__init__()
        self.in_features, self.has_bias = head.in_features, head.bias is not None
        self.layer = _layer_class()(
            head.in_features + self.has_bias,
            head.out_features,
            regularization_weight=1 / num_data,
            parameterization="diagonal",
            prior_scale=prior_scale,
            wishart_scale=wishart_scale,
        )
        weight = head.weight if head.bias is None else torch.cat([head.weight, head.bias[:, None]], dim=1)
        with torch.no_grad():
            self.layer.W_mean.copy_(weight)
            self.layer.noise_logdiag.fill_(_settled_noise(self.layer, num_data))

    def forward(self, features: Tensor) -> Callable[[Tensor], Tensor]:
        """Features (B, K) -> the package's training loss as a function of the labels (B,)."""
        loss: Callable[[Tensor], Tensor] = self.layer.training_loss(self._with_one(features))
        return loss

    def moments(self, features: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and standard deviation of the logits of features (B, K), each (B, C)."""
        logits = self.layer.logit_predictive(self._with_one(features.to(self.layer.W_mean)))
        return logits.mean, logits.scale

    def size(self) -> Size:
        """Means and standard deviations of the weights, and the noise."""
        weight = self.layer.W_mean[:, : self.in_features]
        numbers = 2 * self.layer.W_mean.numel() + self.layer.noise_logdiag.numel()
        return Size(numbers, active=int((weight.abs() > ACTIVE_ABOVE).sum()), weights=weight.numel())

    def _with_one(self, features: Tensor) -> Tensor:
        return F.pad(features, (0, 1), value=1.0) if self.has_bias else features


@dataclass(frozen=True)
class _OneSource(Task):
    """A task with one of its sources: the weight of the bound's penalty is one over this source's size."""

    only: str = "train"

    def sources(self) -> Iterator[tuple[str, FeatureSet]]:
        """That source."""
        yield from ((name, source) for name, source in super().sources() if name == self.only)


class VBLL(Method):
    """Starts at the given head; what it learns from and its priors are chosen among ``SCALES``.

    Args:
        prior_scale: variance of the prior of a weight, times K / 2.
        wishart_scale: of the noise's prior.
        num_data: N, how many examples it learns from.
        num_samples: S, draws shared by all examples; best a power of two.
    """

    name = "vbll"
    about = "variational Gaussian over the head's weights, and noise, 256 draws"
    needs = "baselines"

    def __init__(
        self, prior_scale: float = 1.0, wishart_scale: float = 1.0, *, num_data: int = 1000, num_samples: int = 256
    ) -> None:
        self.prior_scale, self.wishart_scale = prior_scale, wishart_scale
        self.num_data, self.num_samples = num_data, num_samples

    def dress(self, model: nn.Module, **layer: Any) -> nn.Module:
        """A variational head out of a linear one; the weights' variances start where the package has them."""
        if not isinstance(model, nn.Linear):
            raise HeadError(f"VBLL is fitted to features: give it a linear head, not a {type(model).__name__}.")
        return VariationalHead(
            model, prior_scale=self.prior_scale, wishart_scale=self.wishart_scale, num_data=self.num_data
        )

    def criterion(self, logits: Any, labels: Tensor, progress: float) -> Tensor:
        """The negative bound; what a variational head returns is a function of the labels."""
        loss: Tensor = logits(labels)
        return loss

    def predictor(self, model: nn.Module, *, seed: int = 0) -> Fitted:
        """The average softmax of seeded draws of the logits."""
        assert isinstance(model, VariationalHead)
        noise = normal_points(self.num_samples, model.layer.W_mean.size(0), seed=seed)[:, None]

        @torch.no_grad()
        def draw(rows: Tensor) -> Tensor:
            mean, spread = model.moments(rows)
            return mean + spread * noise.to(mean)

        def predict(inputs: Inputs) -> Prediction:
            assert isinstance(inputs, Tensor)
            return cat([from_draws(draw(rows)) for rows in inputs.split(_BATCH)])

        return Fitted(predict, model.size())

    def tries(self, head: nn.Linear, task: Task) -> Iterable[Candidate]:
        """Each of ``SCALES``, by the likelihood of fewer draws."""
        for name, source in task.sources():
            own = _OneSource(**{**vars(task), "only": name})
            for prior, wishart in SCALES[name]:
                method = VBLL(prior, wishart, num_data=len(source), num_samples=_TRIAL_SAMPLES)
                about = f"prior scale {prior:g}, Wishart scale {wishart:g}, "
                yield from tune(method, head, own, epochs=EPOCHS[name], about=about)


def _settled_noise(layer: Any, num_data: int) -> float:
    r"""Log standard deviation at which the bound leaves the noise alone, when each class is predicted one time in C.

    Its variance solves :math:`N v^2 / C + 2 d v - s = 0`, with d half the degrees of freedom and s the Wishart scale. The
    package's own start, a random one of about one, would cost the few epochs here.
    """
    C = len(layer.noise_logdiag)
    root = math.sqrt(layer.dof**2 + num_data * layer.wishart_scale / C)
    return 0.5 * math.log((root - layer.dof) * C / num_data)


def _package(name: str = "vbll") -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise MissingExtraError("VBLL", extra="baselines") from error


@functools.cache
def _layer_class() -> Any:
    """The package's layer with the variances of its logits as one product, instead of (B, C, K) numbers."""
    normal = _package("vbll.utils.distributions").Normal

    class Diagonal(_package().DiscClassification):  # type: ignore[misc]
        def logit_predictive(self, x: Tensor) -> Any:
            variance = x.square() @ (2 * self.W_logdiag).exp().t() + (2 * self.noise_logdiag).exp()
            return normal(x @ self.W_mean.t(), variance.sqrt())

        def training_loss(self, x: Tensor) -> Any:  # without the sampled predictions of forward
            return self._get_train_loss_fn(x)

    return Diagonal

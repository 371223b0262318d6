r"""Last-layer Laplace (Daxberger et al. 2021): a Gaussian around the trained head, as wide as its loss is flat.

Curvature by the package ``laplace-torch``: Kronecker factors :math:`G = Q_G \mathrm{diag}(g) Q_G^\top` over classes and
:math:`A = Q_A \mathrm{diag}(a) Q_A^\top` over features. With a prior precision :math:`\delta` and a temperature
T of the likelihood the logits of features h are Gaussian around the head's own, with

.. math:: \mathrm{Cov}[l] = Q_G\,\mathrm{diag}_i\Bigl(\sum_j \frac{(Q_A^\top h)_j^2}{g_i a_j / T + \delta}\Bigr) Q_G^\top
    + Q_G\,\mathrm{diag}_i\Bigl(\frac{1}{g_i / T + \delta}\Bigr) Q_G^\top

for weights and bias: the package's GLM predictive up to rounding, without its Jacobians of B C (K + 1) C numbers.
"""

import importlib
import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from bndl.baselines.dense import linear_logits
from bndl.baselines.method import Fitted, Method, Size, fresh
from bndl.baselines.predictions import from_draws
from bndl.baselines.tuning import at_best_temperature
from bndl.errors import BndlError, MissingExtraError
from bndl.features import FeatureSet, Inputs
from bndl.prediction import Prediction, cat

__all__ = ["Laplace", "Posterior", "normal_points"]

PRECISIONS = tuple(10 ** (exponent / 2) for exponent in range(-4, 9))
TEMPERATURES = (1.0, 10.0, 100.0)
_TRIAL_SAMPLES = 64  # draws that choose among them
_EDGE = 1e-7  # of a uniform draw, whose quantile must be finite
_BATCH = 256  # rows whose draws are in memory at once
_CURVATURE_BATCH = 1024


@dataclass(frozen=True)
class Posterior:
    """A head and the eigenvalues and -vectors of its curvature, summed over the training examples.

    Attributes:
        head: the weights' mean.
        classes: (C,), (C, C) of the factor over classes.
        features: (K,), (K, K) of the factor over features.
        bias: (C,), (C, C) of the bias's block; None without a bias.
        precision: of the prior.
        temperature: what the curvature is divided by.
    """

    head: nn.Linear
    classes: tuple[Tensor, Tensor]
    features: tuple[Tensor, Tensor]
    bias: tuple[Tensor, Tensor] | None
    precision: float = 1.0
    temperature: float = 1.0

    @classmethod
    def of(cls, head: nn.Linear, data: FeatureSet) -> "Posterior":
        """The curvature (generalised Gauss-Newton) of the cross entropy of ``data`` at the head's weights."""
        head = fresh(head)
        fitted = _package().KronLaplace(head, "classification")
        with torch.enable_grad():
            fitted.fit(_Batches(data, _CURVATURE_BATCH))
        blocks = [
            [(values.detach(), vectors.detach()) for values, vectors in zip(*block, strict=True)]
            for block in zip(fitted.H.eigenvalues, fitted.H.eigenvectors, strict=True)
        ]
        (classes, features), bias = blocks[0], blocks[1][0] if len(blocks) > 1 else None
        return cls(head.requires_grad_(False), classes, features, bias)

    def variances(self, features: Tensor) -> Tensor:
        """The diagonal between the eigenvectors over classes, of features (B, K) -> (B, C); the weights' part."""
        curvature = self.classes[0][:, None] * self.features[0] / self.temperature
        return (features @ self.features[1]).square() @ (curvature + self.precision).reciprocal().t()

    def bias_variances(self) -> Tensor:
        """The same of the bias, (C,)."""
        if self.bias is None:
            return torch.zeros_like(self.classes[0])
        return (self.bias[0] / self.temperature + self.precision).reciprocal()

    def covariance(self, features: Tensor) -> Tensor:
        """Of the logits of features (B, K) -> (B, C, C)."""
        vectors, of_bias = self.classes[1], self.classes[1] if self.bias is None else self.bias[1]
        own = (vectors * self.variances(features)[:, None]) @ vectors.t()
        return own + (of_bias * self.bias_variances()) @ of_bias.t()

    def draws(self, features: Tensor, noise: Tensor) -> Tensor:
        """Logits (S, B, C) of features (B, K), from standard normal noise (2, S, C) that all examples share."""
        mean = linear_logits(self.head, self.head, features)
        features = features.to(mean)
        own = (noise[0][:, None] * self.variances(features).sqrt()) @ self.classes[1].t()
        of_bias = self.classes[1] if self.bias is None else self.bias[1]
        return mean + own + ((noise[1] * self.bias_variances().sqrt()) @ of_bias.t())[:, None]

    def size(self) -> Size:
        """The head, and the numbers that its spread needs."""
        blocks = [self.classes, self.features, *([] if self.bias is None else [self.bias])]
        return Size.of(self.head, extra=2 + sum(tensor.numel() for block in blocks for tensor in block))


class Laplace(Method):
    """Sampled logits of the Kronecker-factored posterior of the training features; nothing is trained.

    Of ``PRECISIONS`` and ``TEMPERATURES`` those are taken that predict the validation features best, around the given head
    or the head at its best temperature. (The marginal likelihood, which needs no validation features, does worse: a network
    that has seen its training set is nearly always right there.) 50,000 x 256 features of 100 classes take 65 to 80 seconds
    of one core.

    Args:
        num_samples: S, draws shared by all examples; best a power of two.
    """

    name = "laplace"
    about = "Gaussian posterior of the head's weights, Kronecker-factored, 256 draws"
    needs = "baselines"

    def __init__(self, num_samples: int = 256) -> None:
        self.num_samples = num_samples

    def fit(self, head: nn.Linear, train: FeatureSet, val: FeatureSet, *, seed: int = 0) -> Fitted:
        """Compute the curvature at the head, and at the head with calibrated logits, and choose."""
        best, lowest, note = None, math.inf, ""
        for start, about in ((head, "the given head"), (at_best_temperature(head, val), "the given head, scaled")):
            posterior = Posterior.of(start, train)
            noise = _noise(posterior, _TRIAL_SAMPLES, seed)
            for temperature, precision in itertools.product(TEMPERATURES, PRECISIONS):
                now = replace(posterior, precision=precision, temperature=temperature)
                nll = _nll(now, val, noise)
                if best is None or nll < lowest:
                    best, lowest = now, nll
                    note = f"{about}, prior precision {precision:.3g}, temperature {temperature:g}"
        assert best is not None
        return replace(self.predicting(best, seed=seed), note=note)

    def predicting(self, posterior: Posterior, *, seed: int = 0) -> Fitted:
        """The average softmax of seeded draws."""
        noise = _noise(posterior, self.num_samples, seed)

        def predict(inputs: Inputs) -> Prediction:
            assert isinstance(inputs, Tensor)
            return cat([from_draws(posterior.draws(rows, noise)) for rows in inputs.split(_BATCH)])

        return Fitted(predict, posterior.size())


class _Batches:
    """What ``laplace-torch`` takes for a loader, with no copy of all features."""

    def __init__(self, data: FeatureSet, size: int) -> None:
        self.dataset, self.size = data, size

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        data = self.dataset
        for features, labels in zip(data.features.split(self.size), data.labels.split(self.size), strict=True):
            yield features.float(), labels


def normal_points(num_samples: int, dims: int, *, seed: int) -> Tensor:
    """Standard normal noise (S, dims), spread evenly (scrambled Sobol): noise that all examples share errs for all alike."""
    uniform = torch.quasirandom.SobolEngine(dims, scramble=True, seed=seed).draw(num_samples, dtype=torch.float64)
    points: Tensor = torch.special.ndtri(uniform.clamp(_EDGE, 1 - _EDGE))
    return points


def _noise(posterior: Posterior, num_samples: int, seed: int) -> Tensor:
    """Of weights and bias, (2, S, C)."""
    C = posterior.head.out_features
    return normal_points(num_samples, 2 * C, seed=seed).view(-1, 2, C).transpose(0, 1).to(posterior.head.weight)


@torch.no_grad()
def _nll(posterior: Posterior, data: FeatureSet, noise: Tensor) -> float:
    """Mean -ln of the average probability of the labels."""
    total = 0.0
    for features, labels in _Batches(data, _BATCH):
        log_probs = posterior.draws(features, noise).log_softmax(dim=2)
        chosen = log_probs.gather(2, labels.to(log_probs.device)[:, None].expand(len(noise[0]), -1, -1))
        total -= float((chosen.logsumexp(dim=0) - math.log(len(noise[0]))).sum())
    return total / len(data)


def _package() -> Any:
    try:
        return importlib.import_module("laplace")
    except ModuleNotFoundError as error:
        raise MissingExtraError("last-layer Laplace", extra="baselines") from error
    except Exception as error:
        reason = (str(error).splitlines() or [""])[0].rstrip(".") or type(error).__name__
        raise BndlError(
            f"laplace-torch does not import here ({reason}): install the torchvision that belongs to this build of torch, "
            "or remove torchvision, which last-layer Laplace does not need."
        ) from error

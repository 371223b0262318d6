"""DecisionLayer: features -> Weibull posterior over theta and Phi -> logits, a drop-in for ``nn.Linear``."""

import math
from dataclasses import dataclass
from typing import Any, Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bndl import weibull
from bndl.errors import InputError
from bndl.weibull import at_least_float32

__all__ = ["DecisionLayer", "Posterior", "rectify"]

ThetaShape = Literal["feature", "sample", "entry"]
PhiShape = Literal["row", "entry"]
ACTIVE_ABOVE = 1e-5  # a weight at or below this counts as removed


@dataclass(frozen=True)
class Posterior:
    """A Weibull posterior by its mean (>= 0) and shape (broadcastable to the mean)."""

    mean: Tensor
    shape: Tensor

    @property
    def variance(self) -> Tensor:
        """Variance of each entry, with the dims of the mean."""
        return weibull.variance(self.mean, self.shape)

    def sample(self, *, generator: torch.Generator | None = None) -> Tensor:
        """One draw for each entry of the mean."""
        return weibull.sample(self.mean, self.shape, generator=generator)


class _Rectify(torch.autograd.Function):
    """ReLU whose zeros can come back: below zero the gradient passes when a step down it would raise the entry."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return x.clamp_min(0)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor], output: Tensor) -> None:
        ctx.save_for_backward(inputs[0])

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return torch.where((x > 0) | (grads[0] < 0), grads[0], torch.zeros_like(grads[0]))


def rectify(x: Tensor) -> Tensor:
    """``max(x, 0)`` with the gradient of a projection: an entry at or below zero still hears calls to grow.

    With a plain ReLU an entry that crosses zero never moves again. With a full straight-through gradient it drifts ever
    further below. Here it waits where it is until the loss wants it back. Falls back to the plain ReLU, which has the
    same value, where no gradient is asked for (so the mean path exports to any format).
    """
    if torch.is_grad_enabled() and x.requires_grad and not torch.compiler.is_exporting():
        rectified: Tensor = _Rectify.apply(x)  # type: ignore[no-untyped-call]
        return rectified
    return x.clamp_min(0)


def inverse_softplus(value: float) -> float:
    """The x with softplus(x) = value, for value > 0."""
    return value + math.log(-math.expm1(-value))


class DecisionLayer(nn.Module):
    r"""Bayesian non-negative decision layer: ``forward(h) -> logits``.

    .. math:: l = \theta \Phi + b, \quad
        \theta \sim \mathrm{Weibull}(\text{mean } \mathrm{ReLU}(f_m(h) - \alpha_\theta), \text{shape } k_\theta), \quad
        \Phi \sim \mathrm{Weibull}(\text{mean } \mathrm{ReLU}(W - \alpha_\Phi), \text{shape } k_\Phi)

    In ``train()`` a forward pass draws theta for each example and Phi once; in ``eval()`` it is the mean, no draw. A new
    layer is the exact conversion of a new ``nn.Linear`` on non-negative features, as they leave a ReLU: same predictions,
    in non-negative form. Features of any sign want ``signed=True``; otherwise what is negative counts as 0.

    Args:
        in_features: size of the last dim of ``h``.
        out_features: number of classes C.
        bias: whether to learn a bias (kept non-negative; softmax does not notice).
        device: as for ``nn.Linear``.
        dtype: as for ``nn.Linear``.
        signed: split ``h`` into ``ReLU(h)`` and ``ReLU(-h)``, so K = 2 ``in_features``; for features of any sign.
        dense_map: make ``f_m`` a learned K x K map (starts as the identity) in place of the identity.
        theta_shape: ``"feature"``: one shape per feature; ``"sample"``: one per example, read off ``h`` (the authors'
            code); ``"entry"``: one per example and feature (the paper's text; costs a K x K map).
        phi_shape: ``"row"``: one shape per feature (the authors' code); ``"entry"``: one per weight (the paper's text).
        alpha_theta: threshold on the features, >= 0.
        alpha_phi: threshold on the weights, >= 0.
        init_shape: Weibull shape to start from; larger is less noise.
        min_shape: least shape; below 0.1 float32 overflows.

    Example:
        >>> layer = DecisionLayer(512, 10)
        >>> layer(torch.rand(4, 512)).size()
        torch.Size([4, 10])
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        *,
        signed: bool = False,
        dense_map: bool = False,
        theta_shape: ThetaShape = "feature",
        phi_shape: PhiShape = "row",
        alpha_theta: float = 0.0,
        alpha_phi: float = 0.0,
        init_shape: float = 10.0,
        min_shape: float = 0.1,
    ) -> None:
        super().__init__()
        _check_settings(in_features, out_features, theta_shape, phi_shape, alpha_theta, alpha_phi)
        if not (0.1 <= min_shape < init_shape < math.inf):
            raise InputError(f"need 0.1 <= min_shape < init_shape < inf, got {min_shape} and {init_shape}.")
        self.in_features, self.out_features = in_features, out_features
        self.signed, self.min_shape, self.init_shape = signed, min_shape, init_shape
        self.theta_shape, self.phi_shape = theta_shape, phi_shape
        self.alpha_theta, self.alpha_phi = alpha_theta, alpha_phi
        self.origin = ""
        K, C = self.num_features, out_features
        self.weight = nn.Parameter(torch.empty(C, K))
        self.bias = nn.Parameter(torch.empty(C)) if bias else None
        self.dense_map = nn.Linear(K, K) if dense_map else None
        self.phi_raw_shape = nn.Parameter(torch.empty(K) if phi_shape == "row" else torch.empty(C, K))
        self.theta_raw_shape = nn.Parameter(torch.empty(K)) if theta_shape == "feature" else None
        width = {"feature": 0, "sample": 1, "entry": K}[theta_shape]
        self.theta_shape_map = nn.Linear(K, width) if width else None
        self._last_theta: Posterior | None = None
        self.memory: object = None  # see bndl.memory
        self.to(device=device, dtype=dtype)
        self.reset_parameters()

    @property
    def num_features(self) -> int:
        """K, the number of non-negative features: ``in_features``, or twice that for signed ones."""
        return self.in_features * (2 if self.signed else 1)

    @property
    def feature_ids(self) -> Tensor:
        """(K,) the number of each column of theta and Phi among all features; a compact layer leaves some out."""
        return torch.arange(self.num_features, device=self.weight.device)

    @property
    def settings(self) -> dict[str, Any]:
        """The arguments that build an equal layer."""
        return {
            "in_features": self.in_features,
            "out_features": self.out_features,
            "bias": self.bias is not None,
            "signed": self.signed,
            "dense_map": self.dense_map is not None,
            "theta_shape": self.theta_shape,
            "phi_shape": self.phi_shape,
            "alpha_theta": self.alpha_theta,
            "alpha_phi": self.alpha_phi,
            "init_shape": self.init_shape,
            "min_shape": self.min_shape,
        }

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Start again as the exact conversion of a freshly initialised ``nn.Linear``."""
        linear = nn.Linear(self.in_features, self.out_features, bias=self.bias is not None)
        self.copy_linear(linear.to(self.weight.device))
        self.reset_shapes()
        if self.dense_map is not None:
            nn.init.eye_(self.dense_map.weight)
            nn.init.zeros_(self.dense_map.bias)

    @torch.no_grad()
    def reset_shapes(self, shape: float | None = None) -> None:
        """Set every Weibull shape, of theta and of Phi, to ``shape``, by default to ``init_shape``; above ``min_shape``."""
        raw = inverse_softplus(max(1e-3, (self.init_shape if shape is None else shape) - self.min_shape))
        self.phi_raw_shape.fill_(raw)
        if self.theta_raw_shape is not None:
            self.theta_raw_shape.fill_(raw)
        if self.theta_shape_map is not None:
            self.theta_shape_map.weight.zero_()
            self.theta_shape_map.bias.fill_(raw)

    @torch.no_grad()
    def copy_linear(self, linear: nn.Linear) -> None:
        r"""Take over a dense head's predictions exactly: :math:`\Phi = W - \min_c W` and :math:`b - \min b`.

        Softmax ignores what is added to all logits alike; so each feature may add its own constant.
        """
        W = linear.weight.detach().to(self.weight)
        W = torch.cat([W, -W], dim=1) if self.signed else W
        self.weight.copy_(W - W.min(dim=0).values + self.alpha_phi)
        if self.bias is not None:
            b = torch.zeros_like(self.bias) if linear.bias is None else linear.bias.detach().to(self.bias)
            self.bias.copy_(b - b.min())

    def features(self, h: Tensor) -> Tensor:
        """``h`` (..., in_features) of any sign -> what enters ``f_m`` (..., K), split when the layer is signed."""
        return torch.cat([h.clamp_min(0), (-h).clamp_min(0)], dim=-1) if self.signed else h

    def theta(self, h: Tensor) -> Posterior:
        """Posterior of theta: ``h`` (..., in_features) -> mean (..., K), shape (K,), (..., 1) or (..., K)."""
        h = self.features(h)
        mapped = h if self.dense_map is None else _linear(h, self.dense_map)
        mean = (mapped - self.alpha_theta if self.alpha_theta else mapped).relu()
        if self.theta_shape_map is None:
            assert self.theta_raw_shape is not None
            return Posterior(mean, self._shape(self.theta_raw_shape))
        return Posterior(mean, self._shape(_linear(h, self.theta_shape_map)))

    def phi(self) -> Posterior:
        """Posterior of Phi transposed: mean (C, K), shape (K,) or (C, K). In float32 or better."""
        weight = at_least_float32(self.weight)
        return Posterior(rectify(weight - self.alpha_phi), self._shape(self.phi_raw_shape))

    def offset(self) -> Tensor | None:
        """The non-negative bias (C,), or None."""
        return None if self.bias is None else rectify(at_least_float32(self.bias))

    def forward(self, h: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """Logits (..., C) of features ``h`` (..., in_features): a draw in ``train()``, the mean in ``eval()``."""
        self.check(h)
        autocast = torch.is_autocast_enabled(h.device.type)
        with torch.autocast(device_type=h.device.type, enabled=False):
            theta, phi = self.theta(at_least_float32(h)), self.phi()
            self._last_theta = theta if self.training else None
            if self.training:
                logits = F.linear(theta.sample(generator=generator), phi.sample(generator=generator), self.offset())
            else:
                logits = F.linear(theta.mean, phi.mean, self.offset())
        return logits if autocast else logits.to(h.dtype)

    def check(self, h: Tensor) -> None:
        """Refuse what are no features of this layer."""
        if h.dim() == 0 or h.size(-1) != self.in_features:
            raise InputError(
                f"the decision layer takes features of size {self.in_features}, got dims {tuple(h.size())}; "
                f"its input must be (..., {self.in_features})."
            )
        if not h.is_floating_point():
            raise InputError(f"the decision layer takes floating-point features, got {h.dtype}: call .float() on them.")

    def train(self, mode: bool = True) -> "DecisionLayer":
        """As for any module; what :mod:`bndl.memory` keeps is forgotten on the way to training."""
        if mode:
            self.memory = None
        super().train(mode)
        return self

    @torch.no_grad()
    def num_weights(self) -> int:
        """How many numbers a decision needs: active Phi entries, and those of the dense map if there is one."""
        count = int((self.weight - self.alpha_phi > ACTIVE_ABOVE).sum())
        return count + (0 if self.dense_map is None else int((self.dense_map.weight.abs() > ACTIVE_ABOVE).sum()))

    def all_weights(self) -> int:
        """How many a decision could use: what :meth:`num_weights` is a share of."""
        return self.weight.numel() + (0 if self.dense_map is None else self.dense_map.weight.numel())

    @torch.no_grad()
    def empty_classes(self) -> list[int]:
        """Classes that lost all their weights: their logit is a constant, no feature can speak for them."""
        return (~(self.weight - self.alpha_phi > ACTIVE_ABOVE).any(dim=1)).nonzero().flatten().tolist()

    def extra_repr(self) -> str:
        """What ``print(model)`` shows."""
        shown = f"{self.in_features}, {self.out_features}, theta_shape={self.theta_shape}, phi_shape={self.phi_shape}"
        extras = [name for name in ("signed",) if getattr(self, name)]
        extras += [f"{a}={getattr(self, a)}" for a in ("alpha_theta", "alpha_phi") if getattr(self, a)]
        extras += [f"origin={self.origin!r}"] if self.origin else []
        return ", ".join([shown, *extras])

    def _shape(self, raw: Tensor) -> Tensor:
        return F.softplus(at_least_float32(raw)) + self.min_shape

    def __getstate__(self) -> dict[str, Any]:
        # the last posterior hangs on an autograd graph, which can be neither copied nor pickled
        return {**self.__dict__, "_last_theta": None, "memory": None}


def _linear(h: Tensor, linear: nn.Linear) -> Tensor:
    # a product of a few columns may add up in another order from row to row: see bndl.draws
    extra = -linear.out_features % 16
    weight, bias = F.pad(linear.weight, (0, 0, 0, extra)), F.pad(linear.bias, (0, extra))
    return F.linear(h, weight.to(h.dtype), bias.to(h.dtype))[..., : linear.out_features]


def _check_settings(
    in_features: int, out_features: int, theta_shape: str, phi_shape: str, alpha_theta: float, alpha_phi: float
) -> None:
    if in_features < 1 or out_features < 1:
        raise InputError(f"a layer needs at least one feature and one class, got {in_features} and {out_features}.")
    for name, value, allowed in (("theta_shape", theta_shape, ThetaShape), ("phi_shape", phi_shape, PhiShape)):
        if value not in get_args(allowed):
            raise InputError(f"{name} must be one of {', '.join(get_args(allowed))}, got {value!r}.")
    for name, alpha in (("alpha_theta", alpha_theta), ("alpha_phi", alpha_phi)):
        if not 0 <= alpha < math.inf:
            raise InputError(f"{name} must be a finite number >= 0, got {alpha}.")

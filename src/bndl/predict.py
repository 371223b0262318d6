r"""One backbone pass -> Prediction: label, probabilities, decision test, and whose doubt it is.

For the two classes a, b with the largest mean logits the difference :math:`d = l_a - l_b` has, in closed form,

.. math:: \mathbb{E}[d] = \mu_a - \mu_b, \qquad
    \mathrm{Var}[d] = \underbrace{\sum_k v_k (m_{ka} - m_{kb})^2}_{\text{aleatoric (theta)}}
    + \underbrace{\sum_k (v_k + m_k^2)(V_{ka} + V_{kb})}_{\text{epistemic (Phi)}}

with :math:`v = m_\theta^2 \mathrm{cv}^2(k_\theta)` and :math:`V = m_\Phi^2 \mathrm{cv}^2(k_\Phi)`.

The decision test asks whether class a is more likely than *all* others together, by the log-odds of the decision,

.. math:: o = l_a - \ln \sum_{c \ne a} e^{l_c}, \qquad \mathbb{E}[o] \approx \mu_a - \ln \sum_{c \ne a} e^{\mu_c}, \qquad
    \mathrm{Var}[o] \approx \sum_k v_k \Bigl(m_{ka} - \sum_{c \ne a} w_c m_{kc}\Bigr)^2
    + \sum_k (v_k + m_k^2) \Bigl(V_{ka} + \sum_{c \ne a} w_c^2 V_{kc}\Bigr)

with :math:`w` the softmax of the other classes' mean logits (first order in the noise). With two classes it is the paper's
test; with more, the paper asks about the runner-up alone, and is certain of decisions that are probably wrong. No
draw is needed for the decision; draws, shared by all examples, are made for the probabilities.
"""

import operator
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any, Literal, SupportsIndex, get_args

import torch
from torch import Tensor, nn

from bndl import draws, student
from bndl.convert import find_layer
from bndl.draws import SharedDraws
from bndl.errors import InputError
from bndl.features import evaluating, features_of, iterate, split_batch
from bndl.layer import ACTIVE_ABOVE, DecisionLayer, Posterior
from bndl.progress import track
from bndl.weibull import cv2

__all__ = ["Prediction", "predict"]

Method = Literal["sample", "closed", "paper"]
Against = Literal["all", "runner-up"]
TEST_SAMPLES = 20  # S of the decision test: a p-value only means something together with its S


@dataclass(frozen=True)
class Prediction:
    """What the model says of B examples, and how sure it is. All tensors are on the CPU.

    Attributes:
        labels: (B,) the decision: the class with the largest mean logit, as ``model.eval()(x).argmax(1)``. It is what the
            tests below and explanations speak of; where it is close, another class may have the largest of ``probs``.
        probs: (B, C) predictive probabilities, averaged over the posterior.
        logits: (B, C) mean logits; what an explanation adds up to.
        runner_up: (B,) the class that came second.
        p_value: (B,) of the t-test, at S = 20 draws, that the decision is more likely than all other classes together; 1
            where it is not. With ``against="runner-up"`` or ``method="paper"``: that the first class beats the second.
        flip_probability: (B,) P(the second class beats the first); at most 1/2, does not depend on S.
        certain: (B,) whether p_value <= level. A difference of exactly zero is uncertain, and so is a decision with no
            active feature, which only the bias made.
        entropy: (B,) of ``probs``, in nats.
        aleatoric: (B,) variance of the first-to-second logit difference that comes from the example's theta.
        epistemic: (B,) variance of the same difference that comes from the model's Phi.
    """

    labels: Tensor
    probs: Tensor
    logits: Tensor
    runner_up: Tensor
    p_value: Tensor
    flip_probability: Tensor
    certain: Tensor
    entropy: Tensor
    aleatoric: Tensor
    epistemic: Tensor

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: SupportsIndex | slice | Tensor | list[int]) -> "Prediction":
        """The chosen examples, as a Prediction (of one example for a single index)."""
        rows = [operator.index(index)] if isinstance(index, SupportsIndex) and not isinstance(index, Tensor) else index
        return Prediction(**{f.name: getattr(self, f.name)[rows] for f in fields(self)})

    @property
    def confidence(self) -> Tensor:
        """(B,) the probability of the decision, ``probs[labels]``."""
        return self.probs.gather(1, self.labels[:, None])[:, 0]


def predict(
    model: nn.Module,
    x: Any,
    *,
    method: Method = "sample",
    against: Against = "all",
    num_samples: int | None = None,
    seed: int = 0,
    level: float = 0.05,
    batch_size: int = 256,
    progress: bool | None = None,
) -> Prediction:
    """Predict, with each example passing the backbone exactly once.

    An example's answer depends on the example, the model and the seed: not on what else is in the batch, nor on the
    batch's size (bit for bit in the head; a backbone may differ in the last bits of float32). Beyond the inputs, the
    features of one batch and the result, a head of up to two million weights needs at most 600 MB.

    Args:
        model: a model with a :class:`bndl.DecisionLayer`, or the layer itself (then ``x`` are features).
        x: a tensor or array (B, ...), a Hugging Face batch (dict), a data set, or a loader of any of these, labelled or
            not (labels are ignored).
        method: ``"sample"``: probabilities from seeded head-only draws, everything else in closed form. ``"closed"``: no
            draw at all, probabilities by the extended probit approximation (fast, less calibrated). ``"paper"``: 20
            draws for everything, the paired t-test on the sampled logits of the first two classes.
        against: what the decision is tested against in closed form: ``"all"`` other classes together, or the
            ``"runner-up"``, as the paper does (see this module's formulas; with two classes it is the same).
        num_samples: draws S for the probabilities; by default 200 (fewer for heads over 330,000 weights), 20 for
            ``"paper"``.
        seed: the same seed gives the same bits.
        level: significance below which a decision is ``certain``.
        batch_size: how many examples of a tensor, dict or data set pass the backbone together.
        progress: whether to show a bar; None: when it takes longer than two seconds and there is a terminal.
    """
    if method not in get_args(Method):
        raise InputError(f"method must be one of {', '.join(get_args(Method))}, got {method!r}.")
    if against not in get_args(Against):
        raise InputError(f"against must be one of {', '.join(get_args(Against))}, got {against!r}.")
    least = 2 if method == "paper" else 1
    if num_samples is not None and num_samples < least:
        raise InputError(f"num_samples must be at least {least} for method={method!r}, got {num_samples}.")
    if not 0 < level < 1:
        raise InputError(f"level is a significance strictly between 0 and 1, got {level}.")
    layer = find_layer(model)
    decider = Decider(layer, method=method, against=against, num_samples=num_samples, seed=seed, level=level)
    if empty := layer.empty_classes():
        warnings.warn(about_empty(empty), stacklevel=2)
    return decide_all(model, x, decider, batch_size=batch_size, progress=progress)


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


def cat(parts: Sequence[Prediction]) -> Prediction:
    """The predictions of several batches as one."""
    return Prediction(**{f.name: torch.cat([getattr(part, f.name) for part in parts]) for f in fields(Prediction)})


@dataclass(frozen=True)
class _Tile:
    """A tile of rows: theta's posterior, mean logits, the best two classes, whether any feature is active,
    the moments of the two classes' difference, and those of the decision's log-odds (TILE,)."""

    theta: Posterior
    logits: Tensor
    first: Tensor
    second: Tensor
    spoken: Tensor
    mean: Tensor
    aleatoric: Tensor
    epistemic: Tensor
    log_odds: Tensor
    log_odds_variance: Tensor


class Decider:
    """The posterior's constants, computed once; features (B, in_features) -> Prediction. Arguments as for predict."""

    @torch.no_grad()
    def __init__(
        self,
        layer: DecisionLayer,
        *,
        method: Method = "sample",
        against: Against = "all",
        num_samples: int | None = None,
        seed: int = 0,
        level: float = 0.05,
    ) -> None:
        _check(layer)
        self.layer, self.method, self.against, self.level = layer, method, against, level
        phi, bias = layer.phi(), layer.offset()
        self.phi_mean, self.phi_variance = phi.mean, phi.variance  # (C, K)
        self.used = (phi.mean > ACTIVE_ABOVE).any(dim=0)  # (K,) features that some class has a weight for
        self.weights = draws.pad_columns(phi.mean.t())
        self.padded_mean, self.padded_variance = draws.pad_columns(phi.mean), draws.pad_columns(phi.variance)
        self.bias = phi.mean.new_zeros(layer.out_features) if bias is None else bias
        default = TEST_SAMPLES if method == "paper" else draws.default_num_samples(layer)
        self.draws = SharedDraws(layer, num_samples or default, seed=seed)

    def __call__(self, features: Tensor) -> Prediction:
        tiles = [self._closed_form(tile) for tile in draws.tiles(features.to(self.phi_mean.dtype))]
        mean, aleatoric, epistemic, log_odds, log_odds_variance = (
            torch.cat([getattr(tile, name) for tile in tiles])
            for name in ("mean", "aleatoric", "epistemic", "log_odds", "log_odds_variance")
        )
        if self.method == "closed":
            probs = torch.cat([self._probit(tile) for tile in tiles])
        else:
            probs, differences = self._sampled(tiles)
        if self.method == "paper":
            p_value = t_test(differences.mean(1), differences.var(1), num_samples=self.draws.num_samples)
            flip = ((differences < 0).double() + 0.5 * (differences == 0)).mean(1)
        else:
            flip = flip_probability(mean, aleatoric + epistemic)
            p_value = t_test(mean, aleatoric + epistemic)
            if self.against == "all" and self.layer.out_features > 2:  # of two classes they are the same test
                likely = probs.gather(1, torch.cat([tile.first for tile in tiles])[:, None])[:, 0] > 0.5
                p_value = torch.where(likely, odds_test(log_odds, log_odds_variance), 1.0)
        padded = Prediction(
            labels=torch.cat([tile.first for tile in tiles]),
            probs=probs,
            logits=torch.cat([tile.logits for tile in tiles]),
            runner_up=torch.cat([tile.second for tile in tiles]),
            p_value=p_value,
            flip_probability=flip,
            certain=p_value <= self.level,
            entropy=torch.special.entr(probs).sum(dim=1),
            aleatoric=aleatoric,
            epistemic=epistemic,
        )
        return Prediction(**{f.name: getattr(padded, f.name)[: len(features)].cpu() for f in fields(Prediction)})

    def _closed_form(self, rows: Tensor) -> _Tile:
        """This module's formulas: three products of B x K x C, and the two classes' rows of Phi gathered."""
        theta = self.layer.theta(rows)
        logits = (theta.mean @ self.weights)[:, : self.layer.out_features] + self.bias
        second_moment = theta.mean.square()
        v = second_moment * cv2(theta.shape)
        first = logits.argmax(dim=1)  # topk breaks ties otherwise than argmax
        others = logits.scatter(1, first[:, None], -torch.inf)
        second = others.argmax(dim=1)
        values = logits.gather(1, torch.stack([first, second], dim=1))
        share, K = others.softmax(dim=1), theta.mean.size(1)
        contrast = self.phi_mean[first] - (share @ self.padded_mean)[:, :K]
        own_and_others = self.phi_variance[first] + (share.square() @ self.padded_variance)[:, :K]
        spoken = ((theta.mean > 0) & self.used).any(dim=1)  # or else the bias decides, and nothing speaks for the class
        gap = self.phi_mean[first] - self.phi_mean[second]
        spread = self.phi_variance[first] + self.phi_variance[second]
        return _Tile(
            theta=theta,
            logits=logits,
            first=first,
            second=second,
            spoken=spoken,
            mean=(values[:, 0] - values[:, 1]) * spoken,
            aleatoric=(v * gap.square()).sum(dim=1),
            epistemic=((v + second_moment) * spread).sum(dim=1),
            log_odds=(values[:, 0] - others.logsumexp(dim=1)) * spoken,
            log_odds_variance=(v * contrast.square() + (v + second_moment) * own_and_others).sum(dim=1),
        )

    def _sampled(self, tiles: list[_Tile]) -> tuple[Tensor, Tensor]:
        """Probabilities (B', C) averaged over the draws, and for the paper's test the sampled differences (B', S)."""
        totals = [torch.zeros_like(tile.logits) for tile in tiles]
        differences: list[list[Tensor]] = [[] for _ in tiles]
        for part in self.draws.slices():
            for tile, total, own in zip(tiles, totals, differences, strict=True):
                logits = part.logits(tile.theta)
                total += logits.softmax(dim=-1).sum(dim=1)
                if self.method == "paper":
                    pair = torch.stack([tile.first, tile.second], dim=1)[:, None].expand(-1, logits.size(1), -1)
                    own.append(-logits.gather(2, pair).diff(dim=2)[..., 0] * tile.spoken[:, None])
        probs = torch.cat(totals) / self.draws.num_samples
        return probs, torch.cat([torch.cat(own, dim=1) for own in differences]) if differences[0] else probs

    def _probit(self, tile: _Tile) -> Tensor:
        r"""softmax of :math:`d_c / \sqrt{1 + \pi\,\mathrm{Var}[d_c] / 8}`, :math:`d_c = l_c - l_{first}` (TILE, C).

        Differences, because what all logits share is no doubt about the class.
        """
        second_moment = tile.theta.mean.square()
        v = second_moment * cv2(tile.theta.shape)
        spread, top = v + second_moment, self.phi_mean[tile.first]
        squares, variances = draws.pad_columns(self.phi_mean.square().t()), draws.pad_columns(self.phi_variance.t())
        from_theta = v @ squares - 2 * ((v * top) @ self.weights) + (v * top.square()).sum(dim=1, keepdim=True)
        from_phi = spread @ variances + (spread * self.phi_variance[tile.first]).sum(dim=1, keepdim=True)
        variance = (from_theta.clamp_min(0) + from_phi)[:, : self.layer.out_features]
        difference = tile.logits - tile.logits.gather(1, tile.first[:, None])
        return (difference / (1 + torch.pi / 8 * variance).sqrt()).softmax(dim=-1)


def _check(layer: DecisionLayer) -> None:
    if layer.out_features == 1:
        raise InputError("a decision needs at least two classes, the layer has one.")
    for name, parameter in layer.named_parameters():
        if torch.isnan(parameter).any() or (name in ("weight", "bias") and torch.isinf(parameter).any()):
            raise InputError(f"the decision layer's {name} holds NaN or infinite values: load or train it again.")


def about_empty(classes: list[int]) -> str:
    """What to say of classes that lost all their weights."""
    return (
        f"class {', '.join(map(str, classes))} has no weight left, so no feature can speak for it: train with a smaller "
        "beta, lower alpha_phi, or give it more examples."
    )


def t_test(mean: Tensor, variance: Tensor, *, num_samples: int = TEST_SAMPLES) -> Tensor:
    """Two-sided p of a paired t-test with this mean and variance of the difference; 1 where the difference is zero."""
    t = mean.double() / (variance.double() / num_samples).sqrt()
    return student.two_sided_p(torch.where(mean == 0, 0.0, t), df=num_samples - 1)


def odds_test(log_odds: Tensor, variance: Tensor, *, num_samples: int = TEST_SAMPLES) -> Tensor:
    """p of a t-test that a decision's log-odds are above zero, at the level of the two-sided one; 1 where they are not."""
    return torch.where(log_odds > 0, t_test(log_odds.clamp_min(0), variance, num_samples=num_samples), 1.0)


def flip_probability(mean: Tensor, variance: Tensor) -> Tensor:
    """P(difference < 0) for a Gaussian difference; 1/2 where it is exactly zero."""
    z = torch.where(mean == 0, 0.0, mean.double() / variance.double().sqrt())
    flip: Tensor = torch.special.ndtr(-z)
    return flip

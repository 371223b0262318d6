r"""Features -> Prediction: the decision, its test in closed form, its probabilities from shared draws.

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

import math
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Literal, get_args

import torch
from torch import Tensor

from bndl import draws, student
from bndl.draws import SharedDraws
from bndl.errors import InputError
from bndl.layer import ACTIVE_ABOVE, DecisionLayer, Posterior
from bndl.portable import erfc, widened
from bndl.prediction import Prediction
from bndl.weibull import cv2

__all__ = [
    "TEST_SAMPLES",
    "Against",
    "Decider",
    "Method",
    "check_settings",
    "flip_probability",
    "odds_test",
    "t_test",
]

Method = Literal["sample", "closed", "paper"]
Against = Literal["all", "runner-up"]
TEST_SAMPLES = 20  # S of the decision test: a p-value only means something together with its S


@dataclass(frozen=True)
class _Block:
    """A block of rows: theta's posterior, mean logits, the best two classes, whether any feature is active,
    the moments of the two classes' difference, the variance of each logit that comes from Phi (B', C), and the moments of
    the decision's log-odds where they are asked for (B',)."""

    theta: Posterior
    logits: Tensor
    first: Tensor
    second: Tensor
    spoken: Tensor
    mean: Tensor
    aleatoric: Tensor
    epistemic: Tensor
    of_phi: Tensor
    odds: Tensor
    odds_variance: Tensor


class Decider:
    """The posterior's constants, computed once; features (B, in_features) -> Prediction. Arguments as for predict;
    ``dense`` as for SharedDraws. It may be traced by ``torch.export``, with the draws as constants."""

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
        dense: bool = False,
    ) -> None:
        _check(layer)
        self.layer, self.method, self.level = layer, method, level
        self.on_odds = (
            against == "all" and layer.out_features > 2 and method != "paper"
        )  # of two classes it is the same
        phi, bias = layer.phi(), layer.offset()
        self.phi_mean = phi.mean  # (C, K)
        self.used = (phi.mean > ACTIVE_ABOVE).any(dim=0).to(phi.mean.dtype)  # (K,) 1: some class has a weight for it
        self.weights = draws.pad_columns(phi.mean.t())
        self.bias = None if bias is None else draws.pad_columns(bias)
        raw = layer.theta_raw_shape
        self.cv2 = None if raw is None else cv2(layer.theta(raw.new_zeros(1, layer.in_features)).shape)  # (K,)
        # what is the same for all examples is multiplied into the weights
        second_moment, cv = (1.0, 1.0) if self.cv2 is None else (1 + self.cv2, self.cv2.sqrt())
        self.variances = draws.pad_columns((phi.variance * second_moment).t())
        self.spread = draws.pad_columns(phi.mean * cv)  # (C, K')
        if method == "closed":
            self.columns = draws.pad_columns((phi.mean * cv).t())  # (K, C')
            self.squares = self.columns.square()
        default = TEST_SAMPLES if method == "paper" else draws.default_num_samples(layer)
        self.draws = SharedDraws(layer, num_samples or default, seed=seed, stratified=method != "paper", dense=dense)

    @torch.no_grad()
    def __call__(self, features: Tensor) -> Prediction:
        """What the model says of B examples."""
        blocks = [self._closed_form(block) for block in draws.blocks(features.to(self.phi_mean.dtype))]
        labels, mean, aleatoric, epistemic = (
            torch.cat([getattr(block, name) for block in blocks])
            for name in ("first", "mean", "aleatoric", "epistemic")
        )
        if self.method == "closed":
            probs = torch.cat([self._probit(block) for block in blocks])
        else:
            probs, differences = self._sampled(blocks)
        if self.method == "paper":
            p_value = t_test(differences.mean(1), differences.var(1), num_samples=self.draws.num_samples)
            flip = ((differences < 0).double() + (differences == 0).double() / 2).mean(1)
        else:
            flip = flip_probability(mean, aleatoric + epistemic)
            p_value = self._odds(blocks, probs, labels) if self.on_odds else t_test(mean, aleatoric + epistemic)
        padded = Prediction(
            labels=labels,
            probs=probs,
            logits=torch.cat([block.logits for block in blocks]),
            runner_up=torch.cat([block.second for block in blocks]),
            p_value=p_value,
            flip_probability=flip,
            certain=p_value <= self.level,
            entropy=-probs.clamp_min(torch.finfo(probs.dtype).tiny).log().mul_(probs).sum(dim=1),
            aleatoric=aleatoric,
            epistemic=epistemic,
        )
        return Prediction(**{f.name: getattr(padded, f.name)[: features.size(0)].cpu() for f in fields(Prediction)})

    @torch.no_grad()
    def decisions(self, features: Tensor) -> tuple[Tensor, Tensor]:
        """Labels (B,) and probabilities (B, C) alone, from the draws, as a call gives them: no test, no variances."""
        thetas = [draws.posterior(self.layer, rows) for rows in draws.blocks(features.to(self.phi_mean.dtype))]
        C, count = self.layer.out_features, len(features)
        logits = torch.cat([draws.product(theta.mean, self.weights, self.bias)[:, :C] for theta in thetas])
        return logits.argmax(dim=1)[:count].cpu(), self._averaged(thetas)[:count].cpu()

    def _odds(self, blocks: list[_Block], probs: Tensor, labels: Tensor) -> Tensor:
        """p of the test against all other classes (B',); 1 where the decision has not half of the probability."""
        mean, variance = (torch.cat([getattr(block, name) for block in blocks]) for name in ("odds", "odds_variance"))
        likely = probs.gather(1, labels[:, None])[:, 0] > 0.5
        return torch.where(likely, odds_test(mean, variance), 1.0)

    def _closed_form(self, rows: Tensor) -> _Block:
        """This module's formulas: three products of B x K x C, and the two classes' rows of Phi gathered."""
        theta, C = draws.posterior(self.layer, rows), self.layer.out_features
        logits = draws.product(theta.mean, self.weights, self.bias)[:, :C]
        second_moment, noisy = theta.mean.square(), self._noisy(theta)
        if self.cv2 is None:
            second_moment += noisy.square()
        of_phi = draws.product(second_moment, self.variances)[:, :C]  # variance of each logit that comes from Phi
        first = logits.argmax(dim=1, keepdim=True)  # topk breaks ties otherwise than argmax
        others = logits.scatter(1, first, -torch.inf)
        second = others.argmax(dim=1, keepdim=True)
        spoken = theta.mean @ self.used > 0  # or else the bias decides, and nothing speaks for the class
        top, next_best = logits.gather(1, first)[:, 0], logits.gather(1, second)[:, 0]
        odds, odds_variance = spoken, spoken
        if self.on_odds:
            share = others.softmax(dim=1)
            odds = (top - next_best + share.gather(1, second)[:, 0].log()) * spoken
            share.scatter_(1, first, -1.0)  # the decision against its rivals
            odds_variance = self._of_theta(noisy, draws.product(share, self.spread))
            odds_variance += share.square_().mul_(of_phi).sum(dim=1)
        gap = self.spread.index_select(0, first[:, 0]).sub_(self.spread.index_select(0, second[:, 0]))
        return _Block(
            theta=theta,
            logits=logits,
            first=first[:, 0],
            second=second[:, 0],
            spoken=spoken,
            mean=(top - next_best) * spoken,
            aleatoric=self._of_theta(noisy, gap),
            epistemic=(of_phi.gather(1, first) + of_phi.gather(1, second))[:, 0],
            of_phi=of_phi,
            odds=odds,
            odds_variance=odds_variance,
        )

    def _noisy(self, theta: Posterior) -> Tensor:
        """Theta (B', K), times the size of its noise where that depends on the example; or else ``spread`` has it."""
        return theta.mean if self.cv2 is not None else theta.mean * cv2(theta.shape).sqrt()

    def _of_theta(self, noisy: Tensor, contrast: Tensor) -> Tensor:
        """Variance (B',) that theta's noise gives a contrast of classes (B', K'), which is overwritten."""
        terms = contrast[:, : noisy.size(1)].mul_(noisy)
        size: Tensor = torch.linalg.vector_norm(terms, dim=1)
        return size.square_()

    def _sampled(self, blocks: list[_Block]) -> tuple[Tensor, Tensor]:
        """Probabilities (B', C) averaged over the draws, and for the paper's test the sampled differences (B', S)."""
        thetas = [block.theta for block in blocks]
        if self.method != "paper":
            probs = self._averaged(thetas)
            return probs, probs
        differences: list[list[Tensor]] = [[] for _ in blocks]

        def compare(index: int, logits: Tensor) -> None:
            block = blocks[index]
            pair = torch.stack([block.first, block.second], dim=1)[:, None].expand(-1, logits.size(1), -1)
            differences[index].append(-logits.gather(2, pair).diff(dim=2)[..., 0] * block.spoken[:, None])

        probs = self._averaged(thetas, compare)
        return probs, torch.cat([torch.cat(own, dim=1) for own in differences])

    def _averaged(self, thetas: list[Posterior], see: Callable[[int, Tensor], None] | None = None) -> Tensor:
        """Probabilities (B', C) averaged over the draws; ``see`` is shown each block's index and logits (B', S', C)."""
        totals = [theta.mean.new_zeros(theta.mean.size(0), self.layer.out_features) for theta in thetas]
        for part in self.draws.slices():
            for index, (theta, total) in enumerate(zip(thetas, totals, strict=True)):
                logits = part.logits(theta)
                total += logits.softmax(dim=-1).sum(dim=1)
                if see is not None:
                    see(index, logits)
        return torch.cat(totals) / self.draws.num_samples

    def _probit(self, block: _Block) -> Tensor:
        r"""softmax of :math:`d_c / \sqrt{1 + \pi\,\mathrm{Var}[d_c] / 8}`, :math:`d_c = l_c - l_{first}` (B', C).

        Differences, because what all logits share is no doubt about the class.
        """
        noisy, C = self._noisy(block.theta).square(), self.layer.out_features
        top = self.spread.index_select(0, block.first)[:, : noisy.size(1)]
        crossed = noisy * top
        from_theta = draws.product(noisy, self.squares)[:, :C] - 2 * draws.product(crossed, self.columns)[:, :C]
        from_theta += crossed.mul_(top).sum(dim=1, keepdim=True)
        variance = from_theta.clamp_min_(0) + block.of_phi + block.of_phi.gather(1, block.first[:, None])
        difference = block.logits - block.logits.gather(1, block.first[:, None])
        return (difference / (1 + torch.pi / 8 * variance).sqrt()).softmax(dim=-1)


def check_settings(method: str, against: str, num_samples: int | None, level: float) -> None:
    """Refuse what predict cannot do."""
    for name, value, allowed in (("method", method, Method), ("against", against, Against)):
        if value not in get_args(allowed):
            raise InputError(f"{name} must be one of {', '.join(get_args(allowed))}, got {value!r}.")
    least = 2 if method == "paper" else 1
    if num_samples is not None and num_samples < least:
        raise InputError(f"num_samples must be at least {least} for method={method!r}, got {num_samples}.")
    if not 0 < level < 1:
        raise InputError(f"level is a significance strictly between 0 and 1, got {level}.")


def _check(layer: DecisionLayer) -> None:
    if layer.out_features == 1:
        raise InputError("a decision needs at least two classes, the layer has one.")
    for name, parameter in layer.named_parameters():
        if torch.isnan(parameter).any() or (name in ("weight", "bias") and torch.isinf(parameter).any()):
            raise InputError(f"the decision layer's {name} holds NaN or infinite values: load or train it again.")


def t_test(mean: Tensor, variance: Tensor, *, num_samples: int = TEST_SAMPLES) -> Tensor:
    """Two-sided p of a paired t-test with this mean and variance of the difference; 1 where the difference is zero."""
    t = widened(mean) / (widened(variance) / num_samples).sqrt()
    return student.two_sided_p(torch.where(mean == 0, 0.0, t), df=num_samples - 1)


def odds_test(log_odds: Tensor, variance: Tensor, *, num_samples: int = TEST_SAMPLES) -> Tensor:
    """p of a t-test that a decision's log-odds are above zero, at the level of the two-sided one; 1 where they are not."""
    return torch.where(log_odds > 0, t_test(log_odds.clamp_min(0), variance, num_samples=num_samples), 1.0)


def flip_probability(mean: Tensor, variance: Tensor) -> Tensor:
    """P(difference < 0) for a Gaussian difference; 1/2 where it is exactly zero."""
    z = torch.where(mean == 0, 0.0, widened(mean) / widened(variance).sqrt())
    return erfc(z * math.sqrt(0.5)) / 2  # ndtr is 0 from z = 9 on, and the surest would be alike

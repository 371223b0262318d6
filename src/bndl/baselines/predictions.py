"""A Prediction out of what other methods have: logits, draws, or a Dirichlet distribution.

The decision is the class with the largest predictive probability. The test is the same for all, ours included: a t-test, at
S = 20 draws, that the decision's log-odds against all other classes together are above zero, from their mean and variance.
"""

import torch
from torch import Tensor

from bndl.decide import flip_probability, odds_test
from bndl.errors import InputError
from bndl.prediction import Prediction

__all__ = ["from_dirichlet", "from_draws", "from_logits"]

_LEVEL = 0.05


def from_logits(logits: Tensor) -> Prediction:
    """A deterministic softmax (B, C): it never doubts a decision that has more than half of the probability."""
    log_probs = logits.double().log_softmax(dim=1)
    first, second = _first_two(logits.double())
    difference, nothing = _difference(log_probs, first, second), log_probs.new_zeros(len(log_probs))
    return _decide(
        log_probs.exp(),
        logits.double(),
        odds=(log_odds(log_probs, first), nothing),
        aleatoric=nothing,
        epistemic=nothing,
        flip=flip_probability(difference, nothing),
    )


def from_draws(draws: Tensor, *, source: str = "epistemic") -> Prediction:
    """The average of sampled softmaxes.

    Args:
        draws: (S, B, C) sampled logits, or log-probabilities.
        source: whose doubt the draws are, ``"epistemic"`` (weights, members) or ``"aleatoric"`` (the label's noise).
    """
    if len(draws) < 2:
        raise InputError(f"a spread takes at least two draws, got {len(draws)}: raise num_samples, or use from_logits.")
    log_probs = draws.double().log_softmax(dim=2)
    probs = log_probs.exp().mean(dim=0)
    first, second = _first_two(probs)
    differences, odds = _difference(log_probs, first, second), log_odds(log_probs, first)
    variance, nothing = differences.var(dim=0), torch.zeros_like(first, dtype=torch.float64)
    flip = ((differences < 0).double() + 0.5 * (differences == 0)).mean(dim=0)
    return _decide(
        probs,
        probs.clamp_min(torch.finfo(probs.dtype).tiny).log(),
        odds=(odds.mean(dim=0), odds.var(dim=0)),
        aleatoric=variance if source == "aleatoric" else nothing,
        epistemic=nothing if source == "aleatoric" else variance,
        flip=flip,
    )


def from_dirichlet(concentration: Tensor) -> Prediction:
    r"""A Dirichlet distribution over the class probabilities, in closed form.

    .. math:: \mathbb{E}[p_c] = \alpha_c / \alpha_0, \quad
        \mathbb{E}[\ln p_a - \ln p_b] = \psi(\alpha_a) - \psi(\alpha_b), \quad
        \mathrm{Var}[\ln p_a - \ln p_b] = \psi'(\alpha_a) + \psi'(\alpha_b)

    and the log-odds of class a have the same form with :math:`\alpha_0 - \alpha_a` in place of :math:`\alpha_b`.

    Args:
        concentration: (B, C), positive.
    """
    alpha = concentration.double()
    probs = alpha / alpha.sum(dim=1, keepdim=True)
    first, second = _first_two(probs)
    pair = alpha.gather(1, torch.stack([first, second], dim=1))
    others = alpha.scatter(1, first[:, None], 0).sum(dim=1)  # the total less a huge first would lose them
    rest = torch.stack([pair[:, 0], others], dim=1)
    (mean, variance), odds = (
        (-torch.digamma(two).diff(dim=1)[:, 0], torch.polygamma(1, two).sum(dim=1)) for two in (pair, rest)
    )
    flip = flip_probability(mean, variance)
    return _decide(probs, probs.log(), odds=odds, aleatoric=torch.zeros_like(mean), epistemic=variance, flip=flip)


def log_odds(log_probs: Tensor, label: Tensor) -> Tensor:
    """ln p / (1 - p) of a class: log-probabilities (..., B, C), labels (B,) -> (..., B)."""
    chosen = label[:, None].expand(*log_probs.size()[:-1], 1)
    others = log_probs.scatter(-1, chosen, -torch.inf).logsumexp(dim=-1)
    return log_probs.gather(-1, chosen)[..., 0] - others


def _difference(log_probs: Tensor, first: Tensor, second: Tensor) -> Tensor:
    """Of two classes' log-probabilities (..., B, C) -> (..., B)."""
    pair = torch.stack([first, second], dim=1).expand(*log_probs.size()[:-1], 2)
    return -log_probs.gather(-1, pair).diff(dim=-1)[..., 0]


def _first_two(scores: Tensor) -> tuple[Tensor, Tensor]:
    first = scores.argmax(dim=1)
    return first, scores.scatter(1, first[:, None], -torch.inf).argmax(dim=1)


def _decide(
    probs: Tensor,
    logits: Tensor,
    *,
    odds: tuple[Tensor, Tensor],
    aleatoric: Tensor,
    epistemic: Tensor,
    flip: Tensor,
) -> Prediction:
    first, second = _first_two(logits)
    p_value = odds_test(*odds)
    return Prediction(
        labels=first.cpu(),
        probs=probs.cpu(),
        logits=logits.float().cpu(),
        runner_up=second.cpu(),
        p_value=p_value.cpu(),
        flip_probability=flip.cpu(),
        certain=(p_value <= _LEVEL).cpu(),
        entropy=torch.special.entr(probs).sum(dim=1).float().cpu(),
        aleatoric=aleatoric.float().cpu(),
        epistemic=epistemic.float().cpu(),
    )

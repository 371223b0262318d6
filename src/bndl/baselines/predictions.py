"""A Prediction out of what other methods have: logits, draws, or a Dirichlet distribution.

The decision is the class with the largest predictive probability. The test is the same for all: a paired t-test of the first
two classes' log-scores at S = 20 draws, from the mean and variance of their difference.
"""

import torch
from torch import Tensor

from bndl.errors import InputError
from bndl.predict import Prediction, flip_probability, t_test

__all__ = ["from_dirichlet", "from_draws", "from_logits"]

_LEVEL = 0.05


def from_logits(logits: Tensor) -> Prediction:
    """A deterministic softmax (B, C): it never doubts a decision, unless the first two classes are equal."""
    log_probs = logits.double().log_softmax(dim=1)
    nothing = log_probs.new_zeros(len(log_probs))
    return _decide(log_probs.exp(), logits.double(), mean=None, aleatoric=nothing, epistemic=nothing)


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
    pair = torch.stack([first, second], dim=1).expand(len(draws), -1, -1)
    differences = -log_probs.gather(2, pair).diff(dim=2)[..., 0]
    variance, nothing = differences.var(dim=0), torch.zeros_like(first, dtype=torch.float64)
    flip = ((differences < 0).double() + 0.5 * (differences == 0)).mean(dim=0)
    return _decide(
        probs,
        probs.clamp_min(torch.finfo(probs.dtype).tiny).log(),
        mean=differences.mean(dim=0),
        aleatoric=variance if source == "aleatoric" else nothing,
        epistemic=nothing if source == "aleatoric" else variance,
        flip=flip,
    )


def from_dirichlet(concentration: Tensor) -> Prediction:
    r"""A Dirichlet distribution over the class probabilities, in closed form.

    .. math:: \mathbb{E}[p_c] = \alpha_c / \alpha_0, \quad
        \mathbb{E}[\ln p_a - \ln p_b] = \psi(\alpha_a) - \psi(\alpha_b), \quad
        \mathrm{Var}[\ln p_a - \ln p_b] = \psi'(\alpha_a) + \psi'(\alpha_b)

    Args:
        concentration: (B, C), positive.
    """
    alpha = concentration.double()
    probs = alpha / alpha.sum(dim=1, keepdim=True)
    pair = torch.stack(_first_two(probs), dim=1)
    chosen = alpha.gather(1, pair)
    mean = -torch.digamma(chosen).diff(dim=1)[:, 0]
    variance = torch.polygamma(1, chosen).sum(dim=1)
    return _decide(probs, probs.log(), mean=mean, aleatoric=torch.zeros_like(mean), epistemic=variance)


def _first_two(scores: Tensor) -> tuple[Tensor, Tensor]:
    first = scores.argmax(dim=1)
    return first, scores.scatter(1, first[:, None], -torch.inf).argmax(dim=1)


def _decide(
    probs: Tensor,
    logits: Tensor,
    *,
    mean: Tensor | None,
    aleatoric: Tensor,
    epistemic: Tensor,
    flip: Tensor | None = None,
) -> Prediction:
    first, second = _first_two(logits)
    if mean is None:
        mean = -logits.gather(1, torch.stack([first, second], dim=1)).diff(dim=1)[:, 0]
    variance = aleatoric + epistemic
    p_value = t_test(mean, variance)
    return Prediction(
        labels=first.cpu(),
        probs=probs.cpu(),
        logits=logits.float().cpu(),
        runner_up=second.cpu(),
        p_value=p_value.cpu(),
        flip_probability=(flip_probability(mean, variance) if flip is None else flip).cpu(),
        certain=(p_value <= _LEVEL).cpu(),
        entropy=torch.special.entr(probs).sum(dim=1).float().cpu(),
        aleatoric=aleatoric.float().cpu(),
        epistemic=epistemic.float().cpu(),
    )

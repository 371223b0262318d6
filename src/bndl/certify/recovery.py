"""Find a non-negative factorisation blindly, and compare its columns with the true ones."""

import warnings
from dataclasses import dataclass

import torch
from torch import Tensor

from bndl.errors import InputError, MissingExtraError

__all__ = ["Factors", "factorize", "match"]


@dataclass(frozen=True)
class Factors:
    """A non-negative factorisation: theta (N, K), phi (K, C), and |X - theta phi| / |X|."""

    theta: Tensor
    phi: Tensor
    residual: float


def factorize(logits: Tensor, size: int, *, restarts: int = 5, seed: int = 0, max_steps: int = 5000) -> list[Factors]:
    """Non-negative factorisations of a matrix (N, C) from random starts, by coordinate descent; the best one first.

    Args:
        logits: non-negative.
        size: number of features K.
        restarts: how many starts.
        seed: of the starts.
        max_steps: sweeps over all entries, a start.
    """
    try:
        from sklearn.decomposition import NMF
    except ImportError as error:
        raise MissingExtraError("recovering planted features", extra="sklearn") from error
    if logits.dim() != 2 or not (logits >= 0).all():
        raise InputError("only a non-negative matrix (N, C) can be factorised: shift each sample's logits first.")
    X, found = logits.double().numpy(), []
    for start in range(restarts):
        state = (seed * 1000 + start) % 2**32
        solver = NMF(size, init="random", random_state=state, tol=1e-10, max_iter=max_steps)
        with warnings.catch_warnings():  # that it would like more steps is what the residual says
            warnings.simplefilter("ignore")
            theta = torch.from_numpy(solver.fit_transform(X))
        phi = torch.from_numpy(solver.components_)
        residual = float((logits - theta @ phi).norm() / logits.norm().clamp_min(1e-300))
        found.append(Factors(theta, phi, residual))
    return sorted(found, key=lambda own: own.residual)


def match(found: Tensor, truth: Tensor) -> Tensor:
    """Cosines (K,) of the true columns (N, K) with the found ones, matched one to one so that they add up to the most.

    Columns are scaled to length one first, so neither order nor scale matters.
    """
    try:
        from scipy.optimize import linear_sum_assignment
    except ImportError as error:
        raise MissingExtraError("matching features", extra="sklearn") from error
    cosines = torch.nn.functional.normalize(truth.double(), dim=0).T @ torch.nn.functional.normalize(
        found.double(), dim=0
    )
    rows, columns = linear_sum_assignment(-cosines.numpy())
    matched = torch.zeros(truth.size(1), dtype=torch.float64)
    matched[torch.from_numpy(rows)] = cosines[torch.from_numpy(rows), torch.from_numpy(columns)]
    return matched

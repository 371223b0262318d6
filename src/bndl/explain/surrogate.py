r"""The linear stand-in of LIME: one weighted ridge regression with all K outputs on its right-hand side.

With masks :math:`z_n \in \{0, 1\}^M` (1: it is there), outputs :math:`y_n \in \mathbb{R}^K`, kernel weights :math:`w_n`:

.. math:: \min_{\beta, \beta_0} \sum_n w_n (y_{nk} - \beta_{0k} - z_n^\top \beta_k)^2 + \alpha \lVert \beta_k \rVert^2,
    \qquad (\tilde Z^\top W \tilde Z + \alpha I)\,\beta = \tilde Z^\top W \tilde Y

(a tilde: less its weighted mean). The matrix on the left is M x M and the same for all K: one Cholesky factor serves all.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from bndl.errors import InputError
from bndl.explain.ranks import overlap, spearman

__all__ = ["KERNEL_WIDTH", "Surrogate", "fit_surrogate", "kernel_weights", "perturbations"]

KERNEL_WIDTH = 0.25  # of the lime package, for images
RIDGE = 1.0  # of the lime package
_CONSTANT = 1e-12  # an output whose variance is below this share of its mean square does not vary: float noise


@dataclass(frozen=True)
class Surrogate:
    """Linear stand-ins of K outputs over M parts, in float64 on the CPU.

    Attributes:
        coefficients: (K, M) by how much a part raises the output when it is there.
        intercept: (K,) the output with every part switched off, as the stand-in has it.
        r2: (K,) share of the output's weighted variance over the perturbations that the stand-in explains; NaN where the
            output did not vary. Small: do not believe the coefficients.
        stability: (K,) rank correlation of the coefficients of two halves of the perturbations; NaN as for ``r2``.
        overlap: (K,) share of the 10 largest coefficients that both halves agree on; NaN as for ``r2``.
    """

    coefficients: Tensor
    intercept: Tensor
    r2: Tensor
    stability: Tensor
    overlap: Tensor


def perturbations(num_parts: int, num_perturbations: int, *, seed: int = 0) -> Tensor:
    """Which parts are there, (N, M) bool: each with probability 1/2 as in the ``lime`` package; all in the first row."""
    if num_parts < 2:
        raise InputError(f"there is nothing to compare in {num_parts} part: cut the input into two parts or more.")
    if num_perturbations < 4:
        raise InputError(
            f"num_perturbations must be at least 4, to compare two halves of them; got {num_perturbations}."
        )
    generator = torch.Generator().manual_seed(seed)
    masks = torch.randint(2, (num_perturbations, num_parts), generator=generator).bool()
    masks[0] = True
    return masks


def kernel_weights(masks: Tensor, *, width: float = KERNEL_WIDTH) -> Tensor:
    r"""How much each perturbation (N, M) counts, by its cosine distance to the whole: (N,) float64.

    .. math:: w = \sqrt{\exp(-d^2 / \text{width}^2)}, \qquad d = 1 - \sqrt{\textstyle\sum_m z_m / M}

    The square root is that of the ``lime`` package.
    """
    if not width > 0:
        raise InputError(f"kernel_width must be above 0, got {width}.")
    distance = 1 - (masks.double().mean(dim=1)).sqrt()
    return torch.exp(-(distance**2) / width**2).sqrt()


def fit_surrogate(masks: Tensor, outputs: Tensor, *, weights: Tensor, alpha: float = RIDGE) -> Surrogate:
    """Fit all outputs at once, and once more to each half of the perturbations.

    Args:
        masks: (N, M) bool, the whole input in the first row.
        outputs: (N, K).
        weights: (N,) of :func:`kernel_weights`.
        alpha: ridge penalty.
    """
    Z, Y, w = masks.double(), outputs.double(), weights.double()
    coefficients, intercept, varies = _ridge(Z, Y, w, alpha)
    r2 = _r2(Y, intercept + Z @ coefficients, w)
    halves = []
    for start in (0, 1):
        rows = torch.arange(1 + start, len(Z), 2)
        rows = torch.cat([torch.zeros(1, dtype=torch.int64), rows])  # the whole belongs to both
        halves.append(_ridge(Z[rows], Y[rows], w[rows], alpha)[0].t().contiguous())
    unknown = torch.full_like(r2, torch.nan)
    return Surrogate(
        coefficients=coefficients.t().contiguous(),
        intercept=intercept,
        r2=torch.where(varies, r2, unknown),
        stability=torch.where(varies, spearman(*halves), unknown),
        overlap=torch.where(varies, overlap(*halves), unknown),
    )


def _ridge(Z: Tensor, Y: Tensor, w: Tensor, alpha: float) -> tuple[Tensor, Tensor, Tensor]:
    """Coefficients (M, K), intercept (K,), and whether each output varies (K,); zero coefficients where it does not."""
    share = w / w.sum()
    z_mean, y_mean = share @ Z, share @ Y
    Z, Y = Z - z_mean, Y - y_mean
    varies = share @ Y.square() > _CONSTANT * y_mean.square()
    weighted = (Z * w[:, None]).t()
    gram = weighted @ Z
    gram.diagonal().add_(alpha)
    coefficients = torch.cholesky_solve(weighted @ Y, torch.linalg.cholesky(gram)) * varies
    return coefficients, y_mean - z_mean @ coefficients, varies


def _r2(Y: Tensor, fitted: Tensor, w: Tensor) -> Tensor:
    centred = Y - (w / w.sum()) @ Y
    return 1 - (w @ (Y - fitted).square()) / (w @ centred.square())

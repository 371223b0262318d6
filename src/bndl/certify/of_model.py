"""``certify``: which features of a model, or of two matrices, are provably the only ones that explain its logits."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from bndl.certify.judge import Judge
from bndl.certify.record import Certificate, Thresholds, check_threshold
from bndl.certify.stream import see
from bndl.convert import find_layer
from bndl.errors import InputError
from bndl.features import FeatureSet, evaluating, features_of, iterate, split_batch
from bndl.progress import track

__all__ = ["certify", "certify_factors"]

TOLERANCES = (0.0, 1e-6, 1e-4, 1e-3, 1e-2, 1e-1)
RANK_TOLERANCES = (1e-7, 1e-6, 1e-4, 1e-2)
MAX_ROWS = 65_536


def certify(
    model: nn.Module,
    data: Any,
    *,
    tolerance: float = 1e-6,
    rank_tolerance: float = 1e-6,
    min_cosine: float = 0.99,
    tolerances: Sequence[float] = TOLERANCES,
    rank_tolerances: Sequence[float] = RANK_TOLERANCES,
    max_rows: int = MAX_ROWS,
    batch_size: int = 256,
    seed: int = 0,
    progress: bool | None = None,
) -> Certificate:
    """Say which features are identifiable, each example passing the backbone once.

    Theta (N, K) are the posterior means of the features, Phi (K, C) those of the weights, both in float32; the
    certificate is about their product, the mean logits without the bias. It holds for every exact non-negative
    factorisation of that matrix with as many features, and for no more: see docs/theory.md.

    Args:
        model: a network with a :class:`bndl.DecisionLayer`, or such a layer on features.
        data: examples, labels are ignored: a loader, a data set, a tensor or array, a pair, or a
            :class:`bndl.features.FeatureSet` of this model's features.
        tolerance: see :class:`bndl.certify.Thresholds`.
        rank_tolerance: see there.
        min_cosine: see there.
        tolerances: further tolerances for the table of sensitivity.
        rank_tolerances: further ones of the rank.
        max_rows: samples kept to search for witnesses, chosen by the seed; memory is ``4 * max_rows * K`` bytes at most.
        batch_size: examples a pass, unless ``data`` is a loader.
        seed: of the samples that are kept.
        progress: whether to show bars; None: when it takes longer than two seconds and there is a terminal.
    """
    thresholds = Thresholds(tolerance, rank_tolerance, min_cosine)
    if not isinstance(model, nn.Module):
        raise InputError(f"certify takes a model, an nn.Module with a decision layer, not {type(model).__name__}.")
    layer = find_layer(model)
    with evaluating(model):
        phi = layer.phi().mean.T
        return _certificate(
            _thetas(model, data, batch_size=batch_size, progress=progress),
            phi,
            thresholds=thresholds,
            tables=(tolerances, rank_tolerances),
            max_rows=max_rows,
            seed=seed,
            progress=progress,
        )


def certify_factors(
    theta: Tensor | Iterable[Tensor],
    phi: Tensor,
    *,
    tolerance: float = 1e-6,
    rank_tolerance: float = 1e-6,
    min_cosine: float = 0.99,
    tolerances: Sequence[float] = TOLERANCES,
    rank_tolerances: Sequence[float] = RANK_TOLERANCES,
    max_rows: int = MAX_ROWS,
    seed: int = 0,
    progress: bool | None = False,
) -> Certificate:
    """The same for two matrices: theta (N, K), or batches of its rows, and phi (K, C). Signed ones are refused."""
    if not isinstance(phi, Tensor) or phi.dim() != 2 or 0 in phi.size() or phi.is_complex():
        dims = f"{phi.dtype} with dims {tuple(phi.size())}" if isinstance(phi, Tensor) else type(phi).__name__
        raise InputError(f"phi must be a real matrix (K, C), a tensor, got {dims}.")
    if not isinstance(theta, Iterable):
        raise InputError(
            f"theta must be a real matrix (N, K), a tensor, or batches of rows, got {type(theta).__name__}."
        )
    batches = theta.split(4096) if isinstance(theta, Tensor) and theta.dim() == 2 else theta
    return _certificate(
        [batches] if isinstance(batches, Tensor) else batches,
        phi,
        thresholds=Thresholds(tolerance, rank_tolerance, min_cosine),
        tables=(tolerances, rank_tolerances),
        max_rows=max_rows,
        seed=seed,
        progress=progress,
    )


def _thetas(model: nn.Module, data: Any, *, batch_size: int, progress: bool | None) -> Iterator[Tensor]:
    """Posterior means of theta (B, K), batch by batch."""
    layer = find_layer(model)
    if isinstance(data, FeatureSet):
        model, data = layer, data.features
    for batch in track(iterate(data, batch_size=batch_size), "certify", progress=progress):
        features = features_of(model, split_batch(batch)[0])
        yield layer.theta(features.to(layer.phi().mean)).mean


def _certificate(
    batches: Iterable[Tensor],
    phi: Tensor,
    *,
    thresholds: Thresholds,
    tables: tuple[Sequence[float], Sequence[float]],
    max_rows: int,
    seed: int,
    progress: bool | None,
) -> Certificate:
    """Of batches of theta (B, K) and phi (K, C)."""
    _check(tables, max_rows=max_rows, seed=seed)
    phi = phi.detach().cpu().float()
    if not torch.isfinite(phi).all():
        raise InputError("phi holds NaN or infinite values: load or train the model again.")
    units = phi.abs().amax(dim=1)
    kept = (units > 0).nonzero().flatten()
    if not len(kept):
        raise InputError(
            "phi is zero throughout, there is no feature to certify: train with a smaller beta or alpha_phi."
        )
    units, weights = units[kept], (phi[kept] / units[kept][:, None]).T.contiguous()
    seen = see(
        (_columns(theta, kept, len(phi)) for theta in batches),
        weights,
        units=units,
        tolerance=thresholds.tolerance,
        max_rows=max_rows,
        seed=seed,
    )
    signed = seen.signed or bool((weights < 0).any())
    judge = Judge(seen, weights, signed=signed, kept=kept, progress=progress)
    return judge.certificate(thresholds, num_features=len(phi), tolerances=tables[0], rank_tolerances=tables[1])


def _check(tables: tuple[Sequence[float], Sequence[float]], *, max_rows: int, seed: int) -> None:
    for name, values in zip(("tolerances", "rank_tolerances"), tables, strict=True):
        if not isinstance(values, Iterable) or isinstance(values, str | bytes):
            raise InputError(f"{name} must be several numbers, such as (1e-6, 1e-4), got {values!r}.")
        for own in values:
            check_threshold(name, own)
    if not isinstance(max_rows, int) or max_rows < 1:
        raise InputError(f"max_rows must be a whole number of at least 1, got {max_rows!r}.")
    if not isinstance(seed, int):
        raise InputError(f"seed must be a whole number, got {seed!r}.")


def _columns(theta: Tensor, kept: Tensor, width: int) -> Tensor:
    if isinstance(theta, Tensor) and theta.is_complex():
        raise InputError(f"theta must be real, got {theta.dtype}: take its absolute values, if that is what is meant.")
    if not isinstance(theta, Tensor) or theta.dim() != 2 or theta.size(1) != width:
        dims = tuple(theta.size()) if isinstance(theta, Tensor) else type(theta).__name__
        raise InputError(f"theta must have dims (N, {width}), one column a row of phi, got {dims}.")
    return theta.detach().cpu()[:, kept]

"""The verdict and the curves of the report, as :func:`bndl.evaluate` measured them."""

import numpy as np
from torch import Tensor

from bndl.evaluation import Evaluation
from bndl.metrics.examples import Examples
from bndl.report.schema import Array, Counts, Decile, ReliabilityBin, Risk, Trust, Verdict

__all__ = ["LEVEL", "deciles_of", "trust_of", "verdict_of"]

LEVEL = 0.05  # of PAvPU, and below which a decision is called certain
_ORDERS = ("flip_probability", "confidence")  # what deciles are by: the first that tells examples apart


def verdict_of(evaluation: Evaluation) -> Verdict:
    """The figures at the top; None for what was not measured."""
    certainty = next((one for one in evaluation.pavpu if one.level == LEVEL), None)
    sparsity = evaluation.sparsity
    return Verdict(
        accuracy=evaluation.figures.get("accuracy"),
        pavpu=None if certainty is None else certainty.value,
        pavpu_baseline=None if certainty is None else certainty.baseline,
        ece=evaluation.figures.get("ece"),
        nll=evaluation.figures.get("nll"),
        nnz=None if sparsity is None else sparsity.nnz,
        weights_per_class=None if sparsity is None else sparsity.weights_per_class,
        features_per_decision=None if sparsity is None else sparsity.features_per_decision,
    )


def deciles_of(evaluation: Evaluation, examples: Examples) -> tuple[str, Tensor, Array]:
    """What the deciles are by, that uncertainty (N,), and which decile each example is in (N,) uint8, 0 the surest.

    Examples of equal uncertainty stay in their order; the accuracy of a decile counts them by their mean, as ever.
    """
    by = next(name for name in _ORDERS if name in evaluation.deciles)
    unsure = examples.flip_probability if by == "flip_probability" else 1 - examples.confidence
    order = unsure.argsort(stable=True).numpy()
    sizes = evaluation.deciles[by].count
    decile: Array = np.empty(len(order), dtype=np.uint8)
    decile[order] = np.repeat(np.arange(len(sizes), dtype=np.uint8), sizes)
    return by, unsure, decile


def trust_of(evaluation: Evaluation, examples: Examples) -> Trust:
    """Deciles, the reliability diagram, the risk-coverage curve, and PAvPU's four counts."""
    by, unsure, decile = deciles_of(evaluation, examples)
    groups, values = evaluation.deciles[by], unsure.numpy()
    deciles = tuple(
        Decile(count, right.value, right.low, right.high, float(own.min()), float(own.max()))
        for number, (count, right) in enumerate(zip(groups.count, groups.accuracy, strict=True))
        if len(own := values[decile == number])
    )
    bins = evaluation.reliability
    upper = (*bins.lower[1:], 1.0)
    rows = zip(bins.lower, upper, bins.count, bins.confidence, bins.accuracy, strict=True)
    counts = next(one.counts for one in evaluation.pavpu if one.level == LEVEL)
    return Trust(
        by=by,
        deciles=deciles,
        reliability=tuple(ReliabilityBin(low, high, n, sure, right.value) for low, high, n, sure, right in rows),
        risk=Risk(evaluation.risk_coverage.coverage, tuple(one.value for one in evaluation.risk_coverage.risk)),
        counts=Counts(
            certain_right=counts.accurate_certain,
            certain_wrong=counts.inaccurate_certain,
            uncertain_right=counts.accurate_uncertain,
            uncertain_wrong=counts.inaccurate_uncertain,
        ),
    )

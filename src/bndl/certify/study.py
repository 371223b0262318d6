"""Does the certificate keep its word? Planted problems over seeds: certified against recovered; controls: refused."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from bndl.certify import synthetic
from bndl.certify.of_model import certify_factors
from bndl.certify.record import Certificate
from bndl.certify.recovery import factorize, match
from bndl.progress import track

__all__ = ["RECOVERED", "VIEWS", "Column", "Control", "Study", "study"]

RECOVERED = 0.99  # cosine from which on a column counts as recovered
EXACT = 1e-6  # residual up to which a factorisation counts as exact
# how the planted logits are seen: the channel, and whether a class that no feature speaks for anchors the softmax
VIEWS = {
    "exact": ("exact", True),
    "noise of 1 %": ("noisy", True),
    "probabilities": ("probabilities", True),
    "10,000 labels each": ("labels", True),
    "probabilities, no anchor": ("probabilities", False),
}


@dataclass(frozen=True)
class Column:
    """One planted column of theta, or row of Phi, and how well it was found again.

    Attributes:
        seed: of the problem.
        view: how the logits were seen.
        side: "theta" or "phi".
        feature: its number.
        certified: whether the certificate says identifiable.
        cosine: with the column found for it; of several exact factorisations, the worst.
        solutions: factorisations behind that: all exact ones, or the best one where none is exact.
        residual: of the best one.
    """

    seed: int
    view: str
    side: str
    feature: int
    certified: bool
    cosine: float
    solutions: int
    residual: float


@dataclass(frozen=True)
class Control:
    """What was said of a problem where nothing may be certified.

    Attributes:
        name: of the control.
        seed: of the problem.
        certified: findings, of theta and Phi, that say identifiable.
        counted: features that a window and r - 1 zeros, counted without a rank, would pass.
        moved: the smallest cosine of a feature with its counterpart in another exact factorisation; nan: none was sought.
        reason: that the first feature was given.
    """

    name: str
    seed: int
    certified: int
    counted: int
    moved: float
    reason: str


@dataclass(frozen=True)
class Study:
    """All columns and controls."""

    columns: tuple[Column, ...]
    controls: tuple[Control, ...] = field(default=())

    def share(self, view: str, *, side: str, certified: bool) -> tuple[int, int]:
        """How many of the (un)certified columns were recovered, and how many there are."""
        own = [c for c in self.columns if (c.view, c.side, c.certified) == (view, side, certified)]
        return sum(column.cosine > RECOVERED for column in own), len(own)


def study(
    seeds: Sequence[int] = tuple(range(20)),
    *,
    views: Sequence[str] = tuple(VIEWS),
    restarts: int = 3,
    progress: bool | None = None,
    **settings: Any,
) -> Study:
    """Plant, certify, factorise blindly, match; then the controls.

    Args:
        seeds: one problem each.
        views: names of :data:`VIEWS`.
        restarts: random starts of the factorisation, a problem and view.
        progress: as in :func:`bndl.progress.track`.
        **settings: of :func:`bndl.certify.synthetic.planted`.
    """
    columns: list[Column] = []
    for seed, view in track([(seed, view) for seed in seeds for view in views], "planted", progress=progress):
        columns += _columns(seed, view, restarts=restarts, settings=settings)
    pairs = [(name, seed) for name in synthetic.CONTROLS for seed in seeds]
    return Study(tuple(columns), tuple(_control(*pair) for pair in track(pairs, "controls", progress=progress)))


def _columns(seed: int, view: str, *, restarts: int, settings: dict[str, Any]) -> list[Column]:
    channel, anchored = VIEWS[view]
    problem = synthetic.planted(seed=seed, anchored=anchored, **settings)
    said = _certify(problem)
    seen = synthetic.observe(problem, channel, seed=seed)
    found = factorize(seen, len(problem.phi), restarts=restarts, seed=seed, max_steps=5000 if view == "exact" else 1000)
    accepted = [own for own in found if own.residual < EXACT] or found[:1]
    columns = []
    for side, certified in (("theta", said.identifiable), ("phi", said.identifiable_rows)):
        pairs = [(own.theta, problem.theta) if side == "theta" else (own.phi.T, problem.phi.T) for own in accepted]
        worst = [min(cosines) for cosines in zip(*(match(*pair).tolist() for pair in pairs), strict=True)]
        columns += [
            Column(seed, view, side, feature, feature in certified, cosine, len(accepted), found[0].residual)
            for feature, cosine in enumerate(worst)
        ]
    return columns


def _control(name: str, seed: int) -> Control:
    problem = synthetic.CONTROLS[name](seed)
    said = _certify(problem)
    moved = math.nan
    if name != "signed weights":
        moved = float(match(synthetic.disguised(problem, rounds=5, seed=seed).theta, problem.theta).min())
    certified = len(said.identifiable) + len(said.identifiable_rows)
    return Control(name, seed, certified, synthetic.counts_zeros(problem), moved, said.theta[0].reason)


def _certify(problem: synthetic.Problem) -> Certificate:
    return certify_factors(problem.theta, problem.phi, tolerances=(), rank_tolerances=())

"""From what was seen to verdicts: both conditions, for each feature and each row of Phi, with reasons in words."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import torch
from torch import Tensor

from bndl.certify.conditions import guaranteed_cosine, purest, scaled, zero_region
from bndl.certify.record import Certificate, Finding, Sensitivity, Thresholds, Window, ZeroRegion
from bndl.certify.stream import SEARCH_UP_TO, Seen
from bndl.progress import track

__all__ = ["Judge"]

_NAMED = 3  # features that a reason names
_Key: TypeAlias = tuple[str, int, int, int, int]  # side, feature, zeros, rows they are among, window


@dataclass(frozen=True)
class _Side:
    """One of the two factors: where its windows are found, and where its zeros are.

    Attributes:
        name: "theta" or "phi".
        witness: what a window is called: "class" for theta, "sample" for Phi.
        others: what the rows of the zero region are called: "samples" for theta, "classes" for Phi.
        window: (K,), which row of the other factor uses the feature most nearly alone; -1: it leads none.
        window_rows: (K, K), these rows, scaled.
        leakage: (K,), what others have there.
        rows: (n, K), scaled, where zeros are looked for; None: they were not kept.
        ids: (n,), what these rows are called.
        lengths: (K,), norms of the factor's columns.
    """

    name: str
    witness: str
    others: str
    window: Tensor
    window_rows: Tensor
    leakage: Tensor
    rows: Tensor | None
    ids: Tensor
    lengths: Tensor


@dataclass(frozen=True)
class _Found:
    num_active: int
    rank: int
    reason: str
    theta: tuple[Finding, ...]
    phi: tuple[Finding, ...]


class Judge:
    """Verdicts at any thresholds, testing no zero region twice.

    A feature takes part unless it is exactly zero: what is merely small may be large elsewhere, or make up the rank.

    Args:
        seen: of the samples.
        weights: (C, K), Phi transposed, in units of each feature's largest one.
        signed: whether a factor has negative entries.
        kept: (K,), numbers of these features in the layer.
        progress: as in :func:`bndl.progress.track`.
    """

    def __init__(
        self, seen: Seen, weights: Tensor, *, signed: bool, kept: Tensor, progress: bool | None = None
    ) -> None:
        self.seen, self.weights, self.signed, self.kept = seen, weights, signed, kept
        self.num_classes, self.progress = len(weights), progress
        self.active = seen.active.nonzero().flatten()
        self._first: dict[_Key, float] = {}
        self._tested: dict[tuple[_Key, bool], tuple[ZeroRegion, float | None]] = {}

    def certificate(
        self, thresholds: Thresholds, *, num_features: int, tolerances: Sequence[float], rank_tolerances: Sequence[float]
    ) -> Certificate:  # fmt: skip
        """All verdicts, and how many there would be at other thresholds."""
        found, seen = self._found(thresholds), self.seen
        pairs = [(own, thresholds.rank_tolerance) for own in sorted({*tolerances, thresholds.tolerance})]
        pairs += [(thresholds.tolerance, own) for own in sorted({*rank_tolerances} - {thresholds.rank_tolerance})]
        table = []
        for tolerance, rank_tolerance in pairs:
            own = replace(thresholds, tolerance=tolerance, rank_tolerance=rank_tolerance)
            table.append(_row(self._found(own), own))
        return Certificate(
            num_examples=seen.count,
            num_searched=0 if seen.rows is None else len(seen.rows),
            num_silent=seen.silent,
            num_features=num_features,
            num_classes=self.num_classes,
            num_active=found.num_active,
            rank=found.rank,
            reason=found.reason,
            anchored=seen.anchored / seen.count,
            thresholds=thresholds,
            theta=found.theta,
            phi=found.phi,
            sensitivity=tuple(table),
        )

    def _found(self, thresholds: Thresholds) -> _Found:
        active = self.active
        rank = int((self.seen.spectrum > thresholds.rank_tolerance).sum())
        reason = self._why_not(len(active), rank)
        sides = _sides(self.seen, self.weights, active=active, tolerance=thresholds.tolerance)
        theta, phi = (self._findings(side, active, thresholds, reason) for side in sides)
        return _Found(len(active), rank, reason, theta, phi)

    def _why_not(self, num_active: int, rank: int) -> str:
        """Why the theorem says nothing here; empty where it does."""
        if self.signed:
            return "there are negative entries, and the theorem is about non-negative factors"
        if num_active > self.num_classes:
            return f"{num_active} active features are more than {self.num_classes} classes, so Theta Phi has a smaller rank"
        if rank != num_active:  # more would be rounding noise
            return f"Theta Phi has rank {rank}, which is not the number of active features, {num_active}"
        return "" if num_active else "no feature is active"

    def _findings(self, side: _Side, active: Tensor, thresholds: Thresholds, reason: str) -> tuple[Finding, ...]:
        found, counts = [], _zero_counts(side, self.seen, tolerance=thresholds.tolerance)
        for feature in track(active.tolist(), f"zero regions of {side.name}", progress=self.progress):
            leakage = float(side.leakage[feature])
            window = Window(int(side.window[feature]), leakage, leakage <= thresholds.tolerance)
            wanted = len(active) <= SEARCH_UP_TO or (window.holds and not reason)
            zeros = ZeroRegion(counts[feature], len(active) - 1)
            region, cosine = self._region(side, feature, active, thresholds, zeros) if wanted else (zeros, None)
            region = replace(region, absent=tuple(self.kept[list(region.absent)].tolist()))
            own = None if window.witness < 0 else window
            found.append(self._finding(side, feature, own, region, cosine, thresholds, reason))
        return tuple(found)

    def _region(
        self, side: _Side, feature: int, active: Tensor, thresholds: Thresholds, zeros: ZeroRegion
    ) -> tuple[ZeroRegion, float | None]:
        """The zero region and the guaranteed cosine, remembered.

        Zero sets grow with the tolerance and sets of witnesses shrink, so their sizes tell them apart; the tolerance of
        the rank only decides whether a second search follows the first.
        """
        rows, limit = side.rows, thresholds.rank_tolerance
        if rows is None:
            return zeros, None
        key = (side.name, feature, zeros.count, len(rows), int(side.window[feature]))
        if key not in self._first or (key, self._first[key] > limit) not in self._tested:
            region, inverse = zero_region(
                rows,
                feature,
                active=active,
                tolerance=thresholds.tolerance,
                rank_tolerance=limit,
                ids=side.ids,
            )
            cosine = None
            if inverse is not None and side.window[feature] >= 0:
                window = side.window_rows[feature]
                cosine = guaranteed_cosine(rows, inverse, window, feature=feature, active=active, lengths=side.lengths)
            self._first[key] = 0.0 if inverse is None else inverse.first
            self._tested[key, self._first[key] > limit] = region, cosine
        region, cosine = self._tested[key, self._first[key] > limit]
        return replace(region, holds=region.conditioning > limit), cosine

    def _finding(
        self,
        side: _Side,
        feature: int,
        window: Window | None,
        zeros: ZeroRegion,
        cosine: float | None,
        thresholds: Thresholds,
        reason: str,
    ) -> Finding:
        number = int(self.kept[feature])
        both = window is not None and window.holds and bool(zeros.holds)
        cosine = cosine if both else None
        if reason:
            return Finding(number, "not applicable", reason, window, zeros, cosine)
        failed = _why_no_window(side, window) or _why_no_zeros(side, zeros)
        if both and cosine is not None and cosine < thresholds.min_cosine:
            failed = f"at this tolerance another factorisation may be as far as a cosine of {cosine:.3f}"
        if failed:
            return Finding(number, "not shown", failed, window, zeros, cosine)
        assert window is not None
        why = f"{side.witness} {window.witness} uses it alone, and {zeros.needed} {side.others} without it span all others"
        return Finding(number, "identifiable", why, window, zeros, cosine)


def _zero_counts(side: _Side, seen: Seen, *, tolerance: float) -> list[int]:
    """How many rows have a zero of each feature (K,)."""
    if side.rows is None:
        return list(map(int, seen.zeros.tolist()))
    counts = torch.zeros(side.rows.size(1), dtype=torch.long)
    for part in side.rows.split(4096):
        counts += (part.abs() <= tolerance).sum(dim=0)
    return list(map(int, counts.tolist()))


def _why_no_window(side: _Side, window: Window | None) -> str:
    if window is None:
        return f"no {side.witness} uses it alone, or even mainly"
    if window.holds:
        return ""
    nearest = f"{side.witness} {window.witness}, another feature has {window.leakage:.2g} of its weight"
    return f"no {side.witness} uses it alone: in the nearest, {nearest}"


def _why_no_zeros(side: _Side, zeros: ZeroRegion) -> str:
    if zeros.holds:
        return ""
    if zeros.holds is None:
        return f"its zero region was not searched ({zeros.count} {side.others})"
    if zeros.count < zeros.needed:
        return f"it is zero in {zeros.count} {side.others}, and {zeros.needed} are needed"
    if zeros.absent:
        names = ", ".join(map(str, zeros.absent[:_NAMED])) + " and others" * (len(zeros.absent) > _NAMED)
        return f"wherever it is off, so is feature {names}: its {zeros.count} zero {side.others} do not span the others"
    rank = f"less than {zeros.needed}" if zeros.rank is None else f"{zeros.rank}, not {zeros.needed}"
    return f"it is zero in {zeros.count} {side.others}, but their rank is {rank}"


def _row(found: _Found, thresholds: Thresholds) -> Sensitivity:
    counts: dict[str, Any] = {}
    for side, findings in (("theta", found.theta), ("phi", found.phi)):
        counts[f"{side}_windows"] = sum(own.window is not None and own.window.holds for own in findings)
        held = [own.zeros.holds for own in findings]
        counts[f"{side}_zeros"] = None if None in held else sum(map(bool, held))
        counts[f"{side}_identifiable"] = sum(own.verdict == "identifiable" for own in findings)
    return Sensitivity(
        tolerance=thresholds.tolerance,
        rank_tolerance=thresholds.rank_tolerance,
        num_active=found.num_active,
        rank=found.rank,
        applicable=not found.reason,
        **counts,
    )


def _sides(seen: Seen, weights: Tensor, *, active: Tensor, tolerance: float) -> tuple[_Side, _Side]:
    """Theta's side (windows among classes, zeros among samples), and Phi's, its mirror image.

    Args:
        seen: of the samples.
        weights: (C, K), in units of each feature's largest one.
        active: (K_eff,), the features that count; what has a weight and is never on disturbs no window.
        tolerance: a class whose weights are all at most this is no witness: its column is dust.
    """
    weights = torch.zeros_like(weights).index_copy(1, active, weights[:, active])
    classes = scaled(weights)
    K, used = classes.size(1), (weights.abs().amax(dim=1) > tolerance).nonzero().flatten()
    leader, leak = purest(classes[used])
    window, leakage = torch.full((K,), -1), torch.full((K,), torch.inf)
    for own in leak.argsort(descending=True, stable=True).tolist():
        window[leader[own]], leakage[leader[own]] = used[own], leak[own]
    theta = _Side("theta", "class", "samples", window, classes[window], leakage, seen.rows, seen.ids, seen.lengths)
    phi = _Side(
        "phi", "sample", "classes", seen.pure, seen.pure_rows, seen.leakage, classes[used], used, weights.norm(dim=0)
    )  # fmt: skip
    return theta, phi

"""What a certificate says: one finding a feature and one a row of Phi, and how both depend on the thresholds."""

import json
import os
from collections import Counter
from dataclasses import asdict, dataclass
from numbers import Real
from pathlib import Path
from typing import Any, Literal, TypeAlias, get_args

from bndl.errors import FileError, InputError
from bndl.files import replacing

__all__ = ["Certificate", "Finding", "Sensitivity", "Thresholds", "Verdict", "Window", "ZeroRegion"]

Verdict: TypeAlias = Literal["identifiable", "not shown", "not applicable"]
VERDICTS: tuple[Verdict, ...] = get_args(Verdict)
MIN_RANK_TOLERANCE = 1e-7  # below is what rounding to float32 leaves of a zero


@dataclass(frozen=True)
class Thresholds:
    """From where on a number counts as zero, a matrix as singular, and a guarantee as good enough.

    Attributes:
        tolerance: an entry is zero when it is at most this share of the largest one in its sample (or its class), all
            features being in units of what they can add to a logit. 0 is the theorem to the letter.
        rank_tolerance: a singular value is zero when it is at most this share of the largest one; for witnesses, when
            it is at most this, their columns having length one. At least 1e-7: factors are float32.
        min_cosine: what a tolerance above 0 gives away is bounded; below this cosine nothing is certified.
    """

    tolerance: float = 1e-6
    rank_tolerance: float = 1e-6
    min_cosine: float = 0.99

    def __post_init__(self) -> None:
        for name in ("tolerance", "rank_tolerance", "min_cosine"):
            check_threshold(name, getattr(self, name))


def check_threshold(name: str, value: object) -> None:
    """Refuse what is no number from 0 (for a rank: from 1e-7) to below 1; ``name`` may be the plural, for one of several."""
    least = MIN_RANK_TOLERANCE if name.startswith("rank") else 0
    number = isinstance(value, Real) and not isinstance(value, bool)
    if not number or not 0 <= value < 1:  # type: ignore[operator]
        raise InputError(f"{name} must be a number from {least:g} to below 1, got {value!r}.")
    if value < least:  # type: ignore[operator]
        raise InputError(
            f"{name} must be at least {least:g}, got {value}: what is smaller is the rounding of float32, in which the "
            "factors are given."
        )


@dataclass(frozen=True)
class Window:
    """The class (or, for a row of Phi, the sample) that comes nearest to using the feature alone.

    Attributes:
        witness: number of the class or sample.
        leakage: largest entry of another feature there, as a share of this one's; a window has at most the tolerance.
        holds: whether it is a window.
    """

    witness: int
    leakage: float
    holds: bool


@dataclass(frozen=True)
class ZeroRegion:
    """The samples (or classes) where the feature is zero, and whether they span all others.

    Attributes:
        count: how many there are.
        needed: the rank they must have, r - 1.
        rank: the rank they have; None where it was not computed.
        conditioning: lower bound on the smallest singular value of the witnesses, columns scaled to length one.
        witnesses: r - 1 of them that are independent already; enough for anyone to check the rank.
        absent: features that are zero there throughout: wherever this one is off, they are off as well.
        holds: whether the rank is r - 1; None where it was not tested, because it could not change the verdict.
    """

    count: int
    needed: int
    rank: int | None = None
    conditioning: float = 0.0
    witnesses: tuple[int, ...] = ()
    absent: tuple[int, ...] = ()
    holds: bool | None = None


@dataclass(frozen=True)
class Finding:
    """What is known of one feature's column of Theta, or of its row of Phi.

    Attributes:
        feature: its number in the layer, 0 .. K - 1.
        verdict: identifiable, not shown, or not applicable.
        reason: why, in words.
        window: None when no class (no sample) has the feature as its largest entry.
        zeros: the zero region.
        cosine: a bound: every other exact factorisation of the same size has a column at least this close. 1 where zeros
            are exact; None where a condition fails.
    """

    feature: int
    verdict: Verdict
    reason: str
    window: Window | None
    zeros: ZeroRegion
    cosine: float | None = None


@dataclass(frozen=True)
class Sensitivity:
    """What other thresholds would have said: counts of features for Theta, and of rows for Phi.

    Zeros are None where zero regions were not searched, or not all of them, because that could change no verdict.
    """

    tolerance: float
    rank_tolerance: float
    num_active: int
    rank: int
    applicable: bool
    theta_windows: int
    theta_zeros: int | None
    theta_identifiable: int
    phi_windows: int
    phi_zeros: int | None
    phi_identifiable: int


@dataclass(frozen=True)
class Certificate:
    """Which features are provably the only ones that could have made these logits.

    Attributes:
        num_examples: samples that were seen, N.
        num_searched: samples whose zero regions were searched for witnesses.
        num_silent: samples with no active feature; they say nothing.
        num_features: K of the layer.
        num_classes: C.
        num_active: features that are active somewhere and have a weight, K_eff; only exact zeros are neither.
        rank: numerical rank of Theta Phi, r.
        reason: why the theorem does not apply; empty when it does.
        anchored: share of samples with a class that no active feature speaks for. Where it is 1, the logits can be read
            off the probabilities (see docs/theory.md).
        thresholds: what counted as zero.
        theta: a finding for each active feature's column of Theta.
        phi: a finding for each active feature's row of Phi.
        sensitivity: the same for other thresholds.
    """

    num_examples: int
    num_searched: int
    num_silent: int
    num_features: int
    num_classes: int
    num_active: int
    rank: int
    reason: str
    anchored: float
    thresholds: Thresholds
    theta: tuple[Finding, ...]
    phi: tuple[Finding, ...]
    sensitivity: tuple[Sensitivity, ...] = ()

    @property
    def applicable(self) -> bool:
        """Whether the theorem has anything to say: non-negative factors and r = K_eff."""
        return not self.reason

    @property
    def identifiable(self) -> tuple[int, ...]:
        """Features whose column of Theta is certified."""
        return tuple(finding.feature for finding in self.theta if finding.verdict == "identifiable")

    @property
    def identifiable_rows(self) -> tuple[int, ...]:
        """Features whose row of Phi is certified."""
        return tuple(finding.feature for finding in self.phi if finding.verdict == "identifiable")

    def count(self, side: Literal["theta", "phi"]) -> dict[Verdict, int]:
        """How many findings of each verdict."""
        found = Counter(finding.verdict for finding in getattr(self, side))
        return {verdict: found[verdict] for verdict in VERDICTS}

    def to_dict(self) -> dict[str, Any]:
        """Everything, in what JSON can hold."""
        return asdict(self) | {"applicable": self.applicable}

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write it as JSON; the path."""
        path = Path(path)
        if not path.parent.is_dir():
            raise FileError(f"there is no folder {path.parent}: make it, or choose another.")
        with replacing(path) as temporary:
            temporary.write_text(json.dumps(self.to_dict(), indent=1) + "\n")
        return path

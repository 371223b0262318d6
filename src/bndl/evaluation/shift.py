"""The same examples under corruptions: how figures fall with the severity."""

import difflib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from bndl.errors import InputError
from bndl.evaluation.measure import CENTRED, shifted_figures
from bndl.evaluation.record import Shift, Shifted
from bndl.evaluation.stream import Change, Plan, stream
from bndl.evaluation.ways import Ways
from bndl.features import Inputs
from bndl.metrics.bands import figures_from
from bndl.progress import track

__all__ = ["Wanted", "corruptions_of", "shifts"]

Wanted = bool | Iterable[str] | Mapping[str, Iterable[int]]


def corruptions_of(shift: Wanted) -> dict[str, tuple[int, ...]]:
    """Corruption to severities, checked: all of them at all five (True), some by name, or a dict as it is."""
    if shift is False or shift is None:
        return {}
    from bndl.data.shift import CORRUPTIONS, SEVERITIES

    if isinstance(shift, Mapping):
        found = {str(name): (s,) if isinstance(s, int) else tuple(s) for name, s in shift.items()}
    else:
        named = CORRUPTIONS if shift is True else [shift] if isinstance(shift, str) else shift
        found = {str(name): SEVERITIES for name in named}
    for name, severities in found.items():
        if name not in CORRUPTIONS:
            close = difflib.get_close_matches(name, CORRUPTIONS, n=1, cutoff=0.5)
            hint = f"did you mean {close[0]!r}?" if close else f"choose from {', '.join(CORRUPTIONS)}."
            raise InputError(f"there is no corruption {name!r}; {hint}")
        if odd := [severity for severity in severities if severity not in SEVERITIES]:
            raise InputError(f"a severity is a whole number from 1 to 5, not {odd[0]!r}.")
    return found


def shifts(ways: Ways, data: Any, plan: Plan) -> Iterator[dict[str, Shift]]:
    """What there is of the shift of each way after each corruption: first all at the least severity, the gravest last."""
    pairs = [(severity, name) for name, severities in plan.shift.items() for severity in severities]
    pairs.sort(key=lambda pair: pair[0])
    cells: dict[str, list[Shifted]] = {way: [] for way in ways.names}
    draws: dict[str, list[Tensor]] = {way: [] for way in ways.names}
    for severity, name in track(pairs, "corruptions", progress=plan.progress):
        change = _corrupting(name, severity, seed=plan.seed)
        changed = stream(ways, data, plan, description=name, change=change, progress=False)
        for way, examples in changed.examples.items():
            figures, found = shifted_figures(examples, plan=plan)
            cells[way].append(Shifted(name, severity, figures))
            draws[way].append(found)
        yield {way: _shift(cells[way], draws[way]) for way in ways.names}


def _shift(cells: list[Shifted], draws: list[Tensor]) -> Shift:
    """With the mean over corruptions at each severity; all resamples are of the same examples, so they are averaged."""
    means = []
    for severity in sorted({cell.severity for cell in cells}):
        own = [i for i, cell in enumerate(cells) if cell.severity == severity]
        keys = list(cells[own[0]].figures)
        values = [sum(cells[i].figures[key].value for i in own) / len(own) for key in keys]
        found = figures_from(values, torch.stack([draws[i] for i in own]).mean(dim=0), centred=CENTRED)
        means.append(Shifted("", severity, dict(zip(keys, found, strict=True))))
    return Shift(tuple(cells), tuple(means))


def _corrupting(name: str, severity: int, *, seed: int) -> Change:
    from bndl.data.sets import as_float
    from bndl.data.shift import corrupt

    def change(inputs: Inputs, start: int) -> Inputs:
        if not isinstance(inputs, Tensor) or inputs.dim() != 4:
            what = tuple(inputs.size()) if isinstance(inputs, Tensor) else type(inputs).__name__
            raise InputError(f"corruptions need images (B, C, H, W), got {what}.")
        if inputs.dtype == torch.uint8:
            return corrupt(inputs, name, severity=severity, seed=seed, start=start)
        if not inputs.is_floating_point() or not 0 <= float(inputs.min()) <= float(inputs.max()) <= 1:
            raise InputError("corruptions need images as uint8 or floats in [0, 1]: normalise them inside the model.")
        pixels = (inputs * 255).round().to(torch.uint8)
        return as_float(corrupt(pixels, name, severity=severity, seed=seed, start=start)).to(inputs.dtype)

    return change

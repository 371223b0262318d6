"""Does an explanation depend on what the network learned: draw its parameters anew, top to bottom, and compare the maps."""

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor, nn

from bndl.errors import InputError
from bndl.explain.ranks import spearman
from bndl.features import Inputs, evaluating
from bndl.metrics.bootstrap import Figure, estimate
from bndl.progress import track

__all__ = ["Randomisation", "randomisation_check"]

How = Literal["reset", "shuffle"]
ExplainFn = Callable[[nn.Module, Tensor], Tensor]
_MOST = 24  # parts, so that a check does not take for ever
_MEASURED = 64  # images that batch norms are measured on


@dataclass(frozen=True)
class Randomisation:
    """How alike saliency maps stay as more and more of a network forgets what it learned.

    Attributes:
        modules: names of the parts in the order they were drawn anew, the top first; each row keeps all rows above it.
        correlation: (T, B) rank correlation of each image's map with its map by the trained network; 0 for a map that has
            become constant. An explanation that reads the network falls towards 0.
    """

    modules: tuple[str, ...]
    correlation: Tensor

    def figures(self, *, level: float = 0.95, seed: int = 0) -> tuple[Figure, ...]:
        """The mean over images after each part, with bootstrap intervals."""
        return tuple(_figure(row, level, seed) for row in self.correlation)


def _figure(row: Tensor, level: float, seed: int) -> Figure:
    def mean(weights: Tensor | None) -> Tensor:
        return row.mean() if weights is None else weights @ row / len(row)

    return estimate(mean, len(row), level=level, seed=seed)


def randomisation_check(
    model: nn.Module,
    x: Tensor,
    explain_fn: ExplainFn,
    *,
    modules: Sequence[str] | None = None,
    how: How = "reset",
    seed: int = 0,
    progress: bool | None = None,
) -> Randomisation:
    """Cascading randomisation (Adebayo et al., 2018) on a copy of the model, which stays as it is.

    Batch norms of parts that were drawn anew are measured anew too, on ``x``; or else deep networks explode or fall silent.

    Args:
        model: what is explained.
        x: (B, C, H, W) images, as the model takes them.
        explain_fn: (model, x) to saliency maps (B, h, w), for the same classes each time: fix them outside.
        modules: dotted names of the parts, the top first; by default the model's main parts, found by one pass.
        how: ``"reset"``: what a module's ``reset_parameters`` draws, where it has one, else as ``"shuffle"``: each tensor's
            own numbers in random places.
        seed: the same seed gives the same bits.
        progress: whether to show a bar; None: when it takes longer than two seconds and there is a terminal.
    """
    if how not in get_args(How):
        raise InputError(f"how must be one of {', '.join(get_args(How))}, got {how!r}.")
    forgetful = copy.deepcopy(model)
    names = main_parts(forgetful, x[:1]) if modules is None else tuple(modules)
    known = dict(forgetful.named_modules())
    if unknown := [name for name in names if name not in known]:
        raise InputError(f"{type(model).__name__} has no part named {unknown[0]!r}: see model.named_modules().")
    if not names:
        raise InputError(f"{type(model).__name__} has no part with parameters to draw anew.")
    before = _maps(explain_fn(model, x), len(x))
    rows = []
    for number, name in enumerate(track(names, "randomisation", progress=progress)):
        forget(known[name], how=how, seed=seed + number)
        _measure_norms(forgetful, [known[part] for part in names[: number + 1]], x[:_MEASURED])
        after = _maps(explain_fn(forgetful, x), len(x))
        rows.append(spearman(before, after).nan_to_num(nan=0.0))
    return Randomisation(names, torch.stack(rows))


def main_parts(model: nn.Module, x: Inputs) -> tuple[str, ...]:
    """Names of the parts that one would draw of a network, the last to run first: stages or blocks with parameters.

    Wrappers with one child that has parameters are looked into, and so are lists of blocks, and stacks of blocks as
    long as there are not too many.
    """
    path, module = "", model
    while len(inner := _children(path, module)) == 1:
        path, module = inner[0]
        if not _children(path, module):
            return (path,)
    parts = _opened(inner)
    ran: list[str] = []
    hooks = [child.register_forward_hook(lambda *_, name=name: ran.append(name)) for name, child in parts]
    try:
        with evaluating(model):
            model(**x) if isinstance(x, dict) else model(x)
    finally:
        for hook in hooks:
            hook.remove()
    last = {name: place for place, name in enumerate(ran)}
    quiet = [
        name for name, _ in parts if name not in last
    ]  # parts that do not run by themselves: where they are written
    return tuple(sorted(last, key=lambda name: -last[name]) + quiet[::-1])


def _opened(parts: list[tuple[str, nn.Module]]) -> list[tuple[str, nn.Module]]:
    """The parts, with lists (which do not run themselves) and stacks of blocks opened, level by level."""
    while True:
        level, lists = [], False
        for name, child in parts:
            inside = _children(name, child)
            is_list = isinstance(child, nn.ModuleList)
            is_stack = isinstance(child, nn.Sequential) and all(_children(n, c) for n, c in inside)
            level += inside if is_list or (is_stack and len(inside) > 1) else [(name, child)]
            lists |= is_list
        if len(level) == len(parts) or (len(level) > _MOST and not lists):
            return parts
        parts = level


def _children(path: str, module: nn.Module) -> list[tuple[str, nn.Module]]:
    prefix = f"{path}." if path else ""
    return [(prefix + name, child) for name, child in module.named_children() if any(True for _ in child.parameters())]


@torch.no_grad()
def forget(module: nn.Module, *, how: How = "reset", seed: int = 0) -> None:
    """Draw the parameters of a module and of all inside it anew, in place; the global random state is left alone."""
    with torch.random.fork_rng([]):
        torch.manual_seed(seed)
        for part in module.modules():
            reset = getattr(part, "reset_parameters", None)
            if how == "reset" and callable(reset):
                reset()
                continue
            for parameter in part.parameters(recurse=False):
                order = torch.randperm(parameter.numel()).to(parameter.device)
                parameter.copy_(parameter.flatten()[order].view_as(parameter))


def _measure_norms(model: nn.Module, parts: Sequence[nn.Module], x: Tensor) -> None:
    """Set the running statistics of the batch norms in these parts to those of ``x``."""
    norms = {
        module for part in parts for module in part.modules() if isinstance(module, nn.modules.batchnorm._BatchNorm)
    }
    norms = {norm for norm in norms if norm.track_running_stats}
    momenta = {norm: norm.momentum for norm in norms}
    if not norms:
        return
    with evaluating(model):
        for norm in norms:
            norm.reset_running_stats()
            norm.momentum = None  # the plain mean, of one batch
            norm.train()
        model(x)
    for norm, momentum in momenta.items():
        norm.momentum = momentum


def _maps(maps: Tensor, count: int) -> Tensor:
    if maps.dim() != 3 or len(maps) != count:
        raise InputError(f"explain_fn must give one map an image, ({count}, h, w), got dims {tuple(maps.size())}.")
    return maps.detach().flatten(1).cpu().double()

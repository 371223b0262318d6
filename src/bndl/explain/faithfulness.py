"""Is an explanation true to the model: take out what it names, watch the probability, and compare with random order."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Literal, TypeAlias, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bndl.convert import find_layer, find_linear
from bndl.decide import Decider
from bndl.errors import HeadError, InputError
from bndl.explain.arguments import whole
from bndl.explain.curves import Curves, Summary, difference
from bndl.explain.randomisation import Randomisation, randomisation_check
from bndl.explain.segments import Background, batch_for, check_segments, grid, segment_means
from bndl.explain.segments import background as fill
from bndl.explain.terms import feature_deletion
from bndl.features import check_labels, evaluating, features_of, one_pass
from bndl.layer import DecisionLayer
from bndl.progress import track

__all__ = [
    "Curves",
    "Randomisation",
    "Summary",
    "deletion",
    "difference",
    "feature_deletion",
    "insertion",
    "random_orders",
    "randomisation_check",
    "scorer",
]

Scores: TypeAlias = Callable[[Tensor], Tensor]
Method = Literal["mean", "closed"]
Mode = Literal["deletion", "insertion"]
Cells: TypeAlias = int | tuple[int, int] | Tensor
_COARSE = 14 * 14  # a map of so many cells or fewer is taken cell by cell
_CELLS = (8, 8)  # of a finer map


def deletion(
    model: nn.Module | Scores,
    x: Tensor,
    saliency: Tensor,
    *,
    target: Tensor | None = None,
    steps: int = 20,
    background: Background = "blur",
    cells: Cells | None = None,
    method: Method = "mean",
    seed: int = 0,
    batch_size: int | None = None,
    progress: bool | None = None,
) -> Curves:
    """P(target) as cells of the images are covered, the most salient first. Small areas are good.

    Args:
        model: a model with a :class:`bndl.DecisionLayer` or a linear head, or a function of images (B, C, H, W) to
            probabilities (B, C).
        x: (B, C, H, W) float images, as the model takes them.
        saliency: (B, h, w) what the explanation holds to matter, more is more; h x w may be coarser than the images.
        target: (B,) classes whose probability to watch; by default the model's decisions on ``x``.
        steps: T; the curves have T + 1 points, rounded to whole cells.
        background: what a covered cell shows.
        cells: what is covered at once: about so many grid cells, a grid of (rows, columns), or (H, W) segments. By
            default the map's own cells where there are at most 14 x 14, else 8 x 8.
        method: ``"mean"``: softmax of the mean logits; ``"closed"``: the closed form of :func:`bndl.predict`.
        seed: of the order of equally salient cells.
        batch_size: images a pass; None: what suits their size and the machine.
        progress: whether to show a bar; None: when it takes longer than two seconds and there is a terminal.
    """
    asked = _Asked(model, x, "deletion", background, method, batch_for(x, batch_size), progress)
    return asked.salient(saliency, cells, target=target, steps=steps, seed=seed)


def insertion(
    model: nn.Module | Scores,
    x: Tensor,
    saliency: Tensor,
    *,
    target: Tensor | None = None,
    steps: int = 20,
    background: Background = "blur",
    cells: Cells | None = None,
    method: Method = "mean",
    seed: int = 0,
    batch_size: int | None = None,
    progress: bool | None = None,
) -> Curves:
    """P(target) as cells are uncovered, the most salient first. Large areas are good. Arguments as for :func:`deletion`."""
    asked = _Asked(model, x, "insertion", background, method, batch_for(x, batch_size), progress)
    return asked.salient(saliency, cells, target=target, steps=steps, seed=seed)


def random_orders(
    model: nn.Module | Scores,
    x: Tensor,
    *,
    cells: Cells = _CELLS,
    mode: Mode = "deletion",
    num_orders: int = 3,
    target: Tensor | None = None,
    steps: int = 20,
    background: Background = "blur",
    method: Method = "mean",
    seed: int = 0,
    batch_size: int | None = None,
    progress: bool | None = None,
) -> Curves:
    """What :func:`deletion` or :func:`insertion` gives for random orders of the same cells: the mean of several an image.

    Arguments as there; ``cells`` must be what the maps were judged by, so (h, w) for coarse maps: covering scattered
    pixels harms a network more than covering one patch of as many.
    """
    if mode not in get_args(Mode):
        raise InputError(f"mode must be one of {', '.join(get_args(Mode))}, got {mode!r}.")
    num_orders = whole(num_orders, name="num_orders", least=1)
    asked = _Asked(model, x, mode, background, method, batch_for(x, batch_size), progress)
    segments = _segments(x, cells)
    generator = torch.Generator().manual_seed(seed)
    dims, target = (len(x), int(segments.max()) + 1), asked.target(target)
    orders = [torch.rand(dims, generator=generator).argsort(dim=1) for _ in range(num_orders)]
    found = [asked.curves(order, segments, target=target, steps=steps) for order in orders]
    return Curves(found[0].fractions, torch.stack([own.probability for own in found]).mean(dim=0))


def scorer(model: nn.Module | Scores, *, method: Method = "mean") -> Scores:
    """A function of images (B, C, H, W) to probabilities (B, C), of any model that ends in a decision or linear layer."""
    if method not in get_args(Method):
        raise InputError(f"method must be one of {', '.join(get_args(Method))}, got {method!r}.")
    if not isinstance(model, nn.Module):
        return model
    try:
        head: nn.Linear | DecisionLayer = find_layer(model)
    except HeadError:
        head = find_linear(model)[1]
    if method == "mean":
        return lambda x: one_pass(model, x, head=head)[1].double().softmax(dim=1)
    if not isinstance(head, DecisionLayer):
        raise InputError("method='closed' needs a decision layer: call model = bndl.convert(model) first.")
    decider = Decider(head, method="closed")
    return lambda x: decider(features_of(model, x)).probs


@dataclass(frozen=True)
class _Asked:
    """Images of which cells are covered, and a model that is asked each time."""

    model: nn.Module | Scores
    x: Tensor
    mode: Mode
    background: Background
    method: Method
    batch_size: int
    progress: bool | None

    def __post_init__(self) -> None:
        _check_images(self.x)

    def salient(self, saliency: Tensor, cells: Cells | None, *, target: Tensor | None, steps: int, seed: int) -> Curves:
        """The curves of the order that saliency maps (B, h, w) give."""
        order, segments = _salient_order(self.x, saliency, cells, seed=seed)
        return self.curves(order, segments, target=self.target(target), steps=steps)

    def target(self, target: Tensor | None) -> Tensor:
        """The classes (B,) to watch: those given, or the decisions."""
        scores, count = scorer(self.model, method=self.method), len(self.x)
        with self._ready():
            if target is not None:
                return check_labels(target, scores(self.x[:1]).size(1), count=count).cpu()
            return torch.cat([scores(part).argmax(dim=1).cpu() for part in self.x.split(self.batch_size)])

    def curves(self, order: Tensor, segments: Tensor, *, target: Tensor, steps: int) -> Curves:
        """P(target) for orders (B, M) of the cells (H, W): first come, first covered or uncovered."""
        steps = whole(steps, name="steps", least=1)
        scores, (B, M) = scorer(self.model, method=self.method), order.size()
        counts = torch.linspace(0, M, steps + 1, dtype=torch.float64).round().long().unique()
        place = torch.empty_like(order).scatter(1, order, torch.arange(M).expand_as(order))
        pairs = torch.cartesian_prod(torch.arange(B), torch.arange(len(counts)))
        found = []
        with self._ready():
            for part in track(pairs.split(self.batch_size), self.mode, progress=self.progress):
                own, step = part.unbind(1)
                probs = scores(self._mixed(own, (place[own] < counts[step, None])[:, segments.flatten()]))
                found.append(probs.cpu().double().gather(1, target[own, None])[:, 0])
        return Curves(counts.double() / M, torch.cat(found).view(B, len(counts)))

    def _mixed(self, own: Tensor, chosen: Tensor) -> Tensor:
        """Images number ``own`` (B,) with the ``chosen`` pixels (B, H W) covered, or all others."""
        rows, place = own.to(self.x.device).unique(return_inverse=True)
        images = self.x[rows]
        covers = fill(images, self.background)
        shown = (chosen if self.mode == "insertion" else ~chosen).view(-1, 1, *self.x.size()[2:]).to(self.x.device)
        return torch.where(shown, images[place], covers[place])

    def _ready(self) -> AbstractContextManager[None]:
        return evaluating(self.model) if isinstance(self.model, nn.Module) else torch.no_grad()


def _salient_order(x: Tensor, saliency: Tensor, cells: Cells | None, *, seed: int) -> tuple[Tensor, Tensor]:
    """Orders (B, M), the most salient cell first and ties at random, and the cells (H, W)."""
    if saliency.dim() != 3 or len(saliency) != len(x):
        raise InputError(f"saliency must be one map an image, ({len(x)}, h, w), got dims {tuple(saliency.size())}.")
    if not torch.isfinite(saliency).all():
        raise InputError("the saliency maps have NaN or infinite values: check the explanation.")
    saliency, (h, w) = saliency.detach().cpu().double(), saliency.size()[1:]
    if cells is None:
        cells = (h, w) if h * w <= _COARSE else _CELLS
    segments = _segments(x, cells)
    if cells == (h, w):
        scores = saliency.flatten(1)
    else:
        large = F.interpolate(saliency[:, None], size=x.size()[2:], mode="bilinear", align_corners=False)
        scores = segment_means(large[:, 0], segments)
    shuffled = torch.randperm(scores.size(1), generator=torch.Generator().manual_seed(seed))
    order = scores[:, shuffled].argsort(dim=1, descending=True, stable=True)
    return shuffled[order], segments


def _segments(x: Tensor, cells: Cells) -> Tensor:
    if isinstance(cells, Tensor):
        return check_segments(cells, x).cpu()
    if isinstance(cells, int):
        return grid(x, count=cells)
    (rows, columns), (H, W) = cells, x.size()[2:]
    if not (1 <= rows <= H and 1 <= columns <= W):
        raise InputError(f"cells must be a grid of at most {H} x {W}, one a pixel, got {rows} x {columns}.")
    return (torch.arange(H) * rows // H)[:, None] * columns + torch.arange(W) * columns // W


def _check_images(x: Tensor) -> None:
    if not isinstance(x, Tensor) or x.dim() != 4 or not len(x) or not x.is_floating_point():
        got = f"{x.dtype} with dims {tuple(x.size())}" if isinstance(x, Tensor) else type(x).__name__
        raise InputError(f"give float images (B, C, H, W), got {got}.")

"""LIME on activations: which parts of an input raise a feature; one set of perturbations explains all K features at once."""

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any, Literal

import torch
from torch import Tensor, nn

from bndl.convert import find_layer
from bndl.errors import InputError
from bndl.explain.arguments import integers
from bndl.explain.segments import Background, batch_for, check_segments, grid, slic
from bndl.explain.segments import background as fill
from bndl.explain.surrogate import KERNEL_WIDTH, Surrogate, fit_surrogate, kernel_weights, perturbations
from bndl.features import Head, Inputs, evaluating, features_of
from bndl.layer import DecisionLayer
from bndl.progress import track

__all__ = ["Lime", "OnProgress", "lime", "lime_perturbed"]

OnProgress = Callable[[int, int], None]
Segments = Literal["slic", "grid"]


@dataclass(frozen=True)
class Lime(Surrogate):
    """LIME's stand-ins of K features over M parts of one input; see :class:`Surrogate` for the figures of each feature.

    Attributes:
        features: (K,) the number of each row among all features: of a signed layer k >= in_features is the negative part.
        classes: the same stand-ins of the C mean logits.
        num_perturbations: how many inputs passed the backbone.
        segments: (H, W) which part each pixel belongs to; None where the input is no image.
        parts: the words of a text; None where the input is none.
    """

    features: Tensor
    classes: Surrogate
    num_perturbations: int
    segments: Tensor | None = None
    parts: tuple[str, ...] | None = None

    def row(self, feature: int) -> int:
        """Where feature number ``feature`` stands in ``coefficients`` and the rest."""
        found = (self.features == feature).nonzero().flatten().tolist()
        if not found:
            raise InputError(f"feature {feature} was not explained: there are {len(self.features)}, see .features.")
        return int(found[0])

    def heat(self, feature: int, *, top: int = 10) -> Tensor:
        """(H, W) the coefficients of the ``top`` super-pixels that raise feature number ``feature`` most; else 0."""
        return self._heat(self.coefficients[self.row(feature)], top)

    def class_heat(self, target: int, *, top: int = 10) -> Tensor:
        """(H, W) the coefficients of the ``top`` super-pixels that raise the logit of class ``target`` most; else 0."""
        C = len(self.classes.coefficients)
        if not 0 <= target < C:
            raise InputError(f"target must lie in 0..{C - 1} for {C} classes, got {target}.")
        return self._heat(self.classes.coefficients[target], top)

    def _heat(self, coefficients: Tensor, top: int) -> Tensor:
        if self.segments is None:
            raise InputError("only images have a heat map: for words and tables read .coefficients.")
        if top < 1:
            raise InputError(f"top is a number of super-pixels, at least 1, got {top}.")
        best = coefficients.topk(min(top, len(coefficients)))
        kept = torch.zeros_like(coefficients).scatter(0, best.indices, best.values.clamp_min(0))
        return kept[self.segments].float()


def lime(
    model: nn.Module,
    image: Tensor,
    *,
    segments: Segments | Tensor = "slic",
    count: int = 50,
    num_perturbations: int = 1000,
    background: Background = "mean",
    features: Any = None,
    head: Head | None = None,
    kernel_width: float = KERNEL_WIDTH,
    seed: int = 0,
    batch_size: int | None = None,
    progress: bool | None = None,
    on_progress: OnProgress | None = None,
) -> Lime:
    """Explain all features of one image by switching its super-pixels off and on.

    The same seed gives the same perturbations; batches of another size change the figures by float noise only. On the same
    perturbations the coefficients are those of the ``lime`` package's regression.

    Args:
        model: a model with a :class:`bndl.DecisionLayer`, or any with its dense ``head`` given.
        image: (C, H, W) floats, as the model takes them; grey ones too.
        segments: ``"slic"`` (extra "explain"), ``"grid"``, or (H, W) integers such as :func:`bndl.explain.segments.patches`.
        count: super-pixels or cells wanted.
        num_perturbations: backbone passes N, the image itself among them; a few times the number of parts at the least.
        background: what a part that is off shows; see :func:`bndl.explain.segments.background`.
        features: which ones to keep, by number; None: all.
        head: another of the model's layers, such as a dense model's ``nn.Linear``: its inputs are the features then.
        kernel_width: of the kernel that weighs perturbations by their distance.
        seed: of the perturbations.
        batch_size: perturbed images a pass; None: what suits their size and the machine.
        progress: whether to show a bar; None: when it takes longer than two seconds and there is a terminal.
        on_progress: called with (passes done, passes in all) after each batch.
    """
    _check_image(image)
    found = _segments(image, segments, count)
    shown = fill(image, background, segments=found)
    flat, M = found.flatten(), int(found.max()) + 1
    if M < 2:
        raise InputError("the image is one single super-pixel: take segments='grid', or a larger count.")

    def make(masks: Tensor) -> Tensor:
        there = masks.to(image.device)[:, flat].view(len(masks), 1, *image.size()[1:])
        return torch.where(there, image, shown)

    explained = lime_perturbed(
        model,
        make,
        num_parts=M,
        num_perturbations=num_perturbations,
        features=features,
        head=head,
        kernel_width=kernel_width,
        seed=seed,
        batch_size=batch_for(image, batch_size),
        progress=progress,
        on_progress=on_progress,
    )
    return replace(explained, segments=found.cpu())


def lime_perturbed(
    model: nn.Module,
    make: Callable[[Tensor], Inputs],
    *,
    num_parts: int,
    num_perturbations: int = 1000,
    features: Any = None,
    head: Head | None = None,
    kernel_width: float = KERNEL_WIDTH,
    seed: int = 0,
    batch_size: int = 32,
    progress: bool | None = None,
    on_progress: OnProgress | None = None,
) -> Lime:
    """The general form: any input that can be made with some of its parts missing. Other arguments as for :func:`lime`.

    Args:
        model: a model with a :class:`bndl.DecisionLayer`, or the layer itself (then ``make`` gives features).
        make: masks (B, M) bool, True where a part is there, to a batch of B inputs as the model takes them.
        num_parts: M.
    """
    if batch_size < 1:
        raise InputError(f"batch_size must be at least 1, got {batch_size}.")
    masks = perturbations(num_parts, num_perturbations, seed=seed)
    weights = kernel_weights(masks, width=kernel_width)
    layer = find_layer(model) if head is None else head
    numbers = _numbers(layer)
    chosen = _chosen(numbers, features)
    theta, logits = [], []
    with evaluating(model):
        done = 0
        for part in track(masks.split(batch_size), "LIME", progress=progress):
            activations, scores = _outputs(model, make(part), layer, count=len(part))
            theta.append(activations[:, chosen].cpu())
            logits.append(scores.cpu())
            done += len(part)
            if on_progress is not None:
                on_progress(done, num_perturbations)
    own = fit_surrogate(masks, torch.cat(theta), weights=weights)
    classes = fit_surrogate(masks, torch.cat(logits), weights=weights)
    facts = {field.name: getattr(own, field.name) for field in fields(own)}
    return Lime(**facts, features=numbers[chosen].cpu(), classes=classes, num_perturbations=num_perturbations)


def _outputs(model: nn.Module, inputs: Inputs, layer: Head, *, count: int) -> tuple[Tensor, Tensor]:
    """Activations (B, K) and mean logits (B, C) of one batch, from one pass."""
    h = features_of(model, inputs, head=layer)
    if len(h) != count:
        raise InputError(f"{count} perturbed inputs were asked for, but {len(h)} came: make one for each mask.")
    if isinstance(layer, nn.Linear):
        return h, layer(h)
    h = h.to(layer.phi().mean.dtype)
    return layer.theta(h).mean, layer(h)


def _numbers(layer: Head) -> Tensor:
    return layer.feature_ids if isinstance(layer, DecisionLayer) else torch.arange(layer.in_features)


def _chosen(numbers: Tensor, features: Any) -> Tensor:
    """Columns of the features that are asked for by number."""
    if features is None:
        return torch.arange(len(numbers), device=numbers.device)
    wanted = integers(features, name="features", what="the numbers of features, such as [3, 17]").flatten()
    place = {number: column for column, number in enumerate(numbers.tolist())}
    if missing := [number for number in wanted.tolist() if number not in place]:
        raise InputError(f"the decision layer has no feature {missing[0]}: it has {len(numbers)}, see its feature_ids.")
    return torch.tensor([place[number] for number in wanted.tolist()], device=numbers.device, dtype=torch.int64)


def _segments(image: Tensor, segments: Segments | Tensor, count: int) -> Tensor:
    if isinstance(segments, Tensor):
        return check_segments(segments, image)
    if segments not in ("slic", "grid"):
        raise InputError(f"segments must be slic, grid or a tensor (H, W) of numbers, got {segments!r}.")
    return slic(image, count=count) if segments == "slic" else grid(image, count=count).to(image.device)


def _check_image(image: Tensor) -> None:
    if not isinstance(image, Tensor) or image.dim() != 3 or 0 in image.size():
        got = tuple(image.size()) if isinstance(image, Tensor) else type(image).__name__
        raise InputError(f"LIME explains one image (C, H, W) at a time, got {got}.")
    if not image.is_floating_point():
        raise InputError(f"LIME mixes pixels, so they must be floats, got {image.dtype}: give image.float() / 255.")

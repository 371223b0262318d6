"""From a recipe to data and a network that fit each other."""

from collections import OrderedDict
from pathlib import Path

import torch
from torch import Tensor, nn

from bndl.backbones import ImageClassifier, build
from bndl.baselines import get_method
from bndl.data import Holdout, LabelledSet, Reading, SplitPlan, Splits, load_splits
from bndl.errors import InputError
from bndl.train.finish import load_weights
from bndl.train.recipe import Recipe

__all__ = ["build_model", "image_dims", "read_splits"]

_LARGE = 224  # side of the images that networks for ImageNet expect
_SMALL = 32


def read_splits(recipe: Recipe, *, plan: SplitPlan | None = None) -> Splits:
    """The recipe's data, split as the plan of an earlier run says or else by the recipe's seed."""
    data = recipe.data
    splits = load_splits(
        data.name,
        holdout=Holdout(val=data.val, test=data.test, seed=data.split_seed, val_as_test=data.val_as_test),
        reading=Reading(
            size=data.size or _usual_size(recipe), resize=data.resize, strict=data.strict, verify=data.verify
        ),
        plan=plan,
    )
    if splits.val is None or not len(splits.val):
        raise InputError(f"{data.name} leaves nothing to validate on: raise data.val.")
    return splits


def image_dims(data: LabelledSet) -> tuple[int, int]:
    """Channels and side of the images."""
    dims = data[0][0].size()
    if len(dims) != 3 or dims[1] != dims[2]:
        raise InputError(
            f"{data.name} holds examples with dims {tuple(dims)}, not square images (C, H, W): "
            "for features, call bndl.fit or bndl.BNDLClassifier."
        )
    return dims[0], dims[1]


def build_model(recipe: Recipe, *, num_classes: int, channels: int, side: int, head: str | None = None) -> nn.Module:
    """The recipe's network for images of this many channels and of this side; the same seed gives the same weights.

    Args:
        recipe: what to build.
        num_classes: C.
        channels: of the images.
        side: of the images; those of another size than the network expects are resized inside it.
        head: a method's name in place of the recipe's; ``"dense"`` for the network before its conversion.
    """
    wanted = recipe.model
    grey = channels == 1 and wanted.backbone != "small-cnn"
    with torch.random.fork_rng([]):
        torch.manual_seed(recipe.train.seed)
        built = build(
            wanted.backbone,
            num_classes,
            pretrained=wanted.pretrained,
            width=wanted.width,
            in_channels=3 if grey else channels,
            size=wanted.size,
        )
        model = built.model
        model = _with_steps(model, grey=grey, size=built.size if side != built.size and not _is_ours(recipe) else None)
        if wanted.start is not None and head is None:
            load_weights(Path(wanted.start) / "model.safetensors", model, dense=True)
        return get_method(head or wanted.head).dress(model, **wanted.layer.model_dump())


class Colour(nn.Module):
    """Grey images (B, 1, H, W) as coloured ones (B, 3, H, W) that look the same."""

    def forward(self, images: Tensor) -> Tensor:
        """Repeat the one channel."""
        return images.expand(-1, 3, -1, -1)


def _with_steps(model: nn.Module, *, grey: bool, size: int | None) -> nn.Module:
    """The classifier with steps before its network: grey to colour, and another size."""
    if not grey and size is None:
        return model
    steps: list[tuple[str, nn.Module]] = [("colour", Colour())] if grey else []
    steps.append(("normalise", model.get_submodule("normalise")))
    if size is not None:
        steps.append(("resize", nn.Upsample(size=(size, size), mode="bilinear")))
    longer = ImageClassifier(OrderedDict([*steps, ("network", model.get_submodule("network"))]))
    longer.head = str(model.head)
    return longer


def _is_ours(recipe: Recipe) -> bool:
    """Our own networks read images of any size."""
    return recipe.model.backbone.startswith(("resnet", "small-cnn"))


def _usual_size(recipe: Recipe) -> int:
    """Our own networks read images of any size, mostly CIFAR's; others those of ImageNet."""
    return recipe.model.size or (_SMALL if _is_ours(recipe) else _LARGE)

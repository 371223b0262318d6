"""Networks of other libraries by name: timm, torchvision, Hugging Face; each imported when it is asked for."""

import contextlib
import difflib
import importlib
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from bndl.convert import replace_everywhere
from bndl.errors import BndlError, InputError, MissingExtraError

__all__ = ["LIBRARIES", "Channels", "Found", "Logits", "Wish", "guess", "in_one_sentence", "plain_linear", "reason"]

Channels = tuple[float, ...]


@dataclass(frozen=True)
class Wish:
    """What was asked of an opener; ``name`` goes without the library's prefix."""

    name: str
    num_classes: int | None
    pretrained: bool
    width: int | None
    in_channels: int
    size: int | None
    told: bool  # mean, std and size were all given: there is no need to know them

    def new_classes(self) -> int:
        """C of an untrained network, which has no head yet to read it off."""
        if self.num_classes is None:
            raise InputError(f"An untrained {self.name} needs num_classes: say how many classes there are.")
        return self.num_classes


@dataclass(frozen=True)
class Found:
    """A bare network and what it expects of images; the defaults are ImageNet's."""

    network: nn.Module
    mean: Channels = (0.485, 0.456, 0.406)
    std: Channels = (0.229, 0.224, 0.225)
    size: int = 224
    resize: int = 256
    pretrained: bool = False
    classes: tuple[str, ...] | None = None


def plain_linear(linear: nn.Linear, rows: Sequence[int]) -> nn.Linear:
    """A plain ``nn.Linear`` with these rows of another's weights."""
    plain = nn.Linear(linear.in_features, len(rows), bias=linear.bias is not None)
    plain.load_state_dict({key: value[rows] for key, value in linear.state_dict().items()})
    return plain


def _open_timm(wish: Wish) -> Found:
    timm = importlib.import_module("timm")
    if not timm.is_model(wish.name):
        raise InputError(f"timm has no model {wish.name!r}{guess(wish.name, timm.list_models())}")
    settings = {} if wish.pretrained else {"num_classes": wish.new_classes()}
    facts = timm.get_pretrained_cfg(wish.name)
    if wish.size and facts.fixed_input_size:
        settings["img_size"] = wish.size
    network = timm.create_model(wish.name, pretrained=wish.pretrained, **settings)
    head = network.get_classifier()
    if type(head) is timm.layers.Linear:  # a detour for TorchScript, which convert cannot know to change nothing
        replace_everywhere(network, head, plain_linear(head, range(head.out_features)))
    side = facts.input_size[-1]
    if not wish.pretrained:
        return Found(network, size=side, resize=side) if facts.fixed_input_size else Found(network)
    subset = timm.data.infer_imagenet_subset(network)
    labels = tuple(timm.data.ImageNetInfo(subset).label_names()) if subset else None
    return Found(network, facts.mean, facts.std, side, round(side / facts.crop_pct), True, labels)


def _open_torchvision(wish: Wish) -> Found:
    models = importlib.import_module("torchvision.models")
    known = models.list_models(module=models)
    if wish.name not in known:
        raise InputError(f"torchvision has no classifier {wish.name!r}{guess(wish.name, known)}")
    settings = {} if wish.pretrained else {"num_classes": wish.new_classes()}
    if wish.size and wish.name.startswith("vit_"):
        settings["image_size"] = wish.size
    if wish.name in ("googlenet", "inception_v3"):  # they would return more than logits while they train
        settings |= {"aux_logits": False} if wish.pretrained else {"aux_logits": False, "init_weights": True}
    if not wish.pretrained:
        return Found(models.get_model(wish.name, weights=None, **settings))
    weights = models.get_model_weights(wish.name).DEFAULT
    facts = weights.transforms()
    sides = (facts.crop_size[0], facts.resize_size[0])
    network = models.get_model(wish.name, weights=weights, **settings)
    return Found(network, tuple(facts.mean), tuple(facts.std), *sides, True, tuple(weights.meta["categories"]))


class Logits(nn.Module):
    """A Hugging Face classifier that returns its logits alone."""

    def __init__(self, classifier: nn.Module) -> None:
        super().__init__()
        self.classifier = classifier

    def forward(self, images: Tensor) -> Tensor:
        """Map normalised images (B, 3, H, W) to logits (B, C)."""
        logits: Tensor = self.classifier(pixel_values=images, return_dict=True).logits
        return logits


def _open_hugging_face(wish: Wish) -> Found:
    transformers = importlib.import_module("transformers")
    auto = transformers.AutoModelForImageClassification
    if not wish.pretrained:
        config = transformers.AutoConfig.from_pretrained(wish.name, num_labels=wish.new_classes())
        side = wish.size or getattr(config, "image_size", None)
        if side is None:
            return Found(Logits(auto.from_config(config, dtype=torch.float32)))
        config.image_size = side
        return Found(Logits(auto.from_config(config, dtype=torch.float32)), size=side, resize=side)
    model, loading = auto.from_pretrained(wish.name, dtype=torch.float32, output_loading_info=True)
    headless = bool(loading["missing_keys"])
    if headless and wish.num_classes is None:
        raise InputError(f"{wish.name} has no trained head to keep: give num_classes for a fresh one.")
    labels = tuple(model.config.id2label[index] for index in range(model.config.num_labels))
    names = None if headless or labels[0] == "LABEL_0" else labels  # LABEL_0 is no name, only a placeholder
    if wish.told:
        return Found(Logits(model), pretrained=True, classes=names)
    return Found(Logits(model), *_read_processor(transformers, wish.name), True, names)


def _read_processor(transformers: Any, name: str) -> tuple[Channels, Channels, int, int]:
    """Mean, std, size and resize, by what its image processor makes of black, white and red, whatever its settings."""
    try:
        processor = transformers.AutoImageProcessor.from_pretrained(name)
    except OSError as error:
        raise InputError(f"{name} has no preprocessor_config.json: give mean, std and size.") from error
    colours = [np.full((256, 256, 3), colour, dtype=np.uint8) for colour in (0, 255, (255, 0, 0))]
    pixels: Tensor = processor(images=colours, return_tensors="pt")["pixel_values"]
    side = pixels.size(-1)
    black, white, red = pixels[:, :, side // 2, side // 2].double()
    if red[0] != white[0] or red[-1] != black[-1]:
        raise InputError(f"{name} reads its channels in another order than RGB, which is not supported: take another.")
    mean, std = -black / (white - black), 1 / (white - black)
    size, crop = dict(processor.size), getattr(processor, "crop_pct", None)
    edge = side / crop if crop and side < 384 else size.get("shortest_edge") or size.get("height") or side
    return _rounded(mean), _rounded(std), side, max(round(edge), side)


def _rounded(values: Tensor) -> Channels:
    return tuple(round(value, 6) for value in values.tolist())


LIBRARIES: Mapping[str, Callable[[Wish], Found]] = {
    "timm": _open_timm,
    "torchvision": _open_torchvision,
    "hf": _open_hugging_face,
}


@contextlib.contextmanager
def in_one_sentence(name: str, *, extra: str) -> Iterator[None]:
    """Whatever an optional library raises, as one of our errors; what it prints goes to stderr."""
    try:
        with contextlib.redirect_stdout(sys.stderr):
            yield
    except BndlError:
        raise
    except ImportError as error:
        raise MissingExtraError(f"The backbone {name}", extra=extra) from error
    except Exception as error:  # each library has its own, and the network's on top
        raise InputError(f"{name} could not be made ({reason(error)}): check its name and the connection.") from error


def reason(error: BaseException) -> str:
    """The first line of an error, or its name."""
    return (str(error).splitlines() or [""])[0].rstrip(".") or type(error).__name__


def guess(name: str, known: Iterable[str]) -> str:
    """The end of a sentence about an unknown name: what may have been meant."""
    close = difflib.get_close_matches(name, list(known), n=2)
    return f": did you mean {' or '.join(close)}?" if close else "."

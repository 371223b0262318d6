"""Grad-CAM, by captum."""

import builtins

import pytest
import torch
from torch import nn

from bndl import InputError, MissingExtraError, compact, convert
from bndl.backbones import CifarResNet, SmallCNN, build
from bndl.explain import contribution_map, feature_maps, grad_cam

pytest.importorskip("captum")


@pytest.fixture
def model() -> nn.Module:
    torch.manual_seed(0)
    return convert(CifarResNet(8, 5)).eval()


def test_on_the_pooled_map_the_heat_of_a_class_is_its_exact_map(model):
    x, classes = torch.rand(3, 3, 32, 32), torch.tensor([0, 2, 4])
    exact = contribution_map(model.fc, feature_maps(model, x).maps, classes)
    torch.testing.assert_close(grad_cam(model, x, target=classes), exact, rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(grad_cam(model, x, target=2)[1], exact[1], rtol=1e-4, atol=1e-6)
    labels = model(x).argmax(1)
    torch.testing.assert_close(grad_cam(model, x), grad_cam(model, x, target=labels))


def test_the_heat_of_a_feature_is_its_own_map(model):
    x, features = torch.rand(2, 3, 32, 32), torch.tensor([1, 7])
    heat = grad_cam(model, x, feature=features)
    own = feature_maps(model, x).of(features)
    torch.testing.assert_close(heat / heat.amax((1, 2), True), own / own.amax((1, 2), True), rtol=1e-4, atol=1e-5)


def test_a_compact_layers_features_keep_their_numbers(model):
    x = torch.rand(1, 3, 32, 32)
    before = grad_cam(model, x, feature=40)
    with torch.no_grad():
        model.fc.weight[:, :30] = 0
    small = compact(model)
    torch.testing.assert_close(grad_cam(small, x, feature=40), before)
    with pytest.raises(InputError, match="no feature 3"):
        grad_cam(small, x, feature=3)


def test_another_layer_and_frozen_weights_and_bytes():
    torch.manual_seed(0)
    model = convert(build("resnet8", 4, width=4).model).eval().requires_grad_(False)
    images = torch.randint(0, 256, (2, 3, 32, 32), dtype=torch.uint8)
    assert grad_cam(model, images).size() == (2, 8, 8)
    assert grad_cam(model, images, layer_name="network.stages.0").size() == (2, 32, 32)
    assert not any(p.requires_grad or p.grad is not None for p in model.parameters())


def test_a_dense_model_is_seen_the_same_way():
    torch.manual_seed(0)
    model, x = SmallCNN(4).eval(), torch.rand(2, 1, 8, 8)
    exact = contribution_map(model.fc, feature_maps(model, x).maps, torch.tensor([1, 1])).clamp_min(0)
    torch.testing.assert_close(grad_cam(model, x, target=1), exact, rtol=1e-4, atol=1e-6)


def test_bad_input_is_said_in_one_sentence(model):
    x = torch.rand(2, 3, 32, 32)
    with pytest.raises(InputError, match="not both"):
        grad_cam(model, x, target=1, feature=1)
    with pytest.raises(InputError, match=r"0\.\.4"):
        grad_cam(model, x, target=5)
    with pytest.raises(InputError, match=r"dims \(2,\)"):
        grad_cam(model, x, target=torch.tensor([1, 2, 3]))
    with pytest.raises(InputError, match="no module 'nowhere'"):
        grad_cam(model, x, layer_name="nowhere")
    with pytest.raises(InputError, match=r"one tensor .*got dict: for texts use"):
        grad_cam(model, {"input_ids": torch.ones(1, 4, dtype=torch.int64)})
    for wrong in ("cat", 1.5, True):
        with pytest.raises(InputError, match="target must be a number"):
            grad_cam(model, x, target=wrong)
        with pytest.raises(InputError, match="feature must be a number"):
            grad_cam(model, x, feature=wrong)
    with pytest.raises(InputError, match="no convolution"):
        grad_cam(convert(nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 3))), torch.rand(1, 4))


def test_without_captum_the_extra_is_named(model, monkeypatch):
    real = builtins.__import__

    def missing(name, *args, **kwargs):
        if name.startswith("captum"):
            raise ImportError(name)
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", missing)
    with pytest.raises(MissingExtraError, match=r"bndl\[explain\]"):
        grad_cam(model, torch.rand(1, 3, 32, 32))

"""Explanations add up to the logit, exactly."""

import torch

from bndl import DecisionLayer, convert
from bndl.backbones import SmallCNN
from bndl.explain import contribution_map, contributions, reasons


def test_terms_add_up_to_the_mean_logit():
    layer = DecisionLayer(12, 4, signed=True).eval()
    h = torch.randn(6, 12)
    classes = layer(h).argmax(1)
    terms = contributions(layer, h, classes)
    assert (terms >= 0).all()
    expected = layer(h).gather(1, classes[:, None])[:, 0] - layer.offset()[classes]
    torch.testing.assert_close(terms.sum(1), expected)


def test_the_map_of_a_pooled_cnn_adds_up_to_the_same():
    model = convert(SmallCNN(5)).eval()
    x, classes = torch.rand(3, 1, 8, 8), torch.tensor([0, 3, 4])
    with torch.no_grad():
        maps = model.stages(x)
        logits = model(x)
    assert model.fc.signed is False
    where = contribution_map(model.fc, maps, classes)
    expected = logits.gather(1, classes[:, None])[:, 0] - model.fc.offset()[classes]
    torch.testing.assert_close(where.sum(dim=(1, 2)), expected)


def test_reasons_are_the_largest_terms_of_the_decision():
    model = convert(SmallCNN(5)).eval()
    x = torch.rand(3, 1, 8, 8)
    with torch.no_grad():
        logits, features = model(x), model.features(x)
    terms = contributions(model.fc, features, logits.argmax(1))
    for row, found in zip(terms, reasons(model, x, top=4), strict=True):
        assert [k for k, _ in found] == row.argsort(descending=True)[:4].tolist()
        assert [value for _, value in found] == row.sort(descending=True).values[:4].tolist()

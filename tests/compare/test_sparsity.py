"""The paper's Figure 3: three paths on the same features, on the test part."""

import pytest
import torch
from torch import nn

from bndl.compare.sparsity import bndl_path, dense_point, draw_paths, threshold_path
from bndl.compare.subjects import Subject
from bndl.features import FeatureSet

C, K = 4, 24


@pytest.fixture(scope="module")
def subject():
    """Features of which each class owns three, the rest being noise, and the head that a dense fit would find."""
    generator = torch.Generator().manual_seed(0)

    def part(size: int) -> FeatureSet:
        labels = torch.arange(size) % C
        features = torch.rand(size, K, generator=generator)
        for j in range(3):
            features[torch.arange(size), 3 * labels + j] += torch.rand(size, generator=generator)
        return FeatureSet(features, labels)

    head = nn.Linear(K, C)
    with torch.no_grad():
        head.weight.copy_(torch.randn(C, K, generator=generator) * 0.3)
        for c in range(C):
            head.weight[c, 3 * c : 3 * c + 3] += 3
        head.bias.zero_()
    return Subject(head, part(1200), part(400), part(400), {})


@pytest.fixture(scope="module")
def points(subject):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("bndl.calibrate._STEPS", 20)
        patch.setattr("bndl.compare.sparsity._SHARES", (0.5, 3 / K))
        yield list(bndl_path(subject)), list(threshold_path(subject))


def test_both_paths_lie_on_the_test_part_from_dense_to_one_weight_a_class(points, subject):
    for path, name in zip(points, ("bndl", "threshold"), strict=True):
        assert {point.method for point in path} == {name}
        assert path[0].accuracy == dense_point(subject).accuracy
        shares = [point.nnz for point in path]
        assert shares == sorted(shares, reverse=True)
        assert shares[-1] <= 1 / K
    assert points[0][-1].nnz == 1 / K


def test_ours_finds_the_features_that_matter(points, subject):
    planted = points[0][2]
    assert planted.nnz <= 3 / K
    assert planted.accuracy > dense_point(subject).accuracy - 0.03


def test_they_are_drawn(points, subject, tmp_path):
    picture = draw_paths({"one": [dense_point(subject), *points[0], *points[1]]}, tmp_path / "p.png")
    assert picture.read_bytes().startswith(b"\x89PNG")

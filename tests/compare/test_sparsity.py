"""The paper's Figure 3: three paths on the same features, on the test part."""

import pytest
import torch
from torch import nn

from bndl.compare.sparsity import Point, bndl_path, dense_point, threshold_path
from bndl.compare.sparsity_table import draw_paths, lead_of, mean_at, paths_to_markdown
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


def at(method: str, nnz: float, accuracy: float, seed: int = 0) -> Point:
    return Point(method, nnz, 100 * nnz, accuracy, 1 - accuracy, 0.1, seed)


PATHS = [
    *(at("bndl", nnz, accuracy, 0) for nnz, accuracy in ((0.01, 0.5), (0.1, 0.7), (1.0, 0.9))),
    *(at("bndl", nnz, accuracy, 1) for nnz, accuracy in ((0.01, 0.7), (1.0, 0.9))),
    *(
        at("elastic-net", nnz, accuracy)
        for nnz, accuracy in ((0.0, 0.1), (0.001, 0.4), (0.01, 0.5), (0.1, 0.8), (1.0, 0.9))
    ),
]


def test_seeds_are_averaged_at_the_same_number_of_weights():
    found = mean_at(PATHS, "bndl", 0.1)
    assert found.accuracy == pytest.approx((0.7 + 0.8) / 2)  # the second seed is half-way in ln nnz
    assert found.weights_per_class == pytest.approx(10)
    assert mean_at(PATHS, "bndl", 0.001) is None  # no seed goes so far
    assert mean_at([*PATHS, at("bndl", 0.001, 0.3)], "bndl", 0.001) is None  # one does


def test_the_lead_is_taken_where_the_other_has_heads():
    lead = lead_of(PATHS)
    assert (lead.heads, lead.ahead, lead.nnz) == (3, 2, 0.1)  # at .001 ours has none, at 0 nobody has
    assert lead.least == pytest.approx(-0.05)
    assert lead_of(PATHS, "threshold") is None


def test_the_table_has_the_three_paths_side_by_side():
    text = paths_to_markdown({"one": [at("dense", 1.0, 0.92), *PATHS]})
    assert "**one**, seeds 0, 1; dense 92.00 / 0.080 / 10.0" in text
    assert "| 0.1000 | 10.0 | 75.00 / 0.250 / 10.0 | - | 80.00 / 0.200 / 10.0 |" in text
    assert "at 2 of the 3 heads of glm_saga in its range; the least lead is -5.00 points, at nnz 0.1000." in text

"""Examples: one number an example gives every figure that the whole prediction gives, and survives a file."""

from dataclasses import fields

import numpy as np
import pytest
import torch

import bndl
from bndl import FileError, InputError
from bndl.metrics import Examples, brier_score, effective_features, negative_log_likelihood
from bndl.metrics import examples as module


@pytest.fixture(scope="module")
def prediction() -> bndl.Prediction:
    generator = torch.Generator().manual_seed(0)
    layer = bndl.DecisionLayer(6, 4, init_shape=1.5)
    with torch.no_grad():
        layer.weight.copy_(torch.rand(4, 6, generator=generator))
    return bndl.predict(layer, torch.randn(60, 6, generator=generator).abs(), progress=False)


@pytest.fixture(scope="module")
def truth() -> torch.Tensor:
    return torch.randint(4, (60,), generator=torch.Generator().manual_seed(1))


def assert_same(ours: Examples, theirs: Examples) -> None:
    for field in fields(Examples):
        left, right = getattr(ours, field.name), getattr(theirs, field.name)
        assert left.dtype == right.dtype, field.name
        torch.testing.assert_close(left, right, rtol=0, atol=0, equal_nan=True, msg=field.name)


def test_it_holds_what_the_figures_need(prediction, truth):
    examples = Examples.of(prediction, truth)
    assert len(examples) == 60
    assert torch.equal(examples.correct, prediction.labels == truth)
    assert float(-examples.log_likelihood.mean()) == float(negative_log_likelihood(prediction.probs, truth))
    assert float(examples.brier.mean()) == float(brier_score(prediction.probs, truth))
    assert torch.equal(examples.confidence, prediction.confidence.double())
    assert examples.num_features.isnan().all()
    for row, margin in zip(range(60), examples.margin.tolist(), strict=True):
        own = float(prediction.probs[row, prediction.labels[row]])
        others = [float(p) for c, p in enumerate(prediction.probs[row]) if c != prediction.labels[row]]
        assert margin == pytest.approx(own - max(others), abs=1e-12)
    for field in fields(Examples):
        kinds = {"correct": torch.bool, "truth": torch.int64, "labels": torch.int64}
        assert getattr(examples, field.name).dtype == kinds.get(field.name, torch.float64)


def test_the_margin_is_negative_where_another_class_is_likelier(prediction):
    swapped = bndl.Prediction(
        **{f.name: getattr(prediction, f.name) for f in fields(bndl.Prediction) if f.name != "labels"},
        labels=prediction.probs.argmin(1),
    )
    assert (Examples.of(swapped, None).margin < 0).all()
    likeliest = prediction.labels == prediction.probs.argmax(1)
    assert torch.equal(Examples.of(prediction, None).margin >= 0, likeliest)


def test_without_a_truth_nothing_is_right_and_nothing_is_said_of_it(prediction):
    examples = Examples.of(prediction, None)
    assert not examples.correct.any()
    assert examples.log_likelihood.isnan().all()
    assert examples.brier.isnan().all()
    assert (examples.truth == -1).all()
    assert not examples.entropy.isnan().any()


def test_all_uncertainties_grow_with_doubt(prediction, truth):
    examples = Examples.of(prediction, truth)
    base = examples.uncertainty()
    assert torch.equal(base, 1 - examples.confidence)
    for by in ("entropy", "flip_probability", "margin"):
        assert float(torch.corrcoef(torch.stack([base, examples.uncertainty(by)]))[0, 1]) > 0.5
    assert torch.equal(examples.uncertainty("epistemic"), prediction.epistemic.double())
    with pytest.raises(
        InputError, match="by one of confidence, entropy, flip_probability, margin, epistemic, got 'mood'"
    ):
        examples.uncertainty("mood")


def test_parts_and_their_sum(prediction, truth):
    counts = effective_features(torch.rand(60, 5))
    whole = Examples.of(prediction, truth, num_features=counts)
    parts = [
        Examples.of(prediction[rows], truth[rows], num_features=counts[rows]) for rows in (slice(0, 7), slice(7, 60))
    ]
    assert_same(Examples.cat(parts), whole)
    assert_same(whole[7:], parts[1])
    assert_same(whole[torch.arange(60) < 7], parts[0])
    assert_same(whole[torch.arange(7)], parts[0])
    assert len(whole[-1]) == 1
    with pytest.raises(InputError, match="nothing to put together"):
        Examples.cat([])


def test_a_file_gives_back_the_same_bits(prediction, truth, tmp_path):
    path = tmp_path / "kept.npz"
    for examples in (Examples.of(prediction, truth), Examples.of(prediction, None), Examples.of(prediction, truth)[:0]):
        examples.save(path)
        assert_same(Examples.load(path), examples)
    Examples.of(prediction, truth).save(tmp_path / "no-suffix")
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["kept.npz", "no-suffix"]


def test_a_failed_save_leaves_the_old_file(prediction, truth, tmp_path, monkeypatch):
    path, examples = tmp_path / "kept.npz", Examples.of(prediction, truth)
    examples.save(path)

    def full(file, **arrays):
        file.write(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(module.np, "savez", full)
    with pytest.raises(FileError, match="No space left"):
        examples[:3].save(path)
    assert_same(Examples.load(path), examples)
    assert [entry.name for entry in tmp_path.iterdir()] == ["kept.npz"]


def test_a_damaged_or_foreign_file_is_told_in_a_sentence(prediction, truth, tmp_path):
    path = tmp_path / "kept.npz"
    Examples.of(prediction, truth).save(path)
    whole = path.read_bytes()
    with np.load(path) as file:
        arrays = dict(file)
    flipped = bytearray(whole)
    flipped[len(whole) // 2] ^= 0xFF
    for content in (b"", b"no archive", whole[: len(whole) // 2], whole[:-10], bytes(flipped)):
        path.write_bytes(content)
        with pytest.raises(FileError, match=r"is damaged or was not written by Examples\.save"):
            Examples.load(path)
    single = tmp_path / "one.npy"
    np.save(single, np.zeros(3))
    for change in (
        {"entropy": arrays["entropy"][:5]},
        {"entropy": arrays["entropy"].astype(np.float32)},
        {"labels": arrays["labels"][:, None]},
        {"labels": np.array([{}], dtype=object)},
    ):
        np.savez(path, **(arrays | change))
        with pytest.raises(FileError, match="damaged"):
            Examples.load(path)
    np.savez(path, entropy=arrays["entropy"])
    for file in (path, single):
        with pytest.raises(FileError, match="damaged"):
            Examples.load(file)
    with pytest.raises(FileError, match="there is no file"):
        Examples.load(tmp_path / "none.npz")


def test_columns_of_different_length_or_kind_are_refused(prediction, truth):
    with pytest.raises(InputError, match=r"num_features must be torch\.float64 of dims \(N,\), as many as labels"):
        Examples.of(prediction, truth, num_features=torch.ones(3))
    with pytest.raises(InputError, match=r"labels must be whole numbers of dims \(60,\)"):
        Examples.of(prediction, truth[:5])

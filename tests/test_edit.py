"""Edits: the logits follow by arithmetic, undo is bit for bit, files of other heads are refused, effects are counted."""

import copy
import json

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import bndl
from bndl.edit import Edit, Editor, effect, fingerprint
from bndl.errors import FileError, InputError
from bndl.features import FeatureSet

C, IN = 4, 6
H = torch.randn(200, IN, generator=torch.Generator().manual_seed(0)).abs()
LABELS = torch.randint(C, (200,), generator=torch.Generator().manual_seed(1))
KINDS = {
    "plain": {},
    "signed": {"signed": True},
    "threshold": {"alpha_phi": 0.3},
    "dense map": {"dense_map": True, "phi_shape": "entry"},
}


def layer_of(kind: str = "plain", seed: int = 0) -> bndl.DecisionLayer:
    with torch.random.fork_rng([]):
        torch.manual_seed(seed)
        layer = bndl.DecisionLayer(IN, C, **KINDS[kind]).eval()
        with torch.no_grad():
            layer.weight.add_(torch.randn_like(layer.weight))
    return layer


def compact_layer() -> bndl.CompactLayer:
    layer = layer_of()
    with torch.no_grad():
        layer.weight[:, [1, 4]] = -0.5
    return bndl.compact(layer).eval()


def terms(layer: bndl.DecisionLayer, h: Tensor, feature: int) -> Tensor:
    """theta_k Phi_kc (B, C) of a feature by its number."""
    column = layer.feature_ids.tolist().index(feature)
    return layer.theta(h).mean[:, column, None] * layer.phi().mean[:, column]


def features_of(layer: bndl.DecisionLayer) -> Tensor:
    """Of both signs where the layer reads them."""
    return H - 0.8 if layer.signed else H


# --------------------------------------------------------------------------------------------------------- what it does


@pytest.mark.parametrize("kind", [*KINDS, "compact"])
@pytest.mark.parametrize("factor", [0.0, 0.5, 1.0, 3.0])
@pytest.mark.parametrize("target", [None, 2])
def test_the_logits_follow_by_arithmetic(kind, factor, target):
    layer = compact_layer() if kind == "compact" else layer_of(kind)
    h = features_of(layer)
    feature = int(layer.feature_ids[-1])
    with torch.no_grad():
        moved = (1 - factor) * terms(layer, h, feature)
        if target is not None:
            moved = moved * (torch.arange(C) == target)
        expected = layer(h) - moved
        Editor(layer).scale(feature, factor, target)
        torch.testing.assert_close(layer(h), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_dropped_weight_is_exactly_gone_whatever_the_threshold(dtype):
    layer = layer_of("threshold").to(dtype)
    editor = Editor(layer)
    editor.drop(3)
    editor.drop(5, target=1)
    assert layer.phi().mean[:, 3].tolist() == [0.0] * C
    assert layer.phi().mean[1, 5].item() == 0.0
    assert layer.num_weights() == int((layer.phi().mean > 1e-5).sum())


def test_what_has_no_weight_is_left_as_it_is():
    layer = layer_of()
    with torch.no_grad():
        layer.weight[:, 2] = torch.tensor([-0.3, 0.0, -1.0, 0.7])
    Editor(layer).scale(2, 5.0)
    torch.testing.assert_close(layer.weight[:, 2].detach(), torch.tensor([-0.3, 0.0, -1.0, 3.5]))


def test_the_posterior_scales_with_its_mean():
    layer = layer_of()
    before = layer.phi().variance.detach()[:, 4].clone()
    Editor(layer).scale(4, 2.0)
    torch.testing.assert_close(layer.phi().variance.detach()[:, 4], 4 * before)


# ----------------------------------------------------------------------------------------------------------------- undo


edit_lists = st.lists(
    st.builds(Edit, st.integers(0, IN - 1), st.none() | st.integers(0, C - 1), st.sampled_from([0.0, 0.1, 1.0, 1.7])),
    max_size=6,
)


@given(edits=edit_lists)
@settings(max_examples=50, deadline=None)
def test_undo_gives_every_earlier_state_back_bit_for_bit(edits):
    layer = layer_of("threshold")
    editor, states = Editor(layer), [layer.weight.detach().clone()]
    for edit in edits:
        editor.apply(edit)
        states.append(layer.weight.detach().clone())
    assert editor.edits == tuple(edits)
    for edit, state in zip(reversed(edits), reversed(states[:-1]), strict=True):
        assert editor.undo() == edit
        assert torch.equal(layer.weight, state)
    for state in states[1:]:
        editor.redo()
        assert torch.equal(layer.weight, state)
    editor.reset()
    assert torch.equal(layer.weight, states[0])
    assert fingerprint(layer) == fingerprint(layer_of("threshold"))


def test_a_new_edit_forgets_what_was_undone():
    editor = Editor(layer_of())
    with pytest.raises(InputError, match="no edit to undo"):
        editor.undo()
    editor.drop(1)
    editor.undo()
    editor.drop(2)
    with pytest.raises(InputError, match="no edit to make again"):
        editor.redo()


def test_weights_that_something_else_changed_are_not_overwritten():
    layer = layer_of()
    editor = Editor(layer)
    editor.drop(1)
    with torch.no_grad():
        layer.weight[0, 1] = 9.0
    with pytest.raises(InputError, match="changed by something else"):
        editor.undo()
    assert layer.weight[0, 1].item() == 9.0


# -------------------------------------------------------------------------------------------------------------- refused


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((-1,), "feature of an edit"),
        ((True,), "feature of an edit"),
        ((0, -2), "target of an edit"),
        ((0, None, -0.5), "factor of an edit"),
        ((0, None, float("nan")), "factor of an edit"),
        ((0, None, float("inf")), "factor of an edit"),
        ((0, None, "0"), "factor of an edit"),
        ((0, None, True), "factor of an edit"),
        ((0, None, np.float32("nan")), "factor of an edit"),
        ((0, None, np.bool_(True)), "factor of an edit"),
        ((0, None, 10**400), "factor of an edit"),
        ((1.0,), "feature of an edit"),
        ((np.bool_(True),), "feature of an edit"),
        ((torch.tensor(True),), "feature of an edit"),
        ((np.int64(-1),), "feature of an edit"),
        ((0, np.float32(1)), "target of an edit"),
        ((0, None, 0.0, 5), "note of an edit"),
    ],
)
def test_an_impossible_edit_is_refused(arguments, words):
    with pytest.raises(InputError, match=words):
        Edit(*arguments)


@pytest.mark.parametrize("whole", [np.int64, np.uint8, torch.tensor])
@pytest.mark.parametrize("real", [np.float32, np.float64, np.float16, int])
def test_numbers_of_numpy_and_torch_become_pythons(whole, real, tmp_path):
    editor = Editor(bndl.DecisionLayer(8, 3))
    done = editor.scale(whole(3), real(0.5), whole(1))
    assert done == Edit(3, 1, float(real(0.5)))
    assert (type(done.feature), type(done.target), type(done.factor)) == (int, int, float)
    assert json.loads(editor.save(tmp_path / "edits.json").read_text())["edits"][0]["feature"] == 3


def test_numbers_that_the_layer_does_not_have_are_refused():
    layer = layer_of()
    with pytest.raises(InputError, match=r"features 0\.\.5, got 6"):
        Editor(layer).drop(6)
    with pytest.raises(InputError, match=r"classes 0\.\.3, got 4"):
        Editor(layer).drop(0, target=4)
    assert Editor(layer_of("signed")).drop(2 * IN - 1).feature == 11  # the negative part of the last input
    compact = compact_layer()
    with pytest.raises(InputError, match="feature 4 has no weight in this compact layer"):
        Editor(compact).drop(4)
    assert fingerprint(layer) == fingerprint(layer_of())


# ---------------------------------------------------------------------------------------------------------------- files


def edited(layer: nn.Module) -> Editor:
    editor = Editor(layer)
    editor.drop(5, target=2, note="looks at the frame")
    editor.scale(5, 0.3)
    editor.scale(0, 2.5)
    return editor


@pytest.mark.parametrize("kind", [*KINDS, "compact"])
def test_edits_come_back_from_json_to_the_model_before_them_or_after(kind, tmp_path):
    layer = compact_layer() if kind == "compact" else layer_of(kind)
    untouched = copy.deepcopy(layer)
    editor = edited(layer)
    path = editor.save(tmp_path / "edits.json")
    for start in (copy.deepcopy(untouched), copy.deepcopy(layer)):
        again = Editor.load(path, start)
        assert again.edits == editor.edits
        assert fingerprint(start) == fingerprint(layer)
        again.reset()
        assert fingerprint(start) == fingerprint(untouched)


def test_edits_are_saved_with_the_model_and_undone_after_loading(tmp_path):
    pytest.importorskip("safetensors")
    layer = layer_of()
    editor = edited(layer)
    path = bndl.save(layer, tmp_path / "m.safetensors", edits=editor)
    loaded = bndl.load(path)
    assert fingerprint(loaded) == fingerprint(layer)
    again = Editor.load(path, loaded)
    assert again.edits == editor.edits
    assert again.edits[0].note == "looks at the frame"
    again.reset()
    assert fingerprint(loaded) == fingerprint(layer_of())
    with pytest.raises(InputError, match="edits of another model"):
        bndl.save(layer_of(), path, edits=editor)
    plain = bndl.save(layer, tmp_path / "plain.safetensors")
    with pytest.raises(FileError, match="saved without edits"):
        Editor.load(plain, layer)


def damaged(record: dict, how: str) -> str:
    edits, columns = record["edits"], record["columns"]
    if how == "text":
        return "{"
    if how == "list":
        return "[3]"
    if how == "foreign":
        return json.dumps({"format": "other"})
    changes = {
        "version": {"version": 2},
        "no edits": {"edits": None},
        "odd edit": {"edits": [*edits, {"feature": 1, "colour": 3}]},
        "negative": {"edits": [{"feature": -1}]},
        "beyond": {"edits": [*edits, {"feature": 999}]},
        "one less": {"edits": edits[:-1]},
        "columns": {"columns": {**columns, "5": "AAAA"}},
        "no base64": {"columns": {**columns, "5": "%"}},
        "column's name": {"columns": {"five": columns["5"]}},
        "no columns": {"columns": None},
    }
    return json.dumps(record | changes[how])


@pytest.mark.parametrize("how", ["text", "list", "foreign", "version", "no edits", "odd edit", "negative", "beyond"])
@pytest.mark.parametrize("from_", ["before", "after"])
def test_a_damaged_file_is_refused_in_one_sentence_and_changes_nothing(how, from_, tmp_path):
    refused_and_unchanged(how, from_, tmp_path)


@pytest.mark.parametrize("how", ["one less", "columns", "no base64", "column's name", "no columns"])
def test_damaged_weights_are_refused(how, tmp_path):
    refused_and_unchanged(how, "after", tmp_path)


def refused_and_unchanged(how, from_, tmp_path):
    layer = layer_of()
    editor = edited(layer)
    (tmp_path / "edits.json").write_text(damaged(editor.to_dict(), how))
    start = layer_of() if from_ == "before" else layer
    before = fingerprint(start)
    with pytest.raises(FileError) as caught:
        Editor.load(tmp_path / "edits.json", start)
    assert "\n" not in str(caught.value)
    assert "edits.json" in str(caught.value)
    assert fingerprint(start) == before


def test_edits_of_another_head_are_refused(tmp_path):
    path = edited(layer_of()).save(tmp_path / "edits.json")
    other = layer_of(seed=1)
    before = fingerprint(other)
    with pytest.raises(FileError, match="made to another one"):
        Editor.load(path, other)
    assert fingerprint(other) == before
    with pytest.raises(FileError, match="there is no file"):
        Editor.load(tmp_path / "none.json", other)


# --------------------------------------------------------------------------------------------------------------- effect


def test_an_effect_counts_what_is_fixed_and_what_breaks():
    with torch.random.fork_rng([]):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(5, IN), nn.ReLU(), layer_of())
    x = torch.randn(300, 5, generator=torch.Generator().manual_seed(2))
    labels = torch.randint(C, (300,), generator=torch.Generator().manual_seed(3))
    edits = (Edit(3), Edit(1, 2, 4.0))
    before = fingerprint(model[2])
    found = effect(model, edits, [(x[:200], labels[:200]), (x[200:], labels[200:])])
    assert fingerprint(model[2]) == before
    old = bndl.predict(model, x).labels
    editor = Editor(model)
    for edit in edits:
        editor.apply(edit)
    new = bndl.predict(model, x).labels
    assert torch.equal(found.before, old)
    assert torch.equal(found.after, new)
    assert set(found.changed.tolist()) == set((old != new).nonzero().flatten().tolist())
    assert set(found.fixed.tolist()) == {i for i in range(300) if old[i] != labels[i] == new[i]}
    assert set(found.broken.tolist()) == {i for i in range(300) if old[i] == labels[i] != new[i]}
    assert min(len(found.fixed), len(found.broken)) > 0, "the example shows nothing"
    assert found.accuracy_after - found.accuracy_before == pytest.approx((len(found.fixed) - len(found.broken)) / 300)
    assert sum(one.fixed for one in found.by_class) == len(found.fixed)
    assert sum(one.broken for one in found.by_class) == len(found.broken)
    for one in found.by_class:
        assert one.count == int((labels == one.index).sum())
        assert one.right_after - one.right_before == one.fixed - one.broken
    assert f"fixes {len(found.fixed)} and breaks {len(found.broken)} of 300" in found.text()
    done = editor.effect(FeatureSet(model[:2](x).detach(), labels))
    assert torch.equal(done.fixed, found.fixed)
    assert torch.equal(done.broken, found.broken)


def test_no_edit_has_no_effect_and_features_may_be_in_half_precision():
    found = effect(layer_of(), [], FeatureSet(H.half(), LABELS))
    assert found.accuracy_before == found.accuracy_after
    assert len(found.changed) == 0


@torch.no_grad()
def test_a_compact_model_decides_anew_after_an_edit():
    layer = compact_layer()
    first = layer(H)  # lays the weights out
    editor = Editor(layer)
    editor.scale(0, 10.0)
    assert not torch.equal(layer(H), first)
    editor.undo()
    assert torch.equal(layer(H), first)


# --------------------------------------------------------------------------------------------------- what a page exports


def test_the_list_of_a_page_is_made_to_the_head_as_it_stands(tmp_path):
    listed = [
        {"feature": 2, "target": 1, "factor": 0.5, "note": "x"},
        {"feature": 0, "target": None, "factor": 0.0, "note": ""},
    ]
    (tmp_path / "edits.json").write_text(json.dumps(listed))
    layer, by_hand = layer_of(), layer_of()
    editor, other = Editor.load(tmp_path / "edits.json", layer), Editor(by_hand)
    other.scale(2, 0.5, 1)
    other.drop(0)
    assert torch.equal(layer.weight, by_hand.weight)
    assert editor.edits[0].note == "x"
    editor.reset()
    assert torch.equal(layer.weight, layer_of().weight)


@pytest.mark.parametrize("listed", [[1], [{"feature": 99}], [{"factor": 1}], [{"feature": 1, "class": 2}]])
def test_a_list_of_something_else_is_refused_and_changes_nothing(listed, tmp_path):
    (tmp_path / "edits.json").write_text(json.dumps([{"feature": 2, "factor": 0.5}, *listed]))
    layer = layer_of()
    with pytest.raises(FileError, match="do not fit this decision layer"):
        Editor.load(tmp_path / "edits.json", layer)
    assert torch.equal(layer.weight, layer_of().weight)

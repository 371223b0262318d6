"""Compact inference: fewer features, the same outputs, and never a stale weight."""

import copy
import warnings
import weakref
from dataclasses import fields

import pytest
import torch
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.func import functional_call

import bndl
from bndl.compact import CompactLayer
from bndl.errors import InputError
from bndl.explain import contribution_map, contributions, reasons
from bndl.features import evaluating
from bndl.sparse_product import FEW, Bags, MeanProduct, bags_are_faster, rows_are_faster

SETTINGS = [
    {},
    {"bias": False, "alpha_phi": 0.02, "phi_shape": "entry"},
    {"signed": True, "alpha_theta": 0.1},
    {"theta_shape": "sample"},
    {"theta_shape": "entry", "phi_shape": "entry", "signed": True},
    {"dense_map": True, "alpha_theta": 0.1},
]
# a head that is small (dense products), one of few weights (sparse ones), one of few features (dense again)
DIMS = [(30, 7, 0.1, 0.5), (800, 90, 0.03, 0.8), (800, 90, 0.03, 0.1)]


def sparse_layer(K: int, C: int, share: float, kept: float, **settings) -> bndl.DecisionLayer:
    """A layer with weights of 0.1 to 1.1 in a share of its places, all of them in the kept share of the features."""
    generator = torch.Generator().manual_seed(0)

    def rand(*dims: int) -> Tensor:
        return torch.rand(dims, generator=generator)

    torch.manual_seed(0)
    layer = bndl.DecisionLayer(K, C, **settings)
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.add_(0.1 * rand(*parameter.size()))
        active = (rand(*layer.weight.size()) < share / kept) & (rand(layer.num_features) < kept)
        active[:, 0] = True
        active[-1] = False  # a class without weights
        layer.weight.copy_(torch.where(active, rand(*active.size()) + 0.1 + layer.alpha_phi, layer.alpha_phi - 0.01))
    return layer.eval()


def features(B: int, K: int) -> Tensor:
    return torch.randn(B, K, generator=torch.Generator().manual_seed(1)).abs() + 0.2  # so that all have a voice


def plain_forward(layer: nn.Module, h: Tensor) -> Tensor:
    with torch.no_grad():
        return layer(h)


def predictions_differ(first: nn.Module, second: nn.Module, h: Tensor, **options) -> dict[str, float]:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*has no weight left")
        a, b = bndl.predict(first, h, **options), bndl.predict(second, h, **options)
    pairs = {f.name: (getattr(a, f.name).double(), getattr(b, f.name).double()) for f in fields(a)}
    return {name: float(((x - y) / (1 + y.abs())).abs().max()) for name, (x, y) in pairs.items()}


# ---------------------------------------------------------------------------------------------------------- same outputs


@pytest.mark.parametrize("dims", DIMS, ids=["small", "sparse", "narrow"])
@pytest.mark.parametrize("settings", SETTINGS, ids=lambda s: "-".join(map(str, s)) or "default")
def test_outputs_are_those_of_the_full_layer(settings, dims):
    full = sparse_layer(*dims, **settings)
    small = bndl.compact(full)
    assert 0 < small.num_features < full.num_features
    assert small.num_weights() <= full.num_weights()
    for B in (1, 2, 5, FEW, 64, 70):
        h = features(B, dims[0]) - 0.4
        expected = plain_forward(full, h)
        for logits in (plain_forward(small, h), small(h).detach()):  # the laid-out weights, and the way of training
            torch.testing.assert_close(logits, expected, atol=1e-5, rtol=1e-5)
            assert logits.is_contiguous()
            assert torch.equal(logits.argmax(1), expected.argmax(1))
    h = features(70, dims[0])
    for method in ("sample", "closed", "paper"):
        for name, difference in predictions_differ(full, small, h, method=method, num_samples=5).items():
            assert difference < 2e-4, (method, name)  # the logits reach 50, and variances take their squares


@pytest.mark.parametrize("dims", DIMS, ids=["small", "sparse", "narrow"])
def test_sampled_probabilities_have_the_noise_of_the_full_layer(dims):
    full = sparse_layer(*dims)
    small, h = bndl.compact(full), features(30, dims[0])
    for options in ({"num_samples": 70}, {"num_samples": 3, "seed": 5}):
        assert predictions_differ(full, small, h, **options)["probs"] < 1e-5
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        one, other = (bndl.predict(full, h, num_samples=3, seed=seed).probs for seed in (5, 0))
    assert (one - other).abs().max() > 1e-3  # which noise it is shows


def test_a_prediction_does_not_depend_on_the_batch():
    small, h = bndl.compact(sparse_layer(*DIMS[1])), features(100, 800)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        together, alone = (bndl.predict(small, x, num_samples=10) for x in (h, h[70:71]))
    assert torch.equal(together[70].probs, alone.probs)
    assert torch.equal(together[70].p_value, alone.p_value)


def test_many_classes_take_as_many_draws_as_the_full_head():
    full = sparse_layer(600, 800, 0.01, 0.1)
    small = bndl.compact(full)
    assert bndl.draws.default_num_samples(small) == bndl.draws.default_num_samples(full) < 200
    assert predictions_differ(full, small, features(3, 600), num_samples=12)["probs"] < 1e-5  # in two slices


def test_reasons_are_those_of_the_full_layer():
    full = sparse_layer(*DIMS[1], signed=True)
    small, h = bndl.compact(full), features(5, 800) - 0.4
    classes = plain_forward(full, h).argmax(1)
    expected, terms = contributions(full, h, classes), contributions(small, h, classes)
    torch.testing.assert_close(torch.zeros_like(expected).index_copy(1, small.kept, terms), expected)


def test_tiny_weights_become_none():
    full = sparse_layer(30, 7, 0.2, 0.5)
    with torch.no_grad():
        full.weight[:, 1] = -0.1
        full.weight[2, 1] = 1e-5  # the feature's only weight
        full.weight[3, 0] = 0.9e-5
        full.weight[4, 0] = 1.1e-5
    small = bndl.compact(full)
    assert 1 not in small.kept.tolist()
    phi = small.phi().mean
    assert phi[3, 0] == 0
    assert phi[4, 0] > 0
    assert not ((phi > 0) & (phi <= 1e-5)).any()
    assert small.num_weights() == full.num_weights()


def test_half_precision_weights_lose_their_tiny_ones_too():
    full = sparse_layer(30, 7, 0.2, 0.5, alpha_phi=0.02).bfloat16()
    small = bndl.compact(full)
    assert small.weight.dtype == torch.bfloat16
    h = features(20, 30)
    torch.testing.assert_close(plain_forward(small, h), plain_forward(full, h), atol=1e-3, rtol=1e-4)


# ------------------------------------------------------------------------------------------------------------- the model


def network() -> nn.Sequential:
    torch.manual_seed(0)
    body = nn.Sequential(nn.Linear(6, 800), nn.ReLU())
    return nn.Sequential(body, sparse_layer(*DIMS[1])).eval()


def test_a_model_is_changed_in_place_and_a_layer_is_not():
    model, x = network(), torch.randn(40, 6)
    body, full, expected = model[0], model[1], plain_forward(model, x)
    weight = full.weight.clone()
    assert bndl.compact(model) is model
    assert model[0] is body
    assert isinstance(model[1], CompactLayer)
    torch.testing.assert_close(plain_forward(model, x), expected, atol=1e-5, rtol=1e-5)
    again = bndl.compact(full)
    assert again is not full
    assert torch.equal(full.weight, weight)
    assert again.weight.data_ptr() != full.weight.data_ptr()


def test_the_print_says_what_was_kept():
    small = bndl.compact(sparse_layer(*DIMS[0]))
    assert f"kept {small.num_features} of 30 features" in repr(small)


def test_modes_and_frozen_parameters_carry_over():
    full = sparse_layer(*DIMS[0])
    full.weight.requires_grad_(False)
    full.origin = "fc: Linear(30, 7)"
    small = bndl.compact(full.train())
    assert small.training
    assert not small.weight.requires_grad
    assert small.bias.requires_grad
    assert small.origin == full.origin
    assert not bndl.compact(full.eval()).training


def test_a_compact_model_is_made_compact_again():
    full = sparse_layer(*DIMS[1])
    once, h = bndl.compact(full), features(50, 800)
    gone = once.num_features // 2
    with torch.no_grad():
        once.weight[:, :gone] = -0.1
        full.weight[:, once.kept[:gone]] = -0.1
    twice = bndl.compact(once)
    assert twice.num_features == once.num_features - gone
    assert twice.total_features == 800
    assert predictions_differ(full, twice, h, num_samples=5)["probs"] < 1e-5


def test_what_cannot_be_made_compact_is_refused():
    empty = sparse_layer(*DIMS[0])
    with torch.no_grad():
        empty.weight.fill_(-1)
    with pytest.raises(
        InputError, match="has no weight left, so there is nothing to keep: train it with a smaller beta"
    ):
        bndl.compact(empty)
    hooked = sparse_layer(*DIMS[0])
    hooked.register_forward_hook(lambda *_: None)
    with pytest.raises(InputError, match="has forward hooks, which compact would lose: remove them first"):
        bndl.compact(hooked)
    with pytest.raises(bndl.HeadError, match=r"call model = bndl\.convert"):
        bndl.compact(nn.Linear(3, 2))
    small = bndl.compact(sparse_layer(*DIMS[0]))
    for call in (small.reset_parameters, lambda: small.copy_linear(nn.Linear(30, 7))):
        with pytest.raises(InputError, match="a compact layer cannot"):
            call()
    for num_kept in (0, 31):
        with pytest.raises(InputError, match=r"num_kept must lie in 1\.\.30"):
            CompactLayer(30, 7, num_kept=num_kept)
    with pytest.raises(InputError, match="takes features of size 30"):
        plain_forward(small, torch.rand(2, 29))
    with pytest.raises(InputError, match="floating-point"):
        plain_forward(small, torch.ones(2, 30, dtype=torch.long))


# ------------------------------------------------------------------------------------------------- precision and devices


@pytest.mark.parametrize("B", [1, 40])
def test_precision_follows_the_input_as_in_the_full_layer(B):
    full = sparse_layer(*DIMS[1])
    small, h = bndl.compact(full), features(B, 800)
    for given in (h.bfloat16(), h.half()):
        logits, expected = plain_forward(small, given), plain_forward(full, given)
        assert logits.dtype == expected.dtype == given.dtype
        torch.testing.assert_close(logits, expected)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        for given in (h, h.bfloat16()):
            logits, expected = plain_forward(small, given), plain_forward(full, given)
            assert logits.dtype == expected.dtype == torch.float32
            torch.testing.assert_close(logits, expected, atol=1e-4, rtol=1e-5)
    double = copy.deepcopy(small).double()
    torch.testing.assert_close(plain_forward(double, h.double()).float(), plain_forward(full, h), atol=1e-4, rtol=1e-5)


def test_any_leading_dims():
    full = sparse_layer(*DIMS[1])
    small, h = bndl.compact(full), features(24, 800)
    for given in (h[0], h.view(2, 3, 4, 800), h[:0], h.view(24, 1, 800), h.t().contiguous().t()):
        logits, expected = plain_forward(small, given), plain_forward(full, given)
        assert logits.size() == expected.size()
        torch.testing.assert_close(logits, expected, atol=1e-5, rtol=1e-5)


def test_it_moves_and_is_copied():
    small, h = bndl.compact(sparse_layer(*DIMS[1])), features(20, 800)
    expected = plain_forward(small, h)
    twin = copy.deepcopy(small)
    assert torch.equal(plain_forward(twin, h), expected)
    with torch.no_grad():
        twin.weight.mul_(2)
    assert torch.equal(plain_forward(small, h), expected)
    assert copy.deepcopy(small).to("meta").kept.is_meta
    other = CompactLayer(**small.settings)
    other.load_state_dict(small.state_dict())
    assert torch.equal(plain_forward(other.eval(), h), expected)


# ----------------------------------------------------------------------------------------------------- never out of date


def changes(layer: CompactLayer) -> list:
    state = {key: value.clone() for key, value in layer.state_dict().items()}
    state["weight"].mul_(1.5)
    other = copy.deepcopy(layer)

    def by_optimizer() -> None:
        optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
        layer(features(8, 800)).logsumexp(1).sum().backward()
        optimizer.step()

    def in_place() -> None:
        with torch.no_grad():
            layer.weight[0] = 3.0

    def by_data() -> None:
        layer.weight.data.mul_(1.5)
        layer.refresh()

    def by_assignment() -> None:
        layer.weight = nn.Parameter(layer.weight.detach() * 1.5)

    def by_bias() -> None:
        with torch.no_grad():
            layer.bias.add_(torch.arange(90.0))

    return [
        by_optimizer, in_place, by_data, by_assignment, by_bias,
        lambda: layer.load_state_dict(state),
        lambda: layer.load_state_dict(state, assign=True),
        lambda: setattr(layer, "alpha_phi", 0.3),
        lambda: setattr(layer, "alpha_theta", 0.3),
        lambda: layer.half().float(),
        lambda: layer.load_state_dict({**other.state_dict(), "kept": layer.kept.sub(layer.kept[0]).flip(0).neg() + 799}),
    ]  # fmt: skip


@pytest.mark.parametrize("which", range(11))
@pytest.mark.parametrize("B", [1, 40])
def test_laid_out_weights_are_never_stale(which, B):
    small, h = bndl.compact(sparse_layer(*DIMS[1])), features(B, 800)
    before = plain_forward(small, h)
    changes(small)[which]()
    after = plain_forward(small, h)
    assert not torch.equal(after, before)
    torch.testing.assert_close(after, small(h).detach(), atol=1e-4, rtol=1e-5)  # with gradients: no laid-out weights


@torch.no_grad()
@pytest.mark.parametrize("B", [1, 3, 40])
def test_other_weights_in_the_same_memory_are_not_mistaken_for_the_old_ones(B):
    full = sparse_layer(*DIMS[1])
    small, h = bndl.compact(full), features(B, 800)
    for scale in (1.0, 2.0, 3.0, 4.0, 0.5):  # each new tensor is likely to be where the last one was
        scaled = functional_call(small, {"weight": small.weight * scale}, (h,))
        torch.testing.assert_close(scaled, functional_call(full, {"weight": full.weight * scale}, (h,)))
    given = small.weight.clone()
    for scale in (1.0, 2.0, 3.0, 4.0, 0.5):
        del small.weight
        small.weight = nn.Parameter(given * scale)
        torch.testing.assert_close(small(h), functional_call(full, {"weight": full.weight * scale}, (h,)))
    for scale in (1.0, 2.0, 3.0, 4.0, 0.5):
        small.weight.data = given * scale  # the same tensor, in memory that may have been another's
        torch.testing.assert_close(small(h), functional_call(full, {"weight": full.weight * scale}, (h,)))
    old = weakref.ref(small.weight)
    del small.weight
    assert old() is not None  # as long as weights are laid out, nothing gets the number of the one they are of
    small.weight = nn.Parameter(given)
    small(h)
    assert old() is None
    small.kept.copy_(small.kept.flip(0))
    mirrored = h[:, small.kept] @ small.phi().mean.t() + small.offset()
    torch.testing.assert_close(small(h), mirrored)


@torch.no_grad()
def test_transforms_and_parametrisations_work_as_on_the_full_layer():
    full = sparse_layer(*DIMS[1])
    small, h = bndl.compact(full), features(12, 800)
    expected = full(h)
    small(h)
    torch.testing.assert_close(torch.vmap(small)(h.view(3, 4, 800)), expected.view(3, 4, 90))
    tangent = torch.func.jvp(small, (h,), (h,))[1]
    torch.testing.assert_close(tangent, expected - full.offset())  # linear where no feature is clamped
    with forward_ad.dual_level():
        duals = [forward_ad.make_dual(layer.weight.detach(), layer.weight.detach()) for layer in (small, full)]
        found = [functional_call(layer, {"weight": w}, (h,)) for layer, w in zip((small, full), duals, strict=True)]
        torch.testing.assert_close(*(forward_ad.unpack_dual(logits).tangent for logits in found))
    nn.utils.parametrize.register_parametrization(small, "bias", nn.Identity())
    torch.testing.assert_close(small(h), expected)
    small.parametrizations.bias.original.add_(torch.arange(90.0))
    expected += torch.arange(90.0)
    torch.testing.assert_close(small(h), expected)
    nn.utils.parametrize.register_parametrization(small, "weight", nn.Identity())
    torch.testing.assert_close(small(h), expected)


def test_a_compact_layer_trains():
    small, h = bndl.compact(sparse_layer(*DIMS[0])), features(64, 30).requires_grad_()
    y = torch.arange(64) % 7
    optimizer = torch.optim.Adam(small.parameters(), lr=0.05)
    with torch.no_grad():
        start = nn.functional.cross_entropy(small(h), y)
    small.train()
    for _ in range(30):
        loss = nn.functional.cross_entropy(small(h, torch.Generator().manual_seed(0)), y) + bndl.kl(small, num_data=1e6)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert all(p.grad is not None and torch.isfinite(p.grad).all() for p in small.parameters())
    lost = torch.ones(30, dtype=torch.bool).index_fill(0, small.kept, False)
    assert (h.grad[:, ~lost] != 0).any()
    assert (h.grad[:, lost] == 0).all()
    with torch.no_grad():
        assert nn.functional.cross_entropy(small.eval()(h), y) < start


def test_inference_mode():
    small, h = bndl.compact(sparse_layer(*DIMS[1])), features(20, 800)
    expected = plain_forward(small, h)
    with torch.inference_mode():
        assert torch.equal(small(h), expected)
        torch.testing.assert_close(copy.deepcopy(small)(h), expected, atol=1e-5, rtol=1e-5)
    assert torch.equal(plain_forward(small, h), expected)
    with evaluating(small):
        assert torch.equal(small(h), expected)


# ---------------------------------------------------------------------------------------------------------------- export


@pytest.mark.parametrize("settings", [{}, {"signed": True}], ids=["plain", "signed"])
def test_the_mean_path_exports(settings):
    small, h = bndl.compact(sparse_layer(*DIMS[1], **settings)), features(20, 800) - 0.4
    expected = plain_forward(small, h)
    with torch.no_grad():
        dims = {"h": {0: torch.export.Dim("batch")}}
        exported = torch.export.export(small, (h,), dynamic_shapes=dims, strict=False)
        torch.testing.assert_close(exported.module()(h[:7]), expected[:7], atol=1e-5, rtol=1e-5)
        traced = torch.jit.trace(small, (h,))
        torch.testing.assert_close(traced(h[:7]), expected[:7], atol=1e-5, rtol=1e-5)


@pytest.mark.slow
def test_the_mean_path_runs_in_onnx(tmp_path):
    pytest.importorskip("onnxscript")
    runtime = pytest.importorskip("onnxruntime")
    small, h = bndl.compact(sparse_layer(*DIMS[1], signed=True)), features(20, 800) - 0.4
    with torch.no_grad():
        torch.onnx.export(small, (h,), tmp_path / "head.onnx", dynamo=True, verbose=False)
    session = runtime.InferenceSession(tmp_path / "head.onnx")
    (logits,) = session.run(None, {session.get_inputs()[0].name: h.numpy()})
    torch.testing.assert_close(torch.from_numpy(logits), plain_forward(small, h), atol=1e-4, rtol=1e-5)


# --------------------------------------------------------------------------------------------------------------- products


def test_which_product_follows_from_the_dims():
    assert bags_are_faster(2560, 100, 511)
    assert not bags_are_faster(2560, 100, 167)
    assert not bags_are_faster(51200 // 2, 100, 512)
    assert rows_are_faster(1, 2560, 100, 511)
    assert not rows_are_faster(1, 5090, 100, 512)
    assert [B for B in range(2, FEW) if rows_are_faster(B, 2560, 100, 511)] == list(range(5, FEW))
    assert not rows_are_faster(FEW, 51200, 100, 512)
    sparse, narrow = (bndl.compact(sparse_layer(*dims))._current_product() for dims in DIMS[1:])
    assert sparse.bags is not None
    assert (sparse.by_rows[1], sparse.by_rows[2], sparse.by_rows[FEW - 1]) == (
        True,
        False,
        True,
    )  # one row: a call of its own
    assert narrow.bags is None
    assert narrow.rows is None
    assert narrow.dense is not None


@torch.no_grad()
def test_a_head_that_is_always_faster_sparse_keeps_no_dense_weights():
    full = sparse_layer(2048, 200, 0.01, 1.0)
    product = bndl.compact(full)._current_product()
    assert product.dense is None
    for B in (0, 1, 2, 40):
        h = features(B, 2048)
        torch.testing.assert_close(product(h), full(h).detach(), atol=1e-4, rtol=1e-5)


def test_bags_are_the_product_with_the_weights():
    generator = torch.Generator().manual_seed(0)
    weights = torch.rand(9, 13, generator=generator) * (torch.rand(9, 13, generator=generator) < 0.2)
    weights[[0, 4, 8]] = 0  # empty bags at both ends
    theta = torch.rand(130, 13, generator=generator)
    bags = Bags.of(weights)
    torch.testing.assert_close(bags(theta), theta @ weights.t())
    torch.testing.assert_close(weights[bags.classes, bags.features], bags.values)
    factors = torch.tensor([1.0, 2.0, 3.0])
    repeated = bags.repeated(factors[:, None] * bags.values)(theta)
    torch.testing.assert_close(repeated, torch.cat([f * (theta @ weights.t()) for f in factors], dim=1))


def test_without_mkl_few_rows_take_the_dense_product(monkeypatch):
    monkeypatch.setattr(torch.backends.mkl, "is_available", lambda: False)
    full = sparse_layer(*DIMS[1])
    weights = full.phi().mean.detach()
    product = MeanProduct(weights, None, columns=None, state=())
    assert product.rows is None
    theta = features(3, 800)
    torch.testing.assert_close(product(theta), theta @ weights.t(), atol=1e-5, rtol=1e-5)


def test_reasons_name_the_features_of_the_full_layer():
    full = sparse_layer(30, 7, 0.1, 0.5)
    h = torch.rand(20, full.in_features, generator=torch.Generator().manual_seed(5))
    maps = h[:, :, None, None].expand(-1, -1, 2, 3)
    small = bndl.compact(full)
    assert len(small.kept) < full.num_features
    for ours, theirs in zip(reasons(small, h), reasons(full, h), strict=True):
        assert [k for k, _ in ours] == [k for k, _ in theirs]
    classes = full(h).argmax(dim=1)
    torch.testing.assert_close(contribution_map(small, maps, classes), contribution_map(full, maps, classes))


def test_a_decision_of_features_without_a_weight_is_the_bias_s_and_not_certain():
    full = sparse_layer(30, 7, 0.1, 0.5)
    dropped = sorted(set(range(full.num_features)) - set(bndl.compact(full).kept.tolist()))
    h = torch.zeros(3, full.in_features)
    h[:, dropped] = 1.0
    for layer in (full, bndl.compact(full)):
        pred = bndl.predict(layer, h)
        assert (pred.p_value == 1).all()
        assert not pred.certain.any()

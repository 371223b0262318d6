"""DecisionLayer: its mean, its draws, its gradients, what it costs to be a drop-in, and the errors it gives."""

import copy
import io
import itertools
import math
import pickle
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from torch import Tensor, nn

from bndl import DecisionLayer, kl
from bndl.errors import InputError
from bndl.layer import Posterior, rectify

FEW = settings(deadline=None, max_examples=25)
THETA, PHI = ("feature", "sample", "entry"), ("row", "entry")
COMBINATIONS = [
    pytest.param(
        {"theta_shape": theta, "phi_shape": phi, "signed": signed, "dense_map": dense},
        id="-".join([theta, phi, *["signed"] * signed, *["dense"] * dense]),
    )
    for theta, phi, signed, dense in itertools.product(THETA, PHI, (False, True), (False, True))
]


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def make(in_features: int = 5, out_features: int = 4, *, seed: int = 0, **arguments: Any) -> DecisionLayer:
    """A layer in no special place: every parameter is moved a little, the noise is considerable."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        layer = DecisionLayer(in_features, out_features, **({"init_shape": 3.0} | arguments))
        with torch.no_grad():
            for parameter in layer.parameters():
                parameter += 0.3 * torch.randn(parameter.size())
    return layer


def features(*dims: int, seed: int = 0) -> Tensor:
    return torch.randn(*dims, generator=seeded(seed))


def labels(count: int, num_classes: int = 4) -> Tensor:
    return torch.arange(count) % num_classes


def loss_of(layer: nn.Module, h: Tensor) -> Tensor:
    return F.cross_entropy(layer(h), labels(len(h))) + kl(layer, num_data=10, beta=0.1)


def mean_by_hand(layer: DecisionLayer, h: Tensor) -> Tensor:
    h = torch.cat([h.relu(), (-h).relu()], dim=-1) if layer.signed else h
    h = layer.dense_map(h) if layer.dense_map is not None else h
    logits = (h - layer.alpha_theta).relu() @ (layer.weight - layer.alpha_phi).relu().t()
    return logits if layer.bias is None else logits + layer.bias.relu()


# ---------------------------------------------------------------------------------------------------- the mean


@pytest.mark.parametrize("arguments", COMBINATIONS)
def test_eval_is_the_product_of_the_means_and_train_is_a_draw(arguments):
    layer, h = make(**arguments, alpha_theta=0.2, alpha_phi=0.1), features(7, 5)
    assert not torch.equal(layer.train()(h, seeded(1)), layer(h, seeded(2)))
    assert torch.equal(layer.eval()(h, seeded(1)), layer(h, seeded(2)))
    torch.testing.assert_close(layer(h), mean_by_hand(layer, h))


@pytest.mark.parametrize("arguments", COMBINATIONS)
def test_infinite_shapes_are_nonnegative_matrix_factorisation(arguments):
    """No noise: the draw in train() is the mean, to the bit at k = inf and to 1e-4 at k = 1e6."""
    layer, h = make(**arguments), features(7, 5)
    mean = layer.eval()(h)
    for raw, same in ((1e6, lambda drawn: torch.allclose(drawn, mean, rtol=1e-4)), (math.inf, mean.equal)):
        with torch.no_grad():
            for name, parameter in layer.named_parameters():
                if "raw_shape" in name or name == "theta_shape_map.bias":
                    parameter.fill_(raw)
        assert same(layer.train()(h, seeded()))


@FEW
@given(leading=st.lists(st.integers(0, 3), max_size=3), training=st.booleans(), theta=st.sampled_from(THETA))
def test_any_leading_dims(leading, training, theta):
    layer = make(theta_shape=theta).train(training)
    h = features(*leading, 5)
    logits = layer(h, seeded())
    assert logits.size() == (*leading, 4)
    torch.testing.assert_close(logits.reshape(-1, 4), layer(h.reshape(-1, 5), seeded()))


@FEW
@given(in_features=st.integers(1, 9), out_features=st.integers(1, 7), signed=st.booleans(), bias=st.booleans())
def test_a_dense_head_is_taken_over_exactly(in_features, out_features, signed, bias):
    linear = nn.Linear(in_features, out_features, bias=bias).double()
    layer = DecisionLayer(in_features, out_features, signed=signed, bias=bias, alpha_phi=0.3).double().eval()
    layer.copy_linear(linear)
    h = features(20, in_features).double()
    h = h if signed else h.abs()
    torch.testing.assert_close(layer(h).softmax(-1), linear(h).softmax(-1))
    assert layer.phi().mean.min() >= 0


def test_looks_like_a_linear_layer():
    linear, layer = nn.Linear(5, 4), DecisionLayer(5, 4)
    assert (layer.in_features, layer.out_features) == (linear.in_features, linear.out_features)
    assert layer.weight.size() == linear.weight.size()
    assert layer.bias is not None
    assert layer.bias.size() == linear.bias.size()
    assert DecisionLayer(5, 4, bias=False).bias is None


def test_starts_at_the_shape_that_was_asked_for_and_can_start_again():
    for theta, phi, wanted in itertools.product(THETA, PHI, (0.2, 10.0, 1e5)):
        layer = DecisionLayer(5, 4, theta_shape=theta, phi_shape=phi, init_shape=wanted)
        for _ in range(2):
            for shape in (layer.phi().shape, layer.theta(features(3, 5)).shape):
                torch.testing.assert_close(shape, torch.full_like(shape, wanted))
            with torch.no_grad():
                [parameter.normal_() for parameter in layer.parameters()]
            layer.reset_parameters()


def test_thresholds_remove_what_lies_below_them():
    layer = make(alpha_theta=0.5, alpha_phi=0.2)
    h = torch.tensor([[0.5, 0.4, -3.0, 0.75, 2.0]])
    torch.testing.assert_close(layer.theta(h).mean, torch.tensor([[0.0, 0.0, 0.0, 0.25, 1.5]]))
    with torch.no_grad():
        layer.weight.copy_(torch.tensor([0.2, 0.1, -1.0, 0.3, 1.2]).repeat(4, 1))
    torch.testing.assert_close(layer.phi().mean[0], torch.tensor([0.0, 0.0, 0.0, 0.1, 1.0]))
    assert layer.num_weights() == 4 * 2


def test_the_dense_map_counts_among_the_weights():
    plain, mapped = DecisionLayer(5, 4), DecisionLayer(5, 4, dense_map=True)
    for layer in (plain, mapped):
        nn.init.ones_(layer.weight)
    assert (plain.num_weights(), mapped.num_weights()) == (20, 25)
    assert mapped.dense_map is not None
    nn.init.ones_(mapped.dense_map.weight)
    assert mapped.num_weights() == 45


def test_a_class_that_lost_all_its_weights_is_noticed():
    layer = make(alpha_phi=0.1)
    nn.init.ones_(layer.weight)
    assert layer.empty_classes() == []
    with torch.no_grad():
        layer.weight[1] = -0.5
        layer.weight[3] = 0.1
        layer.weight[2, 1:] = 0.0
    assert layer.empty_classes() == [1, 3]
    constant = layer.eval()(features(9, 5))[:, [1, 3]]
    assert torch.equal(constant, constant[:1].expand(9, 2))


# ---------------------------------------------------------------------------------------------------- the draws


@pytest.mark.parametrize(("theta_shape", "phi_shape"), list(itertools.product(THETA, PHI)))
def test_covariance_of_the_logits_against_200_000_draws(theta_shape, phi_shape):
    """Cov(l_c, l_c') = sum_k v_k m_kc m_kc' + [c = c'] sum_k (v_k + m_k^2) V_kc."""
    layer, S = make(theta_shape=theta_shape, phi_shape=phi_shape).double(), 200_000
    with torch.no_grad():
        theta, phi = layer.theta(features(1, 5).double().abs()), layer.phi()
        thetas = Posterior(theta.mean.expand(S, 5), theta.shape).sample(generator=seeded(1))
        phis = Posterior(phi.mean.expand(S, 4, 5), phi.shape).sample(generator=seeded(2))
        logits = torch.einsum("sk,sck->sc", thetas, phis)
        m, v, P, V = theta.mean[0], theta.variance[0], phi.mean, phi.variance
        expected = (P * v) @ P.t() + torch.diag(V @ (v + m.square()))
    torch.testing.assert_close(logits.mean(0), P @ m, rtol=0.01, atol=0.01)
    torch.testing.assert_close(logits.t().cov(), expected, rtol=0.03, atol=0.02 * expected.diagonal().max().item())


def test_a_forward_pass_draws_theta_for_each_example_and_phi_once():
    """So two examples of one batch covary by Phi alone: Cov(l_1c, l_2c) = sum_k m_1k m_2k V_kc."""
    layer, generator, repeats = make(3, 2).double(), seeded(5), 6000
    h = torch.tensor([[1.0, 2.0, 0.5], [1.0, 2.0, 0.5]], dtype=torch.float64)
    with torch.no_grad():
        drawn = torch.stack([layer(h, generator) for _ in range(repeats)])
        phi, theta = layer.phi(), layer.theta(h)
        m, v, P = theta.mean[0], theta.variance[0], phi.mean
        own = (P.square() @ v) + phi.variance @ (v + m.square())
    centred = drawn - layer.eval()(h)
    spread = own.sqrt()
    assert (centred.mean(0).abs() < 0.06 * spread).all()
    torch.testing.assert_close(centred.square().mean((0, 1)), own, rtol=0.1, atol=0)
    shared = (centred[:, 0] * centred[:, 1]).mean(0)
    assert ((shared - phi.variance @ m.square()).abs() < 0.06 * own).all()


@pytest.mark.parametrize("arguments", COMBINATIONS)
def test_equal_generators_give_equal_bits_and_the_global_one_stays_untouched(arguments):
    layer, h = make(**arguments), features(7, 5)
    before = torch.get_rng_state()
    assert torch.equal(layer(h, seeded(3)), layer(h, seeded(3)))
    assert torch.equal(torch.get_rng_state(), before)


# ---------------------------------------------------------------------------------------------------- gradients


@pytest.mark.parametrize("arguments", COMBINATIONS)
def test_every_parameter_and_the_input_have_finite_gradients(arguments):
    layer, h = make(**arguments), features(8, 5).requires_grad_()
    loss_of(layer, h).backward()
    assert h.grad is not None
    assert h.grad.isfinite().all()
    for name, parameter in layer.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.isfinite().all(), name
        assert parameter.grad.any(), name


@pytest.mark.parametrize("training", [True, False])
def test_every_active_weight_has_a_gradient_of_its_own(training):
    layer, h = make(6, 5).train(training), features(40, 6).abs()
    F.cross_entropy(layer(h, seeded()), labels(40, 5)).backward()
    gradient = layer.weight.grad
    assert gradient is not None
    assert torch.linalg.matrix_rank(gradient) >= 4
    active = gradient[layer.weight > 0]
    assert (active != 0).all()
    assert len(active.unique()) == len(active)


@FEW
@given(pair=hnp.arrays("float32", (2, 6), elements=st.floats(-4, 4, width=32)))
def test_rectify_hears_only_calls_to_grow_below_zero(pair):
    """Down a gradient g an entry moves by -g: below zero only g < 0 raises it, above zero all pass."""
    x, g = torch.from_numpy(pair)
    x.requires_grad_()
    y = rectify(x)
    assert torch.equal(y, x.relu())
    (gradient,) = torch.autograd.grad(y, x, g)
    assert torch.equal(gradient, torch.where(x > 0, g, g.clamp_max(0)))


@pytest.mark.parametrize("dead", ["weight", "bias"])
def test_dead_weights_come_back_when_the_loss_wants_them(dead):
    layer = DecisionLayer(3, 3, init_shape=50.0)
    with torch.no_grad():
        layer.weight.zero_()
        getattr(layer, dead).fill_(-0.2)
    optimizer, target = torch.optim.SGD(layer.parameters(), lr=0.5), torch.eye(3) * 2
    y = torch.arange(3) if dead == "weight" else torch.zeros(3, dtype=torch.long)
    for _ in range(60):
        optimizer.zero_grad()
        F.cross_entropy(layer(target, seeded()), y).backward()
        optimizer.step()
    revived = layer.weight.diagonal() if dead == "weight" else layer.bias[:1]
    assert (revived > 0.1).all()
    kept = layer.weight[~torch.eye(3, dtype=torch.bool)] if dead == "weight" else layer.bias[1:]
    assert torch.equal(kept, torch.full_like(kept, -0.2))  # not wanted: waits where it is, does not drift


@pytest.mark.parametrize("kind", ["float32", "bfloat16", "autocast"])
@pytest.mark.parametrize("shape", [0.1001, 1.0, 1e6])
@FEW
@given(theta=st.sampled_from(THETA), scale=st.sampled_from([0.0, 1e-30, 1e-6, 1.0, 1e6]), seed=st.integers(0, 999))
def test_loss_and_gradients_are_finite_at_the_extremes(kind, shape, theta, scale, seed):
    layer = make(theta_shape=theta, init_shape=shape, seed=seed)
    layer.reset_parameters()
    with torch.no_grad():
        layer.weight.mul_(scale)
        layer.weight[0] = 0.0
    h = features(8, 5, seed=seed) * max(scale, 1e-30)
    h[:2] = 0.0
    if kind == "bfloat16":
        layer, h = layer.bfloat16(), h.bfloat16()
    h.requires_grad_()
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=kind == "autocast"):
        loss = loss_of(layer, h)
    loss.backward()
    assert loss.isfinite()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in (h, *layer.parameters()))


def test_half_precision_gives_its_own_dtype_and_the_same_answer():
    layer, h = make(), features(7, 5)
    expected = layer.eval()(h)
    twin = copy.deepcopy(layer).bfloat16()
    halved, phi = twin(h.bfloat16()), twin.phi()
    assert (halved.dtype, phi.mean.dtype, phi.shape.dtype) == (torch.bfloat16, torch.float32, torch.float32)
    torch.testing.assert_close(halved.float(), expected, rtol=0.03, atol=0.03)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        torch.testing.assert_close(layer(h), expected)  # the head is small: autocast costs it no precision


def test_per_example_gradients_by_torch_func():
    layer, h = make().eval(), features(6, 5)

    def logit(parameters: dict[str, Tensor], row: Tensor) -> Tensor:
        return torch.func.functional_call(layer, parameters, (row,))[0]

    parameters = {name: parameter.detach() for name, parameter in layer.named_parameters()}
    together = torch.func.vmap(torch.func.grad(logit), (None, 0))(parameters, h)["weight"]
    for row, found in zip(h, together, strict=True):
        (expected,) = torch.autograd.grad(layer(row)[0], layer.weight)
        torch.testing.assert_close(found, expected)


# ---------------------------------------------------------------------------------------------------- a good citizen


@pytest.mark.parametrize("arguments", COMBINATIONS)
@pytest.mark.parametrize("how", ["deepcopy", "pickle", "torch.save", "state_dict"])
def test_copies_are_equal_also_right_after_training(how, arguments):
    layer, h = make(**arguments, alpha_phi=0.1), features(7, 5)
    loss_of(layer, h)
    if how == "deepcopy":
        twin = copy.deepcopy(layer)
    elif how == "pickle":
        twin = pickle.loads(pickle.dumps(layer))
    elif how == "torch.save":
        torch.save(layer, stream := io.BytesIO())
        twin = torch.load(io.BytesIO(stream.getvalue()), weights_only=False)
    else:
        twin = DecisionLayer(**layer.settings)
        twin.load_state_dict(layer.state_dict())
    assert torch.equal(twin.train()(h, seeded()), layer.train()(h, seeded()))
    assert torch.equal(twin.eval()(h), layer.eval()(h))
    assert twin.settings == layer.settings
    with torch.no_grad():
        twin.weight += 1
    assert not torch.equal(twin(h), layer(h))


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_compiles_whole_for_training_and_for_eval(backend):
    if backend == "inductor" and not shutil.which("g++"):
        pytest.skip("torch's default compiler needs g++")
    torch._dynamo.reset()
    layer, h = make(), features(8, 5)
    compiled = torch.compile(layer, backend=backend, fullgraph=True)
    with torch.random.fork_rng():
        loss = loss_of(compiled, h)
        assert not torch.equal(compiled(h), compiled(h))
    loss.backward()
    for name, parameter in layer.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.isfinite().all(), name
        assert parameter.grad.any(), name
    torch.testing.assert_close(compiled.eval()(h), mean_by_hand(layer, h))
    with torch.no_grad():
        torch.testing.assert_close(compiled(h), mean_by_hand(layer, h))


@pytest.mark.parametrize("theta_shape", THETA)
@pytest.mark.parametrize("frozen", [True, False])
def test_the_mean_path_exports_with_any_batch_size_and_without_lgamma(theta_shape, frozen):
    layer = make(theta_shape=theta_shape, signed=True, dense_map=True).eval().requires_grad_(not frozen)
    exported = torch.export.export(layer, (features(3, 5),), dynamic_shapes=({0: torch.export.Dim("batch")},))
    for size in (2, 11):
        torch.testing.assert_close(exported.module()(features(size, 5)), layer(features(size, 5)))
    assert "lgamma" not in str(exported)


def train_one_step(rank: int, folder: str) -> None:
    torch.set_num_threads(1)
    store = f"file://{folder}/store"
    torch.distributed.init_process_group("gloo", init_method=store, rank=rank, world_size=2)
    torch.manual_seed(rank)  # other weights, noise and data on each rank: only the averaging can make them equal
    inner = nn.Sequential(nn.Linear(6, 5), nn.ReLU(), DecisionLayer(5, 4, theta_shape="sample", init_shape=3.0))
    model = nn.parallel.DistributedDataParallel(inner)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    before = [parameter.detach().clone() for parameter in model.parameters()]
    (F.cross_entropy(model(torch.randn(8, 6)), labels(8)) + kl(model, num_data=16, beta=0.1)).backward()
    optimizer.step()
    after = [parameter.detach().clone() for parameter in model.parameters()]
    torch.save((before, after), f"{folder}/{rank}.pt")
    torch.distributed.destroy_process_group()


@pytest.mark.slow
@pytest.mark.skipif(not torch.distributed.is_available(), reason="torch without distributed")
def test_two_processes_stay_in_step(tmp_path: Path):
    torch.multiprocessing.spawn(train_one_step, (str(tmp_path),), nprocs=2)
    (before, first), (_, second) = (torch.load(tmp_path / f"{rank}.pt") for rank in range(2))
    for old, one, other in zip(before, first, second, strict=True):
        assert torch.equal(one, other)
        assert not torch.equal(one, old)


# ---------------------------------------------------------------------------------------------------- errors


@pytest.mark.parametrize("dims", [(7, 4), (6,), (5, 1)])
def test_wrong_dims_are_named(dims):
    words = f"takes features of size 5, got dims {dims}; its input must be (..., 5)."
    with pytest.raises(InputError, match=re.escape(words)):
        make()(torch.rand(dims))


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"in_features": 0}, "at least one feature and one class, got 0 and 4"),
        ({"out_features": -1}, "at least one feature and one class, got 5 and -1"),
        ({"theta_shape": "row"}, "theta_shape must be one of feature, sample, entry, got 'row'"),
        ({"phi_shape": "feature"}, "phi_shape must be one of row, entry, got 'feature'"),
        ({"alpha_theta": -0.1}, "alpha_theta must be a finite number >= 0, got -0.1"),
        ({"alpha_phi": math.nan}, "alpha_phi must be a finite number >= 0, got nan"),
        ({"alpha_phi": math.inf}, "alpha_phi must be a finite number >= 0, got inf"),
        ({"min_shape": 0.05}, "need 0.1 <= min_shape < init_shape < inf, got 0.05 and 10.0"),
        ({"init_shape": 0.1}, "need 0.1 <= min_shape < init_shape < inf, got 0.1 and 0.1"),
        ({"init_shape": math.inf}, "need 0.1 <= min_shape < init_shape < inf, got 0.1 and inf"),
    ],
)
def test_bad_settings_are_named(arguments, words):
    with pytest.raises(InputError, match=re.escape(words)):
        DecisionLayer(**({"in_features": 5, "out_features": 4} | arguments))

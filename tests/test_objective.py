"""The KL term: both treatments of zero, the presets, how it scales, and the errors it gives."""

import math
import re
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from bndl import DecisionLayer, Objective, kl
from bndl.errors import HeadError, InputError
from bndl.layer import Posterior
from bndl.objective import PRESETS, entry_cost, gated_cost, slab_price
from bndl.weibull import kl_to_gamma

FEW = settings(deadline=None, max_examples=60)
ANY_SHAPE = st.floats(-1, 6).map(lambda exponent: max(10.0**exponent, 0.1))
PRIOR = {"prior_shape": st.floats(0.1, 10), "prior_rate": st.floats(0.1, 10)}
GATE, CLAMP = Objective(), Objective(zero="paper")


def double(value: float) -> Tensor:
    return torch.tensor(value, dtype=torch.float64)


def cost_and_slope(mean: float, shape: float, objective: Objective, *, dtype: torch.dtype = torch.float64) -> Any:
    m = torch.tensor(mean, dtype=dtype, requires_grad=True)
    k = torch.tensor(shape, dtype=dtype, requires_grad=True)
    cost = entry_cost(Posterior(m, k), objective)
    slopes = torch.autograd.grad(cost, (m, k))
    return cost.item(), slopes[0].item(), slopes[1].item()


def trained(**arguments: Any) -> DecisionLayer:
    """A layer that has just seen a batch in train()."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        layer = DecisionLayer(6, 4, init_shape=3.0, **arguments)
        layer(torch.randn(8, 6).to(layer.weight))
    return layer


def phi_sum(layer: DecisionLayer, objective: Objective) -> float:
    return entry_cost(layer.phi(), objective).sum().item()


# ---------------------------------------------------------------------------------------------------- the gate


@FEW
@given(mean=st.floats(0.001, 20), shape=ANY_SHAPE, edge=st.floats(0.01, 1), activity=st.floats(0.01, 0.99))
def test_the_gate_is_the_spike_and_slab_of_its_docstring(mean, shape, edge, activity):
    rho = -math.expm1(-mean / edge)
    slab = kl_to_gamma(double(mean / rho), double(shape)).item()
    cost, _, _ = cost_and_slope(mean, shape, Objective(edge=edge, activity=activity))
    expected = rho * (slab + math.log((1 - activity) / activity))
    assert cost == pytest.approx(expected, rel=1e-4, abs=1e-5 * rho)


@FEW
@given(shape=ANY_SHAPE, activity=st.floats(0.01, 0.5))
def test_the_gate_costs_nothing_at_zero_and_pulls_small_entries_there(shape, activity):
    objective = Objective(activity=activity)
    assert cost_and_slope(0.0, shape, objective) == (0, 0, 0)
    for mean in (1e-12, 1e-6, 1e-4):
        cost, slope, _ = cost_and_slope(mean, shape, objective)
        assert slope > 0
        assert 0 < cost == pytest.approx(mean * slope, rel=0.05)  # a straight line down to (0, 0): no jump


@FEW
@given(mean=st.floats(1e-9, 100), shape=ANY_SHAPE)
def test_the_gate_has_no_jump_anywhere(mean, shape):
    near, slope, _ = cost_and_slope(mean, shape, GATE)
    far, _, _ = cost_and_slope(mean * (1 + 1e-6), shape, GATE)
    assert far - near == pytest.approx(slope * mean * 1e-6, rel=0.01, abs=1e-9)


@FEW
@given(times=st.floats(20, 1e6), shape=ANY_SHAPE, activity=st.floats(0.01, 0.99), **PRIOR)
def test_far_above_its_edge_the_gate_is_the_closed_form_plus_a_price(times, shape, activity, prior_shape, prior_rate):
    objective = Objective(activity=activity, prior_shape=prior_shape, prior_rate=prior_rate, edge=0.05)
    mean = times * 0.05 * prior_shape / prior_rate
    closed = kl_to_gamma(double(mean), double(shape), prior_shape=prior_shape, prior_rate=prior_rate).item()
    cost, _, _ = cost_and_slope(mean, shape, objective)
    assert cost == pytest.approx(closed + math.log((1 - activity) / activity), rel=1e-5, abs=1e-5)


@FEW
@given(
    mean=st.floats(0, 1e6, width=32, allow_subnormal=False),
    shape=ANY_SHAPE,
    objective=st.sampled_from([GATE, CLAMP]),
    dtype=st.sampled_from([torch.float32, torch.float64, torch.bfloat16]),
)
def test_costs_and_gradients_are_finite(mean, shape, objective, dtype):
    assert all(math.isfinite(value) for value in cost_and_slope(mean, shape, objective, dtype=dtype))


@pytest.mark.parametrize("mean", [1e-45, 1e-42, 1e-40])
@pytest.mark.parametrize("objective", [GATE, CLAMP], ids=["gate", "paper"])
def test_gradients_are_finite_even_at_subnormal_means(mean, objective):
    assert all(math.isfinite(value) for value in cost_and_slope(mean, 10.0, objective, dtype=torch.float32))


def test_an_entry_that_the_data_do_not_need_comes_to_rest_at_zero_under_the_gate_only():
    """Gradient descent on the cost alone, from a small mean: the gate lets it go, the clamp drives it to the prior."""
    ends = {}
    for objective in (GATE, CLAMP):
        m = torch.tensor(0.03, requires_grad=True)
        optimizer = torch.optim.SGD([m], lr=1e-3)
        for _ in range(300):
            optimizer.zero_grad()
            entry_cost(Posterior(m.relu(), torch.tensor(10.0)), objective).backward()
            optimizer.step()
        ends[objective.zero] = m.item()
    assert ends["gate"] <= 0
    assert ends["paper"] > 0.5


@FEW
@given(
    means=st.lists(st.floats(1e-12, 1e6) | st.just(0.0), min_size=1, max_size=4),
    shape=ANY_SHAPE,
    edge=st.floats(0.01, 1),
    activity=st.floats(0.01, 0.99),
    **PRIOR,
)
def test_the_slope_by_hand_is_autograds(means, shape, edge, activity, prior_shape, prior_rate):
    objective = Objective(edge=edge, activity=activity, prior_shape=prior_shape, prior_rate=prior_rate)
    mean = torch.tensor(means, dtype=torch.float64, requires_grad=True)
    costs = entry_cost(Posterior(mean, double(shape)), objective)
    (expected,) = torch.autograd.grad(costs.sum(), mean)
    total, slope = gated_cost(mean.detach(), slab_price(double(shape), objective), objective)
    assert total.item() == pytest.approx(costs.sum().item(), rel=1e-9, abs=1e-12)
    active = mean > 0
    torch.testing.assert_close(slope[active], expected[active], rtol=1e-6, atol=1e-9)
    beyond = cost_and_slope(1e-13, shape, objective)[1]
    torch.testing.assert_close(slope[~active], torch.full_like(slope[~active], beyond), rtol=1e-6, atol=1e-9)


@FEW
@given(mean=st.floats(0, 2.0**40, width=32), shape=ANY_SHAPE)
def test_the_slope_by_hand_is_finite_in_float32(mean, shape):
    price = slab_price(torch.tensor(shape), GATE)
    total, slope = gated_cost(torch.tensor([mean]), price, GATE)
    assert total.isfinite()
    assert slope.isfinite().all()


# ---------------------------------------------------------------------------------------------------- the paper's clamp


@FEW
@given(exponent=st.floats(-9.5, -2), shape=ANY_SHAPE)
def test_the_papers_clamp_is_the_closed_form_and_repels(exponent, shape):
    mean = 10.0**exponent
    cost, slope, _ = cost_and_slope(mean, shape, CLAMP)
    closed = kl_to_gamma(double(mean), double(shape)).item()
    assert cost == pytest.approx(closed, rel=1e-9)
    assert slope == pytest.approx(1 - 1 / mean, rel=1e-6)


@FEW
@given(mean=st.floats(0, 9e-11), shape=ANY_SHAPE)
def test_below_the_papers_clamp_the_cost_is_large_flat_and_without_gradient(mean, shape):
    cost, slope, _ = cost_and_slope(mean, shape, CLAMP)
    assert cost == pytest.approx(cost_and_slope(0.0, shape, CLAMP)[0])
    assert cost > 20
    assert slope == 0


def test_presets_are_the_authors():
    paper = {
        "paper-resnet": (1e-6, "none"),
        "paper-vit": (1e-6, "feature-mean"),
        "paper-finetune": (1e-8, "feature-mean"),
    }
    assert set(PRESETS) == {"default", *paper}
    for name, (beta, phi) in paper.items():
        assert PRESETS[name] == Objective(beta=beta, phi=phi, zero="paper", prior_shape=1.0, prior_rate=1.0)
    assert PRESETS["default"] == Objective()
    assert (Objective().zero, Objective().phi) == ("gate", "sum")


# ---------------------------------------------------------------------------------------------------- the sum


@pytest.mark.parametrize("name", list(PRESETS))
@pytest.mark.parametrize("signed", [False, True])
def test_kl_is_theta_per_example_plus_phi_per_data_set(name, signed):
    layer, objective = trained(signed=signed), PRESETS[name]
    assert layer._last_theta is not None
    theta = entry_cost(layer._last_theta, objective).sum().item() / 8
    phi = phi_sum(layer, objective)
    divisor = {"sum": 50, "feature-mean": 50 * layer.num_features, "none": math.inf}[objective.phi]
    cost = kl(layer, num_data=50, objective=name).item()
    assert cost == pytest.approx(objective.beta * (theta + phi / divisor), rel=1e-4)


@FEW
@given(num_data=st.integers(1, 10**9), beta=st.floats(0, 10))
def test_kl_is_linear_in_beta_and_in_one_over_num_data(num_data, beta):
    layer = trained()
    without = kl(layer, num_data, objective=Objective(beta=1, phi="none")).item()
    cost = kl(layer, num_data, beta=beta).item()
    assert cost == pytest.approx(beta * (without + phi_sum(layer, GATE) / num_data), rel=1e-4, abs=1e-9)


def test_a_beta_of_zero_costs_nothing_and_can_be_differentiated(monkeypatch):
    layer = trained(dtype=torch.float64)
    monkeypatch.setattr("bndl.objective.entry_cost", None)  # is not called
    cost = kl(layer, 20, beta=0.0)
    assert cost.item() == 0
    assert cost.dtype == torch.float64
    cost.backward()
    assert torch.equal(layer.weight.grad, torch.zeros_like(layer.weight))


def test_a_beta_of_zero_excuses_no_error():
    with pytest.raises(InputError, match="num_data is the number"):
        kl(trained(), 0, beta=0.0)
    with pytest.raises(InputError, match="no objective is called"):
        kl(trained(), 10, objective="mine", beta=0.0)
    with pytest.raises(HeadError, match="no decision layer"):
        kl(nn.Linear(3, 2), 10, beta=0.0)
    with pytest.raises(InputError, match="in train\\(\\) mode first"):
        kl(DecisionLayer(6, 4), 10, beta=0.0)


def test_layers_add_up():
    first, second = trained(), trained(theta_shape="entry")
    both = kl(nn.ModuleList([first, second]), 20).item()
    assert both == pytest.approx(kl(first, 20).item() + kl(second, 20).item(), rel=1e-5)


def test_kl_belongs_to_the_last_batch_and_reaches_the_features():
    layer, h = trained(), torch.rand(8, 6).requires_grad_()
    layer(torch.rand(3, 6))
    layer(h)
    (gradient,) = torch.autograd.grad(kl(layer, 20), h)
    assert (gradient[h > 0] != 0).all()


def test_the_kl_moves_the_posterior_to_the_prior():
    """Nothing but the KL to minimise: shapes come to 1, and active means to the prior's mean."""
    layer = DecisionLayer(4, 3, init_shape=5.0)
    nn.init.constant_(layer.weight, 3.0)
    optimizer = torch.optim.Adam(layer.parameters(), lr=0.05)
    for _ in range(300):
        optimizer.zero_grad()
        layer(torch.ones(1, 4))
        kl(layer, num_data=1, beta=1.0).backward()
        optimizer.step()
    torch.testing.assert_close(layer.phi().mean, torch.ones(3, 4), rtol=0.02, atol=0)
    torch.testing.assert_close(layer.phi().shape, torch.ones(4), rtol=0.02, atol=0)


# ---------------------------------------------------------------------------------------------------- errors


def test_without_a_training_forward_the_error_says_what_to_do():
    new, after_eval = DecisionLayer(6, 4), trained()
    after_eval.eval()(torch.rand(2, 6))
    for layer in (new, after_eval.train()):
        with pytest.raises(InputError, match=re.escape("call the model on one in train() mode first")):
            kl(layer, 10)


def test_a_model_without_the_layer_is_told_to_convert():
    with pytest.raises(HeadError, match=r"Linear has no decision layer: call model = bndl.convert\(model\) first"):
        kl(nn.Linear(3, 2), 10)


@pytest.mark.parametrize("num_data", [0, -5, math.nan])
def test_num_data_must_be_a_count(num_data):
    with pytest.raises(InputError, match=f"num_data is the number of training examples, at least 1; got {num_data}"):
        kl(trained(), num_data)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"beta": -1.0}, "beta must be >= 0"),
        ({"beta": math.nan}, "beta must be >= 0"),
        ({"prior_shape": 0.0}, "prior_shape, prior_rate and edge > 0"),
        ({"prior_rate": -1.0}, "prior_shape, prior_rate and edge > 0"),
        ({"edge": 0.0}, "prior_shape, prior_rate and edge > 0"),
        ({"activity": 1.0}, "activity is a share strictly between 0 and 1, got 1.0"),
        ({"activity": 0.0}, "activity is a share strictly between 0 and 1, got 0.0"),
        ({"zero": "clamp"}, "gate.*paper"),
        ({"phi": "mean"}, "sum.*feature-mean.*none"),
    ],
)
def test_bad_settings_are_named(arguments, words):
    with pytest.raises(InputError, match=words):
        Objective(**arguments)


def test_an_unknown_preset_lists_the_known():
    with pytest.raises(
        InputError, match="no objective is called 'paper'; choose from default, paper-resnet, paper-vit"
    ):
        kl(trained(), 10, objective="paper")


def test_a_negative_beta_for_warm_up_is_refused():
    with pytest.raises(InputError, match="beta must be >= 0"):
        kl(trained(), 10, beta=-0.1)


def test_loss_with_everything_at_zero_is_finite():
    """m = 0 in every entry of theta and Phi: the limit in which the closed form diverges."""
    for objective in PRESETS:
        layer, h = trained(), torch.zeros(5, 6, requires_grad=True)
        nn.init.zeros_(layer.weight)
        loss: Tensor = F.cross_entropy(layer(h), torch.arange(5) % 4) + kl(layer, 10, objective=objective)
        loss.backward()
        assert loss.isfinite()
        assert all(p.grad is not None and p.grad.isfinite().all() for p in (h, *layer.parameters()))

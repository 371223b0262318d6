"""From dense to a handful of weights: what is counted, what is chosen, what is kept."""

import copy
import math
import warnings
from dataclasses import replace

import pytest
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import bndl
from bndl.convert import find_layer
from bndl.errors import InputError
from bndl.features import FeatureSet, features_of
from bndl.layer import ACTIVE_ABOVE, DecisionLayer
from bndl.sparsify import noise, refit, run, walk
from bndl.sparsify import pool as pool_module
from bndl.sparsify.pool import Head, Pool, Slopes
from bndl.sparsify.walk import Goal

C, HIDDEN = 10, 48


@pytest.fixture(scope="module", autouse=True)
def quick():
    """Shapes that are nearly right and few second thoughts will do here, and take a tenth of the time."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(run, "_STEPS", 20)
        patch.setattr(walk, "_HANDFUL", 0)
        patch.setattr(walk, "_EXCHANGES", 1)
        yield


@pytest.fixture(scope="module")
def digits():
    images, labels = load_digits(return_X_y=True)
    x, y = torch.tensor(images, dtype=torch.float32) / 16, torch.tensor(labels)
    order = torch.randperm(len(y), generator=torch.Generator().manual_seed(0))
    return [TensorDataset(x[rows], y[rows]) for rows in order.split([1000, 400, 397])]


@pytest.fixture(scope="module")
def network(digits):
    """A small network that knows its digits."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, C))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    x, y = digits[0].tensors
    for _ in range(150):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
    return bndl.convert(model)


@pytest.fixture(scope="module")
def path(network, digits):
    return bndl.sparsify(network, digits[0], digits[1], num_points=8)


def layer_of(model):
    return next(module for module in model.modules() if isinstance(module, DecisionLayer))


def accuracy(model, data):
    x, y = data.tensors
    return float((model.eval()(x).argmax(1) == y).float().mean())


# ---------------------------------------------------------------------------------------------------------------- the path


def test_goes_from_dense_to_one_weight_a_class_and_counts_what_is_there(path):
    shares = [point.nnz for point in path.points]
    assert shares == sorted(shares, reverse=True)
    assert shares[-1] == pytest.approx(1 / HIDDEN)
    for model, point in zip(path, path.points, strict=True):
        layer = layer_of(model)
        active = int((layer.weight - layer.alpha_phi > ACTIVE_ABOVE).sum())
        assert point.weights == active == layer.num_weights()
        assert point.nnz == active / layer.weight.numel()
        assert point.weights_per_class == active / C
        assert point.empty_classes == ()
        assert (layer.phi().mean.max(dim=1).values > ACTIVE_ABOVE).all()


def test_keeps_the_accuracy_on_data_that_it_never_saw(path, network, digits):
    dense = accuracy(network, digits[2])
    tenth = path[path.at(0.15)]
    assert layer_of(tenth).num_weights() <= 0.15 * C * HIDDEN
    assert accuracy(tenth, digits[2]) > dense - 0.05
    few = next(i for i, point in enumerate(path.points) if point.weights_per_class < 3)
    assert accuracy(path[few], digits[2]) > 0.6


def test_beats_the_papers_threshold_where_weights_are_few(path, network, digits):
    swept = bndl.sparsify(network, digits[0], digits[1], num_points=8, mode="threshold")
    few = path.at(0.1)
    other = swept[swept.at(path.points[few].nnz * 1.2)]
    assert accuracy(path[few], digits[2]) > accuracy(other, digits[2]) + 0.02


def test_the_figures_are_those_of_the_models(path, digits):
    for index in (0, path.chosen):
        point, found = path.points[index], bndl.predict(path[index], digits[1].tensors[0])
        right = float((found.labels == digits[1].tensors[1]).float().mean())
        assert point.accuracy == pytest.approx(right, abs=0.05)  # on half of these
        assert 0 < point.ece < 0.1


def test_leaves_the_given_model_as_it_was_and_shares_its_backbone(network, path, digits):
    before = {name: tensor.clone() for name, tensor in network.state_dict().items()}
    model = path.best
    assert model is not network
    assert model[0].weight is network[0].weight
    assert layer_of(model).weight is not layer_of(network).weight
    with torch.no_grad():
        layer_of(model).weight.zero_()
    assert all(torch.equal(before[name], tensor) for name, tensor in network.state_dict().items())
    assert layer_of(path.best).num_weights() == path.point.weights


def test_the_same_seed_gives_the_same_bits(network, digits):
    first, second = (bndl.sparsify(network, digits[0], digits[1], nnz=0.1, num_points=3, seed=3) for _ in range(2))
    assert first.points == second.points
    for one, other in zip(first.points, second.points, strict=True):
        assert all(torch.equal(one.state[name], other.state[name]) for name in one.state)
    other = bndl.sparsify(network, digits[0], digits[1], nnz=0.1, num_points=3, seed=4)
    assert not torch.equal(other.points[-1].state["weight"], first.points[-1].state["weight"])


def test_is_deaf_to_the_global_seed_and_leaves_it_alone(network, digits):
    torch.manual_seed(1)
    expected = torch.rand(1)
    torch.manual_seed(1)
    bndl.sparsify(network, digits[0], digits[1], nnz=0.3, num_points=2)
    assert torch.equal(torch.rand(1), expected)


# -------------------------------------------------------------------------------------------------------------- the targets


@pytest.mark.parametrize("share", [0.5, 0.1, 0.03])
def test_a_share_is_reached_and_not_missed_by_much(network, digits, share):
    path = bndl.sparsify(network, digits[0], digits[1], nnz=share, num_points=5)
    assert 0.7 * share <= path.point.nnz <= share
    assert path.chosen == len(path) - 1
    assert layer_of(path.best).num_weights() == path.point.weights


@pytest.mark.parametrize("number", [1, 3])
def test_no_class_has_more_features_than_asked_for_and_each_has_one(network, digits, number):
    path = bndl.sparsify(network, digits[0], digits[1], features_per_class=number, num_points=5)
    each = (layer_of(path.best).phi().mean > ACTIVE_ABOVE).sum(dim=1)
    assert each.max() == number
    assert each.min() >= 1


def test_the_drop_picks_the_sparsest_that_is_good_enough(path, network, digits):
    assert path.point.accuracy >= path.points[0].accuracy - 0.01
    assert all(point.accuracy < path.points[0].accuracy - 0.01 for point in path.points[path.chosen + 1 :])
    strict = bndl.sparsify(network, digits[0], digits[1], num_points=8, max_accuracy_drop=0.2)
    assert strict.chosen >= path.chosen
    assert strict.point.nnz < 0.1


def test_a_model_that_is_sparse_already_comes_back_as_it_is(network, digits):
    sparse = bndl.sparsify(network, digits[0], digits[1], nnz=0.1, num_points=3).best
    again = bndl.sparsify(sparse, digits[0], digits[1], nnz=0.2)
    assert len(again) == 1
    assert again.point.weights == layer_of(sparse).num_weights()
    on = bndl.sparsify(sparse, digits[0], digits[1], nnz=0.05, num_points=3)
    assert on.point.nnz <= 0.05


# --------------------------------------------------------------------------------------------------- all kinds of layers


@pytest.mark.parametrize(
    "settings",
    [
        {"features": "signed"},
        {"theta_shape": "sample"},
        {"phi_shape": "entry", "theta_shape": "entry"},
        {"alpha_phi": 0.3},
        {"dense_map": True},
    ],
    ids=str,
)
def test_every_kind_of_layer(digits, settings):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, C))
    model = bndl.convert(model, **settings)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        path = bndl.sparsify(model, digits[0], digits[1], num_points=3, nnz=0.2)
    assert path.point.nnz <= 0.2
    assert path.points[-1].nnz < path.points[0].nnz
    assert bndl.predict(path.best, digits[2].tensors[0]).probs.isfinite().all()


def test_takes_features_loaders_and_no_validation_data(network, digits):
    hidden = [network[1](network[0](data.tensors[0])).detach() for data in digits]
    sets = [FeatureSet(h, data.tensors[1]) for h, data in zip(hidden, digits, strict=True)]
    path = bndl.sparsify(layer_of(network), sets[0], sets[1], nnz=0.2, num_points=2)
    loaded = bndl.sparsify(network, DataLoader(digits[0], 100), DataLoader(digits[1], 100), nnz=0.2, num_points=2)
    assert loaded.point.accuracy == pytest.approx(path.point.accuracy, abs=0.02)
    alone = bndl.sparsify(network, digits[0], nnz=0.2, num_points=2)
    assert alone.point.nnz <= 0.2


def test_a_layer_without_a_bias_gets_none(digits):
    torch.manual_seed(0)
    model = bndl.convert(nn.Sequential(nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, C, bias=False)))
    path = bndl.sparsify(model, digits[0], digits[1], nnz=0.3, num_points=2)
    assert layer_of(path.best).bias is None


# ------------------------------------------------------------------------------------------------------------------- errors


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"nnz": 0.1, "features_per_class": 3}, "one target, not 2"),
        ({"nnz": 1.5}, "share of the weights"),
        ({"nnz": 0.001}, "less than one weight a class"),
        ({"features_per_class": 0}, "at least 1"),
        ({"max_accuracy_drop": 2}, "0.01 for one point"),
        ({"num_points": 1}, "at least two points"),
        ({"num_points": 2.5}, "num_points must be a whole number"),
        ({"nnz": "a"}, "nnz must be a number"),
        ({"features_per_class": 2.5}, "features_per_class must be a whole number"),
        ({"max_accuracy_drop": "1"}, "max_accuracy_drop must be a number"),
        ({"mode": "magic"}, "prune, threshold"),
    ],
)
def test_what_is_impossible_is_said_before_any_work(network, options, words):
    with pytest.raises(bndl.InputError, match=words):
        bndl.sparsify(network, "never read", **options)


def test_wrong_data_are_said(network, digits):
    x, y = digits[0].tensors
    with pytest.raises(bndl.HeadError, match=r"bndl\.convert"):
        bndl.sparsify(nn.Linear(64, 10), digits[0])
    with pytest.raises(bndl.InputError, match="empty"):
        bndl.sparsify(network, [])
    with pytest.raises(bndl.InputError, match=r"0\.\.9"):
        bndl.sparsify(network, [(x, y + 5)])


def test_inside_autocast_the_fits_stay_in_float32(network, path, digits):
    with torch.autocast("cpu", torch.bfloat16):
        found = bndl.sparsify(network, digits[0], digits[1], num_points=8)
    assert found.points[-1].weights == path.points[-1].weights
    assert found.points[-1].accuracy == pytest.approx(path.points[-1].accuracy, abs=0.1)
    assert {tensor.dtype for point in found.points for tensor in point.state.values()} == {torch.float32}


def test_inference_mode_is_refused(network, digits):
    with torch.inference_mode(), pytest.raises(bndl.InputError, match=r"inference_mode.*: call it outside"):
        bndl.sparsify(network, digits[0], digits[1])


def test_points_that_are_not_there(path):
    with pytest.raises(IndexError, match="8 points"):
        path[len(path)]
    with pytest.raises(bndl.InputError, match="nnz=1e-05"):
        path.at(1e-5)


def test_what_was_done_is_kept_when_interrupted(network, digits):
    kept = []

    def stop_at_three(so_far):
        kept.append(so_far)
        if len(so_far) == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        bndl.sparsify(network, digits[0], digits[1], num_points=6, keep=stop_at_three)
    assert [len(so_far) for so_far in kept] == [1, 2, 3]
    assert layer_of(kept[-1][2]).num_weights() == kept[-1].points[2].weights


# ----------------------------------------------------------------------------------------------------------------- the parts


def pool_of(network, digits):
    layer = layer_of(network)
    h = network[1](network[0](digits[0].tensors[0])).detach()
    pool = Pool.of(layer, [FeatureSet(h, digits[0].tensors[1])], generator=torch.Generator())
    return pool.inside(Head.of(layer)), pool


def test_curvature_is_that_of_the_loss_with_a_bias_that_gives_way(network, digits):
    head, pool = pool_of(network, digits)
    weight = head.weight.clone().double().requires_grad_()
    z = pool.z.double()

    def loss(weight):
        return nn.functional.cross_entropy(z @ weight.t() + head.bias, pool.labels)

    gradient = torch.autograd.grad(loss(weight), weight)[0]
    found = Slopes(head, pool)
    assert torch.allclose(found.gradient.double(), gradient, atol=1e-4)
    assert found.loss == pytest.approx(float((loss(weight) + 15 / len(z) * weight.square().sum()).detach()), rel=1e-4)
    c, k = 3, int(head.weight[3].argmax())
    probs = (z @ weight.t() + head.bias).softmax(1)[:, c].detach()
    centred = z[:, k] - z[:, k].mean()
    expected = float((probs * (1 - probs) * centred.square()).mean())
    assert float(found.curvature[c, k]) == pytest.approx(expected, rel=1e-3)


def test_soft_targets_are_what_a_head_says_and_the_loss_is_theirs(network, digits):
    head, pool = pool_of(network, digits)
    taught = pool.taught(head, torch.tensor(0.5))
    assert torch.allclose(taught.soft, (head.logits(pool.z) * 0.5).softmax(1), atol=1e-6)
    half = Head(head.weight * 0.5, head.bias * 0.5)
    assert Slopes(half, taught).gradient.abs().max() < 1e-5  # the head that says just that
    assert Slopes(head, taught).gradient.abs().max() > 1e-3
    cross = -(taught.soft * head.logits(pool.z).log_softmax(1)).sum(1).mean()
    assert Slopes(head, taught).loss == pytest.approx(
        float(cross + 15 / len(pool.z) * head.weight.square().sum()), rel=1e-4
    )


def same_predictions(one, other):
    return torch.allclose(one.softmax(dim=1).sort(dim=0).values, other.softmax(dim=1).sort(dim=0).values, atol=1e-4)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("offset", [0.0, 30.0])
def test_features_are_in_units_of_their_spread_and_heads_say_the_same(network, digits, bias, offset):
    layer = copy.deepcopy(layer_of(network)).eval()
    if not bias:
        layer.bias = None
    h = network[1](network[0](digits[0].tensors[0])).detach() + offset
    h[:, 5] = 0.3  # never varies, but for what rounding makes of its mean
    pool = Pool.of(layer, [FeatureSet(h, digits[0].tensors[1])], generator=torch.Generator())
    size = pool.z.square().mean(dim=0)
    varies = torch.ones(len(size), dtype=torch.bool) if not bias else pool.z.abs().amax(dim=0) > 1e-2
    assert int(varies.sum()) > 30
    assert torch.allclose(size[varies][size[varies] > 0], torch.ones(()), atol=1e-3)
    assert bool(size[5] < 1e-6) == bias
    assert torch.allclose(pool.z.mean(dim=0), torch.zeros(()), atol=1e-4) == bias
    head = Head.of(layer)
    assert same_predictions(pool.inside(head).logits(pool.z), layer(h).detach())  # in another order
    back = pool.outside(pool.inside(head))
    assert same_predictions(back.logits(h), layer(h).detach())
    assert (back.bias >= 0).all()
    judge = Pool.of(layer, [FeatureSet(h[:50] * 2, digits[0].tensors[1][:50])], generator=torch.Generator(), like=pool)
    assert torch.equal(judge.scale, pool.scale)
    assert torch.equal(judge.centre, pool.centre)


@pytest.mark.parametrize("features", [torch.ones_like, lambda h: h * 1e4], ids=["never vary", "large"])
def test_every_class_keeps_a_weight_whatever_the_features_are(network, digits, features):
    hidden = [features(network[1](network[0](data.tensors[0])).detach()) for data in digits[:2]]
    train, val = (FeatureSet(h, data.tensors[1]) for h, data in zip(hidden, digits[:2], strict=True))
    path = bndl.sparsify(layer_of(network), train, val, features_per_class=1, num_points=4, progress=False)
    assert [point.empty_classes for point in path.points] == [()] * len(path.points)


@pytest.mark.parametrize(("num_features", "num_classes"), [(49, 2), (48, 10), (93, 7)])
def test_the_least_share_can_be_asked_for(num_features, num_classes):
    layer = DecisionLayer(num_features, num_classes)
    with torch.no_grad():
        layer.weight.fill_(1.0)
    assert run.Target(nnz=1 / num_features).goals(layer, 5)[-1].count == num_classes
    with pytest.raises(InputError, match="it can be") as caught:
        run.Target(nnz=0.9 / num_features).goals(layer, 5)
    said = float(str(caught.value).split("it can be ")[1].split(" at")[0])
    assert run.Target(nnz=said).goals(layer, 5)[-1].count == num_classes


def test_a_path_does_not_mind_where_features_are_counted_from(network, digits):
    """What every feature has in common with all others says nothing: the path is as good with it as without it."""
    layer, offset = layer_of(network), 30.0
    hidden = [network[1](network[0](data.tensors[0])).detach() for data in digits]
    moved = copy.deepcopy(layer)
    with torch.no_grad():
        moved.bias.sub_(layer.phi().mean.sum(dim=1) * offset)
        moved.bias.sub_(moved.bias.min())
    right = {}
    for name, head, by in (("plain", layer, 0.0), ("moved", moved, offset)):
        train, val = (FeatureSet(h + by, data.tensors[1]) for h, data in zip(hidden[:2], digits[:2], strict=True))
        path = bndl.sparsify(head, train, val, nnz=0.06, num_points=6, progress=False)
        right[name] = float((path.best.eval()(hidden[2] + by).argmax(1) == digits[2].tensors[1]).float().mean())
        assert not path.point.empty_classes
    assert right["plain"] > 0.85
    assert right["moved"] > right["plain"] - 0.05


def test_a_fit_moves_only_what_it_may_and_lowers_the_loss(network, digits):
    head, pool = pool_of(network, digits)
    for mask in (Goal(100).keep(head.weight), Goal(14).keep(head.weight)):  # most features in use, and few
        cut = Head(head.weight * mask, head.bias)
        found = refit.refit(cut, mask, pool, passes=3, generator=torch.Generator().manual_seed(0))
        assert (found.weight[~mask] == 0).all()
        assert (found.weight >= 0).all()
        assert Slopes(found, pool).loss < 0.9 * Slopes(cut, pool).loss


@pytest.mark.parametrize("has_bias", [True, False])
@pytest.mark.parametrize("soft", [True, False], ids=["soft", "labels"])
def test_a_list_of_weights_is_fitted_as_the_whole_matrix_is(network, digits, monkeypatch, soft, has_bias):
    head, pool = pool_of(network, digits)
    pool = replace(pool.taught(head, 0.7) if soft else pool, has_bias=has_bias)
    assert len(pool.labels) % pool_module.BATCH  # the last batch is smaller
    mask = Goal(60).keep(head.weight)
    mask[3] = False  # a class without a weight
    cut = Head(head.weight * mask, head.bias)
    found = {}
    for large in (1, math.inf):
        monkeypatch.setattr(refit, "_LARGE", large)
        monkeypatch.setattr(refit, "_LISTED", 1.0)
        assert refit._is_sparse(mask, pool) == (large == 1)
        found[large] = refit.refit(cut, mask, pool, passes=2, generator=torch.Generator().manual_seed(0))
    assert torch.allclose(found[1].weight, found[math.inf].weight, atol=1e-4)
    assert torch.allclose(found[1].bias, found[math.inf].bias, atol=1e-4)
    assert not torch.allclose(found[1].weight, cut.weight, atol=1e-2)


def test_turned_features_are_kept_once_and_only_while_there_is_room(network, digits, monkeypatch):
    head, pool = pool_of(network, digits)
    taught = pool.taught(head, 0.7)
    assert torch.equal(taught.turned(1), pool.z[pool_module.BATCH : 2 * pool_module.BATCH].t())
    assert taught.turned(1) is pool.turned(1)
    assert not replace(pool, z=pool.z[:600], labels=pool.labels[:600]).kept  # other examples
    monkeypatch.setattr(pool_module, "_TURNED", pool.turned(1).numel())
    assert torch.equal(pool.turned(0), pool.z[: pool_module.BATCH].t())
    assert list(pool.kept) == [1]


def test_a_list_is_fitted_without_a_word(network, digits, monkeypatch):
    head, pool = pool_of(network, digits)
    mask = Goal(60).keep(head.weight)
    monkeypatch.setattr(refit, "_LARGE", 1)
    monkeypatch.setattr(refit, "_LISTED", 1.0)
    torch.set_warn_always(True)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            refit.refit(Head(head.weight * mask, head.bias), mask, pool, passes=1, generator=torch.Generator())
    finally:
        torch.set_warn_always(False)


def test_few_weights_of_many_are_a_list_where_that_was_measured():
    many, few = torch.ones(100, 512, dtype=torch.bool), torch.zeros(100, 512, dtype=torch.bool)
    few[:, ::10] = True
    pool = Pool(
        torch.zeros(1, 512), torch.zeros(1, dtype=torch.int64), None, torch.zeros(512), torch.ones(512), has_bias=True
    )
    assert refit._is_sparse(few, pool)
    assert not refit._is_sparse(many, pool)
    assert not refit._is_sparse(few[:10], pool)
    assert not refit._is_sparse(few, replace(pool, z=pool.z.double()))


def test_a_fit_reaches_the_optimum_of_the_objective(network, digits):
    head, pool = pool_of(network, digits)
    mask = Goal(60).keep(head.weight)
    cut = Head(head.weight * mask, head.bias)
    found = refit.refit(cut, mask, pool, passes=8, generator=torch.Generator().manual_seed(0))
    u = cut.weight.clone().requires_grad_()
    bias = cut.bias.clone().requires_grad_()
    optimizer = torch.optim.Adam([u, bias], lr=0.03)
    for _ in range(600):
        optimizer.zero_grad()
        (
            nn.functional.cross_entropy(pool.z @ (u * mask).t() + bias, pool.labels)
            + 15 / len(pool.z) * (u * mask).square().sum()
        ).backward()
        optimizer.step()
        with torch.no_grad():
            u.clamp_(min=0)
    best = Slopes(Head((u * mask).detach(), bias.detach()), pool).loss
    assert Slopes(found, pool).loss == pytest.approx(best, rel=0.05)


@pytest.mark.parametrize("count", [24, 48, 96])
def test_the_papers_threshold_is_fitted_as_well_as_it_can_be(network, digits, monkeypatch, count):
    _, pool = pool_of(network, digits)

    def loss():
        generator = torch.Generator().manual_seed(0)
        found = walk.sweep(Head.of(layer_of(network)), pool, [Goal(count)], generator=generator)
        return Slopes(pool.inside(next(found)), pool).loss

    found = loss()
    monkeypatch.setattr(walk, "_SWEEP", 100)
    assert found < 1.01 * loss()


def test_the_walk_takes_what_predicts_unseen_examples_best(network, digits, monkeypatch):
    """Of the two targets: one that says nonsense is never taken, whichever it is."""
    pool = pool_of(network, digits)[1]
    start = Head.of(layer_of(network))
    dull = replace(pool, labels=pool.labels.roll(1))
    monkeypatch.setattr(Pool, "taught", lambda self, head, scale: dull)
    judge = replace(pool, z=pool.z[:200], labels=pool.labels[:200])
    (found,) = walk.walk(start, pool, judge, [Goal(200)], generator=torch.Generator().manual_seed(0))
    right = (pool.inside(found).logits(pool.z).argmax(1) == pool.labels).float().mean()
    assert right > 0.9


@pytest.mark.parametrize(
    ("trained", "clearly", "teacher"),
    [(True, None, "dense"), (False, None, "labels"), (False, 0.0, "dense")],
    ids=["a good head", "a bad one", "a bad one, not clearly"],
)
def test_the_dense_head_teaches_unless_the_labels_do_clearly_better(
    network, digits, monkeypatch, trained, clearly, teacher
):
    if clearly is not None:
        monkeypatch.setattr(walk, "_CLEARLY", clearly)
    whole = pool_of(network, digits)[1]
    pool, judge = (
        replace(whole, z=whole.z[rows], labels=whole.labels[rows]) for rows in (slice(700), slice(700, None))
    )
    start = Head.of(layer_of(network))
    if not trained:
        start = Head(torch.rand(start.weight.size(), generator=torch.Generator().manual_seed(1)), start.bias)
    asked, point = [], walk._point

    def watched(source, goal, own, **options):
        asked.append("labels" if own.soft is None else "dense")
        return point(source, goal, own, **options)

    monkeypatch.setattr(walk, "_point", watched)
    list(walk.walk(start, pool, judge, [Goal(200), Goal(100), Goal(50)], generator=torch.Generator().manual_seed(0)))
    assert asked == ["labels", "dense", teacher, teacher]


def test_a_goal_keeps_the_best_and_one_of_each_class():
    score = torch.rand(5, 20, generator=torch.Generator().manual_seed(0))
    score[2] *= 1e-3
    mask = Goal(12).keep(score)
    assert mask.sum() == 12
    assert mask[2].sum() == 1
    assert mask[2, score[2].argmax()]
    others = torch.cat([score[:2], score[3:]])
    assert others[torch.cat([mask[:2], mask[3:]])].min() > others[~torch.cat([mask[:2], mask[3:]])].max()
    assert (Goal(3, each=True).keep(score).sum(dim=1) == 3).all()


def test_an_exchange_mends_a_bad_choice(network, digits, monkeypatch):
    monkeypatch.setattr(walk, "_EXCHANGES", 6)
    head, pool = pool_of(network, digits)
    generator = torch.Generator().manual_seed(0)
    mask = Goal(40).keep(torch.rand(head.weight.size(), generator=generator))  # at random
    bad = walk._fitted(Head(head.weight * mask, head.bias), mask, pool, passes=2, generator=generator)
    mended, now = walk._exchanged(bad, mask, Goal(40), pool, generator=generator)
    assert int(now.sum()) == 40
    assert (mended.weight[~now] == 0).all()
    assert Slopes(mended, pool).loss < 0.7 * Slopes(bad, pool).loss


def test_nothing_is_exchanged_with_many_weights(network, digits, monkeypatch):
    head, pool = pool_of(network, digits)
    mask = Goal(40).keep(torch.rand(head.weight.size(), generator=torch.Generator().manual_seed(0)))
    head = Head(head.weight * mask, head.bias)
    assert walk._exchanged(head, mask, Goal(40), pool, generator=torch.Generator())[0] is not head
    monkeypatch.setattr(walk, "_FEW", 3)  # weights a class, and here are four
    assert walk._exchanged(head, mask, Goal(40), pool, generator=torch.Generator())[0] is head


@pytest.mark.parametrize(("goal", "counts"), [(Goal(10), 1), (Goal(14), None), (Goal(2, each=True), 2)])
def test_a_head_grows_from_nothing_to_the_goal_and_first_to_every_class(network, digits, goal, counts):
    head, pool = pool_of(network, digits)
    grown = walk._grown(head.bias, goal, pool, generator=torch.Generator().manual_seed(0))
    of_class = (grown.weight > 0).sum(dim=1)
    assert int(of_class.sum()) == (14 if counts is None else 10 * counts)
    assert (of_class > 0).all()
    if counts is not None:
        assert (of_class == counts).all()
    assert walk._right(grown, pool) > 0.6 * len(pool.labels)


def test_no_head_grows_where_a_class_asks_for_nothing(network, digits):
    head, pool = pool_of(network, digits)
    dull = replace(pool, z=torch.zeros_like(pool.z))
    assert walk._grown(head.bias, Goal(10), dull, generator=torch.Generator().manual_seed(0)) is None
    away = replace(pool, z=pool.z.abs() + 1, labels=torch.where(pool.labels == 3, 4, pool.labels), has_bias=False)
    assert walk._grown(head.bias, Goal(10), away, generator=torch.Generator().manual_seed(0)) is None


def test_of_the_pruned_and_the_grown_head_the_one_that_is_right_more_often_stays(network, digits, monkeypatch):
    head, pool = pool_of(network, digits)
    monkeypatch.setattr(walk, "_exchanged", lambda head, mask, goal, pool, **_: (head, mask))
    bad = Head(torch.zeros_like(head.weight), head.bias)
    bad.weight[:, 0] = 1.0

    def taken(goal, grown):
        monkeypatch.setattr(walk, "_grown", lambda *_, **__: grown)
        return walk._step(head, goal, pool, generator=torch.Generator().manual_seed(0))

    for goal in (Goal(20), Goal(2, each=True)):
        assert taken(goal, head)[0] is head  # all of its weights: as right as can be
        assert taken(goal, bad)[0] is not bad
        assert taken(goal, None)[0] is not bad
    assert torch.equal(taken(Goal(20), head)[1], head.weight > 0)
    for handful, most in ((30, 30), (0, 20)):  # in all, or two weights a class
        monkeypatch.setattr(walk, "_HANDFUL", handful)
        assert taken(Goal(most), head)[0] is head
        assert taken(Goal(most + 1), head)[0] is not head


def test_the_shift_leaves_predictions_and_removes_half():
    torch.manual_seed(0)
    weight = torch.rand(9, 30)
    shifted = walk._shifted(Head(weight, torch.zeros(9)), 0.1)
    assert float((shifted.weight > 0).float().mean()) == pytest.approx(4 / 9)
    kept = shifted.weight > 0
    assert torch.allclose((weight - shifted.weight)[kept], weight.median(dim=0).values.expand(9, -1)[kept])


def test_less_noise_where_a_decision_rests_on_little():
    generator = torch.Generator().manual_seed(0)
    layer = DecisionLayer(4, 4, init_shape=1.0)
    with torch.no_grad():
        layer.weight.copy_(torch.eye(4) * 3)
    h = torch.eye(4).repeat(100, 1) * 3 + torch.rand(400, 4, generator=generator)
    data = FeatureSet(h, torch.arange(4).repeat(100))
    before = layer.phi().shape.clone()
    decisions = layer.eval()(h).argmax(1)
    factor = noise.tune_noise(layer, data, generator=generator)
    assert factor > 1
    assert torch.allclose(layer.phi().shape, before * factor, rtol=1e-3)
    assert torch.equal(layer(h).argmax(1), decisions)


def test_what_never_varies_costs_nothing_and_goes_first():
    generator = torch.Generator().manual_seed(0)
    z, weight = torch.rand(300, 6, generator=generator), torch.rand(3, 6, generator=generator)
    z[:, 2], weight[:, 2] = 1.0, 5.0  # the largest weights of all, which a bias can do without
    labels = (z @ weight.t()).argmax(dim=1)
    pool = Pool(z, labels, None, torch.zeros(6), torch.ones(6), True)
    mask = walk._step(Head(weight, torch.zeros(3)), Goal(15), pool, generator=generator)[1]
    assert not mask[:, 2].any()
    assert mask.sum() == 15


def test_what_judges_has_not_been_learnt_from(digits):
    train, val = (FeatureSet(*data.tensors) for data in digits[:2])
    (first, second), judge = run.parts(train, val, torch.Generator().manual_seed(0))
    assert first is train
    assert len(second) + len(judge) == len(val)
    rows = {tuple(row.tolist()) for row in judge.features}
    assert not rows & {tuple(row.tolist()) for row in second.features}
    counts = [part.labels.bincount(minlength=C) for part in (second, judge)]
    assert (counts[0] - counts[1]).abs().max() <= 1
    (only,), held = run.parts(train, None, torch.Generator().manual_seed(0))
    assert len(only) + len(held) == len(train)


def test_the_chosen_point_has_a_noise_of_its_own_where_that_predicts_better(network, digits, monkeypatch):
    hidden = [network[1](network[0](data.tensors[0])).detach() for data in digits]
    train, val = (FeatureSet(h, data.tensors[1]) for h, data in zip(hidden[:2], digits[:2], strict=True))
    point = bndl.sparsify(layer_of(network), train, val, nnz=0.2, num_points=2).points[0]
    noisy = layer_of(network)
    bad = {name: tensor.clone() for name, tensor in point.state.items()}
    bad["theta_raw_shape"].fill_(-3.0)
    found = run.refined(replace(point, nll=9.0, state=bad), noisy, train, val)
    assert found.nll < 1
    assert (found.state["theta_raw_shape"] > -3).all()
    assert run.refined(replace(point, nll=0.0), noisy, train, val).state is point.state  # no better: left as it is
    monkeypatch.setattr(run, "refined", lambda point, *_, **__: replace(point, nll=-1.0))
    path = bndl.sparsify(layer_of(network), train, val, nnz=0.2, num_points=2)
    assert [point.nll == -1 for point in path.points] == [False, True]


def test_no_class_loses_its_last_weight_to_a_fit():
    generator = torch.Generator().manual_seed(0)
    z = torch.rand(300, 2, generator=generator)
    labels = (z[:, 0] > 0.5).long()  # feature 0 speaks against class 0, whose only weight it has
    pool = Pool(z, labels, None, torch.zeros(2), torch.ones(2), True)
    mask = torch.tensor([[True, False], [True, False]])
    head = Head(mask * 0.3, torch.zeros(2))
    plain = refit.refit(head, mask, pool, passes=8, generator=generator)
    assert plain.weight[0, 0] == 0
    kept = walk._fitted(head, mask, pool, passes=8, generator=generator)
    assert 0 < kept.weight[0, 0] < 0.1
    assert kept.weight[1, 0] > 1


def test_the_noise_is_fitted_to_examples_of_every_class(monkeypatch):
    seen = []
    monkeypatch.setattr(noise, "_ROWS", 100)
    monkeypatch.setattr(noise, "_best_scale", lambda sampled, labels, centre: seen.append(labels) or (1.0, 0.0))
    labels = torch.arange(4).repeat_interleave(100)  # class by class, as the judging half comes
    data = FeatureSet(torch.rand(400, 4, generator=torch.Generator().manual_seed(0)), labels)
    noise.tune_noise(DecisionLayer(4, 4).eval(), data, generator=torch.Generator().manual_seed(0))
    assert len(seen[0]) == 100
    assert seen[0].bincount(minlength=4).min() > 10


@pytest.mark.parametrize("share", [0.8, 0.45, 0.2])
def test_every_point_has_fewer_weights_than_the_one_before(network, digits, share):
    found = bndl.sparsify(network, digits[0], digits[1], nnz=share, num_points=6)
    counts = [point.weights for point in found.points]
    assert counts == sorted(set(counts), reverse=True)
    assert found.point.nnz == min(point.nnz for point in found.points) <= share


def test_weights_that_count_as_none_are_none_and_compact_changes_no_bit(network, digits):
    found = bndl.sparsify(network, digits[0], digits[1], nnz=0.3, num_points=4)
    x = digits[2].tensors[0]
    for number, point in enumerate(found.points[1:], start=1):
        model = found[number]
        weight = layer_of(model).weight
        assert int((weight > 0).sum()) == point.weights
        full = bndl.predict(model, x)
        assert torch.allclose(bndl.predict(bndl.compact(model), x).probs, full.probs, atol=1e-6)


def test_a_compact_model_counts_against_all_weights_that_there_were(network, digits):
    once = bndl.sparsify(network, digits[0], digits[1], nnz=0.1, num_points=4)
    again = bndl.sparsify(bndl.compact(once.best), digits[0], digits[1], nnz=0.1, num_points=4)
    assert len(again.points) == 1
    assert again.point.nnz == once.point.nnz


def test_too_few_examples_are_said(network, digits):
    x, y = digits[0].tensors
    with pytest.warns(UserWarning, match="too few examples to hold any out"):
        bndl.sparsify(network, [(x[:3], y[:3])], nnz=0.5, num_points=2)


def test_pruning_does_not_advise_itself(network, digits):
    x, y = digits[0].tensors
    h = features_of(network.eval(), x) * 1e6  # so large that weights are too small to count
    layer = copy.deepcopy(find_layer(network))
    with torch.no_grad():
        layer.weight.div_(1e6)
    with pytest.warns(
        UserWarning, match="no weight left: .* or make the features smaller, as a weight of at most 1e-05"
    ):
        bndl.sparsify(layer, FeatureSet(h.detach(), y), nnz=0.5, num_points=2)


def test_classes_without_a_weight_are_told_what_to_ask_for(network, digits):
    with pytest.warns(UserWarning, match="no weight left: ask for more weights, or mode='prune'"):
        bndl.sparsify(network, digits[0], digits[1], nnz=0.03, num_points=2, mode="threshold")

"""Fitting: what is frozen stays, what is kept is the best, the seed decides, and an interrupt loses nothing."""

import copy
import warnings

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import bndl
from bndl import elbo
from bndl.convert import find_layer
from bndl.errors import InputError
from bndl.features import FeatureSet

C = 3


class World:
    """A problem with a known answer: labels drawn from the softmax of a linear function of 4 inputs."""

    def __init__(self, *, seed: int = 0) -> None:
        self.generator = torch.Generator().manual_seed(seed)
        self.truth = 1.5 * torch.randn(4, C, generator=self.generator)

    def draw(self, num: int) -> tuple[Tensor, Tensor]:
        x = torch.randn(num, 4, generator=self.generator)
        return x, torch.multinomial((x @ self.truth).softmax(1), 1, generator=self.generator)[:, 0]

    def dense(self, *, scale: float) -> nn.Sequential:
        """A model that decides as well as can be, and is ``scale`` times as sure as it should be."""
        model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, C))
        with torch.no_grad():
            model[0].weight.copy_(torch.cat([torch.eye(4), -torch.eye(4)]))
            model[0].bias.zero_()
            model[2].weight.copy_(scale * torch.cat([self.truth, -self.truth]).t())
            model[2].bias.zero_()
        return model


def untrained(*, dropout: float = 0.0, seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    body = [nn.Linear(4, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(dropout)]
    return bndl.convert(nn.Sequential(*body, nn.Linear(16, C)))


def batches(data: tuple[Tensor, Tensor], size: int = 50) -> list[tuple[Tensor, Tensor]]:
    return list(zip(data[0].split(size), data[1].split(size), strict=True))


def loader(data: tuple[Tensor, Tensor], **given) -> DataLoader:
    return DataLoader(TensorDataset(*data), batch_size=50, **given)


def nll(model: nn.Module, data: tuple[Tensor, Tensor]) -> float:
    return float(F.nll_loss(bndl.predict(model, data[0]).probs.log(), data[1]))


def bits(module: nn.Module) -> dict[str, Tensor]:
    return {key: value.clone() for key, value in module.state_dict().items()}


def same(first: dict[str, Tensor], second: dict[str, Tensor]) -> bool:
    return first.keys() == second.keys() and all(torch.equal(first[key], second[key]) for key in first)


def modes(model: nn.Module) -> list[bool]:
    return [module.training for module in model.modules()]


# -------------------------------------------------------------------------------------------------------- it pays


def test_an_overconfident_model_is_mended_on_data_it_has_not_seen():
    world = World()
    model = bndl.convert(world.dense(scale=8.0))
    fresh = world.draw(2000)
    before, labels = nll(model, fresh), bndl.predict(model, fresh[0]).labels
    result = bndl.fit(model, batches(world.draw(300)), batches(world.draw(300)), epochs=3)
    after = nll(model, fresh)
    ideal = float(F.cross_entropy(fresh[0] @ world.truth, fresh[1]))
    assert before > 1.5 * ideal
    assert after < 1.1 * ideal
    assert result.nll_after < result.nll_before
    assert (bndl.predict(model, fresh[0]).labels == labels).float().mean() > 0.95


def test_zero_epochs_calibrate_and_change_no_decision():
    world = World()
    model = bndl.convert(world.dense(scale=8.0))
    fresh = world.draw(500)
    before = bndl.predict(model, fresh[0])
    result = bndl.fit(model, batches(world.draw(300)), epochs=0)
    after = bndl.predict(model, fresh[0])
    assert torch.equal(after.labels, before.labels)
    assert torch.equal(after.logits.argsort(dim=1), before.logits.argsort(dim=1))
    assert nll(model, fresh) < 0.7 * float(F.nll_loss(before.probs.log(), fresh[1]))
    assert result.best_epoch == 0
    assert [epoch.number for epoch in result.epochs] == [0]


def test_an_untrained_head_learns():
    world = World()
    torch.manual_seed(0)
    model = bndl.convert(nn.Sequential(*world.dense(scale=1.0)[:2], nn.Linear(8, C)))
    data, held_out, fresh = world.draw(400), world.draw(200), world.draw(1000)
    result = bndl.fit(model, batches(data), batches(held_out), epochs=20, lr=0.1, batch_size=50)
    assert 1 <= result.best_epoch <= 20
    assert [epoch.number for epoch in result.epochs] == list(range(len(result.epochs)))
    assert len(result.epochs) in (21, result.best_epoch + 4)  # it stops when three epochs brought nothing
    assert result.lr == 0.1
    assert min(result.epochs, key=lambda epoch: epoch.val_nll).number == result.best_epoch
    assert result.nll_after < result.nll_before
    assert nll(model, fresh) < 1.15 * float(F.cross_entropy(fresh[0] @ world.truth, fresh[1]))
    assert result.nll_after == pytest.approx(nll(model, held_out), rel=1e-5)
    assert result.seconds > 0


@pytest.mark.parametrize("lr", [0.03, None])
def test_training_that_does_not_pay_is_soon_given_up_and_not_kept(lr):
    world = World()
    model = bndl.convert(world.dense(scale=1.0))
    x, y = world.draw(300)
    held_out, fresh = world.draw(300), world.draw(300)[0]
    before = bndl.predict(model, fresh).logits.argsort(dim=1)
    result = bndl.fit(model, batches((x, (y + 1) % C)), batches(held_out), epochs=10, lr=lr)
    assert result.best_epoch == 0
    by_epoch = [epoch.val_nll for epoch in result.epochs]
    assert len(by_epoch) == by_epoch.index(min(by_epoch)) + 4 < 11
    assert result.lr == (lr or 0.001)
    assert torch.equal(bndl.predict(model, fresh).logits.argsort(dim=1), before)
    assert result.nll_after <= result.nll_before


def test_training_stops_after_three_epochs_without_gain():
    world, model = World(), untrained()
    result = bndl.fit(model, batches(world.draw(60)), batches(world.draw(300)), epochs=100, lr=0.1, batch_size=30)
    by_epoch = [epoch.val_nll for epoch in result.epochs]
    assert result.best_epoch == by_epoch.index(min(by_epoch)) > 0
    assert len(by_epoch) == result.best_epoch + 4 < 101
    for end in range(4, len(by_epoch)):  # it did not stop too late
        assert min(by_epoch[end - 3 : end]) < min(by_epoch[: end - 3]), end


def test_a_whole_network_is_given_all_its_epochs():
    """What it gains it often gains late, as the rate falls."""
    world, model = World(), untrained()
    data, held_out = batches(world.draw(60), 30), batches(world.draw(300))
    result = bndl.fit(model, data, held_out, freeze=False, epochs=25, lr=0.1)
    by_epoch = [epoch.val_nll for epoch in result.epochs]
    assert len(by_epoch) == 26
    assert any(min(by_epoch[i : i + 3]) >= min(by_epoch[:i]) for i in range(1, 23))  # a head alone would have stopped


# ------------------------------------------------------------------------------------------------------ how fast it learns


def hardly_trained(world: World) -> nn.Sequential:
    """The right features, and a head that .001 moves but little in a few epochs."""
    torch.manual_seed(0)
    return bndl.convert(nn.Sequential(*world.dense(scale=1.0)[:2], nn.Linear(8, C)))


def rates_tried(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What the bars say, one entry a rate."""
    said, track = [], elbo.track

    def listening(items, description, **given):
        said.append(description)
        return track(items, description, **given)

    monkeypatch.setattr(elbo, "track", listening)
    return said


def test_a_head_that_hardly_learnt_climbs_to_a_larger_rate(monkeypatch):
    world = World()
    data, held_out, fresh = batches(world.draw(400)), batches(world.draw(300)), world.draw(1000)
    slow, free = hardly_trained(world), hardly_trained(world)
    bndl.fit(slow, data, held_out, epochs=5, lr=0.001, batch_size=50)
    tried = rates_tried(monkeypatch)
    result = bndl.fit(free, data, held_out, epochs=5, batch_size=50)
    assert tried == ["fit at 0.001", "fit at 0.01", "fit at 0.1"]
    assert result.lr == 0.1
    assert result.best_epoch > 0
    assert nll(free, fresh) < 0.9 * nll(slow, fresh)
    ideal = float(F.cross_entropy(fresh[0] @ world.truth, fresh[1]))
    assert nll(free, fresh) < 1.4 * ideal


def test_a_head_in_use_is_not_tried_at_larger_rates(monkeypatch):
    world, tried = World(), rates_tried(monkeypatch)
    model = bndl.convert(world.dense(scale=1.0))
    result = bndl.fit(model, batches(world.draw(400)), batches(world.draw(300)), epochs=5)
    assert tried == ["fit at 0.001"]
    assert (result.lr, result.best_epoch) == (0.001, 0)


@pytest.mark.parametrize("given", [{"lr": 0.01}, {"freeze": False}], ids=["given", "whole"])
def test_one_rate_is_all_that_a_given_one_or_a_whole_model_gets(given, monkeypatch):
    world, tried = World(), rates_tried(monkeypatch)
    data, held_out = batches(world.draw(200)), batches(world.draw(200))
    result = bndl.fit(hardly_trained(world), data, held_out, epochs=2, **given)
    assert tried == (["fit at 0.01"] if "lr" in given else ["epoch 1 of 2", "epoch 2 of 2"])  # a bar for each
    assert result.lr == given.get("lr", 0.001)


def test_every_rate_starts_from_the_head_that_was_given(monkeypatch):
    """And not from what the smaller ones left behind."""
    world, starts = World(), []
    model = hardly_trained(world)
    given = bits(find_layer(model))

    def track(items, *_, **__):
        starts.append(bits(find_layer(model)))
        return items

    monkeypatch.setattr(elbo, "track", track)
    bndl.fit(model, batches(world.draw(400)), batches(world.draw(300)), epochs=4)
    assert len(starts) == 3
    for start in starts:
        assert torch.equal(start["weight"], given["weight"])
        assert torch.equal(start["bias"], given["bias"])


# ------------------------------------------------------------------------------------------------------- what is frozen


def test_a_frozen_backbone_keeps_its_bits_and_sees_each_example_once():
    world, model, seen = World(), untrained(dropout=0.3).train(), []
    model[1].eval()
    data, held_out = world.draw(120), world.draw(80)
    model[0].register_forward_pre_hook(lambda _, args: seen.append(args[0]))
    before, was = bits(model[:4]), modes(model)
    head, asks = bits(model[4]), [parameter.requires_grad for parameter in model.parameters()]
    bndl.fit(model, batches(data), batches(held_out), epochs=3, lr=0.03)
    assert same(bits(model[:4]), before)
    assert not same(bits(model[4]), head)
    assert modes(model) == was
    assert [parameter.requires_grad for parameter in model.parameters()] == asks
    assert torch.equal(torch.cat(seen), torch.cat([data[0], held_out[0]]))


def test_all_is_trained_when_nothing_is_frozen():
    world, model = World(), untrained().train()
    model[3].eval()
    before, was = bits(model), modes(model)
    result = bndl.fit(model, batches(world.draw(300)), batches(world.draw(200)), freeze=False, epochs=6, lr=0.02)
    assert result.best_epoch > 0
    after = bits(model)
    for key in ("0.weight", "1.weight", "1.running_mean", "4.weight"):
        assert not torch.equal(before[key], after[key]), key
    assert modes(model) == was
    assert result.nll_after < result.nll_before


def test_a_data_set_is_taken_as_it_is():
    world, model = World(), untrained()
    data, held_out = TensorDataset(*world.draw(100)), TensorDataset(*world.draw(50))
    for freeze in (True, False):
        assert len(bndl.fit(model, data, held_out, epochs=1, freeze=freeze, batch_size=32).epochs) == 2


def test_a_head_that_was_frozen_before_conversion_is_fitted_all_the_same():
    world = World()
    model = bndl.convert(world.dense(scale=8.0).requires_grad_(False))
    result = bndl.fit(model, batches(world.draw(200)), epochs=1)
    assert result.nll_after < result.nll_before


@pytest.mark.parametrize("last", [nn.LogSoftmax(dim=1), nn.Softmax(dim=1)], ids=["log-softmax", "softmax"])
def test_what_follows_the_head_does_not_change_the_loss(last):
    world = World()
    data, held_out = batches(world.draw(100)), batches(world.draw(100))
    losses = []
    for tail in ([], [last]):
        model = bndl.convert(nn.Sequential(*world.dense(scale=3.0), *tail))
        result = bndl.fit(model, data, held_out, freeze=False, epochs=1)
        losses.append(result.epochs[1].train_loss)
    assert losses[1] == pytest.approx(losses[0], rel=1e-4)


# ---------------------------------------------------------------------------------------------------------- the seed


@pytest.mark.parametrize("freeze", [True, False])
@pytest.mark.parametrize("shuffle", [False, True])
def test_the_same_seed_gives_the_same_bits(freeze, shuffle):
    world = World()
    data, held_out = world.draw(200), batches(world.draw(100))
    ends = []
    for number, seed in enumerate((3, 3, 4)):
        model = untrained(dropout=0.3)
        torch.manual_seed(number)  # the caller's own state must not matter
        train = loader(data, shuffle=True) if shuffle else batches(data)
        result = bndl.fit(model, train, held_out, freeze=freeze, epochs=4, lr=0.05, batch_size=50, seed=seed)
        assert result.best_epoch > 0
        ends.append(bits(model))
    assert same(ends[0], ends[1])
    assert not same(ends[0], ends[2])


@pytest.mark.parametrize("freeze", [True, False])
@pytest.mark.parametrize(
    "wrap", [batches, loader, lambda data: TensorDataset(*data)], ids=["list", "loader", "data set"]
)
def test_the_callers_random_state_is_left_alone(freeze, wrap):
    world = World()
    data, held_out = wrap(world.draw(60)), wrap(world.draw(40))
    model = untrained(dropout=0.3)
    before = torch.get_rng_state()
    bndl.fit(model, data, held_out, freeze=freeze, epochs=1)
    assert torch.equal(torch.get_rng_state(), before)


# --------------------------------------------------------------------------------------------------------- interruption


def test_an_interrupt_leaves_the_best_epoch_of_a_head():
    world, snapshots = World(), []
    model = untrained().train()
    model[1].eval()
    was, layer = modes(model), find_layer(model)
    backbone = bits(model[:4])

    def interrupt(module: nn.Module, _) -> None:  # two steps an epoch: the state before every second is an epoch's end
        if module.training:
            snapshots.append(bits(module))
        if len(snapshots) == 6:
            raise KeyboardInterrupt

    data, held_out = world.draw(100), world.draw(200)
    with torch.no_grad():
        features = FeatureSet(copy.deepcopy(model[:4]).eval()(held_out[0]), held_out[1])
    with layer.register_forward_pre_hook(interrupt), pytest.raises(KeyboardInterrupt):
        bndl.fit(model, batches(data), batches(held_out), epochs=10, lr=0.03, batch_size=50)
    ends = [snapshots[0], snapshots[2], snapshots[4]]  # of epochs 0, 1 and 2
    losses = [best_temperature_nll(layer, end, features) for end in ends]
    assert min(losses) < losses[0]
    assert same(bits(layer), ends[losses.index(min(losses))])
    assert same(bits(model[:4]), backbone)
    assert modes(model) == was


@pytest.mark.parametrize("epoch", [1, 2, 4], ids=["before it gained", "in its second epoch", "later"])
def test_an_interrupt_at_a_second_rate_leaves_the_best_of_both(epoch, monkeypatch):
    """Also the first rate's, while the second has not beaten it."""
    world, model, ends = World(), hardly_trained(World()), []
    layer, held_out = find_layer(model), world.draw(300)
    with torch.no_grad():
        features = FeatureSet(model[:2](held_out[0]), held_out[1])

    def track(items, description, **_):
        for number in items:
            if description == "fit at 0.01" and number == epoch:
                raise KeyboardInterrupt
            yield number
            ends.append(bits(layer))

    monkeypatch.setattr(elbo, "track", track)
    with pytest.raises(KeyboardInterrupt):
        bndl.fit(model, batches(world.draw(200)), batches(held_out), epochs=6, batch_size=50)
    losses = [best_temperature_nll(layer, end, features) for end in ends]
    best = losses.index(min(losses))
    assert len(ends) == 6 + epoch - 1
    assert same(bits(layer), ends[best])
    assert (best < 6) == (epoch == 1)


def best_temperature_nll(layer: bndl.DecisionLayer, state: dict[str, Tensor], data: FeatureSet) -> float:
    twin = copy.deepcopy(layer)
    twin.load_state_dict(state)
    logits = twin.eval()(data.features).detach()
    return min(float(F.cross_entropy(logits * scale, data.labels)) for scale in torch.logspace(-2, 2, 400))


class Interrupted:
    """Batches that raise in the middle of an epoch."""

    def __init__(self, given: list, *, epoch: int, error: type[BaseException] = KeyboardInterrupt) -> None:
        self.given, self.epoch, self.error, self.count = given, epoch, error, -1  # the first time they are but counted

    def __len__(self) -> int:
        return len(self.given)

    def __iter__(self):
        self.count += 1
        for number, batch in enumerate(self.given):
            if self.count == self.epoch and number == 1:
                raise self.error
            yield batch


@pytest.mark.parametrize("error", [KeyboardInterrupt, OSError])
def test_an_interrupt_leaves_the_best_epoch_of_a_whole_model(error):
    world, snapshots = World(), []
    model = untrained().train()
    model[3].eval()
    was = modes(model)
    held_out = world.draw(200)

    class Watched(Interrupted):
        def __iter__(self):
            snapshots.append(bits(model))
            return super().__iter__()

    train = Watched(batches(world.draw(150)), epoch=4, error=error)
    with pytest.raises(error):
        bndl.fit(model, train, batches(held_out), freeze=False, epochs=8, lr=0.01)
    left = bits(model)
    ends = snapshots[1:5]  # of epochs 0 to 3
    assert sum(same(left, end) for end in ends) == 1
    assert not same(left, ends[0])
    assert modes(model) == was


def test_an_interrupt_of_the_calibration_leaves_the_model_as_it_was(monkeypatch):
    world = World()
    model = bndl.convert(world.dense(scale=8.0))
    before, steps = bits(model), []
    original = torch.optim.Adam.step

    def step(self, *args, **kwargs):
        steps.append(1)
        if len(steps) == 20:
            raise KeyboardInterrupt
        return original(self, *args, **kwargs)

    monkeypatch.setattr(torch.optim.Adam, "step", step)
    with pytest.raises(KeyboardInterrupt):
        bndl.fit(model, batches(world.draw(100)), epochs=0)
    assert same(bits(model), before)


# ------------------------------------------------------------------------------------------------------ what goes wrong


X, Y = World().draw(30)


@pytest.mark.parametrize("freeze", [True, False])
@pytest.mark.parametrize(
    ("data", "words"),
    [
        ([(X, Y + 1)], r"labels must lie in 0\.\.2 for 3 classes, got [01]\.\.3"),
        ([(X, Y.float())], r"labels must be class indices \(integers\), got torch\.float32"),
        ([(X, F.one_hot(Y))], r"one class index an example, dims \(30,\), got \(30, 3\)"),
        ([X], "labels are needed: give batches"),
        ([{"input": X}], "labels are needed: give batches"),
        ([], "(the loader is empty|must have a positive length)"),
        ([(X * torch.nan, Y)], "(NaN or infinite features|the loss is not finite)"),
    ],
    ids=["range", "float", "one-hot", "unlabelled", "unlabelled dict", "empty", "nan"],
)
def test_bad_data_are_said_in_one_sentence_and_change_nothing(freeze, data, words):
    model = untrained().train()
    before, was = bits(model), modes(model)
    with pytest.raises(InputError, match=words) as caught:
        bndl.fit(model, data, [(X, Y)], freeze=freeze, epochs=2)
    assert "\n" not in str(caught.value)
    assert same(bits(model), before)
    assert modes(model) == was


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"freeze": False}, "with freeze=False give a val_loader"),
        ({"epochs": -1}, "need a whole number of epochs >= 0, batch_size >= 1 and lr > 0, got -1, 256 and None"),
        ({"epochs": 2.5}, "need a whole number of epochs >= 0"),
        ({"batch_size": 0}, "epochs >= 0, batch_size >= 1"),
        ({"lr": 0.0}, "lr > 0"),
        ({"objective": "mine"}, "no objective is called 'mine'; choose from default"),
        ({"val_loader": []}, "the loader is empty"),
        ({"val_loader": [(X[:0], Y[:0])]}, "the loader is empty"),
        ({"val_loader": (X, Y[1:])}, f"there are {len(Y)} examples and {len(Y) - 1} labels"),
    ],
)
def test_bad_arguments(given, words):
    with pytest.raises(InputError, match=words):
        bndl.fit(untrained(), [(X, Y)], **given)


def test_no_model_and_a_model_that_cannot_learn():
    with pytest.raises(InputError, match="Module with a decision layer, got int"):
        bndl.fit(3, [(X, Y)])
    model = untrained().half()
    before = bits(model)
    with pytest.raises(InputError, match=r"cannot learn in float16.*call model.float"):
        bndl.fit(model, [(X, Y)])
    assert same(bits(model), before)


def test_one_labelled_batch_is_data_too():
    by_pair, by_loader = untrained(), untrained()
    bndl.fit(by_pair, (X, Y.numpy()), (X, Y), epochs=1, progress=False)
    bndl.fit(by_loader, [(X, Y)], [(X, Y)], epochs=1, progress=False)
    assert same(bits(by_pair), bits(by_loader))


def test_endless_training_data_need_a_length():
    with pytest.raises(InputError, match="must have a positive length"):
        bndl.fit(untrained(), iter([(X, Y)]), [(X, Y)], freeze=False)


def test_a_batch_of_one_is_said_to_be_too_small_for_batch_norm_and_nothing_is_lost():
    model, world = untrained(), World()
    before = bits(model)
    with pytest.raises(InputError, match="drop_last=True"):
        bndl.fit(model, loader(world.draw(51)), batches(world.draw(50)), freeze=False, epochs=1)
    assert same(bits(model), before)


def test_a_model_that_was_not_converted():
    with pytest.raises(bndl.HeadError, match=r"bndl\.convert"):
        bndl.fit(nn.Linear(4, C), [(X, Y)])


def test_a_class_without_weights_is_named_where_the_user_called():
    model = untrained()
    with torch.no_grad():
        model[4].weight[1] = -1.0
    with pytest.warns(UserWarning, match="class 1 has no weight left, so no feature can speak for it") as caught:
        bndl.fit(model, [(X, Y)], epochs=0)
    assert caught[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        bndl.fit(untrained(), [(X, Y)], epochs=0)


# ------------------------------------------------------------------------------------------------------- kinds and sizes


@pytest.mark.parametrize("labels", [[0, 1, 2], [0], [0, 0, 0, 0, 0, 0, 1]], ids=["three", "one", "a class of one"])
def test_tiny_data_sets(labels):
    y = torch.tensor(labels)
    x = World().draw(len(y))[0]
    model = untrained().eval()
    result = bndl.fit(model, [(x, y)], epochs=2)
    assert torch.isfinite(torch.tensor(result.nll_after))
    assert result.nll_after <= result.nll_before
    assert all(torch.isfinite(value).all() for value in model.state_dict().values())


@pytest.mark.parametrize("given", [{"theta_shape": "sample"}, {"theta_shape": "entry", "phi_shape": "entry"}])
def test_every_kind_of_shape_is_fitted(given):
    world = World()
    model = bndl.convert(world.dense(scale=8.0), **given)
    result = bndl.fit(model, batches(world.draw(200)), batches(world.draw(200)), epochs=1)
    assert result.nll_after < 0.6 * result.nll_before


def test_the_head_of_a_half_precision_model_is_fitted():
    world = World()
    model = bndl.convert(world.dense(scale=8.0).bfloat16())
    x, y = world.draw(200)
    result = bndl.fit(model, [(x.bfloat16(), y)], epochs=1)
    assert result.nll_after < result.nll_before


def test_the_head_of_a_float64_model_is_fitted():
    world = World()
    model = bndl.convert(world.dense(scale=8.0).double())
    x, y = world.draw(200)
    result = bndl.fit(model, [(x.double(), y)], epochs=1)
    assert result.nll_after < result.nll_before


@pytest.mark.parametrize("freeze", [True, False])
def test_hugging_face_batches(freeze):
    transformers = pytest.importorskip("transformers")
    config = transformers.BertConfig(
        vocab_size=20, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16, num_labels=C
    )
    torch.manual_seed(0)
    model = bndl.convert(transformers.BertForSequenceClassification(config))
    tokens = torch.randint(20, (40, 6), generator=torch.Generator().manual_seed(0))
    data = [
        transformers.BatchEncoding(
            {"input_ids": part, "attention_mask": torch.ones_like(part), "labels": part[:, 0] % C}
        )
        for part in tokens.split(20)
    ]
    embeddings = model.bert.embeddings.word_embeddings.weight.detach().clone()
    result = bndl.fit(model, data, data, freeze=freeze, epochs=3, lr=5e-3)
    assert result.nll_after < result.nll_before
    assert torch.equal(model.bert.embeddings.word_embeddings.weight, embeddings) == (freeze or result.best_epoch == 0)


def test_says_nothing(capsys, tmp_path):
    world = World()
    model = bndl.convert(world.dense(scale=3.0))
    bndl.fit(model, batches(world.draw(100)), epochs=1)
    bndl.predict(model, world.draw(10)[0])
    bndl.load(bndl.save(model, tmp_path / "m.safetensors"), backbone=world.dense(scale=1.0))
    assert capsys.readouterr() == ("", "")

"""The Lightning module: its loss is the ELBO, its learning rates are those asked for, its figures ignore temperature."""

import math
from types import SimpleNamespace

import lightning as L
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import bndl
from bndl.errors import InputError
from bndl.objective import Objective
from bndl.train import Classifier, Optimization

C, K = 3, 6
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning:lightning")


def problem(num: int, *, seed: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(num, 4, generator=generator)
    truth = torch.randn(4, C, generator=generator)
    return x, torch.multinomial((2 * x @ truth).softmax(1), 1, generator=generator)[:, 0]


def network(*, head: str = "bndl", seed: int = 0, **layer) -> nn.Module:
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(4, K), nn.ReLU(), nn.Linear(K, C))
    return bndl.convert(model, **layer) if head == "bndl" else model


def attached(module: Classifier, *, num_steps: int = 100, step: int = 0) -> Classifier:
    """The module as it is at a step of a run of so many, without the run."""
    module.trainer = SimpleNamespace(estimated_stepping_batches=num_steps, global_step=step)
    module.log = lambda *args, **kwargs: None
    return module


def trainer(**given) -> L.Trainer:
    quiet = {
        "logger": False,
        "enable_checkpointing": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
    }
    return L.Trainer(accelerator="cpu", devices=1, num_sanity_val_steps=0, **quiet, **given)


def batches(data: tuple[Tensor, Tensor], size: int = 50) -> DataLoader:
    return DataLoader(TensorDataset(*data), batch_size=size)


def validated(module: Classifier, data: tuple[Tensor, Tensor], size: int = 50) -> dict[str, float]:
    (figures,) = trainer().validate(module, batches(data, size), verbose=False)
    return figures


# --------------------------------------------------------------------------------------------------------------- the loss


@pytest.mark.parametrize("num_data", [10, 1000])
@pytest.mark.parametrize("objective", ["default", Objective(beta=0.5, phi="sum"), "paper-vit"])
def test_the_loss_is_cross_entropy_and_the_kl_of_all_data(num_data, objective):
    x, y = problem(20)
    model = network().train()
    module = attached(Classifier(model, num_data=num_data, objective=objective), step=99)
    torch.manual_seed(1)
    loss = module.loss(x, y)
    torch.manual_seed(1)
    cross_entropy = F.cross_entropy(model(x), y)
    cost = bndl.kl(model, num_data, objective=objective)
    assert cost > 0
    torch.testing.assert_close(loss, cross_entropy + cost, rtol=0, atol=0)


@pytest.mark.parametrize("step", [0, 7, 49, 99])
def test_a_dense_model_has_the_cross_entropy_alone(step):
    x, y = problem(20)
    model = network(head="dense")
    module = attached(Classifier(model, num_data=20, objective=Objective(beta=100.0)), step=step)
    assert torch.equal(module.loss(x, y), F.cross_entropy(model(x), y))


@pytest.mark.parametrize(
    ("kl_warmup", "step", "share"),
    [
        (0.5, 0, 1 / 50),
        (0.5, 24, 0.5),
        (0.5, 48, 0.98),
        (0.5, 49, 1),
        (0.5, 99, 1),
        (0, 0, 1),
        (1, 0, 0.01),
        (1, 99, 1),
    ],
)
def test_beta_rises_to_its_value_and_stays(kl_warmup, step, share):
    x, y = problem(20)
    model, objective = network().train(), Objective(beta=0.3)
    module = Classifier(model, num_data=20, objective=objective, optimization=Optimization(kl_warmup=kl_warmup))
    attached(module, step=step)
    assert module.beta() == pytest.approx(0.3 * share)
    torch.manual_seed(1)
    loss = module.loss(x, y)
    torch.manual_seed(1)
    expected = F.cross_entropy(model(x), y) + share * bndl.kl(model, 20, objective=objective)
    torch.testing.assert_close(loss, expected)


def test_a_model_may_return_an_object_with_logits():
    class Wrapped(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = network(head="dense")

        def forward(self, x: Tensor) -> SimpleNamespace:
            return SimpleNamespace(logits=self.inner(x))

    x, y = problem(20)
    module = attached(Classifier(Wrapped(), num_data=20))
    assert torch.equal(module.loss(x, y), F.cross_entropy(network(head="dense")(x), y))


def test_a_preset_that_is_none():
    with pytest.raises(InputError, match="no objective is called 'mine'; choose from default"):
        Classifier(network(), num_data=20, objective="mine")


def test_training_inputs_alone_are_augmented():
    seen = {True: [], False: []}

    class Watched(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            seen[self.training].append(x)
            return super().forward(x)

    class Shift(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x + 10

    x, y = problem(20)
    module = Classifier(Watched(4, C), num_data=20, augment=Shift())
    trainer(max_epochs=1).fit(module, batches((x, y), 20), batches((x, y), 20))
    assert torch.equal(torch.cat(seen[True]), x + 10)
    assert torch.equal(torch.cat(seen[False]), x)


def test_a_subclass_with_a_loss_of_its_own():
    class Smoothed(Classifier):
        def loss(self, inputs: Tensor, labels: Tensor) -> Tensor:
            return F.cross_entropy(self(inputs), labels, label_smoothing=0.5)

    x, y = problem(60)
    model = network(head="dense")
    expected = F.cross_entropy(model(x), y, label_smoothing=0.5)
    module = Smoothed(model, num_data=60, optimization=Optimization(lr=0.1))
    fit = trainer(max_epochs=1)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    fit.fit(module, batches((x, y), 60), batches((x, y)))
    assert float(fit.callback_metrics["loss"]) == pytest.approx(float(expected), rel=1e-5)
    assert not torch.equal(model.state_dict()["2.weight"], before["2.weight"])
    assert {"val_nll", "val_accuracy"} <= fit.callback_metrics.keys()


@pytest.mark.parametrize("head", ["dense", "bndl"])
def test_it_learns(head):
    data = problem(400)
    module = Classifier(network(head=head), num_data=400, optimization=Optimization(lr=0.1, weight_decay=0))
    before = validated(module, data)
    fit = trainer(max_epochs=15)
    fit.fit(module, batches(data), batches(data))
    after = validated(module, data)
    assert after["val_nll"] < 0.8 * before["val_nll"]
    assert after["val_accuracy"] > before["val_accuracy"] + 0.1
    assert ("kl" in fit.callback_metrics) == (head == "bndl")


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_loss_that_is_not_finite(value):
    x, y = problem(20)
    module = Classifier(network(head="dense"), num_data=20)
    words = "^the loss is not finite: lower the learning rate, or clip gradients"
    with pytest.raises(InputError, match=words):
        trainer(max_epochs=1).fit(module, batches((x * value, y)), batches((x, y)))


def test_validation_logits_that_are_not_finite():
    x, y = problem(20)
    module = Classifier(network(head="dense"), num_data=20)
    with pytest.raises(InputError, match=r"^the validation logits are not finite: lower"):
        validated(module, (x * math.nan, y))


# --------------------------------------------------------------------------------------------------------- the optimizer


@pytest.mark.parametrize(
    "layer",
    [
        {},
        {"theta_shape": "entry", "phi_shape": "entry"},
        {"theta_shape": "sample"},
        {"theta_shape": "entry", "dense_map": True},
    ],
)
@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
def test_all_but_the_shapes_of_a_decision_layer_decays(layer, optimizer):
    model = network(**layer)
    model[0].shape_of_mine = nn.Parameter(torch.ones(1))  # a weight like any other, for all its name
    settings = Optimization(optimizer=optimizer, weight_decay=0.03)
    module = attached(Classifier(model, num_data=20, optimization=settings))
    groups = module.configure_optimizers()["optimizer"].param_groups
    decay = {id(parameter): group["weight_decay"] for group in groups for parameter in group["params"]}
    parameters = dict(model.named_parameters())
    assert sum(len(group["params"]) for group in groups) == len(parameters)
    shapes = {name for name in parameters if name.startswith("2.") and "shape" in name}
    assert shapes
    for name, parameter in parameters.items():
        assert decay[id(parameter)] == (0 if name in shapes else 0.03), name


def test_what_asks_for_no_gradient_is_not_moved():
    model = network(head="dense")
    model[0].requires_grad_(False)
    module = attached(Classifier(model, num_data=20))
    groups = module.configure_optimizers()["optimizer"].param_groups
    assert [id(p) for group in groups for p in group["params"]] == [id(p) for p in model[2].parameters()]


def test_sgd_has_nesterov_momentum_if_any():
    def group(**given) -> dict:
        module = attached(Classifier(network(), num_data=20, optimization=Optimization(**given)))
        return module.configure_optimizers()["optimizer"].param_groups[0]

    assert (group(momentum=0.8)["momentum"], group(momentum=0.8)["nesterov"]) == (0.8, True)
    assert (group(momentum=0.0)["momentum"], group(momentum=0.0)["nesterov"]) == (0.0, False)
    assert "betas" in group(optimizer="adamw")


@pytest.mark.parametrize(
    ("schedule", "middle", "late", "end"),
    [("cosine", 0.5, (1 - math.cos(math.pi / 4)) / 2, 0), ("linear", 0.5, 0.25, 0), ("constant", 1, 1, 1)],
)
def test_the_rate_rises_over_the_warm_up_and_falls_as_asked(schedule, middle, late, end):
    settings = Optimization(schedule=schedule, warmup=0.2)
    assert [settings.rate(share) for share in (0, 0.05, 0.1)] == pytest.approx([0, 0.25, 0.5])
    assert settings.rate(0.2) == pytest.approx(1)
    assert settings.rate(0.6) == pytest.approx(middle)
    assert settings.rate(0.8) == pytest.approx(late)
    assert settings.rate(1) == pytest.approx(end, abs=1e-9)
    assert Optimization(schedule=schedule, warmup=0).rate(0) == 1


@pytest.mark.parametrize("schedule", ["cosine", "linear", "constant"])
@pytest.mark.parametrize("warmup", [0, 0.25])
def test_the_learning_rate_of_a_run(schedule, warmup):
    rates = []

    class Watch(L.Callback):
        def on_train_batch_start(self, trainer, *_) -> None:
            rates.append([group["lr"] for group in trainer.optimizers[0].param_groups])

    settings = Optimization(lr=0.3, schedule=schedule, warmup=warmup)
    module = Classifier(network(), num_data=200, optimization=settings)
    trainer(max_epochs=5, callbacks=[Watch()]).fit(module, batches(problem(200), 50), batches(problem(50)))
    num_steps = 5 * 4
    expected = [0.3 * settings.rate((step + 1) / (num_steps + 1)) for step in range(num_steps)]
    assert [rate for rate, _ in rates] == pytest.approx(expected)
    assert all(first == second for first, second in rates)
    assert all(0 < rate <= 0.3 for rate, _ in rates), "no step is wasted at a rate of zero"


# -------------------------------------------------------------------------------------------------------- the validation


def scaled(factor: float) -> Classifier:
    model = nn.Linear(4, C)
    torch.manual_seed(0)
    with torch.no_grad():
        model.weight.normal_().mul_(factor)
        model.bias.normal_().mul_(factor)
    return Classifier(model, num_data=20)


def test_validation_ignores_the_temperature():
    data = problem(300)
    figures = validated(scaled(1), data)
    with torch.no_grad():
        logits = scaled(1).model(data[0])
    at_best = min(float(F.cross_entropy(logits * scale, data[1])) for scale in torch.logspace(-3, 2, 2000))
    assert figures["val_nll"] == pytest.approx(at_best, rel=1e-4)
    assert figures["val_accuracy"] == pytest.approx(float((logits.argmax(1) == data[1]).float().mean()))
    for factor in (0.1, 10):
        assert validated(scaled(factor), data) == pytest.approx(figures, rel=1e-4)


def test_validation_ignores_how_the_data_are_cut():
    data = problem(101)
    figures = validated(scaled(1), data, size=101)
    assert validated(scaled(1), data, size=7) == pytest.approx(figures, rel=1e-6)


def test_validation_is_by_the_mean_and_of_each_epoch_alone():
    module = Classifier(network(), num_data=20)
    first, second = problem(60), problem(80, seed=1)
    figures = validated(module, first)
    assert validated(module, second) != figures
    assert validated(module, first) == figures

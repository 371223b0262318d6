"""Conversion: the same predictions on every kind of model, and one clear sentence where the head cannot be told."""

import copy
import logging
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import bndl
from bndl.backbones import CifarResNet, ResNet18, SmallCNN, StageReluResNet, cifar_checkpoint, load_cifar_checkpoint
from bndl.convert import find_layer
from bndl.data import load
from bndl.errors import BndlError, HeadError, InputError
from bndl.features import extract
from bndl.metrics import expected_calibration_error, negative_log_likelihood

C = 5


def noise(*dims: int) -> Tensor:
    return torch.randn(*dims, generator=torch.Generator().manual_seed(0))


def relu_net(num_classes: int = C, *, bias: bool = True) -> nn.Sequential:
    return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, num_classes, bias=bias))


def tanh_net() -> nn.Sequential:
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, C))


def hugging_face(name: str, **config) -> nn.Module:
    transformers = pytest.importorskip("transformers")
    model_class = getattr(transformers, name)
    return model_class(model_class.config_class(num_labels=C, **config))


TRANSFORMER = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 24}
CONVOLUTIONS = {"embedding_size": 8, "hidden_sizes": [8, 12], "depths": [1, 1], "layer_type": "basic"}
FLAT, IMAGES = noise(20, 6), noise(6, 3, 32, 32)
TOKENS = {"input_ids": torch.arange(42).view(6, 7) % 50, "attention_mask": torch.ones(6, 7, dtype=torch.long)}
PIXELS = {"pixel_values": IMAGES}

# build, inputs, path of the head, whether its features are signed
MODELS = {
    "sequential relu": (relu_net, FLAT, "2", False),
    "sequential signed": (tanh_net, FLAT, "2", True),
    "nested sequential": (
        lambda: nn.Sequential(nn.Sequential(nn.Linear(6, 8), nn.ReLU()), relu_tail()),
        FLAT,
        "1.1",
        False,
    ),
    "no bias": (lambda: relu_net(bias=False), FLAT, "2", False),
    "two classes": (lambda: relu_net(2), FLAT, "2", False),
    "log softmax": (lambda: nn.Sequential(*relu_net(), nn.LogSoftmax(dim=1)), FLAT, "2", False),
    "float64": (lambda: tanh_net().double(), FLAT.double(), "2", True),
    "CifarResNet": (lambda: CifarResNet(8, C, width=4), IMAGES, "fc", False),
    "ResNet18": (lambda: ResNet18(C, width=4), IMAGES, "fc", False),
    "StageReluResNet": (lambda: StageReluResNet(8, C, width=4, stem_channels=8), IMAGES, "fc", False),
    "SmallCNN": (lambda: SmallCNN(C, 3, width=4, num_features=8), IMAGES, "fc", False),
    "ViT": (
        lambda: hugging_face("ViTForImageClassification", image_size=32, patch_size=8, **TRANSFORMER),
        PIXELS,
        "classifier",
        True,
    ),
    "HF ResNet": (lambda: hugging_face("ResNetForImageClassification", **CONVOLUTIONS), PIXELS, "classifier.1", False),
    "HF ResNet gelu": (
        lambda: hugging_face("ResNetForImageClassification", hidden_act="gelu", **CONVOLUTIONS),
        PIXELS,
        "classifier.1",
        True,
    ),
    "Bert": (
        lambda: hugging_face("BertForSequenceClassification", vocab_size=50, **TRANSFORMER),
        TOKENS,
        "classifier",
        True,
    ),
    "Roberta": (
        lambda: hugging_face("RobertaForSequenceClassification", vocab_size=50, **TRANSFORMER),
        TOKENS,
        "classifier.out_proj",
        True,
    ),
    "DistilBert": (
        lambda: hugging_face(
            "DistilBertForSequenceClassification", vocab_size=50, dim=16, n_layers=1, n_heads=2, hidden_dim=24
        ),
        TOKENS,
        "classifier",
        True,
    ),
}


def relu_tail() -> nn.Sequential:
    return nn.Sequential(nn.Dropout(), nn.Linear(8, C))


def logits_of(model: nn.Module, x) -> Tensor:
    with torch.no_grad():
        output = model(**x) if isinstance(x, dict) else model(x)
    return getattr(output, "logits", output)


def probs_of(model: nn.Module, x) -> Tensor:
    return logits_of(model, x).softmax(dim=-1)


def sharpen(model: nn.Module, head: str, x) -> None:
    """Make the model decided, as a trained one is: logits that differ by about 3."""
    with torch.no_grad():
        linear = model.get_submodule(head)
        spread = logits_of(linear, entering(model, head, x)).std(dim=1).mean()
        for parameter in linear.parameters():
            parameter.mul_(3 / spread)


def entering(model: nn.Module, path: str, x) -> Tensor:
    caught: list[Tensor] = []
    with model.get_submodule(path).register_forward_pre_hook(lambda _, args: caught.append(args[0])):
        logits_of(model, x)
    return caught[0]


@pytest.mark.parametrize("name", MODELS)
def test_same_predictions_as_before(name):
    build, x, head, signed = MODELS[name]
    torch.manual_seed(1)
    model = build().eval()
    sharpen(model, head, x)
    others = {key: value.clone() for key, value in model.state_dict().items() if not key.startswith(f"{head}.")}
    before = probs_of(model, x)
    assert before.max() > 0.5

    converted = bndl.convert(model)

    assert converted is model
    layer = find_layer(model)
    assert model.get_submodule(head) is layer
    assert layer.signed is signed
    assert (layer.weight >= 0).all()
    after = probs_of(model, x)
    assert after.dtype == before.dtype
    torch.testing.assert_close(after, before, rtol=0, atol=1e-5)
    assert torch.equal(bndl.predict(model, x).labels, before.argmax(dim=1))
    state = model.state_dict()
    assert all(torch.equal(state[key], value) for key, value in others.items())


def test_a_bare_linear_comes_back_as_a_layer():
    linear = nn.Linear(6, C).eval()
    layer = bndl.convert(linear)
    assert isinstance(layer, bndl.DecisionLayer)
    assert layer.signed
    torch.testing.assert_close(probs_of(layer, FLAT), probs_of(linear, FLAT), rtol=0, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_keeps_the_head_exact(dtype):
    model = tanh_net().to(dtype).eval()
    x = FLAT.to(dtype)
    exact = nn.functional.linear(entering(model, "2", x).float(), model[2].weight.float(), model[2].bias.float())
    bndl.convert(model)
    assert logits_of(model, x).dtype == dtype  # what follows the head still gets what it got
    assert find_layer(model).weight.dtype == torch.float32
    torch.testing.assert_close(bndl.predict(model, x).logits.softmax(1), exact.softmax(1), rtol=0, atol=1e-5)


@settings(deadline=None, max_examples=60)
@given(
    num_features=st.integers(1, 40),
    num_classes=st.integers(2, 30),
    bias=st.booleans(),
    signed=st.booleans(),
    scale=st.sampled_from([1e-4, 1.0, 10.0]),
    seed=st.integers(0, 2**31),
)
def test_exact_for_any_dims_and_weights(num_features, num_classes, bias, signed, scale, seed):
    generator = torch.Generator().manual_seed(seed)
    linear = nn.Linear(num_features, num_classes, bias=bias)
    with torch.no_grad():
        for parameter in linear.parameters():
            parameter.copy_(scale * torch.randn(parameter.size(), generator=generator) / num_features**0.5)
    h = torch.randn(16, num_features, generator=generator)
    h = h if signed else h.abs()
    before = probs_of(linear.double(), h.double())
    layer = bndl.convert(nn.Sequential(linear.float()), features="signed" if signed else "nonnegative")
    atol = 1e-5 if scale < 10 else 4e-5  # float32 rounds logits of thirty or more by some 1e-5
    torch.testing.assert_close(probs_of(layer.eval(), h).double(), before, rtol=0, atol=atol)


@pytest.mark.parametrize("given", [{"theta_shape": "sample"}, {"theta_shape": "entry", "phi_shape": "entry"}])
@pytest.mark.parametrize("more", [{}, {"dense_map": True, "alpha_phi": 0.3, "init_shape": 3.0}])
def test_exact_whatever_the_settings(given, more):
    model = tanh_net().eval()
    before = probs_of(model, FLAT)
    bndl.convert(model, **given, **more)
    for name, value in {**given, **more}.items():
        assert find_layer(model).settings[name] == value
    torch.testing.assert_close(probs_of(model, FLAT), before, rtol=0, atol=1e-5)


def test_treating_nonnegative_features_as_signed_is_exact_too():
    model = relu_net().eval()
    before = probs_of(model, FLAT)
    bndl.convert(model, features="signed")
    assert find_layer(model).num_features == 16
    torch.testing.assert_close(probs_of(model, FLAT), before, rtol=0, atol=1e-5)


def test_modes_and_frozen_weights_carry_over():
    model = relu_net()
    model[2].requires_grad_(False)
    model[2].eval()
    layer = bndl.convert(model)[2]
    assert not layer.training
    assert not any(parameter.requires_grad for parameter in layer.parameters())
    assert model[0].weight.requires_grad
    assert bndl.convert(relu_net())[2].training


def test_says_what_it_did(caplog, capsys):
    with caplog.at_level(logging.INFO, logger="bndl"):
        relu, tanh = bndl.convert(relu_net()), bndl.convert(tanh_net())
    assert "2: Linear(8, 5), features shown to be non-negative" in caplog.messages[0]
    assert "split by sign" in caplog.messages[1]
    assert "shown to be non-negative" in repr(relu)
    assert "split by sign" in repr(tanh)
    assert capsys.readouterr() == ("", "")


class TwoHeads(nn.Module):
    """Gives two results, and its code cannot be traced."""

    def __init__(self, first: str, second: str) -> None:
        super().__init__()
        self.body = nn.Linear(6, 8)
        self.names = first, second
        self.add_module(first, nn.Linear(8, C))
        self.add_module(second, nn.Linear(8, C))

    def forward(self, x: Tensor):
        h = self.body(x if x.sum() > 0 else -x)
        return tuple(self.get_submodule(name)(h) for name in self.names)


@pytest.mark.parametrize(
    "names",
    [("cls_classifier", "distillation_classifier"), ("left", "right"), ("classifier", "score"), ("head", "head_dist")],
)
def test_two_heads_are_not_guessed(names):
    model = TwoHeads(*names)
    with pytest.raises(
        HeadError, match=r'cannot tell which layer of TwoHeads is the head: say head="path\.to\.layer"'
    ) as e:
        bndl.convert(model)
    for name in names:
        assert f"{name} (8 -> 5)" in str(e.value)
        assert isinstance(model.get_submodule(name), nn.Linear)


def test_a_distilled_vision_transformer_has_two_heads():
    model = hugging_face("DeiTForImageClassificationWithTeacher", image_size=32, patch_size=8, **TRANSFORMER)
    with pytest.raises(HeadError, match=r"cls_classifier .* distillation_classifier"):
        bndl.convert(model)


def test_the_head_can_be_named():
    model = TwoHeads("left", "right").eval()
    before = [logits.softmax(1) for logits in model(FLAT)]
    bndl.convert(model, head="right")
    assert isinstance(model.left, nn.Linear)
    assert isinstance(model.right, bndl.DecisionLayer)
    for logits, probs in zip(model(FLAT), before, strict=True):
        torch.testing.assert_close(logits.softmax(1), probs, rtol=0, atol=1e-5)


@pytest.mark.parametrize("head", ["3", "1", "fc.weight", ""])
def test_a_wrong_path_lists_the_layers_that_there_are(head):
    with pytest.raises(
        HeadError, match=r"is no nn\.Linear of Sequential; its linear layers are 0 \(6 -> 8\), 2 \(8 -> 5\)"
    ):
        bndl.convert(relu_net(), head=head)


def test_no_linear_layer():
    model = nn.Sequential(nn.Conv2d(3, C, 1), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    with pytest.raises(HeadError, match=r"Sequential has no nn\.Linear to convert"):
        bndl.convert(model)
    with pytest.raises(HeadError, match="it has none"):
        bndl.convert(model, head="0")


def test_a_convolution_as_head_is_named():
    model = nn.Sequential(nn.Linear(6, 8), nn.Unflatten(1, (8, 1)), nn.Conv1d(8, C, 1))
    with pytest.raises(HeadError, match=r"ends in 2 \(Conv1d\), not in an nn\.Linear; .* 0 \(6 -> 8\)"):
        bndl.convert(model)


def test_something_learned_after_the_last_linear_is_not_overlooked():
    for last in (nn.BatchNorm1d(C), nn.ReLU(), nn.LayerNorm(C)):
        with pytest.raises(HeadError, match=f"ends in 3 .{type(last).__name__}"):
            bndl.convert(nn.Sequential(*relu_net(), last))


def test_already_converted():
    model = bndl.convert(relu_net())
    with pytest.raises(HeadError, match="has a decision layer already"):
        bndl.convert(model)
    with pytest.raises(HeadError, match="has a decision layer already"):
        bndl.convert(bndl.DecisionLayer(3, 2))


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"features": "positive"}, "features must be auto, nonnegative or signed, got 'positive'"),
        ({"bias": False, "in_features": 3}, "bias, in_features is read off the model's head"),
        ({"theta_shape": "row"}, "theta_shape must be one of feature, sample, entry, got 'row'"),
    ],
)
def test_wrong_arguments_leave_the_model_alone(given, words):
    model = relu_net()
    with pytest.raises(InputError, match=words):
        bndl.convert(model, **given)
    assert isinstance(model[2], nn.Linear)


def test_one_output_is_refused():
    """A single logit has no constant to spare: taking the least weight away would leave nothing of the head."""
    with pytest.raises(BndlError, match="at least two classes"):
        bndl.convert(relu_net(1))


class Timm(nn.Module):
    """As timm models: ``get_classifier()`` says which layer it is, whatever it is called."""

    def __init__(self, answer: str) -> None:
        super().__init__()
        self.body, self.proj, self.head_drop = nn.Linear(6, 8), nn.Linear(8, C), nn.Identity()
        self.head, self.head_dist = nn.Linear(8, C), nn.Linear(8, C)
        self.answer = answer

    def get_classifier(self):
        return (self.head, self.head_dist) if self.answer == "both" else getattr(self, self.answer)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.relu(self.body(x if x.sum() > 0 else -x))
        return self.proj(h) if self.answer == "proj" else self.head(h)


def test_get_classifier_is_asked():
    for answer in ("head", "proj"):
        model = Timm(answer).eval()
        before = probs_of(model, FLAT)
        bndl.convert(model)
        assert isinstance(model.get_classifier(), bndl.DecisionLayer)
        torch.testing.assert_close(probs_of(model, FLAT), before, rtol=0, atol=1e-5)


def test_two_classifiers_are_not_guessed():
    with pytest.raises(HeadError, match="cannot tell"):
        bndl.convert(Timm("both"))


@pytest.mark.parametrize("first", ["head", "net"])
def test_a_head_with_two_names_is_swapped_under_both(first):
    """``self.net = nn.Sequential(self.body, self.head)``: one layer, two paths to it."""

    class Aliased(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            body, head = nn.Sequential(nn.Linear(6, 8), nn.ReLU()), nn.Linear(8, C)
            names = {"body": body, "head": head, "net": nn.Sequential(body, head)}
            for name in sorted(names, key=lambda name: name != first):
                self.add_module(name, names[name])

        def forward(self, x: Tensor) -> Tensor:
            return self.net(x)

    model = Aliased().eval()
    before = probs_of(model, FLAT)
    bndl.convert(model)
    assert model.head is model.net[1]
    torch.testing.assert_close(bndl.predict(model, FLAT).logits.softmax(1), before, rtol=0, atol=1e-5)


def test_find_layer_wants_exactly_one():
    with pytest.raises(HeadError, match=r"Sequential has no decision layer: call model = bndl\.convert\(model\) first"):
        find_layer(relu_net())
    with pytest.raises(HeadError, match="has 2 decision layers"):
        find_layer(nn.Sequential(bndl.DecisionLayer(3, 3), bndl.DecisionLayer(3, 2)))


# ------------------------------------------------------------------------- what could not be kept exact is refused


class Doubling(nn.Linear):
    def forward(self, h):
        return 2 * super().forward(h)


class After(nn.Module):
    """Does something with what its head gave."""

    def __init__(self, after):
        super().__init__()
        self.body, self.fc, self.after = nn.Linear(4, 6), nn.Linear(6, 3), after

    def forward(self, x):
        return self.after(self, self.fc(torch.relu(self.body(x))))


def test_a_head_with_a_forward_of_its_own():
    with pytest.raises(HeadError, match="is a Doubling with a forward of its own"):
        bndl.convert(nn.Sequential(nn.Linear(4, 6), nn.ReLU(), Doubling(6, 3)))


def test_a_head_with_hooks():
    model = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3))
    model[2].register_forward_hook(lambda module, args, output: -output)
    with pytest.raises(HeadError, match="has forward hooks"):
        bndl.convert(model)


def test_a_head_that_is_broken():
    model = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3))
    with torch.no_grad():
        model[2].weight[0, 0] = torch.nan
    with pytest.raises(HeadError, match="2 has NaN or infinite weights"):
        bndl.convert(model)


@pytest.mark.parametrize(
    "after",
    [lambda _, out: -out, lambda _, out: out / 100, lambda _, out: torch.sigmoid(out), lambda _, out: (out, out)],
    ids=["negated", "scaled", "multi-label", "two outputs"],
)
def test_an_output_that_is_not_the_heads(after):
    with pytest.raises(HeadError, match="does not return what a layer gave"):
        bndl.convert(After(after))
    assert isinstance(bndl.convert(After(after), head="fc").fc, bndl.DecisionLayer)


def test_a_head_that_is_used_twice():
    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = nn.Linear(4, 4)

        def forward(self, x):
            return self.fc(torch.relu(self.fc(x)))

    with pytest.raises(HeadError, match="is called more than once"):
        bndl.convert(Twice())


def test_a_threshold_on_features_is_for_after_the_conversion():
    with pytest.raises(bndl.InputError, match="alpha_theta > 0 would change predictions"):
        bndl.convert(nn.Linear(4, 3), alpha_theta=0.1)


def test_the_global_random_state_is_left_alone():
    model = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3))
    before = torch.get_rng_state()
    bndl.convert(model)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.slow
@pytest.mark.reference
def test_resnet20_keeps_its_accuracy_to_the_image_and_fit_improves_the_rest(reference_data: Path):
    facts = cifar_checkpoint("resnet20_cifar10")
    network = load_cifar_checkpoint("resnet20_cifar10", reference_data / "weights" / "resnet20_cifar10.pth")
    dense = copy.deepcopy(network.fc)
    model = bndl.convert(nn.Sequential(facts.normaliser(), network)).eval()
    data = extract(model, load(facts.dataset, split="test", root=reference_data))
    logits = dense(data.features).detach()
    converted = network.fc(data.features).detach()
    torch.testing.assert_close(converted.softmax(1), logits.softmax(1), rtol=0, atol=1e-5)
    labels = converted.argmax(1)
    assert torch.equal(labels, logits.argmax(1))
    assert int((labels == data.labels).sum()) == 9173

    order = torch.randperm(10_000, generator=torch.Generator().manual_seed(0))
    fitted, rest = data.take(order[:5000]), data.take(order[5000:])
    before = logits[order[5000:]].softmax(1)
    bndl.fit(model[1].fc, fitted, epochs=0)
    after = bndl.predict(model[1].fc, rest.features)
    assert torch.equal(after.labels, labels[order[5000:]])
    assert negative_log_likelihood(after.probs, rest.labels) < 0.75 * negative_log_likelihood(before, rest.labels)
    assert expected_calibration_error(after.probs, rest.labels) < 0.4 * expected_calibration_error(before, rest.labels)


def test_a_model_that_gives_more_while_it_trains_and_keeps_its_mode():
    class Auxiliary(nn.Module):
        def __init__(self):
            super().__init__()
            self.body, self.aux, self.fc = nn.Linear(4, 6), nn.Linear(6, 3), nn.Linear(6, 3)

        def forward(self, x):
            h = torch.relu(self.body(x))
            return (self.fc(h), self.aux(h)) if self.training else self.fc(h)

    model = bndl.convert(Auxiliary().train())
    assert isinstance(model.fc, bndl.DecisionLayer)
    assert isinstance(model.aux, nn.Linear)
    assert all(module.training for module in model.modules())

"""LIME: the regression is the lime package's, all features at once; planted parts are found; seeds and batches."""

import copy

import numpy as np
import pytest
import torch
from torch import nn

from bndl import DecisionLayer, InputError, compact, convert
from bndl.backbones import SmallCNN
from bndl.explain.lime import lime, lime_perturbed
from bndl.explain.ranks import overlap, ranks, spearman
from bndl.explain.segments import grid, patches
from bndl.explain.surrogate import fit_surrogate, kernel_weights, perturbations
from bndl.explain.words import lime_words


class Cells(nn.Module):
    """Pools an image into 4 x 4 cells: feature k is the mean of cell k, so LIME's answer is known."""

    def __init__(self, signed=False):
        super().__init__()
        self.head = DecisionLayer(16, 3, signed=signed)

    def forward(self, x):
        return self.head(nn.functional.adaptive_avg_pool2d(x.mean(1, keepdim=True), 4).flatten(1))


def test_coefficients_intercept_and_r2_are_those_of_the_lime_package():
    lime_base = pytest.importorskip("lime.lime_base")
    masks = perturbations(30, 200, seed=3)
    outputs = torch.rand(200, 7, generator=torch.Generator().manual_seed(1)) + masks[:, :7] * torch.arange(7)
    distances = np.array([1 - row.sum() ** 0.5 / 30**0.5 for row in masks.double().numpy()])
    base = lime_base.LimeBase(lambda d: np.sqrt(np.exp(-(d**2) / 0.25**2)))
    own = fit_surrogate(masks, outputs, weights=kernel_weights(masks))
    for k in range(7):
        intercept, coefficients, r2, local = base.explain_instance_with_data(
            masks.double().numpy(), outputs.double().numpy(), distances, k, 30, feature_selection="none"
        )
        expected = torch.tensor([value for _, value in sorted(coefficients)])
        torch.testing.assert_close(own.coefficients[k], expected, atol=1e-10, rtol=1e-8)
        torch.testing.assert_close(own.intercept[k], torch.tensor(intercept), atol=1e-10, rtol=1e-8)
        assert abs(float(own.r2[k]) - r2) < 1e-10
        assert abs(float(own.coefficients[k].sum() + own.intercept[k]) - float(local[0])) < 1e-9


def test_distances_and_kernel_are_those_of_the_image_explainer():
    explainer = pytest.importorskip("lime.lime_image").LimeImageExplainer()
    from sklearn.metrics import pairwise_distances

    masks = perturbations(12, 50, seed=0)
    masks[7] = False  # all parts off: distance 1
    data = masks.double().numpy()
    expected = explainer.base.kernel_fn(pairwise_distances(data, data[:1], metric="cosine").ravel())
    # the distance of the whole to itself is 0 here, and the rounding error of a division there
    torch.testing.assert_close(kernel_weights(masks), torch.from_numpy(expected), atol=1e-12, rtol=1e-9)


def test_the_whole_explanation_of_an_image_is_that_of_the_lime_package():
    lime_image = pytest.importorskip("lime.lime_image")
    torch.manual_seed(0)
    model = convert(SmallCNN(4, 3)).eval()
    image = torch.rand(3, 16, 16, generator=torch.Generator().manual_seed(2)).double()
    model.double()
    cells = grid(image, count=9)
    drawn = {}

    class Same(np.random.RandomState):
        """Gives lime our perturbations."""

        def randint(self, low, high=None, size=None):
            if size is None:
                return super().randint(low, high)
            drawn["size"] = size
            return perturbations(9, size // 9, seed=5).numpy().astype(int).ravel()

    def features(images):
        with torch.no_grad():
            return model.fc.theta(model.features(torch.from_numpy(images).permute(0, 3, 1, 2))).mean.numpy()

    K = model.fc.num_features
    explainer = lime_image.LimeImageExplainer(random_state=Same(0))
    theirs = explainer.explain_instance(
        image.permute(1, 2, 0).numpy(), features, labels=range(K), top_labels=None, num_samples=120, random_seed=1,
        segmentation_fn=lambda _: cells.numpy(),
    )  # fmt: skip
    ours = lime(model, image, segments=cells, num_perturbations=120, seed=5)
    assert drawn["size"] == 9 * 120
    assert ours.coefficients.size() == (K, 9)
    for k in range(K):
        expected = torch.tensor([value for _, value in sorted(theirs.local_exp[k])])
        torch.testing.assert_close(ours.coefficients[k], expected, atol=1e-9, rtol=1e-6)


def test_a_feature_that_is_a_cell_is_explained_by_that_cell():
    model = Cells().eval()
    image = torch.rand(3, 16, 16) + 0.5
    found = lime(model, image, segments=patches(image, side=4), background="zero", num_perturbations=400)
    assert torch.equal(found.coefficients.argmax(1), torch.arange(16))
    assert (found.r2 > 0.95).all()
    assert (found.stability.size(), found.overlap.size(), found.intercept.size()) == ((16,), (16,), (16,))
    theta = nn.functional.adaptive_avg_pool2d(image.mean(0, keepdim=True)[None], 4).flatten()
    own = found.coefficients.diagonal().float()
    assert ((own / theta - 1).abs() < 0.15).all()  # the ridge takes a little
    heat = found.heat(6, top=1)
    assert heat.size() == (16, 16)
    assert (heat > 0).nonzero().min(0).values.tolist() == [4, 8]
    assert int((heat > 0).sum()) == 16
    assert (found.coefficients[6] < 0).any()
    assert (found.heat(6, top=16) >= 0).all()  # what lowers the feature is not shown as if it raised it


def test_logits_of_classes_are_explained_by_the_same_passes():
    model = Cells().eval()
    image = torch.rand(3, 16, 16) + 0.5
    found = lime(model, image, segments="grid", count=16, background="zero", num_perturbations=300)
    assert found.classes.coefficients.size() == (3, 16)
    # logits are theta Phi + b, and so are the stand-ins: the regression is linear in its right-hand sides
    expected = model.head.phi().mean.detach().double() @ found.coefficients
    torch.testing.assert_close(found.classes.coefficients, expected, atol=1e-6, rtol=1e-5)
    assert found.class_heat(1, top=3).count_nonzero() == 3 * 16


def test_the_same_seed_gives_the_same_bits_and_batches_only_float_noise():
    torch.manual_seed(0)
    model = convert(SmallCNN(4)).train()
    image = torch.rand(1, 16, 16)  # grey
    first, again = (lime(model, image, count=12, num_perturbations=60, seed=1) for _ in range(2))
    assert torch.equal(first.coefficients, again.coefficients)
    torch.testing.assert_close(first.stability, again.stability, atol=0, rtol=0, equal_nan=True)
    assert model.training
    other = lime(model, image, count=12, num_perturbations=60, seed=2)
    assert not torch.equal(first.coefficients, other.coefficients)
    small = lime(model, image, count=12, num_perturbations=60, seed=1, batch_size=7)
    torch.testing.assert_close(first.coefficients, small.coefficients, atol=1e-6, rtol=1e-4)
    assert torch.equal(first.segments, small.segments)


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("background", ["mean", "zero", "blur"])
def test_every_background_and_grey_and_coloured_images(channels, background):
    model = convert(SmallCNN(4, channels)).eval()
    found = lime(
        model, torch.rand(channels, 12, 12), segments="grid", count=9, num_perturbations=40, background=background
    )
    assert torch.isfinite(found.coefficients).all()
    assert torch.isfinite(found.heat(0)).all()


def test_signed_features_are_explained_in_both_parts_and_by_number():
    model = Cells(signed=True).eval()
    image = torch.rand(3, 16, 16) - 0.5
    found = lime(model, image, segments="grid", count=16, background="zero", num_perturbations=200)
    assert found.coefficients.size() == (32, 16)
    some = lime(model, image, segments="grid", count=16, background="zero", num_perturbations=200, features=[20, 3])
    assert some.features.tolist() == [20, 3]
    torch.testing.assert_close(some.coefficients, found.coefficients[[20, 3]])
    torch.testing.assert_close(some.heat(20), found.heat(20))
    with pytest.raises(InputError, match="feature 4 was not explained"):
        some.heat(4)
    with pytest.raises(InputError, match="no feature 99"):
        lime(model, image, segments="grid", count=16, features=[99])


def test_a_compact_layer_keeps_the_numbers_of_its_features():
    layer = DecisionLayer(6, 2).eval()
    with torch.no_grad():
        layer.weight.copy_(torch.tensor([[0, 1.0, 0, 2, 0, 0], [0, 0, 0, 1.0, 0, 3]]) - 0.001)
    h = torch.rand(6) + 1
    make = lambda masks: masks * h  # noqa: E731
    full = lime_perturbed(layer, make, num_parts=6, num_perturbations=100)
    small = lime_perturbed(compact(layer), make, num_parts=6, num_perturbations=100)
    assert small.features.tolist() == [1, 3, 5]
    torch.testing.assert_close(small.coefficients, full.coefficients[[1, 3, 5]], atol=1e-7, rtol=1e-6)
    assert small.row(5) == 2


def test_a_table_is_explained_by_its_columns():
    layer = DecisionLayer(5, 3).eval()
    h = torch.tensor([1.0, 2, 3, 4, 0])
    found = lime_perturbed(layer, lambda masks: masks * h, num_parts=5, num_perturbations=2000)
    torch.testing.assert_close(found.coefficients[:4].argmax(1), torch.arange(4))
    torch.testing.assert_close(found.coefficients.diagonal(), h.double(), atol=0.05, rtol=0.02)
    assert found.segments is None
    assert found.r2[4].isnan()  # never active: nothing to explain, which is no perfect fit
    assert found.stability[4].isnan()
    assert (found.coefficients[4] == 0).all()
    with pytest.raises(InputError, match="only images have a heat map"):
        found.heat(0)


def test_noise_is_told_from_signal_by_r2_and_stability():
    masks = perturbations(40, 400, seed=0)
    generator = torch.Generator().manual_seed(0)
    noise, slopes = torch.randn(400, 1, generator=generator), torch.randn(40, generator=generator)
    signal = (masks.float() @ slopes)[:, None]
    found = fit_surrogate(masks, torch.cat([signal, noise], dim=1), weights=kernel_weights(masks))
    assert found.r2[0] > 0.95
    assert found.stability[0] > 0.95
    assert found.overlap[0] >= 0.9
    assert found.r2[1] < 0.4
    assert abs(found.stability[1]) < 0.5


def test_a_dense_model_is_explained_through_its_linear_head():
    torch.manual_seed(0)
    model = SmallCNN(4).eval()
    image = torch.rand(1, 12, 12)
    dense = lime(model, image, segments="grid", count=9, num_perturbations=50, head=model.fc)
    converted = lime(convert(model), image, segments="grid", count=9, num_perturbations=50)
    torch.testing.assert_close(dense.coefficients, converted.coefficients)


def test_progress_is_told_to_the_end():
    told = []
    layer = DecisionLayer(3, 2)
    lime_perturbed(layer, lambda masks: masks.float(), num_parts=3, num_perturbations=25, batch_size=10,
                   on_progress=lambda done, total: told.append((done, total)))  # fmt: skip
    assert told == [(10, 25), (20, 25), (25, 25)]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"image": torch.rand(2, 3, 8, 8)}, r"one image \(C, H, W\)"),
        ({"image": torch.zeros(1, 8, 8, dtype=torch.uint8)}, r"image\.float\(\) / 255"),
        ({"segments": "quickshift"}, "slic, grid or a tensor"),
        ({"segments": torch.zeros(8, 8, dtype=torch.int64)}, "one single super-pixel"),
        ({"background": "noise"}, "background must be one of"),
        ({"num_perturbations": 3}, "at least 4"),
        ({"batch_size": 0}, "batch_size"),
        ({"kernel_width": 0.0}, "kernel_width"),
    ],
)
def test_what_does_not_fit_is_refused_in_one_sentence(change, words):
    settings = {"image": torch.rand(1, 8, 8), "segments": "grid", "count": 4, **change}
    with pytest.raises(InputError, match=words):
        lime(convert(SmallCNN(3)), settings.pop("image"), **settings)


def test_makers_that_lose_inputs_are_found_out():
    with pytest.raises(InputError, match="make one for each mask"):
        lime_perturbed(DecisionLayer(3, 2), lambda masks: masks[:1].float(), num_parts=3, num_perturbations=8)


@pytest.fixture(scope="module")
def bert():
    transformers = pytest.importorskip("transformers")
    from tokenizers import Tokenizer, models, pre_tokenizers, processors

    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "film", "was", "a", "joy", "dull", "and", "long"]
    raw = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="[UNK]"))
    raw.pre_tokenizer = pre_tokenizers.Whitespace()
    raw.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=raw,
        pad_token="[PAD]",
        unk_token="[UNK]",
        cls_token="[CLS]",
        sep_token="[SEP]",
        mask_token="[MASK]",
    )
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=len(words), hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16,
        max_position_embeddings=12, num_labels=3,
    )  # fmt: skip
    return convert(transformers.BertForSequenceClassification(config)).eval(), tokenizer


@pytest.mark.parametrize("missing", ["mask", "remove"])
def test_words_of_a_text(bert, missing):
    model, tokenizer = copy.deepcopy(bert[0]), bert[1]
    with torch.no_grad():  # all words are alike but "joy", and all are heard alike: only whether joy is there matters
        embeddings, attention = model.bert.embeddings, model.bert.encoder.layer[0].attention
        embeddings.word_embeddings.weight[4:9] = embeddings.word_embeddings.weight[10:] = torch.ones(16)
        embeddings.word_embeddings.weight[1] = 1  # the comma is unknown
        embeddings.position_embeddings.weight.zero_()
        attention.self.query.weight.zero_()
        attention.self.value.weight.copy_(torch.eye(16))
        attention.output.dense.weight.copy_(10 * torch.eye(16))
    found = lime_words(model, tokenizer, "the film was  a joy , a long joy", missing=missing, num_perturbations=150)
    assert found.parts == ("the", "film", "was", "a", "joy", ",", "a", "long", "joy")
    assert found.coefficients.size() == (32, 9)
    strength = found.coefficients.abs().mean(0)
    assert set(strength.topk(2).indices.tolist()) == {4, 8}


def test_texts_longer_than_the_model_and_of_one_word(bert):
    model, tokenizer = bert
    found = lime_words(model, tokenizer, "the film was a dull and long " * 3, num_perturbations=20, batch_size=8)
    assert len(found.parts) == 21
    with pytest.raises(InputError, match="two words or more, the text has 1"):
        lime_words(model, tokenizer, "joy")
    with pytest.raises(InputError, match="missing must be mask or remove"):
        lime_words(model, tokenizer, "a joy", missing="blank")
    characters = lime_words(model, tokenizer, "a joy", pattern=r"\S", missing="remove", num_perturbations=16)
    assert characters.parts == ("a", "j", "o", "y")


def test_patches_of_a_vit():
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.ViTConfig(
        image_size=32,
        patch_size=8,
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=16,
        num_labels=3,
    )
    model = convert(transformers.ViTForImageClassification(config)).eval()
    image = torch.randn(3, 32, 32)
    found = lime(model, image, segments=patches(image, side=8), num_perturbations=60)
    assert found.coefficients.size() == (32, 16)
    assert found.classes.coefficients.size() == (3, 16)


def test_ranks_and_likeness_agree_with_scipy():
    stats = pytest.importorskip("scipy.stats")
    generator = torch.Generator().manual_seed(0)
    a, b = (torch.randint(0, 6, (4, 30), generator=generator).double() for _ in range(2))
    torch.testing.assert_close(ranks(a), torch.from_numpy(stats.rankdata(a.numpy(), axis=1)))
    for x, y, found in zip(a, b, spearman(a, b), strict=True):
        assert abs(float(found) - stats.spearmanr(x.numpy(), y.numpy()).statistic) < 1e-12
    assert spearman(a, torch.ones_like(a)).isnan().all()
    assert overlap(torch.tensor([5.0, 4, 3, 2]), torch.tensor([9.0, 1, 8, 2]), top=2) == 0.5
    assert overlap(a, a).tolist() == [1.0] * 4


@pytest.mark.parametrize("features", ["foo", 1.5, True, [1.0, 2.0]])
def test_features_are_numbers(features):
    with pytest.raises(InputError, match="features must be the numbers of features"):
        lime(convert(SmallCNN(3)), torch.rand(1, 8, 8), segments="grid", count=4, features=features)

"""Recipes: what is shipped is sound, what is written wrong is said in one sentence, what is written down is read back."""

import copy
from importlib import resources

import pytest
import yaml

import bndl.backbones
from bndl.errors import FileError, InputError
from bndl.train import Recipe, list_recipes, load_recipe
from bndl.train.recipe import override, parse_recipe

RECORD = {
    "about": "a test",
    "needs": {"data": "digits", "hours": "0", "machine": "any"},
    "data": {"name": "digits"},
    "model": {"backbone": "small-cnn", "layer": {"init_shape": 5.0}},
    "train": {"epochs": 2},
}
PAPERS = {
    "cifar10-resnet18",
    "cifar100-resnet18",
    "imagenet-resnet50",
    "places10-resnet50",
    "cifar10-vit",
    "cifar100-vit",
    "imagenet-vit",
}
NAMES = [recipe.name for recipe in list_recipes()]


def changed(*settings: str) -> Recipe:
    return parse_recipe(override(RECORD, settings), name="mine.yaml")


def leaves(record: dict, prefix: str = "") -> dict:
    """Nested settings as one dict by dotted name."""
    found = {}
    for key, value in record.items():
        inner = leaves(value, f"{prefix}{key}.") if isinstance(value, dict) else {f"{prefix}{key}": value}
        found |= inner
    return found


# ------------------------------------------------------------------------------------------------------------- packaged


def test_every_experiment_of_the_paper_has_a_recipe():
    assert set(NAMES) >= PAPERS


@pytest.mark.parametrize("name", NAMES)
def test_a_packaged_recipe_is_complete(name):
    recipe = load_recipe(name)
    assert recipe.name == name
    assert recipe.about
    assert "\n" not in recipe.about
    assert all(recipe.needs.model_dump().values())
    known = recipe.model.backbone in bndl.backbones.backbone_names()
    assert known or recipe.model.backbone.startswith(("hf:", "timm:", "torchvision:"))
    from_scratch = not (recipe.model.frozen or recipe.model.pretrained)  # noise and prior cost accuracy there
    assert (recipe.train.resolved_objective().beta == 0) == from_scratch == (recipe.model.layer.init_shape > 100)
    assert recipe.train.optimization().lr == recipe.train.lr
    assert not (recipe.model.frozen and recipe.data.augment != "none"), "features of a frozen backbone are cached once"


@pytest.mark.parametrize("name", [name for name in NAMES if name.endswith("-small")])
def test_a_small_twin_is_its_big_one_but_for_what_it_says(name):
    own = yaml.safe_load((resources.files("bndl") / "recipes" / f"{name}.yaml").read_text())
    assert own.pop("extends") == name.removesuffix("-small")
    said = leaves(own)
    small, big = (leaves(load_recipe(which).model_dump()) for which in (name, name.removesuffix("-small")))
    assert {key: small[key] for key in said} == said
    untouched = set(big) - set(said) - {"name"}
    assert {key: small[key] for key in untouched} == {key: big[key] for key in untouched}
    assert "CPU" in small["needs.machine"]
    assert small["paper"] == "", "the paper has no figure for it"


@pytest.mark.parametrize(
    ("name", "epochs", "batch_size", "weight_decay"),
    [
        ("cifar10-resnet18", 150, 128, 5e-4),
        ("cifar100-resnet18", 150, 128, 5e-4),
        ("imagenet-resnet50", 200, 256, 1e-4),
    ],
)
def test_training_from_scratch_has_the_papers_settings(name, epochs, batch_size, weight_decay):
    train = load_recipe(name).train
    assert (train.optimizer, train.lr, train.momentum) == ("sgd", 0.1, 0.9)
    assert (train.epochs, train.batch_size, train.weight_decay) == (epochs, batch_size, weight_decay)


@pytest.mark.parametrize("name", ["cifar10-vit", "cifar100-vit", "imagenet-vit"])
def test_vits_are_frozen_and_have_the_papers_settings(name):
    recipe = load_recipe(name)
    assert recipe.model.frozen
    assert recipe.model.pretrained
    assert (recipe.train.optimizer, recipe.train.lr, recipe.train.epochs) == ("adamw", 5e-5, 20)


@pytest.mark.parametrize(
    ("name", "lr", "epochs"),
    [
        ("cifar10-resnet18-frozen", 0.001, 200),
        ("cifar100-resnet18-frozen", 0.001, 200),
        ("imagenet-resnet50-frozen", 0.001, 200),
        ("places10-resnet50", 0.1, 100),
    ],
)
def test_fine_tuning_trains_the_head_alone_with_the_papers_settings(name, lr, epochs):
    recipe = load_recipe(name)
    assert recipe.model.frozen
    assert (recipe.train.lr, recipe.train.epochs) == (lr, epochs)


# ------------------------------------------------------------------------------------------------------ what is written


@pytest.mark.parametrize("name", NAMES)
def test_what_a_run_writes_down_is_the_recipe(name):
    recipe = load_recipe(name, settings=["train.lr=1e-4", "data.name='über/ñ: x'", "model.layer.init_shape=7"])
    assert parse_recipe(yaml.safe_load(recipe.to_yaml()), name="recipe.yaml") == recipe


def test_a_file_extends_a_packaged_recipe_section_by_section(tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text("extends: cifar10-resnet18\ntrain: {epochs: 3}\nmodel: {layer: {phi_shape: entry}}\n")
    mine, base = load_recipe(path), load_recipe("cifar10-resnet18")
    assert mine.name == "mine"
    assert (mine.train.epochs, mine.model.layer.phi_shape) == (3, "entry")
    assert mine.train.model_copy(update={"epochs": base.train.epochs}) == base.train
    assert mine.model.backbone == base.model.backbone
    assert mine.data == base.data


def test_a_file_extends_the_file_beside_it(tmp_path):
    (tmp_path / "base.yaml").write_text(yaml.safe_dump(RECORD))
    (tmp_path / "mine.yaml").write_text("extends: base.yaml\ntrain: {epochs: 9}\n")
    assert load_recipe(tmp_path / "mine.yaml").train.epochs == 9


@pytest.mark.parametrize("around", [1, 2, 3])
def test_recipes_that_extend_each_other(around, tmp_path):
    files = [tmp_path / f"{number}.yaml" for number in range(around)]
    for number, file in enumerate(files):
        file.write_text(f"extends: {files[(number + 1) % around]}\n")
    with pytest.raises(FileError, match=r"extends itself, by way of .*0\.yaml: take one"):
        load_recipe(files[0])


@pytest.mark.parametrize("around", [1, 2, 3])
def test_recipes_beside_each_other_that_extend_each_other(around, tmp_path):
    for number in range(around):
        (tmp_path / f"{number}.yaml").write_text(f"extends: {(number + 1) % around}.yaml\n")
    with pytest.raises(FileError, match="extends itself, by way of"):
        load_recipe(tmp_path / "0.yaml")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("data: [", "is no YAML file: while parsing"),
        ("a: b: c", "is no YAML file: mapping values"),
        ("", "holds no recipe: it must be a YAML mapping"),
        ("- 1\n- 2", "holds no recipe: it must be a YAML mapping"),
        ("a string", "holds no recipe: it must be a YAML mapping"),
        ("about: x", "lacks 'data': add it"),
        ("extends: cifar10-resnet81\n", "did you mean cifar10-resnet18"),
        ("extends: cifar10-resnet18\ntrain: 5\n", "has a bad 'train': input should be a valid dictionary"),
        ("extends: cifar10-resnet18\nagument: cifar\n", "has a setting 'agument' that does not exist; choose from"),
    ],
)
def test_a_file_that_is_no_recipe(text, words, tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text(text)
    with pytest.raises((FileError, InputError)) as caught:
        load_recipe(path)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_bytes_that_are_no_text(tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_bytes(b"\xff\xfe\x00\x80")
    with pytest.raises(FileError, match="is no YAML file"):
        load_recipe(path)


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("cifar10-resnet18-smal", "did you mean cifar10-resnet18-small"),
        ("cifar10_resnet18", "did you mean cifar10-resnet18"),
        ("zzz", "bndl train --list shows the names"),
        (".", "neither a recipe's name nor a file"),
    ],
)
def test_a_name_that_is_none(source, words):
    with pytest.raises(FileError) as caught:
        load_recipe(source)
    assert words in str(caught.value)


# --------------------------------------------------------------------------------------------------------- what is wrong


@pytest.mark.parametrize(
    ("setting", "place", "meant"),
    [
        ("data.agument=cifar", "data.agument", "augment"),
        ("data.nmae=digits", "data.nmae", "name"),
        ("train.epoch=3", "train.epoch", "epochs"),
        ("train.batchsize=3", "train.batchsize", "batch_size"),
        ("model.layer.init_shap=3", "model.layer.init_shap", "init_shape"),
        ("model.bakbone=resnet18", "model.bakbone", "backbone"),
        ("needs.hour=3", "needs.hour", "hours"),
        ("trian.epochs=3", "trian", "train"),
    ],
)
def test_a_misspelt_setting_is_told_what_was_meant(setting, place, meant):
    with pytest.raises(InputError) as caught:
        changed(setting)
    assert str(caught.value) == f"mine.yaml has a setting {place!r} that does not exist; did you mean {meant!r}?"


def test_a_setting_that_is_like_none_is_told_all():
    with pytest.raises(
        InputError, match=r"'model\.layer\.zzz' that does not exist; choose from theta_shape, phi_shape,"
    ):
        changed("model.layer.zzz=1")


@pytest.mark.parametrize("missing", ["data", "model", "train", "data.name", "train.epochs"])
def test_a_missing_setting_is_named(missing):
    record = copy.deepcopy(RECORD)
    *sections, key = missing.split(".")
    inner = record
    for section in sections:
        inner = inner[section]
    del inner[key]
    with pytest.raises(InputError, match=f"^mine.yaml lacks {missing!r}: add it.$"):
        parse_recipe(record, name="mine.yaml")


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ("train.epochs=0", "bad 'train.epochs': input should be greater than or equal to 1, got 0"),
        ("train.epochs=2.5", "bad 'train.epochs': input should be a valid integer"),
        ("train.epochs=many", "bad 'train.epochs'"),
        ("train.epochs=", "bad 'train.epochs'"),
        ("train.lr=0", "bad 'train.lr': input should be greater than 0, got 0"),
        ("train.lr=.nan", "bad 'train.lr'"),
        ("train.batch_size=0", "bad 'train.batch_size'"),
        ("train.optimizer=adam", "bad 'train.optimizer': input should be 'sgd' or 'adamw', got 'adam'"),
        ("train.schedule=step", "bad 'train.schedule'"),
        ("train.warmup=1", "bad 'train.warmup'"),
        ("train.kl_warmup=1.1", "bad 'train.kl_warmup'"),
        ("train.clip=0", "bad 'train.clip'"),
        ("train.beta=-1", "bad 'train.beta'"),
        ("train.beta=.inf", "beta must be >= 0"),
        ("train.precision=fp8", "bad 'train.precision'"),
        ("train.seed=-1", "bad 'train.seed'"),
        ("train.seed=4294967296", "bad 'train.seed'"),
        ("data.val=0", "bad 'data.val'"),
        ("data.val=1", "bad 'data.val'"),
        ("data.augment=strong", "bad 'data.augment': input should be 'none', 'cifar' or 'imagenet'"),
        ("data.name=5", "bad 'data.name': input should be a valid string, got 5"),
        ("data.strict=perhaps", "bad 'data.strict'"),
        ("data.workers=-1", "bad 'data.workers'"),
        (
            "model.head=linear",
            "bad 'model.head': input should be 'bndl', 'dense', 'nmf', 'mc-dropout', 'belief-matching' or 'evidential', "
            "got 'linear'",
        ),
        ("model.layer=5", "bad 'model.layer'"),
        ("model.layer.theta_shape=row", "bad 'model.layer.theta_shape'"),
        ("model.layer.init_shape=0.1", "bad 'model.layer.init_shape'"),
        ("train.objective=mine", "there is no objective 'mine'; choose from default, paper-resnet"),
    ],
)
def test_a_value_that_cannot_be_is_said_with_what_came(setting, words):
    with pytest.raises(InputError) as caught:
        changed(setting)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


# ------------------------------------------------------------------------------------------------------------- override


@pytest.mark.parametrize(
    ("setting", "place", "value"),
    [
        ("train.lr=1e-4", "train.lr", 1e-4),
        ("train.lr=5", "train.lr", 5.0),
        ("train.clip=null", "train.clip", None),
        ("train.clip=1", "train.clip", 1.0),
        ("model.frozen=true", "model.frozen", True),
        ("data.name=a=b", "data.name", "a=b"),
        ("data.name='10'", "data.name", "10"),
        (" train.seed = 3", "train.seed", 3),
        ("model.layer.phi_shape=entry", "model.layer.phi_shape", "entry"),
    ],
)
def test_settings_are_read_as_yaml(setting, place, value):
    found = leaves(changed(setting).model_dump())
    assert found[place] == value
    assert type(found[place]) is type(value)
    others = leaves(changed().model_dump())
    assert {k: v for k, v in found.items() if k != place} == {k: v for k, v in others.items() if k != place}


def test_the_last_of_two_settings_counts():
    assert changed("train.seed=1", "train.lr=0.2", "train.seed=2").train.seed == 2


@pytest.mark.parametrize(
    "setting", ["train.epochs", "epochs=5", "train={epochs: 5}", "=5", "train.=5", ".epochs=5", "", "train..epochs=5"]
)
def test_a_setting_that_is_none(setting):
    with pytest.raises(InputError) as caught:
        changed(setting)
    assert str(caught.value) == f"--set takes section.key=value, such as train.epochs=5, got {setting!r}."


@pytest.mark.parametrize("text", ["[", "{a: ", "'x", "a: b: c"])
def test_a_value_that_is_no_yaml(text):
    with pytest.raises(InputError, match=r"the value of --set train\.lr is no YAML: ") as caught:
        changed(f"train.lr={text}")
    assert repr(text) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_setting_inside_what_has_no_parts():
    with pytest.raises(InputError, match=r"'about\.x' does not name a setting: 'about' has no parts"):
        changed("about.x=3")


def test_overriding_leaves_the_record_as_it_was():
    before = copy.deepcopy(RECORD)
    found = override(RECORD, ["train.lr=1", "model.layer.init_shape=9", "model.width=3", "data.val=0.3", "new.key=1"])
    assert before == RECORD
    assert found["model"]["layer"]["init_shape"] == 9
    assert RECORD["model"]["layer"]["init_shape"] == 5.0


def test_a_recipe_cannot_be_changed_behind_the_runs_back():
    recipe = changed()
    with pytest.raises(ValueError, match="frozen"):
        recipe.train.lr = 3.0


def test_beta_takes_the_place_of_the_presets_and_nothing_else():
    preset = changed("train.objective=paper-vit").train.resolved_objective()
    mine = changed("train.objective=paper-vit", "train.beta=0.5").train.resolved_objective()
    assert preset.beta == 1e-6
    assert (mine.beta, mine.zero, mine.phi) == (0.5, "paper", "feature-mean")
    assert changed("train.beta=0").train.resolved_objective().beta == 0

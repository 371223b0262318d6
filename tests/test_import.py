"""``import bndl``: torch and numpy alone, and the names that it promises."""

import os
import subprocess
import sys

import pytest

import bndl

OPTIONAL = (
    "kornia",
    "pydantic",
    "yaml",
    "timm",
    "torchvision",
    "efficientnet_lite_pytorch",
    "lightning",
    "transformers",
    "matplotlib",
    "sklearn",
    "rich",
    "safetensors",
    "scipy",
    "PIL",
    "pyarrow",
    "torchvision",
)
CONTRACT = ("DecisionLayer", "convert", "fit", "kl", "load", "predict", "save", "Prediction")


def python(code: str) -> str:
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return done.stdout


def test_imports_nothing_that_is_optional_and_says_nothing():
    code = "import sys, torch; before = {*sys.modules}; import bndl; print(*({*sys.modules} - before))"
    assert set(python(code).split()).isdisjoint(OPTIONAL)


def test_works_where_nothing_optional_is_installed():
    code = f"""
import sys
for name in {OPTIONAL}:
    sys.modules[name] = None
import torch, bndl
from torch import nn
torch.manual_seed(0)
model = bndl.convert(nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3)))
x, y = torch.randn(20, 4), torch.arange(20) % 3
bndl.fit(model, [(x, y)], epochs=1, progress=True)
print(len(bndl.predict(model, x, progress=True)))
for call in (lambda: bndl.save(model, "never.safetensors"), lambda: bndl.load("never.safetensors")):
    try:
        call()
    except bndl.MissingExtraError as error:
        print(error)
"""
    number, *errors = python(code).splitlines()
    assert number == "20"
    assert len(errors) == 2
    for error in errors:
        assert error.endswith('pip install "bndl[io]"')


def test_every_promised_name_is_there():
    assert set(CONTRACT) <= set(bndl.__all__)
    for name in set(bndl.__all__) - {"BNDLClassifier"}:
        assert getattr(bndl, name) is not None
    assert len(bndl.__all__) == len(set(bndl.__all__))
    assert bndl.__version__[0].isdigit()


def test_the_estimator_comes_when_it_is_asked_for():
    pytest.importorskip("sklearn")
    pytest.importorskip("bndl.estimator")
    assert bndl.BNDLClassifier.__name__ == "BNDLClassifier"


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="module 'bndl' has no attribute 'confuse'"):
        _ = bndl.confuse


def test_one_except_catches_all_errors_and_the_usual_ones_still_do():
    for error, usual in (
        (bndl.InputError, ValueError),
        (bndl.HeadError, ValueError),
        (bndl.FileError, OSError),
        (bndl.MissingExtraError, ImportError),
    ):
        assert issubclass(error, bndl.BndlError)
        assert issubclass(error, usual)


def test_the_command_line_does_not_wait_for_torch():
    code = "import sys; from bndl.cli import main; main(['--help']); main([]); print(*sorted(sys.modules))"
    assert "torch" not in python(code).splitlines()[-1].split()


@pytest.mark.parametrize("name", ["compact", "convert", "evaluate", "fit", "predict", "sparsify"])
def test_a_function_is_not_hidden_by_the_module_it_lives_in(name):
    first_the_module = f"import bndl.{name}, bndl.{name} as own; print(bndl.{name}.__name__, callable(bndl.{name}))"
    first_the_name = f"import bndl; bndl.{name}; import bndl.{name}; print(bndl.{name}.__name__, callable(bndl.{name}))"
    assert python(first_the_module).split() == python(first_the_name).split() == [name, "True"]


def test_all_names_are_listed():
    assert {*bndl.__all__} <= {*dir(bndl)}

"""Every code block of the README and the docs is run, in order, file by file."""

import contextlib
import io
import re
import runpy
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from bndl.backbones import SmallCNN
from bndl.cli import COMMANDS, _parser
from bndl.data import as_float, load_splits
from bndl.train import load_recipe

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)


def blocks(page, language):
    return [code for kind, code in BLOCK.findall(page.read_text()) if kind == language]


@pytest.fixture
def names():
    """What the examples take as given: a network, real digits in loaders, one batch of them."""
    splits = load_splits("digits")
    parts = []
    for part in (splits.train, splits.val, splits.test):
        images, labels = zip(*(part[i] for i in range(len(part))), strict=True)
        parts.append(TensorDataset(as_float(torch.stack(images)), torch.tensor(labels)))
    train_loader, val_loader, test_loader = (DataLoader(part, batch_size=128) for part in parts)
    x, y = next(iter(test_loader))
    return {
        "model": SmallCNN(10),
        "backbone": SmallCNN(10),
        "train_loader": train_loader,
        "val_loader": val_loader,
        "test_loader": test_loader,
        "x": x,
        "y": y,
        "N": len(parts[0]),
        "names": [str(digit) for digit in range(10)],
    }


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_python_blocks_run(page, names, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for code in blocks(page, "python"):
        exec(compile(code, str(page), "exec"), names)


@cache
def helps(script: str) -> str:
    """What a script says to --help; run in this process, which has loaded all that it needs."""
    said, code = io.StringIO(), None
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(said):
        patch.setattr(sys, "argv", [script, "--help"])
        patch.setattr(sys, "path", [str((ROOT / script).parent), *sys.path])
        try:
            runpy.run_path(str(ROOT / script), run_name="__main__")
        except SystemExit as left:
            code = left.code
    assert code == 0, f"{script} --help ends with {code}"
    return said.getvalue()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_shell_blocks_name_what_exists(page):
    for line in "".join(blocks(page, "sh")).splitlines():
        words = line.split("#")[0].split()
        if not words:
            continue
        if words[0] == "make":
            subprocess.run(["make", "--dry-run", words[1]], cwd=ROOT, check=True, capture_output=True)
        elif words[0] == "bndl":
            assert words[1] in COMMANDS
            args = _parser(words[1]).parse_args(words[1:])  # exits on an option that does not exist
            if words[1] == "train" and args.recipe:
                load_recipe(args.recipe, settings=args.set)
        elif words[0] == "python":
            assert helps(words[1]), f"{words[1]} --help says nothing"
        else:
            assert words[0] == "pip", f"{page.name} shows a command that no test knows: {line}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_recipes_shown_are_recipes(page, tmp_path):
    for text in blocks(page, "yaml"):
        (tmp_path / "recipe.yaml").write_text(text)
        load_recipe(tmp_path / "recipe.yaml")


def test_links_lead_somewhere():
    for page in PAGES:
        for target in re.findall(r"\]\((?!http)([^)#]+)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name} links to {target}, which is not there"


def test_the_readme_tree_is_the_tree():
    tree = next(code for kind, code in BLOCK.findall((ROOT / "README.md").read_text()) if code.startswith("src/bndl/"))
    told = set(re.findall(r"^  (\w[\w.]*/?)", tree, re.MULTILINE))
    package = ROOT / "src" / "bndl"
    there = {path.name + "/" * path.is_dir() for path in package.iterdir() if not path.name.startswith(("__py", "_v"))}
    assert told == {name for name in there if name != "py.typed"}

"""Comparisons: cells computed once, failures that stay alone, a table that says what the examples say."""

import json
import math
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import yaml

from bndl.baselines import METHODS, get_method
from bndl.baselines.method import Size
from bndl.baselines.temperature import Temperature
from bndl.compare import Cell, Comparison, Failure, compare, find_source, tabulate
from bndl.compare.cells import NUM_RESAMPLES
from bndl.compare.figure import draw
from bndl.compare.formats import to_latex, to_markdown
from bndl.compare.paper import PAPER, paper_table, with_printed
from bndl.compare.run import Options
from bndl.compare.sparsity import bndl_path
from bndl.compare.sparsity_table import draw_paths
from bndl.data import load_splits
from bndl.errors import FileError, InputError
from bndl.metrics.examples import Examples
from bndl.metrics.pavpu import best_threshold, pavpu_score
from bndl.train import load_recipe, load_run, train

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore::UserWarning")]

RECORD = {
    "about": "a test",
    "data": {"name": "digits", "val": 0.2, "workers": 0},
    "model": {"backbone": "small-cnn", "width": 8},
    "train": {"epochs": 3, "batch_size": 64, "lr": 0.1},
}


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> Path:
    """A folder with a recipe and a finished dense run of it, under the name that bndl train gives."""
    base = tmp_path_factory.mktemp("compare")
    (base / "tiny.yaml").write_text(yaml.safe_dump(RECORD))
    train(load_recipe(base / "tiny.yaml", settings=["model.head=dense"]), base / "runs" / "tiny-dense-0")
    return base


def options(place: Path, out: Path, **changes) -> Options:
    return Options(out=out, cache=place / "features", runs=place / "runs", **changes)


@pytest.fixture(scope="module")
def frozen(place) -> tuple[Comparison, Options]:
    chosen = options(place, place / "out", ood={"again": "digits"})
    run = str(place / "runs" / "tiny-dense-0")
    return compare([run], ["dense", "temperature", "nmf"], [0, 1], options=chosen), chosen


# ------------------------------------------------------------------------------------------------------------- the cells


def test_the_dense_cell_is_what_the_run_measured_itself(frozen, place):
    run = load_run(place / "runs" / "tiny-dense-0")
    cell = next(cell for cell in frozen[0].cells if cell.method == "dense")
    measured = run.outcome.parts["test"][0]
    assert cell.figures["accuracy"] == pytest.approx(measured.accuracy, abs=1e-9)
    assert cell.figures["nll"] == pytest.approx(measured.nll, abs=1e-5)
    assert cell.figures["ece"] == pytest.approx(measured.ece, abs=1e-5)
    assert cell.num_test == len(load_splits("digits").test)


def test_a_set_cannot_be_told_from_itself(frozen):
    for cell in frozen[0].cells:
        assert cell.figures["ood/again/auroc"] == pytest.approx(0.5, abs=0.03)


def test_methods_share_resamples_so_that_differences_are_paired(frozen):
    dense, scaled = (next(c for c in frozen[0].cells if c.method == m) for m in ("dense", "temperature"))
    assert torch.equal(dense.draws["accuracy"], scaled.draws["accuracy"])  # the same decisions
    assert len(dense.draws["accuracy"]) == NUM_RESAMPLES


def test_finished_cells_are_not_computed_again(frozen, place, monkeypatch):
    def refuse(*_args, **_kwargs):
        raise AssertionError("computed again")

    for method in ("dense", "temperature", "nmf"):
        monkeypatch.setattr(type(get_method(method)), "fit", refuse)
    again = compare([str(place / "runs" / "tiny-dense-0")], ["dense", "temperature", "nmf"], [0, 1], options=frozen[1])
    assert not again.failures
    for one, other in zip(again.cells, frozen[0].cells, strict=True):
        assert one.figures == other.figures
        assert one.size == other.size
        assert torch.equal(one.draws["aurc"], other.draws["aurc"])


@pytest.mark.parametrize("change", ["ood", "damage", "cut", "gap", "again"])
def test_cells_are_computed_again_when_they_should(frozen, place, tmp_path, change):
    run = str(place / "runs" / "tiny-dense-0")
    first = options(place, tmp_path)
    compare([run], ["dense"], [0], options=first)
    cell = tmp_path / "cells" / "tiny-dense-0" / "dense-0" / "cell.json"
    before = cell.stat().st_mtime_ns
    compare([run], ["dense"], [0], options=first)
    assert cell.stat().st_mtime_ns == before
    draws = cell.with_name("resamples.npz")
    if change == "damage":
        draws.write_bytes(b"PK")
    if change == "cut":
        draws.write_bytes(draws.read_bytes()[: draws.stat().st_size // 2])
    if change == "gap":
        record = json.loads(cell.read_text())
        del record["figures"]["nll"]
        cell.write_text(json.dumps(record))
    changed = {"ood": replace(first, ood={"digits": "digits"}), "again": replace(first, again=True)}
    found = compare([run], ["dense"], [0], options=changed.get(change, first))
    assert cell.stat().st_mtime_ns > before
    assert ("ood/digits/auroc" in found.cells[0].figures) == (change == "ood")


def test_one_failure_loses_nothing_and_is_tried_again(place, tmp_path, monkeypatch):
    told = []
    run = str(place / "runs" / "tiny-dense-0")
    with monkeypatch.context() as patch:
        patch.setattr(Temperature, "fit", lambda *_a, **_k: 1 / 0)
        first = compare([run], ["temperature", "dense"], [0], options=options(place, tmp_path), tell=told.append)
    assert [cell.method for cell in first.cells] == ["dense"]
    assert first.failures == (Failure("tiny-dense-0", "temperature", 0, "ZeroDivisionError: division by zero"),)
    assert any("temperature" in line and "failed" in line for line in told)
    table = tabulate(first)
    assert "failed: ZeroDivisionError" in to_markdown(table)
    second = compare([run], ["temperature", "dense"], [0], options=options(place, tmp_path))
    assert not second.failures


def test_a_seed_that_failed_is_told_beside_those_that_did_not(frozen):
    cells = tuple(c for c in frozen[0].cells if c.method == "dense" or c.seed == 0)
    failures = (Failure("tiny-dense-0", "temperature", 1, "no"),)
    text = to_markdown(tabulate(Comparison(cells, failures, frozen[0].about)))
    assert "seeds 0, 1" in text.splitlines()[0]
    assert "| dense |" in text
    assert "| temperature (seed 0) |" in text
    assert "| temperature (seed 1) | failed: no |" in text


def test_without_the_reference_nothing_is_said_of_differences(frozen):
    alone = Comparison(tuple(c for c in frozen[0].cells if c.method == "nmf"), (), frozen[0].about)
    text = to_markdown(tabulate(alone))
    assert "worse than" not in text
    assert "worse than dense" in to_markdown(tabulate(frozen[0]))


def test_subjects_that_would_share_a_folder_are_refused(place, tmp_path):
    run = place / "runs" / "tiny-dense-0"
    with pytest.raises(InputError, match="two subjects are called 'tiny-dense-0'"):
        compare([str(run), f"{run}/"], ["dense"], [0], options=options(place, tmp_path))


def test_runs_that_cannot_be_compared_on_are_refused_first(place, tmp_path):
    for name, change in (("unfinished", "results.json"), ("head", "recipe.yaml")):
        copy = tmp_path / name
        shutil.copytree(place / "runs" / "tiny-dense-0", copy)
        text = (copy / change).read_text()
        (copy / change).unlink()
        if name == "head":
            (copy / change).write_text(text.replace("head: dense", "head: bndl"))
    with pytest.raises(FileError, match="has not finished"):
        compare([str(tmp_path / "unfinished")], ["dense"], [0], options=options(place, tmp_path))
    with pytest.raises(InputError, match="trained with a bndl head"):
        compare([str(tmp_path / "head")], ["dense"], [0], options=options(place, tmp_path))
    with pytest.raises(FileError):
        compare(["resnet56_cifar10"], ["dense"], [0], options=options(place, tmp_path, ood={"x": "nowhere"}))
    assert not (tmp_path / "cells").exists()


def test_examples_are_kept(frozen):
    kept = Examples.load(frozen[1].out / "cells" / "tiny-dense-0" / "dense-0" / "test.npz")
    cell = next(cell for cell in frozen[0].cells if cell.method == "dense")
    assert float(kept.correct.double().mean()) == pytest.approx(cell.figures["accuracy"])


# --------------------------------------------------------------------------------------------------------- from scratch


def test_networks_are_trained_once_and_found_again(place, tmp_path, monkeypatch):
    told = []
    chosen = options(place, tmp_path, num_members=2)
    methods = ["dense", "temperature", "nmf", "belief-matching", "mc-dropout", "ensemble"]
    found = compare([str(place / "tiny.yaml")], methods, [0], options=chosen, tell=told.append)
    assert not found.failures
    trained = [line for line in told if line.startswith("training ")]
    assert len(trained) == 4  # nmf, belief-matching, mc-dropout, a second member; dense-0 was there
    by_name = {cell.method: cell for cell in found.cells}
    assert by_name["temperature"].figures["accuracy"] == by_name["dense"].figures["accuracy"]
    assert by_name["temperature"].figures["nll"] <= by_name["dense"].figures["nll"] + 0.01
    assert by_name["nmf"].size.active <= by_name["nmf"].size.weights
    assert by_name["ensemble"].size.parameters == 2 * by_name["dense"].size.parameters
    assert by_name["ensemble"].seconds_to_fit > by_name["dense"].seconds_to_fit
    told.clear()
    compare([str(place / "tiny.yaml")], methods, [0], options=replace(chosen, out=tmp_path / "b"), tell=told.append)
    assert not [line for line in told if line.startswith("training ")]


def test_in_the_papers_tables_our_networks_learn_with_noise_and_prior(place, tmp_path):
    quiet = RECORD | {
        "model": {**RECORD["model"], "layer": {"init_shape": 1000}},
        "train": {**RECORD["train"], "beta": 0.0, "epochs": 1},
    }
    (tmp_path / "tiny.yaml").write_text(yaml.safe_dump(quiet))
    told: list[str] = []
    chosen = options(tmp_path, tmp_path / "out")
    for own in (chosen, replace(chosen, out=tmp_path / "paper", runs=tmp_path / "printed", paper=True)):
        compare([str(tmp_path / "tiny.yaml")], ["dense", "bndl"], [0], options=own, tell=told.append)
    assert len([line for line in told if line.startswith("training ")]) == 4
    ours, theirs = (load_run(tmp_path / name / "tiny-bndl-0").recipe for name in ("runs", "printed"))
    assert (ours.model.layer.init_shape, ours.train.resolved_objective().beta) == (1000, 0)
    assert theirs.model.layer.init_shape == 10
    assert theirs.train.resolved_objective().beta == 1e-4
    told.clear()
    shared = replace(chosen, out=tmp_path / "again", runs=tmp_path / "runs", paper=True)
    assert not compare([str(tmp_path / "tiny.yaml")], ["dense"], [0], options=shared, tell=told.append).failures
    assert not [line for line in told if line.startswith("training ")]  # a linear head has neither, so its run will do
    failed = compare([str(tmp_path / "tiny.yaml")], ["bndl"], [0], options=shared).failures
    assert "was made with model.layer" in failed[0].reason


def test_a_head_that_is_converted_at_the_end_is_the_dense_networks_as_bndl_train_makes_it(place, tmp_path):
    told: list[str] = []
    settings = ["model.converted=true", "model.layer.theta_shape=sample"]
    chosen = options(place, tmp_path, settings=settings)
    found = compare([str(place / "tiny.yaml")], ["dense", "bndl"], [0], options=chosen, tell=told.append)
    assert not found.failures
    assert not [line for line in told if line.startswith("training ")]
    outcome = train(load_recipe(place / "tiny.yaml", settings=settings), tmp_path / "run")
    assert found.cells[1].figures["nll"] == pytest.approx(outcome.parts["test"][0].nll, rel=1e-5)
    assert found.cells[1].figures["accuracy"] == found.cells[0].figures["accuracy"]


def test_a_run_with_another_head_is_not_taken(place, tmp_path):
    shutil.copytree(place / "runs" / "tiny-dense-0", tmp_path / "runs" / "tiny-nmf-0")
    chosen = replace(options(place, tmp_path), runs=tmp_path / "runs")
    found = compare([str(place / "tiny.yaml")], ["nmf"], [0], options=chosen)
    assert "model.head = 'dense'" in found.failures[0].reason


def test_a_run_of_another_recipe_is_not_taken(place, tmp_path):
    found = compare(
        [str(place / "tiny.yaml")], ["dense"], [0], options=options(place, tmp_path, settings=["train.lr=0.2"])
    )
    assert "train.lr = 0.1, this comparison asks for 0.2" in found.failures[0].reason


def test_sepin_is_measured_where_it_is_asked_for(place, tmp_path):
    found = compare([str(place / "tiny.yaml")], ["dense"], [0], options=options(place, tmp_path, sepin=True))
    sepin = found.cells[0].sepin
    assert list(sepin) == ["1", "10", "100", "1000", "all"]
    values = list(sepin.values())
    assert values == sorted(values, reverse=True)
    assert tabulate(found).rows[0].entries["sepin/1"].value == values[0]


# ------------------------------------------------------------------------------------------------------------- the table


def cell(method: str, seed: int, centre: float, *, key: str = "accuracy", noise: float = 0.0) -> Cell:
    shared = 0.02 * torch.randn(NUM_RESAMPLES, generator=torch.Generator().manual_seed(1)).double()
    own = noise * torch.randn(NUM_RESAMPLES, generator=torch.Generator().manual_seed(2 + seed)).double()
    return Cell("s", method, seed, {key: centre}, {key: centre + shared + own}, Size(10, 5, 8), 1.0, 0.1, 100)


@pytest.mark.parametrize(("key", "good"), [("accuracy", 0.95), ("nll", 0.85)])
def test_the_verdict_is_of_the_paired_difference(key, good):
    cells = (
        cell("dense", 0, 0.9, key=key),
        cell("clear", 0, good, key=key),
        cell("worse", 0, 1.8 - good, key=key),
        cell("noisy", 0, 0.5 * (0.9 + good), key=key, noise=0.5),
    )
    rows = {row.method: row for row in tabulate(Comparison(cells, (), {"s": ""}), columns=[key]).rows}
    assert rows["dense"].entries[key].verdict == ""
    assert rows["clear"].entries[key].verdict == "better"  # though the two intervals overlap
    assert rows["clear"].entries[key].low < rows["dense"].entries[key].high
    assert rows["worse"].entries[key].verdict == "worse"
    assert rows["noisy"].entries[key].verdict == "same"


def test_differences_are_told_with_the_interval_of_the_paired_difference():
    cells = (cell("dense", 0, 0.9), cell("clear", 0, 0.95), cell("noisy", 0, 0.85, noise=0.1))
    comparison = Comparison(cells, (), {"s": ""})
    table = tabulate(comparison, columns=["accuracy"], differences=True)
    clear, noisy = table.rows[1].entries["accuracy"], table.rows[2].entries["accuracy"]
    assert (clear.difference, clear.difference_low) == pytest.approx((0.05, 0.05))  # what both share is no doubt
    assert noisy.difference_low < -0.2
    assert noisy.difference_high > 0.1
    text = to_markdown(table)
    assert "| dense | 90.00 |" in text
    assert "| clear | **95.00▲**<br>+5.00 (+5.00 to +5.00) |" in text
    assert "the difference to dense with its 95 % bootstrap interval" in text
    assert "the difference to" not in to_markdown(tabulate(comparison, columns=["accuracy"]))
    assert "+5.00 (+5.00 to +5.00)" in to_latex(table)
    assert json.loads(table.to_json())["rows"][0]["entries"]["accuracy"]["difference"] is None
    assert not tabulate(comparison, reference="laplace", differences=True).differences
    gone = replace(cells[1], draws={"accuracy": torch.full((NUM_RESAMPLES,), math.nan).double()})
    table = tabulate(Comparison((cells[0], gone), (), {"s": ""}), columns=["accuracy"], differences=True)
    assert "nan" not in to_markdown(table)


def test_intervals_of_differences_are_centred_like_those_of_values():
    inflated = replace(cell("inflated", 0, 0.92), draws={"accuracy": cell("x", 0, 0.9).draws["accuracy"] - 0.5})
    comparison = Comparison((cell("dense", 0, 0.9), inflated), (), {"s": ""})
    entry = tabulate(comparison, columns=["accuracy"]).rows[1].entries["accuracy"]
    assert (entry.difference_low, entry.difference_high) == pytest.approx((0.02, 0.02))
    assert entry.verdict == "better"


def test_means_and_intervals_are_over_seeds_too():
    cells = tuple(cell("a", seed, centre) for seed, centre in enumerate((0.2, 0.5, 0.8)))
    entry = tabulate(Comparison(cells, (), {"s": ""}), columns=["accuracy"]).rows[0].entries["accuracy"]
    assert entry.value == pytest.approx(0.5)
    assert entry.spread == pytest.approx(0.3)
    assert entry.low < 0.3
    assert entry.high > 0.7


def test_the_table_reads_in_every_format(frozen, tmp_path):
    table = tabulate(frozen[0])
    text = to_markdown(table)
    lines = [line for line in text.splitlines() if line.startswith("|")]
    assert len({line.count(" | ") for line in lines if "---" not in line}) == 1
    assert [line.split(" ")[1] for line in lines[2:]] == ["dense", "temperature", "nmf"]
    tex = to_latex(table)
    assert tex.count("\\\\") == 1 + 1 + 3
    assert " % " not in tex.replace("\\%", "").split("\n", 1)[1]
    record = json.loads(table.to_json(), parse_constant=lambda name: pytest.fail(name))
    assert record["rows"][0]["entries"]["accuracy"]["value"] == pytest.approx(table.rows[0].entries["accuracy"].value)
    (picture,) = draw(table, tmp_path)
    assert picture.read_bytes()[:4] == b"\x89PNG"


def test_an_unknown_column_is_refused(frozen):
    with pytest.raises(InputError, match="no column 'speed'; choose from accuracy"):
        tabulate(frozen[0], columns=["speed"])


def test_the_best_threshold_is_the_best_of_all():
    generator = torch.Generator().manual_seed(0)
    margin = torch.rand(200, generator=generator).mul(20).round().double()  # with ties
    correct = torch.rand(200, generator=generator) < margin / 20
    best = best_threshold(margin, correct)
    scores = {t: float(pavpu_score(correct, margin >= t)) for t in [*margin.unique().tolist(), math.inf]}
    assert scores[best] == max(scores.values())
    assert best_threshold(margin, torch.zeros(200, dtype=torch.bool)) == math.inf


# -------------------------------------------------------------------------------------------------------------- the paper


def test_the_papers_figures_stand_beside_ours():
    ours = replace(cell("bndl", 0, 0.5), subject="cifar10-resnet18-small")
    table = tabulate(Comparison((ours,), (), {"cifar10-resnet18-small": ""}), columns=["accuracy"])
    shown = with_printed(table, PAPER["table1"])
    assert [column.key for column in shown.columns] == ["accuracy", "paper/accuracy"]
    assert shown.rows[0].entries["paper/accuracy"].value == pytest.approx(0.9554)
    assert "95.54" in to_markdown(shown)


def test_the_papers_tables_name_recipes_and_methods_that_exist():
    for table in PAPER.values():
        assert {*table.methods} <= {*METHODS}
        for recipe in table.recipes:
            load_recipe(recipe)
            load_recipe(f"{recipe}-small")
        assert all(
            (recipe in table.recipes, method in table.methods) == (True, True) for recipe, method in table.printed
        )
    with pytest.raises(InputError, match="table1, table2"):
        paper_table("table9")


def test_thresholds_remove_weights_and_accuracy_survives_the_first_ones(place, monkeypatch, tmp_path):
    source = find_source(str(place / "runs" / "tiny-dense-0"), cache=place / "features")
    monkeypatch.setattr("bndl.compare.sparsity._SHARES", (1.0, 0.5, 0.1))
    points = list(bndl_path(source.subject))
    assert [points[i].nnz >= points[i + 1].nnz for i in range(2)] == [True, True]
    assert points[2].nnz < 0.3
    assert points[1].accuracy > points[0].accuracy - 0.05
    assert draw_paths({"digits": points}, tmp_path / "p.png").is_file()


# ----------------------------------------------------------------------------------------------------------------- errors


def test_what_cannot_be_compared_is_told(place, tmp_path):
    chosen = options(place, tmp_path)
    with pytest.raises(InputError, match="no method 'densee'; did you mean 'dense'"):
        compare([str(place / "runs" / "tiny-dense-0")], ["densee"], [0], options=chosen)
    with pytest.raises(InputError, match="at least one seed"):
        compare(["resnet56_cifar10"], ["dense"], [], options=chosen)
    with pytest.raises(InputError, match="names one twice"):
        compare(["resnet56_cifar10"], ["dense", "dense"], [0], options=chosen)
    with pytest.raises(FileError, match="neither a recipe's name nor a file"):
        compare(["resnet57_cifar10"], ["dense"], [0], options=chosen)
    with pytest.raises(FileError, match="neither a checkpoint"):
        find_source("nothing", cache=tmp_path)

"""The classes: batch by batch they give what the functions give at once, in one process and in two.

Run as a script, this file is one of two processes: ``test_streaming.py FOLDER RANK SHARES``.
"""

import copy
import datetime
import json
import os
import pickle
import subprocess
import sys
from dataclasses import asdict, is_dataclass
from pathlib import Path

import pytest
import torch
from torch import distributed
from torchmetrics import MetricCollection

from bndl import InputError, MissingExtraError
from bndl import metrics as m

NUM = 101


def data() -> dict[str, torch.Tensor]:
    """Probabilities, true classes, p-values, ... of NUM examples, many of them tied."""
    generator = torch.Generator().manual_seed(0)
    probs = (2 * torch.randn(NUM, 4, generator=generator)).round().softmax(1)
    labels = torch.multinomial(probs, 1, generator=generator)[:, 0]
    confidence, decided = probs.max(1)
    p_value = torch.rand(NUM, generator=generator).square()
    p_value[3] = torch.nan
    terms = torch.randn(NUM, 6, generator=generator)
    return {
        "probs": probs,
        "labels": labels,
        "confidence": confidence,
        "correct": decided == labels,
        "wrong": decided != labels,
        "doubt": 1 - confidence.double(),
        "p_value": p_value,
        "terms": terms,
    }


def cases() -> dict[str, tuple]:
    """Metric, the columns it takes, and the function that gives the same at once."""
    return {
        "nll": (m.NegativeLogLikelihood(), ("probs", "labels"), m.negative_log_likelihood),
        "brier": (m.BrierScore(), ("probs", "labels"), m.brier_score),
        "ece": (
            m.CalibrationError(num_bins=10),
            ("confidence", "correct"),
            lambda c, r: m.calibration_error(c, r, num_bins=10),
        ),
        "adaptive": (
            m.CalibrationError(10, adaptive=True),
            ("confidence", "correct"),
            lambda c, r: m.calibration_error(c, r, num_bins=10, adaptive=True),
        ),
        "aurc": (m.AURC(), ("doubt", "correct"), m.aurc),
        "risk": (m.RiskAtCoverage(0.7), ("doubt", "correct"), lambda u, c: m.risk_at_coverage(u, c, coverage=0.7)),
        "detection": (
            m.Detection(),
            ("doubt", "wrong"),
            lambda s, p: {"auroc": m.auroc(s, p), "aupr": m.average_precision(s, p), "fpr95": m.fpr_at_tpr(s, p)},
        ),
        "pavpu": (m.PAvPU(0.1), ("p_value", "correct"), lambda p, c: m.pavpu(c, m.certain_at(p, level=0.1))),
        "deciles": (m.AccuracyByDecile(), ("doubt", "correct"), m.accuracy_by_decile),
        "features": (m.EffectiveFeatures(0.8), ("terms",), lambda t: m.features_per_decision(t, share=0.8)),
    }


def numbers(result) -> list[float]:
    """Whatever compute returned, as a flat list."""
    if is_dataclass(result):
        result = list(asdict(result).values())
    if isinstance(result, dict):
        result = list(result.values())
    if isinstance(result, list | tuple):
        return [number for part in result for number in numbers(part)]
    return [float(result)]


def feed(metric, columns, rows: range, *, batch: int = 8) -> None:
    for start in range(rows.start, rows.stop, batch):
        metric.update(*(data()[c][start : min(start + batch, rows.stop)] for c in columns))


@pytest.mark.parametrize("name", cases())
def test_batches_give_what_the_function_gives(name):
    metric, columns, function = cases()[name]
    feed(metric, columns, range(NUM))
    expected = numbers(function(*(data()[c] for c in columns)))
    assert numbers(metric.compute()) == pytest.approx(expected, rel=1e-12)
    assert type(metric.compute()) is type(function(*(data()[c] for c in columns)))
    assert numbers(metric.compute()) == pytest.approx(expected, rel=1e-12), "asking twice"
    again = pickle.loads(pickle.dumps(metric)), copy.deepcopy(metric)
    assert [numbers(other.compute()) for other in again] == [numbers(metric.compute())] * 2
    metric.reset()
    with pytest.raises(InputError, match="call update first"), pytest.warns(UserWarning, match="before the ``update``"):
        metric.compute()


@pytest.mark.parametrize("name", cases())
def test_calling_a_metric_gives_the_batch_and_keeps_the_rest(name):
    metric, columns, function = cases()[name]
    feed(metric, columns, range(50))
    part = [data()[c][50:] for c in columns]
    assert numbers(metric(*part)) == pytest.approx(numbers(function(*part)), rel=1e-12)
    whole = numbers(function(*(data()[c] for c in columns)))
    assert numbers(metric.compute()) == pytest.approx(whole, rel=1e-12)


def test_what_needs_no_order_keeps_nothing_of_an_example():
    for name in ("nll", "brier", "ece", "pavpu", "features"):
        metric, columns, _ = cases()[name]
        feed(metric, columns, range(NUM))
        kept = [t for state in metric.metric_state.values() for t in (state if isinstance(state, list) else [state])]
        assert sum(t.numel() for t in kept) <= 11


def test_they_work_in_a_collection():
    collection = MetricCollection({"aurc": m.AURC(), "risk": m.RiskAtCoverage(0.5), "deciles": m.AccuracyByDecile()})
    for rows in (slice(0, 40), slice(40, None)):
        collection.update(data()["doubt"][rows], data()["correct"][rows])
    found = collection.compute()
    assert float(found["aurc"]) == pytest.approx(float(m.aurc(data()["doubt"], data()["correct"])))
    assert found["deciles"] == m.accuracy_by_decile(data()["doubt"], data()["correct"])


def test_a_bad_batch_is_told_when_it_comes():
    with pytest.raises(InputError, match="uncertainty holds NaN"):
        m.AURC().update(torch.tensor([torch.nan]), torch.tensor([True]))
    with pytest.raises(InputError, match="positive must be bool"):
        m.Detection().update(torch.tensor([0.5]), torch.tensor([1]))
    with pytest.raises(InputError, match="correct is of 2 examples, the other argument of 1"):
        m.PAvPU().update(torch.tensor([0.5]), torch.tensor([True, False]))
    for make, match in (
        (lambda: m.PAvPU(level=1), "level"),
        (lambda: m.RiskAtCoverage(0), "coverage"),
        (lambda: m.CalibrationError(0), "num_bins"),
    ):
        with pytest.raises(InputError, match=match):
            make()


def test_without_torchmetrics_functions_work_and_classes_name_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "torchmetrics", None)
    assert float(m.accuracy(torch.tensor([True]))) == 1
    with pytest.raises(MissingExtraError, match=r'bndl\.metrics\.AURC needs .* pip install "bndl\[metrics\]"'):
        _ = m.AURC
    with pytest.raises(AttributeError, match=r"module 'bndl\.metrics' has no attribute 'Confusion'"):
        _ = m.Confusion


def test_importing_the_metrics_does_not_import_torchmetrics():
    code = "import sys, bndl.metrics; print('torchmetrics' in sys.modules)"
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment)
    assert done.stdout.strip() == "False", done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("shares", ["37", "101"])  # of the first process; the second has the rest, or nothing
def test_two_processes_compute_what_one_does(shares, tmp_path):
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-W", "ignore", __file__, str(tmp_path)]
    started = [
        subprocess.Popen([*command, rank, shares], env=environment, stderr=subprocess.PIPE, text=True) for rank in "01"
    ]
    try:
        errors = [process.communicate(timeout=240)[1] for process in started]
    finally:
        for process in started:
            process.kill()
    assert [process.returncode for process in started] == [0, 0], errors
    for rank in "01":
        found = json.loads((tmp_path / f"{rank}.json").read_text())
        for name, (_, columns, function) in cases().items():
            expected = numbers(function(*(data()[c] for c in columns)))
            assert found[name] == pytest.approx(expected, rel=1e-12), name


def one_process(folder: Path, rank: int, first: int) -> None:
    distributed.init_process_group(
        "gloo",
        init_method=f"file://{folder / 'meeting'}",
        rank=rank,
        world_size=2,
        timeout=datetime.timedelta(seconds=200),
    )
    found = {}
    for name, (metric, columns, _) in cases().items():
        feed(metric, columns, range(first, NUM) if rank else range(first))
        found[name] = numbers(metric.compute())
    (folder / f"{rank}.json").write_text(json.dumps(found))
    distributed.destroy_process_group()


if __name__ == "__main__":
    torch.set_num_threads(1)
    one_process(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))

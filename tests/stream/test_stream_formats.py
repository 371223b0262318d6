"""The three formats hold the same rows, whatever is in them."""

import json
import math
import os

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from streamed import FORMATS, K, N, rows_of

import bndl
from bndl.prediction import Prediction
from bndl.reasons import Reasons
from bndl.stream import Settings, from_text, open_source, predict_to_file
from bndl.stream.columns import Columns
from bndl.stream.formats import format_of
from bndl.stream.names import to_text

HOSTILE = [
    "a\nb.png",
    "a\r\nb",
    'quo"te, comma;',
    "=cmd|' /C calc'!A0",
    "+1",
    "-1",
    "@SUM(A1)",
    "\t=1",
    "'",
    "",
    " x ",
    "ü…\u2028",
]


def some(rows: int, num_classes: int = 3) -> Prediction:
    torch.manual_seed(0)
    return bndl.predict(bndl.DecisionLayer(5, num_classes).eval(), torch.rand(rows, 5))


def written(tmp_path, suffix, columns, names, found, reasons=None):
    """Through two shards, as a run does."""
    out, kind = tmp_path / f"o.{suffix}", format_of(tmp_path / f"o.{suffix}", columns)
    half = len(found) // 2
    parts = [slice(0, half), slice(half, None)]
    shards = []
    for number, part in enumerate(parts):
        own = None if reasons is None else Reasons(reasons.features[part], reasons.values[part])
        batch = columns.batch(pa.array(names[part]), found[part], own)
        shards.append(tmp_path / f"shard{number}")
        kind.write([batch[:1], batch[1:]], shards[-1])  # sliced: offsets are not zero
    kind.join(shards, out)
    return rows_of(out)


@pytest.mark.parametrize("suffix", FORMATS)
@settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(names=st.lists(st.binary(min_size=1, max_size=8), min_size=4, max_size=8))
def test_every_name_of_a_file_comes_back(tmp_path, suffix, names):
    texts = [to_text(os.fsdecode(name)) for name in names]
    found = written(tmp_path, suffix, Columns(tuple("abc")), texts, some(len(names)))
    back = [os.fsencode(from_text(row["source"])) for row in found]
    assert [name.removeprefix(b"./") if name[2:3] in b"=+-@\t\r" else name for name in back] == names


@pytest.mark.parametrize("suffix", FORMATS)
def test_hostile_names_and_classes(tmp_path, suffix):
    columns = Columns(tuple(HOSTILE), "all")
    found = written(tmp_path, suffix, columns, HOSTILE, some(len(HOSTILE), len(HOSTILE)))
    labels = some(len(HOSTILE), len(HOSTILE)).labels.tolist()
    if suffix != "csv":
        assert [row["source"] for row in found] == HOSTILE
        assert [row["class"] for row in found] == [HOSTILE[label] for label in labels]
        return
    for row, name, label in zip(found, HOSTILE, labels, strict=True):
        assert row["source"] in (name, f"./{name}")
        assert row["class"] in (HOSTILE[label], f"'{HOSTILE[label]}")
        for text in (row["source"], row["class"]):
            assert not text.startswith(("=", "+", "-", "@", "\t", "\r"))
    assert len(found[0]) == 11 + len(HOSTILE)


@pytest.mark.parametrize("suffix", FORMATS)
def test_figures_come_back_to_the_last_bit(tmp_path, suffix):
    hard = torch.tensor([0.1, 1 / 3, 1e-30, 3.4e38, 5e-324, 0.0, 1e16, 123456789.0], dtype=torch.float64)
    base = some(len(hard))
    found = Prediction(**vars(base) | {"p_value": hard, "entropy": hard.float()})
    rows = written(tmp_path, suffix, Columns(tuple("abc")), list(range(len(hard))), found)
    assert [float(row["p_value"]) for row in rows] == hard.tolist()
    back = torch.tensor([float(row["entropy"]) for row in rows], dtype=torch.float64)
    assert torch.equal(back.float(), hard.float())


def test_json_has_no_number_that_json_has_not(tmp_path):
    base = some(4)
    odd = torch.tensor([math.nan, math.inf, -math.inf, 1.0])
    rows = written(
        tmp_path, "jsonl", Columns(tuple("abc")), list(range(4)), Prediction(**vars(base) | {"entropy": odd})
    )
    assert [row["entropy"] for row in rows] == [None, None, None, 1.0]


@pytest.mark.parametrize("suffix", FORMATS)
def test_lists_of_probabilities_and_reasons(tmp_path, suffix):
    found = some(6)
    values = torch.tensor([[3.0, 2.5, 0.0], [1.0, 0.0, 0.0], [0.0, 0.0, 0.0]] * 2)
    reasons = Reasons(torch.tensor([[4, 2, 0], [1, 0, 2], [0, 1, 2]] * 2), values)
    rows = written(tmp_path, suffix, Columns(("a", "b", "c"), "all", True), list(range(6)), found, reasons)
    if suffix == "csv":
        probs = [[float(row[f"probs_{name}"]) for name in "abc"] for row in rows]
        assert [row["reasons"] for row in rows] == ["4:3 2:2.5", "1:1", ""] * 2
    else:
        probs = [row["probs"] for row in rows]
        terms = [[(term["feature"], term["contribution"]) for term in row["reasons"]] for row in rows]
        assert terms == [[(4, 3.0), (2, 2.5)], [(1, 1.0)], []] * 2
    assert torch.equal(torch.tensor(probs, dtype=torch.float64).float(), found.probs)


@pytest.mark.parametrize("probs", ["all", "top", "none"])
def test_which_probabilities_there_are(tmp_path, predictor, source, probs):
    out = tmp_path / "o.parquet"
    predict_to_file(predictor, open_source(source, in_features=K), out, settings=Settings(probs=probs))
    names = pq.read_schema(out).names
    assert ("probs" in names, "probability" in names) == (probs == "all", probs != "none")


def test_parquet_has_a_row_group_a_shard(tmp_path, predictor, source):
    out = tmp_path / "o.parquet"
    predict_to_file(
        predictor, open_source(source, in_features=K), out, settings=Settings(shard_rows=100, batch_size=30)
    )
    metadata = pq.read_metadata(out)
    assert [metadata.row_group(i).num_rows for i in range(metadata.num_row_groups)] == [100, 100, N - 200]


def test_json_lines_are_what_python_would_write(tmp_path, predictor, source):
    out = tmp_path / "o.jsonl"
    predict_to_file(predictor, open_source(source, in_features=K), out, settings=Settings(probs="all", reasons=2))
    for line in out.read_text().splitlines()[:20]:
        again = json.loads(json.dumps(json.loads(line)))
        assert again == json.loads(line)
        assert np.isclose(sum(again["probs"]), 1, atol=1e-5)

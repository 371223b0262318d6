"""How to read what was written, as any reader would, and what it is compared with."""

import csv
import json
from dataclasses import fields
from pathlib import Path

import pyarrow.parquet as pq
import torch

import bndl

N, K, C = 230, 8, 4
FORMATS = ("parquet", "csv", "jsonl")


def rows_of(path: Path) -> list[dict]:
    """What any reader of the format sees."""
    if path.suffix == ".parquet":
        return pq.read_table(path).to_pylist()
    if path.suffix == ".jsonl":
        return [json.loads(line) for line in path.read_text(encoding="utf-8").split("\n")[:-1]]
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def same(found: list[dict], wanted: bndl.Prediction) -> bool:
    """Whether the rows are these predictions, to the last bit."""
    for field in fields(wanted):
        if field.name in ("probs", "logits"):
            continue
        name = {"labels": "label"}.get(field.name, field.name)
        tensor = getattr(wanted, field.name)
        column = [row[name] for row in found]
        if isinstance(column[0], str):
            column = [value == "true" for value in column] if tensor.dtype == torch.bool else [*map(float, column)]
        if not torch.equal(torch.tensor(column, dtype=torch.float64).to(tensor.dtype), tensor):
            return False
    chosen = torch.tensor([float(row["probability"]) for row in found], dtype=torch.float64)
    return torch.equal(chosen.to(wanted.probs.dtype), wanted.confidence)

"""The paper's own comparisons: which recipes and methods each table needs, and what the paper printed."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from bndl.compare.table import Column, Entry, Row, Table
from bndl.errors import InputError

__all__ = ["PAPER", "PaperTable", "paper_table", "with_printed"]

Printed = Mapping[tuple[str, str], Mapping[str, float]]


@dataclass(frozen=True)
class PaperTable:
    """A table or figure of the paper.

    Attributes:
        title: what it shows.
        recipes: the experiments, by the name of a recipe each; ``-small`` is appended for the CPU-sized twins.
        methods: rows, by the name of a method each.
        columns: keys of the columns.
        printed: (recipe, method) -> key of a column -> what the paper printed, in the units of our figures.
        sepin: whether it needs SEPIN@k.
        kind: ``"table"``, or what is drawn: ``"deciles"`` or ``"sparsity"``.
    """

    title: str
    recipes: tuple[str, ...]
    methods: tuple[str, ...]
    columns: tuple[str, ...]
    printed: Printed = field(default_factory=dict)
    sepin: bool = False
    kind: str = "table"


def _percent(**figures: float) -> dict[str, float]:
    return {key: value / 100 for key, value in figures.items()}


def _sepin(*values: float) -> dict[str, float]:
    return {f"sepin/{k}": value / 100 for k, value in zip(("1", "10", "100", "1000", "all"), values, strict=True)}


_SEPIN_COLUMNS = ("sepin/1", "sepin/10", "sepin/100", "sepin/1000", "sepin/all")
_CIFAR = ("cifar10-resnet18", "cifar100-resnet18")

PAPER: Mapping[str, PaperTable] = MappingProxyType(
    {
        "table1": PaperTable(
            title="Table 1: accuracy and PAvPU, trained from scratch; the ViTs on a frozen backbone",
            recipes=(*_CIFAR, "imagenet-resnet50", "cifar10-vit", "cifar100-vit", "imagenet-vit"),
            methods=("dense", "mc-dropout", "belief-matching", "card", "bndl"),
            columns=("accuracy", "pavpu_05"),
            printed={
                ("cifar10-resnet18", "dense"): _percent(accuracy=94.98),
                ("cifar10-resnet18", "mc-dropout"): _percent(accuracy=94.54, pavpu_05=78.83),
                ("cifar10-resnet18", "belief-matching"): _percent(accuracy=94.07, pavpu_05=93.98),
                ("cifar10-resnet18", "card"): _percent(accuracy=90.93, pavpu_05=91.11),
                ("cifar10-resnet18", "bndl"): _percent(accuracy=95.54, pavpu_05=95.58),
                ("cifar100-resnet18", "dense"): _percent(accuracy=74.62),
                ("cifar100-resnet18", "mc-dropout"): _percent(accuracy=78.12, pavpu_05=64.41),
                ("cifar100-resnet18", "belief-matching"): _percent(accuracy=75.81, pavpu_05=77.13),
                ("cifar100-resnet18", "card"): _percent(accuracy=71.42, pavpu_05=71.48),
                ("cifar100-resnet18", "bndl"): _percent(accuracy=79.82, pavpu_05=81.1),
                ("imagenet-resnet50", "dense"): _percent(accuracy=75.33),
                ("imagenet-resnet50", "mc-dropout"): _percent(accuracy=75.98, pavpu_05=76.50),
                ("imagenet-resnet50", "card"): _percent(accuracy=76.20, pavpu_05=76.29),
                ("imagenet-resnet50", "bndl"): _percent(accuracy=77.01, pavpu_05=77.66),
                ("cifar10-vit", "dense"): _percent(accuracy=95.51),
                ("cifar10-vit", "bndl"): _percent(accuracy=96.34, pavpu_05=97.01),
                ("cifar100-vit", "dense"): _percent(accuracy=84.15),
                ("cifar100-vit", "bndl"): _percent(accuracy=85.16, pavpu_05=86.37),
                ("imagenet-vit", "dense"): _percent(accuracy=80.33),
                ("imagenet-vit", "bndl"): _percent(accuracy=81.29, pavpu_05=82.50),
            },
        ),
        "table2": PaperTable(
            title="Table 2: disentanglement, SEPIN@k x100, ImageNet",
            recipes=("imagenet-resnet50",),
            methods=("dense", "bndl"),
            columns=_SEPIN_COLUMNS,
            printed={
                ("imagenet-resnet50", "dense"): _sepin(1.50, 1.03, 0.60, 0.31, 0.23),
                ("imagenet-resnet50", "bndl"): _sepin(2.59, 2.12, 1.30, 0.65, 0.44),
            },
            sepin=True,
        ),
        "table3": PaperTable(
            title="Table 3: disentanglement, SEPIN@k x100, CIFAR-100",
            recipes=("cifar100-resnet18",),
            methods=("dense", "belief-matching", "nmf", "bndl"),
            columns=_SEPIN_COLUMNS,
            printed={
                ("cifar100-resnet18", "dense"): _sepin(3.17, 2.40, 1.79, 1.21, 1.21),
                ("cifar100-resnet18", "belief-matching"): _sepin(3.19, 2.53, 1.17, 1.28, 1.24),
                ("cifar100-resnet18", "nmf"): _sepin(3.21, 2.95, 1.87, 1.33, 1.23),
                ("cifar100-resnet18", "bndl"): _sepin(3.91, 3.43, 2.77, 1.69, 1.69),
            },
            sepin=True,
        ),
        "table4": PaperTable(
            title="Table 4: accuracy and share of weights in use, CIFAR-100",
            recipes=("cifar100-resnet18",),
            methods=("dense", "nmf", "bndl"),
            columns=("accuracy", "nnz"),
            printed={
                ("cifar100-resnet18", "dense"): {"accuracy": 0.7462, "nnz": 0.97},
                ("cifar100-resnet18", "nmf"): {"accuracy": 0.7673, "nnz": 0.23},
                ("cifar100-resnet18", "bndl"): {"accuracy": 0.7982, "nnz": 0.12},
            },
        ),
        "fig-uncertainty": PaperTable(
            title="Figure 2, left: accuracy by tenth of the test set, the surest first",
            recipes=_CIFAR,
            methods=("dense", "bndl"),
            columns=("accuracy", "aurc", "error_auroc"),
            kind="deciles",
        ),
        "fig-sparsity": PaperTable(
            title="Figure 3: accuracy against the share of weights in use, BNDL and Debuggable Networks",
            recipes=(*_CIFAR, "places10-resnet50"),
            methods=("elastic-net", "bndl"),
            columns=("accuracy", "nnz"),
            kind="sparsity",
        ),
    }
)


def with_printed(table: Table, paper: PaperTable) -> Table:
    """The table with a column of what the paper printed next to each of ours that it has figures of.

    The paper's networks are the full-sized ones, whatever ours are.
    """
    keys = {key for figures in paper.printed.values() for key in figures}
    columns: list[Column] = []
    for column in table.columns:
        columns.append(column)
        if column.key in keys:
            columns.append(replace(column, key=f"paper/{column.key}", heading=f"{column.heading} (paper)"))
    return replace(table, columns=tuple(columns), rows=tuple(_with_printed(row, paper) for row in table.rows))


def _with_printed(row: Row, paper: PaperTable) -> Row:
    printed = paper.printed.get((row.subject.removesuffix("-small"), row.method), {})
    entries = {f"paper/{key}": Entry(value, math.nan, math.nan, math.nan, "") for key, value in printed.items()}
    return replace(row, entries={**row.entries, **entries})


def paper_table(name: str) -> PaperTable:
    """A table or figure by its name."""
    if name not in PAPER:
        raise InputError(f"there is no {name!r} here; choose from {', '.join(PAPER)}.")
    return PAPER[name]

"""Methods side by side, on the same data: cells that are computed once, one table, and the paper's figures beside it."""

from bndl.compare.cells import Cell, Failure
from bndl.compare.run import Comparison, compare
from bndl.compare.subjects import Source, Subject, find_source
from bndl.compare.table import Column, Entry, Row, Table, tabulate

__all__ = [
    "Cell",
    "Column",
    "Comparison",
    "Entry",
    "Failure",
    "Row",
    "Source",
    "Subject",
    "Table",
    "compare",
    "find_source",
    "tabulate",
]

"""The first run: digits, a small network with and without the decision layer, and a picture of what it adds."""

from bndl.demo.run import Case, Demo, Row, run

__all__ = ["Case", "Demo", "Row", "run"]

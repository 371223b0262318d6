"""Claims of speed, measured side by side: what every file under ``benchmarks/`` is made of."""

from bndl.bench.memory import PeakMemory
from bndl.bench.race import Race, race
from bndl.bench.record import Claim, Record, main

__all__ = ["Claim", "PeakMemory", "Race", "Record", "main", "race"]

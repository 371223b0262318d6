"""How long it takes until anything happens: `bndl --help`, and what `import bndl` adds to `import torch`.

python benchmarks/speed_startup.py [--rounds 7]
"""

import argparse
import statistics
import subprocess
import sys
import time

from bndl.bench import Claim, Record, main
from bndl.bench.race import Spread

COMMANDS = {
    "bndl --help": ["-m", "bndl.cli", "--help"],
    "import torch": ["-c", "import torch"],
    "import torch, bndl": ["-c", "import torch, bndl"],
}


def measure(args: argparse.Namespace) -> Record:
    taken: dict[str, list[float]] = {name: [] for name in COMMANDS}
    for number in range(args.rounds + 1):
        for name in sorted(COMMANDS, reverse=bool(number % 2)):
            started = time.perf_counter()
            subprocess.run([sys.executable, *COMMANDS[name]], check=True, capture_output=True)
            if number:
                taken[name].append(time.perf_counter() - started)
    rows = [{"": name, "seconds": round(statistics.median(values), 3)} for name, values in taken.items()]
    added = [b - a for a, b in zip(taken["import torch"], taken["import torch, bndl"], strict=True)]
    claims = [
        Claim("seconds of bndl --help", Spread.of(taken["bndl --help"]), 1.0, "at most"),
        Claim("seconds that import bndl adds to torch", Spread.of(added), 0.3, "at most"),
    ]
    return Record("speed_startup", "until anything happens", rows, claims, {"rounds": args.rounds})


if __name__ == "__main__":
    sys.exit(main(__doc__, measure))

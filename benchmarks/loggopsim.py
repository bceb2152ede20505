"""What LogGOPSim says of every plan: ``python benchmarks/loggopsim.py FOLDER``, where its programs ``txt2bin`` and ``LogGOPSim`` were built.

The plans are written as GOAL text, the way ``ncclx simulate --goal`` writes them, and simulated with its default parameters: L = 2.5 us,
o = 1.5 us, G = 6 ns, S = 65,535 bytes. One line of JSON for each plan, number of ranks and number of bytes.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

from ncclx_mpi.algorithms import PLAN, ROWS, Algorithm
from ncclx_mpi.simulate import goal, network, proof
from ncclx_mpi.simulate.calls import Call

NETWORK = Path(__file__).parents[1] / "docs" / "snippets" / "loggopsim.txt"
RANKS = (12, 16)
BLOCKS = (64, 4096)
"""Bytes that a rank gives, for each rank."""


def main() -> None:
    """Print JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="where txt2bin and LogGOPSim are")
    folder = parser.parse_args().folder.resolve()
    found = [
        {
            "collective": row.collective,
            "algorithm": row.name,
            "ranks": ranks,
            "bytes": nbytes,
            "us": simulated(folder, row, Call(ranks, nbytes, 4)),
        }
        for row in ROWS
        if row.kind == PLAN
        for ranks in RANKS
        for nbytes in ([0] if row.collective == "barrier" else [ranks * block for block in BLOCKS])
    ]
    json.dump(found, sys.stdout, indent=1)
    print()


def simulated(folder: Path, row: Algorithm, call: Call) -> float:
    """When the last rank is through, in us."""
    modelled = network.read(NETWORK.read_text().splitlines())
    with tempfile.TemporaryDirectory() as scratch:
        text, binary = Path(scratch, "plans.goal"), Path(scratch, "plans.bin")
        lines = goal.text(goal.Schedule(row, call, proof.plans_of(row, call)), modelled)
        text.write_text("".join(f"{line}\n" for line in lines))
        subprocess.run([folder / "txt2bin", "-i", text, "-o", binary], check=True, capture_output=True)
        done = subprocess.run([folder / "LogGOPSim", "-f", binary], check=True, capture_output=True, text=True)
    return max(int(line.split()[-1]) for line in done.stdout.splitlines() if line.startswith("Host")) / 1000


if __name__ == "__main__":
    main()

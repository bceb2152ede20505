"""Collective write and read of a strided array in blocks of 4 KiB, ours beside mpi4py over another MPI, in turns.

python benchmarks/files.py --peer PYTHON MPIEXEC [--folders /dev/shm /tmp] [-n 2] [--mib 256] [--rounds 5] [--json FILE]

`PYTHON` and `MPIEXEC` are of an environment with mpi4py and the other MPI, such as one made by ``pip install mpich mpi4py numpy``. Ranks take
the blocks in turn, so that what each has is strided in the file and contiguous in memory. A round makes the file anew, writes it and reads
it back; times are medians over rounds of the slowest rank's, without opening, closing and `Sync`.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

BLOCK = 4096
PHASES = "write", "read"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peer", nargs=2, metavar=("PYTHON", "MPIEXEC"))
    parser.add_argument("--folders", nargs="+", default=["/dev/shm", tempfile.gettempdir()])
    parser.add_argument("-n", type=int, default=2)
    parser.add_argument("--mib", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    sides = {"ours": [sys.executable, "-m", "ncclx_mpi", "run", "-n", str(options.n)]}
    if options.peer:
        python, mpiexec = options.peer
        sides["peer"] = [mpiexec, "-n", str(options.n), python]
    rows = [measure(sides, folder, options.mib, options.rounds) for folder in options.folders]
    for row in rows:
        print(row["folder"], {key: value for key, value in row.items() if key != "folder"})
    if options.json:
        options.json.write_text(json.dumps({"n": options.n, "mib": options.mib, "block": BLOCK, "rows": rows}, indent=1))


def measure(sides: dict[str, list[str]], folder: str, mib: int, rounds: int) -> dict[str, object]:
    """Seconds of all sides in one folder, and the ratio to the peer."""
    times: dict[str, dict[str, list[float]]] = {side: {phase: [] for phase in PHASES} for side in sides}
    for _ in range(rounds):
        for side, launcher in sides.items():
            done = subprocess.run(
                [*launcher, __file__, "--worker", folder, str(mib)], stdout=subprocess.PIPE, text=True, check=True
            )
            for phase, seconds in json.loads(done.stdout).items():
                times[side][phase].append(seconds)
    found: dict[str, object] = {"folder": folder}
    for phase in PHASES:
        medians = {side: statistics.median(times[side][phase]) for side in sides}
        found |= {f"{phase} {side}": round(seconds, 4) for side, seconds in medians.items()}
        if "peer" in medians:
            found[f"{phase} ratio"] = round(medians["ours"] / medians["peer"], 2)
    return found


def work(folder: str, mib: int) -> None:
    """One round, on one rank."""
    import numpy as np
    from mpi4py import MPI

    comm = MPI.COMM_WORLD
    count = (mib << 20) // BLOCK // comm.size
    given = np.full(count * BLOCK, 1 + comm.rank, np.uint8)
    tile = MPI.BYTE.Create_contiguous(BLOCK).Create_resized(0, BLOCK * comm.size).Commit()
    path = os.path.join(folder, f"ncclx-files-{comm.bcast(os.getpid())}")
    file = MPI.File.Open(comm, path, MPI.MODE_RDWR | MPI.MODE_CREATE | MPI.MODE_DELETE_ON_CLOSE)
    file.Set_view(BLOCK * comm.rank, MPI.BYTE, tile)
    found, seconds = np.zeros_like(given), {}
    for phase, access in (("write", lambda: file.Write_at_all(0, given)), ("read", lambda: file.Read_at_all(0, found))):
        comm.Barrier()
        begun = MPI.Wtime()
        access()
        seconds[phase] = comm.allreduce(MPI.Wtime() - begun, MPI.MAX)
    assert (found == given).all()
    file.Close()
    if comm.rank == 0:
        print(json.dumps(seconds))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--worker"]:
        work(sys.argv[2], int(sys.argv[3]))
    else:
        main()

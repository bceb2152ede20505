"""Collective write and read of a strided array in blocks of 4 KiB, ours beside mpi4py over other MPIs, in turns.

python benchmarks/files.py [--peer NAME=PYTHON]... [--folders /dev/shm /tmp] [-n 2] [--mib 256] [--rounds 5] [--json FILE]

`PYTHON` is of an environment with mpi4py and the other MPI, such as one made by ``pip install mpich mpi4py numpy``. Ranks take
the blocks in turn, so that what each has is strided in the file and contiguous in memory. A round makes the file anew, writes it and reads
it back; times are medians over rounds of the slowest rank's, without opening, closing and `Sync`.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

BLOCK = 4096


def main() -> None:
    from benchmarks import in_turn

    parser = in_turn.parser(__doc__, ranks=2)
    parser.add_argument("--folders", nargs="+", default=["/dev/shm", tempfile.gettempdir()])
    parser.add_argument("--mib", type=int, default=256)
    options = parser.parse_args()
    times: in_turn.Times = {}
    for folder in options.folders:
        times |= in_turn.measure(__file__, options, folder, str(options.mib))
    in_turn.report(times, options, f"collective write and read of {options.mib} MiB in blocks of {BLOCK} B", "s")


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
        seconds[f"{phase}, {folder}"] = comm.allreduce(MPI.Wtime() - begun, MPI.MAX)
    assert (found == given).all()
    file.Close()
    if comm.rank == 0:
        print(json.dumps(seconds))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--worker"]:
        work(sys.argv[2], int(sys.argv[3]))
    else:
        main()

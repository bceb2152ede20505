"""The heat equation on a rod, which goes on when ranks die: each keeps a copy of its neighbour's part, in memory.

Every few steps each rank sends its part to the next one (around the circle), and all agree on whether everybody has done so.
When a rank dies, the others shrink the communicator, put the rod together from the parts and copies of the last step that all
agreed on, share it anew, and go on from there. At the end rank 0 compares the rod, bit by bit, with what one process computes.

ncclx run -n 4 examples/heat_survivors.py [rank that dies] [step at which]
"""

import os
import signal
import sys

import numpy as np
from mpi4py import MPI

ALPHA, CELLS, STEPS, EVERY = 0.2, 1000, 100, 10
Parts = dict[int, np.ndarray]


def initial(cells: int) -> np.ndarray:
    """Return the rod, between two cold ends: hot in the middle."""
    rod = np.zeros(cells + 2)
    rod[cells // 3 : 2 * cells // 3] = 100.0
    return rod


def step(old: np.ndarray) -> np.ndarray:
    """Return the rod one time step later; its ends stay."""
    new = old.copy()
    new[1:-1] = old[1:-1] + ALPHA * (old[:-2] - 2 * old[1:-1] + old[2:])
    return new


def share(rod: np.ndarray, comm: MPI.Intracomm) -> np.ndarray:
    """Return the cells of this rank, with one more at each end."""
    edges = (len(rod) - 2) * np.arange(comm.size + 1) // comm.size
    return rod[edges[comm.rank] : edges[comm.rank + 1] + 2].copy()


def exchange(part: np.ndarray, comm: MPI.Intracomm) -> None:
    """Fill the cells at both ends with those of the neighbours."""
    left = comm.rank - 1 if comm.rank else MPI.PROC_NULL
    right = comm.rank + 1 if comm.rank + 1 < comm.size else MPI.PROC_NULL
    comm.Sendrecv(part[1:2], left, recvbuf=part[-1:], source=right)
    comm.Sendrecv(part[-2:-1], right, recvbuf=part[:1], source=left)


def checkpoint(part: np.ndarray, comm: MPI.Intracomm) -> Parts:
    """Return the parts that this rank keeps: its own, and that of the rank before it."""
    before = (comm.rank - 1) % comm.size
    return {comm.rank: part.copy(), before: comm.sendrecv(part, (comm.rank + 1) % comm.size, source=before)}


def restore(kept: Parts, size: int, comm: MPI.Intracomm) -> np.ndarray:
    """Put the rod of `size` parts together from what all ranks keep."""
    parts: Parts = {}
    for each in comm.allgather(kept):
        parts |= each
    if len(parts) < size:
        raise RuntimeError(f"a rank and the next one have died: {size - len(parts)} of {size} parts are lost")
    rod = [parts[rank] for rank in sorted(parts)]
    return np.concatenate([rod[0][:1], *(part[1:-1] for part in rod), rod[-1][-1:]])


class Rod:
    """The part of one rank, and the step that it is at; what it keeps of the last checkpoint, its step, and its number of parts."""

    def __init__(self, cells: int) -> None:
        self.comm = MPI.COMM_WORLD.Dup()
        self.part, self.at = share(initial(cells), self.comm), 0
        self.kept, self.saved, self.parts = checkpoint(self.part, self.comm), 0, self.comm.size

    def advance(self, steps: int, dies_at: int) -> None:
        """Go on to the next checkpoint."""
        for _ in range(min(EVERY, steps - self.at)):
            if self.at == dies_at:
                os.kill(os.getpid(), signal.SIGKILL)
            exchange(self.part, self.comm)
            self.part = step(self.part)
            self.at += 1

    def run(self, steps: int, dies_at: int) -> np.ndarray:
        """Return the rod after all steps."""
        while True:
            try:
                self.advance(steps, dies_at)
                kept = checkpoint(self.part, self.comm)
            except MPI.Exception:
                self.comm.Revoke()
                kept = {}
            if not self.comm.Agree(bool(kept)):
                self.recover()
                continue
            self.kept, self.saved = kept, self.at
            if self.at == steps:
                return restore(self.kept, self.parts, self.comm)

    def recover(self) -> None:
        """Go back to the last checkpoint, with the ranks that live."""
        self.comm = self.comm.Shrink()
        self.part, self.at = share(restore(self.kept, self.parts, self.comm), self.comm), self.saved
        self.kept, self.parts = checkpoint(self.part, self.comm), self.comm.size
        if self.comm.rank == 0:
            print(f"{self.comm.size} ranks go on from step {self.at}")


def main() -> None:
    """Run as the command line says."""
    victim, when = (int(value) for value in sys.argv[1:] or (-1, -1))
    found = Rod(CELLS)
    rod = found.run(STEPS, when if MPI.COMM_WORLD.rank == victim else -1)
    expected = initial(CELLS)
    for _ in range(STEPS):
        expected = step(expected)
    if found.comm.rank == 0:
        print(f"{STEPS} steps, the same as one process computes: {np.array_equal(rod, expected)}")


main()

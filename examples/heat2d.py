"""The heat equation on a square plate, cut into a grid of blocks, one for each rank.

Each step exchanges the edges of the blocks with the four neighbours: rows lie in one piece, columns are described by a
vector datatype, so nothing is copied by hand. At the end rank 0 gathers the plate and compares it, bit by bit, with what
one process computes alone.

ncclx run -n 4 examples/heat2d.py [cells] [steps]
"""

import sys

import numpy as np
from mpi4py import MPI

ALPHA = 0.2


def grid_shape(size: int) -> tuple[int, int]:
    """Return rows x columns of blocks, as square as the number of ranks allows."""
    rows = max(divisor for divisor in range(1, int(size**0.5) + 1) if size % divisor == 0)
    return rows, size // rows


def initial(cells: int) -> np.ndarray:
    """Return the plate with a cold surround: a hot disc off the centre and a warm left edge."""
    plate = np.zeros((cells + 2, cells + 2))
    y, x = np.ogrid[: cells + 2, : cells + 2]
    plate[(y - cells / 3) ** 2 + (x - cells / 2) ** 2 < (cells / 6) ** 2] = 100.0
    plate[:, 0] = 25.0
    return plate


def step(old: np.ndarray, new: np.ndarray) -> None:
    """Advance the inner cells by one time step."""
    centre = old[1:-1, 1:-1]
    around = old[:-2, 1:-1] + old[2:, 1:-1] + old[1:-1, :-2] + old[1:-1, 2:]
    new[1:-1, 1:-1] = centre + ALPHA * (around - 4 * centre)


class Block:
    """The part of the plate that one rank owns, with a frame of its neighbours' cells."""

    def __init__(self, comm: MPI.Intracomm, cells: int) -> None:
        self.comm = comm
        self.rows, self.columns = grid_shape(comm.size)
        self.row, self.column = divmod(comm.rank, self.columns)
        self.slices = self.span(comm.rank, cells)
        down, across = self.slices
        plate = initial(cells)
        self.old = plate[down.start - 1 : down.stop + 1, across.start - 1 : across.stop + 1].copy()
        self.new = self.old.copy()
        height, width = self.old.shape
        self.column_type = MPI.DOUBLE.Create_vector(height - 2, 1, width).Commit()

    def span(self, rank: int, cells: int) -> tuple[slice, slice]:
        """Return which rows and columns of the plate belong to a rank."""
        row, column = divmod(rank, self.columns)
        top, bottom = row * cells // self.rows, (row + 1) * cells // self.rows
        left, right = column * cells // self.columns, (column + 1) * cells // self.columns
        return slice(top + 1, bottom + 1), slice(left + 1, right + 1)

    def neighbour(self, down: int, right: int) -> int:
        """Return the rank that many blocks away, PROC_NULL beyond the plate."""
        row, column = self.row + down, self.column + right
        inside = 0 <= row < self.rows and 0 <= column < self.columns
        return row * self.columns + column if inside else MPI.PROC_NULL

    def exchange(self) -> None:
        """Send the edges to the neighbours, receive theirs into the frame."""
        above, below = self.neighbour(-1, 0), self.neighbour(1, 0)
        left, right = self.neighbour(0, -1), self.neighbour(0, 1)
        old, comm = self.old, self.comm
        comm.Sendrecv(old[1, 1:-1], dest=above, recvbuf=old[-1, 1:-1], source=below)
        comm.Sendrecv(old[-2, 1:-1], dest=below, recvbuf=old[0, 1:-1], source=above)
        comm.Sendrecv(self.edge(1), dest=left, recvbuf=self.edge(-1), source=right)
        comm.Sendrecv(self.edge(-2), dest=right, recvbuf=self.edge(0), source=left)

    def edge(self, column: int) -> list:
        """Describe one column without copying it: memory from its first cell on, and the datatype that strides."""
        return [self.old.reshape(-1)[self.old.shape[1] + column % self.old.shape[1] :], 1, self.column_type]

    def advance(self) -> None:
        """Do one time step."""
        self.exchange()
        step(self.old, self.new)
        self.old, self.new = self.new, self.old
        for side in (np.s_[0], np.s_[-1], np.s_[:, 0], np.s_[:, -1]):
            self.old[side] = self.new[side]


def alone(cells: int, steps: int) -> np.ndarray:
    """Return what one process computes."""
    old = initial(cells)
    new = old.copy()
    for _ in range(steps):
        step(old, new)
        old, new = new, old
    return old[1:-1, 1:-1]


def main() -> None:
    cells = int(sys.argv[1]) if len(sys.argv) > 1 else 96
    steps = int(sys.argv[2]) if len(sys.argv) > 2 else 200
    comm = MPI.COMM_WORLD
    block = Block(comm, cells)
    for _ in range(steps):
        block.advance()
    warmest = comm.allreduce(float(block.old[1:-1, 1:-1].max()), op=MPI.MAX)
    parts = comm.gather(block.old[1:-1, 1:-1].copy(), root=0)
    block.column_type.Free()
    if comm.rank == 0:
        plate = np.zeros((cells + 2, cells + 2))
        for rank, part in enumerate(parts):
            plate[block.span(rank, cells)] = part
        difference = np.abs(plate[1:-1, 1:-1] - alone(cells, steps)).max()
        print(f"{cells} x {cells} cells, {steps} steps, {block.rows} x {block.columns} blocks")
        print(f"warmest cell {warmest:.6f}, mean {plate[1:-1, 1:-1].mean():.6f}, difference to one process {difference:.1e}")
        assert difference == 0.0


if __name__ == "__main__":
    main()

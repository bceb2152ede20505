"""The heat equation in a box, cut into blocks in three directions, one for each rank: on CuPy arrays where there is a GPU, else on NumPy.

Each step exchanges the six faces of a block with its neighbours. A face is a subarray datatype of the block itself, whatever its
strides, so nothing is copied by hand, on the host or on the GPU; the messages are persistent requests. At the end rank 0 compares
the box, bit by bit, with what one process computes alone.

ncclx run -n 4 examples/heat3d.py [cells] [steps]
"""

import itertools
import sys

import numpy as np
from mpi4py import MPI

try:
    import cupy as xp

    xp.cuda.runtime.getDeviceCount()
except (ImportError, RuntimeError):  # no CuPy, or no GPU
    xp = np

ALPHA = 0.1


def grid_shape(size: int) -> tuple[int, int, int]:
    """Return how many blocks lie in each direction, as equal as the number of ranks allows."""
    shapes = [shape for shape in itertools.product(range(1, size + 1), repeat=3) if np.prod(shape) == size]
    return min(shapes, key=lambda shape: (max(shape), shape))


def initial(cells: int) -> np.ndarray:
    """Return the box with a frame of cold cells: a hot ball off the centre and a warm side."""
    box = np.zeros((cells + 2,) * 3)
    z, y, x = np.ogrid[: cells + 2, : cells + 2, : cells + 2]
    box[(z - cells / 3) ** 2 + (y - cells / 2) ** 2 + (x - cells / 2) ** 2 < (cells / 5) ** 2] = 100.0
    box[0] = 25.0
    return box


def step(old, new) -> None:
    """Advance the inner cells by one time step."""
    centre = old[1:-1, 1:-1, 1:-1]
    around = old[:-2, 1:-1, 1:-1] + old[2:, 1:-1, 1:-1] + old[1:-1, :-2, 1:-1] + old[1:-1, 2:, 1:-1]
    around = around + old[1:-1, 1:-1, :-2] + old[1:-1, 1:-1, 2:]
    new[1:-1, 1:-1, 1:-1] = centre + ALPHA * (around - 6 * centre)


class Block:
    """The part of the box that one rank owns, with a frame of its neighbours' cells."""

    def __init__(self, comm: MPI.Intracomm, cells: int) -> None:
        self.comm = comm
        self.grid = grid_shape(comm.size)
        self.place = np.unravel_index(comm.rank, self.grid)
        framed = tuple(slice(part.start - 1, part.stop + 1) for part in self.span(comm.rank, cells))
        self.arrays = [xp.array(initial(cells)[framed], order="C") for _ in range(2)]
        self.exchanges = [self.requests(array) for array in self.arrays]

    def span(self, rank: int, cells: int) -> tuple[slice, ...]:
        """Return which cells of the framed box belong to a rank."""
        place = np.unravel_index(rank, self.grid)
        return tuple(
            slice(1 + at * cells // blocks, 1 + (at + 1) * cells // blocks) for at, blocks in zip(place, self.grid, strict=True)
        )

    def neighbour(self, axis: int, way: int) -> int:
        """Return the rank next to this one, PROC_NULL beyond the box."""
        place = list(self.place)
        place[axis] += way
        inside = 0 <= place[axis] < self.grid[axis]
        return int(np.ravel_multi_index(place, self.grid)) if inside else MPI.PROC_NULL

    def requests(self, array) -> list[MPI.Prequest]:
        """Prepare what sends the faces of an array, and receives the neighbours' into its frame."""
        found = []
        for axis, way in itertools.product(range(3), (-1, 1)):
            edge, frame = (1, 0) if way < 0 else (array.shape[axis] - 2, array.shape[axis] - 1)
            peer = self.neighbour(axis, way)
            found.append(self.comm.Send_init([array, 1, face(array.shape, axis, edge)], dest=peer, tag=2 * axis + (way > 0)))
            found.append(self.comm.Recv_init([array, 1, face(array.shape, axis, frame)], source=peer, tag=2 * axis + (way < 0)))
        return found

    def advance(self) -> None:
        """Do one time step."""
        MPI.Prequest.Startall(self.exchanges[0])
        MPI.Request.Waitall(self.exchanges[0])
        step(*self.arrays)
        self.arrays.reverse()
        self.exchanges.reverse()


def face(shape: tuple[int, ...], axis: int, index: int) -> MPI.Datatype:
    """Return the datatype of one layer of cells inside an array's frame."""
    sizes, starts = [extent - 2 for extent in shape], [1, 1, 1]
    sizes[axis], starts[axis] = 1, index
    return MPI.DOUBLE.Create_subarray(shape, sizes, starts).Commit()


def alone(cells: int, steps: int) -> np.ndarray:
    """Return what one process computes."""
    arrays = [xp.asarray(initial(cells)) for _ in range(2)]
    for _ in range(steps):
        step(*arrays)
        arrays.reverse()
    return on_host(arrays[0])


def on_host(array) -> np.ndarray:
    """Return an array as one of NumPy."""
    return array if xp is np else xp.asnumpy(array)


def main() -> None:
    cells = int(sys.argv[1]) if len(sys.argv) > 1 else 40
    steps = int(sys.argv[2]) if len(sys.argv) > 2 else 60
    comm = MPI.COMM_WORLD
    if xp is not np:
        xp.cuda.Device(comm.rank % xp.cuda.runtime.getDeviceCount()).use()
    block = Block(comm, cells)
    for _ in range(steps):
        block.advance()
    parts = comm.gather(on_host(block.arrays[0])[1:-1, 1:-1, 1:-1], root=0)
    if comm.rank == 0:
        box = initial(cells)
        for rank, part in enumerate(parts):
            box[block.span(rank, cells)] = part
        difference = np.abs(box - alone(cells, steps)).max()
        print(f"{cells} x {cells} x {cells} cells, {steps} steps, arrays of {xp.__name__}, {block.grid} blocks")
        print(f"warmest cell {box.max():.6f}, mean {box.mean():.6f}, difference to one process {difference:.1e}")
        assert difference == 0.0


if __name__ == "__main__":
    main()

# ranks: 4
import numpy as np
from mpi4py import MPI

comm = MPI.COMM_WORLD
try:
    import cupy as xp

    xp.cuda.Device(comm.rank % xp.cuda.runtime.getDeviceCount()).use()
except (ImportError, RuntimeError):  # no CuPy, or no GPU
    xp = np

CELLS, STEPS = 256, 100  # of the plate in each direction; the ranks must divide it
grid = comm.Create_cart(MPI.Compute_dims(comm.size, 2))
above, below = grid.Shift(0, 1)
left, right = grid.Shift(1, 1)
height, width = (CELLS // count for count in grid.dims)


def plate():
    """Return the whole plate with a cold frame: something hot in its middle."""
    cells = xp.zeros((CELLS + 2, CELLS + 2))
    cells[100:170, 80:140] = 100.0
    return cells


def step(cells) -> None:
    """Let heat spread once: nothing but CuPy, or NumPy."""
    inner = cells[1:-1, 1:-1]
    inner += 0.2 * (cells[:-2, 1:-1] + cells[2:, 1:-1] + cells[1:-1, :-2] + cells[1:-1, 2:] - 4 * inner)


top, start = grid.coords[0] * height, grid.coords[1] * width
block = plate()[top : top + height + 2, start : start + width + 2].copy()  # this rank's cells, with a frame of one cell
flat, row = block.ravel(), width + 2
column = MPI.DOUBLE.Create_vector(height, 1, row).Commit()


def side(place: int) -> list:
    """Describe one column of the block where it lies, without its two ends."""
    return [flat[row + place :], 1, column]


for _ in range(STEPS):
    grid.Sendrecv(block[1, 1:-1], dest=above, recvbuf=block[-1, 1:-1], source=below)
    grid.Sendrecv(block[-2, 1:-1], dest=below, recvbuf=block[0, 1:-1], source=above)
    grid.Sendrecv(side(1), dest=left, recvbuf=side(width + 1), source=right)
    grid.Sendrecv(side(width), dest=right, recvbuf=side(0), source=left)
    step(block)

blocks = xp.empty((comm.size, height, width)) if grid.rank == 0 else None
grid.Gather(xp.ascontiguousarray(block[1:-1, 1:-1]), blocks, root=0)
if grid.rank == 0:
    alone, whole = plate(), plate()
    for _ in range(STEPS):
        step(alone)
    for rank in range(comm.size):
        down, across = grid.Get_coords(rank)
        whole[1 + down * height : 1 + (down + 1) * height, 1 + across * width : 1 + (across + 1) * width] = blocks[rank]
    print(f"arrays of {xp.__name__}, {grid.dims[0]} x {grid.dims[1]} blocks of {height} x {width} cells, {STEPS} steps")
    print(f"mean {float(whole.mean()):.6f}, difference to one process {float(abs(whole - alone).max())}")

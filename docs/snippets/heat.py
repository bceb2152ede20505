# ranks: 4
import json

import numpy as np
from mpi4py import MPI

comm = MPI.COMM_WORLD
grid = comm.Create_cart(MPI.Compute_dims(comm.size, 2))  # 2 x 2 ranks
above, below = grid.Shift(0, 1)  # the ranks beside this one, or PROC_NULL at the rim of the plate
left, right = grid.Shift(1, 1)

cells = 8  # of each rank, in both directions
plate = np.zeros((cells + 2, cells + 2))  # with a frame, for copies of the neighbours' edges
if grid.rank == 0:
    plate[4:9, 4:9] = 100.0  # something hot in the block of rank 0


def exchange(block: np.ndarray) -> None:
    """Fill the frame: each edge goes to the neighbour on its side, and the neighbour's comes in."""
    row = np.empty(cells)
    for edge, frame, there, back in (
        ((1, slice(1, -1)), (-1, slice(1, -1)), above, below),
        ((-2, slice(1, -1)), (0, slice(1, -1)), below, above),
        ((slice(1, -1), 1), (slice(1, -1), -1), left, right),
        ((slice(1, -1), -2), (slice(1, -1), 0), right, left),
    ):
        row[:] = block[frame]  # what stays where there is no neighbour
        grid.Sendrecv(block[edge].copy(), dest=there, recvbuf=row, source=back)
        block[frame] = row


for _ in range(20):
    exchange(plate)
    around = plate[:-2, 1:-1] + plate[2:, 1:-1] + plate[1:-1, :-2] + plate[1:-1, 2:]
    plate[1:-1, 1:-1] += 0.2 * (around - 4 * plate[1:-1, 1:-1])

blocks = grid.gather((grid.coords, plate[1:-1, 1:-1].round(1)), root=0)
if grid.rank == 0:
    whole, owners = np.zeros((2 * cells, 2 * cells)), np.zeros((2 * cells, 2 * cells), int)
    for rank, ((down, across), block) in enumerate(blocks):
        place = slice(down * cells, (down + 1) * cells), slice(across * cells, (across + 1) * cells)
        whole[place], owners[place] = block, rank
    print(json.dumps({"field": whole.tolist(), "owners": owners.tolist()}))

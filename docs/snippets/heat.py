# ranks: 4
import json

import numpy as np
from mpi4py import MPI

comm = MPI.COMM_WORLD
grid = comm.Create_cart(MPI.Compute_dims(comm.size, 2))  # 2 x 2 ranks
above, below = grid.Shift(0, 1)  # the ranks beside this one, or PROC_NULL at the rim of the plate
left, right = grid.Shift(1, 1)

rows, columns = (16 // blocks for blocks in grid.dims)  # of each rank
plate = np.zeros((rows + 2, columns + 2))  # with a frame, for copies of the neighbours' edges
if grid.rank == 0:
    plate[4:9, 4:9] = 100.0  # something hot in the block of rank 0


def exchange(block: np.ndarray) -> None:
    """Fill the frame: each edge goes to the neighbour on its side, and the neighbour's comes in."""
    for edge, frame, there, back in (
        ((1, slice(1, -1)), (-1, slice(1, -1)), above, below),
        ((-2, slice(1, -1)), (0, slice(1, -1)), below, above),
        ((slice(1, -1), 1), (slice(1, -1), -1), left, right),
        ((slice(1, -1), -2), (slice(1, -1), 0), right, left),
    ):
        received = block[frame].copy()  # what stays where there is no neighbour
        grid.Sendrecv(block[edge].copy(), dest=there, recvbuf=received, source=back)
        block[frame] = received


for _ in range(20):
    exchange(plate)
    around = plate[:-2, 1:-1] + plate[2:, 1:-1] + plate[1:-1, :-2] + plate[1:-1, 2:]
    plate[1:-1, 1:-1] += 0.2 * (around - 4 * plate[1:-1, 1:-1])

blocks = grid.gather((grid.coords, plate[1:-1, 1:-1].round(1)), root=0)
if grid.rank == 0:
    whole, owners = np.zeros((16, 16)), np.zeros((16, 16), int)
    for rank, ((down, across), block) in enumerate(blocks):
        place = slice(down * rows, (down + 1) * rows), slice(across * columns, (across + 1) * columns)
        whole[place], owners[place] = block, rank
    print(json.dumps({"field": whole.tolist(), "owners": owners.tolist()}))

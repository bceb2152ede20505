"""Heat in the wall of a pipe, on a grid of ranks that is a circle in one direction: all neighbours are served by one call.

`Create_cart` arranges the ranks, and knows who is whose neighbour. Each step starts one persistent `Neighbor_alltoallw`, whose
datatypes say where the edges of a block are, and where the neighbours' edges go. Ranks at an end of the pipe have nobody beyond it:
their frame keeps the temperature of the end. At the end rank 0 compares all of it, bit by bit, with what one process computes alone.

ncclx run -n 4 examples/halo_exchange.py [cells] [steps]
"""

import sys

import numpy as np
from mpi4py import MPI

ALPHA = 0.2


def pipe(cells: int) -> np.ndarray:
    """Return the wall, unrolled, in a frame: a hot and a cold end (rows), a warm spot across the seam (columns)."""
    wall = np.zeros((cells + 2, cells + 2))
    along, around = np.ogrid[1 : cells + 1, : cells + 2]
    wall[1:-1] = np.where((along - cells / 2) ** 2 + (around % cells) ** 2 < (cells / 4) ** 2, 60.0, 20.0)
    wall[0] = 100.0
    return wall


def advance(wall: np.ndarray) -> None:
    """Advance what is inside the frame by one time step."""
    inside = wall[1:-1, 1:-1]
    inside += ALPHA * (wall[:-2, 1:-1] + wall[2:, 1:-1] + wall[1:-1, :-2] + wall[1:-1, 2:] - 4 * inside)


def edges(shape: tuple[int, int], is_frame: bool) -> list[MPI.Datatype]:
    """Describe the four edges of a block, or those of the frame around it, in the order of the neighbours."""
    found = []
    for axis in (0, 1):
        for place in (0, shape[axis] - 1) if is_frame else (1, shape[axis] - 2):
            extent, start = [size - 2 for size in shape], [1, 1]
            extent[axis], start[axis] = 1, place
            found.append(MPI.DOUBLE.Create_subarray(shape, extent, start).Commit())
    return found


def span(index: int, parts: int, cells: int) -> slice:
    """Return which cells belong to one of so many parts."""
    return slice(1 + index * cells // parts, 1 + (index + 1) * cells // parts)


def simulate(grid: MPI.Cartcomm, cells: int, steps: int) -> np.ndarray:
    """Return this rank's part of the wall after so many steps."""
    rows, columns = (span(index, parts, cells) for index, parts in zip(grid.coords, grid.dims, strict=True))
    wall = pipe(cells)[rows.start - 1 : rows.stop + 1, columns.start - 1 : columns.stop + 1].copy()
    inner, frame = edges(wall.shape, is_frame=False), edges(wall.shape, is_frame=True)
    exchange = grid.Neighbor_alltoallw_init([wall, inner], [wall, frame])
    for _ in range(steps):
        exchange.Start()
        exchange.Wait()
        advance(wall)
    exchange.Free()
    for datatype in (*inner, *frame):
        datatype.Free()
    return wall[1:-1, 1:-1].copy()


def alone(cells: int, steps: int) -> np.ndarray:
    """Return what one process computes."""
    wall = pipe(cells)
    for _ in range(steps):
        wall[1:-1, 0], wall[1:-1, -1] = wall[1:-1, -2], wall[1:-1, 1]
        advance(wall)
    return wall[1:-1, 1:-1]


def main() -> None:
    cells = int(sys.argv[1]) if len(sys.argv) > 1 else 96
    steps = int(sys.argv[2]) if len(sys.argv) > 2 else 200
    comm = MPI.COMM_WORLD
    grid = comm.Create_cart(MPI.Compute_dims(comm.size, 2), periods=[False, True])
    parts = grid.gather(simulate(grid, cells, steps), root=0)
    if grid.rank == 0:
        wall = np.zeros((cells + 2, cells + 2))
        for rank, part in enumerate(parts):
            row, column = grid.Get_coords(rank)
            wall[span(row, grid.dims[0], cells), span(column, grid.dims[1], cells)] = part
        wall = wall[1:-1, 1:-1]
        difference = np.abs(wall - alone(cells, steps)).max()
        print(f"{cells} x {cells} cells, {steps} steps, {grid.dims[0]} x {grid.dims[1]} blocks")
        print(f"coldest cell {wall.min():.6f}, mean {wall.mean():.6f}, difference to one process {difference:.1e}")
        assert difference == 0.0
    grid.Free()


if __name__ == "__main__":
    main()

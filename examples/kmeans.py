"""K-means: the points are scattered, each iteration adds up one table of sums and counts with an in-place Allreduce.

ncclx run -n 4 examples/kmeans.py [points]
"""

import sys

import numpy as np
from mpi4py import MPI

CLUSTERS, DIMENSIONS, ITERATIONS = 4, 2, 50


def make_points(count: int) -> np.ndarray:
    """Return points in four clouds, always the same."""
    generator = np.random.default_rng(2026)
    centres = np.array([[0, 0], [5, 5], [0, 6], [7, -1]], dtype=float)
    return centres[np.arange(count) % CLUSTERS] + generator.normal(scale=0.7, size=(count, DIMENSIONS))


def scatter(comm: MPI.Intracomm, points: np.ndarray | None, count: int) -> np.ndarray:
    """Give every rank its share, of sizes that differ by one at most."""
    shares = [count // comm.size + (rank < count % comm.size) for rank in range(comm.size)]
    mine = np.empty((shares[comm.rank], DIMENSIONS))
    counts = [share * DIMENSIONS for share in shares]
    comm.Scatterv([points, counts] if points is not None else None, mine, root=0)
    return mine


def assign(points: np.ndarray, centres: np.ndarray) -> np.ndarray:
    """Return the nearest centre of each point."""
    return np.argmin(((points[:, None, :] - centres[None]) ** 2).sum(axis=2), axis=1)


def table(points: np.ndarray, nearest: np.ndarray) -> np.ndarray:
    """Return, for each cluster, the sum of its points and how many they are."""
    sums = np.zeros((CLUSTERS, DIMENSIONS + 1))
    np.add.at(sums[:, :DIMENSIONS], nearest, points)
    sums[:, DIMENSIONS] = np.bincount(nearest, minlength=CLUSTERS)
    return sums


def main() -> None:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 20_000
    comm = MPI.COMM_WORLD
    points = make_points(count) if comm.rank == 0 else None
    mine = scatter(comm, points, count)
    centres = np.array(points[:CLUSTERS]) if points is not None else np.empty((CLUSTERS, DIMENSIONS))
    comm.Bcast(centres, root=0)
    iterations, shift = 0, np.inf
    while shift > 1e-9 and iterations < ITERATIONS:
        sums = table(mine, assign(mine, centres))
        comm.Allreduce(MPI.IN_PLACE, sums, op=MPI.SUM)
        moved = sums[:, :DIMENSIONS] / sums[:, DIMENSIONS:]
        shift, centres = float(np.abs(moved - centres).max()), moved
        iterations += 1
    assert comm.allreduce(len(mine)) == count
    if comm.rank == 0:
        print(f"{count} points, {CLUSTERS} clusters, {iterations} iterations")
        order = np.lexsort(centres.T[::-1])
        for centre, members in zip(centres[order], sums[order, DIMENSIONS], strict=True):
            print(f"centre {centre[0]:8.4f} {centre[1]:8.4f}, {members:.0f} points")


if __name__ == "__main__":
    main()

"""Neighbourhood collectives on device arrays, and between those and host arrays: what they give on NumPy arrays, on the driver double."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ncclx_mpi import MPI
from ncclx_mpi.testing.driver_double import Double
from tests.device.cases import FLAVOURS, Do, Make, doing, empty, own
from tests.device.doubles import KINDS, maker, values_of


def exchanged(grid: Any, do: Do, make: Make, length: int) -> list[Any]:
    """What each collective has written, in arrays that are longer than that, and in one with gaps."""
    degree = grid.indegree
    counts, bytes_before = [length] * degree, [8 * length * edge for edge in range(degree)]
    typed = [counts, bytes_before, [MPI.INT64_T] * degree]
    pairs = MPI.INT64_T.Create_vector(2, 1, 2).Create_resized(0, 32).Commit()
    targets = [make(empty(degree * length + 3)) for _ in range(4)]
    apart = make(empty(4 * degree * length))
    do("Neighbor_allgather", make(own(grid, length)), [targets[0], length, MPI.INT64_T])
    do("Neighbor_alltoall", make(own(grid, degree * length)), [targets[1], length, MPI.INT64_T])
    do("Neighbor_alltoallv", make(own(grid, degree * length)), [targets[2], counts])
    do("Neighbor_alltoallw", [make(own(grid, degree * length)), *typed], [targets[3], *typed])
    do("Neighbor_alltoall", make(own(grid, 2 * degree * length)), [apart, length, pairs])
    pairs.Free()
    return [*targets, apart]


@pytest.mark.ranks(1, 2, 3)
@pytest.mark.parametrize("flavour", FLAVOURS)
@pytest.mark.parametrize("kind", KINDS)
def test_the_ends_of_a_line_and_a_circle(comm: Any, kind: str, flavour: str) -> None:
    """What comes from beyond an end stays as it was, in memory that is copied to the host and back as well."""
    grid = comm.Create_cart([comm.size, 1], periods=[False, True])
    for length in (0, 1, 1001):
        with Double(1 + comm.rank):
            wanted = exchanged(grid, doing(grid, flavour), np.array, length)
            found = values_of(exchanged(grid, doing(grid, flavour), maker(kind, comm.rank), length))
        for one, other in zip(found, wanted, strict=True):
            np.testing.assert_array_equal(one, other)
        if comm.rank == 0:  # the first block comes from beyond the end
            assert all((array[:length] == -7).all() for array in found) and (length == 0 or (found[1][2 * length] != -7))

"""Plans by node, forced on ranks of several nodes: each runs, and gives what it is to give."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ncclx_mpi import MPI, runtime
from ncclx_mpi.algorithms import ROWS, Algorithm
from tests.collectives.test_forced import noted_rows, numbers

BY_NODE = [f"{row.collective}-{row.name}" for row in ROWS if row.by_node is not None]
COUNTS = (1, 7, 3000)


def forced(comm: Any, row: Algorithm) -> Any:
    """A duplicate on which one algorithm is forced."""
    engine = runtime.engine()
    before = engine.forced
    engine.force(numbers(row.collective, row.name))
    try:
        return comm.Dup()
    finally:
        engine.force(before)


def check(comm: Any, collective: str, count: int) -> None:
    """Call a collective, with a buffer for what comes and in place."""
    size, rank = comm.size, comm.rank
    own = slice(rank * count, (rank + 1) * count)
    everything = [np.arange(count * size) * (other + 1) + other for other in range(size)]
    mine, total = everything[rank], sum(everything)
    found, in_place = np.full_like(mine, -1), mine.copy()
    expected: Any = {"allreduce": total, "barrier": found.copy()}.get(collective)
    if collective == "barrier":
        comm.Barrier()
        in_place = found
    elif collective == "bcast":
        expected = everything[size - 1]
        comm.Bcast(in_place, size - 1)
        found = in_place
    elif collective == "allreduce":
        comm.Allreduce(mine, found)
        comm.Allreduce(MPI.IN_PLACE, in_place)
    elif collective == "reduce":
        expected, root = total if rank == size - 1 else found.copy(), size - 1
        comm.Reduce(mine, found, root=root)
        comm.Reduce(MPI.IN_PLACE if rank == root else mine, in_place, root=root)
        in_place = in_place if rank == root else found
    elif collective == "allgather":
        expected = np.concatenate([its[:count] for its in everything])
        comm.Allgather(mine[:count], found)
        in_place[own] = mine[:count]
        comm.Allgather(MPI.IN_PLACE, in_place)
    elif collective == "alltoall":
        expected = np.concatenate([its[own] for its in everything])
        comm.Alltoall(mine, found)
        comm.Alltoall(MPI.IN_PLACE, in_place)
    elif collective == "reduce_scatter":
        expected, found = total[own], found[:count]
        comm.Reduce_scatter_block(mine, found)
        comm.Reduce_scatter_block(MPI.IN_PLACE, in_place)
        in_place = in_place[:count]
    else:
        raise AssertionError(f"there is no call here for {collective}")
    assert (found == expected).all() and (in_place == expected).all()


@pytest.mark.ranks(4, 5, topology="vnode:2")
@pytest.mark.parametrize("name", BY_NODE)
def test_a_plan_by_node_that_is_forced_runs(comm: Any, name: str) -> None:
    """On nodes of two, and on such with a smaller one."""
    (row,) = (row for row in ROWS if f"{row.collective}-{row.name}" == name)
    mine = forced(comm, row)
    with noted_rows() as rows:
        for count in COUNTS:
            check(mine, row.collective, count)
    assert row in rows and {its.name for its in rows if its.collective == row.collective} == {row.name}
    mine.Free()

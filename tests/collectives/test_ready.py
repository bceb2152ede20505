"""Plans that are ready for the next call: found again by what tells a call, and given up as those that Python starts."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from ncclx_mpi import MPI, collectives
from ncclx_mpi.collectives import blocking, executor, ready
from ncclx_mpi.collectives.bcast import binomial
from ncclx_mpi.collectives.shm_oneshot import BCAST

BETWEEN = pytest.mark.ranks(4, 5, topology="vnode:2")


@contextlib.contextmanager
def noted() -> Iterator[list[str]]:
    """Names of the calls whose plans Python makes meanwhile."""
    names: list[str] = []
    original = blocking.run

    def run(collective: collectives.Collective) -> None:
        names.append(collective.name)
        original(collective)

    blocking.run = run
    try:
        yield names
    finally:
        blocking.run = original


def calls(comm: Any, count: int, root: int, salt: int) -> list[str]:
    """Each collective once, checked; returns their names."""
    size, rank = comm.size, comm.rank
    given = np.arange(count * size, dtype=np.int64) * (rank + 1) + salt
    everything = [np.arange(count * size) * (other + 1) + salt for other in range(size)]
    total, own = sum(everything), slice(rank * count, (rank + 1) * count)
    found = np.zeros_like(given)
    comm.Barrier()
    comm.Allreduce(given, found)
    assert (found == total).all()
    found[:] = 0
    comm.Reduce(given, found, MPI.SUM, root)
    assert (found == (total if rank == root else 0)).all()
    found[:] = everything[root] if rank == root else 0
    comm.Bcast(found, root)
    assert (found == everything[root]).all()
    comm.Allgather(given[:count], found)
    assert (found == np.concatenate([its[:count] for its in everything])).all()
    comm.Alltoall(given, found)
    assert (found == np.concatenate([its[own] for its in everything])).all()
    comm.Reduce_scatter_block(given, found[:count])
    assert (found[:count] == total[own]).all()
    found[:] = 0
    comm.Gather(given[:count], found if rank == root else None, root)
    assert (found == (np.concatenate([its[:count] for its in everything]) if rank == root else 0)).all()
    comm.Scatter(given if rank == root else None, found[:count], root)
    assert (found[:count] == everything[root][own]).all()
    return ["barrier", "allreduce", "reduce", "bcast", "allgather", "alltoall", "reduce_scatter", "gather", "scatter"]


@BETWEEN
def test_a_call_that_was_carried_out_needs_no_plan_again(comm: Any) -> None:
    comm.Allreduce(np.zeros(1, np.int64), np.zeros(1, np.int64))  # the table of the operation knows the elements
    with noted() as planned:
        names = calls(comm, 3, 1, 0)
        assert planned == names
        for salt in range(3):
            assert calls(comm, 3, 1, salt) == names
        assert planned == names, "the later ones found theirs"
        calls(comm, 5, 2, 7)
        assert planned == [*names, *(name for name in names if name != "barrier")], "of other sizes, and of another root"


@BETWEEN
def test_what_is_like_another_call_is_told_from_it(comm: Any) -> None:
    """Elements of other sizes with as many bytes, another operation, in place, and with counts: none goes by another's plan."""
    size, rank = comm.size, comm.rank
    for _ in range(2):
        for dtype in (np.float64, np.float32, np.int64, np.uint8):
            given = np.full(48 // np.dtype(dtype).itemsize, rank + 1, dtype)
            for op, wanted in ((MPI.SUM, size * (size + 1) // 2), (MPI.MAX, size), (MPI.MIN, 1)):
                found = np.zeros_like(given)
                comm.Allreduce(given, found, op)
                assert (found == wanted).all()
                found[:] = given
                comm.Allreduce(MPI.IN_PLACE, found, op)
                assert (found == wanted).all()
        both = np.arange(size, dtype=np.int64) + 10 * rank
        other = np.zeros_like(both)
        comm.Alltoall(both, other)
        comm.Alltoall(MPI.IN_PLACE, both)
        assert (both == other).all() and (both == np.arange(size) * 10 + rank).all()
        counts = [1] * size
        comm.Reduce_scatter(np.arange(size, dtype=np.int64), other[:1], counts)
        comm.Reduce_scatter_block(np.arange(size, dtype=np.int64), other[1:2])
        assert other[0] == other[1] == rank * size


@BETWEEN
def test_ranks_that_go_different_ways_meet(comm: Any) -> None:
    """One gives what compiled code does not read; the order of collectives is one for both ways, and for those that are started."""
    given, found = np.full(4, comm.rank, np.float64), np.zeros(4)
    for turn in range(6):
        started = comm.Iallreduce(given, np.zeros(4))
        if comm.rank == turn % comm.size:
            comm.Allreduce([given, 4, MPI.DOUBLE], [found, 4, MPI.DOUBLE])
        else:
            comm.Allreduce(given, found)
        assert (found == sum(range(comm.size))).all()
        started.Wait()


@BETWEEN
def test_more_calls_than_are_kept_take_turns(comm: Any) -> None:
    for _ in range(2):
        for count in range(1, 3 * ready._MOST):
            found = np.zeros(count, np.int64)
            comm.Allreduce(np.full(count, comm.rank + 1, np.int64), found)
            assert (found == comm.size * (comm.size + 1) // 2).all()


@BETWEEN
def test_a_call_that_differs_from_the_others_is_an_error(comm: Any) -> None:
    """As where Python makes the plan: whoever called something else is named, and nobody waits for ever."""
    mine = comm.Dup()
    mine.Set_errhandler(MPI.ERRORS_RETURN)
    given, found = np.zeros(1), np.zeros(1)
    for _ in range(2):
        mine.Allreduce(given, found)
        mine.Barrier()
    with noted() as planned, pytest.raises(MPI.Exception, match=r"allreduce|barrier"):
        if comm.rank == 0:
            mine.Barrier()
        else:
            mine.Allreduce(given, found)
    assert not planned and mine._state.native.word("broken")
    with pytest.raises(MPI.Exception):
        mine.Allreduce(given, found)
    comm.Barrier()


@BETWEEN
def test_a_revoked_communicator_has_no_ready_plans(comm: Any) -> None:
    twin = comm.Dup()
    for _ in range(3):
        twin.Barrier()
    if comm.rank == 1:
        twin.Revoke()
    comm.Barrier()
    while not twin.Is_revoked():
        comm.Iprobe()
    with pytest.raises(MPI.Exception) as raised:
        twin.Barrier()
    assert raised.value.Get_error_class() == MPI.ERR_REVOKED
    twin.Free()


@pytest.mark.ranks(4, topology="vnode:2")
def test_roots_that_are_told_by_more_bits_than_there_are_keep_no_plan(comm: Any) -> None:
    """Of a world of so many ranks there is no test; what is asked is whether its plan would be kept."""
    native = comm._state.native
    plan = binomial.plan(0, 4, 8, 0)
    kept = [executor.Collective(native, "bcast", BCAST, plan, (0, 0), root=root, nbytes=8).nbytes for root in (0, 2047, 2048)]
    assert kept == [8, 8, -1]

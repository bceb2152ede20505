"""Communicators of one rank: no slot of the arena, and yet no plans, as what others would read is in private memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from ncclx_mpi import MPI

LENGTHS = (0, 1, 3, 100, 5_000, 300_000)


def of_one_rank(comm: Any) -> Iterator[Any]:
    """Every way to make one; all but COMM_SELF are freed."""
    yield MPI.COMM_SELF
    for made in (MPI.COMM_SELF.Dup(), comm.Split(comm.rank, 0), comm.Create(MPI.Group.Incl(comm.Get_group(), [comm.rank]))):
        yield made
        made.Free()


def arrays(alone: Any, length: int, op: Any) -> dict[str, tuple[Callable[[Any, Any], None], bool]]:
    """The calls that turn one array into the same in another one; whether they may work in place."""
    counts = [length]
    return {
        "Allreduce": (lambda a, b: alone.Allreduce(a, b, op), True),
        "Reduce": (lambda a, b: alone.Reduce(a, b, op), True),
        "Scan": (lambda a, b: alone.Scan(a, b, op), True),
        "Reduce_scatter_block": (lambda a, b: alone.Reduce_scatter_block(a, b, op), True),
        "Reduce_scatter": (lambda a, b: alone.Reduce_scatter(a, b, counts, op), True),
        "Allgather": (lambda a, b: alone.Allgather(a, b), True),
        "Allgatherv": (lambda a, b: alone.Allgatherv(a, [b, counts]), True),
        "Gather": (lambda a, b: alone.Gather(a, b), True),
        "Gatherv": (lambda a, b: alone.Gatherv(a, [b, counts]), True),
        "Scatter": (lambda a, b: alone.Scatter(a, b), False),
        "Scatterv": (lambda a, b: alone.Scatterv([a, counts], b), False),
        "Alltoall": (lambda a, b: alone.Alltoall(a, b), True),
        "Alltoallv": (lambda a, b: alone.Alltoallv([a, counts], [b, counts]), False),
        "Iallreduce": (lambda a, b: alone.Iallreduce(a, b, op).Wait(), True),
        "Iallgather": (lambda a, b: alone.Iallgather(a, b).Wait(), True),
        "Ialltoall": (lambda a, b: alone.Ialltoall(a, b).Wait(), True),
        "Iscan": (lambda a, b: alone.Iscan(a, b, op).Wait(), True),
    }


def check_arrays(alone: Any, length: int) -> None:
    mine = np.arange(length) + 7.0
    user = MPI.Op.Create(lambda given, kept, datatype: None, commute=False)
    for op in (MPI.SUM, user):
        for name, (call, may_be_in_place) in arrays(alone, length, op).items():
            found = np.zeros(length)
            call(mine, found)
            np.testing.assert_array_equal(found, mine, err_msg=name)
            if may_be_in_place:
                kept = mine.copy()
                call(MPI.IN_PLACE, kept)
                np.testing.assert_array_equal(kept, mine, err_msg=f"{name} in place")
    user.Free()
    found = mine.copy()
    alone.Bcast(found)
    alone.Ibcast(found).Wait()
    alone.Barrier()
    alone.Ibarrier().Wait()
    np.testing.assert_array_equal(found, mine)


@pytest.mark.ranks(1, 2, 3)
@pytest.mark.parametrize("length", LENGTHS)
def test_arrays(comm: Any, length: int) -> None:
    for alone in of_one_rank(comm):
        check_arrays(alone, length)


@pytest.mark.ranks(1, 2, 3)
def test_blocking_calls_of_any_length_make_no_plan(comm: Any) -> None:
    for alone in of_one_rank(comm):
        for length in LENGTHS[1:]:
            check_without_plans(alone, length)


def check_without_plans(alone: Any, length: int) -> None:
    mine, found = np.arange(length) + 7.0, np.zeros(length)
    for name, (call, _) in arrays(alone, length, MPI.SUM).items():
        call(mine, found)  # the first one of an operation looks its function up
        found[:] = 0
        before = alone._state.native.word("plans")
        call(mine, found)
        np.testing.assert_array_equal(found, mine, err_msg=name)
        assert name.startswith("I") or alone._state.native.word("plans") == before, (name, length)


@pytest.mark.ranks(1, 2, 3)
def test_objects(comm: Any) -> None:
    for alone in of_one_rank(comm):
        before = alone._state.native.word("plans")
        for found in (3.5, None, {"rank": comm.rank}, [1, "text", (2,)], "x" * 2_000):
            assert alone.bcast(found) == found
            assert alone.allgather(found) == alone.gather(found) == alone.alltoall([found]) == [found]
            assert alone.scatter([found]) == found
            assert alone.allreduce([found], MPI.SUM) == alone.reduce([found], MPI.SUM) == alone.scan([found], MPI.SUM) == [found]
            assert alone.exscan([found], MPI.SUM) is None
            alone.barrier()
        assert alone._state.native.word("plans") == before
        array = np.arange(200_000)
        np.testing.assert_array_equal(alone.allgather(array)[0], array)
        np.testing.assert_array_equal(alone.bcast(array), array)


@pytest.mark.ranks(1, 2)
def test_what_is_pending_outlives_the_communicator(comm: Any) -> None:
    mine, found = np.arange(3.0), np.zeros(3)
    again = np.zeros(3)
    alone = comm.Split(comm.rank, 0)
    pending, persistent = alone.Iallreduce(mine, found), alone.Allreduce_init(mine, again)
    persistent.Start()
    alone.Free()
    pending.Wait()
    persistent.Wait()
    persistent.Free()
    np.testing.assert_array_equal(found, mine)
    np.testing.assert_array_equal(again, mine)


@pytest.mark.ranks(1, 2)
def test_many_come_and_go(comm: Any) -> None:
    """Each has memory of its own, which goes with it: at once they would need 40 GB of addresses."""
    for turn in range(2_000):
        alone = MPI.COMM_SELF.Dup()
        assert alone.allreduce(turn) == turn
        alone.Free()
    kept = [MPI.COMM_SELF.Dup() for _ in range(300)]
    assert [each.allgather(k) for k, each in enumerate(kept)] == [[k] for k in range(300)]
    for each in kept:
        each.Free()

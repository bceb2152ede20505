"""Persistent collectives: started again and again, between everything else, freed, cancelled, and after their communicator."""

from __future__ import annotations

import gc
from typing import Any

import numpy as np
import pytest

from ncclx_mpi import MPI
from ncclx_mpi.api.collective_requests import Repeated

COMM = MPI.COMM_WORLD


def run_each(request: MPI.Prequest, turn: int) -> None:
    """Start and complete a request in one of several ways."""
    if turn % 4 == 3:
        MPI.Prequest.Startall([request])
    else:
        request.Start()
    if turn % 4 == 0:
        assert request.Wait()
    elif turn % 4 == 1:
        while not request.Test():
            pass
    elif turn % 4 == 2:
        assert MPI.Request.Waitany([MPI.REQUEST_NULL, request]) == 1
    else:
        assert MPI.Request.Waitall([request], [MPI.Status()])
    assert request and request.Test()


@pytest.mark.ranks(1, 2, 3, 5)
@pytest.mark.parametrize("count", [0, 1, 100, 20_001])
def test_every_collective(count: int) -> None:
    for comm in (COMM, COMM.Dup(), COMM.Split(COMM.rank % 2, -COMM.rank)):
        n, rank = comm.size, comm.rank
        mine, blocks, got, all_got = np.zeros(count), np.zeros((n, count)), np.zeros(count), np.zeros((n, count))
        in_place, gathered, swapped = np.zeros(count), np.zeros((n, count)), np.zeros((n, count))
        root = n - 1
        is_root = rank == root
        requests = {
            "barrier": comm.Barrier_init(),
            "bcast": comm.Bcast_init(in_place, root),
            "gather": comm.Gather_init(mine, gathered if is_root else None, root),
            "scatter": comm.Scatter_init(blocks if is_root else None, got, root),
            "allgather": comm.Allgather_init(mine, all_got),
            "alltoall": comm.Alltoall_init(blocks, all_got),
            "alltoall_in_place": comm.Alltoall_init(MPI.IN_PLACE, swapped),
            "reduce": comm.Reduce_init(mine, got if is_root else None, MPI.SUM, root),
            "allreduce": comm.Allreduce_init(mine, got, MPI.SUM),
            "allreduce_in_place": comm.Allreduce_init(MPI.IN_PLACE, in_place, MPI.MAX),
            "reduce_scatter_block": comm.Reduce_scatter_block_init(blocks, got, MPI.SUM),
            "scan": comm.Scan_init(mine, got),
            "exscan": comm.Exscan_init(mine, got),
        }
        base, ranks = np.arange(count) % 50, range(n)
        for turn in range(4):
            for name, request in requests.items():
                for each in (got, all_got, gathered):
                    each[:] = -1
                mine[:] = in_place[:] = base + rank + turn
                for other in ranks:
                    blocks[other] = swapped[other] = base + rank + 10 * other + turn
                run_each(request, turn)
                all_mine = [base + other + turn for other in ranks]
                crossed = [base + other + 10 * rank + turn for other in ranks]
                found, wanted = {
                    "barrier": (mine, all_mine[rank]),
                    "bcast": (in_place, all_mine[root]),
                    "gather": (gathered, np.array(all_mine) if is_root else np.full((n, count), -1)),
                    "scatter": (got, base + root + 10 * rank + turn),
                    "allgather": (all_got, np.array(all_mine)),
                    "alltoall": (all_got, np.array(crossed)),
                    "alltoall_in_place": (swapped, np.array(crossed)),
                    "reduce": (got, sum(all_mine) if is_root else np.full(count, -1)),
                    "allreduce": (got, sum(all_mine)),
                    "allreduce_in_place": (in_place, all_mine[-1]),
                    "reduce_scatter_block": (got, sum(crossed)),
                    "scan": (got, sum(all_mine[: rank + 1])),
                    "exscan": (got, sum(all_mine[:rank]) if rank else np.full(count, -1)),
                }[name]
                np.testing.assert_array_equal(found, wanted, err_msg=f"{name}, turn {turn}")
        for request in requests.values():
            request.Free()
            assert not request


@pytest.mark.ranks(2, 3)
def test_between_everything_else() -> None:
    n, rank = COMM.size, COMM.rank
    right, left = (rank + 1) % n, (rank - 1) % n
    for count in (3, 50_000):
        given, total, shared, came = np.zeros(count), np.zeros(count), np.zeros(count), np.zeros(1)
        requests = [
            COMM.Recv_init(came, left, 5),
            COMM.Allreduce_init(given, total),
            COMM.Send_init(np.full(1, rank + 0.5), right, 5),
            COMM.Bcast_init(shared, 0),
        ]
        for turn in range(8):
            given[:], shared[:] = rank + turn, turn if rank == 0 else -1
            MPI.Prequest.Startall(requests)
            other = COMM.Iallreduce(np.full(count, 1.0), np.zeros(count))
            if turn % 2:
                COMM.Barrier()
                assert COMM.allreduce(1) == n
            statuses = [MPI.Status() for _ in requests]
            MPI.Request.Waitall([*requests, other], statuses if turn % 3 else None)
            assert (total == sum(range(n)) + turn * n).all() and (shared == turn).all() and came[0] == left + 0.5
        for request in requests:
            request.Free()


@pytest.mark.ranks(2)
@pytest.mark.parametrize("count", [1, 100_000])
def test_states(count: int) -> None:
    data = np.full(count, COMM.rank + 1.0)
    request = COMM.Allreduce_init(MPI.IN_PLACE, data)
    assert isinstance(request._state, Repeated)
    assert request.Wait() and request.Test() and MPI.Request.Waitany([request]) == MPI.UNDEFINED
    with pytest.raises(MPI.Exception) as caught:
        request.Cancel()
    assert caught.value.Get_error_class() == MPI.ERR_REQUEST
    request.Start()
    for wrong in (request.Start, request.Cancel):
        with pytest.raises(MPI.Exception) as caught:
            wrong()
        assert caught.value.Get_error_class() == MPI.ERR_REQUEST
    copy = MPI.Prequest(request)
    status = MPI.Status()
    copy.Wait(status)
    assert status.Get_count(MPI.BYTE) == 0 and status.Get_source() == MPI.ANY_SOURCE
    assert request.Test() and (data == 3).all()
    copy.Start()
    request.Free()  # an active one goes on
    with pytest.raises(MPI.Exception):
        copy.Wait()
    COMM.Barrier()
    assert (data == 6).all()


@pytest.mark.ranks(2, 3)
def test_forgotten_ones_go_on() -> None:
    for count in (1, 100_000):
        blocks = [np.full(count, 1.0) for _ in range(3)]
        for data in blocks:
            COMM.Allreduce_init(MPI.IN_PLACE, data).Start()
            gc.collect()
        COMM.Barrier()
        while not all((data == COMM.size).all() for data in blocks):  # a barrier does not wait for them
            COMM.Iprobe()


@pytest.mark.ranks(2, 3)
def test_after_their_communicator() -> None:
    """A communicator that is freed lives on as long as what was prepared on it; its slot is another's after that."""
    for count in (1, 50_000):
        for _ in range(200 if count == 1 else 3):
            comm, data = COMM.Dup(), np.full(count, 1.0)
            request = comm.Allreduce_init(MPI.IN_PLACE, data)
            request.Start()
            comm.Free()
            request.Wait()
            other = COMM.Dup()
            other.Barrier()
            request.Start()
            request.Wait()
            assert (data == COMM.size**2).all()
            request.Free()
            other.Free()


@pytest.mark.ranks(2)
def test_scattered_operands() -> None:
    every_other = MPI.DOUBLE.Create_vector(30_000, 1, 2).Commit()
    spread = np.zeros(60_000)
    request = COMM.Bcast_init([spread, 1, every_other], 0)
    for turn in range(3):
        spread[:] = turn if COMM.rank == 0 else -1
        request.Start()
        request.Wait()
        assert (spread[::2] == turn).all() and (spread[1::2] == (turn if COMM.rank == 0 else -1)).all()
    request.Free()
    every_other.Free()


@pytest.mark.ranks(2)
def test_what_others_have_not_started_is_not_complete() -> None:
    comm: Any = COMM.Dup()
    requests = [comm.Barrier_init(), comm.Allreduce_init(np.zeros(100_000), np.zeros(100_000))]
    for request in requests:
        request.Start()
        request.Wait()
    if comm.rank == 0:  # rank 1 starts nothing more
        for request in requests:
            request.Start()
        assert not requests[0].Test() and not MPI.Request.Testall(requests)
        assert MPI.Request.Testany(requests) == (MPI.UNDEFINED, False) and MPI.Request.Testsome(requests) == []
        COMM.Send(np.zeros(1), 1)
    else:
        COMM.Recv(np.zeros(1), 0)
        for request in requests:
            request.Start()
    MPI.Request.Waitall(requests)

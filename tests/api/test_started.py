"""Requests of small non-blocking collectives: mixed with others, forgotten, freed, cancelled, and on communicators that are freed."""

from __future__ import annotations

import gc
import os
import signal
import threading
import time
import weakref

import numpy as np
import pytest

from ncclx_mpi import MPI
from ncclx_mpi.api import collective_requests

COMM = MPI.COMM_WORLD
N, RANK = COMM.Get_size(), COMM.Get_rank()


@pytest.mark.ranks(1, 2, 3, 5)
def test_every_collective() -> None:
    ranks = np.arange(N)
    for count in (0, 1, 7, 100, 5000):
        mine, all_equal = np.arange(count) + 1000 * RANK, [np.arange(count) + 1000 * rank for rank in range(N)]
        blocks = np.concatenate([np.arange(count) + 1000 * RANK + 17 * rank for rank in range(N)])
        total, upto = sum(all_equal), sum(all_equal[: RANK + 1])
        for root in range(N):
            buf = mine.copy()
            COMM.Ibcast(buf, root).Wait()
            np.testing.assert_array_equal(buf, all_equal[root])
            got = np.zeros(count * N, dtype=int) if root == RANK else None
            COMM.Igather(mine, got, root).Wait()
            if root == RANK:
                np.testing.assert_array_equal(got, np.concatenate(all_equal))
            got = np.zeros(count, dtype=int)
            COMM.Iscatter(blocks if root == RANK else None, got, root).Wait()
            np.testing.assert_array_equal(got, np.arange(count) + 1000 * root + 17 * RANK)
            got = np.zeros(count, dtype=int)
            COMM.Ireduce(mine, got if root == RANK else None, MPI.SUM, root).Wait()
            np.testing.assert_array_equal(got, total if root == RANK else 0 * total)
        got = np.zeros(count * N, dtype=int)
        COMM.Iallgather(mine, got).Wait()
        np.testing.assert_array_equal(got, np.concatenate(all_equal))
        got = np.zeros(count * N, dtype=int)
        COMM.Ialltoall(blocks, got).Wait()
        np.testing.assert_array_equal(got, np.concatenate([np.arange(count) + 1000 * rank + 17 * RANK for rank in ranks]))
        swapped = blocks.copy()
        COMM.Ialltoall(MPI.IN_PLACE, swapped).Wait()
        np.testing.assert_array_equal(swapped, got)
        got = np.zeros(count, dtype=int)
        COMM.Iallreduce(mine, got).Wait()
        np.testing.assert_array_equal(got, total)
        got = mine.copy()
        COMM.Iallreduce(MPI.IN_PLACE, got, MPI.MAX).Wait()
        np.testing.assert_array_equal(got, all_equal[-1])
        got = np.zeros(count, dtype=int)
        COMM.Ireduce_scatter_block(blocks, got).Wait()
        np.testing.assert_array_equal(got, total + 17 * N * RANK)
        got = np.zeros(count, dtype=int)
        COMM.Iscan(mine, got).Wait()
        np.testing.assert_array_equal(got, upto)
        got = np.zeros(count, dtype=int)
        COMM.Iexscan(mine, got).Wait()
        np.testing.assert_array_equal(got, upto - mine if RANK else 0)


@pytest.mark.ranks(2, 3)
def test_ranks_that_pass_other_kinds_of_buffers_meet() -> None:
    """Even ranks give plain arrays, odd ones every other element of an array, bytes, or a type of their own."""
    odd = RANK % 2
    strided = MPI.LONG.Create_vector(4, 1, 2).Commit()
    give, take = np.repeat(np.arange(4) + 10 * RANK, 2), np.full(8, -1)
    plain, got = give[::2].copy(), np.full(4, -1)
    for _ in range(40):
        COMM.Ibcast([give, 1, strided] if odd else plain, 0).Wait()
        np.testing.assert_array_equal(give[::2] if odd else plain, np.arange(4))
        give[::2] = plain[:] = np.arange(4) + 10 * RANK
        total = N * np.arange(4) + 10 * sum(range(N))
        COMM.Iallreduce([memoryview(plain), MPI.LONG] if odd else plain, got).Wait()
        np.testing.assert_array_equal(got, total)
        everyone = np.full(4 * N, -1)
        COMM.Iallgather([give, 1, strided] if odd else plain, everyone).Wait()
        np.testing.assert_array_equal(everyone, np.concatenate([np.arange(4) + 10 * rank for rank in range(N)]))
        take[:] = -1
        COMM.Ialltoall(np.arange(4.0 * N)[:N], np.empty(N)).Wait()
    strided.Free()


@pytest.mark.ranks(1, 2, 3)
def test_an_operation_in_python() -> None:
    later = MPI.Op.Create(lambda given, kept, datatype: None, commute=False)
    got = np.zeros(3)
    requests = [COMM.Iallreduce(np.full(3, RANK + 1.0), got, later), COMM.Ibarrier()]
    MPI.Request.Waitall(requests)
    assert (got == N).all()
    later.Free()


@pytest.mark.ranks(2, 3, 5)
def test_mixed_with_messages() -> None:
    right, left = (RANK + 1) % N, (RANK - 1) % N
    for turn in range(30):
        came, total, buf = np.zeros(1), np.zeros(2), np.full(1, float(RANK))
        requests = [
            COMM.Irecv(came, left, turn),
            COMM.Iallreduce(np.full(2, RANK + float(turn)), [total, MPI.DOUBLE]) if turn % 2 else COMM.Ibcast(buf, turn % N),
            COMM.Isend(np.full(1, RANK + 0.5), right, turn),
            MPI.REQUEST_NULL,
            COMM.Ibarrier(),
        ]
        how, left_open = turn % 4, 4
        if how == 0:
            MPI.Request.Waitall(requests)
        while how == 1 and left_open:
            left_open -= MPI.Request.Waitany(requests) >= 0
        while how == 2 and left_open:
            left_open -= len(MPI.Request.Waitsome(requests) or ())
        while how == 3 and not MPI.Request.Testall(requests):
            pass
        assert all(request == MPI.REQUEST_NULL for request in requests)
        assert came[0] == left + 0.5
        if turn % 2:
            assert (total == N * turn + sum(range(N))).all()
        else:
            assert buf[0] == turn % N


@pytest.mark.ranks(2)
def test_a_status_is_empty() -> None:
    status = MPI.Status()
    request = COMM.Ibarrier()
    while not request.Get_status(status):
        pass
    assert request != MPI.REQUEST_NULL and request.Test(status) and request == MPI.REQUEST_NULL
    assert status.Get_source() == MPI.ANY_SOURCE and status.Get_count(MPI.BYTE) == 0 and not status.Is_cancelled()
    copied = MPI.Request(request)
    assert copied == MPI.REQUEST_NULL


@pytest.mark.ranks(2)
def test_copies_of_a_handle() -> None:
    request = COMM.Ibarrier()
    copy = MPI.Request(request)
    copy.Wait()
    with pytest.raises(MPI.Exception) as caught:
        request.Wait()
    assert caught.value.Get_error_class() == MPI.ERR_REQUEST


@pytest.mark.ranks(1, 2)
def test_it_cannot_be_cancelled() -> None:
    request = COMM.Ibarrier()
    with pytest.raises(MPI.Exception) as caught:
        request.Cancel()
    assert caught.value.Get_error_class() == MPI.ERR_REQUEST
    request.Wait()


@pytest.mark.ranks(2, 3)
def test_forgotten_requests() -> None:
    """Nobody waits for them, nor keeps their buffers; those who look get what they should."""
    for turn in range(300):
        buf = np.full(200, RANK * 1000 + turn)
        COMM.Ibcast(buf, turn % N)
        freed = COMM.Iallreduce(np.full(200, 1.0), np.empty(200))
        freed.Free()
        del buf
    gc.collect()
    total = np.zeros(1)
    COMM.Iallreduce(np.ones(1), total).Wait()
    assert total[0] == N
    assert len(COMM._state.pending.owners) < 700


@pytest.mark.ranks(2, 3)
def test_a_communicator_that_is_freed_with_something_pending() -> None:
    """Freeing waits for nobody, what is pending completes, and no other communicator gets the slot before."""
    word = np.zeros(1)
    for turn in range(20):
        comm, buf = COMM.Dup(), np.full(300, RANK * 100.0 + turn)
        if RANK:
            COMM.Recv(word, RANK - 1)
        requests = [comm.Ibcast(buf, 0), comm.Ibarrier()]
        comm.Free()
        if RANK < N - 1:
            COMM.Send(word, RANK + 1)
        other = COMM.Dup()
        other.Barrier()
        MPI.Request.Waitall(requests)
        assert (buf == turn).all()
        other.Free()


@pytest.mark.ranks(2)
def test_a_communicator_that_is_forgotten_with_something_pending() -> None:
    """It goes, and what is pending completes all the same."""
    states, buffers = [], [np.full(10, RANK) for _ in range(5)]
    for buf in buffers:
        comm = COMM.Dup()
        states.append(weakref.ref(comm._state))
        comm.Ibcast(buf, 0)
        del comm
        gc.collect()
    assert [state() for state in states] == [None] * len(states)
    COMM.Barrier()
    give_up = time.monotonic() + 10
    while np.any(buffers) and time.monotonic() < give_up:
        COMM.Iprobe()
    assert not np.any(buffers)
    COMM.Barrier()


@pytest.mark.ranks(2)
def test_an_interrupt_ends_the_wait() -> None:
    comm = COMM.Dup()
    if RANK == 0:
        request, other = comm.Ibarrier(), comm.Ibarrier()
        with pytest.raises(KeyboardInterrupt):
            threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
            request.Wait()
        assert request == MPI.REQUEST_NULL
        with pytest.raises(MPI.Exception):
            other.Wait()
        with pytest.raises(MPI.Exception):
            comm.Ibarrier()
    else:
        time.sleep(0.8)
    COMM.Barrier()


@pytest.mark.ranks(2)
def test_bad_arguments_start_nothing() -> None:
    for call in (
        lambda: COMM.Ibcast(np.zeros(1), 2),
        lambda: COMM.Iallreduce(np.zeros(1), np.zeros(2)),
        lambda: COMM.Iallreduce(np.zeros(1), np.zeros(1), MPI.OP_NULL),
        lambda: COMM.Iallgather(np.zeros(1), np.zeros(1)),
    ):
        with pytest.raises((MPI.Exception, ValueError)):
            call()
    COMM.Ibarrier().Wait()
    with pytest.raises(MPI.Exception) as caught:
        MPI.COMM_NULL.Ibarrier()
    assert caught.value.Get_error_class() == MPI.ERR_COMM


def test_alone() -> None:
    got = np.zeros(2)
    MPI.COMM_SELF.Iallreduce(np.arange(2.0), got).Wait()
    MPI.COMM_SELF.Ibarrier().Wait()
    assert (got == np.arange(2.0)).all()


@pytest.mark.ranks(2, 3, topology="machine")  # the function that is replaced makes the requests of lines
def test_a_handler_that_raises_behind_the_start_frees_no_buffer(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a collective writes lives until it is complete, though the call that started it never returned a request."""

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    column = MPI.DOUBLE.Create_vector(100, 1, 2).Commit()
    array = np.full(200, 1.0 + RANK)
    alive = weakref.ref(array)
    if RANK == 0:
        for other in range(1, N):
            assert COMM.recv(source=other), "the array was freed under the collective"
        COMM.Ibcast([array, 1, column], 0).Wait()
    else:
        monkeypatch.setattr(collective_requests, "request", interrupt)
        with pytest.raises(KeyboardInterrupt):
            COMM.Ibcast([array, 1, column], 0)
        del array
        gc.collect()
        COMM.send(alive() is not None, 0)
    COMM.Barrier()

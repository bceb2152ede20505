"""Partitioned messages: parts in any order and from any thread, cut otherwise by the receiver, announced late, too long, and misused."""

from __future__ import annotations

import gc
import random
import subprocess
import sys
import threading
import time
from typing import Any

import numpy as np
import pytest

from ncclx_mpi import MPI

TURNS = 3


def pattern(rank: int, turn: int, length: int) -> np.ndarray:
    return np.arange(length) * 1.0 + 1000 * rank + 100_000 * turn


@pytest.mark.ranks(1, 2, 3, 5)
@pytest.mark.parametrize(("sent", "received"), [(1, 1), (4, 4), (6, 4), (4, 6), (1, 12), (12, 1)])
@pytest.mark.parametrize("length", [0, 12, 24_000])
def test_a_ring(comm: Any, sent: int, received: int, length: int) -> None:
    """Parts are ready in another order in each turn; what has arrived is there to be read."""
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    mine, its = np.zeros(length), np.zeros(length)
    send, recv = comm.Psend_init(mine, sent, right, 7), comm.Precv_init(its, received, left, 7)
    size = length // received
    for turn in range(TURNS):
        mine[:], its[:] = pattern(comm.rank, turn, length), -1
        wanted = pattern(left, turn, length)
        MPI.Prequest.Startall([recv, send])
        order = list(range(sent))
        random.Random(comm.rank + turn).shuffle(order)
        for part in order:
            send.Pready(part)
        for part in range(received):
            while not recv.Parrived(part):
                pass
            assert (its[part * size : (part + 1) * size] == wanted[part * size : (part + 1) * size]).all()
        status = MPI.Status()
        recv.Wait(status)
        send.Wait()
        assert (status.source, status.tag, status.Get_count(MPI.DOUBLE)) == (left, 7, length)
        assert (its == wanted).all() and recv.Parrived(0)
    send.Free()
    recv.Free()
    assert send == recv == MPI.REQUEST_NULL


@pytest.mark.ranks(2)
def test_a_part_that_is_not_ready_has_not_arrived(comm: Any) -> None:
    data = np.full(30, comm.rank + 1.0)
    if comm.rank == 0:
        send = comm.Psend_init(data, 3, 1, 0)
        send.Start()
        send.Pready_list([2, 0])
        comm.Barrier()
        comm.Barrier()
        assert not send.Test()
        send.Pready_range(1, 1)
        send.Wait()
    else:
        recv = comm.Precv_init(data, 3, 0, 0)
        recv.Start()
        comm.Barrier()
        while not (recv.Parrived(0) and recv.Parrived(2)):
            pass
        assert not recv.Parrived(1) and not recv.Test()
        assert data.tolist() == [1.0] * 10 + [2.0] * 10 + [1.0] * 10
        comm.Barrier()
        recv.Wait()
        assert (data == 1).all()


@pytest.mark.ranks(2)
def test_threads_bring_parts_at_once(comm: Any) -> None:
    """And the main thread waits for all of them."""
    threads, each, length = 4, 25, 1000
    data = np.zeros(threads * each * length)
    peer = 1 - comm.rank
    if comm.rank == 0:
        send = comm.Psend_init(data, threads * each, peer, 3)

        def bring(thread: int, turn: int) -> None:
            for part in range(thread, threads * each, threads):
                data[part * length : (part + 1) * length] = part + turn
                send.Pready(part)

        for turn in range(TURNS):
            send.Start()
            workers = [threading.Thread(target=bring, args=(thread, turn)) for thread in range(threads)]
            for worker in workers:
                worker.start()
            send.Wait()
            for worker in workers:
                worker.join()
    else:
        recv = comm.Precv_init(data, threads, peer, 3)
        for turn in range(TURNS):
            recv.Start()
            recv.Wait()
            assert (data.reshape(-1, length) == np.arange(threads * each)[:, None] + turn).all()


@pytest.mark.ranks(2, 3)
def test_requests_meet_in_the_order_in_which_they_are_made(comm: Any) -> None:
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    outgoing = [np.full(4, 10.0 * comm.rank + k) for k in range(5)]
    incoming = [np.zeros(4) for _ in range(5)]
    tags = [1, 2, 1, 1, 2]
    sends = [comm.Psend_init(data, 2, right, tag) for data, tag in zip(outgoing, tags, strict=True)]
    receives = [comm.Precv_init(data, 4, left, tag) for data, tag in zip(incoming, tags, strict=True)]
    MPI.Prequest.Startall(receives)
    for send in reversed(sends):
        send.Start()
        send.Pready_range(0, 1)
    MPI.Request.Waitall(sends + receives)
    assert [data[0] for data in incoming] == [10 * left + k for k in range(5)]


@pytest.mark.ranks(2)
def test_a_receiver_that_is_elsewhere_takes_what_was_announced_late(comm: Any) -> None:
    """It was started before the sender had made its side, and asks nothing: the sender must not wait for that."""
    data = np.full(600_000, comm.rank + 1.0)
    if comm.rank == 0:
        comm.Barrier()
        time.sleep(0.05)
        send = comm.Psend_init(data, 2, 1, 0)
        send.Start()
        send.Pready_range(0, 1)
        send.Wait()
        comm.Barrier()
    else:
        recv = comm.Precv_init(data, 2, 0, 0)
        recv.Start()
        comm.Barrier()
        comm.Barrier()
        recv.Wait()
        assert (data == 1).all()


@pytest.mark.ranks(2)
def test_scattered_elements(comm: Any) -> None:
    """Columns, of which a part is some."""
    column = MPI.DOUBLE.Create_vector(6, 1, 8).Create_resized(0, 8).Commit()
    table = np.arange(48.0).reshape(6, 8) * (1 - comm.rank)
    if comm.rank == 0:
        send = comm.Psend_init([table, 2, column], 3, 1, 0)
        send.Start()
        send.Pready_list([1, 2, 0])
        send.Wait()
    else:
        recv = comm.Precv_init([table, 3, column], 2, 0, 0)
        recv.Start()
        while not recv.Parrived(1):
            pass
        recv.Wait()
        assert (table[:, :6] == np.arange(48.0).reshape(6, 8)[:, :6]).all() and not table[:, 6:].any()


@pytest.mark.ranks(2)
def test_threads_that_ask_at_once_find_all_unpacked(comm: Any) -> None:
    column = MPI.DOUBLE.Create_vector(20_000, 1, 2).Commit()
    table = np.zeros(40_000)
    if comm.rank == 0:
        send = comm.Psend_init([table, 1, column], 1, 1, 0)
        for turn in range(20):
            table[:] = turn + 1
            send.Start()
            send.Pready(0)
            send.Wait()
            comm.Barrier()
        return
    recv, wrong = comm.Precv_init([table, 1, column], 1, 0, 0), []

    def ask(turn: int) -> None:
        while not recv.Parrived(0):
            pass
        wrong.extend(table[::2][table[::2] != turn + 1])

    for turn in range(20):
        recv.Start()
        threads = [threading.Thread(target=ask, args=(turn,)) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        recv.Wait()
        assert not wrong
        comm.Barrier()


@pytest.mark.ranks(2)
def test_more_than_there_is_room_for(comm: Any) -> None:
    if comm.rank == 0:
        send = comm.Psend_init(np.ones(40), 4, 1, 0)
        send.Start()
        send.Pready_range(0, 3)
        send.Wait()
    else:
        room = np.zeros(40)
        recv = comm.Precv_init(room[:25], 5, 0, 0)
        recv.Start()
        with pytest.raises(MPI.Exception, match="partition 2 of 4") as caught:
            recv.Wait()
        assert caught.value.Get_error_class() == MPI.ERR_TRUNCATE
        assert room.tolist() == [1.0] * 25 + [0.0] * 15
    comm.Barrier()


@pytest.mark.ranks(1)
def test_bad_calls(comm: Any) -> None:
    data = np.zeros(6)
    send, recv = comm.Psend_init(data, 2, 0, 0), comm.Precv_init(np.zeros(6), 2, 0, 0)
    bad = [
        (MPI.ERR_REQUEST, lambda: send.Pready(0)),
        (MPI.ERR_REQUEST, lambda: recv.Pready(0)),
        (MPI.ERR_REQUEST, lambda: send.Parrived(0)),
        (MPI.ERR_REQUEST, lambda: comm.Barrier_init().Pready(0)),
        (MPI.ERR_REQUEST, lambda: MPI.Prequest().Parrived(0)),
        (MPI.ERR_ARG, lambda: recv.Parrived(2)),
        (MPI.ERR_ARG, lambda: comm.Psend_init(data, 0, 0, 0)),
        (MPI.ERR_RANK, lambda: comm.Psend_init(data, 2, 1, 0)),
        (MPI.ERR_TAG, lambda: comm.Psend_init(data, 2, 0, -5)),
        (MPI.ERR_RANK, lambda: comm.Precv_init(data, 2, tag=0)),
        (MPI.ERR_TAG, lambda: comm.Precv_init(data, 2, 0)),
    ]
    for error_class, call in bad:
        with pytest.raises(MPI.Exception) as caught:
            call()
        assert caught.value.Get_error_class() == error_class
    with pytest.raises(ValueError, match="not a multiple"):
        comm.Psend_init(data, 4, 0, 0)
    MPI.Prequest.Startall([send, recv])
    send.Pready(0)
    for error_class, call in [
        (MPI.ERR_ARG, lambda: send.Pready(0)),
        (MPI.ERR_ARG, lambda: send.Pready(-1)),
        (MPI.ERR_REQUEST, send.Start),
        (MPI.ERR_REQUEST, recv.Cancel),
    ]:
        with pytest.raises(MPI.Exception) as caught:
            call()
        assert caught.value.Get_error_class() == error_class
    send.Pready(1)
    MPI.Request.Waitall([send, recv])


@pytest.mark.ranks(1)
def test_with_nobody(comm: Any) -> None:
    send, recv = comm.Psend_init(np.ones(2), 2, MPI.PROC_NULL), comm.Precv_init(np.ones(2), 2, MPI.PROC_NULL, 0)
    MPI.Prequest.Startall([send, recv])
    send.Pready_range(0, 1)
    assert recv.Parrived(1)
    MPI.Request.Waitall([send, recv])


@pytest.mark.ranks(2)
def test_requests_that_are_let_go(comm: Any) -> None:
    """What is under way goes on, in memory that lives as long as it has to."""
    for turn in range(20):
        data = np.full(100_000, turn + 1.0)
        if comm.rank == 0:
            send = comm.Psend_init(data, 4, 1, turn)
            send.Start()
            send.Pready_range(0, 3)
            if turn % 2:
                send.Free()
            del send, data
        else:
            recv = comm.Precv_init(data, 2, 0, turn)
            if turn % 4 < 2:
                recv.Start()
            if turn % 2:
                recv.Free()
            del recv, data
        gc.collect()
    comm.Barrier()


DIES = """
import os, signal
import numpy as np
from ncclx_mpi import MPI
comm = MPI.COMM_WORLD
if comm.rank == 1:
    send = comm.Psend_init(np.zeros(4), 2, 0, 0)
    send.Start()
    send.Pready(0)
    comm.recv(source=0)  # it is in no call that needs this rank, but in the one below
    os.kill(os.getpid(), signal.SIGKILL)
recv = comm.Precv_init(np.zeros(4), 2, 1, 0)
recv.Start()
comm.send(None, 1)
try:
    recv.Wait()
except MPI.Exception as error:
    print(error.Get_error_class() == MPI.ERR_PROC_FAILED, error, flush=True)
"""


def test_the_death_of_the_sender_is_told() -> None:
    command = [sys.executable, "-m", "ncclx_mpi", "run", "-n", "2", "-c", DIES]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.stdout.startswith("True") and "partitioned receive from rank 1" in done.stdout, done.stdout + done.stderr

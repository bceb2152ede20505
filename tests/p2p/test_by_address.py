"""A transport that is not compiled into the engine is called by address: here the one that is, as if it were another one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

from ncclx_mpi import MPI, runtime
from ncclx_mpi.p2p.layout import PEER


@contextmanager
def called_by_address() -> Iterator[None]:
    """Let this rank send and poll by the addresses of the transport's functions."""
    engine = runtime.engine()
    table = np.asarray(engine._peers).reshape(-1, PEER.total // 8)
    columns = [PEER.send // 8, PEER.credit // 8]
    assert not table[:, columns].any()
    functions = engine.transport.functions
    table[:, PEER.send // 8] = functions.send
    table[:, PEER.credit // 8] = functions.credit
    take_in = engine.word("take_in")
    engine.set_word("take_in", functions.poll)
    try:
        yield
    finally:
        engine.set_word("take_in", take_in)
        table[:, columns] = 0


@pytest.mark.ranks(1, 2, 3, topology="machine")  # a peer of another node is called by address as it is
def test_messages_of_all_sizes_at_once(comm: Any) -> None:
    with called_by_address():
        for nbytes in (0, 1, 33, 5_000, 100_000):
            rooms = [np.zeros(nbytes, np.uint8) for _ in range(comm.size)]
            requests = [comm.Irecv(room, source, 3) for source, room in enumerate(rooms)]
            requests += [comm.Isend(np.full(nbytes, comm.rank + 1, np.uint8), dest, 3) for dest in range(comm.size)]
            MPI.Request.Waitall(requests)
            for source, room in enumerate(rooms):
                assert (room == source + 1).all()
            comm.Barrier()
            assert comm.sendrecv({"of": comm.rank}, (comm.rank + 1) % comm.size, source=(comm.rank - 1) % comm.size) == {
                "of": (comm.rank - 1) % comm.size
            }


@pytest.mark.ranks(2)
def test_what_finds_no_room_goes_out_later_and_in_order(comm: Any) -> None:
    count = 3_000
    with called_by_address():
        if comm.rank == 0:
            numbers = np.arange(count)
            MPI.Request.Waitall([comm.Isend(numbers[i : i + 1], 1, 4) for i in range(count)])
        else:
            comm.Probe(0, 4)
            room = np.zeros(1, np.int64)
            for number in range(count):
                comm.Recv(room, 0, 4)
                assert room[0] == number
        comm.Barrier()


@pytest.mark.ranks(2)
def test_a_transport_that_tells_of_no_credit_gets_no_more_than_there_is(comm: Any) -> None:
    """Its credit would come as a message; until then, what is sent waits for its receive."""
    with called_by_address():
        data = np.zeros(10_000, np.uint8)
        if comm.rank == 0:
            engine, requests = runtime.engine(), []
            for _ in range(600):
                requests.append(comm.Isend(data, 1, 5))
                while engine.word("queued"):
                    engine.progress()
            assert engine.word("announced") >= 600 - (4 << 20) // data.size
            comm.Barrier()
            MPI.Request.Waitall(requests)
        else:
            comm.Barrier()
            for _ in range(600):
                comm.Recv(data, 0, 5)
        comm.Barrier()

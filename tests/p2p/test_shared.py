"""Bulk messages between private buffers: copied by both ranks, or through a pipe, or first the one and then the other."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ncclx_mpi import MPI, runtime
from tests.secret import secret_memory
from transports.shm.shared import AUTO, DIRECT, PIPED

CONTEXT = 1 << 40
WAYS = pytest.mark.parametrize("way", [AUTO, DIRECT, PIPED])


def pattern(nbytes: int, rank: int) -> Any:
    return (np.arange(nbytes) * 7 + rank * 31 + nbytes).astype(np.uint8)


def choose(way: int) -> Any:
    engine = runtime.engine()
    engine.transport.set_word("copies", way)
    return engine


@WAYS
@pytest.mark.ranks(1, 2, 3, 5)
def test_all_to_all_at_once(comm: Any, way: int) -> None:
    """More transfers at a time than there are pipes, of odd sizes at odd addresses."""
    choose(way)
    for nbytes in (16_321, 20_001, 65_537, 131_073, 700_003):
        sent = [pattern(nbytes, comm.rank * 100 + other) for other in range(comm.size)]
        rooms = [np.zeros(nbytes + 3, np.uint8) for _ in range(comm.size)]
        requests = [comm.Irecv(rooms[other][3:], other, 4) for other in range(comm.size)]
        requests += [comm.Isend(sent[other], other, 4) for other in range(comm.size)]
        MPI.Request.Waitall(requests)
        for other, room in enumerate(rooms):
            assert not room[:3].any()
            assert (room[3:] == pattern(nbytes, other * 100 + comm.rank)).all()


@WAYS
@pytest.mark.ranks(2)
def test_truncated_message_fills_the_buffer_and_no_more(comm: Any, way: int) -> None:
    choose(way)
    for room_bytes in (0, 1, 50_000):
        if comm.rank == 0:
            comm.Send(pattern(300_000, 0), 1)
        else:
            memory = np.zeros(room_bytes + 64, np.uint8)
            with pytest.raises(MPI.Exception) as caught:
                comm.Recv(memory[:room_bytes], 0)
            assert caught.value.Get_error_class() == MPI.ERR_TRUNCATE
            assert (memory[:room_bytes] == pattern(300_000, 0)[:room_bytes]).all()
            assert not memory[room_bytes:].any()


@pytest.mark.ranks(2)
def test_receiver_needs_no_help_of_a_sender_that_computes(comm: Any, tmp_path: Path) -> None:
    choose(DIRECT)
    comm.sendrecv(0, 1 - comm.rank, source=1 - comm.rank)
    data = pattern(8_000_000, 0)
    if comm.rank == 0:
        request = comm.Isend(data, 1, 5)
        comm.send("started", 1, 6)
        while not (tmp_path / "received").exists():
            time.sleep(0.01)
        request.Wait()
    else:
        comm.recv(source=0, tag=6)
        room = np.zeros_like(data)
        comm.Recv(room, 0, 5)
        assert (room == data).all()
        (tmp_path / "received").touch()


@WAYS
@pytest.mark.ranks(2, timeout=60)
def test_withdrawn_receive_is_written_no_more(comm: Any, way: int) -> None:
    """The receive is given up in the middle of its transfer; sender and communicator go on."""
    engine = choose(way)
    native = engine.new_comm(CONTEXT, range(2))
    nbytes, withdrawn = 32 << 20, 0
    data = pattern(nbytes, 0)
    for _ in range(5):
        if comm.rank == 0:
            request = engine.start_send(native, data.ctypes.data, nbytes, 1, 1)
            engine.wait(request)
            engine.free(request)
        else:
            room = np.zeros(nbytes, np.uint8)
            request = engine.start_recv(native, room.ctypes.data, nbytes, 0, 1)
            begun = time.monotonic()
            while not (room[1] or room[-2]) and time.monotonic() - begun < 20:
                engine.progress()
            engine.withdraw(request)
            after = room.copy()
            while engine.transport.is_busy:
                engine.progress()
            assert (room == after).all()
            withdrawn += 0 < np.count_nonzero(room == data) < nbytes
        comm.Barrier()
        answer = comm.sendrecv(pattern(100_000, comm.rank), 1 - comm.rank, source=1 - comm.rank)
        assert (answer == pattern(100_000, 1 - comm.rank)).all()
    assert withdrawn or comm.rank == 0, "always too late: where this rank has no core for a while, everything has come"


@pytest.mark.ranks(2)
@pytest.mark.parametrize("sides", [(0,), (1,), (0, 1)])
def test_what_the_kernel_refuses_goes_through_the_pipe(comm: Any, sides: tuple[int, ...]) -> None:
    choose(DIRECT)
    nbytes = 1 << 20
    data = secret_memory(nbytes) if comm.rank in sides else np.zeros(nbytes, np.uint8)
    for tag in range(3):
        if comm.rank == 0:
            data[:] = pattern(nbytes, tag)
            comm.Send(data, 1, tag)
        else:
            data[:] = 0
            comm.Recv(data, 0, tag)
            assert (data == pattern(nbytes, tag)).all()

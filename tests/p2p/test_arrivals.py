"""What any transport may hand up, handed up by the test: payloads in two pieces, credit, and messages that are for nobody."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from ncclx_mpi.p2p.arrivals import arrive
from ncclx_mpi.p2p.engine import Engine, NativeComm
from ncclx_mpi.p2p.layout import ERR_TRUNCATE, PEER
from numba_kernels.jit import entry
from transports.messages import CREDIT, EAGER
from transports.shm.arena import Arena
from transports.shm.transport import SharedMemory

PAYLOAD = np.arange(100, dtype=np.uint8)


@pytest.fixture(scope="module")
def comm() -> Iterator[NativeComm]:
    arena = Arena.create(1)
    arena.join(0)
    yield Engine(arena, [SharedMemory(arena, 0)], 0, timeout=20).new_comm(4, [0])


def hand_up(comm: NativeComm, tag: int, cut: int, nbytes: int = PAYLOAD.size) -> None:
    """Let the first `nbytes` of the payload come from rank 0 in two pieces, the first of `cut` bytes."""
    rest = PAYLOAD[cut:].copy()
    taken = entry(arrive)(
        comm.engine.address, comm.engine.word("peers"), EAGER, 4, tag, nbytes, PAYLOAD.ctypes.data, cut, rest.ctypes.data
    )
    assert taken == 1


@pytest.mark.parametrize("is_posted", [False, True])
@pytest.mark.parametrize("cut", [0, 1, 50, 99, 100])
@pytest.mark.parametrize("room", [0, 1, 50, 60, 100, 120])
def test_a_payload_in_two_pieces_is_joined(comm: NativeComm, is_posted: bool, cut: int, room: int) -> None:
    engine, buffer = comm.engine, np.full(room + 8, 255, np.uint8)
    if not is_posted:
        hand_up(comm, 3, cut)
    request = engine.start_recv(comm, buffer.ctypes.data, room, 0, 3)
    if is_posted:
        hand_up(comm, 3, cut)
    assert engine.done(request)
    result, count = engine.result(request), min(room, 100)
    engine.free(request)
    assert (result.nbytes, result.tag, result.error) == (100, 3, ERR_TRUNCATE if room < 100 else 0)
    assert (buffer[:count] == PAYLOAD[:count]).all() and (buffer[count:] == 255).all()
    assert engine.word("unexpected_bytes") == 0


def test_an_empty_payload(comm: NativeComm) -> None:
    hand_up(comm, 5, 0, 0)
    request = comm.engine.start_recv(comm, 0, 0, 0, 5)
    assert comm.engine.done(request)
    comm.engine.free(request)


def test_credit_may_come_as_a_message(comm: NativeComm) -> None:
    engine = comm.engine
    peer = engine.word("peers")
    words = np.ctypeslib.as_array((np.ctypeslib.ctypes.c_int64 * (PEER.total // 8)).from_address(peer))
    assert entry(arrive)(engine.address, peer, CREDIT, 0, 0, 0, 12_345, 0, 0) == 1
    assert words[PEER.seen_released // 8] == 12_345
    words[PEER.seen_released // 8] = 0

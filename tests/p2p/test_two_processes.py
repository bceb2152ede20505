"""Two processes that share nothing but UCX, or sockets: they talk and leave, or one of them is killed."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

from ncclx_mpi import errors
from ncclx_mpi.p2p.engine import Engine, NativeComm
from ncclx_mpi.p2p.layout import SYNCHRONOUS
from ncclx_mpi.p2p.network_progress import NetworkProgress
from ncclx_mpi.p2p.remote_memory import Opened
from transports.base import Transport
from transports.shm.arena import Arena
from transports.shm.transport import SharedMemory
from transports.tcp.transport import Tcp
from transports.ucx import library
from transports.ucx.layout import LARGEST_PIECE
from transports.ucx.transport import Ucx

LARGE = 40_000_000


class Pair(NamedTuple):
    """Rank 0, in this process, and the process that is rank 1."""

    comm: NativeComm
    other: subprocess.Popen[str]

    def receive(self, nbytes: int, tag: int) -> np.ndarray:
        room = np.zeros(nbytes, np.uint8)
        self.comm.engine.wait(self.comm.engine.start_recv(self.comm, room.ctypes.data, room.size, 1, tag))
        return room

    def says(self) -> str:
        """The next line that rank 1 writes, while this rank makes progress for it."""
        assert self.other.stdout is not None
        return self.other.stdout.readline().strip()


@pytest.fixture(params=["ucx", "tcp"])
def network(request: pytest.FixtureRequest) -> str:
    """By what the two reach each other."""
    name: str = request.param
    return name


def made(name: str, arena: Arena, monkeypatch: pytest.MonkeyPatch) -> Transport:
    if name == "tcp":
        return Tcp(0, 2, {1}, arena.death_notice)
    try:
        found = library.find()
    except library.LibraryError as error:
        pytest.skip(str(error))
    if found.version[:2] == (1, 20):
        pytest.skip("UCX 1.20 finds no way to this host by the loopback interface")
    monkeypatch.setenv("UCX_NET_DEVICES", "lo")
    return Ucx(found, 0, 2, {1}, arena.death_notice, windows="direct")


@pytest.fixture
def pair(request: pytest.FixtureRequest, network: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Pair]:
    arena = Arena.create(1, [0], 2)
    arena.join(0)
    far = made(network, arena, monkeypatch)
    program = [sys.executable, str(Path(__file__).with_name("far_rank.py")), network, request.param]
    other = subprocess.Popen(program, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[2])
    assert other.stdin is not None and other.stdout is not None
    try:
        print(far.endpoint().hex(), file=other.stdin, flush=True)
        endpoints = [b"", bytes.fromhex(other.stdout.readline())]
        engine = Engine(arena, [SharedMemory(arena, 0), far], 0, timeout=60, endpoints={network: endpoints})
        yield Pair(engine.new_comm(4, [0, 1]), other)
    finally:
        other.kill()
        other.wait()
        for pipe in (other.stdin, other.stdout):
            pipe.close()
        far.close()
        arena.close()


def pattern(nbytes: int, number: int = 0) -> np.ndarray:
    return ((np.arange(nbytes) * 7 + number) % 251).astype(np.uint8)


@pytest.mark.parametrize("pair", ["talk"], indirect=True)
def test_who_leaves_in_order_is_not_dead(pair: Pair) -> None:
    engine, data = pair.comm.engine, pattern(LARGE)
    for number in range(600):
        nbytes = 3_000_000 if number % 100 == 99 else number
        assert (pair.receive(nbytes, 1) == pattern(nbytes, number)).all()
    engine.wait(engine.start_send(pair.comm, data.ctypes.data, data.size, 1, 2))
    while pair.other.poll() is None:
        engine.progress()
    assert (pair.says(), pair.other.returncode) == ("left", 0)
    for _ in range(10_000):
        engine.progress()
    assert not engine.arena.has_dead_ranks and not engine.transports[1].is_busy


@pytest.mark.parametrize("pair", ["be_killed"], indirect=True)
def test_a_thread_takes_in_what_comes_while_the_rank_does_something_else(pair: Pair) -> None:
    engine, room = pair.comm.engine, np.zeros(LARGE, np.uint8)
    assert pair.says() == "sending"
    request = engine.start_recv(pair.comm, room.ctypes.data, room.size, 1, 2)
    thread = NetworkProgress(engine)
    try:
        deadline = time.monotonic() + 60
        while not engine.done(request) and time.monotonic() < deadline:
            time.sleep(0.01)
        assert (room == pattern(LARGE)).all()
        begun, before, used = time.monotonic(), switches(), time.process_time()
        time.sleep(1)
        took = time.monotonic() - begun
        assert switches() - before < 60 * took and time.process_time() - used < took / 4
    finally:
        thread.stop()


def switches() -> int:
    """How often the thread that looks after the network has slept."""
    (thread,) = (each for each in threading.enumerate() if each.name == "ncclx_mpi-network")
    status = Path(f"/proc/self/task/{thread.native_id}/status").read_text()
    return int(status.split("nonvoluntary_ctxt_switches")[0].rsplit("voluntary_ctxt_switches:", 1)[1])


@pytest.mark.parametrize("pair", ["be_killed"], indirect=True)
@pytest.mark.parametrize("is_under_way", [False, True])
def test_who_waits_for_one_that_is_killed_learns_of_its_death(pair: Pair, is_under_way: bool) -> None:
    engine, room = pair.comm.engine, np.zeros(LARGE, np.uint8)
    assert pair.says() == "sending" and (pair.receive(10, 1) == pattern(10)).all()
    if is_under_way:
        request = engine.start_recv(pair.comm, room.ctypes.data, room.size, 1, 2)
        while not room.any():
            engine.progress()
        pair.other.kill()
    else:
        pair.other.kill()
        request = engine.start_recv(pair.comm, room.ctypes.data, room.size, 1, 9)
    with pytest.raises(errors.Exception, match="rank 1 died") as raised:
        engine.wait(request)
    assert raised.value.Get_error_class() == errors.ERR_PROC_FAILED
    data = pattern(LARGE)
    assert not engine.done(engine.start_send(pair.comm, data.ctypes.data, data.size, 1, 5))
    assert not engine.transports[1].is_busy


@pytest.mark.parametrize("pair", ["be_killed"], indirect=True)
def test_nothing_comes_to_a_buffer_that_was_given_up(pair: Pair) -> None:
    engine, room = pair.comm.engine, np.zeros(LARGE, np.uint8)
    request = engine.start_recv(pair.comm, room.ctypes.data, room.size, 1, 2)
    while not room[1::LARGEST_PIECE].any():
        engine.progress()
    engine.withdraw(request)
    before = room.copy()
    engine.wait(engine.start_send(pair.comm, before.ctypes.data, 10, 1, 3, SYNCHRONOUS))  # received when the other one is sent
    assert (room == before).all() and np.count_nonzero(room) < LARGE // 2


def test_where_there_is_no_way_to_a_peer_the_error_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """UCX does without error handling in shared memory, so that it finds no transport if it may use nothing else."""
    try:
        found = library.find()
    except library.LibraryError as error:
        pytest.skip(str(error))
    monkeypatch.setenv("UCX_TLS", "sm,self")
    arena = Arena.create(1, [0], 2)
    arena.join(0)
    ends = [Ucx(found, rank, 2, {1 - rank}, arena.death_notice) for rank in range(2)]
    endpoints = {"ucx": [end.endpoint() for end in ends]}
    engine = Engine(arena, [SharedMemory(arena, 0), ends[0]], 0, timeout=60, endpoints=endpoints)
    comm, data = engine.new_comm(4, [0, 1]), pattern(LARGE)
    with pytest.raises(errors.Exception, match=rf"rank 1 died, or cannot be reached: UCX {found.name} finds no way") as raised:
        engine.wait(engine.start_send(comm, data.ctypes.data, data.size, 1, 0))
    assert raised.value.Get_error_class() == errors.ERR_PROC_FAILED
    for end in (*ends, arena):
        end.close()


def opened(pair: Pair) -> Opened:
    """The memory of rank 1, as it has exposed it."""
    said = pair.receive(1024, 1)
    address, nbytes = said[:16].view(np.int64).tolist()
    return Opened(pair.comm, 1, pair.comm.engine.transports[1], address, said[16 : 16 + nbytes].tobytes())


@pytest.mark.parametrize("network", ["ucx"], indirect=True)
@pytest.mark.parametrize("pair", ["be_accessed"], indirect=True)
def test_memory_of_another_process_is_written_and_read(pair: Pair) -> None:
    engine, memory, data, room = pair.comm.engine, opened(pair), pattern(LARGE), np.zeros(LARGE, np.uint8)
    engine.wait(memory.start_put(data.ctypes.data, data.size, 0))
    engine.wait(engine.start_send(pair.comm, data.ctypes.data, 1, 1, 2))
    assert pair.says() == f"{data[:1000].sum()} {data[-1000:].sum()}"
    engine.wait(memory.start_get(room.ctypes.data, room.size, 0))
    assert (room == data).all()
    memory.shut("the end")


@pytest.mark.parametrize("network", ["ucx"], indirect=True)
@pytest.mark.parametrize("pair", ["be_accessed"], indirect=True)
def test_a_target_that_is_killed_in_a_put_ends_it(pair: Pair) -> None:
    engine, memory, data = pair.comm.engine, opened(pair), pattern(LARGE)
    request = memory.start_put(data.ctypes.data, data.size, 0)
    pair.other.kill()
    began = time.monotonic()
    while engine.is_complete(request):  # it was faster
        request = memory.start_put(data.ctypes.data, data.size, 0)
    try:
        engine.wait(request)
        assert engine.result(request).error
    except errors.Exception as error:
        assert error.Get_error_class() == errors.ERR_PROC_FAILED
    assert engine.is_death_noticed() and time.monotonic() - began < 10
    memory.shut("the end")

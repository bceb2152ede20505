"""Rank 1 of two, in a process of its own, reached by UCX or by our sockets: a program of ``test_two_processes.py``, which holds its pipes.

It writes its endpoint, reads that of rank 0, and does what its arguments say: by what, and what.
"""

from __future__ import annotations

import sys

import numpy as np

from ncclx_mpi.p2p.engine import Engine, NativeComm
from ncclx_mpi.p2p.remote_memory import Exposed
from transports.base import Transport
from transports.shm.arena import Arena
from transports.shm.transport import SharedMemory
from transports.tcp.transport import Tcp
from transports.ucx import library
from transports.ucx.transport import Ucx

LARGE = 40_000_000


def pattern(nbytes: int, number: int = 0) -> np.ndarray:
    return ((np.arange(nbytes) * 7 + number) % 251).astype(np.uint8)


def made(name: str, arena: Arena) -> Transport:
    if name == "tcp":
        return Tcp(1, 2, {0}, arena.death_notice)
    return Ucx(library.find(), 1, 2, {0}, arena.death_notice, windows="direct")


def join(name: str) -> tuple[NativeComm, Transport]:
    arena = Arena.create(1, [1], 2)
    arena.join(0)
    far = made(name, arena)
    print(far.endpoint().hex(), flush=True)
    endpoints = [bytes.fromhex(sys.stdin.readline()), b""]
    engine = Engine(arena, [SharedMemory(arena, 1), far], 1, timeout=60, endpoints={name: endpoints})
    return engine.new_comm(4, [0, 1]), far


def send(comm: NativeComm, data: np.ndarray, tag: int) -> int:
    return comm.engine.start_send(comm, data.ctypes.data, data.size, 0, tag)


def talk(comm: NativeComm, far: Transport) -> None:
    """Send small and large messages in turn, receive an answer, and leave in order."""
    data = [pattern(3_000_000 if number % 100 == 99 else number, number) for number in range(600)]
    sent = [send(comm, each, 1) for each in data]
    comm.engine.wait_all(sent, "the messages")
    room = np.zeros(LARGE, np.uint8)
    comm.engine.wait(comm.engine.start_recv(comm, room.ctypes.data, room.size, 0, 2))
    assert (room == pattern(LARGE)).all()
    comm.engine.drain()
    comm.engine.say_goodbye()
    comm.engine.drain(seconds=1.0)
    far.close()
    print("left", flush=True)


def be_killed(comm: NativeComm, far: Transport) -> None:
    """Send a large message until the process is ended from outside."""
    data = pattern(LARGE)
    send(comm, pattern(10), 1)
    request = send(comm, data, 2)
    print("sending", flush=True)
    comm.engine.wait(request)
    comm.engine.wait(comm.engine.start_recv(comm, data.ctypes.data, data.size, 0, 3))


def be_accessed(comm: NativeComm, far: Transport) -> None:
    """Let rank 0 reach memory by the network, and say what it holds for each message that asks."""
    memory, told, asked = np.zeros(LARGE, np.uint8), np.zeros(1024, np.uint8), np.zeros(1, np.uint8)
    exposed = Exposed(comm.engine, far, memory.ctypes.data, memory.nbytes)
    told[:16].view(np.int64)[:] = memory.ctypes.data, len(exposed.key)
    told[16:][: len(exposed.key)] = np.frombuffer(exposed.key, np.uint8)
    comm.engine.wait(send(comm, told, 1))
    while True:
        comm.engine.wait(comm.engine.start_recv(comm, asked.ctypes.data, asked.size, 0, 2))
        print(memory[:1000].sum(), memory[-1000:].sum(), flush=True)


if __name__ == "__main__":
    {"talk": talk, "be_killed": be_killed, "be_accessed": be_accessed}[sys.argv[2]](*join(sys.argv[1]))

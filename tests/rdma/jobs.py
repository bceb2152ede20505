"""Runs jobs of 2 and 4 ranks as two nodes, and says what the RDMA device has counted: ``python jobs.py COUNTERS``, a folder.

What ranks print goes through; a line ``job NRANKS statuses ... counted NAME=NUMBER ...`` follows. At the end two processes meet without
a launcher, so that nobody but UCX can say that one was killed.
"""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from ncclx_mpi import errors
from ncclx_mpi.p2p.engine import Engine, NativeComm
from ncclx_mpi.p2p.remote_memory import Opened
from transports.shm.arena import Arena
from transports.shm.transport import SharedMemory
from transports.ucx import library
from transports.ucx.transport import Ucx

HERE = Path(__file__).resolve().parent
HOME = HERE.parents[1]
_COUNTED = ("sent_pkts", "rcvd_pkts", "rdma_sends", "rdma_recvs")
_SECONDS = 600


def counters(folder: Path) -> dict[str, int]:
    """What the device has counted so far; nothing where there is no such folder."""
    return {name: int((folder / name).read_text()) for name in _COUNTED} if folder.is_dir() else dict.fromkeys(_COUNTED, 0)


def run(ranks_a_node: int, folder: Path, *words: str, lanes: str = "") -> None:
    """One job, to its end."""
    before, begun = counters(folder), time.monotonic()
    env = {**os.environ, "NCCLX_MPI_TOKEN": secrets.token_hex(16), "PYTHONPATH": str(HOME), "NCCLX_MPI_LANES": lanes}
    program = [
        sys.executable,
        "-m",
        "ncclx_mpi",
        "run",
        "--nnodes",
        "2",
        "--rendezvous",
        "127.0.0.1:29511",
        "-n",
        str(ranks_a_node),
    ]
    nodes = [subprocess.Popen([*program, "--node-rank", str(node), str(HERE / "ranks.py"), *words], env=env) for node in range(2)]
    try:
        statuses = [node.wait(_SECONDS) for node in nodes]
    finally:
        for node in nodes:
            node.kill()
            node.wait()
    after = counters(folder)
    counted = " ".join(f"{name}={after[name] - before[name]}" for name in _COUNTED)
    print(f"job {2 * ranks_a_node} statuses {statuses} counted {counted} in {time.monotonic() - begun:.0f} s", flush=True)


@contextmanager
def peer(what: str) -> Iterator[tuple[NativeComm, subprocess.Popen[str]]]:
    """This process as rank 0 of two, and the one that is rank 1."""
    arena = Arena.create(1, [0], 2)
    arena.join(0)
    ucx = Ucx(library.find(), 0, 2, {1}, arena.death_notice, windows="direct")
    program = [sys.executable, str(HOME / "tests" / "p2p" / "far_rank.py"), "ucx", what]
    pipe, env = subprocess.PIPE, {**os.environ, "PYTHONPATH": str(HOME)}
    with subprocess.Popen(program, stdin=pipe, stdout=pipe, text=True, env=env) as other:
        assert other.stdin is not None and other.stdout is not None
        print(ucx.endpoint().hex(), file=other.stdin, flush=True)
        endpoints = [b"", bytes.fromhex(other.stdout.readline())]
        engine = Engine(arena, [SharedMemory(arena, 0), ucx], 0, timeout=600, endpoints={"ucx": endpoints})
        yield engine.new_comm(4, [0, 1]), other
        other.kill()
        other.wait()


def notice(what: str, comm: NativeComm, request: int) -> None:
    """Wait for a request to a peer that was killed now."""
    engine, begun = comm.engine, time.monotonic()
    try:
        engine.wait(request)
        is_noticed = bool(engine.result(request).error) and engine.is_death_noticed()
    except errors.Exception as error:
        is_noticed = error.Get_error_class() == errors.ERR_PROC_FAILED
    print(f"{what}: {is_noticed} after {time.monotonic() - begun:.1f} s", flush=True)


def lose_a_peer() -> None:
    """A process is killed in the middle of what it sends."""
    with peer("be_killed") as (comm, other):
        engine, room, small = comm.engine, np.zeros(40_000_000, np.uint8), np.zeros(10, np.uint8)
        engine.wait(engine.start_recv(comm, small.ctypes.data, small.size, 1, 1))
        request = engine.start_recv(comm, room.ctypes.data, room.size, 1, 2)
        while not room.any():
            engine.progress()
        other.kill()
        notice("a killed peer", comm, request)


def lose_a_target() -> None:
    """A process is killed in the middle of a put to its memory."""
    with peer("be_accessed") as (comm, other):
        engine, said, data = comm.engine, np.zeros(1024, np.uint8), np.ones(40_000_000, np.uint8)
        engine.wait(engine.start_recv(comm, said.ctypes.data, said.size, 1, 1))
        address, nbytes = said[:16].view(np.int64).tolist()
        opened = Opened(comm, 1, engine.transports[1], address, said[16 : 16 + nbytes].tobytes())
        request = opened.start_put(data.ctypes.data, data.size, 0)
        end = time.monotonic() + 0.02
        while time.monotonic() < end:
            engine.progress()
        print(f"a put is complete before its target is killed: {engine.is_complete(request)}", flush=True)
        other.kill()
        while engine.is_complete(request):
            request = opened.start_put(data.ctypes.data, data.size, 0)
        notice("a killed target", comm, request)


def main() -> None:
    """Run all of it."""
    folder = Path(sys.argv[1])
    run(1, folder, *(["stop"] if folder.is_dir() else []))
    run(2, folder, "kill")
    run(1, folder, "lanes", lanes=",".join([os.environ["UCX_NET_DEVICES"]] * 2))
    lose_a_peer()
    lose_a_target()


if __name__ == "__main__":
    main()

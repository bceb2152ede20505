"""Programs of ranks of which some die: ``ncclx run -n RANKS survivors.py CASE``. Each that lives prints a line of JSON."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from typing import Any

from ncclx_mpi import MPI
from ncclx_mpi.collectives import Agreement

comm = MPI.COMM_WORLD


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def let_die(used: Any, dying: int) -> None:
    """Kill a rank once all others are out of the calls before, which its death would end."""
    if used.rank == dying:
        for other in range(used.size):
            if other != dying:
                used.recv(source=other)
        die()
    used.send("ready", dying)


def error_class(call: Any) -> int:
    try:
        call()
    except MPI.Exception as error:
        return error.Get_error_class()
    return MPI.SUCCESS


def shrink() -> Any:
    used = comm.Dup()
    half = comm.Split(int(comm.rank > 1))
    let_die(comm, 1)
    first = error_class(used.Barrier)
    used.Revoke()
    small = used.Shrink()
    return {
        "ended": first in (MPI.ERR_PROC_FAILED, MPI.ERR_REVOKED),  # another one may have revoked it by then
        "failed": used.Get_failed().Translate_ranks(None, comm.Get_group()),
        "acknowledged": used.Ack_failed(),
        "members": small.allgather(comm.rank),
        "sum": small.allreduce(comm.rank),
        "old": error_class(used.Barrier),
        "self": MPI.COMM_SELF.allreduce(1),
        "half": half.allgather(comm.rank) if comm.rank > 1 else [0],
    }


def agree() -> Any:
    """Two ranks die after they have told one other rank their flag, or what they have; the first agreement is before that."""
    found, send, calls = [], Agreement._send, []

    def send_to_one(self: Agreement, turn: int) -> None:
        calls.append(turn)
        if comm.rank in (0, 2) and len(calls) == (4 if comm.rank == 0 else 5):
            self._dead |= set(range(comm.size)) - {comm.rank, 4 if comm.rank == 0 else 1}
            send(self, turn)
            die()
        send(self, turn)

    Agreement._send = send_to_one  # type: ignore[method-assign]
    for _ in range(6):
        found.append(comm.Agree(0b11111 & ~(1 << comm.rank)))
    return found


def unacknowledged() -> Any:
    pair = comm.Split(int(comm.rank == 1))
    let_die(comm, 1)
    first = error_class(lambda: comm.recv(source=1))
    before = error_class(lambda: pair.recv(source=1 - pair.rank))
    comm.Ack_failed()
    return [first, before, pair.allreduce(1)]


def between() -> Any:
    low = comm.rank < 2
    local = comm.Split(int(low))
    inter = local.Create_intercomm(0, comm, 2 if low else 0)
    let_die(comm, 2)
    error_class(inter.Barrier)
    return inter.Shrink().allgather(comm.rank)


def again() -> Any:
    used, members = comm, []
    while used.size > 1:
        let_die(used, used.size - 1)
        error_class(used.Barrier)
        while used.Get_failed().size == 0:
            pass
        used = used.Shrink()
        members.append(used.allgather(comm.rank))
    return members


def long() -> Any:
    if comm.rank == 2:
        die()
    error_class(comm.Barrier)
    small = comm.Shrink()
    end = time.monotonic() + 6
    while small.bcast(time.monotonic() < end, 0):
        time.sleep(0.05)
    return small.allreduce(1)


said = {"shrink": shrink, "agree": agree, "unacknowledged": unacknowledged, "between": between, "again": again, "long": long}
print(json.dumps({"rank": comm.rank, "said": said[sys.argv[1]]()}), flush=True)

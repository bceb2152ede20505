"""What is checked when a communicator is freed: that all ranks have called the same collectives on it, down to the last.

Ranks compare what they called whenever they look at each other's lines, but nobody may look in the last collectives of a communicator,
for instance where two ranks took themselves for the root of a bcast. So each rank publishes how many collectives it has called and its
past (:mod:`ncclx_mpi.collectives.shm_oneshot`) when it frees the communicator, and compares them with those of the ranks that came before.
Nobody waits; the last one sees all (but see :mod:`ncclx_mpi.collectives.shm_leaving`). Where collectives are plans, a rank looks for messages
that it has not received.
"""

from __future__ import annotations

import ctypes

from ncclx_mpi import errors
from ncclx_mpi.collectives import shm_oneshot
from ncclx_mpi.collectives.executor import left_over
from ncclx_mpi.collectives.shm_leaving import count_of, part, word_of
from ncclx_mpi.p2p.engine import NativeComm
from ncclx_mpi.p2p.layout import OPERATIONS
from transports.shm.slots import LINE, line_of


def disagreement(comm: NativeComm) -> errors.Exception | None:
    """What is to be raised by a rank that frees a communicator, after it has; None if there is nothing wrong that it can see.

    The class is ERR_OTHER, and the message names another rank, what it called last, and what this one did.
    """
    if comm.word("broken") or comm.engine.arena.dead_ranks():
        return None
    other = part(comm)
    return left_over(comm) or (None if other < 0 else _other_past(comm, other))


def _other_past(comm: NativeComm, other: int) -> errors.Exception:
    own, its = (count_of(word_of(comm, rank).value) for rank in (comm.rank, other))
    return errors.error(
        errors.ERR_OTHER,
        f"rank {comm.rank}: called {_calls(comm, comm.rank, own)} on the communicator that it frees, but rank {other} "
        f"{_calls(comm, other, its)}; all ranks must call the same collectives in the same order, with the same root",
    )


def _calls(comm: NativeComm, rank: int, count: int) -> str:
    """How many collectives a rank has called, and the last of them if its line says so."""
    line = line_of.py_func(comm.word("slot"), rank, count)
    if not count or _word(line + LINE.stamp).value != count:
        return f"{count} collectives"
    kind, root, _ = shm_oneshot.read_signature(_word(line + LINE.signature).value)
    return f"{count} collectives, {OPERATIONS[kind]} with root {root} the last,"


def _word(address: int) -> ctypes.c_int64:
    return ctypes.c_int64.from_address(int(address))

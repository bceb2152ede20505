"""Blocking send and receive of bytes whose length only the sender knows: how small pickled objects travel.

A receive takes the oldest matching message into room that the caller keeps for it. What does not fit, or is not complete within a
slice, comes back as a handle, for the caller to go on with through the engine.
"""

from __future__ import annotations

from ncclx_mpi.p2p.entries import find_message, post_send, read_status, receive_matched
from ncclx_mpi.p2p.fast import _wait_slice, push_eager
from ncclx_mpi.p2p.gil import enter_gil, leave_gil
from ncclx_mpi.p2p.layout import COMM, ENGINE, REQUEST
from ncclx_mpi.p2p.matching import release_request
from ncclx_mpi.p2p.progress import idle, lock, trace_begin, trace_end, unlock
from ncclx_mpi.p2p.rendezvous import peer_of
from numba_kernels.atomics import load64, store64, ticks
from numba_kernels.jit import kernel

NOTHING, DONE, LARGE, PENDING = 0, 1, 2, 3
"""No message has come within a slice; it is there; its handle is in the sixth status word; the request's handle is there."""

STATUS_WORDS = 6
_HANDLE = 40
_TRACE_SEND, _TRACE_PROBE = 1, 6
_POLLS = 200


@kernel("int64(int64, int64, int64, int64, int64, int64)", is_entry=True, nogil=False)
def send_bytes(comm, address, nbytes, dest, tag, mode):  # type: ignore[no-untyped-def]
    """Send bytes to a rank that is one. 0: done; else the handle of a request that is to be waited for."""
    engine = load64(comm + COMM.engine)
    peer = peer_of(engine, load64(load64(comm + COMM.world) + 8 * dest))
    record = trace_begin(engine, _TRACE_SEND, load64(comm + COMM.context), dest, tag, nbytes)
    lock(engine)
    if push_eager(engine, peer, comm, address, nbytes, tag, mode) != 0:
        unlock(engine)
        trace_end(record)
        return 0
    request = post_send(comm, 0, address, nbytes, dest, tag, mode)
    unlock(engine)
    if _wait_slice(engine, request, record) == 0:
        return request
    lock(engine)
    release_request(engine, request)
    unlock(engine)
    return 0


@kernel("int64(int64, int64, int64, int64)")
def _take_message(engine, comm, source, tag):  # type: ignore[no-untyped-def]
    """Wait a slice for a message, and take it out of matching; 0 if none has come."""
    turn, started = 0, ticks()
    polls = min(_POLLS, load64(engine + ENGINE.spins))
    while turn < polls:
        message = find_message(comm, 0, source, tag, 1)
        if message != 0:
            return message
        idle(engine, turn, started)
        turn += 1
    state = leave_gil()
    message, code = 0, 0
    while message == 0 and code == 0:
        message = find_message(comm, 0, source, tag, 1)
        if message == 0:
            code = idle(engine, turn, started)
            turn += 1
    enter_gil(state)
    return message


@kernel("int64(int64, int64, int64, int64, int64, int64)", is_entry=True, nogil=False)
def receive_bytes(comm, source, tag, address, capacity, status):  # type: ignore[no-untyped-def]
    """Receive a message of up to `capacity` bytes; returns one of the codes above, `status` as :func:`read_status` writes it."""
    engine = load64(comm + COMM.engine)
    record = trace_begin(engine, _TRACE_PROBE, load64(comm + COMM.context), source, tag, 0)
    message = _take_message(engine, comm, source, tag)
    if message == 0:
        return NOTHING
    if load64(message + REQUEST.message_bytes) > capacity:
        trace_end(record)
        store64(status + _HANDLE, message)
        return LARGE
    request = receive_matched(comm, message, address, capacity)
    if _wait_slice(engine, request, record) == 0:
        store64(status + _HANDLE, request)
        return PENDING
    read_status(request, status)
    lock(engine)
    release_request(engine, request)
    unlock(engine)
    return DONE

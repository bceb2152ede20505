"""Blocking send and receive of bytes whose length only the sender knows: how small pickled objects travel.

The bytes object itself is the argument, and a new one the result: a message is copied once into the ring, and once out of it.
What does not go through like that comes back as a handle, for the caller to go on with through the engine.
"""

from __future__ import annotations

from numba import types

from ncclx_mpi.p2p.entries import find_message, post_send, read_status, receive_matched
from ncclx_mpi.p2p.fast import SLOW, is_dest, push_eager, wait_slice
from ncclx_mpi.p2p.gil import enter_gil, leave_gil
from ncclx_mpi.p2p.layout import COMM, ENGINE, REQUEST
from ncclx_mpi.p2p.matching import release_request
from ncclx_mpi.p2p.progress import idle, lock, trace_begin, trace_end, unlock
from ncclx_mpi.p2p.rendezvous import peer_of
from numba_kernels.atomics import load8, load64, store64, ticks
from numba_kernels.jit import kernel
from numba_kernels.pyobject import OB_SIZE, OB_TYPE, bytes_type, index_argument, index_of, object_argument, object_of
from numba_kernels.pyslots import BYTES, clear_error, new_bytes, object_result, result

_TRACE_SEND, _TRACE_PROBE = 1, 6
_POLLS = 200


@kernel(types.int64(types.int64, object_argument, index_argument, index_argument, types.int64), is_entry=True, nogil=False)
def send_bytes(comm, argument, peer_rank, message_tag, mode):  # type: ignore[no-untyped-def]
    """Send a bytes object. 0: done; SLOW (it is none, or there is no such rank or tag); else a request that is to be waited for."""
    dest, tag, data = index_of(peer_rank), index_of(message_tag), object_of(argument)
    if load64(data + OB_TYPE) != bytes_type() or is_dest(comm, dest, tag) == 0:
        return SLOW
    address, nbytes = data + BYTES, load64(data + OB_SIZE)
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
    if wait_slice(engine, request, record) == 0:
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


@kernel("int64(int64)")
def _is_whole(message):  # type: ignore[no-untyped-def]
    """Whether a message is all here, and not one of several (those begin with a zero byte)."""
    if load64(message + REQUEST.remote) != 0:
        return 0
    return 1 if load64(message + REQUEST.message_bytes) == 0 or load8(load64(message + REQUEST.payload)) != 0 else 0


@kernel(object_result(types.int64, types.int64, types.int64, types.int64), is_entry=True, nogil=False)
def receive_bytes(comm, source, tag, status):  # type: ignore[no-untyped-def]
    """Receive a message as a bytes object, `status` as :func:`read_status` writes it.

    None if that is not enough: the first word of `status` is then the handle of the message, which was taken out of matching, or 0
    if none has come within a slice.
    """
    engine = load64(comm + COMM.engine)
    record = trace_begin(engine, _TRACE_PROBE, load64(comm + COMM.context), source, tag, 0)
    message = _take_message(engine, comm, source, tag)
    store64(status, message)
    if message == 0 or _is_whole(message) == 0:
        return result(0)
    nbytes = load64(message + REQUEST.message_bytes)
    data = new_bytes(0, nbytes)
    if data == 0:
        clear_error()
        return result(0)
    request = receive_matched(comm, message, data + BYTES, nbytes)
    trace_end(record)
    read_status(request, status)
    lock(engine)
    release_request(engine, request)
    unlock(engine)
    return result(data)

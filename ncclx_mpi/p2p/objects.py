"""Blocking send and receive of Python objects: one compiled call from a plain value into the ring, one from there to a new object.

Plain values (:mod:`numba_kernels.pickling`) are pickled and unpickled by the call itself. Any other object is sent as the bytes of
its pickle, and received as a note (:mod:`ncclx_mpi.p2p.partial_results`) with them. What does not go through like that, such as messages that
are too large, comes back for the caller to go on with through the engine.
"""

from __future__ import annotations

from ncclx_mpi.p2p.fast import SLOW, is_dest, is_source, push_eager, send_memory
from ncclx_mpi.p2p.gil import enter_gil, leave_gil
from ncclx_mpi.p2p.layout import COMM, ENGINE, REQUEST, STANDARD
from ncclx_mpi.p2p.partial_results import MATCHED, note, note_word, opened
from ncclx_mpi.p2p.partial_results import SLOW as SLOW_NOTE
from ncclx_mpi.p2p.progress import idle, is_spinning, lock, spin, trace_begin, trace_end, trouble, unlock
from ncclx_mpi.p2p.rendezvous import peer_of
from ncclx_mpi.p2p.requests import find_message, give_back, read_status, receive_matched
from numba_kernels import types
from numba_kernels.atomics import load8, load64, ticks
from numba_kernels.jit import kernel
from numba_kernels.pickling import LARGEST, ROOM, give_room, take_room, write_pickle
from numba_kernels.pyobject import (
    OB_SIZE,
    OB_TYPE,
    bytes_type,
    index_argument,
    index_of,
    object_argument,
    object_of,
)
from numba_kernels.pyslots import BYTES, object_result, result

_TRACE_SEND, _TRACE_PROBE, _TRACE_EXCHANGE = 1, 6, 20
_POLLS = 200


@kernel(types.int64(types.int64, object_argument, index_argument, index_argument, types.int64), is_entry=True, nogil=False)
def send_bytes(comm, argument, peer_rank, message_tag, mode):  # type: ignore[no-untyped-def]
    """Send a bytes object. 0: done; SLOW (it is none, or there is no such rank or tag); GIVEN_UP less a code."""
    dest, tag, data = index_of(peer_rank), index_of(message_tag), object_of(argument)
    if load64(data + OB_TYPE) != bytes_type() or is_dest(comm, dest, tag) == 0:
        return SLOW
    return send_memory(comm, data + BYTES, load64(data + OB_SIZE), data, dest, tag, mode)


@kernel("int64(int64, int64, int64, int64, int64, int64, int64)")
def _push_plain(comm, obj, dest, tag, mode, offset, kind):  # type: ignore[no-untyped-def]
    """Send the pickle of a plain value if it can go out at once: 1 if it did. `kind` of operation for the trace."""
    room = take_room()
    if room == 0:
        return 0
    nbytes = write_pickle(obj, room, room + ROOM.data, LARGEST)
    is_out = 0
    if nbytes != 0:
        engine, context = load64(comm + COMM.engine), load64(comm + COMM.context) + offset
        peer = peer_of(engine, load64(load64(comm + COMM.world) + 8 * dest))
        record = trace_begin(engine, kind, context, dest, tag, nbytes)
        lock(engine)
        is_out = push_eager(engine, peer, context, room + ROOM.data, nbytes, tag, mode)
        unlock(engine)
        trace_end(record)
    give_room(room)
    return is_out


@kernel(
    types.int64(types.int64, object_argument, index_argument, index_argument, types.int64, types.int64), is_entry=True, nogil=False
)
def send_plain(comm, argument, peer_rank, message_tag, mode, offset):  # type: ignore[no-untyped-def]
    """Send a plain value. 0: done; SLOW with nothing done: it is none, is large, must wait, or there is no such rank or tag."""
    dest, tag = index_of(peer_rank), index_of(message_tag)
    if is_dest(comm, dest, tag) == 0 or _push_plain(comm, object_of(argument), dest, tag, mode, offset, _TRACE_SEND) == 0:
        return SLOW
    return 0


@kernel("int64(int64, int64, int64, int64, int64, int64)")
def _await_message(engine, comm, offset, source, tag, take):  # type: ignore[no-untyped-def]
    """Wait a slice for a message, and take it out of matching if `take` is not 0; 0 if none has come."""
    turn, started = 0, ticks()
    while turn < _POLLS and is_spinning(engine, turn, started) != 0:
        message = find_message(comm, offset, source, tag, take)
        if message != 0:
            return message
        spin(engine, turn)
        turn += 1
    state = leave_gil()
    message, code = 0, 0
    while message == 0 and code == 0:
        message = find_message(comm, offset, source, tag, take)
        if message == 0:
            code = idle(engine, turn, started)
            turn += 1
    enter_gil(state)
    return message


@kernel(types.int64(types.int64, index_argument, index_argument, types.int64, types.int64), is_entry=True, nogil=False)
def await_message(comm, peer_rank, message_tag, take, status):  # type: ignore[no-untyped-def]
    """Wait a slice for a message, and take it out of matching if `take` is not 0.

    Returns its handle, with `status` written unless that is 0; 0 if none has come, or there is no such rank or tag.
    """
    source, tag = index_of(peer_rank), index_of(message_tag)
    if is_source(comm, source, tag) == 0:
        return 0
    engine = load64(comm + COMM.engine)
    record = trace_begin(engine, _TRACE_PROBE, load64(comm + COMM.context), source, tag, 0)
    message = _await_message(engine, comm, 0, source, tag, take)
    if message != 0:
        trace_end(record)
        if status != 0:
            read_status(message, status)
    return message


@kernel(types.int64(types.int64, index_argument, index_argument, types.int64, types.int64), is_entry=True, nogil=False)
def look_for_message(comm, peer_rank, message_tag, take, status):  # type: ignore[no-untyped-def]
    """Look for a message that has come, and take it out of matching if `take` is not 0.

    Returns its handle, with `status` written unless that is 0; 0 if none has come; SLOW if none may ever come, or there is no such peer.
    """
    source, tag = index_of(peer_rank), index_of(message_tag)
    if is_source(comm, source, tag) == 0:
        return SLOW
    message = find_message(comm, 0, source, tag, take)
    if message == 0:
        engine = load64(comm + COMM.engine)
        is_in_vain = load64(comm + COMM.ended) != 0 or load64(comm + COMM.size) == 0  # nobody is left once it was revoked
        is_news = load64(engine + ENGINE.revoked_count) != load64(engine + ENGINE.heeded)  # perhaps of this communicator
        return SLOW if is_in_vain or is_news or trouble(engine) != 0 else 0
    if status != 0:
        read_status(message, status)
    return message


@kernel("int64(int64)")
def _is_whole(message):  # type: ignore[no-untyped-def]
    """Whether a message is all here, and not one of several (those begin with a zero byte)."""
    nbytes = load64(message + REQUEST.message_bytes)
    if nbytes > LARGEST or (load64(message + REQUEST.remote) != 0 and load64(message + REQUEST.payload) == 0):
        return 0
    return 1 if nbytes == 0 or load8(load64(message + REQUEST.payload)) != 0 else 0


@kernel("int64(int64, int64, int64, int64, int64, int64, int64)")
def _receive(comm, source, tag, offset, decodes, status, kind):  # type: ignore[no-untyped-def]
    """Wait a slice for a message, and return its object or a note: RAW; MATCHED if it is not all here, or none has come."""
    engine = load64(comm + COMM.engine)
    record = trace_begin(engine, kind, load64(comm + COMM.context) + offset, source, tag, 0)
    message = _await_message(engine, comm, offset, source, tag, 1)
    if message == 0 or _is_whole(message) == 0:
        return note_word(MATCHED, message)
    trace_end(record)
    return _deliver(comm, message, decodes, status)


@kernel("int64(int64, int64, int64, int64)")
def _deliver(comm, message, decodes, status):  # type: ignore[no-untyped-def]
    """Receive a message that was taken out of matching and is whole: its object, or a note: RAW; MATCHED if there is no memory for it."""
    engine, room, nbytes = load64(comm + COMM.engine), take_room(), load64(message + REQUEST.message_bytes)
    if room == 0:
        return note_word(MATCHED, message)
    request = receive_matched(comm, 0, message, room + ROOM.data, nbytes)
    if status != 0:
        read_status(request, status)
    give_back(engine, request)
    found = opened(room + ROOM.data, nbytes, decodes)
    give_room(room)
    return found


@kernel(
    object_result(types.int64, index_argument, index_argument, types.int64, types.int64, types.int64), is_entry=True, nogil=False
)
def receive_plain(comm, peer_rank, message_tag, offset, decodes, status):  # type: ignore[no-untyped-def]
    """Receive a message: its object if it is a plain value and `decodes` is not 0, with `status` written unless that is 0, or a note."""
    source, tag = index_of(peer_rank), index_of(message_tag)
    if is_source(comm, source, tag) == 0:
        return result(note_word(MATCHED, 0))
    return result(_receive(comm, source, tag, offset, decodes, status, _TRACE_PROBE))


@kernel(object_result(types.int64, types.int64, types.int64, types.int64), is_entry=True, nogil=False)
def receive_taken(comm, message, decodes, status):  # type: ignore[no-untyped-def]
    """As :func:`receive_plain`, for a message that was taken out of matching."""
    return result(_deliver(comm, message, decodes, status) if _is_whole(message) != 0 else note_word(MATCHED, message))


@kernel(
    object_result(types.int64, object_argument, index_argument, index_argument, index_argument, index_argument, types.int64),
    is_entry=True,
    nogil=False,
)
def exchange_plain(comm, argument, dest_rank, send_tag, source_rank, receive_tag, status):  # type: ignore[no-untyped-def]
    """Send a plain value, and receive as :func:`receive_plain`; the note SLOW if that cannot be, with nothing done."""
    dest, its_tag, source, tag = index_of(dest_rank), index_of(send_tag), index_of(source_rank), index_of(receive_tag)
    if is_dest(comm, dest, its_tag) == 0 or is_source(comm, source, tag) == 0:
        return result(note(SLOW_NOTE, 0, 0))
    if _push_plain(comm, object_of(argument), dest, its_tag, STANDARD, 0, _TRACE_EXCHANGE) == 0:
        return result(note(SLOW_NOTE, 0, 0))
    return result(_receive(comm, source, tag, 0, 1, status, _TRACE_EXCHANGE))

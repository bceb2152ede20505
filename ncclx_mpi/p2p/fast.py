"""Blocking Send and Recv of plain arrays: one compiled call from the Python object to the transport and back.

The argument is unboxed, checked and sent in the same call (:mod:`numba_kernels.pyobject`). What is not plain, or not valid, is
left untouched and returns SLOW: the caller then resolves it in Python, which also finds the words for what is wrong.

No call returns with a request that is pending: whoever interrupts a wait (a signal handler that raises, a death, the deadline) makes the call
give its requests up before Python runs, so that a buffer is the caller's again whatever happens next.
"""

from __future__ import annotations

from ncclx_mpi.p2p.inlined import send_eager
from ncclx_mpi.p2p.keeping import give_up_kept
from ncclx_mpi.p2p.layout import (
    ANY_SOURCE,
    ANY_TAG,
    COMM,
    COMPLETE,
    EAGER_COST,
    PEER,
    PENDING,
    PROC_NULL,
    REQUEST,
    STANDARD,
    SYNCHRONOUS,
)
from ncclx_mpi.p2p.progress import is_spinning, lock, spin, trace_begin, trace_end, unlock
from ncclx_mpi.p2p.rendezvous import peer_of
from ncclx_mpi.p2p.requests import give_back, is_eager_allowed, post_send, read_status, receive_matched, start_receive
from ncclx_mpi.p2p.waiting import keep_waiting
from numba_kernels import types
from numba_kernels.atomics import load64, load_acquire, store64, ticks
from numba_kernels.jit import kernel
from numba_kernels.pyobject import (
    NONE,
    address_of,
    array_argument,
    array_of,
    element_of,
    index_argument,
    index_of,
    nbytes_of,
    writable_of,
)
from numba_kernels.pyslots import BYTES, clear_error, decrease, new_bytes

SLOW, GIVEN_UP = -1, -16
"""Instead of a request handle: take the slow path; GIVEN_UP less the code because of which a wait was given up."""
POLLS = 300
"""Turns that a wait keeps the GIL, some 10 us."""
_TRACE_SEND, _TRACE_RECEIVE, _TRACE_EXCHANGE = 1, 2, 20
_TAG_BITS = 30
"""Tags from 0 to the attribute TAG_UB."""


@kernel("int64(int64, int64, int64, int64, int64, int64, int64)")
def push_eager(engine, peer, context, address, nbytes, tag, mode):  # type: ignore[no-untyped-def]
    """Send a small message at once if nothing stands in its way; 1 if it went out. The lock is held."""
    if mode == SYNCHRONOUS or load64(peer + PEER.queue_last) != 0 or is_eager_allowed(engine, peer, nbytes, mode) == 0:
        return 0
    if send_eager(engine, peer, context, tag, nbytes, address) == 0:
        return 0
    store64(peer + PEER.sent, load64(peer + PEER.sent) + nbytes + EAGER_COST)
    return 1


@kernel("int64(int64, int64, int64)")
def wait_complete(engine, request, owner):  # type: ignore[no-untyped-def]
    """Wait for a request: 0; or GIVEN_UP less a code, and the request is given up, `owner` kept as long as its memory may be touched."""
    turn, started = 0, ticks()
    while turn < POLLS and is_spinning(engine, turn, started) != 0 and load_acquire(request + REQUEST.state) == PENDING:
        spin(engine, turn)
        turn += 1
    if load_acquire(request + REQUEST.state) != PENDING:
        return 0
    code = keep_waiting(engine, 0, request + REQUEST.state, COMPLETE, load64(request + REQUEST.comm) + COMM.ended)
    if code == 0:
        return 0
    give_up_kept(engine, request, owner)
    return GIVEN_UP - code


@kernel("int64(int64, int64, int64)")
def is_dest(comm, dest, tag):  # type: ignore[no-untyped-def]
    return 1 if 0 <= dest < load64(comm + COMM.size) and tag >> _TAG_BITS == 0 else 0


@kernel("int64(int64, int64, int64)")
def is_source(comm, source, tag):  # type: ignore[no-untyped-def]
    is_rank = source == ANY_SOURCE or 0 <= source < load64(comm + COMM.size)
    return 1 if is_rank and (tag >> _TAG_BITS == 0 or tag == ANY_TAG) else 0


@kernel("int64(int64, int64, int64, int64, int64, int64)")
def _start_send(comm, address, nbytes, dest, tag, mode):  # type: ignore[no-untyped-def]
    """Start a send: 0 if it went out at once, else its request."""
    engine = load64(comm + COMM.engine)
    peer = peer_of(engine, load64(load64(comm + COMM.world) + 8 * dest))
    request = 0
    lock(engine)
    if push_eager(engine, peer, load64(comm + COMM.context), address, nbytes, tag, mode) == 0:
        request = post_send(comm, 0, address, nbytes, dest, tag, mode)
    unlock(engine)
    return request


@kernel("int64(int64, int64, int64, int64, int64, int64, int64)")
def send_memory(comm, address, nbytes, owner, dest, tag, mode):  # type: ignore[no-untyped-def]
    """Send memory of an object to a rank: 0, or GIVEN_UP less a code."""
    engine = load64(comm + COMM.engine)
    record = trace_begin(engine, _TRACE_SEND, load64(comm + COMM.context), dest, tag, nbytes)
    request = _start_send(comm, address, nbytes, dest, tag, mode)
    if request == 0:
        trace_end(record)
        return 0
    code = wait_complete(engine, request, owner)
    if code != 0:
        return code
    trace_end(record)
    give_back(engine, request)
    return 0


@kernel("int64(int64, int64, int64, int64, int64, int64, int64)")
def receive_memory(comm, address, nbytes, owner, source, tag, status):  # type: ignore[no-untyped-def]
    """Receive into memory of an object: 0; GIVEN_UP less a code; or a complete request that failed. Writes `status` unless it is 0."""
    engine = load64(comm + COMM.engine)
    record = trace_begin(engine, _TRACE_RECEIVE, load64(comm + COMM.context), source, tag, nbytes)
    return _finish_receive(engine, record, start_receive(comm, 0, 0, address, nbytes, source, tag), owner, status)


@kernel("int64(int64, int64, int64, int64, int64)")
def _finish_receive(engine, record, request, owner, status):  # type: ignore[no-untyped-def]
    """Wait for a receive into memory of an object, as :func:`receive_memory` returns; its trace ends with it."""
    code = wait_complete(engine, request, owner)
    if code != 0:
        return code
    trace_end(record)
    if load64(request + REQUEST.error) != 0:
        return request
    _end_receive(engine, request, status)
    return 0


@kernel("int64(int64, int64, int64, int64, int64, int64, int64, int64, int64, int64, int64, int64)")
def exchange_memory(  # type: ignore[no-untyped-def]
    comm, send_address, send_bytes, sender, dest, send_tag, recv_address, recv_bytes, receiver, source, receive_tag, status
):
    """Send memory of one object to a rank and receive into that of another, as :func:`exchange_arrays` returns."""
    engine = load64(comm + COMM.engine)
    record = trace_begin(engine, _TRACE_EXCHANGE, load64(comm + COMM.context), source, receive_tag, recv_bytes)
    receiving = start_receive(comm, 0, 0, recv_address, recv_bytes, source, receive_tag)
    sending = _start_send(comm, send_address, send_bytes, dest, send_tag, STANDARD)
    code = wait_complete(engine, receiving, receiver)
    if code != 0:
        if sending != 0:
            give_up_kept(engine, sending, sender)
        return code
    code = 0 if sending == 0 else wait_complete(engine, sending, sender)
    if code != 0:
        give_up_kept(engine, receiving, receiver)
        return code
    trace_end(record)
    if load64(receiving + REQUEST.error) != 0:
        store64(receiving + REQUEST.queue_next, sending)
        return receiving
    _end_receive(engine, receiving, status)
    if sending != 0:
        give_back(engine, sending)
    return 0


@kernel("void(int64, int64, int64)")
def _end_receive(engine, request, status):  # type: ignore[no-untyped-def]
    """Give a complete receive back, after its status words unless `status` is 0."""
    if status != 0:
        read_status(request, status)
    give_back(engine, request)


@kernel("int64(int64, int64, int64)")
def is_to_nobody(comm, rank, tag):  # type: ignore[no-untyped-def]
    """Whether a message is for PROC_NULL: nothing is sent, and its buffer does not matter. A communicator that was revoked has no ranks."""
    return 1 if rank == PROC_NULL and tag >> _TAG_BITS == 0 and load64(comm + COMM.size) > 0 else 0


@kernel("int64(int64, int64, int64, int64)")
def is_from_nobody(comm, rank, tag, status):  # type: ignore[no-untyped-def]
    """Whether a message is from PROC_NULL, as above: there is none, which `status` then says unless it is 0."""
    if rank != PROC_NULL or (tag >> _TAG_BITS != 0 and tag != ANY_TAG) or load64(comm + COMM.size) <= 0:
        return 0
    if status != 0:
        store64(status, PROC_NULL)
        store64(status + 8, ANY_TAG)
        store64(status + 16, 0)
    return 1


@kernel(types.int64(types.int64, array_argument, index_argument, index_argument, types.int64), is_entry=True, nogil=False)
def send_array(comm, argument, peer_rank, message_tag, mode):  # type: ignore[no-untyped-def]
    """Send a plain array. 0: done; SLOW; GIVEN_UP less a code."""
    dest, tag = index_of(peer_rank), index_of(message_tag)
    if element_of(argument) == NONE or is_dest(comm, dest, tag) == 0:
        return 0 if is_to_nobody(comm, dest, tag) != 0 else SLOW
    return send_memory(comm, address_of(argument), nbytes_of(argument), array_of(argument), dest, tag, mode)


@kernel(types.int64(types.int64, array_argument, index_argument, index_argument, types.int64), is_entry=True, nogil=False)
def receive_array(comm, argument, peer_rank, message_tag, status):  # type: ignore[no-untyped-def]
    """Receive into a plain array, and write status words unless `status` is 0.

    Returns 0: done; SLOW; GIVEN_UP less a code; or a complete request that failed.
    """
    source, tag = index_of(peer_rank), index_of(message_tag)
    if element_of(argument) == NONE or writable_of(argument) == 0 or is_source(comm, source, tag) == 0:
        return 0 if is_from_nobody(comm, source, tag, status) != 0 else SLOW
    return receive_memory(comm, address_of(argument), nbytes_of(argument), array_of(argument), source, tag, status)


@kernel(types.int64(types.int64, array_argument, types.int64, types.int64), is_entry=True, nogil=False)
def receive_matched_array(comm, argument, message, status):  # type: ignore[no-untyped-def]
    """Receive a message that was taken out of matching into a plain array, as :func:`receive_array` returns; SLOW: it is still there."""
    if element_of(argument) == NONE or writable_of(argument) == 0:
        return SLOW
    engine, nbytes = load64(comm + COMM.engine), nbytes_of(argument)
    source, tag = load64(message + REQUEST.source), load64(message + REQUEST.tag)
    record = trace_begin(engine, _TRACE_RECEIVE, load64(comm + COMM.context), source, tag, nbytes)
    request = receive_matched(comm, 0, message, address_of(argument), nbytes)
    return _finish_receive(engine, record, request, array_of(argument), status)


@kernel(
    types.int64(
        types.int64, array_argument, index_argument, index_argument, array_argument, index_argument, index_argument, types.int64
    ),
    is_entry=True,
    nogil=False,
)
def exchange_arrays(comm, sent, dest_rank, send_tag, received, source_rank, receive_tag, status):  # type: ignore[no-untyped-def]
    """Send a plain array and receive into another one. 0: done, with `status` written unless that is 0; SLOW; GIVEN_UP less a code.

    Or a complete receive that failed: the send, if it is to be given back too, is where it would go on in a queue (`REQUEST.queue_next`).
    """
    dest, its_tag, source, tag = index_of(dest_rank), index_of(send_tag), index_of(source_rank), index_of(receive_tag)
    can_send = element_of(sent) != NONE and is_dest(comm, dest, its_tag) != 0
    can_receive = element_of(received) != NONE and writable_of(received) != 0 and is_source(comm, source, tag) != 0
    address, nbytes, landing, room = address_of(sent), nbytes_of(sent), address_of(received), nbytes_of(received)
    if can_send and can_receive:
        return exchange_memory(
            comm, address, nbytes, array_of(sent), dest, its_tag, landing, room, array_of(received), source, tag, status
        )
    if can_send and is_from_nobody(comm, source, tag, status) != 0:
        return send_memory(comm, address, nbytes, array_of(sent), dest, its_tag, STANDARD)
    if is_to_nobody(comm, dest, its_tag) == 0:
        return SLOW
    if can_receive:
        return receive_memory(comm, landing, room, array_of(received), source, tag, status)
    return 0 if is_from_nobody(comm, source, tag, status) != 0 else SLOW


@kernel(
    types.int64(types.int64, array_argument, index_argument, index_argument, index_argument, index_argument, types.int64),
    is_entry=True,
    nogil=False,
)
def replace_array(comm, argument, dest_rank, send_tag, source_rank, receive_tag, status):  # type: ignore[no-untyped-def]
    """Send a copy of a plain array, and receive into it, as :func:`exchange_arrays`."""
    dest, its_tag, source, tag = index_of(dest_rank), index_of(send_tag), index_of(source_rank), index_of(receive_tag)
    address, nbytes, owner = address_of(argument), nbytes_of(argument), array_of(argument)
    if element_of(argument) == NONE or writable_of(argument) == 0:
        return SLOW
    if is_source(comm, source, tag) == 0:
        if is_dest(comm, dest, its_tag) == 0 or is_from_nobody(comm, source, tag, status) == 0:
            return SLOW
        return send_memory(comm, address, nbytes, owner, dest, its_tag, STANDARD)
    if is_dest(comm, dest, its_tag) == 0:
        return receive_memory(comm, address, nbytes, owner, source, tag, status) if is_to_nobody(comm, dest, its_tag) != 0 else SLOW
    sent = new_bytes(address, nbytes)  # an object, as a wait that is given up leaves it to its request
    if sent == 0:
        clear_error()
        return SLOW
    code = exchange_memory(comm, sent + BYTES, nbytes, sent, dest, its_tag, address, nbytes, owner, source, tag, status)
    decrease(sent)
    return code

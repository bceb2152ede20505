"""Non-blocking messages of plain arrays: one compiled call to start one, one to complete any number (:mod:`ncclx_mpi.p2p.completing`).

A *ticket* is a native request that has its Python object for life. Starting a message takes a ticket, makes the
handle that the program gets, and lets it refer to the ticket; completing it empties the handle and keeps the ticket for the next
message. So neither costs more Python than the call itself::

    free tickets                       the program's handle
    ENGINE.tickets -> request ...        Request ---.state---> Ticket ---.owner---> array
                        .handle -> Ticket                        .native                (and .comm)
                                                                  = address of the request

A free ticket is referred to by the list of free tickets alone, a used one by its handle alone. One that anything else refers to
(a copy of the handle, a weak reference, a thread that waits for the same request) is left to Python, as is everything that has
failed: whatever cannot be completed here returns SLOW with nothing done. A persistent message or collective has a request of its own,
which is FREE when it is not active, and its handle stays. How collectives start is known above here, and called by address.
"""

from __future__ import annotations

import ctypes
from array import array
from typing import Any

from ncclx_mpi.p2p.fast import SLOW, is_dest, is_source, push_eager
from ncclx_mpi.p2p.gaps import move
from ncclx_mpi.p2p.layout import COLLECTIVE, COMM, COMPLETE, ENGINE, FREE, REQUEST, SEND
from ncclx_mpi.p2p.matching import reset_request, try_request
from ncclx_mpi.p2p.progress import lock, progress_locked, unlock
from ncclx_mpi.p2p.rendezvous import peer_of
from ncclx_mpi.p2p.requests import begin_landing, begin_message
from numba_kernels import symbols, types
from numba_kernels.atomics import load64, store64
from numba_kernels.calls import call_step, make_symbol
from numba_kernels.jit import kernel
from numba_kernels.layout import words, zeroed
from numba_kernels.memory import fill
from numba_kernels.pyobject import (
    NONE,
    OB_SIZE,
    OB_TYPE,
    address_of,
    array_argument,
    array_of,
    bytes_type,
    element_of,
    index_argument,
    index_of,
    nbytes_of,
    object_argument,
    object_of,
    writable_of,
)
from numba_kernels.pysequence import items_of
from numba_kernels.pyslots import (
    BYTES,
    as_integer,
    clear_error,
    decrease,
    increase,
    new_object,
    object_result,
    result,
    slot_offset,
)

DONE, NOT_YET = 0, 1
"""What completing returns, beside SLOW: all are complete, and their handles null; nothing has changed."""

HANDLES = words(
    "Handles",
    "handle_type persistent_type ticket_type bound_type null state native owner comm weak lines_type object_type place lines_bound_type "
    "status_type status_words words_type",
)
"""How handles and what they refer to look: their types, the state of null handles, and the offsets of a handle's slot ``state`` and of
a ticket's slots, the last one that of its list of weak references; the type of tickets of collectives, which look like the others; that of
receives of objects, and the offset of their slot ``place``; that of persistent requests of collectives; the type of statuses, the offset
of the slot with their words, and what type the words are."""

ARRAY_ITEMS = 24
"""Bytes from the beginning of an ``array.array`` to the address of its items."""

_looks, _looks_at = zeroed(HANDLES.total)
symbols.add("ncclx_mpi_handles", _looks_at)
_address_of_looks = make_symbol("ncclx_mpi_handles")


def introduce(handle_type: type, persistent_type: type, ticket_type: type, bound_type: type, null: Any) -> None:
    """Tell compiled code how handles (with a slot ``_state``) and tickets look; `null` is what null handles refer to."""
    slots = {name: slot_offset(ticket_type, name) for name in ("request", "owner", "comm")}
    if slots != {name: slot_offset(bound_type, name) for name in slots}:
        return  # nothing starts natively then
    types_ = (id(kind) for kind in (handle_type, persistent_type, ticket_type, bound_type))
    found = (*types_, id(null), slot_offset(handle_type, "_state"), *slots.values(), ticket_type.__weakrefoffset__)
    _looks[: len(found)] = array("q", found)


def introduce_collectives(ticket_type: type, bound_type: type) -> None:
    """Tell compiled code of the tickets and persistent requests of collectives, subclasses of those of messages."""
    _looks[HANDLES.lines_type // 8], _looks[HANDLES.lines_bound_type // 8] = id(ticket_type), id(bound_type)


def introduce_statuses(status_type: type, words: array[int]) -> None:
    """Tell compiled code how statuses look: `words` is like what their slot ``_words`` holds."""
    if ctypes.c_int64.from_address(id(words) + ARRAY_ITEMS).value == words.buffer_info()[0]:
        first = HANDLES.status_type // 8
        _looks[first : first + 3] = array("q", (id(status_type), slot_offset(status_type, "_words"), id(type(words))))


def introduce_objects(ticket_type: type) -> None:
    """Tell compiled code of the tickets of receives of objects, a subclass with a slot ``place``: the owner of where messages land."""
    _looks[HANDLES.place // 8] = slot_offset(ticket_type, "place")
    _looks[HANDLES.object_type // 8] = id(ticket_type)


@kernel("int64(int64)")
def look(field):  # type: ignore[no-untyped-def]
    return load64(_address_of_looks() + field)


@kernel("int64(int64, int64, int64, int64)", is_entry=True, nogil=False)
def new_ticket(engine, ticket, home, address):  # type: ignore[no-untyped-def]
    """Make the request of a new ticket, which :func:`keep_ticket` puts on its list, the engine's word `home`, once its object knows it.

    `address`: the memory that a receive of objects has for life. Returns 0 if there is no memory for the request.
    """
    request = _take(engine)
    if request == 0:
        return 0
    store64(request + REQUEST.bound_address, address)
    store64(request + REQUEST.handle, ticket)
    store64(request + REQUEST.home, engine + home)
    return request


@kernel("int64(int64)")
def _take(engine):  # type: ignore[no-untyped-def]
    """A request, perhaps that of a ticket which was forgotten, or of a persistent one which is gone; 0 if there is no memory for one."""
    lock(engine)
    request = try_request(engine)
    unlock(engine)
    if request != 0:
        fill(request + REQUEST.handle, 0, REQUEST.serial - REQUEST.handle)
    return request


@kernel("void(int64)", is_entry=True, nogil=False)
def keep_ticket(request):  # type: ignore[no-untyped-def]
    """Put a ticket on the list of free ones, which owns a reference to its object. Any thread may take it from now on."""
    home = load64(request + REQUEST.home)
    store64(request + REQUEST.state, FREE)
    store64(request + REQUEST.next, load64(home))
    store64(home, request)


@kernel("void(int64)", is_entry=True, nogil=False)
def leave_ticket(request):  # type: ignore[no-untyped-def]
    """Let the request of a ticket go on without it, in Python's hands."""
    store64(request + REQUEST.home, 0)


@kernel("int64(int64, int64)")
def new_handle(engine, home):  # type: ignore[no-untyped-def]
    """A handle of the next free ticket of the list at `home`; 0 if there is none."""
    if load64(home) == 0:
        return 0
    handle = new_object(look(HANDLES.handle_type), 0)
    if handle == 0:
        clear_error()
        return 0
    request = load64(home)
    if request == 0:  # a finalizer has taken the last one meanwhile
        decrease(handle)
        return 0
    store64(home, load64(request + REQUEST.next))
    reset_request(engine, request)
    store64(handle + look(HANDLES.state), load64(request + REQUEST.handle))
    return handle


@kernel("int64(int64, int64, int64)")
def use_ticket(handle, comm, owner):  # type: ignore[no-untyped-def]
    """Let the ticket of a new handle keep two objects alive: a communicator and what has the memory. Returns its request."""
    ticket = load64(handle + look(HANDLES.state))
    increase(owner)
    store64(ticket + look(HANDLES.owner), owner)
    increase(comm)
    store64(ticket + look(HANDLES.comm), comm)
    return as_integer(load64(ticket + look(HANDLES.native)))


@kernel("int64(int64)")
def request_of(handle):  # type: ignore[no-untyped-def]
    """The request of the ticket of a handle in use."""
    return as_integer(load64(load64(handle + look(HANDLES.state)) + look(HANDLES.native)))


@kernel(
    object_result(types.int64, array_argument, index_argument, index_argument, types.int64),
    is_entry=True,
    nogil=False,
)
def start_send_array(comm, argument, peer_rank, message_tag, mode):  # type: ignore[no-untyped-def]
    """Start sending a plain array: the handle, or None (not plain, not valid, or no free ticket)."""
    dest, tag = index_of(peer_rank), index_of(message_tag)
    if element_of(argument) == NONE or is_dest(comm, dest, tag) == 0:
        return result(0)
    return result(start_from(comm, array_of(argument), address_of(argument), nbytes_of(argument), dest, tag, mode))


@kernel(
    object_result(types.int64, array_argument, index_argument, index_argument),
    is_entry=True,
    nogil=False,
)
def start_receive_array(comm, argument, peer_rank, message_tag):  # type: ignore[no-untyped-def]
    """Start receiving into a plain array: the handle, or None as above."""
    source, tag = index_of(peer_rank), index_of(message_tag)
    if element_of(argument) == NONE or writable_of(argument) == 0 or is_source(comm, source, tag) == 0:
        return result(0)
    engine = load64(comm + COMM.engine)
    handle = new_handle(engine, engine + ENGINE.tickets)
    if handle == 0:
        return result(0)
    request = use_ticket(handle, load64(comm + COMM.handle), array_of(argument))
    receive(comm, request, address_of(argument), nbytes_of(argument), source, tag)
    return result(handle)


@kernel("int64(int64, int64, int64, int64, int64, int64, int64)")
def start_from(comm, owner, address, nbytes, dest, tag, mode):  # type: ignore[no-untyped-def]
    """Start sending memory of an object, which is kept: the handle, or 0 if there is no free ticket."""
    engine = load64(comm + COMM.engine)
    handle = new_handle(engine, engine + ENGINE.tickets)
    if handle != 0:
        _send(comm, use_ticket(handle, load64(comm + COMM.handle), owner), address, nbytes, dest, tag, mode)
    return handle


@kernel("int64(int64, int64, int64, int64, int64)")
def start_bytes(comm, data, dest, tag, mode):  # type: ignore[no-untyped-def]
    """Start sending a bytes object: the handle, or 0 if there is no free ticket."""
    return start_from(comm, data, data + BYTES, load64(data + OB_SIZE), dest, tag, mode)


@kernel(
    object_result(types.int64, object_argument, index_argument, index_argument, types.int64),
    is_entry=True,
    nogil=False,
)
def start_send_bytes(comm, argument, peer_rank, message_tag, mode):  # type: ignore[no-untyped-def]
    """Start sending a bytes object: the handle, or None as above."""
    dest, tag, data = index_of(peer_rank), index_of(message_tag), object_of(argument)
    if load64(data + OB_TYPE) != bytes_type() or is_dest(comm, dest, tag) == 0:
        return result(0)
    return result(start_bytes(comm, data, dest, tag, mode))


@kernel("void(int64, int64, int64, int64, int64, int64, int64)")
def _send(comm, request, address, nbytes, dest, tag, mode):  # type: ignore[no-untyped-def]
    """Start a send with a fresh request."""
    engine = load64(comm + COMM.engine)
    peer = peer_of(engine, load64(load64(comm + COMM.world) + 8 * dest))
    lock(engine)
    if push_eager(engine, peer, load64(comm + COMM.context), address, nbytes, tag, mode) != 0:
        store64(request + REQUEST.kind, SEND)
        store64(request + REQUEST.state, COMPLETE)
    else:
        begin_message(comm, request, 0, address, nbytes, dest, tag, mode)
    unlock(engine)


@kernel("void(int64, int64, int64, int64, int64, int64)")
def receive(comm, request, address, nbytes, source, tag):  # type: ignore[no-untyped-def]
    """Start a receive with a fresh request."""
    engine = load64(comm + COMM.engine)
    lock(engine)
    progress_locked(engine)
    begin_landing(comm, request, 0, address, nbytes, source, tag)
    unlock(engine)


# Persistent ones --------------------------------------------------------------------------------------------------


@kernel("int64(int64, int64, int64, int64, int64, int64, int64, int64)", is_entry=True)
def new_bound(kind, comm, address, nbytes, peer, tag, mode, landing):  # type: ignore[no-untyped-def]
    """A request for one message, sent (SEND) or received (RECEIVE) each time it is started; FREE between two times.

    Of elements with gaps `landing` is the landing of the message, else 0. Also for a COLLECTIVE, with what it is at `address`. 0 if there
    is no memory for it.
    """
    request = _take(load64(comm + COMM.engine))
    if request == 0:
        return 0
    store64(request + REQUEST.bound_kind, kind)
    store64(request + REQUEST.bound_comm, comm)
    store64(request + REQUEST.bound_address, address)
    store64(request + REQUEST.bound_nbytes, nbytes)
    store64(request + REQUEST.bound_peer, peer)
    store64(request + REQUEST.bound_tag, tag)
    store64(request + REQUEST.bound_mode, mode)
    store64(request + REQUEST.bound_gaps, landing)
    store64(request + REQUEST.state, FREE)
    return request


@kernel("void(int64)", is_entry=True, nogil=False)
def start_bound(request):  # type: ignore[no-untyped-def]
    """Start a persistent request that is FREE. One of a collective stays so if that is not possible."""
    comm = load64(request + REQUEST.bound_comm)
    if load64(request + REQUEST.bound_kind) == COLLECTIVE:
        call_step(load64(load64(comm + COMM.engine) + ENGINE.lines_start), request)
        return
    address, nbytes = load64(request + REQUEST.bound_address), load64(request + REQUEST.bound_nbytes)
    peer, tag, landing = (
        load64(request + REQUEST.bound_peer), load64(request + REQUEST.bound_tag), load64(request + REQUEST.bound_gaps)
    )  # fmt: skip
    reset_request(load64(comm + COMM.engine), request)
    store64(request + REQUEST.gaps, landing)
    if load64(request + REQUEST.bound_kind) == SEND:
        if landing != 0:
            move(landing, nbytes, False)
        _send(comm, request, address, nbytes, peer, tag, load64(request + REQUEST.bound_mode))
    else:
        receive(comm, request, address, nbytes, peer, tag)


@kernel(types.int64(object_argument), is_entry=True, nogil=False)
def start_one(handle):  # type: ignore[no-untyped-def]
    """Start a persistent handle: DONE, or SLOW if it is anything else than an inactive one of packed memory, or cannot be started."""
    request = _startable(object_of(handle))
    if request == 0:
        return SLOW
    start_bound(request)
    return DONE if load64(request + REQUEST.state) != FREE else SLOW


@kernel(types.int64(object_argument), is_entry=True, nogil=False)
def start_all(sequence):  # type: ignore[no-untyped-def]
    """Start the persistent handles of a list or tuple, in this order: how many were started, before one that is anything else."""
    items, started = items_of(object_of(sequence)), 0
    if items == 0:
        return 0
    while started < load64(object_of(sequence) + OB_SIZE):
        request = _startable(load64(items_of(object_of(sequence)) + 8 * started))
        if request == 0:
            break
        start_bound(request)
        if load64(request + REQUEST.state) == FREE:
            break
        started += 1
    return started


@kernel("int64(int64)")
def _startable(handle):  # type: ignore[no-untyped-def]
    """The request of a persistent handle if it can be started, else 0."""
    if load64(handle + OB_TYPE) != look(HANDLES.persistent_type):
        return 0
    bound = load64(handle + look(HANDLES.state))
    if bound == 0 or load64(bound + look(HANDLES.owner)) == 0:
        return 0
    if load64(bound + OB_TYPE) != look(HANDLES.bound_type) and load64(bound + OB_TYPE) != look(HANDLES.lines_bound_type):
        return 0
    request = as_integer(load64(bound + look(HANDLES.native)))
    return request if load64(request + REQUEST.state) == FREE else 0


@kernel("void(int64)", is_entry=True)
def rest(request):  # type: ignore[no-untyped-def]
    """A complete persistent request has been looked at; it can be started again."""
    store64(request + REQUEST.state, FREE)

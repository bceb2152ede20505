"""Non-blocking messages of plain arrays: one compiled call to start one, one to complete any number, with their statuses.

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

The GIL is held but for long waits; before it may go, every handle and every ticket gets one reference more, so that no other
thread can end their lives meanwhile.
"""

from __future__ import annotations

import ctypes
from array import array
from typing import Any

import llvmlite.binding as llvm
import numpy as np
from numba import types

from ncclx_mpi.p2p.entries import begin_landing, begin_message, trace_request
from ncclx_mpi.p2p.fast import POLLS, SLOW, is_dest, is_source, push_eager
from ncclx_mpi.p2p.gil import enter_gil, leave_gil
from ncclx_mpi.p2p.layout import ANY_SOURCE, ANY_TAG, COLLECTIVE, COMM, COMPLETE, ENGINE, FREE, PENDING, RECEIVE, REQUEST, SEND
from ncclx_mpi.p2p.matching import release_request, reset_request
from ncclx_mpi.p2p.progress import idle, lock, progress, progress_locked, trace_end, unlock
from ncclx_mpi.p2p.rendezvous import peer_of
from numba_kernels.atomics import call_step, load64, load_acquire, store32, store64, ticks
from numba_kernels.jit import kernel
from numba_kernels.layout import words
from numba_kernels.memory import allocate, copy, release
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
    make_symbol,
    nbytes_of,
    none_object,
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
    references,
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

_looks = np.zeros(HANDLES.total // 8, dtype=np.int64)
llvm.add_symbol("ncclx_mpi_handles", _looks.ctypes.data)
_address_of_looks = make_symbol("ncclx_mpi_handles")


def introduce(handle_type: type, persistent_type: type, ticket_type: type, bound_type: type, null: Any) -> None:
    """Tell compiled code how handles (with a slot ``_state``) and tickets look; `null` is what null handles refer to."""
    slots = {name: slot_offset(ticket_type, name) for name in ("request", "owner", "comm")}
    if slots != {name: slot_offset(bound_type, name) for name in slots}:
        return  # nothing starts natively then
    types_ = (id(kind) for kind in (handle_type, persistent_type, ticket_type, bound_type))
    found = (*types_, id(null), slot_offset(handle_type, "_state"), *slots.values(), ticket_type.__weakrefoffset__)
    _looks[: len(found)] = found


def introduce_collectives(ticket_type: type, bound_type: type) -> None:
    """Tell compiled code of the tickets and persistent requests of collectives, subclasses of those of messages."""
    _looks[HANDLES.lines_type // 8], _looks[HANDLES.lines_bound_type // 8] = id(ticket_type), id(bound_type)


def introduce_statuses(status_type: type, words: array[int]) -> None:
    """Tell compiled code how statuses look: `words` is like what their slot ``_words`` holds."""
    if ctypes.c_int64.from_address(id(words) + _ARRAY_ITEMS).value == words.buffer_info()[0]:
        first = HANDLES.status_type // 8
        _looks[first : first + 3] = id(status_type), slot_offset(status_type, "_words"), id(type(words))


def introduce_objects(ticket_type: type) -> None:
    """Tell compiled code of the tickets of receives of objects, a subclass with a slot ``place``: the owner of where messages land."""
    _looks[HANDLES.place // 8] = slot_offset(ticket_type, "place")
    _looks[HANDLES.object_type // 8] = id(ticket_type)


@kernel("int64(int64)")
def _look(field):  # type: ignore[no-untyped-def]
    return load64(_address_of_looks() + field)


_ROW = words("Row", "handle ticket request owner comm status index found")
"""One handle that is being completed: the status that is wanted of it, 0 for none, where it stands among those given, and the object
that it brought."""
_ARRAY_ITEMS = 24
"""Bytes from the beginning of an ``array.array`` to the address of its items."""
_STATUS_ITEMS = 5
_COUNT_LOW, _COUNT_HIGH, _SOURCE, _TAG, _ERROR = (4 * index for index in range(_STATUS_ITEMS))
"""The words of a status, in bytes (:mod:`ncclx_mpi.api.status`)."""
GIL_SHIFT = 11
"""A wait keeps the GIL up to this part of a slice, some 25 us, however few turns it makes."""


# Starting ---------------------------------------------------------------------------------------------------------


@kernel("int64(int64, int64, int64, int64)", is_entry=True, nogil=False)
def new_ticket(engine, ticket, home, address):  # type: ignore[no-untyped-def]
    """Make the request of a new free ticket, whose object has one reference for being in the list, the engine's word `home`.

    `address`: the memory that a receive of objects has for life.
    """
    request = allocate(REQUEST.total)
    store64(request + REQUEST.bound_address, address)
    store64(request + REQUEST.handle, ticket)
    store64(request + REQUEST.home, engine + home)
    reset_request(engine, request)
    _keep_ticket(request)
    return request


@kernel("void(int64)")
def _keep_ticket(request):  # type: ignore[no-untyped-def]
    home = load64(request + REQUEST.home)
    store64(request + REQUEST.state, FREE)
    store64(request + REQUEST.next, load64(home))
    store64(home, request)


@kernel("int64(int64, int64)")
def new_handle(engine, home):  # type: ignore[no-untyped-def]
    """A handle of the next free ticket of the list at `home`; 0 if there is none."""
    if load64(home) == 0:
        return 0
    handle = new_object(_look(HANDLES.handle_type), 0)
    if handle == 0:
        clear_error()
        return 0
    request = load64(home)
    if request == 0:  # a finalizer has taken the last one meanwhile
        decrease(handle)
        return 0
    store64(home, load64(request + REQUEST.next))
    reset_request(engine, request)
    store64(handle + _look(HANDLES.state), load64(request + REQUEST.handle))
    return handle


@kernel("int64(int64, int64, int64)")
def use_ticket(handle, comm, owner):  # type: ignore[no-untyped-def]
    """Let the ticket of a new handle keep two objects alive: a communicator and what has the memory. Returns its request."""
    ticket = load64(handle + _look(HANDLES.state))
    increase(owner)
    store64(ticket + _look(HANDLES.owner), owner)
    increase(comm)
    store64(ticket + _look(HANDLES.comm), comm)
    return as_integer(load64(ticket + _look(HANDLES.native)))


@kernel("int64(int64)")
def request_of(handle):  # type: ignore[no-untyped-def]
    """The request of the ticket of a handle in use."""
    return as_integer(load64(load64(handle + _look(HANDLES.state)) + _look(HANDLES.native)))


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
    engine = load64(comm + COMM.engine)
    handle = new_handle(engine, engine + ENGINE.tickets)
    if handle == 0:
        return result(0)
    request = use_ticket(handle, load64(comm + COMM.handle), array_of(argument))
    _send(comm, request, address_of(argument), nbytes_of(argument), dest, tag, mode)
    return result(handle)


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
    _receive(comm, request, address_of(argument), nbytes_of(argument), source, tag)
    return result(handle)


@kernel("int64(int64, int64, int64, int64, int64)")
def _start_bytes(comm, data, dest, tag, mode):  # type: ignore[no-untyped-def]
    """Start sending a bytes object: the handle, or 0 if there is no free ticket."""
    engine = load64(comm + COMM.engine)
    handle = new_handle(engine, engine + ENGINE.tickets)
    if handle != 0:
        request = use_ticket(handle, load64(comm + COMM.handle), data)
        _send(comm, request, data + BYTES, load64(data + OB_SIZE), dest, tag, mode)
    return handle


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
    return result(_start_bytes(comm, data, dest, tag, mode))


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
def _receive(comm, request, address, nbytes, source, tag):  # type: ignore[no-untyped-def]
    """Start a receive with a fresh request."""
    engine = load64(comm + COMM.engine)
    lock(engine)
    progress_locked(engine)
    begin_landing(comm, request, 0, address, nbytes, source, tag)
    unlock(engine)


# Persistent ones --------------------------------------------------------------------------------------------------


@kernel("int64(int64, int64, int64, int64, int64, int64, int64)", is_entry=True)
def new_bound(kind, comm, address, nbytes, peer, tag, mode):  # type: ignore[no-untyped-def]
    """A request for one message, sent (SEND) or received (RECEIVE) each time it is started; FREE between two times.

    Also for a COLLECTIVE, with what it is at `address`.
    """
    request = allocate(REQUEST.total)
    store64(request + REQUEST.handle, 0)
    reset_request(load64(comm + COMM.engine), request)
    store64(request + REQUEST.bound_kind, kind)
    store64(request + REQUEST.bound_comm, comm)
    store64(request + REQUEST.bound_address, address)
    store64(request + REQUEST.bound_nbytes, nbytes)
    store64(request + REQUEST.bound_peer, peer)
    store64(request + REQUEST.bound_tag, tag)
    store64(request + REQUEST.bound_mode, mode)
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
    peer, tag = load64(request + REQUEST.bound_peer), load64(request + REQUEST.bound_tag)
    reset_request(load64(comm + COMM.engine), request)
    if load64(request + REQUEST.bound_kind) == SEND:
        _send(comm, request, address, nbytes, peer, tag, load64(request + REQUEST.bound_mode))
    else:
        _receive(comm, request, address, nbytes, peer, tag)


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
    if load64(handle + OB_TYPE) != _look(HANDLES.persistent_type):
        return 0
    bound = load64(handle + _look(HANDLES.state))
    if bound == 0 or load64(bound + _look(HANDLES.owner)) == 0:
        return 0
    if load64(bound + OB_TYPE) != _look(HANDLES.bound_type) and load64(bound + OB_TYPE) != _look(HANDLES.lines_bound_type):
        return 0
    request = as_integer(load64(bound + _look(HANDLES.native)))
    return request if load64(request + REQUEST.state) == FREE else 0


@kernel("void(int64)", is_entry=True)
def rest(request):  # type: ignore[no-untyped-def]
    """A complete persistent request has been looked at; it can be started again."""
    store64(request + REQUEST.state, FREE)


@kernel("void(int64, int64)", is_entry=True)
def drop_bound(engine, request):  # type: ignore[no-untyped-def]
    """Give a persistent request back that is FREE."""
    lock(engine)
    release_request(engine, request)
    unlock(engine)


# Completing -------------------------------------------------------------------------------------------------------


@kernel(types.int64(object_argument, types.int64, object_argument), is_entry=True, nogil=False)
def complete_one(handle, waits, status):  # type: ignore[no-untyped-def]
    """Complete a handle, after waiting for it or if it is done: DONE, NOT_YET or SLOW. `status`: for what it was, or None."""
    wanted = _wanted(object_of(status))
    if wanted == SLOW:
        return SLOW
    rows = allocate(_ROW.total)
    code = SLOW
    if _collect(object_of(handle), rows, 0) == 1:
        store64(rows + _ROW.status, wanted)
        code = _complete(rows, 1, waits, 0)
    release(rows)
    return code


@kernel(types.int64(object_argument, types.int64, object_argument), is_entry=True, nogil=False)
def complete_all(sequence, waits, statuses):  # type: ignore[no-untyped-def]
    """Complete the handles of a list or tuple, after waiting for them or if all are done; as :func:`complete_one`.

    `statuses`: a list or tuple of at least as many, or None.
    """
    given = _length(object_of(sequence))
    if given < 0 or _are_wanted(object_of(statuses), given) == 0:
        return SLOW
    rows = allocate(max(given, 1) * _ROW.total)
    count = _collect_all(object_of(sequence), given, rows)
    if count == SLOW:
        release(rows)
        return SLOW
    following = 0
    for place in range(given if object_of(statuses) != none_object() else 0):
        status, row = load64(items_of(object_of(statuses)) + 8 * place), rows + following * _ROW.total
        if following < count and load64(row + _ROW.index) == place:
            store64(row + _ROW.status, status)
            following += 1
        else:
            _fill_status(status, ANY_SOURCE, ANY_TAG, 0, 0)
            _write_success(status)
    code = _complete(rows, count, waits, 1)
    release(rows)
    return code


@kernel(types.int64(object_argument, types.int64, types.int64, types.int64, object_argument), is_entry=True, nogil=False)
def complete_some(sequence, waits, most, places, statuses):  # type: ignore[no-untyped-def]
    """Complete up to `most` of the handles of a list or tuple that are done, after waiting for one or if one is.

    Returns how many; their places go to the words at `places`, which are as many as there are handles. 0: none is done yet. SLOW also if
    none is active. `statuses`: a list or tuple of at least as many as are completed, or None.
    """
    given = _length(object_of(sequence))
    if given < 0 or _are_wanted(object_of(statuses), min(most, given)) == 0:
        return SLOW
    rows = allocate(2 * max(given, 1) * _ROW.total)
    count, code, held = _collect_all(object_of(sequence), given, rows), SLOW, 1
    if count > 0:
        is_one_done = _next(rows, count, 0, 1) == count
        if not is_one_done:
            held = 2
            _hold(rows, count)
            is_one_done = _wait_slice(rows, count, waits, 1) != 0
            code = SLOW if waits != 0 else 0
        if is_one_done:
            code = _finish_some(rows, count, held, most, places, object_of(statuses))
        if held == 2:
            _let_go(rows, count)
    release(rows)
    return code


@kernel("int64(int64)")
def _length(sequence):  # type: ignore[no-untyped-def]
    """The length of a list or tuple, -1 for anything else."""
    return load64(sequence + OB_SIZE) if items_of(sequence) != 0 else -1


@kernel("int64(int64, int64, int64)")
def _collect_all(sequence, given, rows):  # type: ignore[no-untyped-def]
    """Note the active handles of a list or tuple: how many, or SLOW."""
    count = 0
    for place in range(given):
        collected = _collect(load64(items_of(sequence) + 8 * place), rows + count * _ROW.total, place)
        if collected == SLOW:
            return SLOW
        count += collected
    return count


@kernel("int64(int64)")
def _wanted(status):  # type: ignore[no-untyped-def]
    """A status that is to be filled; 0 for None; SLOW for anything else."""
    if status == none_object():
        return 0
    if load64(status + OB_TYPE) != _look(HANDLES.status_type):
        return SLOW
    values = load64(status + _look(HANDLES.status_words))
    if values == 0 or load64(values + OB_TYPE) != _look(HANDLES.words_type) or load64(values + OB_SIZE) != _STATUS_ITEMS:
        return SLOW
    return status


@kernel("int64(int64, int64)")
def _are_wanted(statuses, count):  # type: ignore[no-untyped-def]
    """Whether there are `count` statuses in a list or tuple to be filled, or None."""
    if statuses == none_object():
        return 1
    if _length(statuses) < count:
        return 0
    for place in range(count):
        if _wanted(load64(items_of(statuses) + 8 * place)) <= 0:
            return 0
    return 1


@kernel("int64(int64, int64, int64)")
def _collect(handle, row, place):  # type: ignore[no-untyped-def]
    """Note a handle: 1, or 0 if it is null or inactive; SLOW if it is anything else than that of a plain message."""
    kind = load64(handle + OB_TYPE)
    if kind != _look(HANDLES.handle_type) and kind != _look(HANDLES.persistent_type):
        return SLOW  # nothing is known of where its slots are
    ticket = load64(handle + _look(HANDLES.state))
    if ticket == _look(HANDLES.null) and kind == _look(HANDLES.handle_type):
        return 0
    if ticket == 0 or load64(ticket + _look(HANDLES.owner)) == 0:
        return SLOW
    its_type, is_one_time = load64(ticket + OB_TYPE), kind == _look(HANDLES.handle_type)
    if its_type == _look(HANDLES.object_type):
        if load64(ticket + _look(HANDLES.owner)) != load64(ticket + _look(HANDLES.place)):
            return SLOW  # in Python's hands already
    elif its_type != _look(HANDLES.ticket_type if is_one_time else HANDLES.bound_type) and its_type != _look(
        HANDLES.lines_type if is_one_time else HANDLES.lines_bound_type
    ):
        return SLOW
    request = as_integer(load64(ticket + _look(HANDLES.native)))
    store64(row + _ROW.handle, handle)
    store64(row + _ROW.ticket, ticket)
    store64(row + _ROW.request, request)
    store64(row + _ROW.status, 0)
    store64(row + _ROW.index, place)
    return 1 if load64(request + REQUEST.state) != FREE else 0


@kernel("int64(int64, int64, int64, int64)")
def _complete(rows, count, waits, are_several):  # type: ignore[no-untyped-def]
    if _first_pending(rows, count, 0) == count:
        return _finish(rows, count, 1, are_several)
    _hold(rows, count)
    code = SLOW if waits != 0 else NOT_YET
    if _wait_slice(rows, count, waits, 0) != 0:
        code = _finish(rows, count, 2, are_several)
    _let_go(rows, count)
    return code


@kernel("int64(int64, int64, int64)")
def _first_pending(rows, count, index):  # type: ignore[no-untyped-def]
    """Index of the first request from `index` on that is not complete."""
    while index < count:
        if load_acquire(load64(rows + index * _ROW.total + _ROW.request) + REQUEST.state) == PENDING:
            return index
        index += 1
    return count


@kernel("int64(int64, int64, int64, int64)")
def _next(rows, count, index, is_one_enough):  # type: ignore[no-untyped-def]
    """`count` if enough are complete, else the index of a request that is not; all before `index` are."""
    pending = _first_pending(rows, count, index)
    if is_one_enough == 0 or pending > 0:
        return count if is_one_enough != 0 else pending
    for other in range(1, count):
        if load_acquire(load64(rows + other * _ROW.total + _ROW.request) + REQUEST.state) != PENDING:
            return count
    return 0


@kernel("int64(int64, int64, int64, int64)")
def _wait_slice(rows, count, waits, is_one_enough):  # type: ignore[no-untyped-def]
    """Progress, and wait if asked to: 1 if enough are complete, 0 if Python has to look (signals, death, deadline)."""
    index = _next(rows, count, 0, is_one_enough)
    request = load64(rows + index * _ROW.total + _ROW.request)
    engine = load64(request + REQUEST.engine)
    progress(engine)
    index = _next(rows, count, index, is_one_enough)
    if index == count or waits == 0:
        return 1 if index == count else 0
    record = trace_request(engine, request)
    turn, started, most = 0, ticks(), load64(engine + ENGINE.slice_ticks) >> GIL_SHIFT
    while index < count and turn < min(POLLS, load64(engine + ENGINE.spins)) and ticks() - started < most:
        idle(engine, turn, started)
        turn += 1
        index = _next(rows, count, index, is_one_enough)
    if index < count:
        state, code = leave_gil(), 0
        while index < count and code == 0:
            code = idle(engine, turn, started)
            turn += 1
            index = _next(rows, count, index, is_one_enough)
        enter_gil(state)
    if index < count:
        return 0
    trace_end(record)
    return 1


@kernel("void(int64, int64)")
def _hold(rows, count):  # type: ignore[no-untyped-def]
    for index in range(count):
        increase(load64(rows + index * _ROW.total + _ROW.handle))
        increase(load64(rows + index * _ROW.total + _ROW.ticket))
        increase(load64(rows + index * _ROW.total + _ROW.status))


@kernel("void(int64, int64)")
def _let_go(rows, count):  # type: ignore[no-untyped-def]
    for index in range(count):
        decrease(load64(rows + index * _ROW.total + _ROW.status))
        decrease(load64(rows + index * _ROW.total + _ROW.ticket))
        decrease(load64(rows + index * _ROW.total + _ROW.handle))


@kernel("int64(int64, int64)")
def _is_plain(row, held):  # type: ignore[no-untyped-def]
    """Whether a complete request ended well, its handle still refers to its ticket, and nothing else does that must not."""
    ticket, request = load64(row + _ROW.ticket), load64(row + _ROW.request)
    if load64(load64(row + _ROW.handle) + _look(HANDLES.state)) != ticket or load64(request + REQUEST.error) != 0:
        return 0
    if load64(request + REQUEST.handle) == 0:  # a persistent one stays as it is, whoever refers to it
        return 1
    return 1 if references(ticket) == held and load64(ticket + _look(HANDLES.weak)) == 0 else 0


@kernel("int64(int64)")
def _is_object(row):  # type: ignore[no-untyped-def]
    """Whether it is the receive of an object, which only :mod:`ncclx_mpi.p2p.object_tickets` completes."""
    return load64(load64(row + _ROW.ticket) + OB_TYPE) == _look(HANDLES.object_type)


@kernel("int64(int64, int64, int64, int64)")
def _finish(rows, count, held, are_several):  # type: ignore[no-untyped-def]
    """Empty complete handles and keep their tickets: DONE, or SLOW with nothing done. `held`: known references to each ticket.

    The error of a status is written where there are several only.
    """
    for index in range(count):
        if _is_plain(rows + index * _ROW.total, held) == 0 or _is_object(rows + index * _ROW.total):
            return SLOW
    for index in range(count):
        status = load64(rows + index * _ROW.total + _ROW.status)
        if status != 0:
            _describe(load64(rows + index * _ROW.total + _ROW.request), status)
            if are_several != 0:
                _write_success(status)
    _keep_all(rows, count)
    return DONE


@kernel("void(int64, int64)")
def _keep_all(rows, count):  # type: ignore[no-untyped-def]
    for index in range(count):
        _keep(rows + index * _ROW.total)
    for index in range(count):  # any Python code may run here, so everything else is done
        decrease(load64(rows + index * _ROW.total + _ROW.owner))
        decrease(load64(rows + index * _ROW.total + _ROW.comm))


@kernel("int64(int64, int64, int64, int64, int64, int64)")
def _finish_some(rows, count, held, most, places, statuses):  # type: ignore[no-untyped-def]
    """Finish up to `most` of those that are complete: how many, or SLOW with nothing done. The room after the rows is worked in."""
    chosen, found = rows + count * _ROW.total, 0
    if _are_wanted(statuses, min(most, count)) == 0:  # another thread may have changed the list
        return SLOW
    for index in range(count):
        row, copied = rows + index * _ROW.total, chosen + found * _ROW.total
        if found < most and load_acquire(load64(row + _ROW.request) + REQUEST.state) != PENDING:
            copy(copied, row, _ROW.total)
            if statuses != none_object():
                store64(copied + _ROW.status, load64(items_of(statuses) + 8 * found))
            store64(places + 8 * found, load64(row + _ROW.index))
            found += 1
    return found if _finish(chosen, found, held, 1 if most > 1 else 0) == DONE else SLOW


@kernel("void(int64)")
def _keep(row):  # type: ignore[no-untyped-def]
    """Make a handle null, unless it stood in the list before, and its ticket free; what the ticket kept alive goes to the row."""
    ticket, request, null = load64(row + _ROW.ticket), load64(row + _ROW.request), _look(HANDLES.null)
    state = load64(row + _ROW.handle) + _look(HANDLES.state)
    store64(row + _ROW.owner, 0)
    store64(row + _ROW.comm, 0)
    if load64(request + REQUEST.handle) == 0:
        store64(request + REQUEST.state, FREE)
        return
    if load64(state) != ticket:
        return
    increase(null)
    store64(state, null)
    owner, comm = ticket + _look(HANDLES.owner), ticket + _look(HANDLES.comm)
    store64(row + _ROW.owner, load64(owner))
    store64(row + _ROW.comm, load64(comm))
    store64(owner, 0)
    store64(comm, 0)
    _keep_ticket(request)


@kernel("void(int64, int64)")
def _describe(request, status):  # type: ignore[no-untyped-def]
    """Write what a request was to a status, all but its error; only a receive knows more than whether it was cancelled."""
    cancelled = load64(request + REQUEST.cancelled)
    if load64(request + REQUEST.kind) == RECEIVE:
        source, tag = load64(request + REQUEST.status_source), load64(request + REQUEST.status_tag)
        _fill_status(status, source, tag, load64(request + REQUEST.message_bytes), cancelled)
    else:
        _fill_status(status, ANY_SOURCE, ANY_TAG, 0, cancelled)


@kernel("void(int64, int64, int64, int64, int64)")
def _fill_status(status, source, tag, nbytes, cancelled):  # type: ignore[no-untyped-def]
    values = load64(load64(status + _look(HANDLES.status_words)) + _ARRAY_ITEMS)
    store32(values + _COUNT_LOW, nbytes)
    store32(values + _COUNT_HIGH, nbytes >> 32 << 1 | cancelled)
    store32(values + _SOURCE, source)
    store32(values + _TAG, tag)


@kernel("void(int64)")
def _write_success(status):  # type: ignore[no-untyped-def]
    store32(load64(load64(status + _look(HANDLES.status_words)) + _ARRAY_ITEMS) + _ERROR, 0)

"""Non-blocking messages of Python objects, by tickets (:mod:`ncclx_mpi.p2p.request_pool`): one compiled call to start, one to complete.

A send of a plain value (:mod:`numba_kernels.pickling`) keeps the bytes of its pickle. A receive has memory for one message for life, its
*place*, and ends with the object that is in there, or with a note (:mod:`ncclx_mpi.p2p.partial_results`) with the bytes if they are no
plain value. One that ends with the first of several messages, or with an error, is left to Python, as is what any ticket leaves to it::

    ticket of a receive --- .owner, .place ---> place         as long as compiled code has it in hand
                        --- .owner -----------> the receive that goes on in Python
"""

from __future__ import annotations

from ncclx_mpi.p2p.completing import (
    ROW,
    collect,
    first_pending,
    hold,
    is_object,
    is_plain,
    keep_all,
    let_go,
    one_row,
    unfinished,
    wait_slice,
)
from ncclx_mpi.p2p.fast import SLOW, is_dest, is_source
from ncclx_mpi.p2p.layout import ANY_SOURCE, ANY_TAG, COMM, COMPLETE, ENGINE, FREE, RECEIVE, REQUEST
from ncclx_mpi.p2p.partial_results import NOT_YET as NOT_YET_NOTE
from ncclx_mpi.p2p.partial_results import SLOW as SLOW_NOTE
from ncclx_mpi.p2p.partial_results import is_note, note, opened
from ncclx_mpi.p2p.request_pool import DONE, HANDLES, look, new_handle, receive, start_bytes, use_ticket
from numba_kernels import types
from numba_kernels.atomics import load8, load64, load_acquire, store64
from numba_kernels.jit import kernel
from numba_kernels.memory import allocate, release
from numba_kernels.pickling import LARGEST, ROOM, give_room, take_room, write_pickle
from numba_kernels.pyobject import OB_SIZE, index_argument, index_of, none_object, object_argument, object_of
from numba_kernels.pysequence import items_of
from numba_kernels.pyslots import (
    clear_error,
    decrease,
    increase,
    new_bytes,
    new_tuple,
    object_result,
    result,
    set_item,
    set_no_memory,
)

PARTIAL = 3
"""State of the receive of an object of which only the first message is complete, beside those of all requests."""

_as_list = types.external("PySequence_List", types.intp(types.intp))


# Starting ---------------------------------------------------------------------------------------------------------


@kernel(
    object_result(types.int64, object_argument, index_argument, index_argument, types.int64),
    is_entry=True,
    nogil=False,
)
def start_send_plain(comm, argument, peer_rank, message_tag, mode):  # type: ignore[no-untyped-def]
    """Start sending the pickle of a plain value (:mod:`numba_kernels.pickling`): the handle, or None as above."""
    dest, tag = index_of(peer_rank), index_of(message_tag)
    if is_dest(comm, dest, tag) == 0:
        return result(0)
    room, data, handle = take_room(), 0, 0
    if room == 0:
        return result(0)
    nbytes = write_pickle(object_of(argument), room, room + ROOM.data, LARGEST)
    if nbytes != 0:
        data = new_bytes(room + ROOM.data, nbytes)
        if data == 0:
            clear_error()
    give_room(room)
    if data != 0:
        handle = start_bytes(comm, data, dest, tag, mode)
        decrease(data)
    return result(handle)


@kernel(object_result(types.int64, index_argument, index_argument), is_entry=True, nogil=False)
def start_receive_object(comm, peer_rank, message_tag):  # type: ignore[no-untyped-def]
    """Start receiving an object: the handle, or None (no such rank or tag, or no free ticket)."""
    source, tag = index_of(peer_rank), index_of(message_tag)
    if is_source(comm, source, tag) == 0:
        return result(0)
    engine = load64(comm + COMM.engine)
    handle = new_handle(engine, engine + ENGINE.object_requests)
    if handle != 0:
        place = load64(load64(handle + look(HANDLES.state)) + look(HANDLES.place))
        request = use_ticket(handle, load64(comm + COMM.handle), place)
        receive(comm, request, load64(request + REQUEST.bound_address), LARGEST, source, tag)
    return result(handle)


@kernel("int64(int64)", is_entry=True, nogil=False)
def look_at_posted(request):  # type: ignore[no-untyped-def]
    """What the request of a ticket that receives objects is in: FREE, PENDING, or COMPLETE; PARTIAL if more has to be asked for.

    FREE as well if it is of no such ticket by now: its receive went on in Python and ended, and the request may be that of anything,
    which has no memory where objects land. The GIL is held from that look to the last one.
    """
    if load64(request + REQUEST.home) != load64(request + REQUEST.engine) + ENGINE.object_requests:
        return FREE
    state = load_acquire(request + REQUEST.state)
    return PARTIAL if state == COMPLETE and load64(request + REQUEST.error) == 0 and _is_whole(request) == 0 else state


@kernel(object_result(types.int64), is_entry=True, nogil=False)
def take_partial(request):  # type: ignore[no-untyped-def]
    """The Python object of the request of a ticket that is PARTIAL, None if it is not any more.

    One call looks and takes the reference: in between, another thread could complete the request and free its ticket.
    """
    if look_at_posted(request) != PARTIAL:
        return result(0)
    increase(load64(request + REQUEST.handle))
    return result(load64(request + REQUEST.handle))


@kernel("int64(int64)")
def _is_whole(request):  # type: ignore[no-untyped-def]
    """Whether a message that was received as an object is one, and not the first of several (those begin with a zero byte)."""
    return 1 if load64(request + REQUEST.message_bytes) == 0 or load8(load64(request + REQUEST.bound_address)) != 0 else 0


# Completing -------------------------------------------------------------------------------------------------------


@kernel(object_result(object_argument, types.int64, types.int64, types.int64), is_entry=True, nogil=False)
def complete_object(handle, waits, decodes, status):  # type: ignore[no-untyped-def]
    """As :func:`complete_one`, and also receives of objects: the object, None for anything else, or a note."""
    rows = one_row()
    code = SLOW
    if collect(object_of(handle), rows, 0) == 1:
        code = _complete_objects(rows, 1, waits, decodes, status)
    found = load64(rows + ROW.found) if code == DONE else note(SLOW_NOTE if code == SLOW else NOT_YET_NOTE, 0, 0)
    return result(found)


@kernel(object_result(object_argument, types.int64, types.int64), is_entry=True, nogil=False)
def complete_all_objects(sequence, waits, decodes):  # type: ignore[no-untyped-def]
    """As :func:`complete_all`, and also receives of objects: a list of objects, with None for others; a tuple if some are notes; a note."""
    items = items_of(object_of(sequence))
    if items == 0:
        return result(note(SLOW_NOTE, 0, 0))
    given, count, code = load64(object_of(sequence) + OB_SIZE), 0, DONE
    rows = allocate(max(given, 1) * ROW.total)
    if rows == 0:
        return result(note(SLOW_NOTE, 0, 0))
    for index in range(given):
        collected = collect(load64(items + 8 * index), rows + count * ROW.total, index) if code == DONE else 0
        if collected == SLOW:
            code = SLOW
        else:
            count += collected
    if code == DONE:
        code = _complete_objects(rows, count, waits, decodes, 0)
    found = _listed(rows, count, given) if code == DONE else note(SLOW_NOTE if code == SLOW else NOT_YET_NOTE, 0, 0)
    release(rows)
    return result(found)


@kernel("int64(int64, int64, int64)")
def _listed(rows, count, given):  # type: ignore[no-untyped-def]
    """A new tuple, or list if there are no notes in it, of what the rows have found; 0 with MemoryError if any of that is missing."""
    listed, row, notes = new_tuple(given), 0, 0
    is_whole = listed != 0
    for index in range(given):
        found = none_object()
        if row < count and load64(rows + row * ROW.total + ROW.index) == index:
            found = load64(rows + row * ROW.total + ROW.found)
            row += 1
        else:
            increase(found)
        if found == 0:
            is_whole = False
        else:
            notes += is_note(found)
        if listed != 0:
            set_item(listed, index, found)
        else:
            decrease(found)
    if not is_whole:
        decrease(listed)
        return set_no_memory()
    if notes != 0:
        return listed
    objects = _as_list(listed)
    decrease(listed)
    return objects


@kernel("int64(int64, int64, int64, int64, int64)")
def _complete_objects(rows, count, waits, decodes, status):  # type: ignore[no-untyped-def]
    hold(rows, count)
    is_complete = first_pending(rows, count, 0) == count or wait_slice(rows, count, waits, 0) != 0
    code = _finish_objects(rows, count, decodes, status) if is_complete else unfinished(rows, waits)
    let_go(rows, count)
    return code


@kernel("int64(int64, int64, int64, int64)")
def _finish_objects(rows, count, decodes, status):  # type: ignore[no-untyped-def]
    """Empty complete handles, each held once more, and keep their tickets; DONE with what they brought, SLOW with nothing done."""
    if _are_plain(rows, count) == 0:
        return SLOW
    for index in range(count):
        row = rows + index * ROW.total
        request = load64(row + ROW.request)
        if is_object(row):
            found = opened(load64(request + REQUEST.bound_address), load64(request + REQUEST.message_bytes), decodes)
        else:
            found = none_object()
            increase(found)
        store64(row + ROW.found, found)
    if _are_plain(rows, count) == 0:  # any Python code may have run while objects were made
        for index in range(count):
            decrease(load64(rows + index * ROW.total + ROW.found))
        return SLOW
    if status != 0:
        _write_status(load64(rows + ROW.request), status)
    keep_all(rows, count)
    return DONE


@kernel("int64(int64, int64)")
def _are_plain(rows, count):  # type: ignore[no-untyped-def]
    """Whether all complete requests, whose tickets are held once more, can be ended here."""
    for index in range(count):
        row = rows + index * ROW.total
        request = load64(row + ROW.request)
        if is_plain(row, 2) == 0 or (is_object(row) and (load64(request + REQUEST.cancelled) != 0 or _is_whole(request) == 0)):
            return 0
    return 1


@kernel("void(int64, int64)")
def _write_status(request, status):  # type: ignore[no-untyped-def]
    """Write source, tag, bytes, error and whether it was cancelled; only a receive knows more than the last."""
    is_receive = load64(request + REQUEST.kind) == RECEIVE
    store64(status, load64(request + REQUEST.status_source) if is_receive else ANY_SOURCE)
    store64(status + 8, load64(request + REQUEST.status_tag) if is_receive else ANY_TAG)
    store64(status + 16, load64(request + REQUEST.message_bytes) if is_receive else 0)
    store64(status + 24, 0)
    store64(status + 32, load64(request + REQUEST.cancelled))

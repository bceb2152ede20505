"""Completing non-blocking messages and collectives: any number of handles, with their statuses, in one compiled call.

What is completed are tickets and persistent requests (:mod:`ncclx_mpi.p2p.request_pool`); whatever cannot be completed here returns SLOW
with nothing done. The GIL is held but for long waits; before it may go, every handle and every ticket gets one reference more, so that no
other thread can end their lives meanwhile.
"""

from __future__ import annotations

from ncclx_mpi.p2p.fast import POLLS, SLOW
from ncclx_mpi.p2p.gaps import unpack
from ncclx_mpi.p2p.gil import enter_gil, leave_gil
from ncclx_mpi.p2p.layout import ANY_SOURCE, ANY_TAG, COMPLETE, ENGINE, FREE, RECEIVE, REQUEST
from ncclx_mpi.p2p.progress import idle, is_spinning, progress, spin, trace_end, trouble
from ncclx_mpi.p2p.request_pool import ARRAY_ITEMS, DONE, HANDLES, NOT_YET, keep_ticket, look
from ncclx_mpi.p2p.requests import is_pending, trace_request
from numba_kernels import types
from numba_kernels.atomics import load64, store32, store64, ticks
from numba_kernels.jit import kernel
from numba_kernels.layout import words
from numba_kernels.memory import allocate, copy, make_stack, release
from numba_kernels.pyobject import OB_SIZE, OB_TYPE, none_object, object_argument, object_of
from numba_kernels.pysequence import items_of
from numba_kernels.pyslots import as_integer, decrease, increase, references

ROW = words("Row", "handle ticket request serial owner comm status index found")
"""One handle that is being completed: its request, which is another's as soon as its serial has changed, the status that is wanted of it,
0 for none, where it stands among those given, and the object that it brought."""
one_row = make_stack(ROW.total // 8)
_STATUS_ITEMS = 5
_COUNT_LOW, _COUNT_HIGH, _SOURCE, _TAG, _ERROR = (4 * index for index in range(_STATUS_ITEMS))
"""The words of a status, in bytes (:mod:`ncclx_mpi.api.status`)."""
GIL_SHIFT = 11
"""A wait keeps the GIL up to this part of a slice, some 25 us, however few turns it makes."""


@kernel(types.int64(object_argument, types.int64, object_argument), is_entry=True, nogil=False)
def complete_one(handle, waits, status):  # type: ignore[no-untyped-def]
    """Complete a handle, after waiting for it or if it is done: DONE, NOT_YET or SLOW. `status`: for what it was, or None."""
    wanted = _wanted(object_of(status))
    if wanted == SLOW:
        return SLOW
    rows = one_row()
    code = SLOW
    if collect(object_of(handle), rows, 0) == 1:
        store64(rows + ROW.status, wanted)
        code = _complete(rows, 1, waits, 0)
    return code


@kernel(types.int64(object_argument, types.int64, object_argument), is_entry=True, nogil=False)
def complete_all(sequence, waits, statuses):  # type: ignore[no-untyped-def]
    """Complete the handles of a list or tuple, after waiting for them or if all are done; as :func:`complete_one`.

    `statuses`: a list or tuple of at least as many, or None.
    """
    given = _length(object_of(sequence))
    if given < 0 or _are_wanted(object_of(statuses), given) == 0:
        return SLOW
    rows = allocate(max(given, 1) * ROW.total)
    if rows == 0:
        return SLOW
    count = _collect_all(object_of(sequence), given, rows)
    if count == SLOW:
        release(rows)
        return SLOW
    following = 0
    for place in range(given if object_of(statuses) != none_object() else 0):
        status, row = load64(items_of(object_of(statuses)) + 8 * place), rows + following * ROW.total
        if following < count and load64(row + ROW.index) == place:
            store64(row + ROW.status, status)
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
    rows = allocate(2 * max(given, 1) * ROW.total)
    if rows == 0:
        return SLOW
    count, code, held = _collect_all(object_of(sequence), given, rows), SLOW, 1
    if count > 0:
        is_one_done = _next(rows, count, 0, 1) == count
        if not is_one_done:
            held = 2
            hold(rows, count)
            is_one_done = wait_slice(rows, count, waits, 1) != 0
            code = SLOW if unfinished(rows, waits) == SLOW else 0
        if is_one_done:
            code = _finish_some(rows, count, held, most, places, object_of(statuses))
        if held == 2:
            let_go(rows, count)
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
        collected = collect(load64(items_of(sequence) + 8 * place), rows + count * ROW.total, place)
        if collected == SLOW:
            return SLOW
        count += collected
    return count


@kernel("int64(int64)")
def _wanted(status):  # type: ignore[no-untyped-def]
    """A status that is to be filled; 0 for None; SLOW for anything else."""
    if status == none_object():
        return 0
    if load64(status + OB_TYPE) != look(HANDLES.status_type):
        return SLOW
    values = load64(status + look(HANDLES.status_words))
    if values == 0 or load64(values + OB_TYPE) != look(HANDLES.words_type) or load64(values + OB_SIZE) != _STATUS_ITEMS:
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
def collect(handle, row, place):  # type: ignore[no-untyped-def]
    """Note a handle: 1, or 0 if it is null or inactive; SLOW if it is anything else than that of a plain message."""
    kind = load64(handle + OB_TYPE)
    if kind != look(HANDLES.handle_type) and kind != look(HANDLES.persistent_type):
        return SLOW  # nothing is known of where its slots are
    ticket = load64(handle + look(HANDLES.state))
    if ticket == look(HANDLES.null) and kind == look(HANDLES.handle_type):
        return 0
    if ticket == 0 or load64(ticket + look(HANDLES.owner)) == 0:
        return SLOW
    its_type, is_one_time = load64(ticket + OB_TYPE), kind == look(HANDLES.handle_type)
    if its_type == look(HANDLES.object_type):
        if load64(ticket + look(HANDLES.owner)) != load64(ticket + look(HANDLES.place)):
            return SLOW  # in Python's hands already
    elif its_type != look(HANDLES.ticket_type if is_one_time else HANDLES.bound_type) and its_type != look(
        HANDLES.lines_type if is_one_time else HANDLES.lines_bound_type
    ):
        return SLOW
    request = as_integer(load64(ticket + look(HANDLES.native)))
    store64(row + ROW.handle, handle)
    store64(row + ROW.ticket, ticket)
    store64(row + ROW.request, request)
    store64(row + ROW.serial, load64(request + REQUEST.serial))
    store64(row + ROW.status, 0)
    store64(row + ROW.index, place)
    return 1 if load64(request + REQUEST.state) != FREE else 0


@kernel("int64(int64, int64, int64, int64)")
def _complete(rows, count, waits, are_several):  # type: ignore[no-untyped-def]
    if first_pending(rows, count, 0) == count:
        return _finish(rows, count, 1, are_several)
    hold(rows, count)
    code = _finish(rows, count, 2, are_several) if wait_slice(rows, count, waits, 0) != 0 else unfinished(rows, waits)
    let_go(rows, count)
    return code


@kernel("int64(int64, int64)")
def unfinished(rows, waits):  # type: ignore[no-untyped-def]
    """What to return for handles that are not complete: NOT_YET, or SLOW if Python has to go on with a wait, or to say what is wrong."""
    if waits != 0:
        return SLOW
    engine = load64(load64(rows + ROW.request) + REQUEST.engine)
    is_quiet = load64(engine + ENGINE.ended) == 0 and load64(engine + ENGINE.revoked_count) == load64(engine + ENGINE.heeded)
    return NOT_YET if trouble(engine) == 0 and is_quiet else SLOW


@kernel("int64(int64)")
def _is_pending(row):  # type: ignore[no-untyped-def]
    return is_pending(load64(row + ROW.request), load64(row + ROW.serial)) != 0


@kernel("int64(int64, int64, int64)")
def first_pending(rows, count, index):  # type: ignore[no-untyped-def]
    """Index of the first request from `index` on that is not complete."""
    while index < count:
        if _is_pending(rows + index * ROW.total):
            return index
        index += 1
    return count


@kernel("int64(int64, int64, int64, int64)")
def _next(rows, count, index, is_one_enough):  # type: ignore[no-untyped-def]
    """`count` if enough are complete, else the index of a request that is not; all before `index` are."""
    pending = first_pending(rows, count, index)
    if is_one_enough == 0 or pending > 0:
        return count if is_one_enough != 0 else pending
    for other in range(1, count):
        if not _is_pending(rows + other * ROW.total):
            return count
    return 0


@kernel("int64(int64, int64, int64, int64)")
def wait_slice(rows, count, waits, is_one_enough):  # type: ignore[no-untyped-def]
    """Progress, and wait if asked to: 1 if enough are complete, 0 if Python has to look (signals, death, deadline)."""
    index = _next(rows, count, 0, is_one_enough)
    if index == count:  # a thread that holds no GIL has made progress since the last look
        return 1
    request = load64(rows + index * ROW.total + ROW.request)
    engine = load64(request + REQUEST.engine)
    progress(engine)
    index = _next(rows, count, index, is_one_enough)
    if index == count or waits == 0:
        return 1 if index == count else 0
    record = trace_request(engine, request)
    turn, started, most = 0, ticks(), load64(engine + ENGINE.slice_ticks) >> GIL_SHIFT
    while index < count and turn < POLLS and is_spinning(engine, turn, started) != 0 and ticks() - started < most:
        spin(engine, turn)
        turn += 1
        index = _next(rows, count, index, is_one_enough)
    if index < count:
        state, code = leave_gil(), 0
        while index < count and code == 0:
            code = idle(engine, turn, started)
            turn += 1
            index = _next(rows, count, index, is_one_enough)
        enter_gil(state)
    trace_end(record)  # Python may go on with another request, and opens one of its own
    return 1 if index == count else 0


@kernel("void(int64, int64)")
def hold(rows, count):  # type: ignore[no-untyped-def]
    for index in range(count):
        increase(load64(rows + index * ROW.total + ROW.handle))
        increase(load64(rows + index * ROW.total + ROW.ticket))
        increase(load64(rows + index * ROW.total + ROW.status))


@kernel("void(int64, int64)")
def let_go(rows, count):  # type: ignore[no-untyped-def]
    for index in range(count):
        decrease(load64(rows + index * ROW.total + ROW.status))
        decrease(load64(rows + index * ROW.total + ROW.ticket))
        decrease(load64(rows + index * ROW.total + ROW.handle))


@kernel("int64(int64, int64)")
def is_plain(row, held):  # type: ignore[no-untyped-def]
    """Whether a request is complete and ended well, its handle still refers to its ticket, and nothing else does that must not."""
    ticket, request = load64(row + ROW.ticket), load64(row + ROW.request)
    if load64(request + REQUEST.state) != COMPLETE or load64(request + REQUEST.serial) != load64(row + ROW.serial):
        return 0  # given back by another thread
    if load64(load64(row + ROW.handle) + look(HANDLES.state)) != ticket or load64(request + REQUEST.error) != 0:
        return 0
    if load64(request + REQUEST.handle) == 0:  # a persistent one stays as it is, whoever refers to it
        return 1
    if load64(request + REQUEST.home) == 0:  # in Python's hands by now
        return 0
    return 1 if references(ticket) == held and load64(ticket + look(HANDLES.weak)) == 0 else 0


@kernel("int64(int64)")
def is_object(row):  # type: ignore[no-untyped-def]
    """Whether it is the receive of an object, which only :mod:`ncclx_mpi.p2p.object_requests` completes."""
    return load64(load64(row + ROW.ticket) + OB_TYPE) == look(HANDLES.object_type)


@kernel("int64(int64, int64, int64, int64)")
def _finish(rows, count, held, are_several):  # type: ignore[no-untyped-def]
    """Empty complete handles and keep their tickets: DONE, or SLOW with nothing done. `held`: known references to each ticket.

    The error of a status is written where there are several only.
    """
    for index in range(count):
        if is_plain(rows + index * ROW.total, held) == 0 or is_object(rows + index * ROW.total):
            return SLOW
    for index in range(count):
        status = load64(rows + index * ROW.total + ROW.status)
        if status != 0:
            _describe(load64(rows + index * ROW.total + ROW.request), status)
            if are_several != 0:
                _write_success(status)
    keep_all(rows, count)
    return DONE


@kernel("void(int64, int64)")
def keep_all(rows, count):  # type: ignore[no-untyped-def]
    for index in range(count):
        _keep(rows + index * ROW.total)
    for index in range(count):  # any Python code may run here, so everything else is done
        decrease(load64(rows + index * ROW.total + ROW.owner))
        decrease(load64(rows + index * ROW.total + ROW.comm))


@kernel("int64(int64, int64, int64, int64, int64, int64)")
def _finish_some(rows, count, held, most, places, statuses):  # type: ignore[no-untyped-def]
    """Finish up to `most` of those that are complete: how many, or SLOW with nothing done. The room after the rows is worked in."""
    chosen, found = rows + count * ROW.total, 0
    if _are_wanted(statuses, min(most, count)) == 0:  # another thread may have changed the list
        return SLOW
    for index in range(count):
        row, copied = rows + index * ROW.total, chosen + found * ROW.total
        if found < most and not _is_pending(row):
            copy(copied, row, ROW.total)
            if statuses != none_object():
                store64(copied + ROW.status, load64(items_of(statuses) + 8 * found))
            store64(places + 8 * found, load64(row + ROW.index))
            found += 1
    return found if _finish(chosen, found, held, 1 if most > 1 else 0) == DONE else SLOW


@kernel("void(int64)")
def _keep(row):  # type: ignore[no-untyped-def]
    """Make a handle null, unless it stood in the list before, and its ticket free; what the ticket kept alive goes to the row.

    What a receive has brought is unpacked first, if it has to be.
    """
    ticket, request, null = load64(row + ROW.ticket), load64(row + ROW.request), look(HANDLES.null)
    state = load64(row + ROW.handle) + look(HANDLES.state)
    store64(row + ROW.owner, 0)
    store64(row + ROW.comm, 0)
    if load64(request + REQUEST.state) == FREE or load64(state) != ticket:
        return
    unpack(request)
    if load64(request + REQUEST.handle) == 0:
        store64(request + REQUEST.state, FREE)
        return
    increase(null)
    store64(state, null)
    owner, comm = ticket + look(HANDLES.owner), ticket + look(HANDLES.comm)
    store64(row + ROW.owner, load64(owner))
    store64(row + ROW.comm, load64(comm))
    store64(owner, 0)
    store64(comm, 0)
    keep_ticket(request)


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
    values = load64(load64(status + look(HANDLES.status_words)) + ARRAY_ITEMS)
    store32(values + _COUNT_LOW, nbytes)
    store32(values + _COUNT_HIGH, nbytes >> 32 << 1 | cancelled)
    store32(values + _SOURCE, source)
    store32(values + _TAG, tag)


@kernel("void(int64)")
def _write_success(status):  # type: ignore[no-untyped-def]
    store32(load64(load64(status + look(HANDLES.status_words)) + ARRAY_ITEMS) + _ERROR, 0)

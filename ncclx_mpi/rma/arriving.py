"""What a target does with requests that far origins send, in compiled code, as soon as they come.

::

    message -> offer (p2p/alarm.py) -> take_request -> done, and answered
                                                    -> left to the thread (serving.py): large, scattered, or what it needs is taken

A request is served here if all that its origin sent before is done with. It is served as a whole, answer included, or not at all: what
finds no room for its answer, or the lock or guard in other hands, is the thread's. Whoever makes progress is here, under the engine's lock,
so nothing here waits, or takes longer than a copy of what is eager or a reduction of `_MOST_COMBINED` bytes.
"""

from __future__ import annotations

from ncclx_mpi.p2p.fast import push_eager
from ncclx_mpi.p2p.layout import COMM, STANDARD
from ncclx_mpi.p2p.rendezvous import peer_of
from ncclx_mpi.rma.layout import EXCLUSIVE, FAILURE, FREE, GRANTED, SERVED_WINDOW, SHARED
from ncclx_mpi.rma.locks import try_lock, unlock
from ncclx_mpi.rma.requests import COMBINE, FLUSH, GET, LOCK, NO_REDUCTION, PUT, REPLACE, REPLIES, REQUEST, SWAP, UNLOCK
from numba_kernels import types
from numba_kernels.atomics import load64, load_acquire, pause, store64
from numba_kernels.calls import call_reduce
from numba_kernels.jit import kernel
from numba_kernels.memory import compare, copy, make_stack

_this_thread = types.external("pthread_self", types.int64())

HEADER = REQUEST.total + 16
"""Bytes of a request for one block, before its payload."""
OFFSET, NBYTES = REQUEST.total, REQUEST.total + 8
"""The block in it."""
MOST_FUNCTIONS = 1024
"""Numbers of reductions that the table has room for."""
_MOST_COMBINED = 4096
_LARGEST_ALIGNMENT = 8
_GUARD_POLLS = 100

_request_words, _word = make_stack(HEADER // 8), make_stack(1)
_given_words, _held_words = make_stack(2 * _MOST_COMBINED // 8), make_stack(_MOST_COMBINED // 8)


@kernel("void(int64, int64, int64, int64, int64, int64)")
def _copy_some(target, skip, length, first, first_bytes, rest):  # type: ignore[no-untyped-def]
    """Copy `length` bytes of a message in two pieces, behind the `skip` first ones."""
    beginning = max(min(length, first_bytes - skip), 0)
    if beginning > 0:
        copy(target, first + skip, beginning)
    if length > beginning:
        copy(target + beginning, rest + skip + beginning - first_bytes, length - beginning)


@kernel("int64(int64, int64)")
def origin_word(row, size):  # type: ignore[no-untyped-def]
    """Where a row of the words for each origin begins."""
    return SERVED_WINDOW.total + 8 * row * size


@kernel("int64(int64, int64, int64)")
def _of(space, row, origin):  # type: ignore[no-untyped-def]
    """Address of a word of an origin."""
    return space + origin_word(row, load64(load64(space + SERVED_WINDOW.comm) + COMM.size)) + 8 * origin


@kernel("int64(int64)")
def _nbytes_of(request):  # type: ignore[no-untyped-def]
    """Bytes of the elements of a request that lie in one piece, -1 if they do not."""
    if load64(request + REQUEST.nblocks) != 1:
        return -1
    number, nbytes = load64(request + REQUEST.number), load64(request + NBYTES)
    if number != 1 and load64(request + REQUEST.extent) != nbytes:
        return -1
    return number * nbytes


@kernel("int64(int64, int64)")
def _spot_of(space, request):  # type: ignore[no-untyped-def]
    """Address of these elements in this rank's memory, 0 if Python has to find them."""
    base, nbytes = load64(space + SERVED_WINDOW.base), _nbytes_of(request)
    start = load64(request + REQUEST.start) + load64(request + OFFSET)
    if base == 0 or nbytes <= 0 or start < 0 or start + nbytes > load64(space + SERVED_WINDOW.nbytes):
        return 0
    return base + start


@kernel("int64(int64, int64, int64, int64, int64, int64)")
def _answer(space, engine, origin, request, address, nbytes):  # type: ignore[no-untyped-def]
    """Send an answer, if one is wanted: 1, or 0 if there is no room for it now."""
    tag = load64(request + REQUEST.reply)
    if tag == 0:
        return 1
    comm = load64(space + SERVED_WINDOW.comm)
    peer = peer_of(engine, load64(load64(comm + COMM.world) + 8 * origin))
    return push_eager(engine, peer, load64(comm + COMM.context) + REPLIES, address, nbytes, tag, STANDARD)


# Words ------------------------------------------------------------------------------------------------------------


@kernel("int64(int64, int64, int64, int64)")
def _lock(space, engine, origin, request):  # type: ignore[no-untyped-def]
    """Give the lock to an origin: 1, or 0 if others have it, or wait for it."""
    comm, word, exclusive = load64(space + SERVED_WINDOW.comm), load64(space + SERVED_WINDOW.lock), load64(request + REQUEST.value)
    if load_acquire(space + SERVED_WINDOW.waiting) != 0:
        return 0
    if try_lock(word, exclusive, load64(load64(comm + COMM.world) + 8 * origin)) == 0:
        return 0
    answer = _word()
    store64(answer, 1)
    if _answer(space, engine, origin, request, answer, 8) == 0:
        unlock(word, exclusive)
        return 0
    store64(_of(space, GRANTED, origin), EXCLUSIVE if exclusive != 0 else SHARED)
    return 1


@kernel("void(int64, int64)")
def _release(space, origin):  # type: ignore[no-untyped-def]
    """Take the lock back from an origin, if it has it."""
    granted = _of(space, GRANTED, origin)
    held = load64(granted)
    if held != FREE:
        store64(granted, FREE)
        unlock(load64(space + SERVED_WINDOW.lock), 1 if held == EXCLUSIVE else 0)


@kernel("int64(int64, int64, int64, int64)")
def _confirm(space, engine, origin, request):  # type: ignore[no-untyped-def]
    """Tell an origin that all it has sent is done with; for UNLOCK take its lock back before, which the thread does if others wait for it."""
    failure, answer = _of(space, FAILURE, origin), _word()
    if load64(request + REQUEST.action) == UNLOCK:
        if load_acquire(space + SERVED_WINDOW.waiting) != 0:
            return 0
        _release(space, origin)
    store64(answer, -load64(failure))
    if _answer(space, engine, origin, request, answer, 8) == 0:
        return 0
    store64(failure, 0)
    return 1


# Elements ---------------------------------------------------------------------------------------------------------


@kernel("int64(int64, int64)")
def _enter(space, engine):  # type: ignore[no-untyped-def]
    """Take the guard, as nobody else does for long: 1, or 0."""
    guard, comm = load64(space + SERVED_WINDOW.guard), load64(space + SERVED_WINDOW.comm)
    owner = load64(load64(comm + COMM.world) + 8 * load64(comm + COMM.rank))
    for _ in range(_GUARD_POLLS):
        if try_lock(guard, 1, owner) != 0:
            return 1
        pause()
    return 0


@kernel("int64(int64, int64)")
def _function_of(space, request):  # type: ignore[no-untyped-def]
    """The reduction that a request asks for, 0 if the thread has to find it or the elements do not lie as it wants them."""
    number, element = load64(request + REQUEST.value), load64(request + REQUEST.element)
    if number < 0 or number >= MOST_FUNCTIONS or element <= 0 or _nbytes_of(request) % element != 0:
        return 0
    if _spot_of(space, request) & (min(element, _LARGEST_ALIGNMENT) - 1) != 0:
        return 0
    return load64(load64(space + SERVED_WINDOW.functions) + 8 * number)


@kernel("void(int64, int64, int64, int64, int64)")
def _apply(request, function, spot, given, nbytes):  # type: ignore[no-untyped-def]
    """Change elements, under the guard, as a request asks for."""
    action = load64(request + REQUEST.action)
    if action == COMBINE and function != 0:
        call_reduce(function, spot, given, spot, nbytes // load64(request + REQUEST.element))
    elif action == REPLACE or (action == SWAP and compare(spot, given + nbytes, nbytes) == 0):
        copy(spot, given, nbytes)


@kernel("int64(int64, int64, int64, int64, int64, int64)")
def _exchange(space, engine, origin, request, function, given):  # type: ignore[no-untyped-def]
    """Change elements under the guard, and answer what they were: 1; or 0, and they are as before."""
    spot, nbytes, held = _spot_of(space, request), _nbytes_of(request), _held_words()
    if _enter(space, engine) == 0:
        return 0
    copy(held, spot, nbytes)
    _apply(request, function, spot, given, nbytes)
    is_done = _answer(space, engine, origin, request, held, nbytes)
    if is_done == 0:
        copy(spot, held, nbytes)
    unlock(load64(space + SERVED_WINDOW.guard), 1)
    return is_done


@kernel("int64(int64, int64, int64, int64, int64, int64, int64, int64)")
def _combine(space, engine, origin, request, payload, first, first_bytes, rest):  # type: ignore[no-untyped-def]
    """Serve an accumulation: 1, or 0. `payload`: bytes behind the request."""
    nbytes, action, function = _nbytes_of(request), load64(request + REQUEST.action), 0
    expected = 2 * nbytes if action == SWAP else nbytes
    if action == COMBINE and load64(request + REQUEST.value) == NO_REDUCTION:
        expected = 0
    elif action == COMBINE:
        function = _function_of(space, request)
        if function == 0:
            return 0
    if nbytes > _MOST_COMBINED or payload != expected:
        return 0
    given = _given_words()
    _copy_some(given, HEADER, payload, first, first_bytes, rest)
    return _exchange(space, engine, origin, request, function, given)


@kernel("int64(int64, int64, int64, int64, int64, int64, int64, int64)")
def _access(space, engine, origin, request, payload, first, first_bytes, rest):  # type: ignore[no-untyped-def]
    """Serve an access to elements: 1, or 0."""
    spot, nbytes, action = _spot_of(space, request), _nbytes_of(request), load64(request + REQUEST.action)
    if spot == 0:
        return 0
    if action == GET:
        return _answer(space, engine, origin, request, spot, nbytes)
    if action != PUT:
        return _combine(space, engine, origin, request, payload, first, first_bytes, rest)
    if payload != nbytes:
        return 0
    _copy_some(spot, HEADER, nbytes, first, first_bytes, rest)
    return 1


@kernel("int64(int64, int64, int64, int64, int64, int64, int64, int64)")
def _serve(space, engine, origin, request, payload, first, first_bytes, rest):  # type: ignore[no-untyped-def]
    """Do what a request asks for: 1, or 0."""
    action = load64(request + REQUEST.action)
    if action == LOCK:
        return _lock(space, engine, origin, request)
    if action in (UNLOCK, FLUSH):
        return _confirm(space, engine, origin, request)
    if action in (GET, PUT, COMBINE, REPLACE, SWAP):
        return _access(space, engine, origin, request, payload, first, first_bytes, rest)
    return 0


@kernel("int64(int64, int64, int64, int64, int64, int64, int64)", is_entry=True)
def take_request(space, engine, origin, nbytes, first, first_bytes, rest):  # type: ignore[no-untyped-def]
    """Serve a request that has come, of which the first bytes are in one piece and the rest in another: 1; or 0, and it is the thread's."""
    if nbytes < REQUEST.total or load_acquire(space + SERVED_WINDOW.is_open) == 0:
        return 0
    request = _request_words()
    store64(request + REQUEST.nblocks, 0)
    _copy_some(request, 0, min(nbytes, HEADER), first, first_bytes, rest)
    is_done = _serve(space, engine, origin, request, nbytes - HEADER, first, first_bytes, rest)
    if is_done != 0 and load64(space + SERVED_WINDOW.thread) == _this_thread():
        store64(space + SERVED_WINDOW.by_thread, load64(space + SERVED_WINDOW.by_thread) + 1)
    return is_done

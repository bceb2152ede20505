"""Direct collectives: the kernel copies straight between the private buffers of the ranks.

::

    open     every rank publishes where its buffers are         and waits for all: nobody reads or changes them since
    copy     process_vm_readv, process_vm_writev                one copy a byte, no ring
    close    every rank says that it has copied all it has to   and waits for all: the buffers are the callers' again

Rooted collectives open with the root's line alone, and only the root waits for the others in the end.

Writing beats reading where the source is in the writer's cache, so ranks push what they have and pull only what they reduce,
or where many cores pull what one rank would have to push alone.

=================  =============  ===============  =============================================================================
word               written by     polled by        order and meaning
=================  =============  ===============  =============================================================================
``done``           its rank       all it waits on  release: it has copied all it has to, and reads no line of this collective
``pushing``        its rank       who gives up     1 while the rank writes into memory of others; fenced before ``SLOT.broken`` is read
``SLOT.broken``    who gives up   who pushes       before each piece: nothing more is written then
=================  =============  ===============  =============================================================================

So a rank that gives up in the middle (Ctrl-C, a dead peer) raises the alarm, waits until nobody pushes, and nothing writes into its
buffer any more. What others read of it then is void, and the alarm ends their collective too. Python's signals are looked at between
two pieces, too, not only while a rank waits.

A buffer that the kernel cannot pin is found out before anything has moved, and the collective goes by streams on all ranks.
"""

from __future__ import annotations

from ncclx_mpi.collectives.cma_tuning import WAYS, control_at
from ncclx_mpi.collectives.shm_oneshot import arrive, arrive_all, begin, end, payload
from ncclx_mpi.p2p.layout import BROKEN, COMM, ENGINE, REFUSED
from ncclx_mpi.p2p.waiting import check_signals, wait_word
from numba_kernels.atomics import full_fence, load64, load_acquire, store64, store_release, ticks
from numba_kernels.jit import kernel
from transports.shm.cma import read_peer, read_runs, write_peer
from transports.shm.slots import SLOT, done_of, pushing_of

UNREACHED = -1
"""The collective did not take place: some rank's buffer is such that the kernel does not copy from or to it."""
PIECE = 512 << 10
"""Bytes that are pushed at once: an alarm is noticed between two pieces, and a piece that is copied twice is in the cache."""
_LINE = 64
_SLICE = 16 << 20
"""Bytes that are pulled at once: signals are looked at between two slices."""


@kernel("int64(int64, int64)", is_entry=True)
def is_shown(comm, address):  # type: ignore[no-untyped-def]
    """Whether the kernel copies from and to the memory at `address`, asked of this very process, unless it was lately."""
    last, before = load64(comm + WAYS.shown), load64(comm + WAYS.shown + 8)
    if last != address:
        if before != address and read_peer(control_at(comm, load64(comm + COMM.rank)), address, comm + WAYS.message, 1) == 0:
            return 0
        store64(comm + WAYS.shown, address)
        store64(comm + WAYS.shown + 8, last)
    return 1


@kernel("int64(int64, int64, int64, int64)")
def open_direct(comm, signature, words, count):  # type: ignore[no-untyped-def]
    """Publish `count` words: whether the buffers are shown, then what the algorithm wants.

    Returns the number of the collective if all have published theirs, else minus the code of a failure, or 0: some rank's
    buffer is not shown. Unless it is positive, the collective is over.
    """
    number = announce(comm, signature, words, 8 * count)
    return await_opened(comm, signature, number, count) if number > 0 else number


@kernel("int64(int64, int64, int64, int64)")
def await_opened(comm, signature, number, count):  # type: ignore[no-untyped-def]
    """The second half of :func:`open_direct`, of which :func:`announce` is the first: wait for all others. Returns what it returns."""
    code, shown = arrive_all(comm, number, signature), 1
    if code != 0:
        return -end(comm, number, code)
    for other in range(load64(comm + COMM.size)):
        if opened(comm, other, number, count, 0) == 0:
            shown = 0
    if shown == 0:
        end(comm, number, 0)
    return number * shown


@kernel("int64(int64, int64, int64, int64, int64)")
def open_rooted(comm, signature, root, words, count):  # type: ignore[no-untyped-def]
    """As :func:`open_direct`, with the words of the root alone, for which the others wait."""
    is_root = load64(comm + COMM.rank) == root
    number = announce(comm, signature, words, 8 * count if is_root else 0)
    if number < 0:
        return number
    code = 0 if is_root else arrive(comm, root, number, signature)
    if code != 0:
        return -end(comm, number, code)
    if opened(comm, root, number, count, 0) != 0:
        return number
    end(comm, number, 0)
    return 0


@kernel("int64(int64, int64, int64, int64)")
def announce(comm, signature, words, nbytes):  # type: ignore[no-untyped-def]
    """Publish `nbytes` of words. Returns the number of the collective, or minus the code of a failure."""
    note_look(comm)
    return begin(comm, signature, words, nbytes)


@kernel("void(int64)")
def note_look(comm):  # type: ignore[no-untyped-def]
    """A collective begins: Python's signals need not be looked at for a while."""
    store64(comm + WAYS.looked, ticks())


@kernel("int64(int64)")
def _look(comm):  # type: ignore[no-untyped-def]
    """Let Python run its signal handlers, if that was long ago. 0 or INTERRUPTED."""
    engine = load64(comm + COMM.engine)
    if ticks() - load64(comm + WAYS.looked) < load64(engine + ENGINE.slice_ticks):
        return 0
    code = check_signals(engine)
    note_look(comm)
    return code


@kernel("int64(int64, int64, int64, int64, int64)")
def opened(comm, other, number, count, index):  # type: ignore[no-untyped-def]
    """Word `index` of the `count` that rank `other` published."""
    return load64(payload(comm, other, number, 8 * count) + 8 * index)


@kernel("int64(int64, int64, int64, int64, int64)")
def pull(comm, other, source, target, nbytes):  # type: ignore[no-untyped-def]
    """Copy `nbytes` at `source` in the memory of rank `other` to `target`. 0, or why that was given up."""
    done, code = 0, 0
    while done < nbytes and code == 0:
        piece = min(_SLICE, nbytes - done)
        code = _look(comm)
        if code == 0 and read_peer(control_at(comm, other), source + done, target + done, piece) == 0:
            code = REFUSED
        done += piece
    return code


@kernel("int64(int64, int64, int64, int64, int64)")
def pull_runs(comm, other, source, target, nbytes):  # type: ignore[no-untyped-def]
    """Copy `nbytes` of runs in the memory of rank `other` to runs here (:data:`transports.shm.cma.RUNS`). 0, or why that was given up."""
    done, code = 0, 0
    while done < nbytes and code == 0:
        code = _look(comm)
        if code == 0:
            moved = read_runs(control_at(comm, other), source, target, done, min(nbytes, done + _SLICE))
            code = 0 if moved > 0 else REFUSED
            done += moved
    return code


@kernel("int64(int64, int64, int64, int64, int64)")
def push(comm, other, source, target, nbytes):  # type: ignore[no-untyped-def]
    """Copy `nbytes` at `source` to `target` in the memory of rank `other`. 0, or why that was given up."""
    done, code = 0, 0
    while done < nbytes and code == 0:
        piece = min(PIECE, nbytes - done)
        code = _look(comm)
        if code == 0:
            code = _push_piece(comm, other, source + done, target + done, piece)
        done += piece
    return code


@kernel("int64(int64, int64, int64, int64, int64)")
def _push_piece(comm, other, source, target, nbytes):  # type: ignore[no-untyped-def]
    slot, code = load64(comm + COMM.slot), BROKEN
    pushing = pushing_of(slot, load64(comm + COMM.size), load64(comm + COMM.rank))
    store_release(pushing, 1)
    full_fence()
    if load_acquire(slot + SLOT.broken) == 0:
        code = 0 if write_peer(control_at(comm, other), target, source, nbytes) != 0 else REFUSED
    store_release(pushing, 0)
    return code


@kernel("int64(int64, int64, int64)")
def back_and_forth(number, index, count):  # type: ignore[no-untyped-def]
    """Which of `count` pieces is copied as number `index` in collective `number`: from the first one on and from the last one, in turn.

    So a program that gives the same buffers again finds in its cache what it copied last.
    """
    return index if number & 1 == 0 else count - 1 - index


@kernel("void(int64, int64)")
def note_copied(comm, number):  # type: ignore[no-untyped-def]
    """Tell the others that this rank has copied all it has to in collective `number`, and reads no line of it any more."""
    store_release(done_of(load64(comm + COMM.slot), load64(comm + COMM.size), load64(comm + COMM.rank)), number)


@kernel("int64(int64, int64, int64)")
def await_copied(comm, other, number):  # type: ignore[no-untyped-def]
    """Wait until rank `other`, which has arrived, has copied all it has to. 0 or the code of a failure."""
    slot = load64(comm + COMM.slot)
    return wait_word(comm, done_of(slot, load64(comm + COMM.size), other), number, slot + SLOT.broken)


@kernel("int64(int64, int64, int64)")
def close_direct(comm, number, code):  # type: ignore[no-untyped-def]
    """End collective `number`, whose copies ended with `code`, when all ranks have made theirs: 0 or the code of a failure."""
    if code == 0:
        note_copied(comm, number)
        for other in range(load64(comm + COMM.size)):
            if code == 0:
                code = await_copied(comm, other, number)
    return end(comm, number, code)


@kernel("int64(int64, int64, int64, int64, int64)")
def close_rooted(comm, signature, root, number, code):  # type: ignore[no-untyped-def]
    """As :func:`close_direct`, for a collective in which the root alone gave its memory to the others."""
    rank = load64(comm + COMM.rank)
    if rank == root:
        for other in range(load64(comm + COMM.size)):
            if other != rank and code == 0:
                code = arrive(comm, other, number, signature)
                if code == 0:
                    code = await_copied(comm, other, number)
    return end(comm, number, code)


@kernel("void(int64, int64, int64, int64)")
def show(words, shown, first, second):  # type: ignore[no-untyped-def]
    """Write the words of a collective that publishes two addresses."""
    store64(words, shown)
    store64(words + 8, first)
    store64(words + 16, second)


@kernel("int64(int64, int64, int64, int64, int64)")
def copy_shared(comm, signature, source, address, nbytes):  # type: ignore[no-untyped-def]
    """A whole collective of two ranks: `nbytes` at `address` of rank `source` to `address` of the other one. Each copies one half.

    0, UNREACHED, or the code of a failure.
    """
    rank = load64(comm + COMM.rank)
    show(comm + WAYS.message, is_shown(comm, address), address, 0)
    number = open_direct(comm, signature, comm + WAYS.message, 2)
    if number <= 0:
        return -number if number < 0 else UNREACHED
    half, far = nbytes // 2 // _LINE * _LINE, opened(comm, 1 - rank, number, 2, 1)
    code = (
        push(comm, 1 - rank, address + half, far + half, nbytes - half)
        if rank == source
        else pull(comm, source, far, address, half)
    )
    return close_direct(comm, number, code)

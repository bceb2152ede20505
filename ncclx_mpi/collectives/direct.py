"""Direct collectives: the kernel copies straight between the private buffers of the ranks.

::

    open     every rank publishes where its buffers are         and waits for all: nobody reads or changes them since
    copy     process_vm_readv, process_vm_writev                one copy a byte, no ring
    close    every rank says that it has copied all it has to   and waits for all: the buffers are the callers' again

Writing beats reading where the source is in the writer's cache, so ranks push what they have and pull only what they reduce.

=================  =============  ===============  =============================================================================
word               written by     polled by        order and meaning
=================  =============  ===============  =============================================================================
``pushing``        its rank       who gives up     1 while the rank writes into memory of others; fenced before ``SLOT.broken`` is read
``SLOT.broken``    who gives up   who pushes       before each piece: nothing more is written then
=================  =============  ===============  =============================================================================

So a rank that gives up in the middle (Ctrl-C, a dead peer) raises the alarm, waits until nobody pushes, and nothing writes into its
buffer any more. What others read of it then is void, and the alarm ends their collective too.

A buffer that the kernel cannot pin is found out before anything has moved, and the collective goes by streams on all ranks.
"""

from __future__ import annotations

from ncclx_mpi.collectives.lines import arrive_all, begin, end, payload
from ncclx_mpi.collectives.ways import WAYS, meet, peer_at, word_of
from ncclx_mpi.p2p.layout import COMM, PEER, REFUSED
from numba_kernels.atomics import full_fence, load64, load_acquire, store64, store_release
from numba_kernels.jit import kernel
from transports.shm.cma import read_peer, write_peer
from transports.shm.layout import CONTROL
from transports.shm.slots import SLOT, pushing_of

UNREACHED = -1
"""The collective did not take place: some rank's buffer is such that the kernel does not copy from or to it."""
PIECE = 512 << 10
"""Bytes that are pushed at once: an alarm is noticed between two pieces, and a piece that is copied twice is in the cache."""


@kernel("int64(int64, int64)")
def _pid(comm, other):  # type: ignore[no-untyped-def]
    return load64(load64(peer_at(comm, other) + PEER.control) + CONTROL.pid)


@kernel("int64(int64, int64)")
def is_shown(comm, address):  # type: ignore[no-untyped-def]
    """Whether the kernel copies from and to the memory at `address`, asked of this very process, unless it was the last time."""
    if load64(comm + WAYS.shown) != address:
        if read_peer(_pid(comm, load64(comm + COMM.rank)), address, comm + WAYS.message, 1) == 0:
            return 0
        store64(comm + WAYS.shown, address)
    return 1


@kernel("int64(int64, int64, int64, int64)")
def open_direct(comm, signature, words, count):  # type: ignore[no-untyped-def]
    """Publish `count` words: whether the buffers are shown, then what the algorithm wants.

    Returns the number of the collective if all have published theirs, else minus the code of a failure, or 0: some rank's
    buffer is not shown. Unless it is positive, the collective is over.
    """
    number = begin(comm, signature, words, 8 * count)
    if number < 0:
        return number
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
def opened(comm, other, number, count, index):  # type: ignore[no-untyped-def]
    """Word `index` of the `count` that rank `other` published."""
    return load64(payload(comm, other, number, 8 * count) + 8 * index)


@kernel("int64(int64, int64, int64, int64, int64)")
def pull(comm, other, source, target, nbytes):  # type: ignore[no-untyped-def]
    """Copy `nbytes` at `source` in the memory of rank `other` to `target`. 0, or 1 if the kernel refused."""
    return 1 - read_peer(_pid(comm, other), source, target, nbytes)


@kernel("int64(int64, int64, int64, int64, int64)")
def push(comm, other, source, target, nbytes):  # type: ignore[no-untyped-def]
    """Copy `nbytes` at `source` to `target` in the memory of rank `other`. 0, or 1 if the kernel refused or there was an alarm."""
    slot = load64(comm + COMM.slot)
    pushing = pushing_of(slot, load64(comm + COMM.size), load64(comm + COMM.rank))
    done, copied = 0, 1
    while done < nbytes and copied != 0:
        piece = min(PIECE, nbytes - done)
        store_release(pushing, 1)
        full_fence()
        copied = 0
        if load_acquire(slot + SLOT.broken) == 0:
            copied = write_peer(_pid(comm, other), target + done, source + done, piece)
        store_release(pushing, 0)
        done += piece
    return 1 - copied


@kernel("int64(int64, int64, int64, int64)")
def close_direct(comm, signature, number, refused):  # type: ignore[no-untyped-def]
    """End collective `number` when all ranks have copied: 0, REFUSED if any rank was refused something, or the code of a failure."""
    end(comm, number, 0)
    last = meet(comm, signature, refused)
    if last < 0:
        return -last
    code = 0
    for other in range(load64(comm + COMM.size)):
        if word_of(comm, other, last) != 0:
            code = REFUSED
    return end(comm, last, code)


@kernel("void(int64, int64, int64, int64)")
def show(words, shown, first, second):  # type: ignore[no-untyped-def]
    """Write the words of a collective that publishes two addresses."""
    store64(words, shown)
    store64(words + 8, first)
    store64(words + 16, second)

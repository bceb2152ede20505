"""Lines: how small collectives inside a node meet. One line a rank, one transfer between cores.

::

    rank 0:  line {number, signature, payload}  --.      every rank writes its own line (release) and reads those
    rank 1:  line {number, signature, payload}  --+-->   of the ranks it needs (acquire), in rank order;
    rank 2:  line {number, signature, payload}  --'      payloads over 48 bytes stand in the rank's buffer in the slot

A collective is :func:`begin` (publish), :func:`arrive` for each rank that is needed, :func:`end`. The *number* counts the collectives of the
communicator; the *signature* says which collective, how many bytes and which root the rank called with, so that ranks that disagree get
an error instead of a hang. Words, writers and memory orders: :mod:`transports.shm.slots`.

Ranks that need nobody (the root of a bcast, the leaves of a gather) run ahead by up to 16 collectives, two with a payload over 2 KiB:
``known`` is the collective that all ranks are known to have finished, looked up again only when it is too old. A collective in which
all wait for all teaches it for nothing.

T = alpha (one line transfer, 0.1-0.2 us) + (n - 1) * m * beta for m bytes read from each of n - 1 ranks.
"""

from __future__ import annotations

from ncclx_mpi.p2p.layout import BROKEN, COMM, ENGINE, FAILED
from ncclx_mpi.p2p.progress import trace_begin, trace_end
from ncclx_mpi.p2p.waiting import wait_word
from numba_kernels.atomics import call_reduce, load64, load_acquire, store64, store_release
from numba_kernels.jit import kernel
from numba_kernels.layout import words
from numba_kernels.memory import copy, write_shared
from transports.shm.slots import BIGS, DEPTH, INLINE, LINE, MID, SLOT, buffer_of, done_of, line_of

SCRATCH = words("Scratch", "known record streams offender own_signature its_signature", start=COMM.scratch)
"""Private words of a communicator: see the module's text for ``known``; the others tell Python what a mismatch was about."""

BARRIER, BCAST, REDUCE, ALLREDUCE, GATHER, SCATTER, ALLGATHER, ALLTOALL, REDUCE_SCATTER, SCAN, EXSCAN = range(7, 18)
"""Kinds of collective: the numbers of trace records."""

ERR_ROOT, ERR_TRUNCATE, ERR_OTHER = 7, 14, 15
_ROOT_BITS, _ROOT_SHIFT, _BYTES_SHIFT = 12, 8, 20


@kernel("int64(int64, int64, int64)")
def sign(kind, root, nbytes):  # type: ignore[no-untyped-def]
    """What a rank called: collective, root and bytes in one word."""
    return kind | (root << _ROOT_SHIFT) | (nbytes << _BYTES_SHIFT)


def read_signature(signature: int) -> tuple[int, int, int]:
    """Kind, root and bytes of a signature."""
    return signature & 0xFF, (signature >> _ROOT_SHIFT) & ((1 << _ROOT_BITS) - 1), signature >> _BYTES_SHIFT


@kernel("int64(int64, int64)")
def _look_up_known(comm, needed):  # type: ignore[no-untyped-def]
    """Wait until all ranks have finished collective `needed`, and note how far they really are."""
    slot, size, rank = load64(comm + COMM.slot), load64(comm + COMM.size), load64(comm + COMM.rank)
    known = load64(comm + COMM.sequence)
    for other in range(size):
        if other != rank:
            word = done_of(slot, size, other)
            code = wait_word(comm, word, needed, slot + SLOT.broken)
            if code != 0:
                return code
            known = min(known, load_acquire(word))
    store64(comm + SCRATCH.known, known)
    return 0


@kernel("void(int64)")
def give_up(comm):  # type: ignore[no-untyped-def]
    """Mark the communicator as broken, here and for those who wait in it."""
    store64(comm + COMM.broken, 1)
    store_release(load64(comm + COMM.slot) + SLOT.broken, 1 + load64(comm + COMM.rank))


@kernel("int64(int64, int64, int64, int64)")
def begin(comm, signature, address, nbytes):  # type: ignore[no-untyped-def]
    """Start a collective and publish `nbytes` of payload for it. Returns its number, or minus the code of a failure."""
    if load64(comm + COMM.broken) != 0:
        return -BROKEN
    engine, slot = load64(comm + COMM.engine), load64(comm + COMM.slot)
    size, rank = load64(comm + COMM.size), load64(comm + COMM.rank)
    record = trace_begin(
        engine,
        signature & 0xFF,
        load64(comm + COMM.context),
        (signature >> _ROOT_SHIFT) & ((1 << _ROOT_BITS) - 1),
        0,
        signature >> _BYTES_SHIFT,
    )
    store64(comm + SCRATCH.record, record)
    number = load64(comm + COMM.sequence) + 1
    needed = number - (DEPTH if nbytes <= MID else BIGS)
    if load64(comm + SCRATCH.known) < needed:
        code = _look_up_known(comm, needed)
        if code != 0:
            give_up(comm)
            return -code
    store64(comm + COMM.sequence, number)
    line = line_of(slot, rank, number)
    store64(line + LINE.signature, signature)
    if nbytes > INLINE:
        write_shared(buffer_of(slot, size, rank, number, nbytes), address, nbytes, load64(engine + ENGINE.streamed))
    elif nbytes == 8:
        store64(line + LINE.payload, load64(address))
    elif nbytes > 0:
        copy(line + LINE.payload, address, nbytes)
    store_release(line + LINE.stamp, number)
    return number


@kernel("int64(int64, int64, int64, int64)")
def arrive(comm, other, number, signature):  # type: ignore[no-untyped-def]
    """Wait until rank `other` has published collective `number`, and check that it called the same. 0 or the code of a failure."""
    slot = load64(comm + COMM.slot)
    line = line_of(slot, other, number)
    code = wait_word(comm, line + LINE.stamp, number, slot + SLOT.broken)
    if code != 0:
        return code
    return check_signature(comm, other, signature, load64(line + LINE.signature))


@kernel("int64(int64, int64, int64, int64)")
def check_signature(comm, other, signature, its):  # type: ignore[no-untyped-def]
    """0 if rank `other` called what we called, else an error, with both noted for Python."""
    if its == signature:
        return 0
    store64(comm + SCRATCH.offender, other)
    store64(comm + SCRATCH.own_signature, signature)
    store64(comm + SCRATCH.its_signature, its)
    if (its & 0xFF) != (signature & 0xFF):
        return FAILED + ERR_OTHER
    if (its >> _BYTES_SHIFT) != (signature >> _BYTES_SHIFT):
        return FAILED + ERR_TRUNCATE
    return FAILED + ERR_ROOT


@kernel("int64(int64, int64, int64, int64)")
def payload(comm, other, number, nbytes):  # type: ignore[no-untyped-def]
    """Where the `nbytes` of payload of rank `other` stand."""
    slot = load64(comm + COMM.slot)
    if nbytes <= INLINE:
        return line_of(slot, other, number) + LINE.payload
    return buffer_of(slot, load64(comm + COMM.size), other, number, nbytes)


@kernel("int64(int64, int64, int64)")
def arrive_all(comm, number, signature):  # type: ignore[no-untyped-def]
    """Wait until every rank has published collective `number`. Then all have finished the one before."""
    rank = load64(comm + COMM.rank)
    for other in range(load64(comm + COMM.size)):
        if other != rank:
            code = arrive(comm, other, number, signature)
            if code != 0:
                return code
    store64(comm + SCRATCH.known, number - 1)
    return 0


@kernel("int64(int64, int64, int64)")
def end(comm, number, code):  # type: ignore[no-untyped-def]
    """End collective `number`: say that this rank reads nothing of it any more, or mark the communicator as broken. Returns `code`."""
    if code != 0:
        give_up(comm)
        return code
    slot, size, rank = load64(comm + COMM.slot), load64(comm + COMM.size), load64(comm + COMM.rank)
    store_release(done_of(slot, size, rank), number)
    trace_end(load64(comm + SCRATCH.record))
    return 0


@kernel("int64(int64, int64, int64, int64, int64, int64, int64, int64, int64, int64)")
def reduce_upto(comm, number, signature, published, offset, out, count, itemsize, fn, stop):  # type: ignore[no-untyped-def]
    """Reduce `count` elements at `offset` of the payloads of ranks 0 to `stop` - 1 into private memory at `out`, in rank order.

    `published` is the size of the payloads. ((0 + 1) + 2) + ...: the same bits on whichever rank, by whichever algorithm.
    """
    code = arrive(comm, 0, number, signature)
    if code != 0:
        return code
    low = payload(comm, 0, number, published) + offset
    if stop == 1:
        copy(out, low, count * itemsize)
    for other in range(1, stop):
        code = arrive(comm, other, number, signature)
        if code != 0:
            return code
        call_reduce(fn, out, low, payload(comm, other, number, published) + offset, count)
        low = out
    return 0

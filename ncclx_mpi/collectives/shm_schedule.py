"""Non-blocking and persistent collectives: published when they start, collected, in order, when all that is needed is there.

::

    start:      entry {number, what it gives, what it needs}  -->  the communicator's ring of entries
    publish:    own line number q  <-  what it gives               as soon as the line is free, in order
    collect:    recv  <-  lines q of the ranks that it needs       as soon as they are published, in order

Large ones publish where their buffers are, and "collect" is to copy between them, piece by piece (:mod:`ncclx_mpi.collectives.cma_schedule`);
those with counts, and those between neighbours, publish and collect block by block (:mod:`ncclx_mpi.collectives.shm_vector_schedule`,
:mod:`ncclx_mpi.collectives.neighbor_alltoall.shm_edge_schedule`).

A collective takes the communicator's next line number, blocking or not, since all ranks call them in one order. ``start`` does not
block: where the ring of lines, or of payloads, is full, the entry waits and is published later. Whoever makes progress
(:func:`advance` of this communicator, :func:`step` of all) publishes and collects, under the engine's lock.

Entries are collected in order, so a number says all about a request: it is complete once ``collected`` has come so far. MPI allows it:
each of the ranks that an earlier collective needs starts that one before those after it, in which any rank may be made to wait for any
other. For the same reason a blocking collective first waits until nothing is pending, and needs no further care.

``done`` of the slot follows ``collected``, so no peer writes over a line that is still needed here. What is published was copied, but the
buffers stay the collective's until it is complete: publishing may come late.

T = alpha + what :mod:`ncclx_mpi.collectives.shm_oneshot` says, less what passes while the rank computes.

====================  ================  ========================================================================================
word of ``SCRATCH``   written           meaning
====================  ================  ========================================================================================
``started``           by the starter    number of the last entry
``collected``         under the lock    release after its result: number of the last entry that was collected
``first``             under the lock    entries collected, ever: the first pending one
``announced``         under the lock    entries published, ever
``end``               under the lock    entries started, ever
``entries, room``     under the lock    the ring of entries, a power of two of them
``keeper``            by Python         address of the object that has the ring, kept alive by every request
``linked, next``      under the lock    whether this communicator is in the engine's list, and the one after it there
``leaving``           under the lock    the communicator was freed: its slot goes back when nothing is pending
``failure``           under the lock    the code of what failed here; nothing is pending then
====================  ================  ========================================================================================
"""

from __future__ import annotations

from ncclx_mpi.collectives.select import on_lines
from ncclx_mpi.collectives.shm_oneshot import (
    AHEAD,
    ALLGATHER,
    ALLREDUCE,
    ALLTOALL,
    BARRIER,
    BCAST,
    EXSCAN,
    GATHER,
    REDUCE,
    REDUCE_SCATTER,
    SCAN,
    SCATTER,
    SCRATCH,
    arrive,
    give_up,
    in_flight,
    note_known,
    open_record,
    payload,
    plain_kind,
    publish,
    publish_payload,
    reduce_upto,
    remember,
    sign,
    take_line,
)
from ncclx_mpi.p2p.completing import GIL_SHIFT
from ncclx_mpi.p2p.layout import BROKEN, COLLECTIVE, COMM, COMPLETE, ENGINE, REQUEST
from ncclx_mpi.p2p.matching import release_request, reset_request
from ncclx_mpi.p2p.progress import lock, progress, sched_yield, trace_end, trouble, unlock
from ncclx_mpi.p2p.stirring import stir
from ncclx_mpi.p2p.waiting import keep_waiting
from numba_kernels.atomics import load64, load_acquire, load_relaxed, pause, store64, store_release, ticks
from numba_kernels.calls import call_step
from numba_kernels.jit import kernel
from numba_kernels.layout import words
from numba_kernels.memory import copy, copy_lines, move, release
from transports.shm.slots import LINE, SLOT, done_of, give_back, line_of

ENTRY = words(
    "Entry",
    "number past seen request signature given published first stop theirs offset recv stride size fn kept_from kept_to kept_bytes | "
    "way shown send_at recv_at nbytes itemsize comm moved closed outcome table owned part steps differs | ",
)
"""``given``, ``published``: address and bytes of what this rank gives. ``first``, ``stop``: the ranks that it needs, itself aside; it
has seen those before ``seen``. Each of them publishes ``theirs`` bytes, and ``size`` bytes at ``offset`` of rank r are copied to
``recv`` + r * ``stride``. With a function, ``size`` elements of ``stride`` bytes at ``offset`` of all ranks before ``stop`` are reduced
to ``recv``. ``kept_bytes`` of its own this rank copies from ``kept_from`` to ``kept_to`` when it starts. ``request``: what becomes
complete with it, if anything. The words from ``signature`` on are the same each time that a persistent collective starts.

``way`` is ON_LINES; or DIRECTLY: three words are published, from ``shown`` on (1, and where the buffers are), and what follows is
:mod:`ncclx_mpi.collectives.cma_schedule`'s; or REFUSING: this rank cannot go directly, and tells the others; or BY_BLOCKS: what follows is
another module's, ``steps`` is the address of its step, and ``owned`` is memory to give back once it is complete."""
ON_LINES, DIRECTLY, REFUSING, BY_BLOCKS = range(4)
DIRECT_WORDS = 3

NO_ROOM = -100
"""The ring of entries is full, or there is none yet: :func:`move_entries` to a larger one."""
_POLLS = 400
_YIELDS = 4


# Starting ---------------------------------------------------------------------------------------------------------


@kernel("int64(int64)", is_entry=True)
def has_room(comm):  # type: ignore[no-untyped-def]
    """Whether another collective can be started."""
    return 1 if load64(comm + SCRATCH.end) - load_relaxed(comm + SCRATCH.first) < load64(comm + SCRATCH.room) else 0


@kernel("int64(int64, int64)")
def _entry(comm, index):  # type: ignore[no-untyped-def]
    """The entry that is number `index` of all that were ever started."""
    return load64(comm + SCRATCH.entries) + (index & (load64(comm + SCRATCH.room) - 1)) * ENTRY.total


@kernel("void(int64, int64, int64)")
def _give(entry, address, nbytes):  # type: ignore[no-untyped-def]
    store64(entry + ENTRY.given, address)
    store64(entry + ENTRY.published, nbytes)


@kernel("void(int64, int64, int64, int64)")
def keep_block(entry, target, source, nbytes):  # type: ignore[no-untyped-def]
    """What this rank keeps: `nbytes` from `source` to `target`, unless either is 0 or both are the same."""
    store64(entry + ENTRY.kept_to, target)
    store64(entry + ENTRY.kept_from, source)
    store64(entry + ENTRY.kept_bytes, nbytes if target != 0 and source != 0 and target != source else 0)


@kernel("void(int64, int64, int64)")
def _need(entry, first, stop):  # type: ignore[no-untyped-def]
    """Ranks `first` to `stop` - 1 must have started it; nothing is taken from them yet."""
    store64(entry + ENTRY.first, first)
    store64(entry + ENTRY.stop, stop)
    store64(entry + ENTRY.size, 0)


@kernel("void(int64, int64)")
def sign_entry(entry, signature):  # type: ignore[no-untyped-def]
    """Make it the entry of a collective that gives and needs nothing yet."""
    store64(entry + ENTRY.signature, signature)
    store64(entry + ENTRY.published, 0)
    store64(entry + ENTRY.fn, 0)
    store64(entry + ENTRY.kept_bytes, 0)
    store64(entry + ENTRY.way, ON_LINES)
    _need(entry, 0, 0)


@kernel("void(int64, int64, int64, int64, int64, int64, int64, int64)")
def _go_directly(comm, entry, signature, send, recv, nbytes, itemsize, fn):  # type: ignore[no-untyped-def]
    """Make it the entry of a collective by direct copies."""
    sign_entry(entry, signature | AHEAD)
    _give(entry, 0, 8 * DIRECT_WORDS)
    _need(entry, 0, load64(comm + COMM.size))
    store64(entry + ENTRY.way, DIRECTLY)
    store64(entry + ENTRY.steps, load64(comm + SCRATCH.one_sided))
    store64(entry + ENTRY.shown, 1)
    store64(entry + ENTRY.send_at, send)
    store64(entry + ENTRY.recv_at, recv)
    store64(entry + ENTRY.nbytes, nbytes)
    store64(entry + ENTRY.itemsize, itemsize)
    store64(entry + ENTRY.fn, fn)
    store64(entry + ENTRY.comm, comm)
    store64(entry + ENTRY.moved, 0)
    store64(entry + ENTRY.closed, 0)


@kernel("void(int64)", is_entry=True)
def refuse(entry):  # type: ignore[no-untyped-def]
    """Make a described collective one that stands for it while it goes as a plan on this rank, and others may wait for it to go directly."""
    store64(entry + ENTRY.way, REFUSING)
    store64(entry + ENTRY.shown, 0)
    _need(entry, 0, 0)


@kernel("int64(int64, int64)")
def new_entry(comm, request):  # type: ignore[no-untyped-def]
    """Where the next entry goes; minus the code of a failure; NO_ROOM."""
    if load64(comm + COMM.broken) != 0:
        return -BROKEN
    if has_room(comm) == 0:
        return NO_ROOM
    entry = _entry(comm, load64(comm + SCRATCH.end))
    store64(entry + ENTRY.request, request)
    return entry


@kernel("void(int64, int64, int64, int64, int64, int64)")
def _take(entry, theirs, offset, recv, stride, size):  # type: ignore[no-untyped-def]
    """Of the `theirs` bytes of each rank that is needed, `size` at `offset` go to `recv`, `stride` bytes apart."""
    store64(entry + ENTRY.theirs, theirs)
    store64(entry + ENTRY.offset, offset)
    store64(entry + ENTRY.recv, recv)
    store64(entry + ENTRY.stride, stride)
    store64(entry + ENTRY.size, size)


@kernel("int64(int64, int64)")
def commit(comm, entry):  # type: ignore[no-untyped-def]
    """Give an entry the communicator's next number, and publish it if that is possible now. Returns the number."""
    engine, kept = load64(comm + COMM.engine), load64(entry + ENTRY.kept_bytes)
    if kept > 0:
        move(load64(entry + ENTRY.kept_to), load64(entry + ENTRY.kept_from), kept)
    lock(engine)
    number = load64(comm + COMM.sequence) + 1
    store64(comm + COMM.sequence, number)
    store64(comm + SCRATCH.started, number)
    store64(entry + ENTRY.number, number)
    store64(entry + ENTRY.seen, load64(entry + ENTRY.first))
    request = load64(entry + ENTRY.request)
    if request != 0:
        store64(request + REQUEST.kind, COLLECTIVE)
        store64(request + REQUEST.tag, plain_kind(load64(entry + ENTRY.signature)))
        store64(request + REQUEST.context, load64(comm + COMM.context))
        store64(request + REQUEST.sequence, number)
    remember(comm, load64(entry + ENTRY.signature))
    store64(entry + ENTRY.past, load64(comm + SCRATCH.past))
    store64(comm + SCRATCH.end, load64(comm + SCRATCH.end) + 1)
    if load64(comm + SCRATCH.linked) == 0:
        store64(comm + SCRATCH.linked, 1)
        store64(comm + SCRATCH.next, load64(engine + ENGINE.lines_first))
        store64(engine + ENGINE.lines_first, comm)
        stir(engine)
    _publish_all(comm)
    if load64(comm + SCRATCH.announced) != load64(comm + SCRATCH.end):
        advance_locked(comm)
    unlock(engine)
    return number


@kernel("int64(int64, int64, int64)", is_entry=True, nogil=False)
def start_described(comm, request, described):  # type: ignore[no-untyped-def]
    """Start the collective that one of the functions below has described. Returns its number; minus the code of a failure; NO_ROOM."""
    entry = new_entry(comm, request)
    if entry < 0:
        return entry
    copy(entry + ENTRY.signature, described + ENTRY.signature, ENTRY.total - ENTRY.signature)
    return commit(comm, entry)


@kernel("void(int64)", is_entry=True)
def start_again(request):  # type: ignore[no-untyped-def]
    """Start a persistent request that is FREE; it stays so if that is not possible."""
    comm = load64(request + REQUEST.bound_comm)
    if load64(comm + COMM.broken) == 0 and has_room(comm) != 0:
        reset_request(load64(comm + COMM.engine), request)
        start_described(comm, request, load64(request + REQUEST.bound_address))


# What each collective is, written to an entry ----------------------------------------------------------------------


@kernel("void(int64, int64)", is_entry=True)
def describe_barrier(comm, entry):  # type: ignore[no-untyped-def]
    """A barrier."""
    sign_entry(entry, sign(BARRIER, 0, 0))
    _need(entry, 0, load64(comm + COMM.size))


@kernel("void(int64, int64, int64, int64, int64)", is_entry=True)
def describe_bcast(comm, entry, address, nbytes, root):  # type: ignore[no-untyped-def]
    """A bcast."""
    if on_lines(comm, BCAST, nbytes) == 0:
        return _go_directly(comm, entry, sign(BCAST, root, nbytes), address, address, nbytes, 1, 0)
    sign_entry(entry, sign(BCAST, root, nbytes))
    if load64(comm + COMM.rank) == root:
        _give(entry, address, nbytes)
    elif nbytes > 0:
        _need(entry, root, root + 1)
        _take(entry, nbytes, 0, address, 0, nbytes)


@kernel("void(int64, int64, int64, int64, int64, int64)", is_entry=True)
def describe_gather(comm, entry, send, nbytes, recv, root):  # type: ignore[no-untyped-def]
    """A gather; `send` = 0 at the root means in place."""
    if on_lines(comm, GATHER, nbytes) == 0:
        return _go_directly(comm, entry, sign(GATHER, root, nbytes), send, recv, nbytes, 1, 0)
    rank = load64(comm + COMM.rank)
    sign_entry(entry, sign(GATHER, root, nbytes))
    if rank != root:
        _give(entry, send, nbytes)
    elif nbytes > 0:
        keep_block(entry, recv + rank * nbytes, send, nbytes)
        _need(entry, 0, load64(comm + COMM.size))
        _take(entry, nbytes, 0, recv, nbytes, nbytes)


@kernel("void(int64, int64, int64, int64, int64, int64)", is_entry=True)
def describe_scatter(comm, entry, send, recv, nbytes, root):  # type: ignore[no-untyped-def]
    """A scatter; `recv` = 0 at the root means in place."""
    rank, total = load64(comm + COMM.rank), nbytes * load64(comm + COMM.size)
    if on_lines(comm, SCATTER, total) == 0:
        return _go_directly(comm, entry, sign(SCATTER, root, nbytes), send, recv, nbytes, 1, 0)
    sign_entry(entry, sign(SCATTER, root, nbytes))
    if rank == root:
        _give(entry, send, total)
        keep_block(entry, recv, send + rank * nbytes, nbytes)
    elif nbytes > 0:
        _need(entry, root, root + 1)
        _take(entry, total, rank * nbytes, recv, 0, nbytes)


@kernel("void(int64, int64, int64, int64, int64)", is_entry=True)
def describe_allgather(comm, entry, send, nbytes, recv):  # type: ignore[no-untyped-def]
    """An allgather; `send` = 0 means in place."""
    own = recv + load64(comm + COMM.rank) * nbytes
    if on_lines(comm, ALLGATHER, nbytes) == 0:
        return _go_directly(comm, entry, sign(ALLGATHER, 0, nbytes), own if send == 0 else send, recv, nbytes, 1, 0)
    sign_entry(entry, sign(ALLGATHER, 0, nbytes))
    if nbytes > 0:
        _give(entry, own if send == 0 else send, nbytes)
        keep_block(entry, own, send, nbytes)
        _need(entry, 0, load64(comm + COMM.size))
        _take(entry, nbytes, 0, recv, nbytes, nbytes)


@kernel("void(int64, int64, int64, int64, int64)", is_entry=True)
def describe_alltoall(comm, entry, send, recv, nbytes):  # type: ignore[no-untyped-def]
    """An alltoall; `send` == `recv` means in place, on lines only."""
    mine, total = load64(comm + COMM.rank) * nbytes, nbytes * load64(comm + COMM.size)
    if on_lines(comm, ALLTOALL, total) == 0:
        return _go_directly(comm, entry, sign(ALLTOALL, 0, nbytes), send, recv, nbytes, 1, 0)
    sign_entry(entry, sign(ALLTOALL, 0, nbytes))
    if nbytes > 0:
        _give(entry, send, total)
        keep_block(entry, recv + mine, send + mine, nbytes)
        _need(entry, 0, load64(comm + COMM.size))
        _take(entry, total, mine, recv, nbytes, nbytes)


@kernel("void(int64, int64, int64, int64, int64, int64, int64, int64, int64, int64)")
def _describe_reduction(entry, signature, send, total, stop, first, recv, count, itemsize, fn):  # type: ignore[no-untyped-def]
    """A reduction of `count` elements from `first` of the `total` of each rank before `stop`; 0: this rank gets nothing."""
    sign_entry(entry, signature)
    if total > 0:
        _give(entry, send, total * itemsize)
        _need(entry, 0, stop)
        _take(entry, total * itemsize, first * itemsize, recv, itemsize, count)
        store64(entry + ENTRY.fn, fn)


@kernel("void(int64, int64, int64, int64, int64, int64, int64, int64)", is_entry=True)
def describe_reduce(comm, entry, send, recv, count, itemsize, fn, root):  # type: ignore[no-untyped-def]
    """A reduce by a compiled function; `send` == `recv` at the root means in place."""
    stop = load64(comm + COMM.size) if load64(comm + COMM.rank) == root else 0
    if on_lines(comm, REDUCE, count * itemsize) == 0:
        nbytes = count * itemsize
        return _go_directly(comm, entry, sign(REDUCE, root, nbytes), send, recv, nbytes, itemsize, fn)
    _describe_reduction(entry, sign(REDUCE, root, count * itemsize), send, count, stop, 0, recv, count, itemsize, fn)


@kernel("void(int64, int64, int64, int64, int64, int64, int64)", is_entry=True)
def describe_allreduce(comm, entry, send, recv, count, itemsize, fn):  # type: ignore[no-untyped-def]
    """An allreduce by a compiled function; `send` == `recv` means in place."""
    stop = load64(comm + COMM.size)
    if on_lines(comm, ALLREDUCE, count * itemsize) == 0:
        nbytes = count * itemsize
        return _go_directly(comm, entry, sign(ALLREDUCE, 0, nbytes), send, recv, nbytes, itemsize, fn)
    _describe_reduction(entry, sign(ALLREDUCE, 0, count * itemsize), send, count, stop, 0, recv, count, itemsize, fn)


@kernel("void(int64, int64, int64, int64, int64, int64, int64, int64, int64)", is_entry=True)
def describe_reduce_scatter(comm, entry, send, recv, total, first, count, itemsize, fn):  # type: ignore[no-untyped-def]
    """A reduce_scatter by a compiled function, in which this rank gets `count` elements from `first` of `total`.

    `send` == `recv` means in place, on lines only. By direct copies, `first` stands in ``offset``.
    """
    signature = sign(REDUCE_SCATTER, 0, total * itemsize)
    if on_lines(comm, REDUCE_SCATTER, total * itemsize) == 0:
        _go_directly(comm, entry, signature, send, recv, count * itemsize, itemsize, fn)
        store64(entry + ENTRY.offset, first)
        return
    _describe_reduction(entry, signature, send, total, load64(comm + COMM.size), first, recv, count, itemsize, fn)


@kernel("void(int64, int64, int64, int64, int64, int64, int64)", is_entry=True)
def describe_reduce_scatter_block(comm, entry, send, recv, count, itemsize, fn):  # type: ignore[no-untyped-def]
    """As describe_reduce_scatter, with `count` elements for each rank."""
    first, total = count * load64(comm + COMM.rank), count * load64(comm + COMM.size)
    describe_reduce_scatter(comm, entry, send, recv, total, first, count, itemsize, fn)


@kernel("void(int64, int64, int64, int64, int64, int64, int64, int64)", is_entry=True)
def describe_scan(comm, entry, send, recv, count, itemsize, fn, exclusive):  # type: ignore[no-untyped-def]
    """A scan or exscan of at most ``BIG`` bytes by a compiled function; `send` == `recv` means in place."""
    kind, stop = EXSCAN if exclusive != 0 else SCAN, load64(comm + COMM.rank) + 1 - exclusive
    _describe_reduction(entry, sign(kind, 0, count * itemsize), send, count, stop, 0, recv, count, itemsize, fn)


# Progress ---------------------------------------------------------------------------------------------------------


@kernel("int64(int64, int64)")
def _publish(comm, entry):  # type: ignore[no-untyped-def]
    """Publish an entry if its line and buffer are this rank's to write: 1 if it is published, 0, or minus the code of a failure."""
    number, nbytes = load64(entry + ENTRY.number), load64(entry + ENTRY.published)
    needed = number - in_flight(comm, nbytes)
    if load64(comm + SCRATCH.known) < needed:
        code = note_known(comm)
        if code != 0:
            return -code
        if load64(comm + SCRATCH.known) < needed:
            return 0
    take_line(comm, number, nbytes)
    way, line = load64(entry + ENTRY.way), line_of(load64(comm + COMM.slot), load64(comm + COMM.rank), number)
    store64(line + LINE.signature, load64(entry + ENTRY.signature) | load64(entry + ENTRY.past))
    if way == BY_BLOCKS:
        call_step(load64(entry + ENTRY.steps), entry)
        publish(comm, number)
    else:
        publish_payload(comm, number, entry + ENTRY.shown if way != ON_LINES else load64(entry + ENTRY.given), nbytes)
    return 1


@kernel("void(int64)")
def _publish_all(comm):  # type: ignore[no-untyped-def]
    """Publish what can be published."""
    index, end = load64(comm + SCRATCH.announced), load64(comm + SCRATCH.end)
    while index < end:
        entry = _entry(comm, index)
        code = _publish(comm, entry)
        if code < 0:
            _fail(comm, -code)
            return
        if code == 0:
            return
        index += 1
        store64(comm + SCRATCH.announced, index)


@kernel("int64(int64, int64)")
def _is_ready(comm, entry):  # type: ignore[no-untyped-def]
    """Whether all the ranks that an entry needs have published it."""
    slot, rank, number = load64(comm + COMM.slot), load64(comm + COMM.rank), load64(entry + ENTRY.number)
    other, stop = load64(entry + ENTRY.seen), load64(entry + ENTRY.stop)
    while other < stop:
        if other != rank and load_acquire(line_of(slot, other, number) + LINE.stamp) < number:
            store64(entry + ENTRY.seen, other)
            return 0
        other += 1
    store64(entry + ENTRY.seen, other)
    return 1


@kernel("int64(int64, int64)")
def _collect(comm, entry):  # type: ignore[no-untyped-def]
    """Take from the ranks that an entry needs what it wants of them: 0 or the code of a failure."""
    number, signature, theirs = load64(entry + ENTRY.number), load64(entry + ENTRY.signature), load64(entry + ENTRY.theirs)
    stop, offset, recv = load64(entry + ENTRY.stop), load64(entry + ENTRY.offset), load64(entry + ENTRY.recv)
    store64(comm + SCRATCH.past, load64(entry + ENTRY.past))
    stride, size, fn = load64(entry + ENTRY.stride), load64(entry + ENTRY.size), load64(entry + ENTRY.fn)
    if fn != 0:
        return reduce_upto(comm, number, signature, theirs, offset, recv, size, stride, fn, stop) if stop > 0 else 0
    rank = load64(comm + COMM.rank)
    for other in range(load64(entry + ENTRY.first), stop):
        if other != rank:
            code = arrive(comm, other, number, signature)
            if code != 0:
                return code
            if size == 8:
                store64(recv + other * stride, load64(payload(comm, other, number, theirs) + offset))
            elif size > 0:
                copy_lines(recv + other * stride, payload(comm, other, number, theirs) + offset, size)
    return 0


@kernel("void(int64)")
def advance_locked(comm):  # type: ignore[no-untyped-def]
    """Publish and collect what can be published and collected; the engine's lock is held."""
    slot, rank = load64(comm + COMM.slot), load64(comm + COMM.rank)
    done = done_of(slot, load64(comm + COMM.size), rank)
    index, announced = load64(comm + SCRATCH.first), load64(comm + SCRATCH.announced)
    while index < announced:
        entry = _entry(comm, index)
        if _is_ready(comm, entry) == 0:
            break
        if load64(entry + ENTRY.way) in (DIRECTLY, BY_BLOCKS):
            call_step(load64(entry + ENTRY.steps), entry)
            code = -load64(entry + ENTRY.outcome)
            if code == 0:
                break
            code = max(code, 0)
        else:
            code = _collect(comm, entry)
        if code != 0:
            _fail(comm, code)
            return
        number, request = load64(entry + ENTRY.number), load64(entry + ENTRY.request)
        _let_go(entry)
        index += 1
        store_release(done, number)
        store_release(comm + SCRATCH.first, index)
        if request != 0:
            store_release(request + REQUEST.state, COMPLETE)
        store_release(comm + SCRATCH.collected, number)
    end = load64(comm + SCRATCH.end)
    if announced < end:
        _publish_all(comm)
    elif index == end and load64(comm + SCRATCH.leaving) != 0:
        _return_slot(comm)


@kernel("void(int64)")
def _let_go(entry):  # type: ignore[no-untyped-def]
    """Give the memory of an entry back that nobody needs any more."""
    if load64(entry + ENTRY.way) == BY_BLOCKS and load64(entry + ENTRY.owned) != 0:
        release(load64(entry + ENTRY.owned))
        store64(entry + ENTRY.owned, 0)


@kernel("void(int64)")
def _return_slot(comm):  # type: ignore[no-untyped-def]
    store64(comm + SCRATCH.leaving, 0)
    give_back(load64(comm + COMM.slot), load64(comm + COMM.size))


@kernel("void(int64, int64)")
def _fail(comm, code):  # type: ignore[no-untyped-def]
    """Give all that is pending up, because ranks called collectives that differ."""
    store64(comm + SCRATCH.failure, code)
    _drop_all(comm)


@kernel("void(int64)")
def _drop_all(comm):  # type: ignore[no-untyped-def]
    """Nothing is pending any more, and the communicator is broken: no buffer is touched from now on."""
    end = load64(comm + SCRATCH.end)
    for index in range(load64(comm + SCRATCH.first), end):
        _let_go(_entry(comm, index))
    store64(comm + SCRATCH.announced, end)
    store_release(comm + SCRATCH.first, end)
    give_up(comm, load64(comm + SCRATCH.failure))
    if load64(comm + SCRATCH.leaving) != 0:
        _return_slot(comm)


@kernel("void(int64)", is_entry=True)
def step(engine):  # type: ignore[no-untyped-def]
    """Move on all communicators in which something is pending, and let go of the others; the engine's lock is held."""
    link = engine + ENGINE.lines_first
    while load64(link) != 0:
        comm = load64(link)
        advance_locked(comm)
        if load64(comm + SCRATCH.first) == load64(comm + SCRATCH.end):
            store64(comm + SCRATCH.linked, 0)
            store64(link, load64(comm + SCRATCH.next))
        else:
            link = comm + SCRATCH.next


@kernel("void(int64)")
def _advance(comm):  # type: ignore[no-untyped-def]
    engine = load64(comm + COMM.engine)
    lock(engine)
    advance_locked(comm)
    unlock(engine)


@kernel("int64(int64)")
def _failure(comm):  # type: ignore[no-untyped-def]
    """Why what is not complete never will be: 0 if it still may."""
    if load64(comm + COMM.broken) == 0:
        return 0
    return load64(comm + SCRATCH.failure) if load64(comm + SCRATCH.failure) != 0 else BROKEN


@kernel("int64(int64, int64)", is_entry=True, nogil=False)
def wait_for(comm, number):  # type: ignore[no-untyped-def]
    """Wait until collective `number` is complete: 0, or why the wait was given up."""
    collected = comm + SCRATCH.collected
    if load_acquire(collected) >= number:
        return 0
    engine = load64(comm + COMM.engine)
    record = open_record(comm, load64(_entry(comm, load64(comm + SCRATCH.first)) + ENTRY.signature))
    is_crowded, started = load64(engine + ENGINE.spins) <= _POLLS, ticks()
    for _ in range(_YIELDS if is_crowded else _POLLS):
        _advance(comm)
        is_over = load_acquire(collected) >= number or load64(comm + COMM.broken) != 0
        if is_over or ticks() - started > load64(engine + ENGINE.slice_ticks) >> GIL_SHIFT:
            break
        if is_crowded:
            sched_yield()
        else:
            pause()
    code = 0 if load_acquire(collected) >= number else _failure(comm)
    if code == 0 and load_acquire(collected) < number:
        code = keep_waiting(engine, comm, collected, number, load64(comm + COMM.slot) + SLOT.broken)
        code = _look_again(comm, number) if code == BROKEN else code
    if code == 0:
        trace_end(record)
    return code


@kernel("int64(int64, int64)")
def _look_again(comm, number):  # type: ignore[no-untyped-def]
    """How collective `number` is after a peer gave up: what that had published before may be enough, or tell why. 0, or a failure."""
    if load64(comm + COMM.broken) == 0:
        _advance(comm)
    code = 0 if load_acquire(comm + SCRATCH.collected) >= number else _failure(comm)
    return code if code != 0 or load_acquire(comm + SCRATCH.collected) >= number else BROKEN


@kernel("int64(int64, int64)", is_entry=True, nogil=False)
def test_for(comm, number):  # type: ignore[no-untyped-def]
    """0 if collective `number` is complete, after some progress; -1 if not; or why it never will be."""
    collected = comm + SCRATCH.collected
    if load_acquire(collected) >= number:
        return 0
    engine = load64(comm + COMM.engine)
    _advance(comm)
    if load_acquire(collected) < number:
        progress(engine)
    if load_acquire(collected) >= number:
        return 0
    code = _failure(comm)
    if code == 0 and (load_relaxed(load64(comm + COMM.slot) + SLOT.broken) != 0 or load64(comm + COMM.ended) != 0):
        code = _look_again(comm, number)
        if code == 0:
            return 0
    if code == 0:
        code = trouble(engine)
    return code if code != 0 else -1


# What Python does now and then ------------------------------------------------------------------------------------


@kernel("void(int64, int64, int64)", is_entry=True)
def move_entries(comm, entries, room):  # type: ignore[no-untyped-def]
    """Move what is pending to a larger ring of `room` entries; the old one is the caller's again."""
    engine = load64(comm + COMM.engine)
    lock(engine)
    for index in range(load64(comm + SCRATCH.first), load64(comm + SCRATCH.end)):
        copy(entries + (index & (room - 1)) * ENTRY.total, _entry(comm, index), ENTRY.total)
    store64(comm + SCRATCH.entries, entries)
    store64(comm + SCRATCH.room, room)
    unlock(engine)


@kernel("void(int64)", is_entry=True)
def abandon(comm):  # type: ignore[no-untyped-def]
    """Give all that is pending up after a wait that failed: on return no buffer is touched any more."""
    engine = load64(comm + COMM.engine)
    lock(engine)
    _drop_all(comm)
    unlock(engine)


@kernel("int64(int64, int64)", is_entry=True)
def detach(comm, request):  # type: ignore[no-untyped-def]
    """Give the request of a collective back, which goes on by itself. Returns 1 if it is not complete."""
    engine, is_pending = load64(comm + COMM.engine), 0
    lock(engine)
    for index in range(load64(comm + SCRATCH.first), load64(comm + SCRATCH.end)):
        entry = _entry(comm, index)
        if load64(entry + ENTRY.request) == request:
            store64(entry + ENTRY.request, 0)
            is_pending = 1
    release_request(engine, request)
    unlock(engine)
    return is_pending


@kernel("int64(int64)", is_entry=True)
def leave(comm):  # type: ignore[no-untyped-def]
    """Give the slot of a communicator that is freed back, now or when nothing is pending any more. Returns 1 if it was now."""
    engine = load64(comm + COMM.engine)
    lock(engine)
    is_empty = load64(comm + SCRATCH.first) == load64(comm + SCRATCH.end)
    if is_empty:
        give_back(load64(comm + COMM.slot), load64(comm + COMM.size))
    else:
        store64(comm + SCRATCH.leaving, 1)
    unlock(engine)
    return 1 if is_empty else 0


@kernel("int64(int64)", is_entry=True)
def unlink(comm):  # type: ignore[no-untyped-def]
    """Take a communicator in which nothing is pending out of the engine's list: 1; 0 if something is."""
    engine = load64(comm + COMM.engine)
    lock(engine)
    is_empty = load64(comm + SCRATCH.first) == load64(comm + SCRATCH.end)
    link = engine + ENGINE.lines_first
    while is_empty and load64(link) != 0:
        if load64(link) == comm:
            store64(comm + SCRATCH.linked, 0)
            store64(link, load64(comm + SCRATCH.next))
            break
        link = load64(link) + SCRATCH.next
    unlock(engine)
    return 1 if is_empty else 0

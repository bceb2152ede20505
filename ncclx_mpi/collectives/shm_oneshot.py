"""Lines: how small collectives inside a node meet. One line a rank, one transfer between cores.

::

    rank 0:  line {number, signature, payload}  --.      every rank writes its own line (release) and reads those
    rank 1:  line {number, signature, payload}  --+-->   of the ranks it needs (acquire), in rank order;
    rank 2:  line {number, signature, payload}  --'      payloads over 48 bytes stand in the rank's memory in the slot

A collective is :func:`begin` (publish), :func:`arrive` for each rank that is needed, :func:`end`; one in which a rank neither gives nor needs
anything is :func:`pass_by`. Ranks whose buffers are device memory may propose it for the devices first (:mod:`ncclx_mpi.device.board`), which
costs the others nothing. The *number* counts the collectives of the
communicator; the *signature* says which collective, how many bytes and which root the rank called with, so that ranks that disagree get
an error instead of a hang. With it goes the *past*, a few bits into which the collectives and roots before this one were mixed: two
ranks that both take themselves for the root of a bcast never look at each other in it, and whoever looks at either later finds out.
Words, writers and memory orders: :mod:`transports.shm.slots`.

Ranks that need nobody (the root of a bcast, the leaves of a gather) run ahead by up to 16 collectives, at first by two with over 2 KiB:
``known`` is the collective that all ranks are known to have finished, looked up again only when it is too old. A collective in which
all wait for all teaches it for nothing.

T = alpha (one line transfer, 0.1-0.2 us) + (n - 1) * m * beta for m bytes read from each of n - 1 ranks.
"""

from __future__ import annotations

from ncclx_mpi.algorithms import ONESHOT_UPTO
from ncclx_mpi.collectives.shm_stores import compare_stores
from ncclx_mpi.errors import ERR_NO_MEM
from ncclx_mpi.p2p.gil import leave_gil
from ncclx_mpi.p2p.layout import BROKEN, COMM, ENGINE, FAILED, OPERATIONS, PEER, REFUSED
from ncclx_mpi.p2p.progress import trace_begin, trace_end
from ncclx_mpi.p2p.waiting import wait_word
from numba_kernels.atomics import full_fence, load64, load_acquire, load_relaxed, pause, store64, store_relaxed, store_release
from numba_kernels.calls import call_reduce
from numba_kernels.jit import kernel
from numba_kernels.layout import words
from numba_kernels.memory import STREAM_FROM, allocate, allocate_lines, copy, move, take_pages, whole_lines, write_shared
from transports.shm.lane import LANE, SHM
from transports.shm.layout import CONTROL, DEAD
from transports.shm.slots import (
    BIG,
    BIG_STEP,
    BIGS,
    DEPTH,
    INLINE,
    LINE,
    MID,
    SLOT,
    SUSPECTED,
    big_bytes,
    big_ring,
    buffer_of,
    done_of,
    line_of,
    place_behind,
    pushing_of,
)

assert BIG == ONESHOT_UPTO

SCRATCH = words(
    "Scratch",
    "known published passed record streams past next_past offender own_signature its_signature "
    # non-blocking collectives (shm_schedule.py)
    "started collected entries room first announced end linked next leaving failure keeper ahead chunks one_sided by_blocks by_edges "
    # weights of the collectives in which stores may be compared (shm_stores.py), and how often they were
    "swaps compared "
    # payloads over MID that this rank has given room, where the next one goes, and a bit for each rank whose big ring it has mapped
    "bigs next_big bigs_mapped",
    start=COMM.scratch,
)
"""Private words of a communicator: see the module's text for ``known`` and ``past``; ``published`` is the last collective whose line
is written, ``passed`` the signature of the last one that was passed by; the three from ``offender`` tell Python what a mismatch was
about. ``started`` and ``collected`` are the last non-blocking collectives that were started, and completed; the words after
them are those of :mod:`ncclx_mpi.collectives.shm_schedule`, the last ones those of :mod:`ncclx_mpi.collectives.cma_schedule`: see below; the
address of the chunks in which it reduces, and of its step; and those of the steps of :mod:`ncclx_mpi.collectives.shm_vector_schedule`
and of :mod:`ncclx_mpi.collectives.neighbor_alltoall.shm_edge_schedule`."""

UNASKED, AGREED, PLANNED, UNREACHED = range(4)
"""``SCRATCH.ahead``: nobody has looked yet; all ranks go directly; some rank said that it does not take part; all would, but the kernel
does not let this rank reach all others, which it has to tell them each time."""

BARRIER, BCAST, REDUCE, ALLREDUCE, GATHER, SCATTER, ALLGATHER, ALLTOALL, REDUCE_SCATTER, SCAN, EXSCAN = range(7, 18)
"""Kinds of collective: the numbers of trace records."""

ERR_ROOT, ERR_TRUNCATE, ERR_OTHER = 7, 14, 15
NO_MEMORY = FAILED + ERR_NO_MEM
"""Code of the failure of a collective that finds no memory to work in."""
KEEP_GIL = 128 << 10
"""Bytes up to which a collective keeps the GIL while it copies, some 10 us."""
_FEW_BIGS, _MANY_BIGS = 128, 1024
"""Payloads over `MID` bytes before those of a rank stand behind each other, and before they do so in all of its big ring."""
LOOK_AGAIN, _WEIGHT = 1 << 14, 4
"""Collectives in which all wait for all, and those with counts, from one comparison of stores to the next; those in which all have a KiB
and more count as four, those on streams as 64 (:mod:`ncclx_mpi.collectives.shm_pipelined`)."""
_KIND_MASK = (1 << 8) - 1
AHEAD = 1 << 7
"""Flag of a kind: the non-blocking collective by direct copies, which does not meet the blocking one."""
OBJECTS = 1 << 6
"""Flag of a kind: the collective of objects, which does not meet that of arrays: ranks that mix them find out, whatever the bytes are."""
VECTORS = 1 << 5
"""Flag of a kind: the non-blocking collective with counts, or between neighbours, which meets no blocking one, and none without."""
_FLAGS = AHEAD | OBJECTS | VECTORS
assert len(OPERATIONS) <= VECTORS
_TABLE = 4096
"""Bytes of working memory from which elements are in it, which are to be aligned."""
_ROOT_SHIFT, _ROOT_MASK = 8, (1 << 12) - 1
_BYTES_SHIFT, _BYTES_MASK = 20, (1 << 36) - 1
_PAST_BITS, _PAST_SHIFT, _PAST_MASK = 7, 56, (1 << 7) - 1
_PASSED = -(1 << 63)
"""Flag in the signature of a line that stands for collectives that were passed by: it may be another one's, with another's past."""
_MIX = 37
"""Odd, so that pasts which differ go on to differ while the ranks agree."""


@kernel("int64(int64, int64, int64)")
def sign(kind, root, nbytes):  # type: ignore[no-untyped-def]
    """What a rank called: collective, root and bytes (modulo 64 GiB) in one word."""
    return kind | (root << _ROOT_SHIFT) | ((nbytes & _BYTES_MASK) << _BYTES_SHIFT)


@kernel("int64(int64)")
def kind_of(signature):  # type: ignore[no-untyped-def]
    """Collective of a signature."""
    return signature & _KIND_MASK


@kernel("int64(int64)")
def plain_kind(signature):  # type: ignore[no-untyped-def]
    """Collective of a signature, without its flags."""
    return signature & _KIND_MASK & ~_FLAGS


@kernel("int64(int64)")
def root_of(signature):  # type: ignore[no-untyped-def]
    """Root of a signature."""
    return (signature >> _ROOT_SHIFT) & _ROOT_MASK


@kernel("int64(int64)")
def bytes_of(signature):  # type: ignore[no-untyped-def]
    """Bytes of a signature."""
    return (signature >> _BYTES_SHIFT) & _BYTES_MASK


@kernel("int64(int64, int64)")
def _with_bytes_of(signature, its):  # type: ignore[no-untyped-def]
    field = _BYTES_MASK << _BYTES_SHIFT
    return (signature & ~field) | (its & field)


@kernel("int64(int64, int64)")
def remember(comm, signature):  # type: ignore[no-untyped-def]
    """Mix a collective that begins into the past of the next one; returns its signature with its own past."""
    past, called = load64(comm + SCRATCH.next_past), root_of(signature) + kind_of(signature)
    store64(comm + SCRATCH.past, past)
    mixed = ((past >> _PAST_SHIFT) * _MIX + called + (called >> _PAST_BITS)) & _PAST_MASK
    store64(comm + SCRATCH.next_past, mixed << _PAST_SHIFT)
    return signature | past


def read_signature(signature: int) -> tuple[int, int, int]:
    """Kind, root and bytes of a signature."""
    return signature & _KIND_MASK & ~_FLAGS, (signature >> _ROOT_SHIFT) & _ROOT_MASK, (signature >> _BYTES_SHIFT) & _BYTES_MASK


@kernel("int64(int64, int64)")
def _look_up_known(comm, needed):  # type: ignore[no-untyped-def]
    """Wait until all ranks have finished collective `needed`, and note how far they really are."""
    slot, size, rank = load64(comm + COMM.slot), load64(comm + COMM.size), load64(comm + COMM.rank)
    for other in range(size):
        if other != rank:
            code = wait_word(comm, done_of(slot, size, other), needed, slot + SLOT.broken)
            if code != 0:
                return code
    return note_known(comm)


@kernel("int64(int64)")
def note_known(comm):  # type: ignore[no-untyped-def]
    """Note up to which collective all ranks have finished, and look whether the others called what this rank called."""
    slot, size, rank = load64(comm + COMM.slot), load64(comm + COMM.size), load64(comm + COMM.rank)
    known = load64(done_of(slot, size, rank))
    for other in range(size):
        if other != rank:
            finished = load_acquire(done_of(slot, size, other))
            code = _compare(comm, other, min(load64(comm + COMM.sequence), finished))
            if code != 0:
                return code
            known = min(known, finished)
    store64(comm + SCRATCH.known, known)
    return 0


@kernel("int64(int64, int64, int64)")
def _compare(comm, other, number):  # type: ignore[no-untyped-def]
    """Check what rank `other` called in collective `number`, which both have finished: ranks that run ahead look nowhere else.

    Bytes may differ, since only the root knows those of a blob. Lines of collectives that were passed by say nothing. A line
    is written over when its rank has published, or passed by, the `DEPTH` - 1 collectives after it; one that is half as far is left
    alone. Non-blocking collectives are published long before they are finished.
    """
    slot, size = load64(comm + COMM.slot), load64(comm + COMM.size)
    mine, line = line_of(slot, load64(comm + COMM.rank), number), line_of(slot, other, number)
    if load64(mine + LINE.stamp) != number or load_acquire(line + LINE.stamp) != number:
        return 0
    its = load_acquire(line + LINE.signature)
    halfway = number + DEPTH // 2
    if load_acquire(line_of(slot, other, halfway) + LINE.stamp) >= halfway or load_acquire(done_of(slot, size, other)) >= halfway:
        return 0
    own = load64(mine + LINE.signature)
    return 0 if own < 0 or its < 0 else judge(comm, other, own, _with_bytes_of(its, own))


@kernel("int64(int64)")
def give_gil(nbytes):  # type: ignore[no-untyped-def]
    """Give the GIL away for a collective that copies `nbytes`, if that is worth it; returns what enter_gil needs."""
    return leave_gil() if nbytes > KEEP_GIL else 0


@kernel("void(int64, int64)")
def give_up(comm, code):  # type: ignore[no-untyped-def]
    """Mark the communicator as broken because of `code`, here and for those who wait. On return nobody writes into buffers of this rank."""
    slot, size, rank = load64(comm + COMM.slot), load64(comm + COMM.size), load64(comm + COMM.rank)
    store64(comm + COMM.broken, 1)
    if code == REFUSED:
        store_release(slot + SLOT.broken, SUSPECTED)
    elif load_relaxed(slot + SLOT.broken) == 0:
        store_release(slot + SLOT.broken, 1 + rank)
    full_fence()
    peers, world = load64(load64(comm + COMM.engine) + ENGINE.peers), load64(comm + COMM.world)
    for other in range(size):
        control = load64(peers + load64(world + 8 * other) * PEER.total + LANE.control)
        while other != rank and load_acquire(pushing_of(slot, size, other)) != 0 and load_relaxed(control + CONTROL.state) != DEAD:
            pause()


@kernel("int64(int64, int64)")
def working_memory(comm, nbytes):  # type: ignore[no-untyped-def]
    """`nbytes` to work in; 0 if there are none: then the collective is given up, here and on those who wait, and fails with `NO_MEMORY`."""
    found = allocate(nbytes) if nbytes < _TABLE else allocate_lines(nbytes)
    if found == 0:
        give_up(comm, NO_MEMORY)
    return found


@kernel("int64(int64, int64)")
def open_record(comm, signature):  # type: ignore[no-untyped-def]
    """Open the trace record of a collective; returns its address."""
    engine, context = load64(comm + COMM.engine), load64(comm + COMM.context)
    return trace_begin(engine, plain_kind(signature), context, root_of(signature), 0, bytes_of(signature))


@kernel("int64(int64, int64)")
def _begin(comm, signature):  # type: ignore[no-untyped-def]
    """Open the record of a blocking collective, and wait until the non-blocking ones before it are complete: 0 or a failure.

    All ranks have started those, or will before they come here, so this waits for no more than a collective may.
    """
    if load64(comm + COMM.broken) != 0:
        return BROKEN
    store64(comm + SCRATCH.record, open_record(comm, signature))
    started = load64(comm + SCRATCH.started)
    if load_acquire(comm + SCRATCH.collected) == started:
        return 0
    code = wait_word(comm, comm + SCRATCH.collected, started, load64(comm + COMM.slot) + SLOT.broken)
    if code != 0:
        give_up(comm, code)
        return load64(comm + SCRATCH.failure) if load64(comm + SCRATCH.failure) != 0 else code
    return 0


@kernel("int64(int64, int64, int64)")
def claim(comm, signature, nbytes):  # type: ignore[no-untyped-def]
    """Open the record of the next collective, and wait until its line, and a buffer for `nbytes`, are this rank's to write.

    Returns its number, or minus the code of a failure.
    """
    code = _begin(comm, signature)
    if code != 0:
        return -code
    number = load64(comm + COMM.sequence) + 1
    needed = number - in_flight(comm, nbytes)
    if load64(comm + SCRATCH.known) < needed:
        code = _look_up_known(comm, needed)
        if code != 0:
            give_up(comm, code)
            return -code
    take_line(comm, number, nbytes)
    return number


@kernel("int64(int64, int64)")
def in_flight(comm, nbytes):  # type: ignore[no-untyped-def]
    """How many collectives may be under way at once, if the last one has `nbytes` of payload."""
    return DEPTH if nbytes <= MID or load64(comm + SCRATCH.bigs) >= _FEW_BIGS else BIGS


@kernel("void(int64, int64, int64)")
def _give_room(comm, number, nbytes):  # type: ignore[no-untyped-def]
    """Choose where in the big ring of this rank the payload of collective `number` stands, over `MID` bytes, and say so in its line.

    The first payloads take two places in turn, so that a program with few of them touches few pages. Then they stand behind each other, so
    that more of them may be under way, and after as many as save what its pages cost, in all of the ring.
    """
    bigs, place = load64(comm + SCRATCH.bigs), (number & (BIGS - 1)) * BIG
    if bigs >= _FEW_BIGS:
        if bigs == _FEW_BIGS:
            store64(comm + SCRATCH.next_big, BIGS * BIG)
            store_relaxed(load64(comm + COMM.slot) + SLOT.bulk, 1)
        place = place_behind(load64(comm + SCRATCH.next_big), nbytes, _reach(comm, bigs))
        store64(comm + SCRATCH.next_big, place + whole_lines(nbytes))
    store64(comm + SCRATCH.bigs, bigs + 1)
    store64(line_of(load64(comm + COMM.slot), load64(comm + COMM.rank), number) + LINE.payload, place)


@kernel("int64(int64, int64)")
def _reach(comm, bigs):  # type: ignore[no-untyped-def]
    """Bytes of the big ring of this rank that payloads stand in, after `bigs` of them. All of it is better for plain stores only."""
    rank, end = load64(comm + COMM.rank), big_bytes(load64(comm + COMM.size))
    if load64(comm + SCRATCH.bigs_mapped) >> rank & 1 != 0 or end == BIG_STEP:
        return end
    if bigs < _MANY_BIGS or load64(load64(comm + COMM.engine) + SHM.streamed) != 0:
        return BIG_STEP
    _map_big_ring(comm, rank)
    return end


@kernel("void(int64, int64)")
def _map_big_ring(comm, writer):  # type: ignore[no-untyped-def]
    """Take all pages of the big ring of rank `writer`, once."""
    mapped, size = load64(comm + SCRATCH.bigs_mapped), load64(comm + COMM.size)
    if mapped >> writer & 1 == 0:
        store64(comm + SCRATCH.bigs_mapped, mapped | 1 << writer)
        take_pages(big_ring(load64(comm + COMM.slot), size, writer), big_bytes(size))


@kernel("int64(int64, int64, int64)")
def enter(comm, signature, nbytes):  # type: ignore[no-untyped-def]
    """Start a collective in which this rank will publish `nbytes`. Returns its number, or minus the code of a failure."""
    number = claim(comm, signature, nbytes)
    if number > 0:
        store64(comm + COMM.sequence, number)
        line = line_of(load64(comm + COMM.slot), load64(comm + COMM.rank), number)
        store64(line + LINE.signature, remember(comm, signature))
    return number


@kernel("void(int64, int64, int64)")
def take_line(comm, number, nbytes):  # type: ignore[no-untyped-def]
    """Make the line of collective `number`, which is this rank's to write, the next one, with room for `nbytes` of payload."""
    _publish_passed(comm, number)
    if nbytes > MID:
        _give_room(comm, number, nbytes)


@kernel("void(int64, int64)")
def _publish_passed(comm, number):  # type: ignore[no-untyped-def]
    """Publish the collectives that were passed by before `number`: whoever waits for one of them called something else."""
    if load64(comm + SCRATCH.published) >= number - 1:
        return
    slot, rank = load64(comm + COMM.slot), load64(comm + COMM.rank)
    for passed in range(max(load64(comm + SCRATCH.published) + 1, number - DEPTH + 1), number):
        line = line_of(slot, rank, passed)
        store64(line + LINE.signature, load64(comm + SCRATCH.passed))
        store_release(line + LINE.stamp, passed)


@kernel("void(int64, int64)")
def publish(comm, number):  # type: ignore[no-untyped-def]
    """Announce collective `number`: its payload is written."""
    store64(comm + SCRATCH.published, number)
    store_release(line_of(load64(comm + COMM.slot), load64(comm + COMM.rank), number) + LINE.stamp, number)


@kernel("int64(int64, int64, int64, int64)")
def begin(comm, signature, address, nbytes):  # type: ignore[no-untyped-def]
    """Start a collective and publish `nbytes` of payload for it. Returns its number, or minus the code of a failure."""
    number = enter(comm, signature, nbytes)
    if number < 0:
        return number
    publish_payload(comm, number, address, nbytes)
    if _is_swap(kind_of(signature)) != 0 and count_swap(comm, _WEIGHT if bytes_of(signature) >= STREAM_FROM else 1) != 0:
        return look_at_placement(comm, number, signature)
    return number


@kernel("int64(int64)")
def _is_swap(kind):  # type: ignore[no-untyped-def]
    """Whether all ranks wait for all in a collective, with as many bytes."""
    return 1 if kind in (BARRIER, ALLREDUCE, ALLTOALL, ALLGATHER, REDUCE_SCATTER) else 0


@kernel("int64(int64, int64)")
def count_swap(comm, weight):  # type: ignore[no-untyped-def]
    """Count a collective that all ranks are in, with more `weight` if it is one in which stores matter. Whether they are to be compared."""
    before = load64(comm + SCRATCH.swaps)
    store64(comm + SCRATCH.swaps, before + weight)
    return 1 if before ^ (before + weight) >= LOOK_AGAIN else 0


@kernel("int64(int64, int64, int64)")
def look_at_placement(comm, number, signature):  # type: ignore[no-untyped-def]
    """Compare the kinds of store with the neighbour, if there is one. The collective's number, or less the code of a failure.

    What it signed is looked at for its bytes only when they are read.
    """
    neighbour = load64(comm + COMM.rank) ^ 1
    if neighbour >= load64(comm + COMM.size):
        return number
    code = arrive_with_any(comm, neighbour, number, signature)
    if code == 0:
        code = compare_stores(comm, comm + SCRATCH.compared)
    return number if code == 0 else -end(comm, number, code)


@kernel("void(int64, int64, int64, int64)")
def publish_payload(comm, number, address, nbytes):  # type: ignore[no-untyped-def]
    """Write the payload of collective `number`, whose line and buffer are this rank's to write, and announce it."""
    slot, rank = load64(comm + COMM.slot), load64(comm + COMM.rank)
    if nbytes > INLINE:
        show(comm, payload(comm, rank, number, nbytes), address, nbytes)
    elif nbytes == 8:
        store64(line_of(slot, rank, number) + LINE.payload, load64(address))
    elif nbytes > 0:
        copy(line_of(slot, rank, number) + LINE.payload, address, nbytes)
    publish(comm, number)


@kernel("int64(int64, int64, int64, int64, int64)")
def pass_by(comm, signature, target, source, nbytes):  # type: ignore[no-untyped-def]
    """A whole collective in which this rank neither gives nor needs anything: there are no bytes, or there is nobody else.

    Copies the rank's own `nbytes`, unless source or target is 0. Nobody waits for its line, so it is published with the next
    one only, and its slot in the ring of lines need not be free yet: empty collectives cost no meeting. 0 or the code of a failure.
    """
    code = _begin(comm, signature)
    if code != 0:
        return code
    number = load64(comm + COMM.sequence) + 1
    store64(comm + COMM.sequence, number)
    remember(comm, signature)
    store64(comm + SCRATCH.passed, signature | _PASSED)
    if nbytes > 0 and source != 0 and target != 0 and source != target:
        move(target, source, nbytes)
    store_release(done_of(load64(comm + COMM.slot), load64(comm + COMM.size), load64(comm + COMM.rank)), number)
    trace_end(load64(comm + SCRATCH.record))
    return 0


@kernel("void(int64, int64, int64, int64)")
def show(comm, target, address, nbytes):  # type: ignore[no-untyped-def]
    """Write bytes of a payload, where others read them, with the kind of stores that is the faster one."""
    write_shared(target, address, nbytes, load64(load64(comm + COMM.engine) + SHM.streamed))


@kernel("int64(int64, int64, int64)")
def _wait_for_line(comm, other, number):  # type: ignore[no-untyped-def]
    slot = load64(comm + COMM.slot)
    return wait_word(comm, line_of(slot, other, number) + LINE.stamp, number, slot + SLOT.broken)


@kernel("int64(int64, int64, int64)")
def _signature_of(comm, other, number):  # type: ignore[no-untyped-def]
    """The signature of rank `other`, which has arrived."""
    return load64(line_of(load64(comm + COMM.slot), other, number) + LINE.signature)


@kernel("int64(int64, int64, int64, int64)")
def arrive(comm, other, number, signature):  # type: ignore[no-untyped-def]
    """Wait until rank `other` has published collective `number`, and check that it called the same. 0 or the code of a failure."""
    code = _wait_for_line(comm, other, number)
    return code if code != 0 else check_signature(comm, other, signature, _signature_of(comm, other, number))


@kernel("int64(int64, int64, int64)")
def signed_bytes(comm, other, number):  # type: ignore[no-untyped-def]
    """The bytes in the signature of rank `other`, which has arrived."""
    return bytes_of(_signature_of(comm, other, number))


@kernel("int64(int64, int64, int64, int64)")
def arrive_with_any(comm, other, number, signature):  # type: ignore[no-untyped-def]
    """As :func:`arrive`, where rank `other` may have signed any number of bytes."""
    code = _wait_for_line(comm, other, number)
    if code != 0:
        return code
    its = _signature_of(comm, other, number)
    return check_signature(comm, other, _with_bytes_of(signature, its), its)


@kernel("int64(int64, int64, int64, int64)")
def refuse_payload(comm, other, number, signature):  # type: ignore[no-untyped-def]
    """Note that what rank `other`, which has arrived, has published is not what this collective reads. Returns the error."""
    store64(comm + SCRATCH.offender, other)
    store64(comm + SCRATCH.own_signature, signature)
    store64(comm + SCRATCH.its_signature, _signature_of(comm, other, number))
    return FAILED + ERR_TRUNCATE


@kernel("int64(int64, int64, int64)")
def check_line(comm, other, signature):  # type: ignore[no-untyped-def]
    """Check that rank `other`, if it has come to the collective that this rank is in, called it with the same root. 0 or an error."""
    number = load64(comm + COMM.sequence)
    line = line_of(load64(comm + COMM.slot), other, number)
    if load_acquire(line + LINE.stamp) != number:
        return 0
    its = load64(line + LINE.signature)
    return check_signature(comm, other, _with_bytes_of(signature, its), its)


@kernel("int64(int64, int64, int64, int64)")
def check_signature(comm, other, signature, its):  # type: ignore[no-untyped-def]
    """0 if what rank `other` published is our signature with our past, else an error, with both noted for Python."""
    if its < 0:
        return judge(comm, other, signature, its & ~_PASSED)
    return judge(comm, other, signature | load64(comm + SCRATCH.past), its)


@kernel("int64(int64, int64, int64, int64)")
def judge(comm, other, signature, its):  # type: ignore[no-untyped-def]
    if its == signature:
        return 0
    store64(comm + SCRATCH.offender, other)
    store64(comm + SCRATCH.own_signature, signature)
    store64(comm + SCRATCH.its_signature, its)
    if (kind_of(its) ^ kind_of(signature)) & ~OBJECTS != 0:
        return FAILED + ERR_OTHER
    if bytes_of(its) != bytes_of(signature) or kind_of(its) != kind_of(signature):
        return FAILED + ERR_TRUNCATE
    return FAILED + ERR_ROOT


@kernel("int64(int64, int64, int64, int64)")
def payload(comm, other, number, nbytes):  # type: ignore[no-untyped-def]
    """Where the `nbytes` of payload of rank `other` stand, or are to be written by this rank."""
    slot, size = load64(comm + COMM.slot), load64(comm + COMM.size)
    words = line_of(slot, other, number) + LINE.payload
    if nbytes <= INLINE:
        return words
    if nbytes <= MID:
        return buffer_of(slot, size, other, number)
    place = load64(words)
    if place >= BIG_STEP:
        _map_big_ring(comm, other)
    return big_ring(slot, size, other) + place


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
        give_up(comm, code)
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

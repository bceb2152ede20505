"""Shared transfers: sender and receiver both copy, straight from buffer to buffer, until all is there.

::

    receiver's buffer   | chunk 0 | chunk 1 |  ...  | chunk n-2 | chunk n-1 |
                          receiver reads -->            <-- sender writes          (process_vm_readv, process_vm_writev)

Each takes the next chunk from its end by counting up one shared word, so whoever has time takes more, one alone can do it all, and no
chunk is taken twice. A rank that is not in the engine (an ``Isend`` behind which it computes) delays nobody.

=====================  ============  ===========  ==========================================================================
word of the pipe       written by    polled by    order and meaning
=====================  ============  ===========  ==========================================================================
``claimed``            both (CAS)    both         number of the grant << 24 | chunks taken; a stale grant cannot take any
``read``               receiver      sender       release after the copy: chunks it has read; `REFUSED` if the kernel would not
``written``            sender        receiver     release after the copy: chunks it has written; `REFUSED` likewise
``target``, ``wanted`` receiver      nobody       before the grant: where the sender writes, and how many bytes
=====================  ============  ===========  ==========================================================================

The receiver may lend the pipe on as soon as all chunks are done. The sender finds that out by the number of the grant.
If the kernel refused a chunk on either side, both see it when all are done, and send the message through the pipe.

T = alpha + m * beta / 2 + m / c * 0.5 us for chunks of c bytes.
"""

from __future__ import annotations

from numba_kernels.atomics import compare_exchange, load64, load_acquire, load_relaxed, pause, store64, store_release, ticks
from numba_kernels.jit import kernel
from numba_kernels.layout import words
from numba_kernels.memory import whole_lines
from transports.messages import REQUEST
from transports.shm.cma import can_reach, read_peer, write_peer
from transports.shm.lane import LANE, SHM
from transports.shm.layout import BULK, CONTROL, DEAD

AUTO, PIPED, DIRECT, STREAMED = -1, 0, 1, 2
"""How bulk data between private buffers moves: through the arena, or copied once by the kernel; AUTO: what is faster. Where both kinds of
stores are tried, PIPED is with plain ones, STREAMED past the caches."""
TRANSFER = words("Transfer", "lane sending pipe chunk chunks done_chunks next far wanted grant trial began")
"""A transfer, in the first words of its request: the peer's lane, the direction, the pipe and how it is cut, and its neighbour in a list of
them. Of one that both ranks copy: address in the other process (0: it goes through the pipe), bytes, number of the grant, trial. Of one
that goes through the pipe, `grant` is less the stores that :func:`is_streamed` takes."""
RUNNING, FINISHED, REFUSED = 0, 1, 2
_COUNT_BITS = 24
_COUNT = (1 << _COUNT_BITS) - 1
_REFUSED = 1 << 40
_UNKNOWN, _NO, _YES = 0, 1, 2
_HALVES_UPTO, _SMALLEST_CHUNK, _LARGEST_CHUNK = 128 << 10, 64 << 10, 512 << 10
_PATIENCE_US = 1_000_000


@kernel("int64(int64, int64)")
def is_streamed(engine, stores):  # type: ignore[no-untyped-def]
    """Whether bulk data for a peer is written past the caches: as the trial says whose way is `stores` less 1.

    Where no trial says (0), or the user has, as this rank writes all else.
    """
    if stores == 0 or load64(engine + SHM.stores_fixed) != 0:
        return load64(engine + SHM.streamed)
    return 1 if stores == STREAMED + 1 else 0


@kernel("int64(int64, int64)")
def is_reached(engine, lane):  # type: ignore[no-untyped-def]
    """Whether the kernel copies between this process and the peer of a lane; found out at the first message."""
    known = load64(lane + LANE.reach)
    if known == _UNKNOWN:
        control = load64(lane + LANE.control)
        token_at = load_acquire(control + CONTROL.token_at)
        if token_at == 0:
            return 0
        known = _NO
        if load64(engine + SHM.copies) != PIPED:
            known = _YES if can_reach(control, token_at, load64(lane + LANE.token)) != 0 else _NO
        store64(lane + LANE.reach, known)
    return 1 if known == _YES else 0


@kernel("void(int64, int64)")
def cut_shared(request, wanted):  # type: ignore[no-untyped-def]
    """Cut a shared transfer of `wanted` bytes; both sides cut alike."""
    chunk = (wanted + 1) // 2 if wanted <= _HALVES_UPTO else min(max(wanted // 4, _SMALLEST_CHUNK), _LARGEST_CHUNK)
    chunk = whole_lines(chunk)
    store64(request + TRANSFER.wanted, wanted)
    store64(request + TRANSFER.chunk, chunk)
    store64(request + TRANSFER.chunks, (wanted + chunk - 1) // chunk)
    store64(request + TRANSFER.done_chunks, 0)


@kernel("int64(int64, int64, int64)")
def offer_shared(pipe, target, wanted):  # type: ignore[no-untyped-def]
    """Make `pipe` that of a new shared transfer; the receiver holds it. Returns the number of the grant."""
    grant = (load64(pipe + BULK.claimed) >> _COUNT_BITS) + 1
    store_release(pipe + BULK.claimed, grant << _COUNT_BITS)
    store_release(pipe + BULK.read, 0)
    store_release(pipe + BULK.written, 0)
    store_release(pipe + BULK.target, target)
    store_release(pipe + BULK.wanted, wanted)
    return grant


@kernel("int64(int64, int64, int64)")
def accept_shared(request, pipe, grant):  # type: ignore[no-untyped-def]
    """The sender has the grant. Returns 1, or 0 if the receiver has read everything and lent the pipe on meanwhile."""
    target, wanted = load_acquire(pipe + BULK.target), load_acquire(pipe + BULK.wanted)
    if load_acquire(pipe + BULK.claimed) >> _COUNT_BITS != grant:
        return 0
    store64(request + TRANSFER.far, target)
    store64(request + TRANSFER.grant, grant)
    cut_shared(request, wanted)
    return 1


@kernel("int64(int64, int64)")
def _claim(request, pipe):  # type: ignore[no-untyped-def]
    """Take a chunk, if there is one: 1, else 0."""
    grant, chunks = load64(request + TRANSFER.grant), load64(request + TRANSFER.chunks)
    seen = load_acquire(pipe + BULK.claimed)
    while seen >> _COUNT_BITS == grant and seen & _COUNT < chunks:
        before = compare_exchange(pipe + BULK.claimed, seen, seen + 1)
        if before == seen:
            return 1
        seen = before
    return 0


@kernel("void(int64)")
def _copy_chunk(request):  # type: ignore[no-untyped-def]
    pipe, done, sending = (
        load64(request + TRANSFER.pipe),
        load64(request + TRANSFER.done_chunks),
        load64(request + TRANSFER.sending) != 0,
    )
    chunk, wanted = load64(request + TRANSFER.chunk), load64(request + TRANSFER.wanted)
    offset = (load64(request + TRANSFER.chunks) - 1 - done if sending else done) * chunk
    length = min(chunk, wanted - offset)
    near, far = load64(request + REQUEST.address) + offset, load64(request + TRANSFER.far) + offset
    control = load64(load64(request + TRANSFER.lane) + LANE.control)
    copied = write_peer(control, far, near, length) if sending else read_peer(control, far, near, length)
    word = pipe + (BULK.written if sending else BULK.read)
    store64(request + TRANSFER.done_chunks, done + 1)
    store_release(word, (load64(word) + 1) | (0 if copied else _REFUSED))


@kernel("int64(int64)")
def share(request):  # type: ignore[no-untyped-def]
    """Copy a chunk, if one is left, and say how the transfer is: RUNNING, FINISHED, or REFUSED by the kernel."""
    pipe = load64(request + TRANSFER.pipe)
    if _claim(request, pipe) != 0:
        _copy_chunk(request)
    done = load_acquire(pipe + BULK.read) + load_acquire(pipe + BULK.written)
    if load_acquire(pipe + BULK.claimed) >> _COUNT_BITS != load64(request + TRANSFER.grant):
        return FINISHED
    if done & _COUNT < load64(request + TRANSFER.chunks):
        return RUNNING
    return FINISHED if done < _REFUSED else REFUSED


@kernel("int64(int64, int64, int64)")
def revoke_shared(engine, lane, receive):  # type: ignore[no-untyped-def]
    """Take the receiver's buffer back from a shared transfer: nobody can claim a chunk any more.

    Waits for the one chunk that the sender may be copying, until it is done, the sender has died, or a second has passed.
    Returns whether the buffer is free.
    """
    pipe, chunks = load64(receive + TRANSFER.pipe), load64(receive + TRANSFER.chunks)
    full = (load64(receive + TRANSFER.grant) << _COUNT_BITS) | chunks
    seen = load_acquire(pipe + BULK.claimed)
    while seen != full:
        before = compare_exchange(pipe + BULK.claimed, seen, full)
        if before == seen:
            break
        seen = before
    its = (seen & _COUNT) - load64(receive + TRANSFER.done_chunks)
    store_release(pipe + BULK.read, (chunks - its) | (load64(pipe + BULK.read) & _REFUSED))
    control = load64(lane + LANE.control)
    started = ticks()
    while load_acquire(pipe + BULK.written) & _COUNT < its and load_relaxed(control + CONTROL.state) != DEAD:
        pause()
        if ticks() - started > _PATIENCE_US * load64(engine + SHM.ticks_per_us):
            return 0
    return 1

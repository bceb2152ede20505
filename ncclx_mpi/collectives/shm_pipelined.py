"""Streams: bulk data inside a node, in chunks through rings in the slot, several in flight.

::

    writer                                        reader
      wait  consumed > k - 4                        wait  posted > k
      chunk k -> behind k - 1  (streamed if far)    use it: copy it out, or reduce from it in place
      posted = k + 1           (release)            consumed = k + 1   (release)

*Split* rings carry one stream from each rank to each other one; *shared* rings carry one stream from each rank that all others read.
The counters go on from call to call, so nothing is reset. Each chunk is signed (collective, root, bytes of the whole stream), and a
reader that expected something else gets an error. Words, writers and memory orders: :mod:`transports.shm.slots`.

Collectives on streams work in rounds: in round t a rank writes chunk t of everything it sends, then reads chunk t - 1 of
everything it receives. The rank that is furthest behind can always go on, since what it reads was written a round ago and what it
overwrites was read by ranks at least as far as itself, two rounds ago; so rounds never deadlock with two chunks a ring or more.
"""

from __future__ import annotations

from ncclx_mpi.algorithms import LARGEST_ITEM
from ncclx_mpi.collectives.cma_tuning import WAYS
from ncclx_mpi.collectives.shm_oneshot import (
    LOOK_AGAIN,
    SCRATCH,
    bytes_of,
    check_line,
    check_signature,
    count_swap,
    enter,
    look_at_placement,
    publish,
)
from ncclx_mpi.p2p.layout import COMM
from ncclx_mpi.p2p.waiting import wait_word
from numba_kernels.atomics import load64, load_acquire, load_relaxed, store64, store_relaxed, store_release
from numba_kernels.jit import kernel
from numba_kernels.memory import move_lines, stream, write_shared
from transports.shm.lane import SHM
from transports.shm.shared import is_streamed
from transports.shm.slots import (
    CHUNKS,
    LEAST_CHUNK,
    READ,
    RING,
    SHARED_BYTES,
    SLOT,
    give_place,
    map_read,
    map_written,
    place_of,
    shared_consumed,
    shared_posted,
    shared_ring,
    split_bytes,
    split_chunk_bytes,
    split_consumed,
    split_posted,
    split_ring,
)

STREAM_LANDING_FROM = 12 << 20
"""Bytes of a result from which it is written past the caches, since it would not stay in them anyway."""
LEAST_PIECE, MOST_PIECE, PIECES = 32 << 10, 128 << 10, 8
_LONG_SPLIT, _LONG_SHARED, _LONG_RING = 64 << 10, 4 << 20, (CHUNKS + 1) * MOST_PIECE
"""Bytes of a chunk of a split ring, and of what is signed with one of a shared ring, from which a stream is long; bytes that it uses of its
ring."""
SHORT_ROUNDS = 4
"""Rounds up to which a collective keeps the GIL while it copies, some 10 us."""
_PAGE = 4096
_WEIGHT = LOOK_AGAIN // 256
"""Of a collective on streams: stores are compared in every 256th."""
LEAST_ADDRESS = 4096
assert LARGEST_ITEM == LEAST_CHUNK
"""What the ``take`` functions return below this is the code of a failure."""


@kernel("int64(int64, int64)")
def begin_streams(comm, signature):  # type: ignore[no-untyped-def]
    """Start a collective on streams: as :func:`begin`, without payload."""
    note_bulk(comm)
    number = enter(comm, signature, 0)
    if number < 0:
        return number
    publish(comm, number)
    store64(comm + SCRATCH.streams, load64(comm + SCRATCH.streams) + 1)
    return look_at_placement(comm, number, signature) if count_swap(comm, _WEIGHT) != 0 else number


@kernel("void(int64)")
def note_bulk(comm):  # type: ignore[no-untyped-def]
    """Bulk data moves through the slot, so there will be pages to give back."""
    slot = load64(comm + COMM.slot)
    if load_relaxed(slot + SLOT.bulk) == 0:
        store_relaxed(slot + SLOT.bulk, 1)


@kernel("int64(int64, int64, int64, int64, int64)")
def _wait(comm, other, word, target, signature):  # type: ignore[no-untyped-def]
    """Wait for a counter of rank `other`, unless it waits elsewhere, for instance as another root. 0 or the code of a failure."""
    if load_acquire(word) >= target:
        return 0
    code = check_line(comm, other, signature)
    return code if code != 0 else wait_word(comm, word, target, load64(comm + COMM.slot) + SLOT.broken)


@kernel("void(int64, int64, int64, int64)")
def _post(comm, ring, index, signature):  # type: ignore[no-untyped-def]
    store64(ring + RING.signatures + 8 * (index & (CHUNKS - 1)), signature | load64(comm + SCRATCH.past))
    store_release(ring + RING.posted, index + 1)


@kernel("int64(int64)")
def _shared_bytes(comm):  # type: ignore[no-untyped-def]
    """Bytes of a shared ring that are used: as many as of a pipe, if it has them."""
    return min(load64(load64(comm + COMM.engine) + SHM.pipe_bytes), SHARED_BYTES)


@kernel("int64(int64)")
def _split_bytes(comm):  # type: ignore[no-untyped-def]
    """Bytes of a stream of a split ring that are used."""
    return split_bytes(load64(comm + COMM.size), 2 * _shared_bytes(comm))


@kernel("int64(int64, int64)")
def _reach(ring_bytes, is_long):  # type: ignore[no-untyped-def]
    """Bytes of a ring that a stream uses: of a long one, whose buffers are in no cache, no more than it needs."""
    return min(ring_bytes, _LONG_RING) if is_long != 0 else ring_bytes


@kernel("void(int64, int64, int64, int64, int64, int64, int64, int64)")
def _write(comm, ring, index, memory, ring_bytes, is_long, address, nbytes):  # type: ignore[no-untyped-def]
    """Write chunk `index` of a ring."""
    map_written(ring, index, memory, ring_bytes)
    streamed = is_streamed(load64(comm + COMM.engine), load64(comm + WAYS.stores))
    write_shared(memory + give_place(ring, index, nbytes, _reach(ring_bytes, is_long)), address, nbytes, streamed)


@kernel("int64(int64, int64, int64, int64, int64, int64, int64)")
def _take(comm, writer, ring, read, memory, ring_bytes, signature):  # type: ignore[no-untyped-def]
    """Wait for the next chunk of a ring of `writer`: its address, or the code of a failure."""
    index = load64(read + READ.consumed)
    code = _wait(comm, writer, ring + RING.posted, index + 1, signature)
    if code == 0:
        code = check_signature(comm, writer, signature, load64(ring + RING.signatures + 8 * (index & (CHUNKS - 1))))
    if code != 0:
        return code
    map_read(ring, read, memory, ring_bytes)
    return memory + place_of(ring, index)


@kernel("int64(int64, int64, int64, int64, int64)")
def put_split(comm, reader, address, nbytes, signature):  # type: ignore[no-untyped-def]
    """Write the next chunk of the stream to `reader`. 0 or the code of a failure."""
    slot, size, rank = load64(comm + COMM.slot), load64(comm + COMM.size), load64(comm + COMM.rank)
    ring = split_posted(slot, size, rank, reader)
    index = load64(ring + RING.posted)
    if index >= CHUNKS:
        code = _wait(comm, reader, split_consumed(slot, size, rank, reader), index - CHUNKS + 1, signature)
        if code != 0:
            return code
    _write(comm, ring, index, split_ring(slot, size, rank, reader), _split_bytes(comm), nbytes >= _LONG_SPLIT, address, nbytes)
    _post(comm, ring, index, signature)
    return 0


@kernel("int64(int64, int64, int64)")
def take_split(comm, writer, signature):  # type: ignore[no-untyped-def]
    """Wait for the next chunk of the stream from `writer`: its address, or the code of a failure."""
    slot, size, rank = load64(comm + COMM.slot), load64(comm + COMM.size), load64(comm + COMM.rank)
    ring, read = split_posted(slot, size, writer, rank), split_consumed(slot, size, writer, rank)
    return _take(comm, writer, ring, read, split_ring(slot, size, writer, rank), _split_bytes(comm), signature)


@kernel("void(int64, int64)")
def drop_split(comm, writer):  # type: ignore[no-untyped-def]
    """The chunk that was taken from `writer` has been read."""
    word = split_consumed(load64(comm + COMM.slot), load64(comm + COMM.size), writer, load64(comm + COMM.rank))
    store_release(word, load64(word) + 1)


@kernel("int64(int64, int64, int64, int64)")
def put_shared(comm, address, nbytes, signature):  # type: ignore[no-untyped-def]
    """Write the next chunk of the own shared ring. 0 or the code of a failure."""
    slot, size, rank = load64(comm + COMM.slot), load64(comm + COMM.size), load64(comm + COMM.rank)
    if size == 1:
        return 0
    ring = shared_posted(slot, size, rank)
    index = load64(ring + RING.posted)
    if index >= CHUNKS:
        for reader in range(size):
            if reader != rank:
                word = shared_consumed(slot, size, rank, reader)
                code = _wait(comm, reader, word, index - CHUNKS + 1, signature)
                if code != 0:
                    return code
    _write(
        comm, ring, index, shared_ring(slot, size, rank), _shared_bytes(comm), bytes_of(signature) >= _LONG_SHARED, address, nbytes
    )
    _post(comm, ring, index, signature)
    return 0


@kernel("int64(int64, int64, int64)")
def take_shared(comm, writer, signature):  # type: ignore[no-untyped-def]
    """Wait for the next chunk of the shared ring of `writer`: its address, or the code of a failure."""
    slot, size, rank = load64(comm + COMM.slot), load64(comm + COMM.size), load64(comm + COMM.rank)
    ring, read = shared_posted(slot, size, writer), shared_consumed(slot, size, writer, rank)
    return _take(comm, writer, ring, read, shared_ring(slot, size, writer), _shared_bytes(comm), signature)


@kernel("void(int64, int64)")
def drop_shared(comm, writer):  # type: ignore[no-untyped-def]
    """The chunk that was taken from the shared ring of `writer` has been read."""
    word = shared_consumed(load64(comm + COMM.slot), load64(comm + COMM.size), writer, load64(comm + COMM.rank))
    store_release(word, load64(word) + 1)


@kernel("int64(int64)")
def piece_of(nbytes):  # type: ignore[no-untyped-def]
    """Bytes of a chunk of a stream of `nbytes`: some pieces, so that readers follow the writer closely, that stay in caches."""
    piece = (nbytes // PIECES + _PAGE - 1) // _PAGE * _PAGE
    return min(max(piece, LEAST_PIECE), MOST_PIECE)


@kernel("int64(int64, int64)")
def chunk_bytes(comm, nbytes):  # type: ignore[no-untyped-def]
    """Bytes of a chunk of a stream of `nbytes` from each rank to each other one, the same for both ends."""
    return min(piece_of(nbytes), split_chunk_bytes(load64(comm + COMM.size), 2 * _shared_bytes(comm)))


@kernel("int64(int64, int64, int64)")
def chunk_items(comm, nbytes, itemsize):  # type: ignore[no-untyped-def]
    """Elements of a chunk of a stream of up to `nbytes` that is reduced: whole lines of them where they are small."""
    items = chunk_bytes(comm, nbytes) // itemsize
    return items // 64 * 64 if items >= 64 else items


@kernel("int64(int64, int64)")
def chunks_of(nbytes, chunk):  # type: ignore[no-untyped-def]
    """Chunks that a stream of `nbytes` takes."""
    return (nbytes + chunk - 1) // chunk


@kernel("void(int64, int64, int64, int64)")
def land(target, source, nbytes, total):  # type: ignore[no-untyped-def]
    """Copy part of altogether `total` bytes to private memory: a chunk, or within it."""
    if total >= STREAM_LANDING_FROM:
        stream(target, source, nbytes)
    else:
        move_lines(target, source, nbytes)

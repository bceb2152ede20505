"""Bulk streams: how large collectives inside a node move their bytes, chunk by chunk through the rings of the slot.

::

    writer:  wait consumed > k - 4   write chunk k (streamed or plain)   posted = k + 1
    reader:  wait posted > k         use chunk k in place                consumed = k + 1

A *shared* stream has one writer and is read by all other ranks; a *split* stream goes from one rank to one other. Counters run on
from collective to collective, and each rank finds its place in the counters that it alone writes, so nothing else has to be kept. A reader
that does not need some chunks of a shared stream adds them to ``consumed`` without waiting for them.

Every collective made of streams works in steps: in step k a rank writes its chunk k of each stream and then reads chunk k - 1 of each.
All ranks take the steps in the same order and four chunks fit into a ring, so the rank that is furthest behind never waits for
another one that waits for it.

Words, writers and memory orders: :mod:`transports.shm.slots`.
"""

from __future__ import annotations

from ncclx_mpi.collectives.lines import SCRATCH, check_signature, give_up
from ncclx_mpi.p2p.layout import BROKEN, COMM, ENGINE
from ncclx_mpi.p2p.progress import trace_begin, trace_end
from ncclx_mpi.p2p.waiting import wait_word
from numba_kernels.atomics import load64, store64, store_release
from numba_kernels.jit import kernel
from numba_kernels.memory import write_shared
from transports.shm.slots import (
    CHUNKS,
    RING,
    SHARED_CHUNK,
    SLOT,
    shared_chunk,
    shared_consumed,
    shared_posted,
    split_chunk,
    split_chunk_bytes,
    split_consumed,
    split_posted,
)

_LEAST = 8 << 10
_MOST = 128 << 10
_PARTS = 4
_PAGE = 4096


@kernel("int64(int64, int64, int64)")
def chunk_for(nbytes, itemsize, size):  # type: ignore[no-untyped-def]
    """Bytes of a chunk for streams of up to `nbytes`: whole elements, and what all `size` ranks compute alike."""
    part = (nbytes // _PARTS + _PAGE - 1) // _PAGE * _PAGE
    chunk = min(max(part, _LEAST), _MOST, SHARED_CHUNK, split_chunk_bytes(size))
    return max(chunk // itemsize, 1) * itemsize


@kernel("int64(int64, int64, int64, int64)")
def open_streams(comm, kind, root, nbytes):  # type: ignore[no-untyped-def]
    """Start a collective on streams: 0, or why it cannot be."""
    if load64(comm + COMM.broken) != 0:
        return BROKEN
    store64(load64(comm + COMM.slot) + SLOT.bulk, 1)
    record = trace_begin(load64(comm + COMM.engine), kind, load64(comm + COMM.context), root, 0, nbytes)
    store64(comm + SCRATCH.record, record)
    return 0


@kernel("int64(int64, int64)")
def close_streams(comm, code):  # type: ignore[no-untyped-def]
    """End a collective on streams, or mark the communicator as broken. Returns `code`."""
    if code != 0:
        give_up(comm)
    else:
        trace_end(load64(comm + SCRATCH.record))
    return code


@kernel("void(int64, int64, int64)")
def _post(counter, signature, number):  # type: ignore[no-untyped-def]
    store64(counter + RING.signatures + 8 * (number & (CHUNKS - 1)), signature)
    store_release(counter + RING.posted, number + 1)


@kernel("int64(int64, int64, int64, int64, int64)")
def write_split(comm, reader, signature, source, nbytes):  # type: ignore[no-untyped-def]
    """Write the next chunk of the stream to `reader`: 0, or why the wait for its room was given up."""
    slot, size, rank = load64(comm + COMM.slot), load64(comm + COMM.size), load64(comm + COMM.rank)
    counter = split_posted(slot, size, rank, reader)
    number = load64(counter + RING.posted)
    code = wait_word(comm, split_consumed(slot, size, rank, reader), number - CHUNKS + 1, slot + SLOT.broken)
    if code != 0:
        return code
    streamed = load64(load64(comm + COMM.engine) + ENGINE.streamed)
    write_shared(split_chunk(slot, size, rank, reader, number), source, nbytes, streamed)
    _post(counter, signature, number)
    return 0


@kernel("int64(int64, int64, int64)")
def await_split(comm, writer, signature):  # type: ignore[no-untyped-def]
    """Wait for the next chunk of the stream from `writer`: 0, or the code of a failure."""
    slot, size, rank = load64(comm + COMM.slot), load64(comm + COMM.size), load64(comm + COMM.rank)
    number = load64(split_consumed(slot, size, writer, rank))
    counter = split_posted(slot, size, writer, rank)
    code = wait_word(comm, counter + RING.posted, number + 1, slot + SLOT.broken)
    if code != 0:
        return code
    return check_signature(comm, writer, signature, load64(counter + RING.signatures + 8 * (number & (CHUNKS - 1))))


@kernel("int64(int64, int64)")
def split_memory(comm, writer):  # type: ignore[no-untyped-def]
    """Where the next chunk from `writer` stands, once it was awaited."""
    slot, size, rank = load64(comm + COMM.slot), load64(comm + COMM.size), load64(comm + COMM.rank)
    return split_chunk(slot, size, writer, rank, load64(split_consumed(slot, size, writer, rank)))


@kernel("void(int64, int64)")
def consume_split(comm, writer):  # type: ignore[no-untyped-def]
    """Say that the chunk from `writer` was read."""
    word = split_consumed(load64(comm + COMM.slot), load64(comm + COMM.size), writer, load64(comm + COMM.rank))
    store_release(word, load64(word) + 1)


@kernel("int64(int64, int64, int64, int64)")
def write_all(comm, signature, source, nbytes):  # type: ignore[no-untyped-def]
    """Write the next chunk of this rank's shared stream: 0, or why the wait for its room was given up."""
    slot, size, rank = load64(comm + COMM.slot), load64(comm + COMM.size), load64(comm + COMM.rank)
    counter = shared_posted(slot, size, rank)
    number = load64(counter + RING.posted)
    for reader in range(size):
        if reader != rank:
            code = wait_word(comm, shared_consumed(slot, size, rank, reader), number - CHUNKS + 1, slot + SLOT.broken)
            if code != 0:
                return code
    streamed = load64(load64(comm + COMM.engine) + ENGINE.streamed)
    write_shared(shared_chunk(slot, size, rank, number), source, nbytes, streamed)
    _post(counter, signature, number)
    return 0


@kernel("int64(int64, int64, int64)")
def await_shared(comm, writer, signature):  # type: ignore[no-untyped-def]
    """Wait for the next chunk of the shared stream of `writer`: 0, or the code of a failure."""
    slot, size, rank = load64(comm + COMM.slot), load64(comm + COMM.size), load64(comm + COMM.rank)
    number = load64(shared_consumed(slot, size, writer, rank))
    counter = shared_posted(slot, size, writer)
    code = wait_word(comm, counter + RING.posted, number + 1, slot + SLOT.broken)
    if code != 0:
        return code
    return check_signature(comm, writer, signature, load64(counter + RING.signatures + 8 * (number & (CHUNKS - 1))))


@kernel("int64(int64, int64)")
def shared_memory(comm, writer):  # type: ignore[no-untyped-def]
    """Where the next chunk of `writer` stands, once it was awaited."""
    slot, size, rank = load64(comm + COMM.slot), load64(comm + COMM.size), load64(comm + COMM.rank)
    return shared_chunk(slot, size, writer, load64(shared_consumed(slot, size, writer, rank)))


@kernel("void(int64, int64, int64)")
def consume_shared(comm, writer, chunks):  # type: ignore[no-untyped-def]
    """Say that `chunks` chunks of `writer` were read, or are not needed."""
    word = shared_consumed(load64(comm + COMM.slot), load64(comm + COMM.size), writer, load64(comm + COMM.rank))
    store_release(word, load64(word) + chunks)

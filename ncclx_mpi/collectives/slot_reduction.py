"""Reductions on streams: each rank reduces one slice of everybody's elements. Allreduce, Reduce, Reduce_scatter(_block).

::

    step k, rank r:   for each d:   chunk k of slice d of r's elements  -->  split ring r -> d
                      own slice, chunk k - 1:   ((rank 0 + rank 1) + rank 2) + ...  -->  result
                                                result                  -->  shared ring of r       (allreduce, reduce)
                      for each s:   shared ring of s  -->  chunk k - 2 of slice s

Elements are reduced in rank order whoever does it, so the bits are those of the small algorithm. Nobody reads an element twice.
In place: a chunk of a slice is overwritten after it was written to the ring.

T = alpha + m (n - 1)/n (beta_write + beta_read + gamma) for the reduce-scatter, and as much without gamma for the rest of an allreduce.
"""

from __future__ import annotations

from ncclx_mpi.collectives.bulk import (
    await_shared,
    await_split,
    chunk_for,
    close_streams,
    consume_shared,
    consume_split,
    open_streams,
    shared_memory,
    split_memory,
    write_all,
    write_split,
)
from ncclx_mpi.collectives.lines import sign
from ncclx_mpi.p2p.layout import COMM
from numba_kernels.atomics import call_reduce, load64
from numba_kernels.jit import kernel
from numba_kernels.memory import copy
from transports.shm.slots import split_chunk

NO_ROOT, EVERYONE = -1, -2
"""Instead of a root: results stay where they were reduced; they go to everyone."""
MOST_ITEMSIZE = 4 << 10
"""Bytes of an element that still fits into a chunk on any number of ranks."""


@kernel("int64(int64, int64, int64, int64)")
def slice_start(slices, count, size, index):  # type: ignore[no-untyped-def]
    """First element of slice `index`: of a table of int64[size + 1], or of an even cut of `count` elements (table 0)."""
    if slices != 0:
        return load64(slices + 8 * index)
    share = (count + size - 1) // size
    return min(share * index, count)


@kernel("int64(int64, int64, int64, int64, int64, int64, int64, int64, int64)", is_entry=True)
def reduce_slices(comm, kind, root, send, recv, slices, count, itemsize, fn):  # type: ignore[no-untyped-def]
    """Reduce `count` elements of every rank.

    Parameters
    ----------
    comm
        Address of the communicator; it has a slot.
    kind
        Which collective it is, for the signature.
    root
        Rank that gets the result, EVERYONE, or NO_ROOT: each rank gets its own slice.
    send, recv
        Addresses. EVERYONE and the root: `count` elements, may be equal. NO_ROOT: `recv` takes the own slice, and may be `send`.
        Other ranks of a rooted reduction: `recv` is not used.
    slices
        Address of int64[size + 1], the first element of each rank's slice; 0: an even cut.
    count, itemsize, fn
        Elements of each rank in all, bytes of one (at most `MOST_ITEMSIZE`), address of the reduction function.
    """
    size = load64(comm + COMM.size)
    code = open_streams(comm, kind, root, count * itemsize)
    if code != 0:
        return code
    longest = 0
    for index in range(size):
        longest = max(longest, slice_start(slices, count, size, index + 1) - slice_start(slices, count, size, index))
    chunk = chunk_for(longest * itemsize, itemsize, size) // itemsize
    steps = (longest + chunk - 1) // chunk
    signature = sign(kind, max(root, 0), count * itemsize)
    last = steps + 1 if root == NO_ROOT else steps + 2
    step = 0
    while code == 0 and step < last and steps > 0:
        if step < steps:
            code = _contribute(comm, signature, send, slices, count, itemsize, chunk, step)
        if code == 0 and 1 <= step <= steps:
            code = _reduce_own(comm, signature, root, send, recv, slices, count, itemsize, fn, chunk, step - 1)
        if code == 0 and step >= 2 and root != NO_ROOT:
            code = _collect(comm, signature, root, recv, slices, count, itemsize, chunk, step - 2)
        step += 1
    return close_streams(comm, code)


@kernel("int64(int64, int64, int64, int64, int64, int64, int64, int64)")
def _contribute(comm, signature, send, slices, count, itemsize, chunk, step):  # type: ignore[no-untyped-def]
    """Write chunk `step` of every other rank's slice."""
    size, rank = load64(comm + COMM.size), load64(comm + COMM.rank)
    for turn in range(1, size):
        dest = (rank + turn) % size
        first = slice_start(slices, count, size, dest) + step * chunk
        length = min(chunk, slice_start(slices, count, size, dest + 1) - first)
        if length > 0:
            code = write_split(comm, dest, signature, send + first * itemsize, length * itemsize)
            if code != 0:
                return code
    return 0


@kernel("int64(int64, int64, int64, int64, int64, int64, int64, int64, int64, int64, int64)")
def _reduce_own(comm, signature, root, send, recv, slices, count, itemsize, fn, chunk, step):  # type: ignore[no-untyped-def]
    """Reduce chunk `step` of the own slice in rank order, and publish the result if others need it."""
    size, rank = load64(comm + COMM.size), load64(comm + COMM.rank)
    first = slice_start(slices, count, size, rank)
    length = min(chunk, slice_start(slices, count, size, rank + 1) - first - step * chunk)
    if length <= 0:
        return 0
    own = send + (first + step * chunk) * itemsize
    spare = split_chunk(load64(comm + COMM.slot), size, rank, rank, 0)
    if root == NO_ROOT:
        out = recv + step * chunk * itemsize
    elif root in (EVERYONE, rank):
        out = recv + (first + step * chunk) * itemsize
    else:
        out = spare
    nbytes = length * itemsize
    overlap = out < own + nbytes and own < out + nbytes
    if overlap and (rank > 1 or out != own):  # the sum of the ranks before would overwrite the own elements
        copy(spare, own, nbytes)
        own = spare
    low = own
    for source in range(size):
        operand = own
        if source != rank:
            code = await_split(comm, source, signature)
            if code != 0:
                return code
            operand = split_memory(comm, source)
        if source == 0:
            low = operand
            continue
        call_reduce(fn, out, low, operand, length)
        low = out
    for source in range(size):
        if source != rank:
            consume_split(comm, source)
    if size == 1 and out != own:
        copy(out, own, nbytes)
    if root in (NO_ROOT, rank) or size == 1:
        return 0
    return write_all(comm, signature, out, nbytes)


@kernel("int64(int64, int64, int64, int64, int64, int64, int64, int64, int64)")
def _collect(comm, signature, root, recv, slices, count, itemsize, chunk, step):  # type: ignore[no-untyped-def]
    """Take chunk `step` of the results of the other ranks, or pass it by where only the root needs it."""
    size, rank = load64(comm + COMM.size), load64(comm + COMM.rank)
    for turn in range(1, size):
        source = (rank + turn) % size
        first = slice_start(slices, count, size, source) + step * chunk
        length = min(chunk, slice_start(slices, count, size, source + 1) - first)
        if length <= 0 or source == root:
            continue
        if root in (EVERYONE, rank):
            code = await_shared(comm, source, signature)
            if code != 0:
                return code
            copy(recv + first * itemsize, shared_memory(comm, source), length * itemsize)
        consume_shared(comm, source, 1)
    return 0

"""Reduce_scatter in bulk: by direct copies, or on split streams, where each rank writes every block to its owner, which reduces them.

::

    round t:  rank r  -- chunk t of block d ---------------------------------------->  stream r>d
              rank r  recv chunk t - 1 = ((stream 0>r  op  stream 1>r) op ... own block ...) op stream n-1>r

Partial results stay in a private chunk that fits the cache; the caller's memory is written once, by the last operation, so the result may
replace the start of the input. T = alpha + m * beta + m * gamma for m bytes of input.
"""

from __future__ import annotations

from ncclx_mpi.collectives.cma import UNREACHED
from ncclx_mpi.collectives.cma_tuning import choose_way, note_way
from ncclx_mpi.collectives.reduce_scatter import cma
from ncclx_mpi.collectives.shm_oneshot import NO_MEMORY, REDUCE_SCATTER, end, sign, working_memory
from ncclx_mpi.collectives.shm_pipelined import (
    LEAST_ADDRESS,
    begin_streams,
    chunk_items,
    chunks_of,
    drop_shared,
    drop_split,
    land,
    put_split,
    take_shared,
    take_split,
)
from ncclx_mpi.p2p.layout import COMM
from numba_kernels.atomics import load64, store64, ticks
from numba_kernels.calls import call_reduce
from numba_kernels.jit import kernel
from numba_kernels.memory import copy, release
from transports.shm.shared import DIRECT


@kernel("int64(int64, int64, int64, int64, int64, int64, int64)")
def send_blocks(comm, signature, send, firsts, itemsize, chunk, turn):  # type: ignore[no-untyped-def]
    """Write chunk `turn` of each block to its owner. `firsts` is the address of size + 1 element indices, `chunk` counts elements."""
    size, rank = load64(comm + COMM.size), load64(comm + COMM.rank)
    for step in range(1, size):
        owner = (rank + step) % size
        first = load64(firsts + 8 * owner) + turn * chunk
        count = min(chunk, load64(firsts + 8 * owner + 8) - first)
        if count > 0:
            code = put_split(comm, owner, send + first * itemsize, count * itemsize, signature)
            if code != 0:
                return code
    return 0


@kernel("int64(int64, int64, int64, int64, int64, int64, int64, int64)")
def reduce_chunk(comm, signature, own, out, temp, count, itemsize, fn):  # type: ignore[no-untyped-def]
    """Out = the next `count` elements of all streams to this rank, and of `own`, reduced in rank order.

    `out` is written last, so it may be `own`; `temp` holds partial results.
    """
    size, rank = load64(comm + COMM.size), load64(comm + COMM.rank)
    low = own
    if size == 1:
        copy(out, own, count * itemsize)
    if rank != 0 and size > 1:
        low = take_split(comm, 0, signature)
        if low < LEAST_ADDRESS:
            return low
    for other in range(1, size):
        high = own
        if other != rank:
            high = take_split(comm, other, signature)
            if high < LEAST_ADDRESS:
                return high
        target = out if other == size - 1 else temp
        call_reduce(fn, target, low, high, count)
        if other == 1 and rank != 0:
            drop_split(comm, 0)
        if other != rank:
            drop_split(comm, other)
        low = target
    return 0


@kernel("int64(int64, int64, int64, int64, int64, int64, int64, int64, int64, int64)")
def reduce_round(comm, signature, send, out, firsts, itemsize, fn, chunk, turn, temp):  # type: ignore[no-untyped-def]
    """Send chunk `turn` of each block to its owner, and reduce chunk `turn` - 1 of the own block to `out`.

    `temp` has room for a chunk. Returns how many elements were reduced, or minus the code of a failure.
    """
    code, own = send_blocks(comm, signature, send, firsts, itemsize, chunk, turn), firsts + 8 * load64(comm + COMM.rank)
    first = load64(own) + (turn - 1) * chunk
    count = min(chunk, load64(own + 8) - first)
    if code == 0 and turn > 0 and count > 0:
        code = reduce_chunk(comm, signature, send + first * itemsize, out, temp, count, itemsize, fn)
        return -code if code != 0 else count
    return -code


@kernel("int64(int64, int64, int64, int64, int64, int64, int64, int64)")
def collect_round(comm, signature, recv, firsts, itemsize, chunk, turn, is_shared):  # type: ignore[no-untyped-def]
    """Copy chunk `turn` of everyone else's reduced block from the shared ring of its owner, or from the stream to this rank."""
    size, rank = load64(comm + COMM.size), load64(comm + COMM.rank)
    total = load64(firsts + 8 * size) * itemsize
    for step in range(1, size):
        owner = (rank + size - step) % size
        first = load64(firsts + 8 * owner) + turn * chunk
        count = min(chunk, load64(firsts + 8 * owner + 8) - first)
        if count > 0:
            source = take_shared(comm, owner, signature) if is_shared else take_split(comm, owner, signature)
            if source < LEAST_ADDRESS:
                return source
            land(recv + first * itemsize, source, count * itemsize, total)
            if is_shared:
                drop_shared(comm, owner)
            else:
                drop_split(comm, owner)
    return 0


@kernel("int64(int64, int64, int64, int64, int64, int64)", is_entry=True)
def reduce_scatter(comm, send, recv, firsts, itemsize, fn):  # type: ignore[no-untyped-def]
    """Block i is elements ``firsts[i]`` to ``firsts[i + 1]``, the same on all ranks."""
    nbytes = load64(firsts + 8 * load64(comm + COMM.size)) * itemsize
    signature = sign(REDUCE_SCATTER, 0, nbytes)
    way = choose_way(comm, signature, nbytes)
    if way < 0:
        return -way
    began, code = ticks(), UNREACHED
    if way == DIRECT:
        code = cma.reduce_scatter(comm, signature, send, recv, firsts, itemsize, fn)
    if code == UNREACHED:
        code = _stream(comm, send, recv, firsts, itemsize, fn)
    return note_way(comm, signature, nbytes, way, began, code)


@kernel("int64(int64, int64, int64, int64, int64, int64)")
def _stream(comm, send, recv, firsts, itemsize, fn):  # type: ignore[no-untyped-def]
    size = load64(comm + COMM.size)
    total = load64(firsts + 8 * size)
    signature, chunk = sign(REDUCE_SCATTER, 0, total * itemsize), chunk_items(comm, total // size * itemsize, itemsize)
    number = begin_streams(comm, signature)
    if number < 0:
        return -number
    longest = 0
    for block in range(size):
        longest = max(longest, load64(firsts + 8 * block + 8) - load64(firsts + 8 * block))
    rounds, code = chunks_of(longest, chunk), 0
    temp = working_memory(comm, chunk * itemsize)
    if temp == 0:
        return NO_MEMORY
    for turn in range(rounds + 1):
        out = recv + (turn - 1) * chunk * itemsize
        reduced = reduce_round(comm, signature, send, out, firsts, itemsize, fn, chunk, turn, temp)
        if reduced < 0:
            code = -reduced
            break
    release(temp)
    return end(comm, number, code)


@kernel("void(int64, int64, int64)")
def even_firsts(firsts, count, size):  # type: ignore[no-untyped-def]
    """Write the first elements of `size` nearly equal blocks, and the end of the last."""
    for block in range(size + 1):
        store64(firsts + 8 * block, count * block // size)


@kernel("int64(int64, int64, int64, int64, int64, int64)", is_entry=True)
def reduce_scatter_block(comm, send, recv, count, itemsize, fn):  # type: ignore[no-untyped-def]
    """`count` elements for each rank."""
    size = load64(comm + COMM.size)
    firsts = working_memory(comm, (size + 1) * 8)
    if firsts == 0:
        return NO_MEMORY
    even_firsts(firsts, count * size, size)
    code = reduce_scatter(comm, send, recv, firsts, itemsize, fn)
    release(firsts)
    return code

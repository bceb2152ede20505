"""Reduce in bulk: by direct copies, or on split streams, where each rank reduces one block in rank order and sends it on to the root.

::

    round t:  chunk t of block d      ->  stream r>d
              own block, chunk t - 1   =  reduced in rank order  ->  stream r>root   (the root: its memory)
    root:     block s, chunk t - 2    <-  stream s>root

With two ranks the root does it all, which is as fast. A stream to the root carries parts and results in turn; both sides
count rounds alike, so they know which is which. T = 2 alpha + 2 m * beta + m / n * n * gamma / n.
"""

from __future__ import annotations

from ncclx_mpi.collectives.direct import UNREACHED
from ncclx_mpi.collectives.lines import REDUCE, end, sign
from ncclx_mpi.collectives.reduce import direct
from ncclx_mpi.collectives.reduce_scatter.slot_large import even_firsts, reduce_chunk, send_blocks
from ncclx_mpi.collectives.streams import (
    LEAST_ADDRESS,
    begin_streams,
    chunks_of,
    drop_split,
    land,
    put_split,
    take_split,
)
from ncclx_mpi.collectives.ways import choose_way, note_way
from ncclx_mpi.p2p.layout import COMM, DIRECT
from numba_kernels.atomics import load64, store64, ticks
from numba_kernels.jit import kernel
from numba_kernels.memory import allocate, release


@kernel("int64(int64, int64, int64, int64, int64, int64, int64)")
def _collect_results(comm, signature, recv, firsts, itemsize, chunk, turn):  # type: ignore[no-untyped-def]
    size, rank = load64(comm + COMM.size), load64(comm + COMM.rank)
    total = load64(firsts + 8 * size) * itemsize
    for step in range(1, size):
        owner = (rank + size - step) % size
        first = load64(firsts + 8 * owner) + turn * chunk
        count = min(chunk, load64(firsts + 8 * owner + 8) - first)
        if count > 0:
            source = take_split(comm, owner, signature)
            if source < LEAST_ADDRESS:
                return source
            land(recv + first * itemsize, source, count * itemsize, total)
            drop_split(comm, owner)
    return 0


@kernel("void(int64, int64, int64, int64)")
def _blocks(firsts, count, size, root):  # type: ignore[no-untyped-def]
    """Even blocks; all of it for the root if there are two ranks."""
    even_firsts(firsts, count, size)
    if size == 2:
        store64(firsts + 8, count if root == 0 else 0)


@kernel("int64(int64, int64, int64, int64, int64, int64, int64, int64)", is_entry=True)
def reduce(comm, send, recv, count, itemsize, fn, root, chunk):  # type: ignore[no-untyped-def]
    """`chunk` counts elements; `send` == `recv` at the root means in place."""
    signature, nbytes = sign(REDUCE, root, count * itemsize), count * itemsize
    way = choose_way(comm, signature, nbytes)
    if way < 0:
        return -way
    began, code = ticks(), UNREACHED
    if way == DIRECT:
        code = direct.reduce(comm, signature, send, recv, count, itemsize, fn, root)
    if code == UNREACHED:
        code = _stream(comm, send, recv, count, itemsize, fn, root, chunk)
    return note_way(comm, signature, nbytes, way, began, code)


@kernel("int64(int64, int64, int64, int64, int64, int64, int64, int64)")
def _stream(comm, send, recv, count, itemsize, fn, root, chunk):  # type: ignore[no-untyped-def]
    size, rank = load64(comm + COMM.size), load64(comm + COMM.rank)
    signature = sign(REDUCE, root, count * itemsize)
    number = begin_streams(comm, signature)
    if number < 0:
        return -number
    firsts, temp, result = allocate((size + 1) * 8), allocate(chunk * itemsize), allocate(chunk * itemsize)
    _blocks(firsts, count, size, root)
    first, end_of_mine = load64(firsts + 8 * rank), load64(firsts + 8 * rank + 8)
    rounds, code = chunks_of(count if size == 2 else (count + size - 1) // size, chunk), 0
    for turn in range(rounds + 2):
        if turn < rounds:
            code = send_blocks(comm, signature, send, firsts, itemsize, chunk, turn)
        at = first + (turn - 1) * chunk
        if code == 0 and turn > 0 and at < end_of_mine:
            part = min(chunk, end_of_mine - at)
            out = recv + at * itemsize if rank == root else result
            code = reduce_chunk(comm, signature, send + at * itemsize, out, temp, part, itemsize, fn)
            if code == 0 and rank != root:
                code = put_split(comm, root, result, part * itemsize, signature)
        if code == 0 and turn > 1 and rank == root:
            code = _collect_results(comm, signature, recv, firsts, itemsize, chunk, turn - 2)
        if code != 0:
            break
    release(firsts)
    release(temp)
    release(result)
    return end(comm, number, code)

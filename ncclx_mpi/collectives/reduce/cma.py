"""Reduce and allreduce by direct copies: each rank reduces one block, chunk by chunk, and pushes the results to the root, or to all.

::

    rank r:  chunk k of block r of rank s  -->  private chunk            for all s but r, in rank order
             own result, chunk k            =   ((0 op 1) op 2) op ...   (a private chunk, where there is no result)
             own result, chunk k           -->  result of the root       (of an allreduce: of rank r + 1, of rank r + 2, ...)

A chunk stays in the cache on its way. Nobody else reads or writes the block of a rank in the buffers of others, so in place is safe: a
result replaces a contribution that has been read. T = 2 alpha + m * beta + (n - 1) / n * m * gamma; of an allreduce,
2 alpha + 2 (n - 1) / n * m * beta + (n - 1) / n * m * gamma.
"""

from __future__ import annotations

from ncclx_mpi.collectives.cma import UNREACHED, back_and_forth, close_direct, is_shown, open_direct, opened, push, show
from ncclx_mpi.collectives.cma_tuning import WAYS
from ncclx_mpi.collectives.reduce_scatter.cma import chunk_items, reduce_pulled
from ncclx_mpi.collectives.shm_pipelined import chunks_of
from ncclx_mpi.p2p.layout import COMM
from numba_kernels.atomics import load64
from numba_kernels.jit import kernel
from numba_kernels.memory import allocate_lines, release

EVERYONE = -1
"""The root of an allreduce."""
_WORDS = 3


@kernel("int64(int64, int64, int64, int64, int64, int64, int64, int64)")
def reduce(comm, signature, send, recv, count, itemsize, fn, root):  # type: ignore[no-untyped-def]
    """`recv` matters where there is a result, and `send` == `recv` means in place there. 0, UNREACHED, or the code of a failure."""
    size, rank, code = load64(comm + COMM.size), load64(comm + COMM.rank), 0
    start, stop = count * rank // size, count * (rank + 1) // size
    items = chunk_items(comm, stop - start, itemsize)
    room = allocate_lines(2 * items * itemsize)
    has_result = root in (EVERYONE, rank)
    shown = is_shown(comm, send) if room != 0 else 0
    if has_result:
        shown &= is_shown(comm, recv)
    show(comm + WAYS.message, shown, send, recv)
    number = open_direct(comm, signature, comm + WAYS.message, _WORDS)
    if number > 0:
        chunks = chunks_of(stop - start, items)
        for index in range(chunks):
            first = start + back_and_forth(number, index, chunks) * items
            part, at = min(items, stop - first), first * itemsize
            out = recv + at if has_result else room
            if code == 0:
                code = reduce_pulled(comm, number, _WORDS, send, out, at, part, itemsize, fn, room)
            for step in range(1, size):
                other = (rank + step) % size
                if code == 0 and root in (EVERYONE, other):
                    code = push(comm, other, out, opened(comm, other, number, _WORDS, 2) + at, part * itemsize)
        code = close_direct(comm, number, code)
    release(room)
    return code if number > 0 else -number if number < 0 else UNREACHED

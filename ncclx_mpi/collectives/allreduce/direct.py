"""Allreduce by direct copies: each rank reduces one block, chunk by chunk, and pushes the results to all others.

::

    rank r:  chunk k of block r of rank s  -->  private chunk            for all s but r, in rank order
             own result, chunk k            =   ((0 op 1) op 2) op ...
             own result, chunk k           -->  result of rank r + 1, of rank r + 2, ...

A chunk stays in the cache on its way. Of a result that would not stay there, it is reduced to the private chunk, pushed from there, and
written past the cache. Nobody else reads or writes the block of a rank in the buffers of others, so in place is safe: a
result replaces a contribution that has been read. T = 2 alpha + 2 (n - 1) / n * m * beta + (n - 1) / n * m * gamma.
"""

from __future__ import annotations

from ncclx_mpi.collectives.direct import UNREACHED, close_direct, is_shown, open_direct, opened, push, show
from ncclx_mpi.collectives.reduce_scatter.direct import allocate_chunks, chunk_items, reduce_pulled
from ncclx_mpi.collectives.streams import STREAM_LANDING_FROM, land
from ncclx_mpi.collectives.ways import WAYS
from ncclx_mpi.p2p.layout import COMM
from numba_kernels.atomics import load64
from numba_kernels.jit import kernel
from numba_kernels.memory import release

_WORDS = 3


@kernel("int64(int64, int64, int64, int64, int64, int64, int64)")
def allreduce(comm, signature, send, recv, count, itemsize, fn):  # type: ignore[no-untyped-def]
    """`send` == `recv` means in place. 0, UNREACHED, or the code of a failure."""
    size, rank, code = load64(comm + COMM.size), load64(comm + COMM.rank), 0
    room = allocate_chunks(itemsize)
    show(comm + WAYS.message, is_shown(comm, send) & is_shown(comm, recv) if room != 0 else 0, send, recv)
    number = open_direct(comm, signature, comm + WAYS.message, _WORDS)
    if number > 0:
        last, nbytes = count * (rank + 1) // size, count * itemsize
        for first in range(count * rank // size, last, chunk_items(itemsize)):
            part, at = min(chunk_items(itemsize), last - first), first * itemsize
            out = room if nbytes >= STREAM_LANDING_FROM else recv + at
            if code == 0:
                code = reduce_pulled(comm, number, _WORDS, send, out, at, part, itemsize, fn, room)
            for step in range(1, size):
                other = (rank + step) % size
                if code == 0:
                    code = push(comm, other, out, opened(comm, other, number, _WORDS, 2) + at, part * itemsize)
            if code == 0 and out == room:
                land(recv + at, room, part * itemsize, nbytes)
        code = close_direct(comm, number, code)
    release(room)
    return code if number > 0 else -number if number < 0 else UNREACHED

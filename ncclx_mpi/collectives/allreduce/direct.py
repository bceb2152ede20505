"""Allreduce by direct copies: each rank reduces one block, chunk by chunk, and pushes the results to all others.

::

    rank r:  chunk k of block r of rank s  -->  private chunk            for all s but r, in rank order
             own result, chunk k            =   ((0 op 1) op 2) op ...
             own result, chunk k           -->  result of rank r + 1, of rank r + 2, ...

A chunk stays in the cache on its way. Nobody else reads or writes the block of a rank in the buffers of others, so in place is safe: a
result replaces a contribution that has been read. T = 2 alpha + 2 (n - 1) / n * m * beta + (n - 1) / n * m * gamma.
"""

from __future__ import annotations

from ncclx_mpi.collectives.direct import UNREACHED, close_direct, is_shown, open_direct, opened, pull, push, show
from ncclx_mpi.collectives.ways import WAYS
from ncclx_mpi.p2p.layout import COMM
from numba_kernels.atomics import call_reduce, load64
from numba_kernels.jit import kernel
from numba_kernels.memory import allocate, release

_WORDS = 3


@kernel("int64(int64, int64, int64, int64, int64, int64, int64, int64)")
def allreduce(comm, signature, send, recv, count, itemsize, fn, chunk):  # type: ignore[no-untyped-def]
    """`chunk` counts elements; `send` == `recv` means in place. 0, UNREACHED, or the code of a failure."""
    size, rank, refused = load64(comm + COMM.size), load64(comm + COMM.rank), 0
    show(comm + WAYS.message, is_shown(comm, send) & is_shown(comm, recv), send, recv)
    number = open_direct(comm, signature, comm + WAYS.message, _WORDS)
    if number <= 0:
        return -number if number < 0 else UNREACHED
    last = count * (rank + 1) // size
    room = allocate(2 * chunk * itemsize)
    for first in range(count * rank // size, last, chunk):
        part, at = min(chunk, last - first), first * itemsize
        refused |= reduce_pulled(comm, number, _WORDS, send, recv + at, at, part, itemsize, fn, room)
        for step in range(1, size):
            other = (rank + step) % size
            refused |= push(comm, other, recv + at, opened(comm, other, number, _WORDS, 2) + at, part * itemsize)
    release(room)
    return close_direct(comm, signature, number, refused)


@kernel("int64(int64, int64, int64, int64, int64, int64, int64, int64, int64, int64)")
def reduce_pulled(comm, number, words, send, out, at, count, itemsize, fn, room):  # type: ignore[no-untyped-def]
    """Out = the `count` elements `at` bytes from the start of all ranks' buffers, which are their second words, in rank order.

    `out` is written last, so it may be the own ones; `room` holds two chunks. Returns 0, or 1 if the kernel refused.
    """
    size, rank, nbytes = load64(comm + COMM.size), load64(comm + COMM.rank), count * itemsize
    low, refused = send + at, 0
    if rank != 0:
        low = room
        refused |= pull(comm, 0, opened(comm, 0, number, words, 1) + at, low, nbytes)
    for other in range(1, size):
        high = send + at
        if other != rank:
            high = room + nbytes
            refused |= pull(comm, other, opened(comm, other, number, words, 1) + at, high, nbytes)
        target = out if other == size - 1 else room
        call_reduce(fn, target, low, high, count)
        low = target
    return refused

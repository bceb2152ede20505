"""Reduce_scatter by direct copies: each rank pulls its block from all others, chunk by chunk, and reduces it in rank order.

::

    rank r:  chunk k of block r of rank s  -->  private chunk            for all s but r, in rank order
             chunk k of the result          =   ((0 op 1) op 2) op ...

A chunk stays in the cache on its way. In place, the result replaces the start of the input, which others pull until the end: it is kept
apart until then. T = 2 alpha + (n - 1) / n * m * (beta + gamma) for m bytes of input.
"""

from __future__ import annotations

from ncclx_mpi.collectives.cma import UNREACHED, back_and_forth, close_direct, is_shown, open_direct, opened, pull, show
from ncclx_mpi.collectives.cma_tuning import WAYS
from ncclx_mpi.collectives.shm_pipelined import chunks_of
from ncclx_mpi.p2p.layout import COMM
from numba_kernels.atomics import load64
from numba_kernels.calls import call_reduce
from numba_kernels.jit import kernel
from numba_kernels.memory import allocate, allocate_lines, copy, release
from transports.shm.lane import SHM
from transports.shm.layout import HEADER

_WORDS = 2
LEAST_CHUNK, MOST_CHUNK = 128 << 10, 256 << 10
"""Bytes that are reduced at once: less costs system calls, more gains nothing."""
_CACHE_CHUNKS, _FEWEST = 8, 4
"""Chunks that a second-level cache should hold: what was pulled, the own elements, the result, and what others left there; and chunks of
a block, since ranks that come late are waited for the less the smaller they are."""
_LINE_ITEMS = 64


@kernel("int64(int64, int64, int64, int64, int64, int64, int64)")
def reduce_scatter(comm, signature, send, recv, firsts, itemsize, fn):  # type: ignore[no-untyped-def]
    """Block i is elements ``firsts[i]`` to ``firsts[i + 1]``; `send` == `recv` means in place. 0, UNREACHED, or the code of a failure."""
    first = load64(firsts + 8 * load64(comm + COMM.rank))
    count = load64(firsts + 8 * load64(comm + COMM.rank) + 8) - first
    out = recv if send != recv else allocate(count * itemsize)
    items = chunk_items(comm, count, itemsize)
    room = allocate_lines(2 * items * itemsize)
    show(comm + WAYS.message, is_shown(comm, send) if out != 0 and room != 0 else 0, send, 0)
    number, code = open_direct(comm, signature, comm + WAYS.message, _WORDS), 0
    if number > 0:
        chunks = chunks_of(count, items)
        for index in range(chunks):
            at = back_and_forth(number, index, chunks) * items
            part = min(items, count - at)
            if code == 0:
                offset = (first + at) * itemsize
                code = reduce_pulled(comm, number, _WORDS, send, out + at * itemsize, offset, part, itemsize, fn, room)
        code = close_direct(comm, number, code)
        if out != recv:
            copy(recv, out, count * itemsize)
    if out != recv:
        release(out)
    release(room)
    return code if number > 0 else -number if number < 0 else UNREACHED


@kernel("int64(int64, int64, int64)")
def chunk_items(comm, count, itemsize):  # type: ignore[no-untyped-def]
    """Elements of a block of `count` that are reduced at once: whole lines of them where they are small.

    It is nothing that ranks have to know of each other.
    """
    cached = load64(load64(load64(comm + COMM.engine) + SHM.arena) + HEADER.l2_bytes) // _CACHE_CHUNKS
    nbytes = min(max(min(cached, count * itemsize // _FEWEST), LEAST_CHUNK), MOST_CHUNK)
    items = max(nbytes // itemsize, 1)
    return items // _LINE_ITEMS * _LINE_ITEMS if items >= _LINE_ITEMS else items


@kernel("int64(int64, int64, int64, int64, int64, int64, int64, int64, int64, int64)")
def reduce_pulled(comm, number, words, send, out, at, count, itemsize, fn, room):  # type: ignore[no-untyped-def]
    """Out = the `count` elements `at` bytes from the start of all ranks' buffers, which are their second words, in rank order.

    `room` is for two times as many. `out` is written last, so it may be the own ones. Returns 0, or why a copy was given up.
    """
    size, rank, nbytes = load64(comm + COMM.size), load64(comm + COMM.rank), count * itemsize
    low, code = send + at, 0
    if rank != 0:
        low = room
        code = pull(comm, 0, opened(comm, 0, number, words, 1) + at, low, nbytes)
    for other in range(1, size):
        high = send + at
        if other != rank and code == 0:
            high = room + nbytes
            code = pull(comm, other, opened(comm, other, number, words, 1) + at, high, nbytes)
        target = out if other == size - 1 else room
        if code == 0:
            call_reduce(fn, target, low, high, count)
        low = target
    return code

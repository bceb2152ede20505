"""Scan and Exscan on shared streams: every rank publishes its elements, rank r reduces those of the ranks before it.

::

    step k, rank r:   chunk k of r   -->  shared ring of r
                      for s = 0 .. r:   ((ring 0 + ring 1) + ...) + own   -->  chunk k - 1 of the result

The last rank does the most, n - 1 reductions; a chain of messages would do one each, but one after another.
T = alpha + m beta + (n - 1) m (beta + gamma).
"""

from __future__ import annotations

from ncclx_mpi.collectives.bulk import (
    await_shared,
    chunk_for,
    close_streams,
    consume_shared,
    open_streams,
    shared_memory,
    write_all,
)
from ncclx_mpi.collectives.lines import EXSCAN, sign
from ncclx_mpi.p2p.layout import COMM
from numba_kernels.atomics import call_reduce, load64
from numba_kernels.jit import kernel
from numba_kernels.memory import copy
from transports.shm.slots import split_chunk


@kernel("int64(int64, int64, int64, int64, int64, int64, int64)", is_entry=True)
def scan_streams(comm, kind, send, recv, count, itemsize, fn):  # type: ignore[no-untyped-def]
    """Reduce `count` elements of ranks 0 to r (SCAN) or r - 1 (EXSCAN, rank 0 gets nothing); `send` == `recv` means in place."""
    size = load64(comm + COMM.size)
    nbytes = count * itemsize
    code = open_streams(comm, kind, -1, nbytes)
    if code != 0:
        return code
    signature, chunk, done = sign(kind, 0, nbytes), chunk_for(nbytes, itemsize, size), 0
    while code == 0 and done < nbytes + chunk:
        if done < nbytes and size > 1:
            code = write_all(comm, signature, send + done, min(chunk, nbytes - done))
        if code == 0 and done > 0:
            before = done - chunk
            length = min(chunk, nbytes - before)
            code = _reduce_before(comm, kind, signature, send + before, recv + before, length, length // itemsize, fn)
        done += chunk
    return close_streams(comm, code)


@kernel("int64(int64, int64, int64, int64, int64, int64, int64, int64)")
def _reduce_before(comm, kind, signature, own, out, nbytes, count, fn):  # type: ignore[no-untyped-def]
    """One chunk: what the ranks before published, then the own elements; the chunks of the ranks behind are passed by."""
    size, rank = load64(comm + COMM.size), load64(comm + COMM.rank)
    spare = split_chunk(load64(comm + COMM.slot), size, rank, rank, 0)
    if out == own and rank > 1 and kind != EXSCAN:
        copy(spare, own, nbytes)
        own = spare
    low = own
    for source in range(rank):
        code = await_shared(comm, source, signature)
        if code != 0:
            return code
        operand = shared_memory(comm, source)
        if source > 0:
            call_reduce(fn, out, low, operand, count)
            low = out
        else:
            low = operand
    if kind != EXSCAN and rank > 0:
        call_reduce(fn, out, low, own, count)
    elif (rank == 0 and kind != EXSCAN and out != own) or (rank == 1 and kind == EXSCAN):
        copy(out, low, nbytes)
    for source in range(size):
        if source != rank:
            consume_shared(comm, source, 1)
    return 0

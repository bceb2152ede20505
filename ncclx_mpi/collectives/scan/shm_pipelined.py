"""Scan and exscan on split streams: prefixes run along the chain of ranks, chunk behind chunk.

::

    rank r:  prefix chunk k  <-  stream r-1>r        recv chunk k = prefix op own        recv chunk k  ->  stream r>r+1

An exscan of two ranks is one copy, which both share (:func:`ncclx_mpi.collectives.cma.copy_shared`) where that is faster.

T = (n - 1) * (alpha + c * (2 beta + gamma)) + (m - c) * (2 beta + gamma) for chunks of c bytes: a pipe, once it is full.
"""

from __future__ import annotations

from ncclx_mpi.collectives.cma import UNREACHED, copy_shared
from ncclx_mpi.collectives.cma_tuning import choose_way, note_way
from ncclx_mpi.collectives.shm_oneshot import EXSCAN, NO_MEMORY, SCAN, end, sign, working_memory
from ncclx_mpi.collectives.shm_pipelined import LEAST_ADDRESS, begin_streams, chunk_items, drop_split, put_split, take_split
from ncclx_mpi.p2p.layout import COMM
from numba_kernels.atomics import load64, ticks
from numba_kernels.calls import call_reduce
from numba_kernels.jit import kernel
from numba_kernels.memory import copy, move, release
from transports.shm.shared import DIRECT, PIPED


@kernel("int64(int64, int64, int64, int64, int64, int64, int64)", is_entry=True)
def scan(comm, send, recv, count, itemsize, fn, exclusive):  # type: ignore[no-untyped-def]
    """`send` == `recv` means in place; `exclusive` = 1 leaves the own elements out, and `recv` of rank 0 as it is."""
    if exclusive == 0:
        return _chain(comm, SCAN, send, recv, count, itemsize, fn)
    signature, nbytes = sign(EXSCAN, 0, count * itemsize), count * itemsize
    way = choose_way(comm, signature, nbytes) if load64(comm + COMM.size) == 2 else PIPED
    if way < 0:
        return -way
    began, code = ticks(), UNREACHED
    if way == DIRECT:
        code = copy_shared(comm, signature, 0, send if load64(comm + COMM.rank) == 0 else recv, nbytes)
    if code == UNREACHED:
        code = _chain(comm, EXSCAN, send, recv, count, itemsize, fn)
    return note_way(comm, signature, nbytes, way, began, code) if load64(comm + COMM.size) == 2 else code


@kernel("int64(int64, int64, int64, int64, int64, int64, int64)")
def _chain(comm, kind, send, recv, count, itemsize, fn):  # type: ignore[no-untyped-def]
    """Take each chunk of the prefix from the rank before, and pass it on with the own elements. 0 or the code of a failure."""
    size, rank = load64(comm + COMM.size), load64(comm + COMM.rank)
    signature = sign(kind, 0, count * itemsize)
    number = begin_streams(comm, signature)
    if number < 0:
        return -number
    chunk = chunk_items(comm, count * itemsize, itemsize)
    temp, code = working_memory(comm, chunk * itemsize), 0
    if temp == 0:
        return NO_MEMORY
    for turn in range((count + chunk - 1) // chunk):
        at = turn * chunk
        part, own, out = min(chunk, count - at), send + at * itemsize, recv + at * itemsize
        passed = _passed(kind, rank, size, own, out, temp)
        if rank > 0:
            prefix = take_split(comm, rank - 1, signature)
            if prefix < LEAST_ADDRESS:
                code = prefix
                break
            if passed != 0:
                call_reduce(fn, passed, prefix, own, part)
            if kind == EXSCAN:
                copy(out, prefix, part * itemsize)
            drop_split(comm, rank - 1)
        elif kind == SCAN:
            move(out, own, part * itemsize)
        if rank < size - 1:
            code = put_split(comm, rank + 1, passed, part * itemsize, signature)
            if code != 0:
                break
    release(temp)
    return end(comm, number, code)


@kernel("int64(int64, int64, int64, int64, int64, int64)")
def _passed(kind, rank, size, own, out, temp):  # type: ignore[no-untyped-def]
    """Where the prefix with the own elements stands: in the result of a scan; 0 if nobody needs it."""
    if kind == SCAN:
        return out
    if rank == 0:
        return own
    return temp if rank < size - 1 else 0

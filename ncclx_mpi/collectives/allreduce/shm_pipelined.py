"""Allreduce on streams: two ranks swap everything; more ranks share the reduction and then spread their blocks.

::

    two ranks, small    round t:  send chunk t          ->  own shared ring
                           recv chunk t - 1      =   rank 0's  op  rank 1's         (one of them from the ring)

    n ranks      round t:  chunk t of block d    ->  stream r>d
                           own block, chunk t - 1 =  reduced in rank order  ->  recv  and  own shared ring
                           recv, block s, chunk t - 2  <-  shared ring s

Swapping moves the same m bytes between two ranks as sharing would, with one wait less; sharing halves the work of reducing, which
counts from some 128 KiB on. All results are the bits of
((0 op 1) op 2) op ..., on every rank. In place is safe: a chunk is written rounds after it was sent.
T = alpha + m * (2 beta + gamma) for two, 2 alpha + 2 (n - 1) / n * m * 2 beta + (n - 1) / n * m * gamma for n.
"""

from __future__ import annotations

from ncclx_mpi.collectives.cma import UNREACHED
from ncclx_mpi.collectives.cma_tuning import choose_way, note_way
from ncclx_mpi.collectives.reduce import cma
from ncclx_mpi.collectives.reduce.cma import EVERYONE
from ncclx_mpi.collectives.reduce.shm_pipelined import stream_reduced
from ncclx_mpi.collectives.shm_oneshot import ALLREDUCE, end, sign
from ncclx_mpi.collectives.shm_pipelined import (
    LEAST_ADDRESS,
    begin_streams,
    chunk_items,
    chunks_of,
    drop_shared,
    put_shared,
    take_shared,
)
from ncclx_mpi.p2p.layout import COMM
from numba_kernels.atomics import load64, ticks
from numba_kernels.calls import call_reduce
from numba_kernels.jit import kernel
from transports.shm.shared import DIRECT

SWAP_BELOW = 128 << 10
"""Bytes below which two ranks swap their elements."""


@kernel("int64(int64, int64, int64, int64, int64, int64, int64)")
def _swap(comm, signature, send, recv, count, itemsize, fn):  # type: ignore[no-untyped-def]
    """Two ranks."""
    rank, chunk = load64(comm + COMM.rank), chunk_items(comm, count * itemsize, itemsize)
    number = begin_streams(comm, signature)
    if number < 0:
        return -number
    rounds, code = chunks_of(count, chunk), 0
    for turn in range(rounds + 1):
        if turn < rounds:
            at = turn * chunk
            code = put_shared(comm, send + at * itemsize, min(chunk, count - at) * itemsize, signature)
        if turn > 0 and code == 0:
            at = (turn - 1) * chunk
            peers = take_shared(comm, 1 - rank, signature)
            if peers < LEAST_ADDRESS:
                code = peers
            else:
                own = send + at * itemsize
                low, high = (own, peers) if rank == 0 else (peers, own)
                call_reduce(fn, recv + at * itemsize, low, high, min(chunk, count - at))
                drop_shared(comm, 1 - rank)
        if code != 0:
            break
    return end(comm, number, code)


@kernel("int64(int64, int64, int64, int64, int64, int64)", is_entry=True)
def allreduce(comm, send, recv, count, itemsize, fn):  # type: ignore[no-untyped-def]
    """Any number of ranks, by direct copies where that is faster; `send` == `recv` means in place."""
    signature, nbytes = sign(ALLREDUCE, 0, count * itemsize), count * itemsize
    way = choose_way(comm, signature, nbytes)
    if way < 0:
        return -way
    began, code = ticks(), UNREACHED
    if way == DIRECT:
        code = cma.reduce(comm, signature, send, recv, count, itemsize, fn, EVERYONE)
    if code == UNREACHED and nbytes < SWAP_BELOW and load64(comm + COMM.size) == 2:
        code = _swap(comm, signature, send, recv, count, itemsize, fn)
    elif code == UNREACHED:
        code = stream_reduced(comm, signature, send, recv, count, itemsize, fn, EVERYONE)
    return note_way(comm, signature, nbytes, way, began, code)

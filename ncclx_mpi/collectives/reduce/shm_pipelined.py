"""Reduce in bulk: by direct copies, or on split streams, where each rank reduces one block in rank order and sends it on to the root.

::

    round t:  chunk t of block d      ->  stream r>d
              own block, chunk t - 1   =  reduced in rank order  ->  stream r>root   (the root: its memory)
    root:     block s, chunk t - 2    <-  stream s>root

With two ranks the root does it all, which is as fast. A stream to the root carries parts and results in turn; both sides
count rounds alike, so they know which is which. T = 2 alpha + 2 m * beta + m / n * n * gamma / n.
"""

from __future__ import annotations

from ncclx_mpi.collectives.cma import UNREACHED
from ncclx_mpi.collectives.cma_tuning import choose_way, note_way
from ncclx_mpi.collectives.reduce import cma
from ncclx_mpi.collectives.reduce.cma import EVERYONE
from ncclx_mpi.collectives.reduce_scatter.shm_pipelined import collect_round, even_firsts, reduce_round
from ncclx_mpi.collectives.shm_oneshot import NO_MEMORY, REDUCE, end, sign, working_memory
from ncclx_mpi.collectives.shm_pipelined import begin_streams, chunk_items, chunks_of, put_shared, put_split
from ncclx_mpi.p2p.layout import COMM
from numba_kernels.atomics import load64, store64, ticks
from numba_kernels.jit import kernel
from numba_kernels.memory import release, whole_lines
from transports.shm.shared import DIRECT


@kernel("void(int64, int64, int64, int64)")
def _blocks(firsts, count, size, root):  # type: ignore[no-untyped-def]
    """Even blocks; all of it for the root if there are two ranks."""
    even_firsts(firsts, count, size)
    if size == 2 and root != EVERYONE:
        store64(firsts + 8, count if root == 0 else 0)


@kernel("int64(int64, int64, int64, int64, int64, int64, int64)", is_entry=True)
def reduce(comm, send, recv, count, itemsize, fn, root):  # type: ignore[no-untyped-def]
    """`send` == `recv` at the root means in place."""
    signature, nbytes = sign(REDUCE, root, count * itemsize), count * itemsize
    way = choose_way(comm, signature, nbytes)
    if way < 0:
        return -way
    began, code = ticks(), UNREACHED
    if way == DIRECT:
        code = cma.reduce(comm, signature, send, recv, count, itemsize, fn, root)
    if code == UNREACHED:
        code = stream_reduced(comm, signature, send, recv, count, itemsize, fn, root)
    return note_way(comm, signature, nbytes, way, began, code)


@kernel("int64(int64, int64, int64, int64, int64, int64, int64, int64)")
def stream_reduced(comm, signature, send, recv, count, itemsize, fn, root):  # type: ignore[no-untyped-def]
    """On split streams, for the root; for EVERYONE, results go to all by shared rings. 0 or the code of a failure."""
    size, rank = load64(comm + COMM.size), load64(comm + COMM.rank)
    number = begin_streams(comm, signature)
    if number < 0:
        return -number
    chunk = chunk_items(comm, count * itemsize, itemsize)
    room = whole_lines(chunk * itemsize)
    temp = working_memory(comm, 2 * room + (size + 1) * 8)
    if temp == 0:
        return NO_MEMORY
    result, firsts, is_shared = temp + room, temp + 2 * room, root == EVERYONE
    _blocks(firsts, count, size, root)
    longest = count if size == 2 and not is_shared else (count + size - 1) // size
    own, has_result, rounds, code = load64(firsts + 8 * rank), is_shared or rank == root, chunks_of(longest, chunk), 0
    for turn in range(rounds + 2):
        out = recv + (own + (turn - 1) * chunk) * itemsize if has_result else result
        reduced = reduce_round(comm, signature, send, out, firsts, itemsize, fn, chunk, turn, temp)
        code = -min(reduced, 0)
        if reduced > 0 and is_shared:
            code = put_shared(comm, out, reduced * itemsize, signature)
        elif reduced > 0 and rank != root:
            code = put_split(comm, root, out, reduced * itemsize, signature)
        if code == 0 and turn > 1 and has_result:
            code = collect_round(comm, signature, recv, firsts, itemsize, chunk, turn - 2, is_shared)
        if code != 0:
            break
    release(temp)
    return end(comm, number, code)

"""Exchange on split streams: every rank sends some bytes to every other. Alltoall(v), and Gather(v) and Scatter(v), in which most send none.

::

    step k, rank r:   for each d:  chunk k of (r -> d)  -->  split ring r -> d
                      for each s:  split ring s -> r    -->  chunk k - 1 of (s -> r)

Both ends of a pair know how many bytes it has, so pairs without any do not meet at all, and the counts of one pair tell the others nothing.
In place: chunk k - 1 of a block is overwritten after it was written to the ring.

T = alpha + max over ranks of (bytes sent, bytes received) * 2 beta: two copies, on two cores at the same time.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ncclx_mpi.collectives.bulk import (
    await_split,
    chunk_for,
    close_streams,
    consume_split,
    open_streams,
    split_memory,
    write_split,
)
from ncclx_mpi.collectives.lines import sign
from ncclx_mpi.p2p.layout import COMM
from numba_kernels.atomics import load64
from numba_kernels.jit import kernel
from numba_kernels.memory import copy, move


@kernel("int64(int64, int64, int64)")
def nth(table, stride, index):  # type: ignore[no-untyped-def]
    """Entry of a table of int64; `stride` for all where there is none (address 0)."""
    return load64(table + 8 * index) if table != 0 else stride


@kernel("int64(int64, int64, int64)")
def nth_offset(table, stride, index):  # type: ignore[no-untyped-def]
    """Entry of a table of byte offsets; blocks of `stride` bytes one after another where there is none."""
    return load64(table + 8 * index) if table != 0 else stride * index


@kernel("int64(int64, int64)")
def chunks_of(nbytes, size):  # type: ignore[no-untyped-def]
    """Chunks that a block of `nbytes` makes."""
    return (nbytes + chunk_for(nbytes, 1, size) - 1) // chunk_for(nbytes, 1, size)


@kernel("int64(int64, int64, int64, int64, int64, int64, int64, int64, int64, int64)", is_entry=True)
def exchange(comm, kind, root, send, sent, sent_at, recv, received, received_at, stride):  # type: ignore[no-untyped-def]
    """Send block d of `send` to rank d, receive block s of `recv` from rank s.

    Parameters
    ----------
    comm
        Address of the communicator; it has a slot.
    kind, root
        Which collective it is, for the signature.
    send, recv
        Addresses; equal if in place.
    sent, sent_at, received, received_at
        Addresses of int64[size]: bytes, and byte offsets, of the blocks; 0: blocks of `stride` bytes one after another.
    stride
        Bytes of a block where there is no table.
    """
    size, rank = load64(comm + COMM.size), load64(comm + COMM.rank)
    code = open_streams(comm, kind, root, stride)
    if code != 0:
        return code
    own = nth(sent, stride, rank)
    if own > 0 and send + nth_offset(sent_at, stride, rank) != recv + nth_offset(received_at, stride, rank):
        move(recv + nth_offset(received_at, stride, rank), send + nth_offset(sent_at, stride, rank), own)
    steps = 0
    for other in range(size):
        if other != rank:
            steps = max(steps, chunks_of(nth(sent, stride, other), size), chunks_of(nth(received, stride, other), size))
    step = 0
    while code == 0 and step <= steps and steps > 0:
        code = _write_step(comm, kind, root, send, sent, sent_at, stride, step)
        if code == 0 and step > 0:
            code = _read_step(comm, kind, root, recv, received, received_at, stride, step - 1)
        step += 1
    return close_streams(comm, code)


@kernel("int64(int64, int64, int64, int64, int64, int64, int64, int64)")
def _write_step(comm, kind, root, send, sent, sent_at, stride, step):  # type: ignore[no-untyped-def]
    size, rank = load64(comm + COMM.size), load64(comm + COMM.rank)
    for turn in range(1, size):
        dest = (rank + turn) % size
        nbytes = nth(sent, stride, dest)
        chunk = chunk_for(nbytes, 1, size)
        offset = step * chunk
        if offset < nbytes:
            source = send + nth_offset(sent_at, stride, dest) + offset
            code = write_split(comm, dest, sign(kind, root, nbytes), source, min(chunk, nbytes - offset))
            if code != 0:
                return code
    return 0


@kernel("int64(int64, int64, int64, int64, int64, int64, int64, int64)")
def _read_step(comm, kind, root, recv, received, received_at, stride, step):  # type: ignore[no-untyped-def]
    size, rank = load64(comm + COMM.size), load64(comm + COMM.rank)
    for turn in range(1, size):
        source = (rank - turn) % size
        nbytes = nth(received, stride, source)
        chunk = chunk_for(nbytes, 1, size)
        offset = step * chunk
        if offset < nbytes:
            code = await_split(comm, source, sign(kind, root, nbytes))
            if code != 0:
                return code
            target = recv + nth_offset(received_at, stride, source) + offset
            copy(target, split_memory(comm, source), min(chunk, nbytes - offset))
            consume_split(comm, source)
    return 0


def exchange_ref(blocks: list[list[npt.NDArray[np.uint8]]]) -> list[list[npt.NDArray[np.uint8]]]:
    """``out[r][s]``: what rank r receives from rank s; ``blocks[s][r]``: what s sends to r."""
    return [[row[rank] for row in blocks] for rank in range(len(blocks))]

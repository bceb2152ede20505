"""Gathering on shared streams: some ranks' bytes to everyone. Allgather(v), and Bcast, in which one rank has bytes.

::

    step k, rank r:   chunk k of r            -->  shared ring of r
                      for each s:  shared ring of s  -->  chunk k - 1 of s

Every rank knows the bytes of every other, so ranks without any are not met.
T = alpha + max bytes of a rank * beta (write) + sum of bytes * beta (read).
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ncclx_mpi.collectives.bulk import (
    await_shared,
    chunk_for,
    close_streams,
    consume_shared,
    open_streams,
    shared_memory,
    write_all,
)
from ncclx_mpi.collectives.lines import sign
from ncclx_mpi.collectives.slot_exchange import nth, nth_offset
from ncclx_mpi.p2p.layout import COMM
from numba_kernels.atomics import load64
from numba_kernels.jit import kernel
from numba_kernels.memory import copy


@kernel("int64(int64, int64, int64, int64, int64, int64, int64)", is_entry=True)
def gather_all(comm, kind, send, recv, counts, offsets, stride):  # type: ignore[no-untyped-def]
    """Everyone's block to everyone.

    Parameters
    ----------
    comm
        Address of the communicator; it has a slot.
    kind
        Which collective it is, for the signature.
    send
        Address of this rank's block.
    recv
        Address of all blocks; `send` may be the own block in it (in place).
    counts
        Address of int64[size], bytes of each rank's block; 0: `stride` bytes each.
    offsets
        Address of int64[size], where each block goes in `recv`; 0: one after another, `stride` bytes apart.
    """
    size, rank = load64(comm + COMM.size), load64(comm + COMM.rank)
    code = open_streams(comm, kind, -1, stride)
    if code != 0:
        return code
    own, longest = nth(counts, stride, rank), 0
    for other in range(size):
        longest = max(longest, nth(counts, stride, other))
    chunk = chunk_for(longest, 1, size)
    mine = recv + nth_offset(offsets, stride, rank)
    done = 0
    while code == 0 and done < longest + chunk:
        if done < own:
            length = min(chunk, own - done)
            if size > 1:
                code = write_all(comm, sign(kind, 0, own), send + done, length)
            if send != mine:
                copy(mine + done, send + done, length)
        if code == 0 and done > 0:
            code = _read_step(comm, kind, recv, counts, offsets, stride, chunk, done - chunk)
        done += chunk
    return close_streams(comm, code)


@kernel("int64(int64, int64, int64, int64, int64, int64, int64, int64)")
def _read_step(comm, kind, recv, counts, offsets, stride, chunk, done):  # type: ignore[no-untyped-def]
    size, rank = load64(comm + COMM.size), load64(comm + COMM.rank)
    for turn in range(1, size):
        source = (rank + turn) % size
        nbytes = nth(counts, stride, source)
        if done < nbytes:
            code = await_shared(comm, source, sign(kind, 0, nbytes))
            if code != 0:
                return code
            target = recv + nth_offset(offsets, stride, source) + done
            copy(target, shared_memory(comm, source), min(chunk, nbytes - done))
            consume_shared(comm, source, 1)
    return 0


@kernel("int64(int64, int64, int64, int64, int64)", is_entry=True)
def broadcast(comm, kind, address, nbytes, root):  # type: ignore[no-untyped-def]
    """`nbytes` bytes of the root to everyone; the root runs ahead by up to four chunks."""
    size, rank = load64(comm + COMM.size), load64(comm + COMM.rank)
    code = open_streams(comm, kind, root, nbytes)
    if code != 0:
        return code
    signature, chunk, done = sign(kind, root, nbytes), chunk_for(nbytes, 1, size), 0
    while code == 0 and done < nbytes and size > 1:
        length = min(chunk, nbytes - done)
        if rank == root:
            code = write_all(comm, signature, address + done, length)
        else:
            code = await_shared(comm, root, signature)
            if code == 0:
                copy(address + done, shared_memory(comm, root), length)
                consume_shared(comm, root, 1)
        done += chunk
    return close_streams(comm, code)


def gather_all_ref(blocks: list[npt.NDArray[np.uint8]]) -> npt.NDArray[np.uint8]:
    """What every rank holds afterwards, with blocks one after another."""
    return np.concatenate(blocks)

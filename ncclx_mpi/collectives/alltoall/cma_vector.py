"""Alltoallv, gatherv and scatterv by direct copies: whoever knows all sizes tells the others where their blocks are.

::

    alltoallv, scatterv   the sender's line {DIRECT, address and bytes for each rank}  -->  every rank pulls its block
    gatherv               the root's line   {DIRECT, address and bytes of each rank}   -->  every rank pushes its block

    all copy at the same time; whose memory the others copy from, or into, waits until they have

T = 2 alpha + bytes that a rank copies * beta, one copy a byte. A rank chooses this for its own notice alone (:mod:`shm_vector`).
"""

from __future__ import annotations

from ncclx_mpi.collectives.alltoall.shm_pipelined import ROW
from ncclx_mpi.collectives.cma import await_copied, note_copied, pull, push
from ncclx_mpi.collectives.shm_oneshot import ERR_TRUNCATE, GATHER, SCRATCH, arrive_with_any, payload, sign
from ncclx_mpi.p2p.layout import COMM, FAILED
from numba_kernels.atomics import load64, store64
from numba_kernels.jit import kernel

_PAIR = 16


@kernel("int64(int64)")
def notice_bytes(comm):  # type: ignore[no-untyped-def]
    """Bytes of a notice: the way, then address and bytes of the block of each rank."""
    return 8 + load64(comm + COMM.size) * _PAIR


@kernel("void(int64, int64, int64, int64, int64)")
def write_notice(comm, column, way, table, target):  # type: ignore[no-untyped-def]
    """Write a notice to the payload of the own line, of the blocks in one `column` of the rows: ROW.send, or ROW.recv where others write."""
    store64(target, way)
    for other in range(load64(comm + COMM.size)):
        place, pair = table + other * ROW.total + column, target + 8 + other * _PAIR
        store64(pair, load64(place))
        store64(pair + 8, load64(place + 8))


@kernel("int64(int64, int64, int64)")
def noticed_way(comm, other, number):  # type: ignore[no-untyped-def]
    """PIPED or DIRECT, as rank `other` has told in its notice."""
    return load64(payload(comm, other, number, notice_bytes(comm)))


@kernel("int64(int64, int64, int64, int64, int64, int64)")
def check_length(comm, other, kind, root, own, its):  # type: ignore[no-untyped-def]
    """0 if this rank and rank `other` give the same bytes for a block, else an error, with both noted for Python."""
    if own == its:
        return 0
    store64(comm + SCRATCH.offender, other)
    store64(comm + SCRATCH.own_signature, sign(kind, root, own))
    store64(comm + SCRATCH.its_signature, sign(kind, root, its))
    return FAILED + ERR_TRUNCATE


@kernel("int64(int64, int64, int64, int64, int64, int64)")
def pull_block(comm, kind, root, other, number, row):  # type: ignore[no-untyped-def]
    """Copy the block for this rank out of the memory of rank `other`. 0, or why that was given up."""
    pair, nbytes = _own_pair(comm, other, number), load64(row + ROW.recv_bytes)
    code = check_length(comm, other, kind, root, nbytes, load64(pair + 8))
    return code if code != 0 else pull(comm, other, load64(pair), load64(row + ROW.recv), nbytes)


@kernel("int64(int64, int64, int64, int64, int64, int64)")
def push_block(comm, kind, root, other, number, row):  # type: ignore[no-untyped-def]
    """Copy the own block into the memory of rank `other`. 0, or why that was given up."""
    pair, nbytes = _own_pair(comm, other, number), load64(row + ROW.send_bytes)
    code = check_length(comm, other, kind, root, nbytes, load64(pair + 8))
    return code if code != 0 else push(comm, other, load64(row + ROW.send), load64(pair), nbytes)


@kernel("int64(int64, int64, int64)")
def _own_pair(comm, other, number):  # type: ignore[no-untyped-def]
    return payload(comm, other, number, notice_bytes(comm)) + 8 + load64(comm + COMM.rank) * _PAIR


@kernel("int64(int64, int64, int64, int64, int64)")
def await_copies(comm, kind, signature, number, table):  # type: ignore[no-untyped-def]
    """Wait until those that copy from, or into, the memory of this rank have done it. 0 or the code of a failure."""
    size, rank, code = load64(comm + COMM.size), load64(comm + COMM.rank), 0
    column = ROW.recv_bytes if kind == GATHER else ROW.send_bytes
    for other in range(size):
        if other != rank and code == 0 and load64(table + other * ROW.total + column) > 0:
            code = arrive_with_any(comm, other, number, signature)
    note_copied(comm, number)
    for other in range(size):
        if other != rank and code == 0 and load64(table + other * ROW.total + column) > 0:
            code = await_copied(comm, other, number)
    return code

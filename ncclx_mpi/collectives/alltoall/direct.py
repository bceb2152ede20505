"""Alltoall by direct copies: every rank pushes each block into the buffer of the rank that it is for.

::

    rank r:  send block d  -->  recv block r of rank d        for d = r + 1, r + 2, ...

T = 2 alpha + (n - 1) * m * beta a rank, one copy a byte. In place sends from a copy.
"""

from __future__ import annotations

from ncclx_mpi.collectives.direct import UNREACHED, close_direct, is_shown, open_direct, opened, push, show
from ncclx_mpi.collectives.streams import land
from ncclx_mpi.collectives.ways import WAYS
from ncclx_mpi.p2p.layout import COMM
from numba_kernels.atomics import load64
from numba_kernels.jit import kernel
from numba_kernels.memory import allocate, copy, release

_WORDS = 2


@kernel("int64(int64, int64, int64, int64, int64)")
def alltoall(comm, signature, send, recv, nbytes):  # type: ignore[no-untyped-def]
    """`nbytes` for each pair; `send` == `recv` means in place. 0, UNREACHED, or the code of a failure."""
    size = load64(comm + COMM.size)
    if send != recv:
        return _push_blocks(comm, signature, send, recv, nbytes)
    source = allocate(size * nbytes)
    if source != 0:
        copy(source, send, size * nbytes)
    code = _push_blocks(comm, signature, source, recv, nbytes)
    release(source)
    return code


@kernel("int64(int64, int64, int64, int64, int64)")
def _push_blocks(comm, signature, send, recv, nbytes):  # type: ignore[no-untyped-def]
    """Push from `send`; with 0, for want of memory to send from, all ranks are told that this one cannot."""
    size, rank, code = load64(comm + COMM.size), load64(comm + COMM.rank), 0
    shown = is_shown(comm, recv) if send != 0 else 0
    show(comm + WAYS.message, shown, recv, 0)
    number = open_direct(comm, signature, comm + WAYS.message, _WORDS)
    if number <= 0:
        return -number if number < 0 else UNREACHED
    for step in range(1, size):
        other = (rank + step) % size
        target = opened(comm, other, number, _WORDS, 1) + rank * nbytes
        if code == 0:
            code = push(comm, other, send + other * nbytes, target, nbytes)
    land(recv + rank * nbytes, send + rank * nbytes, nbytes, size * nbytes)
    return close_direct(comm, number, code)

"""Bcast by direct copies: everyone pulls from the root; where there is one other rank only, the root pushes half of it.

::

    two ranks:   rank pulls   | first half |  last half |   the root pushes            both copy at the same time
    n ranks:     every rank pulls all of it from the root                              n - 1 copy at the same time

T = 2 alpha + m * beta / 2 for two ranks, 2 alpha + m * beta for n, with a core for each and as far as the memory keeps up.
"""

from __future__ import annotations

from ncclx_mpi.collectives.cma import (
    UNREACHED,
    close_rooted,
    copy_shared,
    is_shown,
    open_rooted,
    opened,
    pull,
    show,
)
from ncclx_mpi.collectives.cma_tuning import WAYS
from ncclx_mpi.p2p.layout import COMM
from numba_kernels.atomics import load64
from numba_kernels.jit import kernel

_WORDS = 2


@kernel("int64(int64, int64, int64, int64, int64)")
def bcast(comm, signature, address, nbytes, root):  # type: ignore[no-untyped-def]
    """`nbytes` of the root to all. 0, UNREACHED, or the code of a failure."""
    if load64(comm + COMM.size) == 2:
        return copy_shared(comm, signature, root, address, nbytes)
    is_root = load64(comm + COMM.rank) == root
    show(comm + WAYS.message, is_shown(comm, address) if is_root else 1, address, 0)
    number = open_rooted(comm, signature, root, comm + WAYS.message, _WORDS)
    if number <= 0:
        return -number if number < 0 else UNREACHED
    code = 0
    if not is_root:
        code = pull(comm, root, opened(comm, root, number, _WORDS, 1), address, nbytes)
    return close_rooted(comm, signature, root, number, code)

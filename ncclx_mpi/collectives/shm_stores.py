"""Stores are compared anew in collectives that all ranks of a node are in: the host moves cores while a job runs.

How, and what is chosen: :mod:`transports.shm.store_kind`. Here neighbours (0 and 1, 2 and 3, ...) find each other: all ranks count the same
collectives, so both come by in the same one.

T = 16 swaps of `BLOCK` bytes, some 10 us between near cores and 30 between far ones.
"""

from __future__ import annotations

from ncclx_mpi.p2p.layout import COMM, ENGINE
from ncclx_mpi.p2p.waiting import wait_word
from numba_kernels.atomics import load64, store64, store_release
from numba_kernels.jit import kernel
from transports.shm.lane import SHM
from transports.shm.slots import SLOT, bounce_of, judged_blocks
from transports.shm.store_kind import COUNTED, better_stores

_PATIENCE_US, _LITTLE_PATIENCE_US = 500, 20


@kernel("int64(int64, int64)")
def compare_stores(comm, counter):  # type: ignore[no-untyped-def]
    """Compare the kinds of store with the neighbour, and choose the faster one. 0 or the code of a failure.

    `counter` is the address of a private word that counts such comparisons. Where ranks share cores the neighbour may not be running: then
    there is less patience, and the choice stays. It stays, too, for a rank without a neighbour, and where the user has chosen.
    """
    slot, size, rank = load64(comm + COMM.slot), load64(comm + COMM.size), load64(comm + COMM.rank)
    engine, neighbour = load64(comm + COMM.engine), rank ^ 1
    if neighbour >= size:
        return 0
    count = load64(counter) + 1
    store64(counter, count)
    mine, theirs = bounce_of(slot, size, rank), bounce_of(slot, size, neighbour)
    first = count * COUNTED
    store_release(mine, first)
    code = wait_word(comm, theirs, first, slot + SLOT.broken)
    if code != 0:
        return code
    patience = load64(engine + ENGINE.ticks_per_us) * (_PATIENCE_US if load64(engine + ENGINE.spins) > 1 else _LITTLE_PATIENCE_US)
    found = better_stores(mine, theirs, first, patience, judged_blocks(slot, size, rank), judged_blocks(slot, size, neighbour))
    if found >= 0 and load64(engine + SHM.stores_fixed) == 0:
        store64(engine + SHM.streamed, found)
    return 0

"""Bcast on lines of bytes whose number only the root knows: pickled objects.

::

    root:   line {number, signature with its bytes, m bytes}  -->  every other rank reads how many, and copies them out

T as in :mod:`ncclx_mpi.collectives.bcast.slot_small`.
"""

from __future__ import annotations

from ncclx_mpi.collectives.lines import BCAST, begin, bytes_of, check_signature, end, payload, sign
from ncclx_mpi.p2p.layout import COMM
from ncclx_mpi.p2p.waiting import wait_word
from numba_kernels.atomics import load64
from numba_kernels.jit import kernel
from numba_kernels.memory import copy
from transports.shm.slots import BIG, LINE, SLOT, line_of

CAPACITY = BIG
"""Most bytes of a blob."""


@kernel("int64(int64, int64, int64, int64)", is_entry=True, nogil=False)
def bcast_blob(comm, address, nbytes, root):  # type: ignore[no-untyped-def]
    """Send `nbytes` from the root's `address`; the others have room for `CAPACITY` bytes at theirs.

    Returns how many bytes have come (0 at the root), or minus the code of a failure.
    """
    slot, is_root = load64(comm + COMM.slot), load64(comm + COMM.rank) == root
    given = nbytes if is_root else 0
    number = begin(comm, sign(BCAST, root, given), address, given)
    if number < 0:
        return number
    if is_root:
        return -end(comm, number, 0)
    line = line_of(slot, root, number)
    code, count = wait_word(comm, line + LINE.stamp, number, slot + SLOT.broken), 0
    if code == 0:
        its = load64(line + LINE.signature)
        count = min(bytes_of(its), CAPACITY)
        code = check_signature(comm, root, sign(BCAST, root, count), its)
        if code == 0:
            copy(address, payload(comm, root, number, count), count)
    code = end(comm, number, code)
    return -code if code != 0 else count

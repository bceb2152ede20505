"""Bcast on lines of bytes whose number only the root knows: pickled objects.

::

    root:   line {number, signature with its bytes, m bytes}  -->  every other rank reads how many, and copies them out

T as in :mod:`ncclx_mpi.collectives.bcast.slot_small`.
"""

from __future__ import annotations

from numba import types

from ncclx_mpi.collectives.lines import BCAST, begin, bytes_of, check_signature, end, payload, sign
from ncclx_mpi.errors import ERR_NO_MEM
from ncclx_mpi.p2p.layout import COMM, FAILED
from ncclx_mpi.p2p.waiting import wait_word
from numba_kernels.atomics import load64, store64
from numba_kernels.jit import kernel
from numba_kernels.memory import copy
from numba_kernels.pyobject import OB_SIZE, object_argument, object_of
from numba_kernels.pyslots import BYTES, clear_error, new_bytes, object_result, result
from transports.shm.slots import BIG, LINE, SLOT, line_of

CAPACITY = BIG
"""Most bytes of a blob."""


@kernel(types.int64(types.int64, object_argument, types.int64), is_entry=True, nogil=False)
def send_blob(comm, argument, root):  # type: ignore[no-untyped-def]
    """The root's part: send a bytes object of up to `CAPACITY` bytes. 0, or the code of a failure."""
    data = object_of(argument)
    nbytes = load64(data + OB_SIZE)
    number = begin(comm, sign(BCAST, root, nbytes), data + BYTES, nbytes)
    return -number if number < 0 else end(comm, number, 0)


@kernel(object_result(types.int64, types.int64, types.int64), is_entry=True, nogil=False)
def receive_blob(comm, root, failure):  # type: ignore[no-untyped-def]
    """The others' part: the bytes that have come, or None with the code of a failure at address `failure`."""
    number = begin(comm, sign(BCAST, root, 0), 0, 0)
    if number < 0:
        store64(failure, -number)
        return result(0)
    slot = load64(comm + COMM.slot)
    line, data = line_of(slot, root, number), 0
    code = wait_word(comm, line + LINE.stamp, number, slot + SLOT.broken)
    if code == 0:
        its = load64(line + LINE.signature)
        count = min(bytes_of(its), CAPACITY)
        code = check_signature(comm, root, sign(BCAST, root, count), its)
        if code == 0:
            data = new_bytes(0, count)
            if data == 0:
                clear_error()
                code = FAILED + ERR_NO_MEM
            else:
                copy(data + BYTES, payload(comm, root, number, count), count)
    store64(failure, end(comm, number, code))
    return result(data)

"""Small blocking collectives of plain arrays: one compiled call from the Python objects to the lines and back.

The arguments are unboxed and checked in the call itself (:mod:`numba_kernels.pyobject`). Whatever is not plain, too large for lines, or
not valid returns SLOW with nothing done, and the caller resolves it in Python; the algorithm is then chosen by the same table,
so that ranks which come by different routes still meet.

``functions`` is the address of a table of reduction functions by NumPy type number (int64[24]), zero where none was resolved yet.
"""

from __future__ import annotations

from numba import types

from ncclx_mpi.collectives.allreduce.slot_small import allreduce
from ncclx_mpi.collectives.barrier.slot_small import barrier
from ncclx_mpi.collectives.bcast.slot_small import bcast
from ncclx_mpi.collectives.lines import ALLREDUCE, BCAST
from ncclx_mpi.collectives.select import on_lines
from ncclx_mpi.p2p.layout import COMM
from numba_kernels.atomics import load64
from numba_kernels.jit import kernel
from numba_kernels.pyobject import (
    NONE,
    address_of,
    array_argument,
    element_of,
    itemsize_of,
    nbytes_of,
    writable_of,
)

SLOW = -1
ELEMENTS = 24
"""Entries of a table of reduction functions."""


@kernel("int64(int64)", is_entry=True, nogil=False)
def barrier_now(comm):  # type: ignore[no-untyped-def]
    """Barrier: 0, SLOW, or the code of a failure."""
    return SLOW if load64(comm + COMM.slot) == 0 else barrier(comm)


@kernel(types.int64(types.int64, array_argument, types.int64), is_entry=True, nogil=False)
def bcast_array(comm, argument, root):  # type: ignore[no-untyped-def]
    """Bcast of a plain array: 0, SLOW, or the code of a failure."""
    nbytes = nbytes_of(argument)
    if element_of(argument) == NONE or on_lines(BCAST, nbytes) == 0 or load64(comm + COMM.slot) == 0:
        return SLOW
    if root < 0 or root >= load64(comm + COMM.size):
        return SLOW
    if writable_of(argument) == 0 and load64(comm + COMM.rank) != root:
        return SLOW
    return bcast(comm, address_of(argument), nbytes, root)


@kernel(types.int64(types.int64, array_argument, array_argument, types.int64), is_entry=True, nogil=False)
def allreduce_arrays(comm, send, recv, functions):  # type: ignore[no-untyped-def]
    """Allreduce of plain arrays of one type and size: 0, SLOW, or the code of a failure."""
    element, nbytes = element_of(recv), nbytes_of(recv)
    if element == NONE or element != element_of(send) or nbytes != nbytes_of(send) or writable_of(recv) == 0:
        return SLOW
    function = load64(functions + 8 * element)
    if function == 0 or on_lines(ALLREDUCE, nbytes) == 0 or load64(comm + COMM.slot) == 0:
        return SLOW
    itemsize = itemsize_of(recv)
    return allreduce(comm, address_of(send), address_of(recv), nbytes // itemsize, itemsize, function)

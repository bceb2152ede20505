"""Alltoall of objects on lines: everyone publishes the shares of all, everyone reads its own of each.

T = alpha + n * m * beta for the publishing, (n - 1) * m * beta for the reading, and the making of n objects.
"""

from __future__ import annotations

from ncclx_mpi.collectives.shm_object import exchange, is_possible, pack_each, without_room
from ncclx_mpi.collectives.shm_oneshot import ALLTOALL
from ncclx_mpi.p2p.layout import COMM
from numba_kernels import types
from numba_kernels.atomics import load64
from numba_kernels.jit import kernel
from numba_kernels.pickling import give_room, take_room
from numba_kernels.pyobject import object_argument, object_of
from numba_kernels.pyslots import object_result, result


@kernel(object_result(types.int64, object_argument, types.int64, types.int64), is_entry=True, nogil=False)
def alltoall_plain(comm, argument, is_blob, decodes):  # type: ignore[no-untyped-def]
    """Give a list or tuple of objects, or of the bytes of them, and take one of each rank: :mod:`ncclx_mpi.collectives.shm_object`."""
    room, nbytes = take_room(), -1
    if room == 0:
        return result(without_room(comm))
    if is_possible(comm) != 0:
        nbytes = pack_each(object_of(argument), load64(comm + COMM.size), is_blob, decodes, room)
    found = exchange(comm, ALLTOALL, room, nbytes, 1, decodes)
    give_room(room)
    return result(found)

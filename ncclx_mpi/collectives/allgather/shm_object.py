"""Allgather of objects on lines: everyone publishes its blob, everyone reads all.

T = alpha + (n - 1) * m * beta, and the making of n objects.
"""

from __future__ import annotations

from ncclx_mpi.collectives.shm_object import exchange, is_possible, pack, without_room
from ncclx_mpi.collectives.shm_oneshot import ALLGATHER
from numba_kernels import types
from numba_kernels.jit import kernel
from numba_kernels.pickling import give_room, take_room
from numba_kernels.pyobject import object_argument, object_of
from numba_kernels.pyslots import object_result, result


@kernel(object_result(types.int64, object_argument, types.int64, types.int64), is_entry=True, nogil=False)
def allgather_plain(comm, argument, is_blob, decodes):  # type: ignore[no-untyped-def]
    """Give an object, or the bytes of one, and take all, as :mod:`ncclx_mpi.collectives.shm_object` says."""
    room = take_room()
    if room == 0:
        return result(without_room(comm))
    nbytes = pack(object_of(argument), is_blob, decodes, room) if is_possible(comm) != 0 else -1
    found = exchange(comm, ALLGATHER, room, nbytes, 0, decodes)
    give_room(room)
    return result(found)

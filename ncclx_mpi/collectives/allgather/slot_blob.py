"""Allgather of objects on lines: everyone publishes its blob, everyone reads all.

T = alpha + (n - 1) * m * beta, and the making of n objects.
"""

from __future__ import annotations

from numba import types

from ncclx_mpi.collectives.blobs import collect, is_possible, pack
from ncclx_mpi.collectives.lines import ALLGATHER, SCRATCH, begin, sign
from ncclx_mpi.p2p.notes import SLOW, is_note, note
from numba_kernels.atomics import load64, store64
from numba_kernels.jit import kernel
from numba_kernels.pickling import ROOM, give_room, take_room
from numba_kernels.pyobject import object_argument, object_of
from numba_kernels.pyslots import object_result, result


@kernel(object_result(types.int64, object_argument, types.int64, types.int64), is_entry=True, nogil=False)
def allgather_plain(comm, argument, is_blob, decodes):  # type: ignore[no-untyped-def]
    """Give an object, or the bytes of one, and take all, as :mod:`ncclx_mpi.collectives.blobs` says."""
    room, found = take_room(), 0
    nbytes = pack(object_of(argument), is_blob, decodes, room) if is_possible(comm) != 0 else -1
    if nbytes >= 0:
        signature = sign(ALLGATHER, 0, nbytes)
        number = begin(comm, signature, load64(room + ROOM.at), nbytes)
        found = collect(comm, number, signature, room, 0, decodes)
        if is_note(found) == 0:
            store64(comm + SCRATCH.known, number - 1)
    give_room(room)
    return result(found if nbytes >= 0 else note(SLOW, 0, 0))

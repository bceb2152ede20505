"""Gather of objects on lines: everyone publishes its blob and goes on, the root reads them.

T = alpha + (n - 1) * m * beta at the root, and the making of n objects; nothing to wait for elsewhere.
"""

from __future__ import annotations

from ncclx_mpi.collectives.shm_object import collect, is_possible, pack, sign_blob, without_room
from ncclx_mpi.collectives.shm_oneshot import GATHER, begin, end
from ncclx_mpi.p2p.layout import COMM
from ncclx_mpi.p2p.partial_results import CODE, SLOW, note, note_word
from numba_kernels import types
from numba_kernels.atomics import load64
from numba_kernels.jit import kernel
from numba_kernels.pickling import ROOM, give_room, take_room
from numba_kernels.pyobject import index_argument, index_of, object_argument, object_of
from numba_kernels.pyslots import object_result, result


@kernel(object_result(types.int64, object_argument, index_argument, types.int64, types.int64), is_entry=True, nogil=False)
def gather_plain(comm, argument, root_rank, is_blob, decodes):  # type: ignore[no-untyped-def]
    """Give an object, or the bytes of one; the root takes all, as :mod:`ncclx_mpi.collectives.shm_object` says, the others get None."""
    room, root, found, nbytes = take_room(), index_of(root_rank), 0, -1
    if room == 0:
        return result(without_room(comm))
    if is_possible(comm) != 0 and 0 <= root < load64(comm + COMM.size):
        nbytes = pack(object_of(argument), is_blob, decodes, room)
    if nbytes >= 0:
        signature = sign_blob(GATHER, root, nbytes)
        number = begin(comm, signature, load64(room + ROOM.at), nbytes)
        if root == load64(comm + COMM.rank):
            found = collect(comm, number, signature, room, 0, decodes)
        elif number < 0:
            found = note_word(CODE, -number)
        else:
            end(comm, number, 0)
    give_room(room)
    return result(found if nbytes >= 0 else note(SLOW, 0, 0))

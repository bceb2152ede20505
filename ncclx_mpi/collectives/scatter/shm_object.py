"""Scatter of objects on lines: the root publishes the shares of all and runs ahead, everyone else reads its own.

T = alpha + n * m * beta at the root, alpha + m * beta elsewhere, and the making of one object.
"""

from __future__ import annotations

from ncclx_mpi.collectives.shm_object import (
    arrive_with_blob,
    has_share,
    is_possible,
    open_share,
    pack_each,
    sign_blob,
    without_room,
)
from ncclx_mpi.collectives.shm_oneshot import NO_MEMORY, SCATTER, begin, end, payload, refuse_payload, signed_bytes
from ncclx_mpi.p2p.layout import COMM
from ncclx_mpi.p2p.partial_results import CODE, SLOW, note, note_word
from numba_kernels import types
from numba_kernels.atomics import load64
from numba_kernels.jit import kernel
from numba_kernels.pickling import ROOM, give_room, take_room
from numba_kernels.pyobject import index_argument, index_of, object_argument, object_of
from numba_kernels.pyslots import clear_error, object_result, result


@kernel(object_result(types.int64, object_argument, index_argument, types.int64, types.int64), is_entry=True, nogil=False)
def scatter_plain(comm, argument, root_rank, is_blob, decodes):  # type: ignore[no-untyped-def]
    """Take an object of the list or tuple of objects, or of the bytes of them, that the root gives; or a note."""
    root, rank, size = index_of(root_rank), load64(comm + COMM.rank), load64(comm + COMM.size)
    if is_possible(comm) == 0 or not 0 <= root < size:
        return result(note(SLOW, 0, 0))
    room, nbytes = take_room(), 0
    if room == 0:
        return result(without_room(comm))
    if root == rank:
        nbytes = pack_each(object_of(argument), size, is_blob, decodes, room)
        if nbytes < 0:
            give_room(room)
            return result(note(SLOW, 0, 0))
    signature = sign_blob(SCATTER, root, nbytes)
    number = begin(comm, signature, load64(room + ROOM.at), nbytes)
    found = _take_share(comm, number, signature, root, load64(room + ROOM.at), decodes)
    give_room(room)
    return result(found)


@kernel("int64(int64, int64, int64, int64, int64, int64)")
def _take_share(comm, number, signature, root, own, decodes):  # type: ignore[no-untyped-def]
    """The object of this rank, or a note. `own`: the shares that this rank has published if it is the root."""
    if number < 0:
        return note_word(CODE, -number)
    rank, base, code, found = load64(comm + COMM.rank), own, 0, 0
    if rank != root:
        code = arrive_with_blob(comm, root, number, signature)
        if code == 0:
            nbytes = signed_bytes(comm, root, number)
            base = payload(comm, root, number, nbytes)
            if has_share(base, nbytes, load64(comm + COMM.size), rank) == 0:
                code = refuse_payload(comm, root, number, signature)
    if code == 0:
        found = open_share(base, load64(comm + COMM.size), rank, decodes)
        if found == 0:
            clear_error()
            code = NO_MEMORY
    code = end(comm, number, code)
    return found if code == 0 else note_word(CODE, code)

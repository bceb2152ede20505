"""Bcast of an object on lines: the root publishes its blob and runs ahead, everyone else reads it.

::

    root:   line {number, signature with its bytes, m bytes}  -->  every other rank reads how many, and makes the object of them

T as in :mod:`ncclx_mpi.collectives.bcast.shm_oneshot`, and the making of the object; the root copies its own meanwhile.
"""

from __future__ import annotations

from ncclx_mpi.collectives.shm_object import arrive_with_blob, is_possible, pack, sign_blob, without_room
from ncclx_mpi.collectives.shm_oneshot import BCAST, NO_MEMORY, begin, end, payload, signed_bytes
from ncclx_mpi.p2p.layout import COMM
from ncclx_mpi.p2p.partial_results import CODE, SLOW, note, note_word, opened
from numba_kernels import types
from numba_kernels.atomics import load64
from numba_kernels.jit import kernel
from numba_kernels.pickling import ROOM, dict_type, give_room, take_room
from numba_kernels.pyobject import OB_SIZE, OB_TYPE, index_argument, index_of, list_type, object_argument, object_of
from numba_kernels.pyslots import clear_error, increase, object_result, result

_copy_dict = types.external("PyDict_Copy", types.intp(types.intp))
_slice_list = types.external("PyList_GetSlice", types.intp(types.intp, types.intp, types.intp))


@kernel(object_result(types.int64, object_argument, index_argument, types.int64, types.int64), is_entry=True, nogil=False)
def bcast_plain(comm, argument, root_rank, is_blob, decodes):  # type: ignore[no-untyped-def]
    """The object that the root gives, or a note (:mod:`ncclx_mpi.collectives.shm_object`). The root, too, gets a new one; None for bytes."""
    root = index_of(root_rank)
    if is_possible(comm) == 0 or not 0 <= root < load64(comm + COMM.size):
        return result(note(SLOW, 0, 0))
    if root != load64(comm + COMM.rank):
        return result(_take(comm, root, decodes))
    room, obj = take_room(), object_of(argument)
    if room == 0:
        return result(without_room(comm))
    nbytes = pack(obj, is_blob, decodes, room)
    if nbytes < 0:
        found = note(SLOW, 0, 0)
    else:
        found = _give(comm, root, load64(room + ROOM.at), nbytes)
        if found == 0 and is_blob == 0:
            found = _copied(obj, room, nbytes)
    give_room(room)
    return result(found)


@kernel("int64(int64, int64, int64, int64)")
def _give(comm, root, address, nbytes):  # type: ignore[no-untyped-def]
    """Publish a blob: 0, or a note with the code of a failure."""
    number = begin(comm, sign_blob(BCAST, root, nbytes), address, nbytes)
    code = -number if number < 0 else end(comm, number, 0)
    return note_word(CODE, code) if code != 0 else 0


@kernel("int64(int64, int64, int64)")
def _take(comm, root, decodes):  # type: ignore[no-untyped-def]
    """The object of the root's blob, or a note."""
    signature = sign_blob(BCAST, root, 0)
    number = begin(comm, signature, 0, 0)
    if number < 0:
        return note_word(CODE, -number)
    code, found = arrive_with_blob(comm, root, number, signature), 0
    if code == 0:
        nbytes = signed_bytes(comm, root, number)
        found = opened(payload(comm, root, number, nbytes), nbytes, decodes)
        if found == 0:
            clear_error()
            code = NO_MEMORY
    code = end(comm, number, code)
    return found if code == 0 else note_word(CODE, code)


@kernel("int64(int64, int64, int64)")
def _copied(obj, room, nbytes):  # type: ignore[no-untyped-def]
    """A copy of a plain value whose pickle has just been written: without parts in parts it is not made from that."""
    if load64(room + ROOM.is_flat) == 0:
        return opened(room + ROOM.data, nbytes, 1)
    if load64(obj + OB_TYPE) == dict_type():
        return _copy_dict(obj)
    if load64(obj + OB_TYPE) == list_type():
        return _slice_list(obj, 0, load64(obj + OB_SIZE))
    increase(obj)
    return obj

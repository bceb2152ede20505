"""Collectives on Python objects.

Plain values (:mod:`numba_kernels.pickling`) that are not large take one compiled call, which writes their pickles, exchanges them and makes
objects of what has come (:mod:`ncclx_mpi.collectives.shm_object`). Where that says by a note that there is more to do, the functions below go
on: they pickle what is no plain value, unpickle what a peer has pickled, and send what is too large after an empty blob, as messages
(:mod:`ncclx_mpi.api.object_messages`) in the hidden message space. The object of a bcast that is too large is announced, and follows in
further bcasts.
"""

from __future__ import annotations

import ctypes
import functools
import struct
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ncclx_mpi import collectives, rc
from ncclx_mpi.api import fast, object_blocks, object_messages
from ncclx_mpi.api.collective_arguments import check_root
from ncclx_mpi.api.communicator import CommState
from ncclx_mpi.api.op import SUM, Op, predefined
from ncclx_mpi.api.pickle import pickle
from ncclx_mpi.collectives import shm_object
from ncclx_mpi.operations.operation import Operation, Together
from ncclx_mpi.p2p.engine import NativeComm
from ncclx_mpi.p2p.partial_results import CODE, RAW, SLOW
from numba_kernels.late_numpy import np

Reduction = Op | Callable[[Any, Any], Any]

Dumped = tuple[bytes, list[memoryview]]
"""Pickle and buffers of an object."""

_OBJECT, _BLOB = 0, 1
"""What a compiled collective is given: an object, or the bytes of a blob."""
_HIDDEN = 2
"""Context offset of objects that are too large for a blob."""
_GATHER, _SCATTER, _ALLGATHER, _ALLTOALL, _REDUCE, _SCAN = range(6)
"""Tags there: threads in two methods must not meet."""
_FEW_RANKS = 8
"""Ranks up to which each reduces what all have, instead of along a tree."""

_ANNOUNCE = struct.Struct("<16sqq")
"""Magic bytes, bytes of the pickle, number of buffers."""


class ObjectMethods:
    """Methods of Comm: collectives on Python objects."""

    __slots__ = ()
    _state: CommState

    def bcast(self, obj: Any, root: int = 0) -> Any:
        """Broadcast."""
        state = self._state
        with state.locks.get("bcast") or state.lock("bcast"):  # mpi4py.util.pkl5 takes it too
            found = fast.bcast_plain(state.address, obj, root, _OBJECT, pickle._is_standard)
            return _bcast(state, found, obj, root) if type(found) is bytearray else found

    def gather(self, sendobj: Any, root: int = 0) -> list[Any] | None:
        """Gather."""
        state = self._state
        found = fast.gather_plain(state.address, sendobj, root, _OBJECT, pickle._is_standard)
        return found if type(found) is list or found is None else _gather(state, found, sendobj, root)

    def scatter(self, sendobj: Sequence[Any] | None, root: int = 0) -> Any:
        """Scatter."""
        state = self._state
        found = fast.scatter_plain(state.address, sendobj, root, _OBJECT, pickle._is_standard)
        return _scatter(state, found, sendobj, root) if type(found) is bytearray else found

    def allgather(self, sendobj: Any) -> list[Any]:
        """Gather to all."""
        state = self._state
        found = fast.allgather_plain(state.address, sendobj, _OBJECT, pickle._is_standard)
        return found if type(found) is list else _allgather(state, found, sendobj)

    def alltoall(self, sendobj: Sequence[Any]) -> list[Any]:
        """All to all scatter/gather."""
        state = self._state
        found = fast.alltoall_plain(state.address, sendobj, _OBJECT, pickle._is_standard)
        return found if type(found) is list else _alltoall(state, found, sendobj)

    def reduce(self, sendobj: Any, op: Reduction = SUM, root: int = 0) -> Any | None:
        """Reduce to root; operands are combined in the order of ranks."""
        state = self._state
        root = check_root(state, root)
        if not rc.options().fast_reduce:
            objects = self.gather(sendobj, root)
            return None if objects is None else functools.reduce(op, objects)
        with state.lock("reduce"):
            return _reduce(state.native, sendobj, op, root)

    def allreduce(self, sendobj: Any, op: Reduction = SUM) -> Any:
        """Reduce to all."""
        operands = _all_operands(self._state, sendobj, op)
        return self.bcast(self.reduce(sendobj, op, 0), 0) if operands is None else _fold(operands, op)


class ObjectScans:
    """Methods of Intracomm: scans of Python objects."""

    __slots__ = ()
    _state: CommState

    def scan(self, sendobj: Any, op: Reduction = SUM) -> Any:
        """Inclusive scan."""
        state = self._state
        operands = _all_operands(state, sendobj, op)
        if operands is not None:
            return functools.reduce(op, operands[: state.rank + 1])
        with state.lock("scan"):
            return _scan(state.native, sendobj, op)[1]

    def exscan(self, sendobj: Any, op: Reduction = SUM) -> Any:
        """Exclusive scan; rank 0 gets None."""
        state = self._state
        operands = _all_operands(state, sendobj, op)
        if operands is not None:
            return functools.reduce(op, operands[: state.rank]) if state.rank > 0 else None
        with state.lock("scan"):
            return _scan(state.native, sendobj, op)[0]


# Bcast ------------------------------------------------------------------------------------------------------------


def _bcast(state: CommState, noted: bytearray, obj: Any, root: int) -> Any:
    """Go on with a bcast that ended with a note."""
    native = state.native
    if noted[0] == SLOW:
        root = check_root(state, root)
        if root == state.rank:
            return _bcast_send(native, obj, root)
        noted = fast.bcast_plain(state.address, None, root, _OBJECT, pickle._is_standard)
        if type(noted) is not bytearray:
            return noted
        if noted[0] == SLOW:
            noted = _bcast_receive_bytes(native, root)
    _check(native, noted, "bcast")
    return _bcast_received(native, memoryview(noted)[1:], root)


def _bcast_send(native: NativeComm, obj: Any, root: int) -> Any:
    """Give an object that is no plain value, or goes without lines."""
    data, frames = object_messages.dump(obj)
    blob = data
    if frames or len(data) > shm_object.CAPACITY or data.startswith(object_messages.MAGIC):
        blob = _ANNOUNCE.pack(object_messages.MAGIC, len(data), len(frames))
    noted = fast.bcast_plain(native.address, blob, root, _BLOB, False)
    if noted is not None:
        _check(native, noted, "bcast")
        length = ctypes.c_int64(len(blob))
        collectives.bcast(native, ctypes.addressof(length), 8, root)
        collectives.bcast(native, object_messages.address_of(blob), length.value, root)
    if blob is not data:
        head = struct.pack(f"<{len(frames)}q", *(frame.nbytes for frame in frames)) + data
        collectives.bcast(native, object_messages.address_of(head), len(head), root)
        for frame in frames:
            collectives.bcast(native, object_messages.address_of(frame), frame.nbytes, root)
    return object_messages.copy_dumped(obj, data, frames)


def _bcast_receive_bytes(native: NativeComm, root: int) -> bytearray:
    """Receive the root's first message without lines, as a note."""
    length = ctypes.c_int64()
    collectives.bcast(native, ctypes.addressof(length), 8, root)
    received, address = object_messages.room(length.value)
    collectives.bcast(native, address, length.value, root)
    return bytearray([RAW]) + bytes(received)


def _bcast_received(native: NativeComm, blob: memoryview, root: int) -> Any:
    """Return the object of the root's first message, or of what follows it."""
    if len(blob) != _ANNOUNCE.size or not bytes(blob).startswith(object_messages.MAGIC):
        return object_messages.load(blob)
    _, nbytes, buffers = _ANNOUNCE.unpack_from(blob)
    head, address = object_messages.room(8 * buffers + nbytes)
    collectives.bcast(native, address, len(head), root)
    frames = [np.empty(size, dtype=np.uint8) for size in struct.unpack_from(f"<{buffers}q", head)]
    for frame in frames:
        collectives.bcast(native, frame.ctypes.data, frame.nbytes, root)
    return object_messages.load(memoryview(head)[8 * buffers :], frames)


# Others -----------------------------------------------------------------------------------------------------------


def _gather(state: CommState, found: Any, obj: Any, root: int) -> list[Any] | None:
    """Go on with a gather that ended with a note, or with notes among its objects."""
    native, own = state.native, None
    if type(found) is bytearray:
        _check(native, found, "gather")
        root, own = check_root(state, root), object_messages.dump(obj)
        found = fast.gather_plain(native.address, _blob_of(native, own), root, _BLOB, pickle._is_standard)
        if type(found) is bytearray:
            _check(native, found, "gather")
            found = object_blocks.gather(native, _blob_of(native, own), root)
    if found is not None:
        return _take_all(native, found, own, _GATHER, None)
    if own is not None and not _blob_of(native, own):
        _complete(native, _start_rests(native, {root: own}, _GATHER))
    return None


def _scatter(state: CommState, found: bytearray, objects: Sequence[Any] | None, root: int) -> Any:
    """Go on with a scatter that ended with a note."""
    native = state.native
    _check(native, found, "scatter")
    root = check_root(state, root) if found[0] == SLOW else root
    own: list[Dumped] = []
    if root == native.rank:
        own = _dump_each(objects, native.size)
    shares = _blobs_of(native, own)
    if found[0] == SLOW:
        found = fast.scatter_plain(native.address, shares, root, _BLOB, pickle._is_standard)
        if type(found) is bytearray:
            _check(native, found, "scatter")
            if found[0] == SLOW:
                found = object_blocks.scatter(native, shares, root)
    sending = _start_rests(native, {rank: own[rank] for rank, share in enumerate(shares) if not share}, _SCATTER)
    try:
        return _take(native, found, root, own[root] if own else None, _SCATTER)
    finally:
        _complete(native, sending)


def _allgather(state: CommState, found: Any, obj: Any) -> list[Any]:
    """Go on with an allgather that ended with a note, or with notes among its objects."""
    native, own, sending = state.native, None, None
    if type(found) is bytearray:
        own, found = _allgather_dumped(native, found, obj)
        if not _blob_of(native, own):
            sending = _start_rests(native, dict.fromkeys(range(native.size), own), _ALLGATHER)
    return _take_all(native, found, own, _ALLGATHER, sending)


def _allgather_dumped(native: NativeComm, noted: bytearray, obj: Any) -> tuple[Dumped, Sequence[Any]]:
    """Give an object that is no plain value, or goes without lines: its pickle, and what all have given, with notes."""
    _check(native, noted, "allgather")
    own = object_messages.dump(obj)
    found = fast.allgather_plain(native.address, _blob_of(native, own), _BLOB, pickle._is_standard)
    if type(found) is bytearray:
        _check(native, found, "allgather")
        found = object_blocks.allgather(native, _blob_of(native, own))
    return own, found


def _alltoall(state: CommState, found: Any, objects: Sequence[Any]) -> list[Any]:
    """Go on with an alltoall that ended with a note, or with notes among its objects."""
    native, sending = state.native, None
    own: list[Dumped] = []
    if type(found) is bytearray:
        _check(native, found, "alltoall")
        own = _dump_each(objects, native.size)
        shares = _blobs_of(native, own)
        found = fast.alltoall_plain(native.address, shares, _BLOB, pickle._is_standard)
        if type(found) is bytearray:
            _check(native, found, "alltoall")
            found = object_blocks.alltoall(native, shares)
        sending = _start_rests(native, {rank: own[rank] for rank, share in enumerate(shares) if not share}, _ALLTOALL)
    return _take_all(native, found, own[native.rank] if own else None, _ALLTOALL, sending)


def _check(native: NativeComm, noted: bytearray, name: str) -> None:
    """Raise what a note says if that is a failure."""
    if noted[0] == CODE:
        collectives.check(native, object_messages.word_of(noted), name)


def _capacity(native: NativeComm) -> int:
    """Most bytes of a blob, or of the shares of a rank: the same on every rank."""
    has_lines = native.slot >= 0 and native.size <= shm_object.MOST_RANKS and fast.can_pickle()
    return shm_object.CAPACITY if has_lines else object_blocks.CAPACITY


def _blob_of(native: NativeComm, dumped: Dumped) -> bytes:
    """Return the blob of a pickled object: the pickle, or nothing where that does not fit, or has buffers, and follows."""
    data, frames = dumped
    return b"" if frames or len(data) > _capacity(native) else data


def _blobs_of(native: NativeComm, dumped: Sequence[Dumped]) -> list[bytes]:
    """As :func:`_blob_of`, for shares, which have to fit together on lines."""
    room, shares = shm_object.CAPACITY - 8 * native.size, []
    for each in dumped:
        blob = _blob_of(native, each)
        shares.append(blob if len(blob) <= room else b"")
        room -= len(shares[-1])
    return shares


def _dump_each(objects: Sequence[Any] | None, size: int) -> list[Dumped]:
    """Pickle one object for each rank."""
    return [object_messages.dump(item) for item in object_messages.one_each(objects, size)]


def _take(native: NativeComm, item: Any, source: int, own: Dumped | None, tag: int) -> Any:
    """Return the object of what `source` has given: an object, a note with its pickle, or an empty one, and it follows."""
    if type(item) is not bytearray:
        return item
    if len(item) > 1:
        return object_messages.load(memoryview(item)[1:])
    if source != native.rank:
        return object_messages.receive(native, source, tag, _HIDDEN)
    assert own is not None
    return object_messages.load(own[0], [np.array(frame) for frame in own[1]])


def _take_all(native: NativeComm, found: Sequence[Any], own: Dumped | None, tag: int, sending: Operation | None) -> list[Any]:
    """Return the objects of what all have given, and complete what this rank sends.

    Where an object cannot be made of its pickle, the others are received all the same before that is raised: a message that
    nobody takes would be the next collective's.
    """
    objects: list[Any] = []
    failures: list[Exception] = []
    for rank, item in enumerate(found):
        try:
            objects.append(_take(native, item, rank, own, tag))
        except Exception as error:
            failures.append(error)
    _complete(native, sending)
    if failures:
        raise failures[0]
    return objects


def _start_rests(native: NativeComm, rests: Mapping[int, Dumped], tag: int) -> Operation | None:
    """Start sending to ranks what did not fit, if there is anything."""
    others = [(rank, rest) for rank, rest in rests.items() if rank != native.rank]
    if not others:
        return None
    return Together([object_messages.start_dumped(native, *rest, rank, tag, offset=_HIDDEN) for rank, rest in others])


def _complete(native: NativeComm, sending: Operation | None) -> None:
    if sending is not None:
        object_messages.complete(native, sending)


# Reductions -------------------------------------------------------------------------------------------------------


def _all_operands(state: CommState, obj: Any, op: Reduction) -> list[Any] | None:
    """Return what all ranks reduce, for each to do it itself: few ranks, a predefined operation, none large. Else None on every rank."""
    if state.size > _FEW_RANKS or predefined(op) is None:
        return None
    native = state.native
    found = fast.allgather_plain(native.address, obj, _OBJECT, pickle._is_standard)
    if type(found) is list:
        return found
    if type(found) is bytearray:
        _, found = _allgather_dumped(native, found, obj)
    if any(type(item) is bytearray and len(item) == 1 for item in found):
        return None
    return [_take(native, item, rank, None, _ALLGATHER) for rank, item in enumerate(found)]


def _fold(operands: list[Any], op: Reduction) -> Any:
    """Combine what all ranks have as :func:`_reduce` does, neighbours first: the same operations, so the same result on every rank."""
    mask, size = 1, len(operands)
    while mask < size:
        for rank in range(0, size - mask, 2 * mask):
            operands[rank] = op(operands[rank], operands[rank + mask])
        mask <<= 1
    return operands[0]


def _reduce(native: NativeComm, sendobj: Any, op: Reduction, root: int) -> Any:
    """Combine along a binomial tree that ends at rank 0, neighbours first, so that operands stay in rank order."""
    rank, size, mask = native.rank, native.size, 1
    result = object_messages.copy(sendobj)
    while mask < size:
        if rank & mask:
            object_messages.send(native, result, rank - mask, _REDUCE, offset=_HIDDEN)
            break
        if rank + mask < size:
            result = op(result, object_messages.receive(native, rank + mask, _REDUCE, _HIDDEN))
        mask <<= 1
    if root == 0:
        return result if rank == 0 else None
    if rank == 0:
        object_messages.send(native, result, root, _REDUCE, offset=_HIDDEN)
    return object_messages.receive(native, 0, _REDUCE, _HIDDEN) if rank == root else None


def _scan(native: NativeComm, sendobj: Any, op: Reduction) -> tuple[Any, Any]:
    """Return the combination of all lower ranks, and of them and this one, passed on along the ranks."""
    rank, before = native.rank, None
    result = object_messages.copy(sendobj)
    if rank > 0:
        before = object_messages.receive(native, rank - 1, _SCAN, _HIDDEN)
        result = op(object_messages.copy(before), result)
    if rank + 1 < native.size:
        object_messages.send(native, result, rank + 1, _SCAN, offset=_HIDDEN)
    return before, result

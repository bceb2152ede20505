"""Collectives on Python objects.

Every rank contributes one *block* of fixed length to one collective on bytes: the length of its pickle and, if it fits, the
pickle itself. So small objects need one collective. An object that does not fit follows as a message (:mod:`wire`) in the hidden
message space. A bcast sends the pickle alone, whose length the others learn with it; a large one is announced, and follows in
further bcasts.
"""

from __future__ import annotations

import ctypes
import functools
import struct
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ncclx_mpi import collectives, rc
from ncclx_mpi.api import fast, wire
from ncclx_mpi.api.calls import IN_PLACE, check_root
from ncclx_mpi.api.communicator import CommState
from ncclx_mpi.api.op import SUM, Op
from ncclx_mpi.api.operations import Operation, Together
from ncclx_mpi.collectives.bcast import slot_blob
from ncclx_mpi.p2p.engine import NativeComm
from numba_kernels.jit import entry

Reduction = Op | Callable[[Any, Any], Any]

BLOB_MAX = slot_blob.CAPACITY
"""Bytes of a pickle up to which a bcast is one message; a larger one is announced first."""
BLOCK = 512
"""Bytes of a block in the other collectives, where they are multiplied by the number of ranks."""

_HIDDEN = 2
"""Context offset of objects that do not fit their block."""
_GATHER, _SCATTER, _ALLGATHER, _ALLTOALL, _REDUCE, _SCAN = range(6)
"""Tags there: each method has its own lock, so threads in two of them must not meet."""

_ANNOUNCE = struct.Struct("<16sqq")
"""Magic bytes, bytes of the pickle, number of buffers."""
_LENGTH = struct.Struct("<q")
_FOLLOWING = _LENGTH.pack(-1).ljust(BLOCK, b"\0")
"""Block of an object that does not fit."""


class ObjectMethods:
    """Methods of Comm: collectives on Python objects."""

    __slots__ = ()
    _state: CommState

    def barrier(self) -> None:
        """Barrier synchronization."""
        collectives.barrier(self._state.native)

    def bcast(self, obj: Any, root: int = 0) -> Any:
        """Broadcast."""
        state = self._state
        if type(root) is not int or not 0 <= root < state.size:
            root = check_root(state, root)
        if root == state.rank:
            return _bcast_send(state, obj, root)
        return _bcast_receive(state, root)

    def gather(self, sendobj: Any, root: int = 0) -> list[Any] | None:
        """Gather."""
        state = self._state
        root, native = check_root(state, root), state.native
        block, rest = _pack(sendobj)
        table, address = wire.room(BLOCK * state.size) if root == state.rank else (b"", IN_PLACE)
        with state.locks.get("gather") or state.lock("gather"):
            collectives.gather(native, wire.address_of(block), BLOCK, address, root)
            if root == state.rank:
                return _unpack_all(native, table, rest, _GATHER)
            if rest is not None:
                wire.complete(native, wire.start_dumped(native, *rest, root, _GATHER, offset=_HIDDEN))
        return None

    def scatter(self, sendobj: Sequence[Any] | None, root: int = 0) -> Any:
        """Scatter."""
        state = self._state
        root, native = check_root(state, root), state.native
        block, address = wire.room(BLOCK)
        blocks, rests = _pack_each(sendobj, state.size) if root == state.rank else (b"", [None] * state.size)
        source = wire.address_of(blocks) if blocks else IN_PLACE
        with state.locks.get("scatter") or state.lock("scatter"):
            collectives.scatter(native, source, address, BLOCK, root)
            sending = _start_rests(native, rests, _SCATTER)
            obj = _unpack(native, memoryview(block), root, rests[state.rank], _SCATTER)
            _complete(native, sending)
        return obj

    def allgather(self, sendobj: Any) -> list[Any]:
        """Gather to all."""
        state = self._state
        native = state.native
        block, rest = _pack(sendobj)
        table, address = wire.room(BLOCK * state.size)
        with state.locks.get("allgather") or state.lock("allgather"):
            collectives.allgather(native, wire.address_of(block), BLOCK, address)
            sending = None if rest is None else _start_rests(native, [rest] * state.size, _ALLGATHER)
            objects = _unpack_all(native, table, rest, _ALLGATHER)
            _complete(native, sending)
        return objects

    def alltoall(self, sendobj: Sequence[Any]) -> list[Any]:
        """All to all scatter/gather."""
        state = self._state
        native = state.native
        blocks, rests = _pack_each(sendobj, state.size)
        table, address = wire.room(BLOCK * state.size)
        with state.locks.get("alltoall") or state.lock("alltoall"):
            collectives.alltoall(native, wire.address_of(blocks), address, BLOCK)
            sending = _start_rests(native, rests, _ALLTOALL)
            objects = _unpack_all(native, table, rests[state.rank], _ALLTOALL)
            _complete(native, sending)
        return objects

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
        return self.bcast(self.reduce(sendobj, op, 0), 0)


class ObjectScans:
    """Methods of Intracomm: scans of Python objects."""

    __slots__ = ()
    _state: CommState

    def scan(self, sendobj: Any, op: Reduction = SUM) -> Any:
        """Inclusive scan."""
        state = self._state
        with state.lock("scan"):
            return _scan(state.native, sendobj, op)[1]

    def exscan(self, sendobj: Any, op: Reduction = SUM) -> Any:
        """Exclusive scan; rank 0 gets None."""
        state = self._state
        with state.lock("scan"):
            return _scan(state.native, sendobj, op)[0]


# Bcast ------------------------------------------------------------------------------------------------------------


def _bcast_send(state: CommState, obj: Any, root: int) -> Any:
    data, frames = wire.dump(obj)
    native = state.native
    blob = data
    if frames or len(data) > BLOB_MAX or data.startswith(wire.MAGIC):
        blob = _ANNOUNCE.pack(wire.MAGIC, len(data), len(frames))
    with state.locks.get("bcast") or state.lock("bcast"):
        _send_blob(native, blob, root)
        if blob is not data:
            head = struct.pack(f"<{len(frames)}q", *(frame.nbytes for frame in frames)) + data
            collectives.bcast(native, wire.address_of(head), len(head), root)
            for frame in frames:
                collectives.bcast(native, wire.address_of(frame), frame.nbytes, root)
    return wire.copy_dumped(obj, data, frames)


def _bcast_receive(state: CommState, root: int) -> Any:
    native = state.native
    with state.locks.get("bcast") or state.lock("bcast"):
        blob = _receive_blob(native, root)
        if len(blob) == _ANNOUNCE.size and blob.startswith(wire.MAGIC):
            return wire.load(*_bcast_receive_large(native, blob, root))
    return wire.load(blob)


def _send_blob(native: NativeComm, blob: bytes, root: int) -> None:
    """Send what the root's first message is: one compiled call where the communicator has a slot."""
    compiled = _entries()
    if native.slot >= 0 and compiled is not None:
        code = compiled[0](native.address, blob, root)
        if code:
            collectives.check(native, code, "bcast")
        return
    length = ctypes.c_int64(len(blob))
    collectives.bcast(native, ctypes.addressof(length), 8, root)
    collectives.bcast(native, wire.address_of(blob), length.value, root)


def _receive_blob(native: NativeComm, root: int) -> bytes:
    """Receive the root's first message."""
    compiled = _entries()
    if native.slot >= 0 and compiled is not None:
        blob = compiled[1](native.address, root, fast.status_address())
        if blob is None:
            collectives.check(native, int(fast.status_words()[0]), "bcast")
        return blob or b""
    length = ctypes.c_int64()
    collectives.bcast(native, ctypes.addressof(length), 8, root)
    received, address = wire.room(length.value)
    collectives.bcast(native, address, length.value, root)
    return bytes(received)


@functools.cache
def _entries() -> tuple[Callable[..., int], Callable[..., bytes | None]] | None:
    return (entry(slot_blob.send_blob), entry(slot_blob.receive_blob)) if fast.can_read_objects() else None


def _bcast_receive_large(native: NativeComm, announced: Any, root: int) -> tuple[Any, list[Any]]:
    """Receive pickle and buffers of an object that the root has announced."""
    _, nbytes, buffers = _ANNOUNCE.unpack_from(announced)
    head, address = wire.room(8 * buffers + nbytes)
    collectives.bcast(native, address, len(head), root)
    frames = [np.empty(size, dtype=np.uint8) for size in struct.unpack_from(f"<{buffers}q", head)]
    for frame in frames:
        collectives.bcast(native, frame.ctypes.data, frame.nbytes, root)
    return memoryview(head)[8 * buffers :], frames


# Blocks -----------------------------------------------------------------------------------------------------------

Rest = tuple[bytes, list[memoryview]] | None
"""Pickle and buffers of an object that does not fit its block."""


def _pack(obj: Any) -> tuple[bytes, Rest]:
    """Return the block of an object, and the object's pickle if it does not fit."""
    data, frames = wire.dump(obj)
    if frames or len(data) > BLOCK - _LENGTH.size:
        return _FOLLOWING, (data, frames)
    return (_LENGTH.pack(len(data)) + data).ljust(BLOCK, b"\0"), None


def _pack_each(objects: Sequence[Any] | None, size: int) -> tuple[bytes, list[Rest]]:
    """Return the blocks of one object for each rank."""
    items = [None] * size if objects is None else list(objects)
    if len(items) != size:
        raise ValueError(f"expecting {size} items, got {len(items)}")
    packed = [_pack(item) for item in items]
    return b"".join([block for block, _ in packed]), [rest for _, rest in packed]


def _unpack(native: NativeComm, view: memoryview, source: int, own_rest: Rest, tag: int) -> Any:
    """Return the object of a block that `source` sent, or of what follows it."""
    (nbytes,) = _LENGTH.unpack_from(view)
    if nbytes >= 0:
        return wire.load(view[_LENGTH.size : _LENGTH.size + nbytes])
    if source != native.rank:
        return wire.receive(native, source, tag, _HIDDEN)
    assert own_rest is not None
    return wire.load(own_rest[0], [np.array(frame) for frame in own_rest[1]])


def _unpack_all(native: NativeComm, table: Any, own_rest: Rest, tag: int) -> list[Any]:
    """Return the objects of all ranks' blocks."""
    view = memoryview(table)
    return [_unpack(native, view[rank * BLOCK :], rank, own_rest, tag) for rank in range(native.size)]


def _start_rests(native: NativeComm, rests: Sequence[Rest], tag: int) -> Operation | None:
    """Start sending to each rank what did not fit its block, if there is anything."""
    others = [(rank, rest) for rank, rest in enumerate(rests) if rest is not None and rank != native.rank]
    if not others:
        return None
    return Together([wire.start_dumped(native, *rest, rank, tag, offset=_HIDDEN) for rank, rest in others])


def _complete(native: NativeComm, sending: Operation | None) -> None:
    if sending is not None:
        wire.complete(native, sending)


# Reductions -------------------------------------------------------------------------------------------------------


def _reduce(native: NativeComm, sendobj: Any, op: Reduction, root: int) -> Any:
    """Combine along a binomial tree that ends at rank 0, neighbours first, so that operands stay in rank order."""
    rank, size, mask = native.rank, native.size, 1
    result = wire.copy(sendobj)
    while mask < size:
        if rank & mask:
            wire.send(native, result, rank - mask, _REDUCE, offset=_HIDDEN)
            break
        if rank + mask < size:
            result = op(result, wire.receive(native, rank + mask, _REDUCE, _HIDDEN))
        mask <<= 1
    if root == 0:
        return result if rank == 0 else None
    if rank == 0:
        wire.send(native, result, root, _REDUCE, offset=_HIDDEN)
    return wire.receive(native, 0, _REDUCE, _HIDDEN) if rank == root else None


def _scan(native: NativeComm, sendobj: Any, op: Reduction) -> tuple[Any, Any]:
    """Return the combination of all lower ranks, and of them and this one, passed on along the ranks."""
    rank, before = native.rank, None
    result = wire.copy(sendobj)
    if rank > 0:
        before = wire.receive(native, rank - 1, _SCAN, _HIDDEN)
        result = op(wire.copy(before), result)
    if rank + 1 < native.size:
        wire.send(native, result, rank + 1, _SCAN, offset=_HIDDEN)
    return before, result

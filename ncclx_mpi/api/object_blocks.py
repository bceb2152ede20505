"""Blobs of Python objects (:mod:`ncclx_mpi.collectives.shm_object`) where a communicator has no lines: as blocks of one length.

Every rank contributes one block to one collective on bytes: the length of its blob, and the blob. What has come is returned as notes
(:mod:`ncclx_mpi.p2p.partial_results`), as lines do with blobs that are no plain values.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any

from ncclx_mpi import collectives
from ncclx_mpi.api import object_messages
from ncclx_mpi.api.collective_arguments import IN_PLACE
from ncclx_mpi.p2p.engine import NativeComm
from ncclx_mpi.p2p.partial_results import RAW

BLOCK = 512
"""Bytes of a block."""
_LENGTH = struct.Struct("<q")
CAPACITY = BLOCK - _LENGTH.size
"""Most bytes of a blob."""


def gather(native: NativeComm, blob: bytes, root: int) -> list[bytearray] | None:
    """Gather: notes of all ranks' blobs at the root."""
    block, is_root = _block_of(blob), root == native.rank
    table, address = object_messages.room(BLOCK * native.size) if is_root else (b"", IN_PLACE)
    collectives.gather(native, object_messages.address_of(block), BLOCK, address, root)
    return _notes_of(table) if is_root else None


def scatter(native: NativeComm, blobs: Sequence[bytes], root: int) -> bytearray:
    """Scatter: a note of the blob that the root has for this rank. Only the root gives any."""
    block, address = object_messages.room(BLOCK)
    blocks = b"".join(map(_block_of, blobs))
    collectives.scatter(native, object_messages.address_of(blocks) if blocks else IN_PLACE, address, BLOCK, root)
    return _notes_of(block)[0]


def allgather(native: NativeComm, blob: bytes) -> list[bytearray]:
    """Gather to all: notes of all ranks' blobs."""
    block = _block_of(blob)
    table, address = object_messages.room(BLOCK * native.size)
    collectives.allgather(native, object_messages.address_of(block), BLOCK, address)
    return _notes_of(table)


def alltoall(native: NativeComm, blobs: Sequence[bytes]) -> list[bytearray]:
    """All to all: notes of the blobs that all ranks have for this one."""
    blocks = b"".join(map(_block_of, blobs))
    table, address = object_messages.room(BLOCK * native.size)
    collectives.alltoall(native, object_messages.address_of(blocks), address, BLOCK)
    return _notes_of(table)


def _block_of(blob: bytes) -> bytes:
    return (_LENGTH.pack(len(blob)) + blob).ljust(BLOCK, b"\0")


def _notes_of(table: Any) -> list[bytearray]:
    view, notes = memoryview(table), []
    for at in range(0, len(view), BLOCK):
        (nbytes,) = _LENGTH.unpack_from(view, at)
        notes.append(bytearray([RAW]) + view[at + _LENGTH.size : at + _LENGTH.size + nbytes])
    return notes

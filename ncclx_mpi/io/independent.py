"""A rank accesses a file by itself: what is contiguous in one call, blocks one by one, small ones with the holes between them.

Only reads take holes along (data sieving): to write them, they would have to be read before, and whatever another rank wrote there
meanwhile would be lost.
"""

from __future__ import annotations

from ncclx_mpi.buffers import packing
from ncclx_mpi.buffers.memory import Words, array_words
from ncclx_mpi.io import extents
from ncclx_mpi.io.hints import DISABLE, ENABLE, Hints
from ncclx_mpi.io.memory import Memory
from ncclx_mpi.io.posix import PosixFile
from ncclx_mpi.io.view import View
from numba_kernels.late_numpy import np

_FAR = 4096
"""Up to this many bytes from one block to the next, on average, holes are read too: that costs less than a call for each block."""


def write(file: PosixFile, view: View, position: int, memory: Memory) -> int:
    """Write what is in memory to the data from a position on; returns bytes."""
    for first, nbytes in memory.pieces():
        address = memory.load(first, nbytes)
        for table in view.extents(position + first, nbytes):
            file.write_blocks(address, table)
            address += int(table[:, 1].sum())
    return memory.nbytes


def read(file: PosixFile, view: View, position: int, memory: Memory, hints: Hints) -> int:
    """Read data from a position on to memory; returns the bytes before the end of the file."""
    total = 0
    for first, nbytes in memory.pieces():
        address, came = memory.room(first, nbytes), 0
        for table in view.extents(position + first, nbytes):
            part = file.read_blocks(address + came, table) if view.overlaps else _read(file, table, address + came, hints)
            came += part
            if part < int(table[:, 1].sum()):
                break
        memory.store(first, came, address)
        total += came
        if came < nbytes:
            break
    memory.finish(total)
    return total


def _read(file: PosixFile, table: Words, address: int, hints: Hints) -> int:
    """Read extents, one after the other to an address."""
    reach = int(table[-1].sum() - table[0, 0])
    if len(table) < 2 or hints.ds_read == DISABLE or (hints.ds_read != ENABLE and reach > _FAR * len(table)):
        return file.read_blocks(address, table)
    room, total = np.empty(min(hints.sieve_bytes, reach), np.uint8), 0
    source = array_words(room)[0]
    while len(table):
        start = int(table[0, 0])
        some = _within(table, start + len(room))
        wanted, came = int(some[:, 1].sum()), file.read(source, int(some[-1].sum()) - start, start)
        there = _within(some, start + came) if came else some[:0]
        packing.gather(there - (start, 0), source, address + total)
        part = int(there[:, 1].sum())
        total += part
        if part < wanted:
            break
        table = extents.rest(table, part) if part < int(table[:, 1].sum()) else table[:0]
    return total


def _within(table: Words, end: int) -> Words:
    """What of extents lies before an offset, beyond the first one's."""
    found = table[: int(np.searchsorted(table[:, 0], end, "left"))].copy()
    if len(found):
        found[:, 1] = np.minimum(found[:, 1], end - found[:, 0])
    return found

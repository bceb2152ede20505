"""Blocks of a file to and from memory, one system call for each, without the GIL.

A table has the offset and the length of each block, in ascending order. In memory they lie one after the other, or, placed, as far
apart as in the file.
"""

from __future__ import annotations

from ncclx_mpi.p2p.gil import enter_gil, leave_gil
from numba_kernels import types
from numba_kernels.atomics import load64
from numba_kernels.jit import kernel

_pread = types.external("pread", types.intp(types.int32, types.intp, types.intp, types.intp))
_pwrite = types.external("pwrite", types.intp(types.int32, types.intp, types.intp, types.intp))

_ROW = 16


@kernel("int64(int64, int64, int64, int64, int64)")
def _move_run(fd, memory, nbytes, offset, is_write):  # type: ignore[no-untyped-def]
    """Move one run of bytes until it cannot go on; returns the bytes that were moved."""
    done = 0
    while done < nbytes:
        if is_write != 0:
            moved = _pwrite(types.int32(fd), memory + done, nbytes - done, offset + done)
        else:
            moved = _pread(types.int32(fd), memory + done, nbytes - done, offset + done)
        if moved <= 0:
            return done
        done += moved
    return done


@kernel("int64(int64, int64, int64, int64, int64, int64, int64)")
def _move(fd, table, nblocks, memory, is_placed, base, is_write):  # type: ignore[no-untyped-def]
    """Move blocks until one cannot be moved whole; returns the bytes that were moved."""
    total = 0
    for b in range(nblocks):
        offset, nbytes = load64(table + b * _ROW), load64(table + b * _ROW + 8)
        start = memory + offset - base if is_placed != 0 else memory + total
        moved = _move_run(fd, start, nbytes, offset, is_write)
        total += moved
        if moved < nbytes:
            return total
    return total


@kernel("int64(int64, int64, int64, int64, int64)", is_entry=True)
def move_run(fd, memory, nbytes, offset, is_write):  # type: ignore[no-untyped-def]
    """Read or write a run of bytes; returns how many came before the end, or were moved before an error."""
    state = leave_gil()
    moved = _move_run(fd, memory, nbytes, offset, is_write)
    enter_gil(state)
    return moved


@kernel("int64(int64, int64, int64, int64, int64, int64, int64)", is_entry=True)
def move_blocks(fd, table, nblocks, memory, is_placed, base, is_write):  # type: ignore[no-untyped-def]
    """Read or write blocks; placed, the byte at offset `base` of the file belongs at `memory`. Returns the bytes before the first gap."""
    state = leave_gil()
    moved = _move(fd, table, nblocks, memory, is_placed, base, is_write)
    enter_gil(state)
    return moved

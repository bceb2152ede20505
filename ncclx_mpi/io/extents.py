"""Tables of extents: offset and length of pieces of a file, in ascending order."""

from __future__ import annotations

from ncclx_mpi.buffers.memory import Words
from numba_kernels.late_numpy import np


def joined(table: Words, gap: int = 0) -> Words:
    """Join extents with the next one where that begins at most `gap` bytes after all that came before; they may overlap."""
    if len(table) < 2:
        return table
    ends = np.maximum.accumulate(table[:, 0] + table[:, 1])
    first = np.flatnonzero(np.concatenate([[True], table[1:, 0] > ends[:-1] + gap]))
    last = np.append(first[1:], len(table)) - 1
    starts = table[first, 0]
    return np.stack([starts, ends[last] - starts], axis=1)


def touching(table: Words) -> Words:
    """Join extents with the next one where that begins at their end."""
    if len(table) < 2:
        return table
    first = np.flatnonzero(np.concatenate([[True], table[1:, 0] != (table[:, 0] + table[:, 1])[:-1]]))
    return np.stack([table[first, 0], np.add.reduceat(table[:, 1], first)], axis=1)


def union(tables: list[Words], gap: int = 0) -> Words:
    """The extents that several tables cover together."""
    table = np.concatenate(tables)
    return joined(table[np.argsort(table[:, 0], kind="stable")], gap)


def rest(table: Words, done: int) -> Words:
    """What is left of extents after their first `done` bytes, of which there are more."""
    ends = np.cumsum(table[:, 1])
    index = int(np.searchsorted(ends, done, "right"))
    left = table[index:].copy()
    skipped = done - int(ends[index] - table[index, 1])
    left[0] += (skipped, -skipped)
    return left

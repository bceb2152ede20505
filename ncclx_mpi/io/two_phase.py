"""All ranks access a file together: some of them, the aggregators, read and write large pieces for all (two-phase collective buffering).

What all access, from the first byte to the last, is cut into one domain for each aggregator, and each domain into windows of
``cb_buffer_size`` bytes. One window of each domain at a time, for a write::

    rank 0   aa..  ..bb         1. every rank sends each aggregator what it has in its window: where, and the bytes
    rank 1   ..cc  dd..         2. the aggregator puts the bytes into a buffer, and writes what they cover, in few calls
             ----  ----
    windows  aacc  ddbb         for a read, the other way round

T = windows * (3 collectives + bytes of a window through memory twice + one access of a window); a rank holds what it has in one
window of each domain, an aggregator one window and what it is made of. Holes are never written, so that they keep what others
wrote there.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

from ncclx_mpi import collectives, errors
from ncclx_mpi.buffers import packing
from ncclx_mpi.buffers.memory import Words, array_words
from ncclx_mpi.io import agreement, extents, independent
from ncclx_mpi.io.hints import ENABLE, Hints
from ncclx_mpi.io.memory import Memory
from ncclx_mpi.io.posix import PosixFile
from ncclx_mpi.io.view import View
from ncclx_mpi.p2p.engine import NativeComm
from numba_kernels.late_numpy import np
from numba_kernels.rows import NamedTuple

_GAP = 64 << 10
"""Holes of up to this many bytes are read too."""

_FEW = 16
"""Up to so many blocks of a rank take it less time than collectives do."""

SMALL = 1024
"""Blocks of at least so many bytes are written sooner by as many calls, to the copy of the file that a node has in memory."""

ANY = 1 << 60
"""Where nodes have copies of their own, and each call may go over a network, blocks of any length are."""

_MANY_RANKS = 4
"""Up to so many ranks read the holes between their small blocks sooner than they exchange what is in them."""


def write(comm: NativeComm, file: PosixFile, view: View, position: int, memory: Memory, hints: Hints) -> int:
    """Write what is in memory to the data from a position on; returns bytes. Collective.

    Raises
    ------
    Exception
        A rank could not write, of the class that this has there.
    """
    access = _Access(comm, view, position, memory, memory.nbytes, hints)
    if not access.is_together(hints.cb_write, 1):
        return independent.write(file, view, position, memory)
    failure: Exception | None = None
    for window in access.windows():
        try:
            _write_window(access, file, window, is_wanted=failure is None)
        except errors.Exception as error:
            if not window.is_exchanged:
                raise
            failure = failure or error
    agreement.succeed(comm, failure, "a collective write")
    return memory.nbytes


def read(comm: NativeComm, file: PosixFile, view: View, position: int, memory: Memory, hints: Hints) -> int:
    """Read data from a position on to memory; returns the bytes before the end of the file. Collective; raises as :func:`write`."""
    nbytes = min(max(view.below(file.size) - position, 0), memory.nbytes) if memory.nbytes else 0
    access = _Access(comm, view, position, memory, nbytes, hints)
    if not access.is_together(hints.cb_read, _MANY_RANKS):
        return independent.read(file, view, position, memory, hints)
    failure: Exception | None = None
    for window in access.windows():
        failure = _read_window(access, file, window, failure)
    agreement.succeed(comm, failure, "a collective read")
    memory.finish(nbytes)
    return nbytes


class _Window:
    """One step: a window of each domain.

    Attributes
    ----------
    spans
        For each aggregator, where the data is that this rank has in its window: first and last byte of its access.
    start, end
        Offsets of this rank's own window, if it is an aggregator.
    is_exchanged
        Whether all ranks have gone through the collectives of the step.
    """

    def __init__(self, spans: Words, start: int, end: int) -> None:
        self.spans = spans
        self.start = start
        self.end = end
        self.is_exchanged = False


class _Access:
    """What this rank accesses in a collective, and how the whole is cut."""

    def __init__(self, comm: NativeComm, view: View, position: int, memory: Memory, nbytes: int, hints: Hints) -> None:
        self.comm = comm
        self.view = view
        self.position = position
        self.memory = memory
        self.nbytes = nbytes
        self._hints = hints
        self._is_near = all(map(comm.engine.is_near, comm.world_ranks))
        table = collectives.gather_words(comm, *view.span(position, nbytes), view.nblocks(nbytes), nbytes)
        used = self._used = [row for row in table if row[2] > 0]
        count = hints.cb_nodes
        self.aggregators = [k * comm.size // count for k in range(count)]
        unit = hints.striping_unit
        self._step = -(-hints.cb_buffer_size // unit) * unit
        self._low = min((row[0] for row in used), default=0) // unit * unit
        self._high = max((row[1] for row in used), default=0)
        self._domain = -(-(self._high - self._low) // (count * unit)) * unit
        self.buffer = np.empty(0, np.uint8)

    def is_together(self, choice: str, least_ranks: int) -> bool:
        """Whether aggregators are worth it, or a hint, which may be `automatic` too, says so. All ranks decide alike.

        They are if what ranks access is interleaved, in many blocks; on one node, where all have the same copy of the file in memory, in
        small ones of more ranks than `least_ranks`.
        """
        comm, used = self.comm, self._used
        if choice == ENABLE or not used:
            return bool(used)
        nbytes, nblocks = sum(row[3] for row in used), sum(row[2] for row in used)
        is_worth_it = nbytes < SMALL * nblocks and comm.size > least_ranks if self._is_near else True
        return (
            is_worth_it and max(row[2] for row in used) > _FEW and any(low[1] > high[0] for low, high in itertools.pairwise(used))
        )

    def windows(self) -> Iterator[_Window]:
        """The steps, the same number on all ranks."""
        comm, count = self.comm, len(self.aggregators)
        if comm.rank in self.aggregators:
            self.buffer = np.empty(min(self._step, self._domain), np.uint8)
        domains = self._low + np.arange(count) * self._domain
        ends = np.minimum(domains + self._domain, self._high)
        for first in range(0, self._domain, self._step):
            starts = np.minimum(domains + first, ends)
            stops = np.minimum(starts + self._step, ends)
            spans = np.array(
                [[self._place(a), self._place(b)] for a, b in zip(starts.tolist(), stops.tolist(), strict=True)], np.int64
            )
            own = self.aggregators.index(comm.rank) if comm.rank in self.aggregators else None
            yield _Window(spans, *((0, 0) if own is None else (int(starts[own]), int(stops[own]))))

    def _place(self, offset: int) -> int:
        """How much of this rank's access lies before an offset."""
        return min(max(self.view.below(offset) - self.position, 0), self.nbytes) if self.nbytes else 0

    def rows(self, window: _Window) -> list[Words]:
        """Tell each aggregator which extents this rank has in its window; returns what all ranks have in this rank's window."""
        comm, size = self.comm, self.comm.size
        mine = [np.empty((0, 2), np.int64)] * size
        for rank, (first, last) in zip(self.aggregators, window.spans.tolist(), strict=True):
            if first < last:
                mine[rank] = np.concatenate(list(self.view.extents(self.position + first, last - first)))
        sent = np.array([table.nbytes for table in mine], np.int64)
        came = np.empty(size, np.int64)
        collectives.alltoall(comm, array_words(sent)[0], array_words(came)[0], sent.itemsize)
        packed, room = np.concatenate(mine), np.empty((int(came.sum()) // 16, 2), np.int64)
        _move(
            comm,
            _packed(packed, sent),
            _packed(room, came),
        )
        return np.split(room, (np.cumsum(came) // 16)[:-1])

    def part(self, window: _Window) -> _Bytes:
        """The bytes of this rank's access that lie in the windows."""
        counts, offsets = np.zeros(self.comm.size, np.int64), np.zeros(self.comm.size, np.int64)
        counts[self.aggregators] = window.spans[:, 1] - window.spans[:, 0]
        if self.memory.address:
            offsets[self.aggregators] = window.spans[:, 0]
            return _Bytes(self.memory.address, counts, offsets, None)
        return _room(counts)


class _Bytes(NamedTuple):
    """Bytes for each rank, or of each: how many, and where from an address on, in what keeps them alive."""

    address: int
    counts: Words
    offsets: Words
    owner: object


def _write_window(access: _Access, file: PosixFile, window: _Window, *, is_wanted: bool) -> None:
    tables = access.rows(window)
    part = access.part(window)
    if part.owner is not None:
        for rank, (first, last) in zip(access.aggregators, window.spans.tolist(), strict=True):
            access.memory.pack(first, last - first, part.address + int(part.offsets[rank]))
    came = _all(tables)
    _move(access.comm, part, came)
    window.is_exchanged = True
    if not came.counts.any() or not is_wanted:
        return
    buffer = array_words(access.buffer)[0]
    for table, offset in zip(tables, came.offsets.tolist(), strict=True):
        packing.scatter(table - (window.start, 0), came.address + offset, buffer)
    file.write_blocks(buffer, extents.union(tables), window.start)


def _read_window(access: _Access, file: PosixFile, window: _Window, failure: Exception | None) -> Exception | None:
    tables = access.rows(window)
    wanted = _all(tables)
    if wanted.counts.any() and failure is None:
        buffer = array_words(access.buffer)[0]
        try:
            _read_union(access.comm, file, extents.union(tables, _GAP), buffer, window.start)
        except errors.Exception as error:
            failure = error
        for table, offset in zip(tables, wanted.offsets.tolist(), strict=True):
            packing.gather(table - (window.start, 0), buffer, wanted.address + offset)
    part = access.part(window)
    _move(access.comm, wanted, part)
    if part.owner is not None:
        for rank, (first, last) in zip(access.aggregators, window.spans.tolist(), strict=True):
            access.memory.store(first, last - first, part.address + int(part.offsets[rank]))
    return failure


def _read_union(comm: NativeComm, file: PosixFile, table: Words, buffer: int, start: int) -> None:
    came, wanted = file.read_blocks(buffer, table, start), int(table[:, 1].sum())
    if came < wanted:
        errors.fail(
            errors.ERR_IO,
            f"rank {comm.rank}: the file ends before byte {int(table[-1].sum())}, which another rank still found there: it was cut, or not "
            "synchronised (File.Sync) since it was written",
        )


def _all(tables: list[Words]) -> _Bytes:
    """Room for the bytes of extents of all ranks."""
    return _room(np.array([int(table[:, 1].sum()) for table in tables], np.int64))


def _room(counts: Words) -> _Bytes:
    """Room for so many bytes."""
    return _packed(np.empty(max(int(counts.sum()), 1), np.uint8), counts)


def _packed(memory: np.ndarray[Any, Any], counts: Words) -> _Bytes:
    """So many bytes in memory that has them one behind the other."""
    return _Bytes(array_words(memory)[0], counts, np.cumsum(counts) - counts, memory)


def _move(comm: NativeComm, source: _Bytes, target: _Bytes) -> None:
    """Bytes for each rank to where they come to there."""
    collectives.alltoallv(
        comm,
        source.address,
        source.counts.tolist(),
        source.offsets.tolist(),
        target.address,
        target.counts.tolist(),
        target.offsets.tolist(),
    )

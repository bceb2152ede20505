"""What executors report to hosts of pairs of ranks that moved nothing, in pinned memory of the arena.

::

    an executor's report:  | rank 0: outgoing to 0, 1, ...  incoming from 0, 1, ... | rank 1: ... | ...        a FAULT each
                           | left by rank 0, 1, ...                                                            a word each

Every rank has room for a report; that of an executor is used. It writes both records of a pair that is at fault, and leaves those of
others alone; a rank reads its own records of all executors, raises, and sets their word ``fault`` back. So nothing is lost if the host
looks only after many executions, as those of a graph, and nobody waits for anybody. An executor that has done with it before others have
looked keeps the room until all have left it.

============  ======================  ============  ================================================================================
word          written by              read by       order and meaning
============  ======================  ============  ================================================================================
``FAULT``     kernels of an executor  its rank      before the word that says that the execution is over: what went wrong last
``fault``     its rank, zero          nobody        plain: it was told
``left``      its rank                an executor   plain: calls after which it has looked at its records
============  ======================  ============  ================================================================================
"""

from __future__ import annotations

import ctypes
import functools
import weakref
from collections.abc import Sequence

import numpy as np

from ncclx_mpi.buffers.memory import view
from ncclx_mpi.extensions.alltoallv_dynamic.faults import Fault
from ncclx_mpi.gpu_memory import staging
from ncclx_mpi.p2p.engine import NativeComm
from numba_kernels.alltoallv.layout import FAULT
from numba_kernels.atomics import load_acquire
from numba_kernels.cuda.driver import Driver
from numba_kernels.jit import entry as _entry
from numba_kernels.jit import kernel
from numba_kernels.layout import WORD

entry = functools.cache(_entry)

OUTGOING, INCOMING = 0, 1


def fault_offset(size: int, rank: int, direction: int, peer: int) -> int:
    """Where in a report `rank` finds a pair of its own: with `peer` as the target, or as the source."""
    return int(((2 * rank + direction) * size + peer) * FAULT.total)


def left_offset(size: int, rank: int) -> int:
    """Where in a report `rank` says that it has left."""
    return fault_offset(size, size, OUTGOING, 0) + WORD * rank


def report_nbytes(size: int) -> int:
    """Bytes of a report."""
    return left_offset(size, size)


@kernel("int64(int64, int64, int64, int64)", is_entry=True, nogil=False)
def _is_any(addresses, count, step, records):  # type: ignore[no-untyped-def]
    """Whether one of the records at `count` addresses is of a fault."""
    for index in range(count):
        report = load_acquire(addresses + WORD * index)
        for record in range(records):
            if load_acquire(report + record * step + FAULT.fault) != 0:
                return 1
    return 0


class Reports:
    """The records of one rank in the reports of all executors.

    Parameters
    ----------
    rank, size
        Whose they are, among how many.
    addresses
        Of the reports.
    """

    def __init__(self, rank: int, size: int, addresses: Sequence[int]) -> None:
        self._rank = rank
        self._left = [address + left_offset(size, rank) for address in addresses]
        own = [address + fault_offset(size, rank, OUTGOING, 0) for address in addresses]
        self._addresses = np.array(own, np.int64)
        self._arguments = self._addresses.ctypes.data, len(own), FAULT.total, 2 * size
        nbytes = 2 * size * FAULT.total
        self._records = [view(address, nbytes).view(np.int64).reshape(2, size, -1) for address in own]

    def take(self) -> list[Fault]:
        """Faults of this rank's pairs since it was last asked."""
        if not entry(_is_any)(*self._arguments):
            return []
        found = {}
        for records in self._records:
            seen = records.copy()  # kernels may write meanwhile
            for direction, peer in np.argwhere(seen[:, :, FAULT.fault // WORD]).tolist():
                pair = (self._rank, peer) if direction == OUTGOING else (peer, self._rank)
                found[pair] = Fault(*pair, *seen[direction, peer].tolist())
                records[direction, peer, FAULT.fault // WORD] = 0
        return list(found.values())

    def leave(self) -> None:
        """Say that they were looked at after one call more."""
        for address in self._left:
            view(address, WORD).view(np.int64)[0] += 1


class Report:
    """Room for the report of a rank, should it be an executor.

    Attributes
    ----------
    address
        Where it is.
    calls
        How many calls have used it: none if the rank is no executor.
    """

    def __init__(self, driver: Driver, size: int) -> None:
        _let_go()
        self._lease = staging.lease(driver, report_nbytes(size))
        self._size = size
        self.calls = 0
        self.address = self._lease.address
        ctypes.memset(self.address, 0, report_nbytes(size))

    def retire(self) -> None:
        """Write into it no more: it goes when all ranks have left it."""
        _retired.append(self)

    @property
    def is_left(self) -> bool:
        """Whether all ranks have looked at it after its last call."""
        return bool((view(self.address + left_offset(self._size, 0), WORD * self._size).view(np.int64) >= self.calls).all())

    def offset_in(self, comm: NativeComm) -> int:
        """Where the others find it in the arena; -1 if it is not there."""
        arena = comm.engine.arena
        return self.address - arena.base if arena.base <= self.address < arena.base + arena.nbytes else -1


_retired: list[Report] = []
"""Reports of executors that have done with them."""


def _let_go() -> None:
    """Give back the room of reports that all have left."""
    _retired[:] = [report for report in _retired if not report.is_left]


_reports: weakref.WeakKeyDictionary[NativeComm, tuple[Driver, Report]] = weakref.WeakKeyDictionary()


def report_of(comm: NativeComm, driver: Driver) -> Report:
    """The report of this rank for the blocking calls of a communicator, of which one is under way at a time."""
    known = _reports.get(comm)
    if known is None or known[0] is not driver:
        known = _reports[comm] = driver, Report(driver, comm.size)
        weakref.finalize(comm, known[1].retire).atexit = False
    return known[1]

"""Alltoallv_dynamic in streams: everything but the counts is agreed on once, and each start reads the counts when its stream has come to it.

::

    init     all ranks show their arrays; the executors map them, make the tables of
    :mod:`ncclx_mpi.extensions.alltoallv_dynamic.device.segments`, load the kernel start    every rank   ready
    |                  wait for done
             executor     ready;  wait for ready of all ranks       |  PLAN_AND_COPY   |  done;  wait for done of other executors

A start is a call of :mod:`ncclx_mpi.device.prepared`, with its words, its order among the other calls and its watch over dead peers; but
nothing is copied through the heap, since the kernel knows the arrays itself. Everything that is enqueued is the same each time, so
that a captured start can be replayed, and takes what the metadata say then. Faults stay in the reports until a host looks.
 T = as in :mod:`ncclx_mpi.extensions.alltoallv_dynamic.device.execution`; a batch of stream memory operations on each rank, two and a launch
on an executor.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Sequence
from typing import Any

from ncclx_mpi import errors
from ncclx_mpi.device.agreement import Attempt
from ncclx_mpi.device.enqueued import open_stream
from ncclx_mpi.device.members import Words
from ncclx_mpi.device.offers import Array
from ncclx_mpi.device.prepared import Prepared, Task
from ncclx_mpi.device.process import current, process
from ncclx_mpi.device.station import Reach
from ncclx_mpi.device.watch import Call
from ncclx_mpi.extensions.alltoallv_dynamic import faults
from ncclx_mpi.extensions.alltoallv_dynamic.device import segments
from ncclx_mpi.extensions.alltoallv_dynamic.device.execution import KIND, Execution, bring
from ncclx_mpi.extensions.alltoallv_dynamic.device.reports import Report, Reports
from ncclx_mpi.extensions.alltoallv_dynamic.device.segments import ARRAYS, Shown
from ncclx_mpi.extensions.alltoallv_dynamic.operands import Operands
from ncclx_mpi.gpu_memory.peers import Unreachable
from numba_kernels.alltoallv.layout import offer_bytes
from numba_kernels.cuda.driver import DriverError, Launch


class Enqueued:
    """A call that can be started in streams, on one rank. Making one is collective.

    Parameters
    ----------
    prepared
        The communicator.
    operands
        What this rank passes; borrowed until :meth:`release`.

    Raises
    ------
    Exception
        ERR_OTHER, on all ranks: one of them cannot take part, and why. ERR_TRUNCATE: the ranks have different numbers of segments.
    """

    def __init__(self, prepared: Prepared, operands: Operands) -> None:
        self._prepared, self._operands = prepared, operands
        self._process = process(prepared.driver)
        self._execution: Execution | None = None
        self._reach = Reach(self._process.ipc, prepared.comm.rank)
        number = _numbers[prepared] = _numbers.get(prepared, 0) + 1
        calls = [Call(KIND, 0, offer_bytes(operands.segments), number, is_captured) for is_captured in (False, True)]
        self._tasks = [Task(call, 0, launches=self._launches) for call in calls]
        attempt = Attempt(prepared.comm, faults.NAME)
        mine = segments.nothing(prepared.comm.size)
        with attempt, current(prepared.driver, prepared.device):
            self._report = Report(prepared.driver, prepared.comm.size)
            mine = self._describe()
        ranks = [segments.read(row) for row in attempt.agree(mine)]
        self._check(ranks)
        base = prepared.comm.engine.arena.base
        self._reports = Reports(prepared.comm.rank, len(ranks), [base + ranks[executor].report for executor in prepared.order])
        with attempt, current(prepared.driver, prepared.device):
            if prepared.members:
                self._report.calls = 1
                self._become_executor(ranks)
        attempt.agree(mine[:0])
        prepared.lasting.add(self)

    def _describe(self) -> Words:
        """What the others need to know; DriverError if this rank cannot take part."""
        prepared = self._prepared
        arrays = self._arrays()
        places = [None if array is None else self._process.ipc.place(*array) for array in arrays]
        if places.count(None) > arrays.count(None):
            raise DriverError(0, "an array is in memory that processes cannot share (cudaMallocAsync, managed)")
        report = self._report.offset_in(prepared.comm)
        return segments.describe(self._operands, os.getpid(), self._process.uuid(prepared.device), report, places)

    def _arrays(self) -> tuple[Array | None, ...]:
        """The arrays of this rank; DriverError if one is not where it should be."""
        prepared = self._prepared
        if self._operands.is_empty:
            return (None,) * len(ARRAYS)
        brought = bring(prepared.comm, self._operands)
        if brought is None:
            raise DriverError(0, "not all of its arrays are a GPU's, or there are too many ranks or segments")
        if brought.device != prepared.device:
            raise DriverError(
                0, f"its arrays are on GPU {brought.device}, and the communicator was prepared on GPU {prepared.device}"
            )
        return brought.arrays

    def _check(self, ranks: Sequence[Shown]) -> None:
        counts = [shown.numbers["segments"] for shown in ranks]
        other = next((rank for rank, count in enumerate(counts) if count != counts[0]), 0)
        if other:
            errors.fail(
                errors.ERR_TRUNCATE,
                f"rank {self._prepared.comm.rank}: {faults.NAME}: rank 0 has {counts[0]} split lengths, rank {other} has {counts[other]}; "
                "all ranks must have the same number of segments",
            )

    def _become_executor(self, ranks: Sequence[Shown]) -> None:
        """Map what the ranks have shown, and make ready what is launched at each start."""
        prepared, executor = self._prepared, self._process.executor(self._prepared.device)
        try:
            self._execution = Execution(executor, ranks, prepared.members, self._reach, self._report.address)
        except Unreachable as reason:
            raise DriverError(0, str(reason)) from reason
        if not self._process.ipc.borrow(self._reach.mappings):
            self._execution = None
            raise DriverError(0, "memory of a peer was freed meanwhile")
        executor.drain()

    def start(self, stream: Any) -> None:
        """Enqueue it in a stream, then raise what had gone wrong with pairs of this rank before.

        Raises
        ------
        Exception
            ERR_TRUNCATE, ERR_TYPE: pairs of this rank had moved nothing; this start is enqueued nevertheless. Others: it is not; see
            :func:`~ncclx_mpi.device.enqueued.open_stream` and :meth:`~ncclx_mpi.device.prepared.Prepared.enqueue`.
        """
        prepared = self._prepared
        opened, is_captured = open_stream(prepared, faults.NAME, stream)
        task = self._tasks[is_captured]
        found = self._reports.take()
        prepared.enqueue(task, opened, task.call)
        faults.raise_if_any(prepared.comm.rank, found)

    def _launches(self, at: int) -> Sequence[Launch]:
        if self._execution is None:
            return ()
        launch = self._execution.launch
        return [Launch(launch.kernel, launch.blocks, launch.threads, launch.arguments)]

    def check(self) -> None:
        """Raise what went wrong so far, with the communicator or with pairs of this rank."""
        self._prepared.check()
        if self in self._prepared.lasting:
            faults.raise_if_any(self._prepared.comm.rank, self._reports.take())

    def release(self) -> None:
        """Wait until streams have passed it, then give everything back, if the communicator has not done so when it was freed.

        Graphs with it are not replayed any more.
        """
        lasting = self._prepared.lasting
        if self in lasting:
            self._prepared.wait()
            lasting.discard(self)
            self.let_go()

    def let_go(self) -> None:
        """Give everything back, now that streams have passed it."""
        self._reports.leave()
        self._report.retire()
        if self._execution is not None:
            self._process.ipc.give_back(self._reach.mappings)
            self._execution = None


_numbers: weakref.WeakKeyDictionary[Prepared, int] = weakref.WeakKeyDictionary()
"""How many calls were made for a communicator: ranks that start different ones are told."""

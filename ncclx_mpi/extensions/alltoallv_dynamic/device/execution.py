"""Alltoallv_dynamic on device arrays of one node: counts are read on the GPUs, when all ranks are ready, and nowhere else.

::

    rank r    shows where its data, metadata and rooms are  ->  stream: ready     ... done  ->  looks at the reports of its pairs
    executor                waits for all ready  ->  PLAN_AND_COPY  ->  done

The kernel reads split lengths, indices and block lengths of every source, judges each pair, and moves what is there straight from send
buffers to areas. A pair that is at fault moves nothing, and its ``FAULT`` is written to pinned memory of the arena that both of its ranks
read when the call is over.

Everything that the kernel needs but the counts is in tables that stay (:mod:`ncclx_mpi.extensions.alltoallv_dynamic.device.segments`), so a
call on arrays that have met before costs a rank one stream operation, and an executor a launch and two of them.

T = alpha + T(plan) + (bytes that are there) * 2 / bandwidth; the plan takes some 3 us by estimate
(:mod:`numba_kernels.alltoallv.plan_and_copy`).
"""

from __future__ import annotations

from collections.abc import Sequence

from ncclx_mpi.algorithms import UNFORCED
from ncclx_mpi.collectives.shm_oneshot import ALLTOALL
from ncclx_mpi.device.executor import BLOCKS_A_PROCESSOR, Executor, Launch
from ncclx_mpi.device.members import Words, executors_of
from ncclx_mpi.device.offers import Array
from ncclx_mpi.device.process import Process
from ncclx_mpi.device.station import Plan, Reach, Work, station
from ncclx_mpi.extensions.alltoallv_dynamic import faults
from ncclx_mpi.extensions.alltoallv_dynamic.device import segments
from ncclx_mpi.extensions.alltoallv_dynamic.device.reports import Reports, report_of
from ncclx_mpi.extensions.alltoallv_dynamic.device.segments import Shown, Tables
from ncclx_mpi.extensions.alltoallv_dynamic.operands import Integers, Operands, Rooms
from ncclx_mpi.gpu_memory.peers import Place
from ncclx_mpi.p2p.engine import NativeComm
from ncclx_mpi.p2p.layout import OPERATIONS
from numba_kernels.alltoallv.layout import offer_bytes
from numba_kernels.alltoallv.plan_and_copy import BLOCK, PLAN_AND_COPY
from numba_kernels.cuda.driver import Driver
from numba_kernels.rows import NamedTuple
from transports.shm.slots import DEVICE_RANKS

KIND = OPERATIONS.index(faults.NAME)
_MOST_TABLES = 64 << 20
"""Bytes of device memory up to which tables are made; beyond, splits are so many that planning is no work for few threads."""


def carry_out(comm: NativeComm, operands: Operands) -> bool:
    """Carry a call out on the devices if all ranks can; else nothing has been done.

    Every rank that has an array on a device calls it. All arrays are borrowed until it returns.

    Returns
    -------
    bool
        Whether it is done. False: all ranks go the host's way.

    Raises
    ------
    Exception
        ERR_TRUNCATE: pairs of this rank moved nothing, and the communicator stays usable; or ranks have different numbers of segments,
        and it is broken. Otherwise as :func:`ncclx_mpi.device.collectives.carry_out`.
    """
    brought = bring(comm, operands) if comm.slot >= 0 and comm.forced[ALLTOALL] == UNFORCED else None
    if brought is None:
        return False
    plan = station(comm, brought.driver).carry_out(_Call(comm, operands, brought))
    if plan is None:
        return False
    if plan.keep.execution is not None:
        report_of(comm, brought.driver).calls += 1
    found = plan.keep.reports.take()
    plan.keep.reports.leave()
    faults.raise_if_any(comm.rank, found)
    return True


class Brought(NamedTuple):
    """A rank's arrays, all on one GPU.

    Attributes
    ----------
    driver, device, streams
        The driver, the GPU, and the streams in which the arrays are used.
    arrays
        By :data:`~ncclx_mpi.extensions.alltoallv_dynamic.device.segments.ARRAYS`; None for what is empty or not there.
    """

    driver: Driver
    device: int
    streams: tuple[int, ...]
    arrays: tuple[Array | None, ...]


def bring(comm: NativeComm, operands: Operands) -> Brought | None:
    """What this rank brings to the devices; None if they are not asked."""
    if comm.size > DEVICE_RANKS or segments.least_nbytes(comm.size, operands.segments) > _MOST_TABLES:
        return None
    memories = [each.device for each in operands.everything if each.nbytes]
    found = [memory for memory in memories if memory is not None]
    if len(found) < len(memories) or len({memory.device for memory in found}) != 1:
        return None
    streams = tuple(dict.fromkeys(memory.stream.handle for memory in found))
    return Brought(found[0].driver, found[0].device, streams, tuple(map(_array, operands.everything)))


def _array(operand: Rooms | Integers) -> Array | None:
    if operand.device is None or not operand.nbytes:
        return None
    return Array(operand.first if isinstance(operand, Rooms) else operand.address, operand.device.known)


class Execution:
    """What an executor launches, each time the same.

    Parameters
    ----------
    executor
        Of the GPU; its stream has the uploads before all launches.
    ranks, targets
        What all ranks have shown, and those on the GPU.
    reach
        Maps their arrays.
    report
        Address of the executor's report.

    Attributes
    ----------
    launch
        The kernel and what it works on.
    """

    def __init__(self, executor: Executor, ranks: Sequence[Shown], targets: Sequence[int], reach: Reach, report: int) -> None:
        def at(rank: int, name: str) -> int:
            place = ranks[rank].places[name]
            return 0 if place is None else reach.address(rank, ranks[rank].pid, ranks[rank].uuid, place)

        # As many as run at once: those that come later would plan again, when the first ones have copied already.
        blocks = executor.blocks // BLOCKS_A_PROCESSOR * PLAN_AND_COPY.blocks_a_processor
        tables = Tables(ranks, targets, blocks)
        self._room = executor.room(tables.nbytes)
        base = self._room.address
        executor.upload(base, tables.uploaded(base, at, report))
        blocks = min(blocks, tables.pairs * tables.pieces)
        self.launch = executor.prepare(Launch(PLAN_AND_COPY, blocks, BLOCK, tables.arguments(base)))


class Kept(NamedTuple):
    """What a plan keeps: where faults are reported, and what an executor launches."""

    reports: Reports
    execution: Execution | None = None


class _Call(Work):
    """One rank's part in a blocking call."""

    kind, root, name = KIND, 0, faults.NAME

    def __init__(self, comm: NativeComm, operands: Operands, brought: Brought) -> None:
        self._comm = comm
        self._operands = operands
        self.driver, self.device, self.streams, self.arrays = brought
        self.nbytes = offer_bytes(operands.segments)
        choice = operands.choice
        self.key = (
            self.arrays, operands.form, operands.segments, operands.row_step, operands.send.itemsize, choice.first, choice.step,
            *(integers.kind for integers in operands.metadata), choice.indices.length,
            *(tuple(values) for rooms in (operands.send, operands.recv) for values in (rooms.capacities, rooms.addresses)),
        )  # fmt: skip

    def describe(self, pid: int, uuid: bytes, places: Sequence[Place | None]) -> Words | None:
        """The descriptor of this rank."""
        report = report_of(self._comm, self.driver).offset_in(self._comm)
        return None if report < 0 else segments.describe(self._operands, pid, uuid, report, places)

    def plan(self, shown: Words, rank: int, process: Process) -> Plan:
        """What this rank executes, and where the executors report."""
        ranks = [segments.read(row) for row in shown]
        executors = executors_of([other.uuid for other in ranks])
        mask = sum(1 << executor for executor in set(executors))
        base = self._comm.engine.arena.base
        reports = Reports(rank, len(ranks), [base + ranks[executor].report for executor in sorted(set(executors))])
        if executors[rank] != rank:
            return Plan(mask, None, [], Kept(reports))
        reach = Reach(process.ipc, rank)
        targets = [other for other, its in enumerate(executors) if its == rank]
        execution = Execution(process.executor(self.device), ranks, targets, reach, base + ranks[rank].report)
        return Plan(mask, [execution.launch], reach.mappings, Kept(reports, execution))

"""Blocking collectives on device arrays of one node: agreed on the board, carried out by kernels on mapped memory.

Which calls go this way is what all ranks know, or find out together: communicators with a slot and at most ``DEVICE_RANKS`` ranks, of
which every one has all its arrays in exportable memory of one GPU. Everything else is left to the host, by way of pinned memory.

A collective on arrays that have met before costs a rank one stream operation, and an executor a launch and two of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ncclx_mpi import errors
from ncclx_mpi.algorithms import AUTO
from ncclx_mpi.device.copies import At, copies, wrong_pair
from ncclx_mpi.device.executor import Executor, Launch, on_table
from ncclx_mpi.device.members import Member, Words, describe, executors_of, read
from ncclx_mpi.device.offers import Offer, Operand, offer
from ncclx_mpi.device.process import Process
from ncclx_mpi.device.reductions import reductions, wrong_sum
from ncclx_mpi.device.station import Plan, Reach, Work, station
from ncclx_mpi.p2p.engine import NativeComm
from ncclx_mpi.p2p.layout import OPERATIONS
from numba_kernels.cuda.copy import COPY, pack_rows
from numba_kernels.cuda.reduce_rows import pack_reductions, rows_kernel
from transports.cuda_ipc.transport import Place
from transports.shm.slots import DEVICE_RANKS


def carry_out(comm: NativeComm, name: str, sent: Operand, received: Operand, root: int, op: str | None) -> bool:
    """Carry a blocking collective out on the devices if all ranks can; else nothing has been done.

    Every rank that has an array on a device calls it, with what :func:`ncclx_mpi.device.offers.offer` takes. The arrays are borrowed
    until it returns; what they hold counts as of the point that their streams have reached.

    Returns
    -------
    bool
        Whether it is done. False: all ranks go the host's way.

    Raises
    ------
    Exception
        ERR_TRUNCATE: ranks disagree about counts. ERR_PROC_FAILED: a rank died. ERR_OTHER: the driver failed, or ranks call
        different collectives. The communicator takes no more collectives then.
    """
    if comm.slot < 0 or comm.size > DEVICE_RANKS:
        return False
    made = offer(comm.rank, comm.size, name, sent, received, root, op)
    if made is None or comm.forced[made.task.kind] != AUTO:
        return False
    return station(comm, made.driver).carry_out(_Collective(made)) is not None


class _Collective(Work):
    """An offer, and what comes of the offers of all."""

    def __init__(self, made: Offer) -> None:
        self._made = made
        self.driver, self.device, self.streams = made.driver, made.device, made.streams
        self.kind, self.root, self.nbytes = made.task.kind, made.task.root, made.task.nbytes
        self.name = OPERATIONS[self.kind]
        self.arrays = made.send, made.recv
        self.key = made.send, made.recv, made.task

    def describe(self, pid: int, uuid: bytes, places: Sequence[Place | None]) -> Words:
        """The descriptor of this rank."""
        send, recv = places
        return describe(self._made.task, pid, uuid, send, recv)

    def plan(self, shown: Words, rank: int, process: Process) -> Plan:
        """What this rank executes."""
        members = [read(row) for row in shown]
        self._check(members, rank)
        executors = executors_of([member.uuid for member in members])
        mask = sum(1 << executor for executor in set(executors))
        if executors[rank] != rank:
            return Plan(mask, None, [])
        reach = Reach(process.ipc, rank)

        def at(other: int, which: str) -> int:
            member = members[other]
            place = member.recv if which == "recv" else member.source
            assert place is not None
            return reach.address(other, member.pid, member.uuid, place)

        launches = list(_launches(self._made, members, executors, rank, process.executor(self.device), at))
        return Plan(mask, launches, reach.mappings)

    def _check(self, members: Sequence[Member], rank: int) -> None:
        """Raise on all ranks if they disagree about counts."""
        other = next((other for other, member in enumerate(members) if member.operation != members[0].operation), 0)
        if other:
            errors.fail(
                errors.ERR_OP,
                f"rank {rank}: {self.name}: rank {other} uses another operation or element type than rank 0; "
                "all ranks must use the same",
            )
        if self._made.task.operation:
            sums = wrong_sum(self.kind, members)
            if sums is not None:
                errors.fail(
                    errors.ERR_TRUNCATE,
                    f"rank {rank}: {self.name}: the ranks get {sums[0]} bytes together, and each gives {sums[1]}; counts must add up",
                )
            return
        pair = wrong_pair(members)
        if pair is not None:
            source, target, sent, expected = pair
            errors.fail(
                errors.ERR_TRUNCATE,
                f"rank {rank}: {self.name}: rank {source} sends {sent} bytes to rank {target}, which expects {expected}; "
                "counts and datatypes must agree between the ranks",
            )


def _launches(
    made: Offer, members: Sequence[Member], executors: Sequence[int], me: int, executor: Executor, at: At
) -> Iterator[Launch]:
    """What executor `me` runs."""
    if made.task.operation and len(members) > 1:
        work = reductions(made.task.kind, made.task.itemsize, members, executors, me, at)
        if work:
            op, element = made.task.operation
            kernel = rows_kernel(op, element, len(members), len(work[0].targets))
            piece = executor.piece(sum(each.elements for each in work) * made.task.itemsize) // made.task.itemsize
            yield executor.prepare(on_table(kernel, pack_reductions(work, made.task.itemsize, piece)))
        return
    if made.task.operation:
        moves = [(made.task.nbytes, at(0, "source"), [at(0, "recv")])]
    else:
        moves = list(copies(members, [rank for rank, other in enumerate(executors) if other == me], at))
    moves = [move for move in moves if [move[1]] != move[2]]
    if moves:
        table = pack_rows(moves, executor.piece(sum(nbytes for nbytes, _, _ in moves)))
        yield executor.prepare(on_table(COPY, table))

"""Blocking collectives on device arrays of one node: agreed on the board, carried out by kernels on mapped memory.

Which calls go this way is what all ranks know, or find out together: communicators with a slot and at most ``DEVICE_RANKS`` ranks, of
which every one has all its arrays in exportable memory of one GPU. Everything else is left to the host, by way of pinned memory: in pieces
if all ranks find that they have nothing but device arrays (:mod:`ncclx_mpi.device.parts`).

A collective on arrays that have met before costs a rank one stream operation, and an executor a launch and two of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import cast

from ncclx_mpi import errors
from ncclx_mpi.algorithms import UNFORCED
from ncclx_mpi.device.copies import At, copies, wrong_pair
from ncclx_mpi.device.executor import Executor, Launch, on_table
from ncclx_mpi.device.members import Member, Words, describe, describe_hidden, executors_of, read
from ncclx_mpi.device.offers import Offer, Operand, offer
from ncclx_mpi.device.parts import DONE, WHOLE, Cut, Parts, cut
from ncclx_mpi.device.process import Process
from ncclx_mpi.device.reductions import reductions, wrong_sum
from ncclx_mpi.device.station import Plan, Reach, Work, station
from ncclx_mpi.gpu_memory.peers import Place
from ncclx_mpi.p2p.engine import NativeComm
from ncclx_mpi.p2p.layout import OPERATIONS
from numba_kernels.cuda.copy import COPY, pack_rows
from numba_kernels.cuda.reduce_rows import pack_reductions, rows_kernel
from transports.shm.slots import DEVICE_RANKS


def carry_out(
    comm: NativeComm,
    name: str,
    sent: Operand,
    received: Operand,
    root: int,
    op: str | None,
    bring: Callable[[], Parts | None],
    keep: Callable[[Work], None] | None = None,
) -> Cut:
    """Carry a blocking collective out on the devices if all ranks can; else nothing has been done.

    Every rank that has an array on a device calls it, with what :func:`ncclx_mpi.device.offers.offer` takes, what finds its
    parts, and what keeps a call that was carried out for the next time. The arrays are borrowed until it returns; what they hold
    counts as of the point that their streams have reached.

    Returns
    -------
    Cut
        How all ranks carry it out on the host; ``DONE`` if there is nothing left to do.

    Raises
    ------
    Exception
        ERR_TRUNCATE: ranks disagree about counts. ERR_PROC_FAILED: a rank died. ERR_OTHER: the driver failed, or ranks call
        different collectives. The communicator takes no more collectives then.
    """
    if comm.slot < 0 or comm.size > DEVICE_RANKS:
        return WHOLE
    made = offer(comm.rank, comm.size, name, sent, received, root, op)
    if made is not None and comm.forced[made.task.kind] == UNFORCED:
        work: Work = _Collective(name, made, bring)
    else:
        parts = bring()
        if parts is None or not _is_long(name, comm.size, parts):
            return WHOLE
        work = _Hidden(name, comm.size, parts)
    cut = cut_of(station(comm, work.driver).carry_out(work))
    if keep is not None and made is not None and cut is DONE:
        keep(_Collective(name, made, _gone))
    return cut


def cut_of(plan: Plan | None) -> Cut:
    """How all ranks carry out on the host what came of a plan on the devices."""
    if plan is None:
        return WHOLE
    return DONE if plan.executors else cast("Cut", plan.keep)


def _gone() -> None:
    """Parts of a call that is kept: it was described when it was first made, and arrays are not kept."""


def _is_long(name: str, size: int, parts: Parts) -> bool:
    """Whether it is worth it to agree on a cut: the rank's blocks are long, or those of others may be."""
    return parts.is_uneven or cut(name, size, parts.largest, parts.itemsize).pieces > 1


def _cut_for(name: str, members: Sequence[Member]) -> Plan:
    """The plan for members of which one does not show its arrays: nothing is executed, but all cut the call alike."""
    found = cut(name, len(members), max(member.largest for member in members), max(member.itemsize for member in members))
    return Plan(0, None, [], found)


class _Collective(Work):
    """An offer, and what comes of the offers of all."""

    def __init__(self, name: str, made: Offer, bring: Callable[[], Parts | None]) -> None:
        self._made = made
        self._function = name
        self._bring = bring
        self.driver, self.device, self.streams = made.driver, made.device, made.streams
        self.kind, self.root, self.nbytes = made.task.kind, made.task.root, made.task.nbytes
        self.name = OPERATIONS[self.kind]
        self.arrays = made.send, made.recv
        self.key = made.send, made.recv, made.task

    def describe(self, pid: int, uuid: bytes, places: Sequence[Place | None]) -> Words:
        """The descriptor of this rank."""
        send, recv = places
        return describe(self._made.task, self._parts.largest, pid, uuid, send, recv)

    def describe_hidden(self) -> Words | None:
        """The descriptor of this rank, if the call is long enough to be cut."""
        parts, size = self._parts, len(self._made.task.rows)
        return describe_hidden(size, parts.itemsize, parts.largest) if _is_long(self._function, size, parts) else None

    @property
    def _parts(self) -> Parts:
        found = self._bring()
        assert found is not None, "an offer is made for device arrays only"
        return found

    def plan(self, shown: Words, rank: int, process: Process) -> Plan:
        """What this rank executes."""
        members = [read(row) for row in shown]
        if not all(member.pid for member in members):
            return _cut_for(self._function, members)
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


class _Hidden(Work):
    """The part of a rank whose arrays are not for the kernels."""

    arrays = None

    def __init__(self, name: str, size: int, parts: Parts) -> None:
        memories = [block.device for block in (parts.sent or []) + (parts.received or []) if block.device is not None]
        self._function, self._size, self._parts = name, size, parts
        self.driver, self.device = memories[0].driver, memories[0].device
        self.streams = tuple(dict.fromkeys(memory.stream.handle for memory in memories if memory.device == self.device))
        self.kind, self.root, self.nbytes = parts.kind, parts.root, parts.nbytes
        self.name = OPERATIONS[self.kind]
        self.key = name, parts.itemsize, parts.largest

    def describe_hidden(self) -> Words:
        """The descriptor of this rank."""
        return describe_hidden(self._size, self._parts.itemsize, self._parts.largest)

    def plan(self, shown: Words, rank: int, process: Process) -> Plan:
        """How the call is cut."""
        return _cut_for(self._function, [read(row) for row in shown])


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

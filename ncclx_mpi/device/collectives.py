"""Blocking collectives on device arrays of one node: agreed on the board, carried out by kernels on mapped memory.

Which calls go this way is what all ranks know, or find out together: communicators with a slot and at most ``DEVICE_RANKS`` ranks, of
which every one has all its arrays in exportable memory of one GPU. Everything else is left to the host, by way of pinned memory.

A collective on arrays that have met before costs a rank one stream operation, and an executor a launch and two of them.
"""

from __future__ import annotations

import contextlib
import os
import weakref
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from ncclx_mpi import errors, runtime
from ncclx_mpi.collectives.blocking import check, entry
from ncclx_mpi.device import board
from ncclx_mpi.device.copies import At, copies, wrong_pair
from ncclx_mpi.device.executor import Executor, Launch
from ncclx_mpi.device.members import Member, Words, describe, executors_of, nbytes_of, read
from ncclx_mpi.device.offers import Array, Offer, Operand, Task, offer
from ncclx_mpi.device.reductions import reductions, wrong_sum
from ncclx_mpi.p2p.engine import NativeComm
from ncclx_mpi.p2p.layout import OPERATIONS
from numba_kernels.cuda import driver as drivers
from numba_kernels.cuda.copy import COPY, pack_rows
from numba_kernels.cuda.driver import WRITE, Driver, DriverError, Step
from numba_kernels.cuda.ptx import CompilerMissing
from numba_kernels.cuda.reduce_rows import pack_reductions, rows_kernel
from numba_kernels.layout import WORD
from transports.cuda_ipc.transport import CudaIpc, Mapping, Place, Unreachable
from transports.shm.slots import DEVICE, DEVICE_RANKS, device_words

_PAGE = 4096
_KEPT = 1024
"""Descriptors, and plans, that a communicator keeps for arrays that come again."""


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
    return made is not None and _station(comm, made.driver).carry_out(made)


def why_not(comm: NativeComm) -> str:
    """Why this rank makes the devices no offers on a communicator any more, an empty string if it does."""
    station = _stations.get(comm)
    return "" if station is None else station.reason


class Plan(NamedTuple):
    """What a collective on certain arrays comes to, for one rank.

    Attributes
    ----------
    executors
        Bit e: rank e executes.
    launches
        What this rank executes, None if it does not.
    mappings
        Memory of peers that the launches refer to.
    """

    executors: int
    launches: list[Launch] | None
    mappings: list[Mapping]


class Station:
    """One rank's place in a communicator for collectives on devices.

    Attributes
    ----------
    reason
        Why it makes no offers any more, once an executor here had to refuse.
    """

    def __init__(self, comm: NativeComm, driver: Driver) -> None:
        arena = comm.engine.arena
        slot = arena.base + arena.plan.slot(comm.slot)
        self.driver = driver
        self.reason = ""
        self._comm = comm
        self._process = _process(driver)
        self._page = entry(device_words)(slot, 0)
        self._words = entry(device_words)(slot, comm.rank)
        self._table = np.zeros((comm.size, nbytes_of(comm.size) // WORD), dtype=np.int64)
        self._descriptors: dict[tuple[Array | None, Array | None, Task], Words] = {}
        self._plans: dict[tuple[int, int, bytes], Plan] = {}

    def carry_out(self, made: Offer) -> bool:
        """See :func:`carry_out`."""
        if self.reason or any(map(self.driver.is_capturing, made.streams)):
            return False
        with _current(self.driver, made.device):
            descriptor = self._describe(made)
            if descriptor is None:
                return False
            task, table, nbytes = made.task, self._table.ctypes.data, descriptor.nbytes
            number = entry(board.meet)(self._comm.address, task.kind, task.root, task.nbytes, descriptor.ctypes.data, nbytes, table)
            check(self._comm, -min(number, 0), OPERATIONS[made.task.kind])
            return number > 0 and self._follow(made, number)

    def _describe(self, made: Offer) -> Words | None:
        """What the others need to know of this rank's arrays; None if they cannot be shown to them."""
        key = (made.send, made.recv, made.task)
        found = self._descriptors.get(key)
        if found is None and (found := self._make_descriptor(made)) is not None:
            if len(self._descriptors) >= _KEPT:
                self._descriptors.clear()
            self._descriptors[key] = found
        return found

    def _make_descriptor(self, made: Offer) -> Words | None:
        if not self._process.pin(self._page):
            return None
        places: list[Place | None] = []
        for array in (made.send, made.recv):
            places.append(None if array is None else self._process.ipc.place(*array))
            if array is not None and places[-1] is None:
                return None
        return describe(made.task, os.getpid(), self._process.uuid(made.device), *places)

    def _follow(self, made: Offer, number: int) -> bool:
        """Do this rank's part of a collective that all have proposed."""
        name = OPERATIONS[made.task.kind]
        try:
            with self._plan(made) as plan:
                if plan is None:
                    entry(board.refuse)(self._comm.address, number)
                    return False
                self.driver.batch(_joined(self.driver, made.streams), [Step(WRITE, self._words + DEVICE.ready, number)])
                code = self._execute(made, plan, number)
        except DriverError as error:
            entry(board.abandon)(self._comm.address)
            errors.fail(errors.ERR_OTHER, f"rank {self._comm.rank}: {name} on GPU arrays failed: {error}")
        except BaseException:
            entry(board.abandon)(self._comm.address)
            raise
        if code == board.ON_HOST:
            return False
        check(self._comm, code, name)
        return True

    def _execute(self, made: Offer, plan: Plan, number: int) -> int:
        """Run this rank's share, and wait for the end: 0, ON_HOST, or the code of a failure."""
        code = 0
        if plan.launches is None:
            return int(entry(board.await_done)(self._comm.address, number, plan.executors))
        executor = self._process.executor(made.device)
        code = entry(board.await_ready)(self._comm.address, number)
        if code == 0:
            try:
                executor.run(plan.launches, self._words + DEVICE.done, number)
                code = entry(board.await_done)(self._comm.address, number, plan.executors)
            finally:
                if code != 0:
                    executor.drain()  # nobody's memory is written after the call has failed
        return int(code)

    @contextlib.contextmanager
    def _plan(self, made: Offer) -> Iterator[Plan | None]:
        """Lend the plan for what the ranks have shown; None if this rank has to refuse."""
        key, ipc = (made.task.kind, made.task.root, self._table.tobytes()), self._process.ipc
        found = self._plans.get(key)
        try:
            while found is None or not ipc.borrow(found.mappings):
                found = self._make_plan(made)
                if len(self._plans) >= _KEPT:
                    self._plans.clear()
                self._plans[key] = found
        except (Unreachable, CompilerMissing, DriverError) as error:
            self.reason = str(error)
            yield None
            return
        try:
            yield found
        finally:
            ipc.give_back(found.mappings)

    def _make_plan(self, made: Offer) -> Plan:
        members, me = [read(row) for row in self._table], self._comm.rank
        self._check(made, members)
        executors = executors_of(members)
        mask = sum(1 << rank for rank in set(executors))
        if executors[me] != me:
            return Plan(mask, None, [])
        reach = _Reach(self._process.ipc, members, me)
        executor = self._process.executor(made.device)
        launches = list(_launches(made, members, executors, me, executor, reach.at))
        return Plan(mask, launches, list(reach.mappings.values()))

    def _check(self, made: Offer, members: Sequence[Member]) -> None:
        """Raise on all ranks if they disagree about counts."""
        name, rank = OPERATIONS[made.task.kind], self._comm.rank
        other = next((other for other, member in enumerate(members) if member.operation != members[0].operation), 0)
        if other:
            errors.fail(
                errors.ERR_OP,
                f"rank {rank}: {name}: rank {other} uses another operation or element type than rank 0; all ranks must use the same",
            )
        if made.task.operation:
            sums = wrong_sum(made.task.kind, members)
            if sums is not None:
                errors.fail(
                    errors.ERR_TRUNCATE,
                    f"rank {rank}: {name}: the ranks get {sums[0]} bytes together, and each gives {sums[1]}; counts must add up",
                )
            return
        pair = wrong_pair(members)
        if pair is not None:
            source, target, sent, expected = pair
            errors.fail(
                errors.ERR_TRUNCATE,
                f"rank {rank}: {name}: rank {source} sends {sent} bytes to rank {target}, which expects {expected}; "
                "counts and datatypes must agree between the ranks",
            )


class _Reach:
    """Addresses in this process of the arrays of all ranks, mapped as they are asked for."""

    def __init__(self, ipc: CudaIpc, members: Sequence[Member], me: int) -> None:
        self.mappings: dict[int, Mapping] = {}
        self._ipc = ipc
        self._members = members
        self._me = me

    def at(self, rank: int, which: str) -> int:
        """Address of an array of `rank`: its ``source`` or its ``recv``."""
        member = self._members[rank]
        place = member.recv if which == "recv" else member.source
        assert place is not None
        if rank == self._me:
            return place.address
        mapping = self._ipc.reach(member.pid, member.uuid, place)
        self.mappings[mapping.address] = mapping
        return mapping.address + place.offset


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
            yield executor.prepare(kernel, pack_reductions(work, made.task.itemsize, piece))
        return
    if made.task.operation:
        moves = [(made.task.nbytes, at(0, "source"), [at(0, "recv")])]
    else:
        moves = list(copies(members, [rank for rank, other in enumerate(executors) if other == me], at))
    moves = [move for move in moves if [move[1]] != move[2]]
    if moves:
        table = pack_rows(moves, executor.piece(sum(nbytes for nbytes, _, _ in moves)))
        yield executor.prepare(COPY, table)


class _Process:
    """What this process has on the GPUs of one driver, for all communicators."""

    def __init__(self, driver: Driver) -> None:
        self.ipc = CudaIpc(driver)
        self._driver = driver
        self._uuids: dict[int, bytes] = {}
        self._executors: dict[int, Executor] = {}
        self._pinned: set[int] = set()
        runtime.before_leaving(self._leave)

    def uuid(self, device: int) -> bytes:
        """The name of a GPU."""
        if device not in self._uuids:
            self._uuids[device] = self._driver.uuid(device)
        return self._uuids[device]

    def executor(self, device: int) -> Executor:
        """The executor on a GPU, which is current."""
        if device not in self._executors:
            self._executors[device] = Executor(self._driver, device)
        return self._executors[device]

    def pin(self, page: int) -> bool:
        """Whether streams can write to a page of device words, after it was pinned if need be."""
        if page not in self._pinned:
            try:
                self._driver.register_host(page, _PAGE)
            except DriverError:
                return False
            self._pinned.add(page)
        return True

    def _leave(self) -> None:
        """Unmap and unpin everything."""
        if drivers.current() is not self._driver:
            return
        with contextlib.suppress(DriverError):  # the contexts may be gone by now, and all of this with them
            self.ipc.close()
            for page in self._pinned:
                self._driver.unregister_host(page)


_processes: weakref.WeakKeyDictionary[Driver, _Process] = weakref.WeakKeyDictionary()
_stations: weakref.WeakKeyDictionary[NativeComm, Station] = weakref.WeakKeyDictionary()


def _process(driver: Driver) -> _Process:
    return _processes.get(driver) or _processes.setdefault(driver, _Process(driver))


def _station(comm: NativeComm, driver: Driver) -> Station:
    found = _stations.get(comm)
    if found is None or found.driver is not driver:
        found = _stations[comm] = Station(comm, driver)
    return found


@contextlib.contextmanager
def _current(driver: Driver, device: int) -> Iterator[None]:
    """Make a device current in this thread while the body runs."""
    before = driver.current_device()
    if before != device:
        driver.use(device)
    try:
        yield
    finally:
        if before not in (None, device):
            driver.use(before)


def _joined(driver: Driver, streams: Sequence[int]) -> int:
    """One of several streams, which waits for what the others hold."""
    first, *others = streams
    for other in others:
        driver.wait(first, driver.record(other))
    return first

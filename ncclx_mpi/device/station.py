"""A rank's place in a communicator for blocking calls on devices: from what it brings, over the agreement, to the end.

::

    show what this rank's arrays are  ->  all have shown theirs  ->  plan, as far as they met for the first time  ->  ready, run, done

What is carried out is a :class:`Work`; who waits for what is in :mod:`ncclx_mpi.device.board`.
"""

from __future__ import annotations

import os
import weakref
from abc import ABC, abstractmethod
from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np

from ncclx_mpi import errors
from ncclx_mpi.collectives.blocking import check
from ncclx_mpi.collectives.executor import entry
from ncclx_mpi.device import board
from ncclx_mpi.device.executor import Launch
from ncclx_mpi.device.members import Words
from ncclx_mpi.device.offers import Array
from ncclx_mpi.device.process import Process, current, process
from ncclx_mpi.gpu_memory.peers import CudaIpc, Mapping, Place, Unreachable
from ncclx_mpi.p2p.engine import NativeComm
from numba_kernels.cuda.driver import Driver, DriverError
from numba_kernels.cuda.ptx import CompilerMissing
from numba_kernels.layout import WORD
from numba_kernels.rows import NamedTuple
from transports.shm.slots import DEVICE, device_words

_KEPT = 1024
"""Descriptors, and plans, that a communicator keeps for arrays that come again."""


class Plan(NamedTuple):
    """What a call on certain arrays comes to, for one rank.

    Attributes
    ----------
    executors
        Bit e: rank e executes; 0 if the ranks have only agreed on something.
    launches
        What this rank executes, None if it does not.
    mappings
        Memory of peers that the launches refer to.
    keep
        What the launches refer to besides, or what the ranks have agreed on.
    """

    executors: int
    launches: list[Launch] | None
    mappings: list[Mapping]
    keep: Any = None


class Work(ABC):
    """One rank's part in a call on devices.

    Attributes
    ----------
    driver, device, streams
        The driver and the GPU that its arrays are on, and the streams in which they are used.
    name
        Of the call, for messages.
    kind, root, nbytes
        What the call is signed with.
    arrays
        What is shown to the others, None for what is not there; None in its place if nothing can be shown.
    key
        What the descriptor depends on.
    """

    driver: Driver
    device: int
    streams: tuple[int, ...]
    name: str
    kind: int
    root: int
    nbytes: int
    arrays: tuple[Array | None, ...] | None
    key: Hashable

    def describe(self, pid: int, uuid: bytes, places: Sequence[Place | None]) -> Words | None:
        """What the others need to know of this rank's part, None if it cannot be shown: as many words on all ranks that call the same."""
        return None

    def describe_hidden(self) -> Words | None:
        """As :meth:`describe`, where arrays cannot be shown; None if there is nothing to agree on then."""
        return None

    @abstractmethod
    def plan(self, shown: Words, rank: int, process: Process) -> Plan:
        """What the descriptors of all ranks, a row each, come to for `rank`.

        Raises
        ------
        Exception
            The ranks disagree; raised on all of them.
        Unreachable, CompilerMissing, DriverError
            It cannot be done here.
        """


class Station:
    """See the module's text.

    Attributes
    ----------
    reason
        Why it shows no arrays any more, once an executor here had to refuse.
    """

    def __init__(self, comm: NativeComm, driver: Driver) -> None:
        arena = comm.engine.arena
        slot = arena.base + arena.plan.slot(comm.slot)
        self.driver = driver
        self.reason = ""
        self._comm: NativeComm = weakref.proxy(comm)  # which goes when nobody else has it, and the station with it
        self._process = process(driver)
        self._page = entry(device_words)(slot, 0)
        self._words = entry(device_words)(slot, comm.rank)
        self._meet, self._await_done = entry(board.meet), entry(board.await_done)
        self._write_ready = driver.writer(self._words + DEVICE.ready)
        self._tables: dict[int, Shown] = {}
        self._descriptors: dict[Hashable, Words] = {}
        self._plans: dict[tuple[int, int, bytes], Plan] = {}

    def carry_out(self, work: Work) -> Plan | None:
        """Carry a call out if all ranks can, by the plan that is returned; None if all go the host's way."""
        if any(map(self.driver.is_capturing, work.streams)):
            return None
        with current(self.driver, work.device):
            descriptor = self.describe(work)
            return None if descriptor is None else self.meet(work, Shown(descriptor))

    def meet(self, work: Work, shown: Shown) -> Plan | None:
        """As :meth:`carry_out`, with what this rank shows to the others; its device is current, no stream is captured."""
        if shown.nbytes not in self._tables:
            self._tables[shown.nbytes] = Shown(np.zeros((self._comm.size, shown.nbytes // WORD), dtype=np.int64))
        table = self._tables[shown.nbytes]
        number = self._meet(self._comm.address, work.kind, work.root, work.nbytes, shown.address, shown.nbytes, table.address)
        if number < 0:
            check(self._comm, -number, work.name)
        return self._follow(work, number, table.words) if number > 0 else None

    def describe(self, work: Work) -> Words | None:
        """What the others need to know of this rank's arrays; None if they cannot be shown to them."""
        if self.reason:
            return work.describe_hidden()
        found = self._descriptors.get(work.key)
        if found is None and (found := self._make_descriptor(work)) is not None:
            if len(self._descriptors) >= _KEPT:
                self._descriptors.clear()
            self._descriptors[work.key] = found
        return found

    def _make_descriptor(self, work: Work) -> Words | None:
        if work.arrays is None or not self._process.pin(self._page):
            return work.describe_hidden()
        places = [None if array is None else self._process.ipc.place(*array) for array in work.arrays]
        if any(array is not None and place is None for array, place in zip(work.arrays, places, strict=True)):
            return work.describe_hidden()
        return work.describe(os.getpid(), self._process.uuid(work.device), places)

    def _follow(self, work: Work, number: int, shown: Words) -> Plan | None:
        """Do this rank's part of a call that all have proposed."""
        plan = None
        try:
            plan = self._borrow_plan(work, shown)
            if plan is None:
                entry(board.refuse)(self._comm.address, number)
                return None
            if plan.executors:
                self._write_ready(_joined(self.driver, work.streams), number)
            code = self._execute(work, plan, number)
        except DriverError as error:
            entry(board.abandon)(self._comm.address)
            errors.fail(errors.ERR_OTHER, f"rank {self._comm.rank}: {work.name} on GPU arrays failed: {error}")
        except BaseException:
            entry(board.abandon)(self._comm.address)
            raise
        finally:
            if plan is not None and plan.mappings:
                self._process.ipc.give_back(plan.mappings)
        if code == board.ON_HOST:
            return None
        if code:
            check(self._comm, code, work.name)
        return plan

    def _execute(self, work: Work, plan: Plan, number: int) -> int:
        """Run this rank's share, and wait for the end: 0, ON_HOST, or the code of a failure."""
        code = 0
        if plan.launches is None:
            return int(self._await_done(self._comm.address, number, plan.executors))
        executor = self._process.executor(work.device)
        code = entry(board.await_ready)(self._comm.address, number)
        if code == 0:
            try:
                executor.run(plan.launches, self._words + DEVICE.done, number)
                code = self._await_done(self._comm.address, number, plan.executors)
            finally:
                if code != 0:
                    executor.drain()  # nobody's memory is written after the call has failed
        return int(code)

    def _borrow_plan(self, work: Work, shown: Words) -> Plan | None:
        """The plan for what the ranks have shown, with its mappings borrowed; None if this rank has to refuse."""
        key, ipc = (work.kind, work.root, shown.tobytes()), self._process.ipc
        found = self._plans.get(key)
        try:
            while found is None or (found.mappings and not ipc.borrow(found.mappings)):
                found = work.plan(shown, self._comm.rank, self._process)
                if len(self._plans) >= _KEPT:
                    self._plans.clear()
                self._plans[key] = found
        except (Unreachable, CompilerMissing, DriverError) as error:
            self.reason = str(error)
            return None
        return found


class Shown:
    """Descriptors, and where they are: to ask NumPy for an address takes as long as a call of compiled code."""

    __slots__ = ("address", "nbytes", "words")

    def __init__(self, words: Words) -> None:
        self.words, self.address = words, words.ctypes.data
        self.nbytes = words.shape[-1] * WORD


class Reach:
    """Addresses in this process of what ranks have shown, mapped as they are asked for.

    Attributes
    ----------
    mappings
        What was mapped so far.
    """

    def __init__(self, ipc: CudaIpc, rank: int) -> None:
        self._ipc = ipc
        self._rank = rank
        self._mapped: dict[int, Mapping] = {}

    @property
    def mappings(self) -> list[Mapping]:
        return list(self._mapped.values())

    def address(self, rank: int, pid: int, uuid: bytes, place: Place) -> int:
        """Address of a place in the memory of `rank`, which may be this one, of process `pid`."""
        if rank == self._rank:
            return place.address
        mapping = self._ipc.reach(pid, uuid, place)
        self._mapped[mapping.address] = mapping
        return mapping.address + place.offset


def station(comm: NativeComm, driver: Driver) -> Station:
    """The place of this rank in a communicator."""
    found = _stations.get(comm)
    if found is None or found.driver is not driver:
        found = _stations[comm] = Station(comm, driver)
    return found


def why_not(comm: NativeComm) -> str:
    """Why this rank makes the devices no offers on a communicator any more, an empty string if it does."""
    found = _stations.get(comm)
    return "" if found is None else found.reason


_stations: weakref.WeakKeyDictionary[NativeComm, Station] = weakref.WeakKeyDictionary()


def _joined(driver: Driver, streams: Sequence[int]) -> int:
    """One of several streams, which waits for what the others hold."""
    for other in streams[1:]:
        driver.wait(streams[0], driver.record(other))
    return streams[0]

"""Messages from and to device arrays: one copy by the receiver's GPU where that can map the sender's array, else chunk by chunk.

::

    sender                                                   receiver
      its stream writes `ready` into the description
      offer {bytes, where the description is}  ----------->  meets a receive of a device array
                                                             maps the array, waits for `ready`, copies in a stream of its own
      complete                          <------ ATS -------  complete

                                                             meets a receive of a host array, or one that cannot map it
      waits for `ready`                 <------ CTS -------
      device -> window -> pipe, by chunks  ===============>  pipe -> array, or pipe -> window -> device by chunks

The description stays in pinned memory of the arena until the message is over. It holds the array's place
(:class:`~ncclx_mpi.gpu_memory.peers.Place`), whose buffer id tells the receiver whether a mapping that it has kept still shows the
array. Only what the arrays' streams hold when a
call is made comes before the copies; these run in streams of their own, and the call is complete when they have run.

A message is a generator that goes as far as it can each time it is polled, by whoever waits for anything, or by background progress.

=========  ==========================  ===========  =========================================================
word       written by                  polled by    order
=========  ==========================  ===========  =========================================================
``ready``  the stream of the sender's  receiver's   stream order, system scope; load acquire. The sender
           array, by a stream write    host, later  never leaves the description before it is set
                                       the sender's
=========  ==========================  ===========  =========================================================

T = alpha + m / (bandwidth of the copy) when mapped; else alpha + m over the slowest of the copies to pinned memory, into the pipe, out of
it and to the device, which overlap, with at most 2 * :data:`WINDOW` bytes pinned for a message whatever its length.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterator
from typing import Any

import numpy as np

from ncclx_mpi import errors
from ncclx_mpi.device import landing
from ncclx_mpi.device.landing import LOOK, Look
from ncclx_mpi.device.members import put, put_place, read_place
from ncclx_mpi.device.process import Process, process
from ncclx_mpi.gpu_memory import staging
from ncclx_mpi.gpu_memory.copying import Copies
from ncclx_mpi.gpu_memory.memory import DeviceMemory, keep_for_good
from ncclx_mpi.gpu_memory.peers import PLACE, CudaIpc, Mapping, Place, Unreachable
from ncclx_mpi.gpu_memory.staging import Lease
from ncclx_mpi.p2p.engine import NativeComm, Result
from numba_kernels.jit import entry as _entry
from numba_kernels.layout import WORD, words
from numba_kernels.rows import NamedTuple

entry = functools.cache(_entry)

WINDOW = 4 << 20
"""Bytes of pinned memory that a message passes through; a multiple of the largest chunk of a pipe."""
_PIECE = 1 << 20
"""Bytes that one copy moves to or from a window."""
_OVER = object()
_KEPT = 1024
"""Descriptions that are kept at either end."""
_Seen = ctypes.c_int64 * (LOOK.total // WORD)
_DESCRIPTION = words("Description", f"ready pid address uuid*2 place*{PLACE.total // WORD}")


class Array(NamedTuple):
    """Contiguous device memory of one end of a message."""

    memory: DeviceMemory
    address: int
    nbytes: int
    owner: Any


class Message(ABC):
    """One end of a message, which moves on when it is polled.

    Attributes
    ----------
    result
        What became of it, once it is over.
    failure
        Why it could not be carried out at this end, None if it could.
    is_owed
        Whether the peer needs this end to go on, even after this rank has lost interest.
    """

    is_owed = False

    def __init__(self, comm: NativeComm, array: Array) -> None:
        self.result = Result(-1, -1, 0, errors.SUCCESS, False)
        self.failure: errors.Exception | None = None
        self._engine = comm.engine
        self._comm = comm
        self._array = array
        self._copies = Copies(array.memory)
        self._request = 0
        self._is_over = False
        self._is_forgotten = False
        self._guard = threading.Lock()
        self._seen = _Seen()
        self._seen_at = ctypes.addressof(self._seen)
        self._steps = self._run()

    def poll(self) -> bool:
        """Go as far as possible now; whether it is over. If another thread is at it, that has to do."""
        if self._is_over or not self._guard.acquire(blocking=False):
            return self._is_over
        try:
            if not self._is_over:
                self._step()
        finally:
            self._guard.release()
        return self._is_over

    def cancel(self) -> None:
        """Ask for its cancellation; it still has to be waited for."""
        with self._guard:
            if not self._is_over:
                self._engine.cancel(self._request, self._engine.serial(self._request))

    def withdraw(self) -> None:
        """Give it up after a wait that failed. What its peer, or the GPU, is in the middle of goes on in the background."""
        with self._guard:
            self._is_forgotten = True
            if not self._is_over:
                self._withdraw()

    def _step(self) -> None:
        try:
            if self._is_forgotten and self._is_in_vain():
                self._give_up()
            elif next(self._steps, _OVER) is _OVER:
                self.result = self._engine.result(self._request)
                self._engine.free(self._request)
                self._is_over = True
        except errors.Exception as error:
            self.failure = error
            self._give_up()
        except BaseException:
            self.failure = errors.error(errors.ERR_OTHER, f"rank {self._comm.rank}: a message of a GPU array was interrupted")
            self._give_up()
            raise

    def _give_up(self) -> None:
        """Leave the request to the engine; memory that the GPU may still use is kept."""
        self._is_over = True
        self._steps.close()
        if not self._can_let_go():
            keep_for_good(self)
        self._engine.withdraw(self._request)

    def _look(self) -> bool:
        """Make progress; whether there is something to see."""
        return bool(entry(landing.look)(self._engine.address, self._request, self._seen_at))

    def _see(self) -> Look:
        self._look()
        return Look(*self._seen)

    def _pass_on(self, moved: int) -> None:
        entry(landing.pass_on)(self._engine.address, self._request, moved)

    @abstractmethod
    def _run(self) -> Generator[None, None, None]:
        """Carry the message out; a yield wherever something is to be waited for."""

    @abstractmethod
    def _withdraw(self) -> None:
        """See :meth:`withdraw`."""

    def _is_in_vain(self) -> bool:
        """Whether nobody can need any more what was given up and still goes on."""
        return False

    def _can_let_go(self) -> bool:
        """Whether the GPU neither reads nor writes anything for this message any more."""
        return not self._copies.are_under_way


class Outgoing(Message):
    """The sender's end."""

    is_owed = True

    def __init__(self, comm: NativeComm, array: Array, dest: int, tag: int, description: Lease) -> None:
        super().__init__(comm, array)
        self._dest = comm.world_ranks[dest]
        self._description = description
        self._room: Lease | None = None
        self._is_granted = False
        self._describe()
        start = entry(landing.start_offer)
        self._request = start(comm.address, 0, description.address, array.nbytes, dest, tag)

    def _describe(self) -> None:
        """Write the description; the last word comes by the stream."""
        memory, address = self._array.memory, self._description.address
        ctypes.memmove(address, _description(process(memory.driver), memory, self._array.address), _DESCRIPTION.total)
        with memory.current():
            memory.check_usable()
            process(memory.driver).writer(address + _DESCRIPTION.ready)(memory.stream.handle, 1)

    def _run(self) -> Generator[None, None, None]:
        while not self._look():
            yield
        self._is_granted = True
        if not Look(*self._seen).is_complete:
            yield from self._feed()
        while not _is_ready(self._description.address):
            yield

    def _feed(self) -> Generator[None, None, None]:
        """Let the message through a window to the pipe that the receiver has granted."""
        array, copies, begun, moved = self._array, self._copies, 0, 0
        while not _is_ready(self._description.address):
            yield
        window = min(WINDOW, array.nbytes)
        self._room = room = _lease(array.memory, window)
        entry(landing.open_window)(self._engine.address, self._request, room.address, window)
        while not (seen := self._see()).is_complete:
            while begun < array.nbytes and (piece := min(_PIECE, array.nbytes - begun)) <= window - (begun - seen.passed):
                copies.begin(room.address + begun % window, array.address + begun, piece)
                begun += piece
            if ended := copies.ended():
                moved += ended
                self._pass_on(moved)
            else:
                yield

    def _give_up(self) -> None:
        entry(landing.fail_send)(self._engine.address, self._request)
        super()._give_up()

    def _withdraw(self) -> None:
        """The receiver may still want it."""

    def _is_in_vain(self) -> bool:
        return self._dest in self._engine.dead_ranks()

    def _can_let_go(self) -> bool:
        """The receiver, too, has no use for the description once it has granted a pipe."""
        return self._is_granted and _is_ready(self._description.address) and super()._can_let_go()


class Incoming(Message):
    """The receiver's end."""

    def __init__(self, comm: NativeComm, array: Array, start: Callable[[int], int]) -> None:
        super().__init__(comm, array)
        memory = array.memory
        with memory.current() as driver:
            memory.check_usable()
            self._copies = Copies(memory, driver.record(memory.stream.handle))
        self._room = _lease(memory, self._engine.word("eager_max"))
        self._request = start(self._room.address)

    def _run(self) -> Generator[None, None, None]:
        while not self._look():
            yield
        seen = Look(*self._seen)
        if seen.is_complete:
            yield from self._deliver(seen)
        elif seen.error:
            self._settle()
        elif not (seen.is_offer and (yield from self._copy_from_peer(seen))):
            yield from self._land(seen)

    def _settle(self) -> None:
        entry(landing.settle)(self._engine.address, self._request)

    def _deliver(self, seen: Look) -> Iterator[None]:
        """Copy a message that has come to pinned memory as a whole; of a cancelled one nothing has come."""
        if seen.nbytes and not seen.error:
            self._copies.begin(self._array.address, self._room.address, seen.nbytes)
            yield from self._await_copies()

    def _await_copies(self) -> Iterator[None]:
        while self._copies.are_under_way:
            if not self._copies.ended():
                yield

    def _copy_from_peer(self, seen: Look) -> Generator[None, None, bool]:
        """Copy from the sender's array; False if that cannot be reached."""
        while not _is_ready(seen.description):
            yield
        offer = _read_offer(ctypes.string_at(seen.description + _DESCRIPTION.pid, _DESCRIPTION.total - _DESCRIPTION.pid))
        ipc, mapping, source = process(self._array.memory.driver).ipc, None, offer.address
        if seen.source != self._engine.rank:
            mapping = self._map(ipc, offer)
            if mapping is None or offer.place is None:
                return False
            source = mapping.address + offer.place.offset
        try:
            if abs(source - self._array.address) < seen.nbytes:
                return False
            self._copies.begin(self._array.address, source, seen.nbytes)
            yield from self._await_copies()
        finally:
            if mapping is not None and not self._copies.are_under_way:
                ipc.give_back([mapping])
        self._settle()
        return True

    def _map(self, ipc: CudaIpc, offer: _Offer) -> Mapping | None:
        """Borrow a mapping of a peer's allocation; None if there is none to be had."""
        pid, uuid, place = offer.pid, offer.uuid, offer.place
        if place is None or ipc.why_not(pid):
            return None
        with self._array.memory.current(), contextlib.suppress(Unreachable):
            while not ipc.borrow([mapping := ipc.reach(pid, uuid, place)]):
                pass
            return mapping
        return None

    def _land(self, seen: Look) -> Iterator[None]:
        """Have the message come to pinned memory: all of it, or what is longer than a window bit by bit."""
        self._room = _lease(self._array.memory, min(seen.nbytes, WINDOW))
        is_windowed = seen.nbytes > WINDOW
        entry(landing.land)(self._engine.address, self._request, self._room.address, WINDOW if is_windowed else 0)
        if is_windowed:
            yield from self._empty()
            return
        while not (seen := self._see()).is_complete:
            yield
        yield from self._deliver(seen)

    def _empty(self) -> Iterator[None]:
        """Copy what comes through the window to the array."""
        array, room, copies, begun, moved = self._array, self._room, self._copies, 0, 0
        while not (seen := self._see()).error and moved < seen.nbytes:
            while (piece := min(_PIECE, seen.nbytes - begun)) and begun + piece <= seen.passed:
                copies.begin(array.address + begun, room.address + begun % WINDOW, piece)
                begun += piece
            if ended := copies.ended():
                moved += ended
                self._pass_on(moved)
            else:
                yield
        yield from self._await_copies()

    def _withdraw(self) -> None:
        """Take the array back, unless the GPU is writing to it."""
        if not self._copies.are_under_way:
            self._give_up()


def start_send(comm: NativeComm, array: Array, dest: int, tag: int) -> Outgoing | None:
    """Start sending an array; None if it has to be copied to the host for that, since it is too small, or the peer cannot look at it.

    The array is borrowed until the message is over; what it holds counts as of the point that its stream has reached.

    Raises
    ------
    Exception
        ERR_BUFFER: the array was freed. ERR_OTHER: its stream is being captured, or the driver failed. ERR_NO_MEM: no pinned memory.
    """
    engine = comm.engine
    if array.nbytes <= engine.near_eager_max or not engine.is_near(comm.world_ranks[dest]):
        return None
    description = _lease(array.memory, _DESCRIPTION.total)
    if not engine.arena.is_shared(description.address):
        return None
    return Outgoing(comm, array, dest, tag, description)


def start_receive(comm: NativeComm, array: Array, source: int, tag: int) -> Incoming | None:
    """Start receiving into an array; None if it is too small for anything but copies by way of the host.

    The array is borrowed until the message is over; the message comes after what its stream holds now. Raises as :func:`start_send`.
    """
    if array.nbytes <= comm.engine.near_eager_max:
        return None
    post = entry(landing.start_asking)
    return Incoming(comm, array, lambda room: post(comm.address, 0, room, array.nbytes, source, tag))


def start_matched(comm: NativeComm, array: Array, take: Callable[[], int]) -> Incoming | None:
    """As :func:`start_receive`, for a message that a probe has taken out of matching: `take` is called for its handle."""
    if array.nbytes <= comm.engine.near_eager_max:
        return None
    post = entry(landing.ask_matched)
    return Incoming(comm, array, lambda room: post(comm.address, take(), room, array.nbytes))


class _Offer(NamedTuple):
    """What a description says."""

    pid: int
    address: int
    uuid: bytes
    place: Place | None


@functools.lru_cache(_KEPT)
def _read_offer(content: bytes) -> _Offer:
    """What the words of a description from the process on say."""
    found = np.frombuffer(bytes(_DESCRIPTION.pid) + content, dtype=np.int64)
    first = _DESCRIPTION.uuid // WORD
    pid, address = (int(found[at // WORD]) for at in (_DESCRIPTION.pid, _DESCRIPTION.address))
    return _Offer(pid, address, found[first : first + 2].tobytes(), read_place(found, _DESCRIPTION.place))


_described: dict[tuple[int, int, int], bytes] = {}
"""Descriptions of arrays that come again, by process, address and number of the allocation."""


def _description(known: Process, memory: DeviceMemory, address: int) -> bytes:
    """The description of an array, whose last word comes by the stream."""
    key = os.getpid(), address, memory.known.buffer_id
    made = _described.get(key)
    if made is not None:
        return made
    found = np.zeros(_DESCRIPTION.total // WORD, dtype=np.int64)
    found[_DESCRIPTION.pid // WORD] = key[0]
    found[_DESCRIPTION.address // WORD] = address
    put(found, _DESCRIPTION.uuid, np.frombuffer(known.uuid(memory.device), dtype=np.int64))
    place = known.ipc.place(address, memory.known)
    if place is not None:
        put_place(found, _DESCRIPTION.place, place)
    if len(_described) >= _KEPT:
        _described.clear()
    _described[key] = made = found.tobytes()
    return made


def _lease(memory: DeviceMemory, nbytes: int) -> Lease:
    again = staging.lease_again(memory.driver, nbytes)
    if again is not None:
        return again
    with memory.current() as driver:
        return staging.lease(driver, nbytes)


def _is_ready(description: int) -> bool:
    """Whether the stream of the array that is described has come to it."""
    return bool(entry(landing.is_set)(description + _DESCRIPTION.ready))

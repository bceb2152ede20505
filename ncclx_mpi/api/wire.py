"""Python objects as messages.

A small object travels as its plain pickle, so that ``recv`` takes what ``Send`` sent as bytes, and the other way round. What
is larger than :data:`PLAIN_MAX`, or holds large buffers (arrays), travels as a *lead* and *frames*::

    lead, where the object's message is      frames, on the communicator's frame context, tag = number
    | MAGIC | number | head bytes | frame count | head, if it fits |      | head, if not in the lead | buffer | buffer ...

    head: | bytes of each buffer | pickle |

Large buffers are sent from where they are and received into fresh memory: they are never copied into the pickle. The
lead always fits the buffer that ``irecv`` posts, so ``irecv`` needs no size. Frames of one sender are told apart by the
number in the lead, whatever order their leads are received in.

Who receives a lead asks for the frames. A pending ``irecv`` does so when its rank waits for it or sends an object; a thread sees
to it while the rank does something else, so that a sender never waits for a receiver who has posted its receive.
"""

from __future__ import annotations

import itertools
import pickle as _pickle
import struct
import sys
import threading
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from ncclx_mpi.api import fast, stepping
from ncclx_mpi.api.operations import Operation, Ticket, Together, Transfer, blame, raise_error, write_status
from ncclx_mpi.api.pickle import pickle
from ncclx_mpi.api.status import Status
from ncclx_mpi.p2p import object_tickets, tickets
from ncclx_mpi.p2p.engine import Engine, NativeComm, Result, from_whom
from ncclx_mpi.p2p.fast import SLOW
from ncclx_mpi.p2p.layout import PENDING, STANDARD
from ncclx_mpi.p2p.notes import RAW
from ncclx_mpi.p2p.object_tickets import PARTIAL
from numba_kernels.jit import entry

PLAIN_MAX = 32768
OUT_OF_BAND_MIN = 16384
FRAMES = 3
"""Context offset of frames."""

MAGIC = b"\0ncclx_mpi frame"
_LEAD = struct.Struct("<16sqqq")
_numbers = itertools.count()
_NUMBERS = 1 << 23

_BYTES_OFFSET = sys.getsizeof(b"") - 1
"""Where the data of a bytes object begin (CPython)."""

_IMMUTABLE: frozenset[type] = frozenset((type(None), bool, int, float, complex, str, bytes))
_are_immutable = _IMMUTABLE.issuperset
_dumps, _loads = _pickle.dumps, _pickle.loads


class Lead(NamedTuple):
    """What a lead says: the frames' tag, bytes of the head, number of buffers."""

    number: int
    head: int
    buffers: int


# Pickling ---------------------------------------------------------------------------------------------------------


def dump(obj: Any) -> tuple[bytes, list[memoryview]]:
    """Pickle an object; its large contiguous buffers stay where they are and are returned beside the pickle."""
    if not pickle._is_standard:
        return bytes(pickle.dumps(obj)), []
    if type(obj) is np.ndarray and obj.nbytes < OUT_OF_BAND_MIN and not obj.dtype.hasobject:
        return _dumps(obj, -1), []
    frames: list[memoryview] = []

    def is_in_band(found: _pickle.PickleBuffer) -> bool:
        if memoryview(found).nbytes < OUT_OF_BAND_MIN:
            return True
        try:
            frames.append(found.raw())
        except BufferError:  # scattered
            return True
        return False

    return _dumps(obj, -1, buffer_callback=is_in_band), frames


def load(data: Any, frames: Sequence[Any] = ()) -> Any:
    """Return the object of a pickle and its buffers; an empty message is None."""
    if not len(data):
        return None
    if pickle._is_standard and not frames:
        return _loads(data)
    if frames:
        return _pickle.loads(data, buffers=frames)
    return pickle.loads(bytes(data))  # a copy, as other functions may keep what they get


def copy(obj: Any) -> Any:
    """Return a copy of an object, as if it had been sent."""
    return obj if type(obj) in _IMMUTABLE and pickle._is_standard else copy_dumped(obj, *dump(obj))


def copy_dumped(obj: Any, data: bytes, frames: Sequence[memoryview]) -> Any:
    """Return a copy of an object that was sent as `data` and `frames`, and is received by its sender too.

    Numbers, text, and a list or dictionary of nothing else need no unpickling, which takes longer than everything else in
    sending a small object.
    """
    kind = type(obj)
    if pickle._is_standard:
        if kind in _IMMUTABLE:
            return obj
        if kind is dict and _are_immutable(map(type, obj.values())) and _are_immutable(map(type, obj)):
            return obj.copy()
        if kind is list and _are_immutable(map(type, obj)):
            return obj.copy()
    return load(data, [np.array(frame) for frame in frames])


def room(nbytes: int) -> tuple[Any, int]:
    """Return memory for `nbytes` received bytes, and its address. Nobody else may see it until it is filled."""
    if nbytes < PLAIN_MAX:
        # empty and one-byte objects are shared by the interpreter: never write into those
        data = bytes(max(nbytes, 2))
        return (data if nbytes >= 2 else memoryview(data)[:nbytes]), id(data) + _BYTES_OFFSET
    array = np.empty(nbytes, dtype=np.uint8)
    return array, array.ctypes.data


def address_of(data: bytes | memoryview) -> int:
    """Address of the first byte of `data`."""
    if type(data) is bytes:
        return id(data) + _BYTES_OFFSET
    return int(np.frombuffer(data, dtype=np.uint8).ctypes.data)


# Sending ----------------------------------------------------------------------------------------------------------


def start_dumped(
    comm: NativeComm, data: bytes, frames: list[memoryview], dest: int, tag: int, mode: int = STANDARD, offset: int = 0
) -> Operation:
    """Start sending a pickle and its buffers."""
    start = comm.engine.start_send
    if not frames and len(data) <= PLAIN_MAX:
        return Transfer(comm, start(comm, address_of(data), len(data), dest, tag, mode, offset), data)
    number = next(_numbers) % _NUMBERS
    lead, follow = _frame(data, frames, number)
    parts = [Transfer(comm, start(comm, address_of(lead), len(lead), dest, tag, mode, offset), lead)]
    for part in follow:
        request = start(comm, address_of(part), len(part), dest, number, STANDARD, FRAMES)
        parts.append(Transfer(comm, request, part))
    return Together(parts)


def _frame(data: bytes, frames: list[memoryview], number: int) -> tuple[bytes, list[bytes | memoryview]]:
    """Return the lead of an object and what follows it."""
    head = struct.pack(f"<{len(frames)}q", *(frame.nbytes for frame in frames)) + data
    lead = _LEAD.pack(MAGIC, number, len(head), len(frames))
    if len(lead) + len(head) <= PLAIN_MAX:
        return lead + head, list(frames)
    return lead, [head, *frames]


def start_buffered(comm: NativeComm, obj: Any, dest: int, tag: int, reserve: Callable[[int], None]) -> tuple[Operation, int]:
    """Start sending a copy of an object that nobody waits for, after `reserve` has accepted its size; returns that too."""
    data = pickle.dumps(obj)
    reserve(len(data))
    return start_dumped(comm, data, [], dest, tag), len(data)


def send(comm: NativeComm, obj: Any, dest: int, tag: int, mode: int = STANDARD, offset: int = 0) -> None:
    """Send an object; on return it is the caller's again."""
    if not pickle._is_standard or fast.send_plain(comm.address, obj, dest, tag, mode, offset):
        send_dumped(comm, *dump(obj), dest, tag, mode, offset)


def send_dumped(
    comm: NativeComm, data: bytes, frames: list[memoryview], dest: int, tag: int, mode: int = STANDARD, offset: int = 0
) -> None:
    """Send a pickle and its buffers."""
    if frames or offset or len(data) > PLAIN_MAX:
        complete(comm, start_dumped(comm, data, frames, dest, tag, mode, offset))
        return
    request = fast.send_bytes(comm.address, data, dest, tag, mode)
    if request:
        slow = request == SLOW
        complete(comm, start_dumped(comm, data, [], dest, tag, mode) if slow else Transfer(comm, request, data))


def complete(comm: NativeComm, operation: Operation) -> None:
    """Wait for an object to be sent."""
    if isinstance(operation, Together):
        wait_stepping(comm, operation, "send of an object")
    else:
        operation.wait()
    operation.finish()


def wait_stepping(comm: NativeComm, operation: Operation, what: str) -> None:
    """Wait for an operation while pending object receives ask for their frames."""

    def is_done() -> bool:
        stepping.step()
        return operation.poll()

    try:
        comm.engine.idle_wait(is_done, what)
    except BaseException:
        operation.abandon()
        raise


# Receiving --------------------------------------------------------------------------------------------------------


def receive(comm: NativeComm, source: int, tag: int, offset: int = 0, status: Status | None = None) -> Any:
    """Receive an object, whatever its size."""
    words = 0 if status is None else fast.status_address()
    found = fast.receive_plain(comm.address, source, tag, offset, pickle._is_standard, words)
    if type(found) is bytearray:
        return receive_noted(comm, found, source, tag, offset, status)
    if status is not None:
        fast.fill(status)
    return found


def receive_noted(comm: NativeComm, noted: bytearray, source: int, tag: int, offset: int, status: Status | None) -> Any:
    """Go on with a receive that ended with a note: RAW or MATCHED."""
    if noted[0] == RAW:
        if status is not None:
            fast.fill(status)
        return load(memoryview(noted)[1:])
    message = word_of(noted)
    if message == 0:
        message = comm.engine.wait_match(comm, source, tag, offset, f"recv of an object {from_whom(source, tag)}")
    operation = start_matched(comm, message)
    operation.wait()
    if status is not None:
        operation.fill(status)
    return operation.finish()


def word_of(noted: bytearray) -> int:
    """Return the word in a note."""
    return int.from_bytes(noted[1:], sys.byteorder)


class Place:
    """Room for a plain message, taken and put back by who receives one (unpickling may nest)."""

    __slots__ = ("address", "data")

    def __init__(self) -> None:
        memory = bytes(PLAIN_MAX)
        self.data, self.address = memoryview(memory), id(memory) + _BYTES_OFFSET


_places: list[Place] = []
put_back = _places.append


def take_place() -> Place:
    """Return a free place, which is the caller's until :func:`put_back`."""
    try:
        return _places.pop()
    except IndexError:
        return Place()


def start_matched(comm: NativeComm, message: int) -> ObjectReceive:
    """Start receiving the object of a matched message."""
    nbytes = comm.engine.result(message).nbytes
    data, address = room(nbytes)
    return ObjectReceive(comm, comm.engine.start_matched_recv(comm, message, address, nbytes), data)


def start_receive(comm: NativeComm, source: int, tag: int, bufsz: int) -> ObjectReceive:
    """Post the receive of an object; `bufsz` is room for a pickle that was sent as plain bytes."""
    if bufsz <= PLAIN_MAX:
        place = take_place()
        request = comm.engine.start_recv(comm, place.address, PLAIN_MAX, source, tag)
        operation = ObjectReceive(comm, request, place.data, place)
    else:
        data, address = room(bufsz)
        operation = ObjectReceive(comm, comm.engine.start_recv(comm, address, bufsz, source, tag), data)
    stepping.add(operation)
    return operation


class ObjectReceive(Operation):
    """The receive of one object: first its lead (or all of it), then its head and its buffers."""

    is_owed = False
    __slots__ = ("buffers", "comm", "data", "frame_tag", "head", "lock", "parts", "place", "request", "result")
    comm: NativeComm
    request: int
    data: Any
    result: Result | None
    head: Transfer | None
    parts: list[Transfer]
    place: Place | None

    def __init__(self, comm: NativeComm, request: int, data: Any, place: Place | None = None) -> None:
        self.place = place
        self.comm = comm
        self.request = request
        self.data = data
        self.result = None
        self.head = None
        self.parts = []
        self.lock = threading.Lock()

    @property
    def is_stepped(self) -> bool:
        """Polling it moves it on."""
        return True

    def poll(self) -> bool:
        """Whether it is done, after some progress."""
        if not self.lock.acquire(blocking=False):
            return False
        try:
            return self._advance(is_blocking=False)
        finally:
            self.lock.release()

    def wait(self) -> None:
        """Return when it is done."""
        with self.lock:
            self._advance(is_blocking=True)

    def _advance(self, is_blocking: bool) -> bool:
        """Go through lead, head and buffers as far as they have come; whether all have."""
        if self.result is None:
            if is_blocking:
                self._wait_lead()
            elif not self.comm.engine.done(self.request):
                return False
            self._take_lead()
        if self.head is not None:
            if is_blocking:
                self.head.wait()
            elif not self.head.poll():
                return False
            self._take_head(memoryview(self.head.owner))
        for part in self.parts:
            if is_blocking:
                part.wait()
        done = [is_blocking or part.poll() for part in self.parts]  # each, so that all move on
        return all(done)

    def _wait_lead(self) -> None:
        try:
            self.comm.engine.wait(self.request, "receive of an object", self.data)
        except BaseException as error:
            blame(error, self.comm)
            self.request = 0
            raise

    def _take_lead(self) -> None:
        """Read a complete first message."""
        engine = self.comm.engine
        result = engine.result(self.request)
        engine.free(self.request)
        self.request = 0
        self._read(result)

    def _read(self, result: Result) -> None:
        """Look at what has come; ask for what follows, if it announces something."""
        self.result = result
        lead = None if result.error or result.cancelled else _parse(self.data, result.nbytes)
        if lead is None:
            return
        self.frame_tag, self.buffers = lead.number, lead.buffers
        self.result = result._replace(nbytes=lead.head)
        if result.nbytes == _LEAD.size:
            self.head = self._post(lead.head)
        else:
            self._take_head(memoryview(self.data)[_LEAD.size : result.nbytes])

    def _take_head(self, head: memoryview) -> None:
        """Read how large the buffers are, and ask for them."""
        assert self.result is not None
        if self.head is not None:
            self.head.finish()
            self.head = None
        sizes = struct.unpack_from(f"<{self.buffers}q", head)
        self.data = head[8 * self.buffers :]
        self.parts = [self._post(size) for size in sizes]
        self.result = self.result._replace(nbytes=len(head) + sum(sizes))

    def _post(self, nbytes: int) -> Transfer:
        """Post the receive of one frame."""
        assert self.result is not None
        frame, source = np.empty(nbytes, dtype=np.uint8), self.result.source
        request = self.comm.engine.start_recv(self.comm, frame.ctypes.data, nbytes, source, self.frame_tag, FRAMES)
        return Transfer(self.comm, request, frame, what=f"receive of an object from rank {source}")

    def fill(self, status: Status) -> None:
        """Write what became of it to `status`."""
        assert self.result is not None
        write_status(status, self.result)

    def finish(self) -> Any:
        """Deliver what it brought, and empty it."""
        place = self.place
        found = self._end()
        if found is None:
            return None
        obj = load(*found)
        if place is not None:
            put_back(place)
        return obj

    def settle(self) -> None:
        """Empty it; what has come is dropped without being looked at, as nobody could have it."""
        place = self.place
        if self._end() is not None and place is not None:
            put_back(place)

    def _end(self) -> tuple[Any, list[Any]] | None:
        """Empty it, and return the pickle and the buffers that have come, None if it was cancelled."""
        result, data, parts, comm = self.result, self.data, self.parts, self.comm
        assert result is not None
        frames = [part.owner for part in parts]
        self.empty()
        for part in parts:
            part.finish()
        if result.error:
            raise_error(result, comm, "receive of an object", len(data))
        if result.cancelled:
            return None
        return (data if parts or len(data) == result.nbytes else memoryview(data)[: result.nbytes]), frames

    def cancel(self) -> None:
        """Ask for its cancellation."""
        if self.result is None:
            self.comm.engine.cancel(self.request)

    def release(self) -> None:
        """Give it up; it goes on by itself."""
        self.lock  # noqa: B018  (raises if it is empty already)
        if self.request:
            self.comm.engine.free(self.request, (self.comm, self.data))
            self.request = 0
        self.empty()

    def abandon(self) -> None:
        """Withdraw it after a wait that failed."""
        self.lock  # noqa: B018  (raises if it is empty already)
        if self.request:
            self.comm.engine.withdraw(self.request, self.data)
        for part in self._frames():
            part.abandon()
        self.empty()

    def _frames(self) -> list[Transfer]:
        return [*self.parts, *([self.head] if self.head is not None else [])]

    def empty(self) -> None:
        """Unset what every use of it needs; nothing steps it any more."""
        stepping.discard(self)
        del self.lock, self.result, self.comm

    def __del__(self) -> None:
        try:
            comm = object.__getattribute__(self, "comm")
        except AttributeError:
            return
        if self.request:
            comm.engine.free(self.request, (comm, self.data))


class ObjectTicket(Ticket):
    """The receive of an object, which compiled code starts, completes and uses again (:mod:`ncclx_mpi.p2p.object_tickets`).

    Whatever it leaves to Python, such as a message of several parts, goes on as an :class:`ObjectReceive`, which takes the request over
    and is the `owner` from then on, instead of the place where messages land.
    """

    __slots__ = ("place",)
    HOME = "object_tickets"
    place: Place

    def __init__(self, engine: Engine) -> None:
        self.place = Place()
        super().__init__(engine, self.place.address)
        _posted.add(self.request)

    def general(self) -> ObjectReceive:
        """Return the receive that goes on in Python."""
        with _taking_over:
            owner = self.owner
            if type(owner) is ObjectReceive:
                return owner
            _posted.discard(self.request)
            self.owner = general = ObjectReceive(self.comm, self.request, owner.data, owner)
        stepping.add(general)
        return general

    @property
    def is_stepped(self) -> bool:
        """Polling it moves it on."""
        return True

    def poll(self) -> bool:
        """Whether it is done, after some progress."""
        return self.general().poll()

    def wait(self) -> None:
        """Return when it is done."""
        self.general().wait()

    def fill(self, status: Status) -> None:
        """Write what became of it to `status`."""
        self.general().fill(status)

    def finish(self) -> Any:
        """Deliver what it brought, and empty it."""
        return self._left().finish()

    def settle(self) -> None:
        """Empty it, and drop what has come."""
        self._left().settle()

    def cancel(self) -> None:
        """Ask for its cancellation."""
        self.general().cancel()

    def abandon(self) -> None:
        """Withdraw it after a wait that failed."""
        self._left().abandon()

    def _left(self) -> ObjectReceive:
        general = self.general()
        self.empty()
        return general

    def _forget(self) -> None:
        """Let it go on, moved on by nobody but the stepping."""
        self.general()


_posted: set[int] = set()
"""Requests of all tickets that compiled code has in hand."""
_taking_over = threading.RLock()  # a finalizer may come in between


def _look_at_posted() -> bool:
    """Ask for what follows messages that came to receives nobody waits for; whether there are any receives."""
    if not _posted:
        return False
    look, is_any = entry(object_tickets.look_at_posted), False
    for request in list(_posted):
        state = look(request)
        if state == PARTIAL:
            entry(object_tickets.ticket_of)(request).general()
        is_any = is_any or state == PENDING
    return is_any


stepping.watch(_look_at_posted)
tickets.introduce_objects(ObjectTicket)


def _parse(data: Any, nbytes: int) -> Lead | None:
    """Return what a message says if it is a lead, None if it is a plain pickle."""
    if nbytes < _LEAD.size:
        return None
    magic, number, head, buffers = _LEAD.unpack_from(data)
    return Lead(number, head, buffers) if magic == MAGIC else None

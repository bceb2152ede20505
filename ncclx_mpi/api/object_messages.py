"""Python objects as messages.

A small object travels as its plain pickle, so that ``recv`` takes what ``Send`` sent as bytes, and the other way round. What
is larger than :data:`PLAIN_MAX`, or holds large buffers (arrays), travels as a *lead* and *frames*::

    lead, where the object's message is      frames, on the communicator's frame context, tag = number
    | MAGIC | number | head bytes | frame count | head, if it fits |      | head, if not in the lead | buffer | buffer ...

    head: | bytes of each buffer | pickle |

Large buffers are sent from where they are and received into fresh memory: they are never copied into the pickle. The
lead always fits the buffer that ``irecv`` posts, so ``irecv`` needs no size. Frames of one sender are told apart by the
number in the lead, whatever order their leads are received in.

Who receives a lead asks for the frames. A pending ``irecv`` does so when its rank waits for it or sends an object; a thread makes
progress and sees to it while the rank computes, so that no sender waits for a receiver that has posted its receive.
"""

from __future__ import annotations

import contextlib
import itertools
import pickle as _pickle
import struct
import sys
import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from ncclx_mpi import errors, runtime
from ncclx_mpi.api import fast
from ncclx_mpi.api.pickle import pickle
from ncclx_mpi.api.status import Status
from ncclx_mpi.arguments import of_length
from ncclx_mpi.buffers.memory import array_words
from ncclx_mpi.buffers.source import allocate, open_export
from ncclx_mpi.operations import background_progress
from ncclx_mpi.operations.operation import Operation, Together, on_behalf, wait_for, write_status
from ncclx_mpi.operations.transfer import Ticket, Transfer, raise_error
from ncclx_mpi.p2p import object_requests, request_pool
from ncclx_mpi.p2p.call_words import NO_WORDS, take_words
from ncclx_mpi.p2p.engine import Engine, NativeComm, Result, from_whom
from ncclx_mpi.p2p.fast import SLOW
from ncclx_mpi.p2p.layout import PENDING, STANDARD
from ncclx_mpi.p2p.object_requests import PARTIAL
from ncclx_mpi.p2p.partial_results import RAW
from numba_kernels.jit import entry
from numba_kernels.late_numpy import is_array, np
from numba_kernels.late_numpy import look as look_for_numpy
from numba_kernels.rows import NamedTuple

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
    look_for_numpy()
    if is_array(obj) and obj.nbytes < OUT_OF_BAND_MIN and not obj.dtype.hasobject:
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


def one_each(objects: Iterable[Any] | None, size: int) -> list[Any]:
    """Return what a program gives as an object for each of `size` ranks: None of no objects."""
    return [None] * size if objects is None else of_length(objects, size)


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
    address, (_export, made) = allocate(nbytes)
    return made, address


def address_of(data: bytes | memoryview) -> int:
    """Address of the first byte of `data`."""
    if type(data) is bytes:
        return id(data) + _BYTES_OFFSET
    return int(open_export(data).buf)


# Sending ----------------------------------------------------------------------------------------------------------


def start_dumped(
    comm: NativeComm, data: bytes, frames: list[memoryview], dest: int, tag: int, mode: int = STANDARD, offset: int = 0
) -> Operation:
    """Start sending a pickle and its buffers."""
    if not frames and len(data) <= PLAIN_MAX:
        return Transfer(comm, data).send(address_of(data), len(data), dest, tag, mode, offset)
    number = next(_numbers) % _NUMBERS
    lead, follow = _frame(data, frames, number)
    rest = [Transfer(comm, part).send(address_of(part), len(part), dest, number, STANDARD, FRAMES) for part in follow]
    return _Framed([*rest, Transfer(comm, lead).send(address_of(lead), len(lead), dest, tag, mode, offset)])


class _Framed(Together):
    """The frames of an object, and its lead, which goes last: an object that was interrupted before is not sent, and later is whole.

    So the lead alone decides whether it is cancelled: nobody else asks for the frames.
    """

    __slots__ = ("is_given_up",)

    def __init__(self, parts: Sequence[Operation]) -> None:
        super().__init__(parts)
        self.is_given_up = False
        """Whether its cancellation was asked for, so that it may have come about."""

    def cancel(self) -> None:
        """Ask for its cancellation."""
        self.is_given_up = True
        self.parts[-1].cancel()

    def poll(self) -> bool:
        """Whether it is done, after some progress."""
        lead = self.parts[-1]
        if not lead.poll():
            return False
        if self.is_given_up and isinstance(lead, Transfer) and lead.engine.result(lead.request).cancelled:
            super().cancel()
        return super().poll()

    def wait(self) -> None:
        """Return when it is done."""
        self.parts[-1].wait()
        if self.is_given_up:
            self.poll()
        super().wait()


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
    code = fast.send_bytes(comm.address, data, dest, tag, mode)
    if code == SLOW:
        complete(comm, start_dumped(comm, data, [], dest, tag, mode))
    elif code:
        fast.raise_given_up(comm, code, f"send to rank {dest}, tag {tag}")


def complete(comm: NativeComm, operation: Operation) -> None:
    """Wait for an object to be sent: in compiled code, unless there are pending object receives, which have to ask for their frames."""
    if isinstance(operation, Together) and background_progress.step():
        _wait_stepping(comm, operation)
    else:
        wait_for(operation)
    operation.finish()


def _wait_stepping(comm: NativeComm, operation: Operation) -> None:
    """Wait for an operation while pending object receives are moved on."""

    def is_done() -> bool:
        background_progress.step()
        return operation.poll()

    try:
        comm.engine.idle_wait(is_done, "send of an object")
    except BaseException:
        operation.abandon()
        raise


# Receiving --------------------------------------------------------------------------------------------------------


def receive(comm: NativeComm, source: int, tag: int, offset: int = 0, status: Status | None = None) -> Any:
    """Receive an object, whatever its size."""
    said = NO_WORDS if status is None else take_words()
    found = fast.receive_plain(comm.address, source, tag, offset, pickle._is_standard, said.address)
    if status is not None and is_received(found):
        fast.fill(status, said)
    return receive_noted(comm, found, source, tag, offset, status) if type(found) is bytearray else found


def is_received(found: Any) -> bool:
    """Whether what a compiled receive returns came with what its message was: an object, or the note RAW."""
    return type(found) is not bytearray or found[0] == RAW


def receive_noted(comm: NativeComm, noted: bytearray, source: int, tag: int, offset: int, status: Status | None) -> Any:
    """Go on with a receive that ended with a note: RAW or MATCHED."""
    if noted[0] == RAW:
        return load(memoryview(noted)[1:])
    message = word_of(noted)
    if message == 0:
        message = comm.engine.wait_match(comm, source, tag, offset, f"recv of an object {from_whom(source, tag)}")
    operation = ObjectRequest(_receive_matched(comm, message))
    wait_for(operation)
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


def start_matched(comm: NativeComm, message: int) -> ObjectRequest:
    """Start receiving the object of a matched message."""
    receive = _receive_matched(comm, message)
    background_progress.add(receive)
    return ObjectRequest(receive)


def _receive_matched(comm: NativeComm, message: int) -> ObjectReceive:
    nbytes = comm.engine.result(message).nbytes
    data, address = room(nbytes)
    receive = ObjectReceive(comm, data)
    comm.engine.start_matched_recv(comm, message, address, nbytes, receive.request)
    return receive


def start_receive(comm: NativeComm, source: int, tag: int, bufsz: int) -> ObjectRequest:
    """Post the receive of an object; `bufsz` is room for a pickle that was sent as plain bytes."""
    place = take_place() if bufsz <= PLAIN_MAX else None
    data, address = room(bufsz) if place is None else (place.data, place.address)
    receive = ObjectReceive(comm, data, place)
    operation = ObjectRequest(receive)
    comm.engine.start_recv(comm, address, len(data), source, tag, request=receive.request)
    background_progress.add(receive)
    return operation


class ObjectReceive:
    """The receive of one object: first its lead (or all of it), then its head and its buffers.

    Whoever waits for it moves it on, and so does the thread of :mod:`ncclx_mpi.operations.background_progress`: each step is taken under
    the lock, which nobody holds while waiting. A finalizer or signal handler that comes in between leaves the step to the code that it
    interrupts.

    Parameters
    ----------
    comm
        The communicator.
    data
        Memory for the first message.
    place
        What `data` belongs to, to be put back.
    request
        The engine's request of the first message, if there is one already.
    """

    is_owed = False
    __slots__ = (
        "_awaited",
        "_buffers",
        "_comm",
        "_data",
        "_frame_tag",
        "_head",
        "_is_stepping",
        "_lock",
        "_parts",
        "_place",
        "_result",
        "request",
    )

    def __init__(self, comm: NativeComm, data: Any, place: Place | None = None, request: int = 0) -> None:
        self._comm = comm
        self._data = data
        self._place = place
        self._lock = threading.RLock()
        self._is_stepping = False
        self._awaited: tuple[int, int, str] | None = None
        self._result: Result | None = None
        self._head: Transfer | None = None
        self._parts: list[Transfer] = []
        self.request = request or comm.engine.new_request()
        """The engine's request of the first message; 0 once that is complete, or was given up."""

    def poll(self) -> bool:
        """Go through lead, head and buffers as far as they have come; whether all have."""
        with self._lock:
            if self._is_stepping:
                return False
            self._is_stepping = True
            try:
                is_done = self._advance()
                self._awaited = None if is_done else self._next_awaited()
                return is_done
            finally:
                self._is_stepping = False

    def wait(self) -> None:
        """Return when all have come."""
        engine = self._comm.engine
        while not self.poll():
            awaited = self._awaited
            if awaited is None:
                engine.progress()
                continue
            request, serial, what = awaited
            on_behalf(self._comm, engine.await_request, request, what, serial)

    def _advance(self) -> bool:
        if self._result is None:
            if not self._comm.engine.done(self.request):
                return False
            self._take_lead()
        if self._head is not None:
            if not self._head.poll():
                return False
            self._take_head(memoryview(self._head.owner))
        done = [part.poll() for part in self._parts]  # each, so that all move on
        return all(done)

    def _next_awaited(self) -> tuple[int, int, str] | None:
        """Return what has to come next: a request, its serial, and what it is."""
        engine = self._comm.engine
        if self._result is None:
            return self.request, engine.serial(self.request), "receive of an object"
        for frame in self._parts if self._head is None else [self._head]:
            if not frame.poll():
                return frame.request, engine.serial(frame.request), frame.what
        return None

    def _take_lead(self) -> None:
        """Read a complete first message."""
        engine, request = self._comm.engine, self.request
        result = engine.result(request)
        self.request = 0  # before it is given back, so that whoever reads both (cancel) can tell
        engine.free(request)
        self._read(result)

    def _read(self, result: Result) -> None:
        """Look at what has come; ask for what follows, if it announces something."""
        self._result = result
        lead = None if result.error or result.cancelled else _parse(self._data, result.nbytes)
        if lead is None:
            return
        self._frame_tag, self._buffers = lead.number, lead.buffers
        if result.nbytes == _LEAD.size:
            self._head = self._post(lead.head)
        else:
            self._take_head(memoryview(self._data)[_LEAD.size : result.nbytes])

    def _take_head(self, head: memoryview) -> None:
        """Read how large the buffers are, and ask for them."""
        assert self._result is not None
        if self._head is not None:
            finished, self._head = self._head, None
            finished.finish()
        sizes = struct.unpack_from(f"<{self._buffers}q", head)
        self._data = head[8 * self._buffers :]
        self._parts = [self._post(size) for size in sizes]
        self._result = self._result._replace(nbytes=len(head) + sum(sizes))

    def _post(self, nbytes: int) -> Transfer:
        """Post the receive of one frame."""
        assert self._result is not None
        frame, source = np.empty(nbytes, dtype=np.uint8), self._result.source
        transfer = Transfer(self._comm, frame, what=f"receive of an object from rank {source}")
        return transfer.receive(array_words(frame)[0], nbytes, source, self._frame_tag, FRAMES)

    def fill(self, status: Status) -> None:
        """Write what became of it to `status`."""
        assert self._result is not None
        write_status(status, self._result)

    def finish(self) -> Any:
        """Deliver what it brought."""
        found = self._end()
        if found is None:
            return None
        obj = load(*found)
        self._put_back()
        return obj

    def settle(self) -> None:
        """End it; what has come is dropped without being looked at, as nobody could have it."""
        if self._end() is not None:
            self._put_back()

    def _put_back(self) -> None:
        place, self._place = self._place, None
        if place is not None:
            put_back(place)

    def _end(self) -> tuple[Any, list[Any]] | None:
        """Return the pickle and the buffers that have come, None if it was cancelled; nothing steps it any more."""
        background_progress.discard(self)
        result, data = self._result, self._data
        parts, self._parts = self._parts, []
        assert result is not None
        frames = [part.owner for part in parts]
        for part in parts:
            part.finish()
        if result.error:
            raise_error(result, self._comm, "receive of an object", len(data))
        if result.cancelled:
            return None
        return (data if parts or len(data) == result.nbytes else memoryview(data)[: result.nbytes]), frames

    def cancel(self) -> None:
        """Ask for its cancellation."""
        engine, request = self._comm.engine, self.request
        serial = engine.serial(request) if request else 0
        if request and self.request == request:  # still there: the serial was that of this message
            engine.cancel(request, serial)

    def withdraw(self) -> None:
        """Give it up after a wait that failed: no memory is touched any more."""
        background_progress.discard(self)
        with self._lock:
            request, self.request = self.request, 0
            if request:
                self._comm.engine.withdraw(request, self._data)
            for part in [*self._parts, *([self._head] if self._head is not None else [])]:
                part.abandon()

    def __del__(self) -> None:
        request = getattr(self, "request", 0)
        if request:
            self._comm.engine.free(request, (self._comm, self._data))


class _Receiving(Operation):
    """What a request of an object stands for: a handle of the receive, which goes on without it; polling moves it on."""

    __slots__ = ()
    is_stepped = True

    def general(self) -> ObjectReceive:
        """Return the receive."""
        raise AssertionError

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

    def release(self) -> None:
        """Give it up; the receive goes on, moved on by background progress alone."""
        background_progress.add(self._left())

    def abandon(self) -> None:
        """Withdraw it after a wait that failed."""
        self._left().withdraw()

    def _left(self) -> ObjectReceive:
        general = self.general()
        self.empty()
        return general


class ObjectRequest(_Receiving):
    """The receive of an object that Python has started."""

    __slots__ = ("receive",)

    def __init__(self, receive: ObjectReceive) -> None:
        self.receive = receive

    def general(self) -> ObjectReceive:
        """Return the receive."""
        return self.receive


class ObjectTicket(_Receiving, Ticket):
    """The receive of an object, which compiled code starts, completes and uses again (:mod:`ncclx_mpi.p2p.object_requests`).

    Whatever it leaves to Python, such as a message of several parts, goes on as an :class:`ObjectReceive`, which takes the request over
    and is the `owner` from then on, instead of the place where messages land.
    """

    __slots__ = ("place",)
    HOME = "object_requests"
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
            self.owner = general = ObjectReceive(self.comm, owner.data, owner, self.request)
            entry(request_pool.leave_ticket)(self.request)
        background_progress.add(general)
        return general


_posted: set[int] = set()
"""Requests of all tickets that compiled code has in hand."""
_taking_over = threading.RLock()  # a finalizer may come in between


def _look_at_posted() -> bool:
    """Move receives that nobody waits for on, and ask for what follows the messages that came to them; whether there are any."""
    if not _posted or not runtime.is_active():
        return False
    runtime.engine().progress()
    look, is_any = entry(object_requests.look_at_posted), False
    for request in list(_posted):
        state = look(request)
        if state == PARTIAL:
            ticket = entry(object_requests.take_partial)(request)
            with contextlib.suppress(errors.Exception):  # its owner may be quicker
                if ticket is not None:
                    ticket.general()
        is_any = is_any or state == PENDING
    return is_any


background_progress.watch(_look_at_posted)
request_pool.introduce_objects(ObjectTicket)


def _parse(data: Any, nbytes: int) -> Lead | None:
    """Return what a message says if it is a lead, None if it is a plain pickle."""
    if nbytes < _LEAD.size:
        return None
    magic, number, head, buffers = _LEAD.unpack_from(data)
    return Lead(number, head, buffers) if magic == MAGIC else None

"""Requests: handles of pending operations, waited for one by one or many at once."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from operator import methodcaller
from typing import Any, ClassVar, Literal, Self

from ncclx_mpi import errors, runtime
from ncclx_mpi.api import fast, object_messages
from ncclx_mpi.api.handle import Handle, constant, integer
from ncclx_mpi.api.pickle import pickle
from ncclx_mpi.api.status import Status, check_status, check_statuses
from ncclx_mpi.constants import UNDEFINED
from ncclx_mpi.operations.operation import EMPTY, Operation, Persistent, write_status
from ncclx_mpi.operations.partitioned import NoPartner, PartitionedReceive, PartitionedSend
from ncclx_mpi.operations.transfer import Bound, Ticket
from ncclx_mpi.p2p import request_pool
from ncclx_mpi.p2p.call_words import NO_WORDS, leave_words, take_words
from ncclx_mpi.p2p.fast import SLOW
from ncclx_mpi.p2p.partial_results import NOT_YET, RAW
from ncclx_mpi.p2p.request_pool import DONE
from ncclx_mpi.p2p.requests import STATUS_WORDS

_NULL = Operation.__new__(Operation)

Deliver = Callable[[Operation], Any]
_TESTING, _WAITING = 0, 1
_finish, _settle = methodcaller("finish"), methodcaller("settle")
"""How a done operation ends: lower-case methods want the object that it brought, upper-case ones don't."""


class Request(Handle):
    """Request handler."""

    __slots__ = ()
    _NULL = _NULL
    _STATE = (Operation,)
    _state: Operation

    _SORT: ClassVar[tuple[type[Request]]]
    """The class that all handles of this sort of request are of; in a tuple for the reason that `_ROOT` is."""

    def __new__(cls, request: Request | None = None) -> Self:
        """Create a handle of the same operation, or a null one."""
        self = cls._copy(request, "request")
        if self and not isinstance(request, cls._SORT):
            raise TypeError(f"expected a {cls._SORT[0].__name__}, got {type(request).__name__}")
        return self

    @classmethod
    def fromhandle(cls, handle: int) -> Request:
        """Create object from the integer that `handle` gave."""
        return cls._SORT[0]._refer(cls._find(handle))

    # One request

    def Wait(self, status: Status | None = None) -> Literal[True]:
        """Wait for a non-blocking operation to complete."""
        if _complete(self, status) != DONE:
            _wait(self, status, _settle)
        return True

    def Test(self, status: Status | None = None) -> bool:
        """Test for the completion of a non-blocking operation."""
        code = _try(self, status)
        return code == DONE if code != SLOW else _test(self, status, _settle)[0]

    def Get_status(self, status: Status | None = None) -> bool:
        """Non-destructive test for the completion of a request."""
        check_status(status)
        if not _is_active(self):
            _fill_empty(status)
            return True
        if not self._state.poll():
            return _none_yet("get_status")
        if status is not None:
            self._state.fill(status)
        return True

    def wait(self, status: Status | None = None) -> Any:
        """Wait for a non-blocking operation to complete; return the object received, if any."""
        found = _complete_object(self, status, _WAITING)
        if type(found) is bytearray:
            return _wait(self, status, _finish) if found[0] != RAW else object_messages.load(memoryview(found)[1:])
        return found

    def test(self, status: Status | None = None) -> tuple[bool, Any | None]:
        """Test for the completion of a non-blocking operation; return the object received, if any."""
        found = _complete_object(self, status, _TESTING)
        if type(found) is not bytearray:
            return True, found
        if found[0] == RAW:
            return True, object_messages.load(memoryview(found)[1:])
        return (False, None) if found[0] == NOT_YET else _test(self, status, _finish)

    def get_status(self, status: Status | None = None) -> bool:
        """Non-destructive test for the completion of a request."""
        return self.Get_status(status)

    # Any of several

    @classmethod
    def Waitany(cls, requests: Sequence[Request], status: Status | None = None) -> int:
        """Wait for any previously initiated request to complete."""
        index = _complete_any(requests, status, _WAITING)
        return index if index >= 0 else _wait_any(requests, status, _settle)[0]

    @classmethod
    def Testany(cls, requests: Sequence[Request], status: Status | None = None) -> tuple[int, bool]:
        """Test for completion of any previously initiated request."""
        index = _complete_any(requests, status, _TESTING)
        if index == SLOW:
            return _test_any(requests, status, _settle)[:2]
        return index, index != UNDEFINED

    @classmethod
    def Get_status_any(cls, requests: Sequence[Request], status: Status | None = None) -> tuple[int, bool]:
        """Non-destructive test for the completion of any requests."""
        check_status(status)
        index, flag = _first_done(_checked(requests))
        if not flag:
            return UNDEFINED, _none_yet("get_status_any")
        if index == UNDEFINED:
            _fill_empty(status)
            return UNDEFINED, True
        if status is not None:
            requests[index]._state.fill(status)
        return index, True

    @classmethod
    def waitany(cls, requests: Sequence[Request], status: Status | None = None) -> tuple[int, Any]:
        """Wait for any previously initiated request to complete; return its object too."""
        return _wait_any(requests, status, _finish)

    @classmethod
    def testany(cls, requests: Sequence[Request], status: Status | None = None) -> tuple[int, bool, Any | None]:
        """Test for completion of any previously initiated request; return its object too."""
        return _test_any(requests, status, _finish)

    @classmethod
    def get_status_any(cls, requests: Sequence[Request], status: Status | None = None) -> tuple[int, bool]:
        """Non-destructive test for the completion of any requests."""
        return cls.Get_status_any(requests, status)

    # All of several

    @classmethod
    def Waitall(cls, requests: Sequence[Request], statuses: list[Status] | None = None) -> Literal[True]:
        """Wait for all previously initiated requests to complete."""
        if _complete_all(requests, statuses, _WAITING) != DONE:
            _wait_all(requests, statuses, _settle)
        return True

    @classmethod
    def Testall(cls, requests: Sequence[Request], statuses: list[Status] | None = None) -> bool:
        """Test for completion of all previously initiated requests."""
        code = _complete_all(requests, statuses, _TESTING)
        return code == DONE if code != SLOW else _test_all(requests, statuses, _settle)[0]

    @classmethod
    def Get_status_all(cls, requests: Sequence[Request], statuses: list[Status] | None = None) -> bool:
        """Non-destructive test for the completion of all requests."""
        check_statuses(statuses)
        if not _all_done(_checked(requests)):
            return _none_yet("get_status_all")
        if statuses is not None:
            _extend(statuses, len(requests))
            for request, status in zip(requests, statuses, strict=False):
                status.error = errors.SUCCESS
                request.Get_status(status)
        return True

    @classmethod
    def waitall(cls, requests: Sequence[Request], statuses: list[Status] | None = None) -> list[Any]:
        """Wait for all previously initiated requests to complete; return their objects."""
        if statuses is not None:
            return _wait_all(requests, statuses, _finish)
        try:
            found = fast.complete_all_objects(requests, _WAITING, pickle._is_standard)
        except BaseException:  # of a signal handler
            _void(*requests)
            raise
        if type(found) is list:
            return found
        if type(found) is bytearray:
            return _wait_all(requests, None, _finish)
        return [object_messages.load(memoryview(item)[1:]) if type(item) is bytearray else item for item in found]

    @classmethod
    def testall(cls, requests: Sequence[Request], statuses: list[Status] | None = None) -> tuple[bool, list[Any] | None]:
        """Test for completion of all previously initiated requests; return their objects."""
        return _test_all(requests, statuses, _finish)

    @classmethod
    def get_status_all(cls, requests: Sequence[Request], statuses: list[Status] | None = None) -> bool:
        """Non-destructive test for the completion of all requests."""
        return cls.Get_status_all(requests, statuses)

    # Some of several

    @classmethod
    def Waitsome(cls, requests: Sequence[Request], statuses: list[Status] | None = None) -> list[int] | None:
        """Wait for some previously initiated requests to complete."""
        indices = _complete_some(requests, statuses, _WAITING)
        return _wait_some(requests, statuses, _settle)[0] if indices is None else indices

    @classmethod
    def Testsome(cls, requests: Sequence[Request], statuses: list[Status] | None = None) -> list[int] | None:
        """Test for completion of some previously initiated requests."""
        indices = _complete_some(requests, statuses, _TESTING)
        return _test_some(requests, statuses, _settle)[0] if indices is None else indices

    @classmethod
    def Get_status_some(cls, requests: Sequence[Request], statuses: list[Status] | None = None) -> list[int] | None:
        """Non-destructive test for completion of some requests."""
        check_statuses(statuses)
        indices = _some_now_done(requests, "get_status_some")
        if indices is not None and statuses is not None:
            _extend(statuses, len(indices))
            for index, status in zip(indices, statuses, strict=False):
                status.error = errors.SUCCESS
                requests[index]._state.fill(status)
        return indices

    @classmethod
    def waitsome(
        cls, requests: Sequence[Request], statuses: list[Status] | None = None
    ) -> tuple[list[int] | None, list[Any] | None]:
        """Wait for some previously initiated requests to complete; return their objects too."""
        return _wait_some(requests, statuses, _finish)

    @classmethod
    def testsome(
        cls, requests: Sequence[Request], statuses: list[Status] | None = None
    ) -> tuple[list[int] | None, list[Any] | None]:
        """Test for completion of some previously initiated requests; return their objects too."""
        return _test_some(requests, statuses, _finish)

    @classmethod
    def get_status_some(cls, requests: Sequence[Request], statuses: list[Status] | None = None) -> list[int] | None:
        """Non-destructive test for completion of some requests."""
        return cls.Get_status_some(requests, statuses)

    # Ending

    def Cancel(self) -> None:
        """Cancel a request."""
        if not self:
            errors.fail(errors.ERR_REQUEST, "MPI.REQUEST_NULL cannot be cancelled")
        self._state.cancel()

    def cancel(self) -> None:
        """Cancel a request."""
        self.Cancel()

    def Free(self) -> None:
        """Free a communication request; the operation goes on by itself."""
        if not self:
            errors.fail(errors.ERR_REQUEST, "MPI.REQUEST_NULL cannot be freed")
        self._state.release()
        self._become_null()


class Prequest(Request):
    """Persistent request handler."""

    __slots__ = ()

    def Start(self) -> None:
        """Initiate a communication with a persistent request."""
        if fast.start_one(self) != DONE:
            self._operation().start()

    @classmethod
    def Startall(cls, requests: list[Prequest]) -> None:
        """Start a collection of persistent requests."""
        started = fast.start_all(requests)
        if started < len(requests):
            for request in _checked(requests):
                Prequest._operation(request)
            for request in requests[started:]:
                request.Start()

    # Partitions

    def Pready(self, partition: int) -> None:
        """Mark a given partition as ready; any thread may.

        Raises
        ------
        Exception
            ERR_REQUEST: the request is no started partitioned send. ERR_ARG: there is no such partition, or it is ready already.
        """
        self._partitioned_send().ready(integer(partition, "partition"))

    def Pready_range(self, partition_low: int, partition_high: int) -> None:
        """Mark partitions from the low to the high one, which is one of them, as ready."""
        for partition in range(integer(partition_low, "partition_low"), integer(partition_high, "partition_high") + 1):
            self.Pready(partition)

    def Pready_list(self, partitions: Sequence[int]) -> None:
        """Mark a sequence of partitions as ready."""
        for partition in partitions:
            self.Pready(partition)

    def Parrived(self, partition: int) -> bool:
        """Test partial completion of a partitioned receive: whether a partition has come. It has where the request is not started.

        Raises
        ------
        Exception
            ERR_REQUEST: the request is no partitioned receive. ERR_ARG: there is no such partition.
        """
        operation = self._state if self else None
        if not isinstance(operation, PartitionedReceive | NoPartner):
            errors.fail(errors.ERR_REQUEST, "this request is no partitioned receive: Precv_init makes one")
        return operation.has_arrived(integer(partition, "partition"))

    def _partitioned_send(self) -> PartitionedSend | NoPartner:
        operation = self._state if self else None
        if not isinstance(operation, PartitionedSend | NoPartner):
            errors.fail(errors.ERR_REQUEST, "this request is no partitioned send: Psend_init makes one")
        return operation

    def _operation(self: Request) -> Persistent | Bound:
        operation = self._state
        if not isinstance(operation, Persistent | Bound):
            errors.fail(errors.ERR_REQUEST, "this request is null or not persistent: it cannot be started")
        return operation


def _complete(request: Request, status: Status | None) -> int:
    """Wait for a plain message natively: DONE, or SLOW if that needs more, with nothing done."""
    try:
        code: int = fast.complete_one(request, _WAITING, status)
    except BaseException:  # of a signal handler
        _void(request)
        raise
    return code


def _try(request: Request, status: Status | None) -> int:
    """Complete a plain message natively if it is done: DONE, NOT_YET, or SLOW with nothing done."""
    code: int = fast.complete_one(request, _TESTING, status)
    return code


def _none_yet(what: str) -> Literal[False]:
    """Return False, for what is not complete; raises if it may never be, because a rank has died or the job was aborted."""
    runtime.engine().check_peers(what)
    return False


def _complete_any(requests: Sequence[Request], status: Status | None, waits: int) -> int:
    """Complete one of several plain messages natively: its index, UNDEFINED if none is done yet, SLOW with nothing done."""
    places = take_words()
    try:
        count = fast.complete_some(requests, waits, 1, places.address, None if status is None else (status,))
    except BaseException:  # of a signal handler
        _void(*requests)
        raise
    place = places.words[0]
    leave_words(places)
    return place if count > 0 else SLOW if count < 0 else UNDEFINED


def _complete_some(requests: Sequence[Request], statuses: list[Status] | None, waits: int) -> list[int] | None:
    """Complete the done ones of several plain messages natively: their indices; None with nothing done."""
    places = take_words(len(requests))
    room = _room(statuses, len(requests))
    try:
        most = len(places.words)  # another thread may have made the list longer
        count = fast.complete_some(requests, waits, most, places.address, room)
    except BaseException:  # of a signal handler
        _void(*requests)
        raise
    indices = places.words[: max(count, 0)].tolist()
    leave_words(places)
    if count < 0:
        return None
    _take_over(statuses, room, count)
    return indices


def _complete_all(requests: Sequence[Request], statuses: list[Status] | None, waits: int) -> int:
    """Complete several plain messages natively, all of them: DONE, NOT_YET, or SLOW with nothing done."""
    room = statuses if statuses is None else _room(statuses, len(requests))
    try:
        code: int = fast.complete_all(requests, waits, room)
    except BaseException:  # of a signal handler
        _void(*requests)
        raise
    if code == DONE and room is not statuses:
        _take_over(statuses, room, len(requests))
    return code


def _room(statuses: list[Status] | None, count: int) -> list[Status] | None:
    """Return `statuses`, or new ones for the time being if the list is too short: it grows once something is complete."""
    if isinstance(statuses, list) and len(statuses) < count:
        check_statuses(statuses)
        return [Status() for _ in range(count)]
    return statuses


def _take_over(statuses: Any, room: Any, count: int) -> None:
    """Move the first `count` of what :func:`_room` returned to where they were wanted."""
    if room is not statuses:
        _extend(statuses, count)
        for target, result in zip(statuses, room[:count], strict=False):
            target._words = result._words


def _complete_object(request: Request, status: Status | None, waits: int) -> Any:
    """Complete a message natively: the object that it brought, or a note: RAW, NOT_YET, or SLOW with nothing done."""
    said = NO_WORDS if status is None else fast.room_for(status)
    try:
        found = fast.complete_object(request, waits, pickle._is_standard, said.address)
    except BaseException:  # of a signal handler
        _void(request)
        raise
    if status is not None and object_messages.is_received(found):
        source, tag, nbytes, _, cancelled = said.words[:STATUS_WORDS]
        leave_words(said)
        status._fill(source, tag, nbytes, bool(cancelled))
    return found


def _is_active(request: Request) -> bool:
    operation = request._state
    return operation is not _NULL and operation.is_active


def _fill_empty(status: Status | None) -> None:
    """Write the status of a wait for nothing."""
    if status is not None:
        write_status(status, EMPTY)
        status.error = errors.SUCCESS


def _wait(request: Request, status: Status | None, deliver: Deliver) -> Any:
    check_status(status)
    if not _is_active(request):
        _fill_empty(status)
        return None
    try:
        request._state.wait()
    except BaseException:
        _void(request)
        raise
    return _retire(deliver, request, status)


def _test(request: Request, status: Status | None, deliver: Deliver) -> tuple[bool, Any | None]:
    check_status(status)
    if not _is_active(request):
        _fill_empty(status)
        return True, None
    if not request._state.poll():
        return _none_yet("test"), None
    return True, _retire(deliver, request, status)


def _wait_any(requests: Sequence[Request], status: Status | None, deliver: Deliver) -> tuple[int, Any]:
    check_status(status)
    found = (UNDEFINED, False)

    def is_one_done() -> bool:
        nonlocal found
        found = _first_done(requests)
        return found[1]

    _wait_until(is_one_done, _checked(requests), "waitany")
    index = found[0]
    if index == UNDEFINED:
        _fill_empty(status)
        return UNDEFINED, None
    return index, _retire(deliver, requests[index], status)


def _test_any(requests: Sequence[Request], status: Status | None, deliver: Deliver) -> tuple[int, bool, Any | None]:
    check_status(status)
    index, flag = _first_done(_checked(requests))
    if not flag:
        return UNDEFINED, _none_yet("testany"), None
    if index == UNDEFINED:
        _fill_empty(status)
        return UNDEFINED, True, None
    return index, True, _retire(deliver, requests[index], status)


def _wait_all(requests: Sequence[Request], statuses: list[Status] | None, deliver: Deliver) -> list[Any]:
    check_statuses(statuses)
    if any(request._state.is_stepped for request in _checked(requests)):
        _wait_until(lambda: _all_done(requests), requests, "waitall")
        return _retire_many(deliver, requests, range(len(requests)), statuses)
    for request in requests:
        if _is_active(request):
            try:
                request._state.wait()
            except BaseException:
                _void(*requests)
                raise
    return _retire_many(deliver, requests, range(len(requests)), statuses)


def _test_all(requests: Sequence[Request], statuses: list[Status] | None, deliver: Deliver) -> tuple[bool, list[Any] | None]:
    check_statuses(statuses)
    if not _all_done(_checked(requests)):
        return _none_yet("testall"), None
    return True, _retire_many(deliver, requests, range(len(requests)), statuses)


def _wait_some(
    requests: Sequence[Request], statuses: list[Status] | None, deliver: Deliver
) -> tuple[list[int] | None, list[Any] | None]:
    check_statuses(statuses)
    indices: list[int] | None = None

    def are_some_done() -> bool:
        nonlocal indices
        indices = _all_now_done(requests)
        return indices is None or bool(indices)

    _wait_until(are_some_done, _checked(requests), "waitsome")
    return (None, None) if indices is None else (indices, _retire_many(deliver, requests, indices, statuses))


def _test_some(
    requests: Sequence[Request], statuses: list[Status] | None, deliver: Deliver
) -> tuple[list[int] | None, list[Any] | None]:
    check_statuses(statuses)
    indices = _some_now_done(requests, "testsome")
    return (None, None) if indices is None else (indices, _retire_many(deliver, requests, indices, statuses))


def _retire(deliver: Deliver, request: Request, status: Status | None) -> Any:
    """Deliver what a done request brought; the request is null from now on, unless it is persistent."""
    operation = request._state
    try:
        if status is not None:
            operation.fill(status)
        return deliver(operation)
    finally:
        if not operation.is_persistent:
            request._state = _NULL


def _void(*requests: Request) -> None:
    """Withdraw what a failed wait was for: the buffers belong to the caller again."""
    for request in requests:
        operation = request._state
        if not _is_active(request):
            continue
        with contextlib.suppress(errors.Exception):  # the one that made the wait fail is empty already
            operation.abandon()
        if not operation.is_persistent:
            request._state = _NULL


def _checked(requests: Sequence[Request]) -> Sequence[Request]:
    """Return `requests`, of which each is one.

    Raises
    ------
    TypeError
        One is not.
    """
    for request in requests:
        if not isinstance(request, Request):
            raise TypeError(f"expected a Request, got {type(request).__name__}")
    return requests


def _wait_until(predicate: Callable[[], bool], requests: Sequence[Request], what: str) -> None:
    if predicate():
        return
    try:
        runtime.engine().idle_wait(predicate, what)
    except BaseException:
        _void(*requests)
        raise


def _first_done(requests: Sequence[Request]) -> tuple[int, bool]:
    """Index of the first done request and whether to stop waiting: UNDEFINED and true if none is active."""
    is_any_active = False
    for index, request in enumerate(requests):
        if _is_active(request):
            is_any_active = True
            if request._state.poll():
                return index, True
    return UNDEFINED, not is_any_active


def _all_done(requests: Sequence[Request]) -> bool:
    done = [request._state.poll() for request in requests if _is_active(request)]  # each, so that all move on
    return all(done)


def _all_now_done(requests: Sequence[Request]) -> list[int] | None:
    """Indices of done requests, None if no request is active."""
    active = [index for index, request in enumerate(requests) if _is_active(request)]
    return [index for index in active if requests[index]._state.poll()] if active else None


def _some_now_done(requests: Sequence[Request], what: str) -> list[int] | None:
    """As :func:`_all_now_done`, for a call that does not wait."""
    indices = _all_now_done(_checked(requests))
    if indices == []:
        _none_yet(what)
    return indices


def _retire_many(deliver: Deliver, requests: Sequence[Request], indices: Sequence[int], statuses: list[Status] | None) -> list[Any]:
    """Deliver what done requests brought, each error in its status.

    Raises
    ------
    Exception
        ERR_IN_STATUS: one or more failed; the text is that of the first.
    """
    objects: list[Any] = []
    results: list[Status] = []
    failure: errors.Exception | None = None
    for index in indices:
        status = None if statuses is None else Status()
        if status is not None:
            results.append(status)
        try:
            objects.append(_retire(deliver, requests[index], status) if _is_active(requests[index]) else None)
        except errors.Exception as exception:
            failure = failure or exception
            if status is not None:
                status.error = int(exception)
    if statuses is not None:
        _take_over(statuses, results, len(results))
    if failure is not None:
        raise errors.error(errors.ERR_IN_STATUS, str(failure)) from failure
    return objects


def _extend(statuses: Any, count: int) -> None:
    """Make a list of statuses long enough; tuples stay as they are."""
    if isinstance(statuses, list):
        statuses.extend(Status() for _ in range(count - len(statuses)))


request_pool.introduce(Request, Prequest, Ticket, Bound, _NULL)
request_pool.introduce_statuses(Status, Status()._words)

Request._SORT, Prequest._SORT = (Request,), (Prequest,)
REQUEST_NULL = constant(Request(), "REQUEST_NULL")

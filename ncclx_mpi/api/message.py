"""Messages that a matching probe took out of matching: whoever holds one is the only one who can receive it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

from ncclx_mpi import arguments, errors
from ncclx_mpi.api import fast, object_messages
from ncclx_mpi.api.handle import Handle, constant, is_constant
from ncclx_mpi.api.pickle import pickle
from ncclx_mpi.api.request import Request
from ncclx_mpi.api.status import Status
from ncclx_mpi.constants import ANY_SOURCE, ANY_TAG
from ncclx_mpi.operations import device_transfer
from ncclx_mpi.operations.operation import NO_PROC, Operation, started, write_status
from ncclx_mpi.operations.transfer import Transfer
from ncclx_mpi.p2p.call_words import NO_WORDS
from ncclx_mpi.p2p.engine import NativeComm
from ncclx_mpi.state import State
from ncclx_mpi.typing import BufSpec

if TYPE_CHECKING:
    from ncclx_mpi.api.comm_p2p import PointToPoint


class MessageState(State):
    """A matched message: its communicator and the engine's handle."""

    __slots__ = ("comm", "message")
    WHAT = "message"
    ERROR = errors.ERR_REQUEST
    comm: NativeComm
    message: int


_NULL = MessageState()
_NO_PROC = MessageState()


class Message(Handle):
    """Matched message."""

    __slots__ = ()
    _NULL = _NULL
    _STATE = (MessageState,)
    _state: MessageState

    def __new__(cls, message: Message | None = None) -> Self:
        """Create a handle of the same message, or a null one."""
        return cls._copy(message, "message")

    def free(self) -> None:
        """Do nothing: a message ends by being received."""
        if self._state is _NO_PROC and not is_constant(self):
            self._become_null()

    # Probing

    @classmethod
    def Probe(cls, comm: PointToPoint, source: int = ANY_SOURCE, tag: int = ANY_TAG, status: Status | None = None) -> Self:
        """Blocking test for a matched message."""
        state = comm._state
        said = NO_WORDS if status is None else fast.room_for(status)
        message = fast.await_message(state.address, source, tag, 1, said.address)
        if message:
            if status is not None:
                fast.fill(status, said)
            return cls._holding(state.native, message)
        native, source, tag, is_null = comm._peer(source, tag)
        return cls._matched(native, -1 if is_null else native.engine.wait_match(native, source, tag), status)

    @classmethod
    def Iprobe(cls, comm: PointToPoint, source: int = ANY_SOURCE, tag: int = ANY_TAG, status: Status | None = None) -> Self | None:
        """Nonblocking test for a matched message."""
        state = comm._state
        said = NO_WORDS if status is None else fast.room_for(status)
        message = fast.look_for_message(state.address, source, tag, 1, said.address)
        if message >= 0:
            if message and status is not None:
                fast.fill(status, said)
            return cls._holding(state.native, message) if message else None
        native, source, tag, is_null = comm._peer(source, tag)
        message = -1 if is_null else native.engine.match(native, source, tag)
        return cls._matched(native, message, status) if message else None

    @classmethod
    def probe(cls, comm: PointToPoint, source: int = ANY_SOURCE, tag: int = ANY_TAG, status: Status | None = None) -> Self:
        """Blocking test for a matched message."""
        return cls.Probe(comm, source, tag, status)

    @classmethod
    def iprobe(cls, comm: PointToPoint, source: int = ANY_SOURCE, tag: int = ANY_TAG, status: Status | None = None) -> Self | None:
        """Nonblocking test for a matched message."""
        return cls.Iprobe(comm, source, tag, status)

    @classmethod
    def _matched(cls, native: NativeComm, message: int, status: Status | None) -> Self:
        """Return the handle of a matched message; -1 is the one from PROC_NULL."""
        if status is not None:
            write_status(status, NO_PROC if message == -1 else native.engine.result(message))
        return cls._refer(_NO_PROC) if message == -1 else cls._holding(native, message)

    @classmethod
    def _holding(cls, native: NativeComm, message: int) -> Self:
        """Return the handle of a message that was taken out of matching."""
        self, state = object.__new__(cls), MessageState()
        state.comm, state.message = native, message
        self._state = state
        return self

    # Receiving

    def Recv(self, buf: BufSpec, status: Status | None = None) -> None:
        """Blocking receive of matched message."""
        said = NO_WORDS if status is None else fast.room_for(status)
        state = self._state
        if state is not _NO_PROC:
            native, message = state.comm, self._take()
            code = fast.receive_matched_array(native.address, buf, message, said.address)
            if not code:
                return None if status is None else fast.fill(status, said)
            if code != fast.SLOW:
                return fast.settle_matched(native, code, buf, status)
            state.comm, state.message, self._state = native, message, state  # the general way takes it, once it knows the buffer
        return fast.finish_waiting(lambda begun: self._start(buf, begun), status)

    def Irecv(self, buf: BufSpec) -> Request:
        """Nonblocking receive of matched message."""
        return Request._refer(started(lambda begun: self._start(buf, begun)))

    def _start(self, buf: BufSpec, begun: list[Operation]) -> Operation:
        if self._state is _NO_PROC:
            return self._from_nobody()
        native = self._state.comm
        buffer = arguments.recv(buf)
        if (asking := device_transfer.start_matched(native, buffer, self._take)) is not None:
            begun.append(asking)
            return asking
        address, owner, finish = buffer.landing()
        transfer = Transfer(native, owner, finish, "receive of a matched message")
        begun.append(transfer)
        return transfer.receive_matched(self._take(), address, buffer.nbytes)

    def recv(self, status: Status | None = None) -> Any:
        """Blocking receive of matched message."""
        said = NO_WORDS if status is None else fast.room_for(status)
        if self._state is _NO_PROC:
            return Request._refer(self._from_nobody()).wait(status)
        native = self._state.comm
        found = fast.receive_taken(native.address, self._take(), pickle._is_standard, said.address)
        if status is not None and object_messages.is_received(found):
            fast.fill(status, said)
        return object_messages.receive_noted(native, found, ANY_SOURCE, ANY_TAG, 0, status) if type(found) is bytearray else found

    def irecv(self) -> Request:
        """Nonblocking receive of matched message."""
        if self._state is _NO_PROC:
            return Request._refer(self._from_nobody())
        native = self._state.comm
        return Request._refer(object_messages.start_matched(native, self._take()))

    def _from_nobody(self) -> Operation:
        """Return the receive of the message from PROC_NULL, which is complete."""
        if not is_constant(self):
            self._become_null()
        return Operation(NO_PROC)

    def _take(self) -> int:
        """Return the engine's handle of the message, which nobody can receive again."""
        state = self._state
        message = state.message
        del state.message, state.comm
        self._state = _NULL
        return message


MESSAGE_NULL = constant(Message(), "MESSAGE_NULL")
MESSAGE_NO_PROC = constant(Message._refer(_NO_PROC), "MESSAGE_NO_PROC")

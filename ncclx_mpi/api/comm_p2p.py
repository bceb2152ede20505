"""Messages between two ranks: the upper-case methods on buffers and the lower-case ones on Python objects.

Arguments that do not matter are never looked at: with a peer PROC_NULL the buffer may be anything.
"""

from __future__ import annotations

import ctypes
import warnings
from collections.abc import Callable
from typing import Any, Literal

from ncclx_mpi import arguments, errors, rc
from ncclx_mpi.api import buffering, fast, object_messages
from ncclx_mpi.api.communicator import CommState
from ncclx_mpi.api.handle import integer
from ncclx_mpi.api.message import Message
from ncclx_mpi.api.pickle import pickle
from ncclx_mpi.api.request import Prequest, Request
from ncclx_mpi.api.status import Status
from ncclx_mpi.constants import ANY_SOURCE, ANY_TAG, PROC_NULL
from ncclx_mpi.operations import device_transfer
from ncclx_mpi.operations.background_progress import stepper
from ncclx_mpi.operations.operation import NO_PROC, Operation, Persistent, Together, started, write_status
from ncclx_mpi.operations.transfer import Bound, Transfer
from ncclx_mpi.p2p import gaps
from ncclx_mpi.p2p.call_words import NO_WORDS
from ncclx_mpi.p2p.engine import NativeComm
from ncclx_mpi.p2p.layout import BUFFERED, READY, RECEIVE, SEND, STANDARD, SYNCHRONOUS
from ncclx_mpi.p2p.partial_results import RAW, SLOW
from ncclx_mpi.typing import Buffer, BufSpec
from numba_kernels.pylayouts import is_any_known

LARGEST_TAG = (1 << 30) - 1
"""Value of the attribute TAG_UB."""


class PointToPoint:
    """Methods of Comm that move messages between two ranks."""

    __slots__ = ()
    _state: CommState

    # Blocking, buffers

    def Send(self, buf: BufSpec, dest: int, tag: int = 0) -> None:
        """Blocking send."""
        state = self._state
        code = fast.send_array(state.address, buf, dest, tag, STANDARD)
        if code and code == fast.SLOW and is_any_known():
            code = fast.send_derived(state.address, buf, dest, tag, STANDARD)
        if code and fast.settle_send(state, code, dest, tag):
            if fast.learns(buf):
                PointToPoint.Send(self, buf, dest, tag)
            else:
                fast.finish_waiting(lambda _: _start_send(state, buf, dest, tag, STANDARD), None)

    def Bsend(self, buf: BufSpec, dest: int, tag: int = 0) -> None:
        """Blocking send in buffered mode."""
        _start_send(self._state, buf, dest, tag, BUFFERED).finish()

    def Ssend(self, buf: BufSpec, dest: int, tag: int = 0) -> None:
        """Blocking send in synchronous mode."""
        _send(self._state, buf, dest, tag, SYNCHRONOUS)

    def Rsend(self, buf: BufSpec, dest: int, tag: int = 0) -> None:
        """Blocking send in ready mode."""
        _send(self._state, buf, dest, tag, READY)

    def Recv(self, buf: BufSpec, source: int = ANY_SOURCE, tag: int = ANY_TAG, status: Status | None = None) -> None:
        """Blocking receive."""
        state = self._state
        said = NO_WORDS if status is None else fast.room_for(status)
        code = fast.receive_array(state.address, buf, source, tag, said.address)
        if code and code == fast.SLOW and is_any_known():
            code = fast.receive_derived(state.address, buf, source, tag, said.address)
        if code:
            if fast.settle_receive(state, code, buf, source, tag, status):
                if fast.learns(buf):
                    PointToPoint.Recv(self, buf, source, tag, status)
                else:
                    fast.finish_waiting(lambda begun: _start_recv(state, buf, source, tag, begun), status)
        elif status is not None:
            fast.fill(status, said)

    def Sendrecv(
        self,
        sendbuf: BufSpec,
        dest: int,
        sendtag: int = 0,
        recvbuf: BufSpec | None = None,
        source: int = ANY_SOURCE,
        recvtag: int = ANY_TAG,
        status: Status | None = None,
    ) -> None:
        """Send and receive a message."""
        state = self._state
        said = NO_WORDS if status is None else fast.room_for(status)
        code = fast.exchange_arrays(state.address, sendbuf, dest, sendtag, recvbuf, source, recvtag, said.address)
        if code and code == fast.SLOW and is_any_known():
            code = fast.exchange_derived(state.address, sendbuf, dest, sendtag, recvbuf, source, recvtag, said.address)
        if code:
            if fast.settle_exchange(state, code, sendbuf, recvbuf, source, recvtag, status):
                if fast.learns(sendbuf, recvbuf):
                    PointToPoint.Sendrecv(self, sendbuf, dest, sendtag, recvbuf, source, recvtag, status)
                else:
                    fast.finish_waiting(
                        lambda begun: _start_sendrecv(state, sendbuf, dest, sendtag, recvbuf, source, recvtag, begun), status
                    )
        elif status is not None:
            fast.fill(status, said)

    def Sendrecv_replace(
        self,
        buf: BufSpec,
        dest: int,
        sendtag: int = 0,
        source: int = ANY_SOURCE,
        recvtag: int = ANY_TAG,
        status: Status | None = None,
    ) -> None:
        """Send and receive a message, in one buffer."""
        state = self._state
        said = NO_WORDS if status is None else fast.room_for(status)
        code = fast.replace_array(state.address, buf, dest, sendtag, source, recvtag, said.address)
        if code:
            if fast.settle_exchange(state, code, buf, buf, source, recvtag, status):
                fast.finish_waiting(lambda begun: _start_replace(state, buf, dest, sendtag, source, recvtag, begun), status)
        elif status is not None:
            fast.fill(status, said)

    # Non-blocking, buffers

    def Isend(self, buf: BufSpec, dest: int, tag: int = 0) -> Request:
        """Nonblocking send."""
        state = self._state
        request = fast.start_send_array(state.address, buf, dest, tag, STANDARD)
        return _isend(state, buf, dest, tag, STANDARD) if request is None else request

    def Ibsend(self, buf: BufSpec, dest: int, tag: int = 0) -> Request:
        """Nonblocking send in buffered mode."""
        return Request._refer(_start_send(self._state, buf, dest, tag, BUFFERED))

    def Issend(self, buf: BufSpec, dest: int, tag: int = 0) -> Request:
        """Nonblocking send in synchronous mode."""
        return _isend(self._state, buf, dest, tag, SYNCHRONOUS)

    def Irsend(self, buf: BufSpec, dest: int, tag: int = 0) -> Request:
        """Nonblocking send in ready mode."""
        return _isend(self._state, buf, dest, tag, READY)

    def Irecv(self, buf: BufSpec, source: int = ANY_SOURCE, tag: int = ANY_TAG) -> Request:
        """Nonblocking receive."""
        state = self._state
        request = fast.start_receive_array(state.address, buf, source, tag)
        return _irecv(state, buf, source, tag) if request is None else request

    def Isendrecv(
        self,
        sendbuf: BufSpec,
        dest: int,
        sendtag: int = 0,
        recvbuf: BufSpec | None = None,
        source: int = ANY_SOURCE,
        recvtag: int = ANY_TAG,
    ) -> Request:
        """Nonblocking send and receive."""
        state = self._state
        return Request._refer(
            started(lambda begun: _start_sendrecv(state, sendbuf, dest, sendtag, recvbuf, source, recvtag, begun))
        )

    def Isendrecv_replace(
        self, buf: BufSpec, dest: int, sendtag: int = 0, source: int = ANY_SOURCE, recvtag: int = ANY_TAG
    ) -> Request:
        """Nonblocking send and receive, in one buffer."""
        state = self._state
        return Request._refer(started(lambda begun: _start_replace(state, buf, dest, sendtag, source, recvtag, begun)))

    # Persistent, buffers

    def Send_init(self, buf: BufSpec, dest: int, tag: int = 0) -> Prequest:
        """Create a persistent request for a standard send."""
        return _persistent_send(self._state, buf, dest, tag, STANDARD)

    def Bsend_init(self, buf: BufSpec, dest: int, tag: int = 0) -> Prequest:
        """Create a persistent request for a send in buffered mode."""
        return _persistent_send(self._state, buf, dest, tag, BUFFERED)

    def Ssend_init(self, buf: BufSpec, dest: int, tag: int = 0) -> Prequest:
        """Create a persistent request for a send in synchronous mode."""
        return _persistent_send(self._state, buf, dest, tag, SYNCHRONOUS)

    def Rsend_init(self, buf: BufSpec, dest: int, tag: int = 0) -> Prequest:
        """Create a persistent request for a send in ready mode."""
        return _persistent_send(self._state, buf, dest, tag, READY)

    def Recv_init(self, buf: BufSpec, source: int = ANY_SOURCE, tag: int = ANY_TAG) -> Prequest:
        """Create a persistent request for a receive."""
        state = self._state
        source, tag = checked_source(state, source), _recv_tag(tag)
        if source == PROC_NULL:
            return Prequest._refer(Persistent(_no_proc))
        resolved = arguments.recv(buf)
        bound = _bound(state, RECEIVE, resolved, source, tag, STANDARD)
        if bound is not None:
            return Prequest._refer(bound)
        return Prequest._refer(Persistent(lambda: started(lambda begun: _post_recv(state, resolved, source, tag, begun))))

    # Probing

    def Probe(self, source: int = ANY_SOURCE, tag: int = ANY_TAG, status: Status | None = None) -> Literal[True]:
        """Blocking test for a message."""
        said = NO_WORDS if status is None else fast.room_for(status)
        if fast.await_message(self._state.address, source, tag, 0, said.address):
            if status is not None:
                fast.fill(status, said)
            return True
        native, source, tag, is_null = self._peer(source, tag)
        found = NO_PROC if is_null else native.engine.wait_probe(native, source, tag)
        if status is not None:
            write_status(status, found)
        return True

    def Iprobe(self, source: int = ANY_SOURCE, tag: int = ANY_TAG, status: Status | None = None) -> bool:
        """Nonblocking test for a message."""
        said = NO_WORDS if status is None else fast.room_for(status)
        seen = fast.look_for_message(self._state.address, source, tag, 0, said.address)
        if seen >= 0:
            if seen and status is not None:
                fast.fill(status, said)
            return bool(seen)
        native, source, tag, is_null = self._peer(source, tag)
        found = NO_PROC if is_null else native.engine.probe(native, source, tag)
        if found is not None and status is not None:
            write_status(status, found)
        return found is not None

    def Mprobe(self, source: int = ANY_SOURCE, tag: int = ANY_TAG, status: Status | None = None) -> Message:
        """Blocking test for a matched message."""
        return Message.Probe(self, source, tag, status)

    def Improbe(self, source: int = ANY_SOURCE, tag: int = ANY_TAG, status: Status | None = None) -> Message | None:
        """Nonblocking test for a matched message."""
        return Message.Iprobe(self, source, tag, status)

    def _peer(self, source: Any, tag: Any) -> tuple[NativeComm, int, int, bool]:
        """Return the native communicator, checked arguments of a probe, and whether the source is PROC_NULL."""
        state = self._state
        source, tag = checked_source(state, source), _recv_tag(tag)
        return state.native, source, tag, source == PROC_NULL

    # Objects

    def send(self, obj: Any, dest: int, tag: int = 0) -> None:
        """Send in standard mode."""
        state = self._state
        if not pickle._is_standard or fast.send_plain(state.address, obj, dest, tag, STANDARD, 0):
            _send_object(state, obj, dest, tag, STANDARD)

    def bsend(self, obj: Any, dest: int, tag: int = 0) -> None:
        """Send in buffered mode."""
        _start_buffered(self._state, obj, dest, tag).finish()

    def ssend(self, obj: Any, dest: int, tag: int = 0) -> None:
        """Send in synchronous mode."""
        _send_object(self._state, obj, dest, tag, SYNCHRONOUS)

    def recv(self, buf: Buffer | None = None, source: int = ANY_SOURCE, tag: int = ANY_TAG, status: Status | None = None) -> Any:
        """Receive."""
        if buf is not None:
            warnings.warn("the 'buf' argument is deprecated", UserWarning, stacklevel=2)
        state = self._state
        said = NO_WORDS if status is None else fast.room_for(status)
        found = fast.receive_plain(state.address, source, tag, 0, pickle._is_standard, said.address)
        if status is not None and object_messages.is_received(found):
            fast.fill(status, said)
        return _receive_noted(state, found, source, tag, status) if type(found) is bytearray else found

    def sendrecv(
        self,
        sendobj: Any,
        dest: int,
        sendtag: int = 0,
        recvbuf: Buffer | None = None,
        source: int = ANY_SOURCE,
        recvtag: int = ANY_TAG,
        status: Status | None = None,
    ) -> Any:
        """Send and receive."""
        state = self._state
        said = NO_WORDS if status is None else fast.room_for(status)
        if not pickle._is_standard:
            return _exchange_objects(state, sendobj, dest, sendtag, source, recvtag, status)
        found = fast.exchange_plain(state.address, sendobj, dest, sendtag, source, recvtag, said.address)
        if status is not None and object_messages.is_received(found):
            fast.fill(status, said)
        if type(found) is bytearray:
            if found[0] == SLOW:
                return _exchange_objects(state, sendobj, dest, sendtag, source, recvtag, status)
            return _receive_noted(state, found, source, recvtag, status)
        return found

    def isend(self, obj: Any, dest: int, tag: int = 0) -> Request:
        """Nonblocking send."""
        state = self._state
        request = fast.start_send_plain(state.address, obj, dest, tag, STANDARD) if pickle._is_standard else None
        return _isend_object(state, obj, dest, tag, STANDARD) if request is None else request

    def ibsend(self, obj: Any, dest: int, tag: int = 0) -> Request:
        """Nonblocking send in buffered mode."""
        return Request._refer(_start_buffered(self._state, obj, dest, tag))

    def issend(self, obj: Any, dest: int, tag: int = 0) -> Request:
        """Nonblocking send in synchronous mode."""
        return _isend_object(self._state, obj, dest, tag, SYNCHRONOUS)

    def irecv(self, buf: Buffer | None = None, source: int = ANY_SOURCE, tag: int = ANY_TAG) -> Request:
        """Nonblocking receive; `buf` (memory, or its size) is room for pickles that were sent as plain bytes."""
        state = self._state
        request: Request | None = fast.start_receive_object(state.address, source, tag) if buf is None else None
        if request is None:
            return _irecv_object(state, buf, source, tag)
        if not stepper.is_awake:
            stepper.want()
        return request

    def probe(self, source: int = ANY_SOURCE, tag: int = ANY_TAG, status: Status | None = None) -> Literal[True]:
        """Blocking test for a message."""
        return self.Probe(source, tag, status)

    def iprobe(self, source: int = ANY_SOURCE, tag: int = ANY_TAG, status: Status | None = None) -> bool:
        """Nonblocking test for a message."""
        return self.Iprobe(source, tag, status)

    def mprobe(self, source: int = ANY_SOURCE, tag: int = ANY_TAG, status: Status | None = None) -> Message:
        """Blocking test for a matched message."""
        return Message.Probe(self, source, tag, status)

    def improbe(self, source: int = ANY_SOURCE, tag: int = ANY_TAG, status: Status | None = None) -> Message | None:
        """Nonblocking test for a matched message."""
        return Message.iprobe(self, source, tag, status)


# Arguments --------------------------------------------------------------------------------------------------------


def checked_dest(state: CommState, dest: Any) -> int:
    """Return a rank to send to, or PROC_NULL; raises ERR_RANK."""
    rank, native = integer(dest, "dest"), state.native
    if not 0 <= rank < native.size and rank != PROC_NULL:
        errors.fail(errors.ERR_RANK, f"dest {rank} is no rank {_of_whom(state)}")
    return rank


def checked_source(state: CommState, source: Any) -> int:
    """Return a rank to receive from, or a wildcard, or PROC_NULL; raises ERR_RANK."""
    rank, native = integer(source, "source"), state.native
    if not 0 <= rank < native.size and rank not in (ANY_SOURCE, PROC_NULL):
        errors.fail(errors.ERR_RANK, f"source {rank} is no rank {_of_whom(state)}")
    return rank


def _of_whom(state: CommState) -> str:
    return f"of {'this communicator' if state.intergroup is None else 'the remote group'} of {state.native.size}"


def checked_tag(tag: Any) -> int:
    """Return a tag to send with; raises ERR_TAG."""
    number = integer(tag, "tag")
    if not 0 <= number <= LARGEST_TAG:
        errors.fail(errors.ERR_TAG, f"tag {number} is not within 0 and {LARGEST_TAG} (attribute MPI.TAG_UB)")
    return number


def _recv_tag(tag: Any) -> int:
    return ANY_TAG if tag == ANY_TAG else checked_tag(tag)


def _buffer_size(buf: Any) -> int:
    """Bytes of room that the `buf` of an irecv asks for."""
    if buf is None:
        return rc.options().irecv_bufsz
    return int(buf) if hasattr(buf, "__index__") else arguments.recv(buf).nbytes


# Starting ---------------------------------------------------------------------------------------------------------


def _no_proc() -> Operation:
    return Operation(NO_PROC)


def _send(state: CommState, buf: BufSpec, dest: int, tag: int, mode: int) -> None:
    """Send a buffer."""
    code = fast.send_array(state.address, buf, dest, tag, mode)
    if code and code == fast.SLOW and is_any_known():
        code = fast.send_derived(state.address, buf, dest, tag, mode)
    if code and fast.settle_send(state, code, dest, tag):
        if fast.learns(buf):
            _send(state, buf, dest, tag, mode)
        else:
            fast.finish_waiting(lambda _: _start_send(state, buf, dest, tag, mode), None)


def _start_send(state: CommState, spec: BufSpec, dest: int, tag: int, mode: int) -> Operation:
    dest, tag = checked_dest(state, dest), checked_tag(tag)
    return _no_proc() if dest == PROC_NULL else _post_send(state, arguments.send(spec), dest, tag, mode)


def _isend(state: CommState, buf: BufSpec, dest: int, tag: int, mode: int) -> Request:
    """Start a send by whichever way there is."""
    while True:
        request: Request | None = fast.start_send_array(state.address, buf, dest, tag, mode)
        if request is None and is_any_known():
            request = fast.start_send_derived(state.address, buf, dest, tag, mode)
        if request is not None:
            return request
        if not fast.add_ticket(state) and not fast.learns(buf):  # there was a free one: it cannot start natively
            return Request._refer(_start_send(state, buf, dest, tag, mode))


def _irecv(state: CommState, buf: BufSpec, source: int, tag: int) -> Request:
    """Start a receive that did not start natively as one of a plain array: there was no free ticket, or it cannot."""
    while True:
        request: Request | None = fast.start_receive_derived(state.address, buf, source, tag) if is_any_known() else None
        if request is None and fast.add_ticket(state):
            request = fast.start_receive_array(state.address, buf, source, tag)
        elif request is None and not fast.learns(buf):
            return Request._refer(started(lambda begun: _start_recv(state, buf, source, tag, begun)))
        if request is not None:
            return request


def _post_send(state: CommState, buffer: Any, dest: int, tag: int, mode: int) -> Operation:
    fast.meet(buffer.layout)
    if mode != BUFFERED and (offered := device_transfer.start_send(state.native, buffer, dest, tag)) is not None:
        return offered
    address, owner = buffer.packed()
    if mode == BUFFERED:
        return _post_buffered(state, ctypes.string_at(address, buffer.nbytes), dest, tag)
    return Transfer(state.native, owner).send(address, buffer.nbytes, dest, tag, mode)


def _post_buffered(state: CommState, data: bytes, dest: int, tag: int) -> Operation:
    """Start a send of bytes that are ours, which nobody waits for."""
    holder = buffering.holder(state.send_buffer)
    holder.reserve(len(data))
    holder.add(Transfer(state.native, data).send(object_messages.address_of(data), len(data), dest, tag), len(data))
    return Operation()


def _start_recv(state: CommState, spec: BufSpec, source: int, tag: int, begun: list[Operation]) -> Operation:
    source, tag = checked_source(state, source), _recv_tag(tag)
    return _no_proc() if source == PROC_NULL else _post_recv(state, arguments.recv(spec), source, tag, begun)


def _post_recv(state: CommState, buffer: Any, source: int, tag: int, begun: list[Operation]) -> Operation:
    fast.meet(buffer.layout)
    if (asking := device_transfer.start_receive(state.native, buffer, source, tag)) is not None:
        begun.append(asking)
        return asking
    address, owner, finish = (buffer.address, buffer.owner, None) if buffer.is_direct else buffer.landing()
    transfer = Transfer(state.native, owner, finish)
    begun.append(transfer)
    return transfer.receive(address, buffer.nbytes, source, tag)


def _start_sendrecv(
    state: CommState,
    sendbuf: BufSpec,
    dest: int,
    sendtag: int,
    recvbuf: BufSpec | None,
    source: int,
    recvtag: int,
    begun: list[Operation],
) -> Operation:
    dest, sendtag = checked_dest(state, dest), checked_tag(sendtag)
    sending = None if dest == PROC_NULL else arguments.send(sendbuf)
    receiving = _start_recv(state, recvbuf, source, recvtag, begun)
    return receiving if sending is None else Together([_post_send(state, sending, dest, sendtag, STANDARD), receiving])


def _start_replace(
    state: CommState, spec: BufSpec, dest: int, sendtag: int, source: int, recvtag: int, begun: list[Operation]
) -> Operation:
    """Start sending a copy of a buffer and receiving into it."""
    dest, sendtag = checked_dest(state, dest), checked_tag(sendtag)
    source, recvtag = checked_source(state, source), _recv_tag(recvtag)
    if dest == PROC_NULL and source == PROC_NULL:
        return _no_proc()
    buffer = arguments.recv(spec)
    address, _owner = buffer.packed()
    data = b"" if dest == PROC_NULL else ctypes.string_at(address, buffer.nbytes)
    receiving = _no_proc() if source == PROC_NULL else _post_recv(state, buffer, source, recvtag, begun)
    if dest == PROC_NULL:
        return receiving
    sending = Transfer(state.native, data).send(object_messages.address_of(data), len(data), dest, sendtag)
    return Together([sending, receiving])


def _persistent_send(state: CommState, spec: BufSpec, dest: int, tag: int, mode: int) -> Prequest:
    dest, tag = checked_dest(state, dest), checked_tag(tag)
    if dest == PROC_NULL:
        return Prequest._refer(Persistent(_no_proc))
    resolved = arguments.send(spec)
    bound = _bound(state, SEND, resolved, dest, tag, mode) if mode != BUFFERED else None
    if bound is not None:
        return Prequest._refer(bound)
    begin: Callable[[], Operation] = lambda: _post_send(state, resolved, dest, tag, mode)  # noqa: E731
    return Prequest._refer(Persistent(begin))


def _bound(state: CommState, kind: int, buffer: arguments.Buffer, peer: int, tag: int, mode: int) -> Bound | None:
    """A persistent message that compiled code starts, None if it cannot: of a GPU's memory, or long with gaps."""
    if buffer.is_direct:
        return Bound(state.native, buffer.owner, (kind, buffer.address, buffer.nbytes, peer, tag, mode, 0))
    made = gaps.new_landing(buffer.origin, buffer.layout.table, buffer.layout.size, buffer.layout.extent, buffer.nbytes)
    if buffer.device is not None or made is None:
        return None
    memory, landing, address = made
    return Bound(state.native, (buffer.owner, buffer.layout, memory), (kind, address, buffer.nbytes, peer, tag, mode, landing))


def _send_object(state: CommState, obj: Any, dest: int, tag: int, mode: int) -> None:
    """Send an object that is no plain value, or cannot go out at once."""
    dest, tag = checked_dest(state, dest), checked_tag(tag)
    if dest != PROC_NULL:
        object_messages.send_dumped(state.native, *object_messages.dump(obj), dest, tag, mode)


def _receive_noted(state: CommState, noted: bytearray, source: int, tag: int, status: Status | None) -> Any:
    """Go on with the receive of an object that ended with a note."""
    if noted[0] != RAW:
        source, tag = checked_source(state, source), _recv_tag(tag)
        if source == PROC_NULL:
            if status is not None:
                write_status(status, NO_PROC)
            return None
    return object_messages.receive_noted(state.native, noted, source, tag, 0, status)


def _recv(state: CommState, source: int, tag: int, status: Status | None) -> Any:
    """Receive an object."""
    source, tag = checked_source(state, source), _recv_tag(tag)
    if source == PROC_NULL:
        if status is not None:
            write_status(status, NO_PROC)
        return None
    return object_messages.receive(state.native, source, tag, 0, status)


def _exchange_objects(
    state: CommState, sendobj: Any, dest: int, sendtag: int, source: int, recvtag: int, status: Status | None
) -> Any:
    """Send an object that is no plain value, or cannot go out at once, and receive one."""
    dest, sendtag = checked_dest(state, dest), checked_tag(sendtag)
    if dest == PROC_NULL:
        return _recv(state, source, recvtag, status)
    source, recvtag = checked_source(state, source), _recv_tag(recvtag)
    sending = _start_dumped(state, *object_messages.dump(sendobj), dest, sendtag, STANDARD)
    try:
        received = _recv(state, source, recvtag, status)
    except BaseException:
        sending._state.abandon()
        raise
    if not sending.Test():
        object_messages.complete(state.native, sending._state)
    return received


def _isend_object(state: CommState, obj: Any, dest: int, tag: int, mode: int) -> Request:
    """Start sending a copy of an object: natively, if its pickle is one message."""
    dest, tag = checked_dest(state, dest), checked_tag(tag)
    if dest == PROC_NULL:
        return Request._refer(_no_proc())
    return _start_dumped(state, pickle.dumps(obj), [], dest, tag, mode)


def _irecv_object(state: CommState, buf: Any, source: int, tag: int) -> Request:
    """Start receiving an object where there is no free ticket, or no ticket would do."""
    source, tag, nbytes = checked_source(state, source), _recv_tag(tag), _buffer_size(buf)
    if source == PROC_NULL:
        return Request._refer(_no_proc())
    if buf is None and nbytes <= object_messages.PLAIN_MAX and fast.add_ticket(state, object_messages.ObjectTicket):
        request: Request | None = fast.start_receive_object(state.address, source, tag)
        stepper.want()
        if request is not None:
            return request
    return Request._refer(object_messages.start_receive(state.native, source, tag, nbytes))


def _start_dumped(state: CommState, data: bytes, frames: list[memoryview], dest: int, tag: int, mode: int) -> Request:
    """Start sending a pickle and its buffers: natively, if it is one message."""
    request: Request | None = None
    if not frames and len(data) <= object_messages.PLAIN_MAX:
        request = fast.start_send_bytes(state.address, data, dest, tag, mode)
        if request is None and fast.add_ticket(state):
            request = fast.start_send_bytes(state.address, data, dest, tag, mode)
    return Request._refer(object_messages.start_dumped(state.native, data, frames, dest, tag, mode)) if request is None else request


def _start_buffered(state: CommState, obj: Any, dest: int, tag: int) -> Operation:
    """Start sending a copy of an object that nobody waits for."""
    dest, tag = checked_dest(state, dest), checked_tag(tag)
    if dest == PROC_NULL:
        return _no_proc()
    holder = buffering.holder(state.send_buffer)
    operation, nbytes = object_messages.start_buffered(state.native, obj, dest, tag, holder.reserve)
    holder.add(operation, nbytes)
    return Operation()

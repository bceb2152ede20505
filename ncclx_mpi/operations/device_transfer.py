"""Requests for messages between device arrays: polled by whoever waits for anything in Python, else by background progress."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ncclx_mpi.arguments import Buffer
from ncclx_mpi.operations import background_progress
from ncclx_mpi.operations.operation import EMPTY, Operation, blame, on_behalf, write_status
from ncclx_mpi.operations.transfer import raise_error
from ncclx_mpi.p2p.engine import NativeComm, from_whom

if TYPE_CHECKING:
    from ncclx_mpi.api.status import Status
    from ncclx_mpi.device.messages import Array, Incoming, Message


class DeviceTransfer(Operation):
    """One end of a message."""

    __slots__ = ("capacity", "comm", "message", "what")
    is_stepped = True

    def __init__(self, comm: NativeComm, message: Message, what: str, capacity: int) -> None:
        self.comm = comm
        self.message = message
        self.what = what
        self.capacity = capacity
        background_progress.add(message)

    def poll(self) -> bool:
        """Whether it is done, after everything that Python moves on has gone on."""
        background_progress.step(self.message)
        return self.message.poll()

    def wait(self) -> None:
        """Return when it is done."""
        on_behalf(self.comm, self.comm.engine.idle_wait, self.poll, self.what)

    def fill(self, status: Status) -> None:
        """Write what became of it to `status`; a send knows only whether it was cancelled."""
        result = self.message.result
        write_status(status, result if self.capacity >= 0 else EMPTY._replace(cancelled=result.cancelled))

    def finish(self) -> Any:
        """Say what went wrong, if anything did, and empty it."""
        message, comm, what, capacity = self.message, self.comm, self.what, self.capacity
        self.empty()
        background_progress.discard(message)
        if message.failure is not None:
            blame(message.failure, comm)
            raise message.failure
        if message.result.error:
            raise_error(message.result, comm, what, capacity)

    def cancel(self) -> None:
        """Ask for its cancellation."""
        self.message.cancel()

    def abandon(self) -> None:
        """Withdraw it after a wait that failed."""
        self.message.withdraw()
        self.empty()


def start_send(comm: NativeComm, buffer: Buffer, dest: int, tag: int) -> Operation | None:
    """Start sending a large contiguous device array; None for whatever else a buffer may be."""
    array = _array(buffer)
    if array is None:
        return None
    from ncclx_mpi.device import messages

    message = messages.start_send(comm, array, dest, tag)
    return None if message is None else DeviceTransfer(comm, message, f"send to rank {dest}, tag {tag}", -1)


def start_receive(comm: NativeComm, buffer: Buffer, source: int, tag: int) -> Operation | None:
    """Start receiving into a large contiguous device array; None for whatever else a buffer may be."""
    array = _array(buffer)
    if array is None:
        return None
    from ncclx_mpi.device import messages

    message = messages.start_receive(comm, array, source, tag)
    return _receive(comm, message, buffer, f"receive {from_whom(source, tag)}")


def start_matched(comm: NativeComm, buffer: Buffer, take: Callable[[], int]) -> Operation | None:
    """As :func:`start_receive`, for a message that a probe has taken out of matching: `take` is called for its handle."""
    array = _array(buffer)
    if array is None:
        return None
    from ncclx_mpi.device import messages

    message = messages.start_matched(comm, array, take)
    return _receive(comm, message, buffer, "receive of a matched message")


def _receive(comm: NativeComm, message: Incoming | None, buffer: Buffer, what: str) -> Operation | None:
    return None if message is None else DeviceTransfer(comm, message, what, buffer.nbytes)


def _array(buffer: Buffer) -> Array | None:
    if buffer.device is None or not buffer.contiguous:
        return None
    from ncclx_mpi.device.messages import Array  # programs without a device need none of it

    return Array(buffer.device, buffer.address, buffer.nbytes, buffer.owner)

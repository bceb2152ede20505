"""Buffered sends: whose data is copied at once, so that they never wait for a receiver.

The copy is our own memory. The buffer that the program attaches only says how much may be under way at a time, as MPI
has it: without it, or beyond it, a buffered send is an error.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ncclx_mpi import errors, late, runtime
from ncclx_mpi.buffers.sentinels import BUFFER_AUTOMATIC
from ncclx_mpi.constants import BSEND_OVERHEAD
from ncclx_mpi.operations.operation import Operation

if TYPE_CHECKING:
    from ncclx_mpi.api import memory
else:
    memory = late.module("ncclx_mpi.api.memory")


class SendBuffer:
    """An attached buffer: its room, and what is under way in it."""

    def __init__(self, attached: Any) -> None:
        self.is_automatic = attached is None or attached is BUFFER_AUTOMATIC
        self.attached = BUFFER_AUTOMATIC if self.is_automatic else attached
        if self.is_automatic:
            self.room = 0
            return
        view = memory.buffer.frombuffer(attached)
        if view.readonly:
            raise BufferError("the attached buffer is not writable")
        self.room = view.nbytes
        self._underway: list[tuple[Operation, int]] = []

    def reserve(self, nbytes: int) -> None:
        """Raise unless a message of `nbytes` bytes fits beside what is under way."""
        if self.is_automatic:
            return
        self.reap()
        used = sum(size for _, size in self._underway)
        if used + nbytes + BSEND_OVERHEAD > self.room:
            errors.fail(
                errors.ERR_BUFFER,
                f"a buffered send of {nbytes} bytes needs {nbytes + BSEND_OVERHEAD} bytes of the attached buffer, of whose "
                f"{self.room} bytes {used} are in use; attach a larger one (MPI.BSEND_OVERHEAD bytes extra a message)",
            )

    def add(self, operation: Operation, nbytes: int) -> None:
        """Note a message under way."""
        if not self.is_automatic:
            self._underway.append((operation, nbytes + BSEND_OVERHEAD))

    def reap(self) -> bool:
        """Forget what has arrived; whether nothing is under way any more."""
        left = []
        for operation, nbytes in self._underway:
            if operation.poll():
                operation.finish()
            else:
                left.append((operation, nbytes))
        self._underway = left
        return not left

    def flush(self) -> None:
        """Return when nothing is under way."""
        if not self.is_empty():
            runtime.engine().idle_wait(self.is_empty, "flush of the attached buffer")

    def is_empty(self) -> bool:
        """Whether nothing is under way."""
        return self.is_automatic or self.reap()


class Flush(Operation):
    """The wait for an attached buffer to be empty."""

    __slots__ = ("send_buffer",)

    def __init__(self, send_buffer: SendBuffer | None) -> None:
        super().__init__()
        self.send_buffer = send_buffer

    def poll(self) -> bool:
        """Whether it is done, after some progress."""
        return self.send_buffer is None or self.send_buffer.is_empty()

    def wait(self) -> None:
        """Return when it is done."""
        if self.send_buffer is not None:
            self.send_buffer.flush()


class _Process:
    """The buffer attached to the process, for communicators without one of their own; those of open sessions serve where there is none."""

    def __init__(self) -> None:
        self.send_buffer: SendBuffer | None = None
        self.of_sessions: dict[int, SendBuffer | None] = {}


process = _Process()


def holder(own: SendBuffer | None) -> SendBuffer:
    """Return the send buffer of a communicator whose own is `own`.

    Raises
    ------
    Exception
        ERR_BUFFER: nobody has attached one.
    """
    found = own or process.send_buffer or next(iter(process.of_sessions.values()), None)
    if found is None:
        errors.fail(errors.ERR_BUFFER, "a buffered send needs a buffer: attach one with MPI.Attach_buffer")
    return found


def attach(old: SendBuffer | None, attached: Any) -> SendBuffer:
    """Return the send buffer of what the program attaches.

    Raises
    ------
    Exception
        ERR_BUFFER: one is attached already.
    """
    runtime.engine()
    if old is not None:
        errors.fail(errors.ERR_BUFFER, "a buffer is attached already: detach it first")
    return SendBuffer(attached)


def detach(old: SendBuffer | None) -> Any:
    """Wait until nothing is under way in a send buffer, and return what was attached.

    Raises
    ------
    Exception
        ERR_BUFFER: none is attached.
    """
    if old is None:
        errors.fail(errors.ERR_BUFFER, "no buffer is attached")
    old.flush()
    return old.attached

"""Methods of what has a buffer for buffered sends: communicators, sessions, and the process."""

from __future__ import annotations

from typing import Any

from ncclx_mpi.api import buffering
from ncclx_mpi.api.request import Request
from ncclx_mpi.typing import Buffer


class AttachedBuffer:
    """Mixin of handles whose state has a ``send_buffer``."""

    __slots__ = ()
    _state: Any

    def Attach_buffer(self, buf: Buffer | None) -> None:
        """Attach a user-provided buffer for sending in buffered mode."""
        self._state.send_buffer = buffering.attach(self._state.send_buffer, buf)

    def Detach_buffer(self) -> Buffer | None:
        """Remove an existing attached buffer, once all that was sent from it has been received."""
        attached: Buffer | None = buffering.detach(self._state.send_buffer)
        self._state.send_buffer = None
        return attached

    def Flush_buffer(self) -> None:
        """Block until all buffered messages have been transmitted."""
        buffering.Flush(self._state.send_buffer).wait()

    def Iflush_buffer(self) -> Request:
        """Nonblocking flush for buffered messages."""
        return Request._refer(buffering.Flush(self._state.send_buffer))

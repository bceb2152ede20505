"""What a persistent request of Alltoallv_dynamic stands for: started by the host, or in streams of a GPU, also while these are captured."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ncclx_mpi import errors
from ncclx_mpi.extensions.alltoallv_dynamic.exchange import Exchange
from ncclx_mpi.extensions.alltoallv_dynamic.operands import Operands
from ncclx_mpi.operations.operation import Persistent

if TYPE_CHECKING:
    from ncclx_mpi.api.communicator import CommState
    from ncclx_mpi.extensions.alltoallv_dynamic.device.in_stream import Enqueued


class DynamicOperation(Persistent):
    """A persistent operation that can also be enqueued, or why it cannot.

    Parameters
    ----------
    state
        The communicator.
    operands
        What this rank passes; borrowed.
    """

    __slots__ = ("enqueued",)
    enqueued: Enqueued | str

    def __init__(self, state: CommState, operands: Operands) -> None:
        super().__init__(Exchange(state, operands).prepare(state))
        self.enqueued = _enqueued(state, operands)

    def release(self) -> None:
        """Give it up; what is in streams is waited for."""
        if not isinstance(self.enqueued, str):
            self.enqueued.release()
        super().release()


def _enqueued(state: CommState, operands: Operands) -> Enqueued | str:
    """What can be started in streams; collective where the communicator is prepared."""
    if state.prepared is None:
        return "the communicator was not prepared when the request was made; call comm.prepare() on all ranks first"
    from ncclx_mpi.extensions.alltoallv_dynamic.device.in_stream import Enqueued

    try:
        return Enqueued(state.prepared, operands)
    except errors.Exception as error:
        if error.Get_error_class() != errors.ERR_OTHER:
            raise
        return str(error)

"""Intracomm: communicators of one group, and the two that exist from the start."""

from __future__ import annotations

from typing import Any, Self

from ncclx_mpi.api import communicator
from ncclx_mpi.api.comm import _CREATE_GROUP_OFFSET, _CREATE_GROUP_TAG, Comm
from ncclx_mpi.api.comm_collective import Scans
from ncclx_mpi.api.comm_dynamic import DynamicAlltoall
from ncclx_mpi.api.comm_nonblocking import NonBlockingScans
from ncclx_mpi.api.comm_objects import ObjectScans
from ncclx_mpi.api.comm_persistent import PersistentScans
from ncclx_mpi.api.comm_streams import StreamOrdered
from ncclx_mpi.api.comm_topology import Topologies
from ncclx_mpi.api.communicator import CommState
from ncclx_mpi.api.group import Group
from ncclx_mpi.api.handle import constant, integer


class Intracomm(Scans, NonBlockingScans, PersistentScans, ObjectScans, Topologies, DynamicAlltoall, StreamOrdered, Comm):
    """Intracommunicator."""

    __slots__ = ()

    def __new__(cls, comm: Comm | None = None) -> Self:
        """Create a handle of the same communicator, or a null one."""
        return cls._copy(comm, "comm")

    def Create_group(self, group: Group, tag: int = 0) -> Intracomm:
        """Create communicator from group; only its members take part."""
        state, ranks = self._state, group._state.ranks
        communicator.check_members(state, ranks)
        if state.native.engine.rank not in ranks:
            return Intracomm()
        tag = _CREATE_GROUP_TAG + integer(tag, "tag")
        native = communicator.create_group(state.native, ranks, tag, _CREATE_GROUP_OFFSET)
        return Intracomm._refer(CommState().fill(native, state.errhandler))


Comm._CREATED = Intracomm

COMM_SELF = constant(Intracomm._refer(CommState()), "COMM_SELF")
COMM_WORLD = constant(Intracomm._refer(CommState()), "COMM_WORLD")


def _comm_lock(comm: Comm, key: Any = None) -> Any:
    """Create/get communicator lock."""
    comm._state.native  # noqa: B018  (raises if it is null or was freed)
    return comm._state.lock(key)


def _comm_lock_table(comm: Comm) -> dict[Any, Any]:
    """Return the communicator's table of locks."""
    return comm._state.locks


def _commctx_intra(comm: Intracomm) -> tuple[Intracomm, int]:
    """Create/get a hidden duplicate for internal messages, and the tag to use there. Collective the first time."""
    state = comm._state
    with state.lock("@commctx_intra"):
        if state.hidden is None:
            native = communicator.duplicate(state.native)
            state.hidden = Intracomm._refer(CommState().fill(native, state.errhandler))
    return Intracomm(state.hidden), 0

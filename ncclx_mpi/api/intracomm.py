"""Intracomm: communicators of one group, and the two that exist from the start."""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING, Any, Self

from ncclx_mpi import errors, runtime
from ncclx_mpi.api import bridge, comm_p2p, communicator
from ncclx_mpi.api.comm import _CREATE_GROUP_OFFSET, _CREATE_GROUP_TAG, Comm
from ncclx_mpi.api.comm_collective import Scans
from ncclx_mpi.api.comm_dynamic import DynamicAlltoall
from ncclx_mpi.api.comm_meeting import Meetings
from ncclx_mpi.api.comm_nonblocking import NonBlockingScans
from ncclx_mpi.api.comm_objects import ObjectScans
from ncclx_mpi.api.comm_persistent import PersistentScans
from ncclx_mpi.api.comm_streams import StreamOrdered
from ncclx_mpi.api.comm_topology import Topologies
from ncclx_mpi.api.communicator import CommState
from ncclx_mpi.api.errhandler import Errhandler, default_errhandler
from ncclx_mpi.api.group import Group
from ncclx_mpi.api.handle import constant, integer, text
from ncclx_mpi.api.info import INFO_NULL, Info
from ncclx_mpi.constants import MAX_STRINGTAG_LEN

if TYPE_CHECKING:
    from ncclx_mpi.api.intercomm import Intercomm

_FROM_GROUP_TAG = 1 << 43


class Intracomm(Scans, NonBlockingScans, PersistentScans, ObjectScans, Topologies, DynamicAlltoall, StreamOrdered, Meetings, Comm):
    """Intracommunicator."""

    __slots__ = ()

    def __new__(cls, comm: Comm | None = None) -> Self:
        """Create a handle of the same communicator, or a null one."""
        self = cls._copy(comm, "comm")
        if self._state.is_valid and self._state.intergroup is not None:
            raise TypeError("expecting an intracommunicator")
        return self

    def Create_group(self, group: Group, tag: int = 0) -> Intracomm:
        """Create communicator from group; only its members take part."""
        state, ranks = self._state, group._state.ranks
        communicator.check_members(state, ranks)
        if state.native.engine.rank not in ranks:
            return Intracomm()
        tag = _CREATE_GROUP_TAG + integer(tag, "tag")
        native = communicator.create_group(state.native, ranks, tag, _CREATE_GROUP_OFFSET)
        return Intracomm._refer(CommState().fill(native, state.errhandler))

    def Create_intercomm(self, local_leader: int, peer_comm: Intracomm, remote_leader: int, tag: int = 0) -> Intercomm:
        """Create intercommunicator with the group of the remote leader, a rank of `peer_comm`, which only the two leaders look at.

        Raises
        ------
        Exception
            ERR_RANK: a leader is no rank of its communicator. ERR_COMM: the groups overlap. What goes wrong at a leader is raised on all
            ranks of its group.
        """
        state = self._state
        leader, remote = integer(local_leader, "local_leader"), integer(remote_leader, "remote_leader")
        if not 0 <= leader < state.size:
            errors.fail(errors.ERR_RANK, f"local leader {leader} is no rank of this communicator of {state.size}")
        native, tag = state.native, comm_p2p.checked_tag(tag)
        contexts, theirs = bridge.connect(native, leader, lambda: peer_comm._state.native, remote, tag)
        made = bridge.fill(CommState(), native.engine, contexts, native.world_ranks, theirs, state.errhandler)
        return self._BETWEEN._refer(made)

    @classmethod
    def Create_from_group(
        cls, group: Group, stringtag: str = "org.mpi4py", info: Info = INFO_NULL, errhandler: Errhandler | None = None
    ) -> Intracomm:
        """Create communicator from group, without one of which it is a part; its members take part, with the same tag.

        Raises
        ------
        Exception
            ERR_ARG: the tag is longer than `MPI.MAX_STRINGTAG_LEN`.
        """
        engine, ranks = runtime.engine(), group._state.ranks
        handler = default_errhandler() if errhandler is None else Errhandler._usable(cls._KIND, errhandler)
        if engine.rank not in ranks:
            return Intracomm()
        communicator.check_own_job(engine, ranks)
        tag = _FROM_GROUP_TAG | zlib.crc32(checked_tag(stringtag))
        native = communicator.create_group(communicator.world(engine), ranks, tag, _CREATE_GROUP_OFFSET)
        cls._heed(handler)
        return Intracomm._refer(CommState().fill(native, handler))


def checked_tag(stringtag: Any) -> bytes:
    """The tag of those who make a communicator without one of which it is a part."""
    tag = stringtag if isinstance(stringtag, bytes) else text(stringtag).encode()
    if len(tag) > MAX_STRINGTAG_LEN:
        errors.fail(errors.ERR_ARG, f"a string tag of {len(tag)} bytes; there may be {MAX_STRINGTAG_LEN}")
    return tag


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
            state.hidden = (Intracomm._refer(CommState().fill(native, state.errhandler)),)
    return Intracomm(state.hidden[0]), 0

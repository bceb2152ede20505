"""Comm: the handle, and managing communicators.

A communicator has some 150 methods. They are spread by concern over mixins, one file each: :mod:`comm_p2p` (messages between
two ranks), :mod:`comm_collective`, :mod:`comm_nonblocking` and :mod:`comm_persistent` (collectives on buffers),
:mod:`comm_objects` (on Python objects), :mod:`comm_survival` (after the death of a rank), :mod:`accessors` (names, attributes, hints,
error handlers). This file has what concerns the communicator itself.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn, Self

from ncclx_mpi import collectives, errors, late, runtime
from ncclx_mpi import constants as mpi
from ncclx_mpi.api import attributes, communicator, errhandler_dispatch
from ncclx_mpi.api.accessors import Attributed, ErrorHandled, Hinted, Named, hints
from ncclx_mpi.api.attached_buffer import AttachedBuffer
from ncclx_mpi.api.comm_collective import Collectives
from ncclx_mpi.api.comm_nonblocking import NonBlockingCollectives
from ncclx_mpi.api.comm_objects import ObjectMethods
from ncclx_mpi.api.comm_p2p import LARGEST_TAG, PointToPoint
from ncclx_mpi.api.comm_partitioned import Partitioned
from ncclx_mpi.api.comm_persistent import PersistentCollectives
from ncclx_mpi.api.comm_survival import Survival
from ncclx_mpi.api.communicator import CommState
from ncclx_mpi.api.errhandler import Errhandler, default_errhandler
from ncclx_mpi.api.group import Group
from ncclx_mpi.api.handle import Handle, constant, integer, is_predefined
from ncclx_mpi.api.info import INFO_NULL, Info
from ncclx_mpi.api.request import Request
from ncclx_mpi.bootstrap import launcher
from ncclx_mpi.constants import UNDEFINED
from ncclx_mpi.operations.collection import Collection
from ncclx_mpi.p2p.engine import NativeComm

if TYPE_CHECKING:
    from ncclx_mpi.api import localities, meeting
    from ncclx_mpi.api.intercomm import Intercomm
    from ncclx_mpi.locality import levels
else:
    localities, meeting = late.module("ncclx_mpi.api.localities"), late.module("ncclx_mpi.api.meeting")
    levels = late.module("ncclx_mpi.locality.levels")

_CREATE_GROUP_OFFSET = 3
_CREATE_GROUP_TAG = 1 << 24
"""Above the numbers of object frames, which travel in the same message space."""

_NULL = CommState()


_RESOURCE_TYPE, _SHARED_MEMORY, _SET_NAME = "mpi_hw_resource_type", "mpi_shared_memory", "mpi_pset_name"
_SELF, _WORLD = "mpi://self", "mpi://world"

_RANK_BITS = 20
"""Of a number that tells nodes apart; the others are those of the job."""


class Comm(
    PointToPoint, AttachedBuffer, Partitioned, Collectives, NonBlockingCollectives, PersistentCollectives, ObjectMethods,
    Survival, Named, Attributed, Hinted, ErrorHandled, Handle,
):  # fmt: skip
    """Communication context."""

    __slots__ = ()
    _NULL = _NULL
    _NULL_NAME = "MPI_COMM_NULL"
    _KIND = "communicator"
    _STATE = (CommState,)
    _CREATED: ClassVar[type[Comm]]
    _BETWEEN: ClassVar[type[Intercomm]]
    """The class of communicators between two groups."""
    _WITH_TOPOLOGY: ClassVar[dict[int, type[Any]]] = {}
    """The class of communicators with each kind of topology."""
    _PARENT: ClassVar[CommState] = CommState()
    """What leads to those who have started this job."""
    _state: CommState

    def __new__(cls, comm: Comm | None = None) -> Self:
        """Create a handle of the same communicator, or a null one."""
        self = cls._copy(comm, "comm")
        # methods mean other things between groups
        if cls is Comm and self._state.is_valid and self._state.intergroup is not None:
            return cls._BETWEEN._refer(self._state)  # type: ignore[return-value]
        return self

    @classmethod
    def fromhandle(cls, handle: int) -> Comm:
        """Create object from the integer that `handle` gave."""
        state: CommState = cls._find(handle)
        if state is _NULL:
            return Comm()
        return cls._handle_of(state)

    @classmethod
    def _handle_of(cls, state: CommState) -> Comm:
        """A handle of the class that fits."""
        if state.intergroup is not None:
            return cls._BETWEEN._refer(state)
        kind = cls._CREATED if state.topology is None else cls._WITH_TOPOLOGY[state.topology.kind]
        return kind._refer(state)

    @classmethod
    def Get_parent(cls) -> Intercomm:
        """Return the parent intercommunicator for this process, a null one if it was not spawned, or has disconnected."""
        return cls._BETWEEN._refer(Comm._PARENT) if Comm._PARENT.is_valid else cls._BETWEEN()

    @classmethod
    def Join(cls, fd: int) -> Intercomm:
        """Create a intercommunicator by joining two processes connected by a socket, of one user on one host.

        Raises
        ------
        Exception
            ERR_OTHER: there is no such connection, its other end joins nobody in time, or is on another host.
        """
        own, number = communicator.own(runtime.engine()), integer(fd, "fd")
        connect = meeting.over(number, own.engine, "Join", errors.ERR_OTHER)
        return cls._BETWEEN._refer(meeting.meet(own, 0, connect, "Join", errors.ERR_OTHER, default_errhandler()))

    # What it is

    def Get_group(self) -> Group:
        """Access the group associated with a communicator."""
        state = self._state
        return Group._of(state.groups[0], state.of_all.engine.rank)

    @property
    def group(self) -> Group:
        """Group."""
        return self.Get_group()

    def Get_size(self) -> int:
        """Return the number of processes in a communicator."""
        return self._state.size

    @property
    def size(self) -> int:
        """Number of processes."""
        return self._state.size

    def Get_rank(self) -> int:
        """Return the rank of this process in a communicator."""
        return self._state.rank

    @property
    def rank(self) -> int:
        """Rank of this process."""
        return self._state.rank

    def Compare(self, comm: Comm) -> int:
        """Compare two communicators."""
        mine, theirs = self._state.groups, comm._state.groups
        if self._state is comm._state:
            return mpi.IDENT
        if mine == theirs:
            return mpi.CONGRUENT
        return mpi.SIMILAR if list(map(sorted, mine)) == list(map(sorted, theirs)) else mpi.UNEQUAL

    def Is_inter(self) -> bool:
        """Return whether the communicator is an intercommunicator."""
        return self._state.intergroup is not None

    @property
    def is_inter(self) -> bool:
        """Is intercommunicator."""
        return self.Is_inter()

    def Is_intra(self) -> bool:
        """Return whether the communicator is an intracommunicator."""
        return not self.Is_inter()

    @property
    def is_intra(self) -> bool:
        """Is intracommunicator."""
        return self.Is_intra()

    def Get_topology(self) -> int:
        """Return the type of topology (if any) associated with a communicator."""
        topology = self._state.topology
        return UNDEFINED if topology is None else topology.kind

    @property
    def topology(self) -> int:
        """Topology type."""
        return self.Get_topology()

    @property
    def is_topo(self) -> bool:
        """Is a topology."""
        return self.Get_topology() != UNDEFINED

    # Making others

    def Clone(self) -> Self:
        """Clone an existing communicator."""
        return self.Dup()

    def Dup(self, info: Info | None = None) -> Self:
        """Duplicate a communicator."""
        made = self._duplicate()
        try:
            self._copy_to(made, info)
        except BaseException:
            made.leave()
            raise
        return self._refer(made)

    def Dup_with_info(self, info: Info) -> Self:
        """Duplicate a communicator with hints."""
        return self.Dup(info)

    def Idup(self, info: Info | None = None) -> tuple[Self, Request]:
        """Nonblocking duplicate a communicator."""
        made = CommState()
        started, after = self._start_duplicate(made)

        def finish() -> None:
            after()
            self._copy_to(made, info)

        return self._refer(made), Request._refer(Collection(started, self, finish))

    def Idup_with_info(self, info: Info) -> tuple[Self, Request]:
        """Nonblocking duplicate a communicator with hints."""
        return self.Idup(info)

    def _duplicate(self) -> CommState:
        """Make a communicator of the same ranks."""
        state = self._state
        return CommState().fill(communicator.duplicate(state.native), state.errhandler)

    def _start_duplicate(self, made: CommState) -> tuple[collectives.Collective, Callable[[], None]]:
        """Start making `made` a communicator of the same ranks; returns the collective, and what to do after it."""
        errhandler = self._state.errhandler

        def fill(native: NativeComm) -> None:
            made.fill(native, errhandler)

        return communicator.start_duplicate(self._state.native, fill)

    def _copy_to(self, made: CommState, info: Info | None) -> None:
        """Give a duplicate the topology, hints and attributes that it starts with."""
        made.topology = self._state.topology
        made.info = dict(self._state.info) if info is None else hints(info)
        if self._state.attributes:
            made.attributes = attributes.copy_all(self, self._state.attributes)

    def Create(self, group: Group) -> Comm:
        """Create communicator from group."""
        ranks = group._state.ranks
        communicator.check_members(self._state, ranks)
        return self._create(ranks)

    def Split(self, color: int = 0, key: int = 0) -> Comm:
        """Split communicator by color and key."""
        color, key = integer(color, "color"), integer(key, "key")
        self._state.native  # noqa: B018  (raises if it is null or was freed)
        if color < 0 and color != UNDEFINED:
            errors.fail(errors.ERR_ARG, f"color {color} is negative; pass MPI.UNDEFINED to stay out")
        return self._split(color, key)

    def Split_type(self, split_type: int, key: int = 0, info: Info = INFO_NULL) -> Comm:
        """Split communicator by split type: by node, or by what the hint ``mpi_hw_resource_type`` names.

        Raises
        ------
        Exception
            ERR_ARG: it is no split type. ERR_OTHER: a rank cannot read what is said of the network.
        """
        split_type, key = integer(split_type, "split_type"), integer(key, "key")
        self._state.native  # noqa: B018  (raises if it is null or was freed)
        if split_type == UNDEFINED:
            return self._split(UNDEFINED, key)
        if split_type == mpi.COMM_TYPE_SHARED:
            return self._split(self._node(), key)
        if split_type in (mpi.COMM_TYPE_HW_GUIDED, mpi.COMM_TYPE_RESOURCE_GUIDED):
            return self._split(self._guided(info, split_type == mpi.COMM_TYPE_RESOURCE_GUIDED), key)
        if split_type != mpi.COMM_TYPE_HW_UNGUIDED:
            errors.fail(errors.ERR_ARG, f"{split_type} is no split type; the MPI.COMM_TYPE_ constants are")
        color, name = localities.color_of_strict_part(self._state)
        made = self._split(color, key)
        if name and info and not info._state.frozen:
            info.Set(_RESOURCE_TYPE, name)
        return made

    def _guided(self, info: Info, may_be_a_set: bool) -> int:
        """The color of this rank by what a hint names."""
        name = info.Get(_RESOURCE_TYPE) if info else None
        if name == _SHARED_MEMORY:
            return self._node()
        if name is not None:
            return localities.color_of_resource(self._state, name)
        processes = (info.Get(_SET_NAME) or "").lower() if info and may_be_a_set else ""
        engine = self._state.native.engine
        words = {_SELF: (engine.arena.job, engine.rank), _WORLD: (engine.arena.job,)}.get(processes)
        return UNDEFINED if words is None else levels.number(processes, *words)

    def _node(self) -> int:
        """A number that the ranks on the node of this one have, and no others; those of another job share no memory with them."""
        engine = self._state.native.engine
        return engine.near[0] + (engine.arena.job >> _RANK_BITS << _RANK_BITS)

    def _create(self, ranks: Sequence[int]) -> Comm:
        """Make a communicator of these world ranks."""
        return self._created(communicator.create(self._state.native, ranks))

    def _split(self, color: int, key: int) -> Comm:
        """Make a communicator for each color."""
        return self._created(communicator.split(self._state.native, color, key))

    def _created(self, native: NativeComm | None) -> Comm:
        """Return the handle of a communicator made from this one, null for a rank that is not in it."""
        if native is None:
            return self._CREATED()
        return self._CREATED._refer(CommState().fill(native, self._state.errhandler))

    # Ending

    def Free(self) -> None:
        """Free a communicator.

        Raises
        ------
        Exception
            ERR_OTHER: another rank called other collectives on it than this one. The communicator is freed all the same.
        """
        state = self._state
        state.of_all  # noqa: B018  (raises if it is null or was freed)
        if is_predefined(self):
            errors.fail(errors.ERR_COMM, "MPI.COMM_WORLD and MPI.COMM_SELF cannot be freed")
        if state.attributes or state.hidden is not None:
            self._free_attributes()
        wrong = state.depart()
        self._become_null()
        if wrong is not None:
            raise wrong

    def _free_attributes(self) -> None:
        """Delete what is cached on the communicator."""
        attributes.delete_all(self._KIND, self, self._state.attributes)
        if self._state.hidden is not None:
            for hidden in self._state.hidden:
                hidden.Free()
            self._state.hidden = None

    def Disconnect(self) -> None:
        """Wait for pending communication, then free the communicator."""
        self.Barrier()
        self.Free()

    def Abort(self, errorcode: int = 0) -> NoReturn:
        """Terminate the whole job; `errorcode` is its exit status."""
        runtime.abort(integer(errorcode, "errorcode"))

    @classmethod
    def _heed(cls, errhandler: Errhandler) -> None:
        errhandler_dispatch.use(errhandler, Comm, cls._CREATED, *cls._WITH_TOPOLOGY.values(), cls._BETWEEN)
        errhandler_dispatch.use_in_waits(errhandler, Request, Comm._handle_of)


_PREDEFINED: dict[int, Callable[[Comm], Any]] = {
    mpi.TAG_UB: lambda comm: LARGEST_TAG,
    mpi.IO: lambda comm: comm._state.rank,
    mpi.WTIME_IS_GLOBAL: lambda comm: 1,
    mpi.UNIVERSE_SIZE: lambda comm: runtime.engine().size,
    mpi.APPNUM: lambda comm: int(os.environ.get(launcher.NUMBER, "0")),
    mpi.LASTUSEDCODE: lambda comm: errors.last_used_code(),
}

Comm._PREDEFINED = _PREDEFINED

COMM_NULL = constant(Comm(), "COMM_NULL")

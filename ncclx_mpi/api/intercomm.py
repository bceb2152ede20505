"""Intercomm: communicators between two groups, each of whose ranks talks to those of the other group."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from typing import Self

from ncclx_mpi import collectives, errors, runtime
from ncclx_mpi.api import bridge, communicator
from ncclx_mpi.api.comm import Comm
from ncclx_mpi.api.communicator import CommState
from ncclx_mpi.api.errhandler import Errhandler, default_errhandler
from ncclx_mpi.api.group import Group
from ncclx_mpi.api.handle import integer
from ncclx_mpi.api.info import INFO_NULL, Info
from ncclx_mpi.api.intergroup import Intergroup
from ncclx_mpi.api.intergroup_objects import IntergroupObjects
from ncclx_mpi.api.intracomm import Intracomm, checked_tag
from ncclx_mpi.constants import UNDEFINED


class Intercomm(IntergroupObjects, Comm):
    """Intercommunicator."""

    __slots__ = ()

    def __new__(cls, comm: Comm | None = None) -> Self:
        """Create a handle of the same communicator, or a null one."""
        self = cls._copy(comm, "comm")
        if self._state.is_valid and self._state.intergroup is None:
            raise TypeError("expecting an intercommunicator")
        return self

    @classmethod
    def Create_from_groups(
        cls,
        local_group: Group,
        local_leader: int,
        remote_group: Group,
        remote_leader: int,
        stringtag: str = "org.mpi4py",
        info: Info = INFO_NULL,
        errhandler: Errhandler | None = None,
    ) -> Intercomm:
        """Create communicator from group; the members of both groups take part, with the same tag.

        Raises
        ------
        Exception
            ERR_GROUP: the groups overlap. ERR_RANK: a leader is no rank of its group. ERR_ARG: the tag is longer than
            `MPI.MAX_STRINGTAG_LEN`.
        """
        engine, mine, theirs = runtime.engine(), local_group._state.ranks, remote_group._state.ranks
        handler = default_errhandler() if errhandler is None else Errhandler._usable(cls._KIND, errhandler)
        leaders = [_leader(mine, local_leader, "local_leader"), _leader(theirs, remote_leader, "remote_leader")]
        shared = sorted(set(mine) & set(theirs))
        if shared:
            errors.fail(errors.ERR_GROUP, f"world ranks {shared} are in both groups; they must have none in common")
        if not theirs or engine.rank not in mine:
            return Intercomm()
        communicator.check_own_job(engine, [*mine, *theirs])
        members, tag = bridge.in_order(engine, mine, theirs), zlib.crc32(checked_tag(stringtag))
        first = leaders[0] if members[0] == mine[0] else leaders[1]
        contexts = bridge.announce(communicator.world(engine), first, members, tag)
        cls._heed(handler)
        return Intercomm._refer(bridge.fill(CommState(), engine, contexts, mine, theirs, handler))

    # What it is

    def Get_remote_group(self) -> Group:
        """Access the remote group associated with the inter-communicator."""
        return Group._of(self._groups.theirs, self._groups.native.engine.rank)

    @property
    def remote_group(self) -> Group:
        """Remote group."""
        return self.Get_remote_group()

    def Get_remote_size(self) -> int:
        """Intercommunicator remote size."""
        return len(self._groups.theirs)

    @property
    def remote_size(self) -> int:
        """Number of remote processes."""
        return self.Get_remote_size()

    # Making others

    def Merge(self, high: bool = False) -> Intracomm:
        """Merge intercommunicator into an intracommunicator; ranks of the group that is not `high` come first.

        Raises
        ------
        Exception
            ERR_ARG: the ranks of one group do not all pass the same value.
        """
        return Intracomm._refer(CommState().fill(bridge.merge(self._groups, high), self._state.errhandler))

    def _duplicate(self) -> CommState:
        groups, made = self._groups, CommState()
        bridge.fill_alike(made, groups, bridge.duplicate(groups), self._state.errhandler)
        return made

    def _start_duplicate(self, made: CommState) -> tuple[collectives.Collective, Callable[[], None]]:
        groups, errhandler = self._groups, self._state.errhandler
        return bridge.start_duplicate(groups, lambda contexts: bridge.fill_alike(made, groups, contexts, errhandler))

    def _create(self, ranks: Sequence[int]) -> Comm:
        """Make a communicator of parts of both groups, in their order, null unless both have members."""
        me = self._groups.native.engine.rank
        return self._split(*((0, ranks.index(me)) if me in ranks else (UNDEFINED, 0)))

    def _split(self, color: int, key: int) -> Comm:
        """Make a communicator for each color, null where one of the groups has none of it."""
        groups = self._groups
        made = bridge.split(groups, color, key)
        if made is None:
            return Intercomm()
        return Intercomm._refer(bridge.fill(CommState(), groups.native.engine, *made, self._state.errhandler))


def _leader(ranks: tuple[int, ...], leader: int, name: str) -> int:
    """World rank of the leader of a group; that of an empty one does not matter."""
    place = integer(leader, name)
    if not ranks:
        return -1
    if not 0 <= place < len(ranks):
        errors.fail(errors.ERR_RANK, f"{name} {place} is no rank of its group of {len(ranks)}")
    return ranks[place]


Comm._BETWEEN = Intercomm


def _commctx_inter(comm: Comm) -> tuple[Intercomm, int, Intracomm, bool]:
    """Create/get a hidden duplicate for internal messages, the tag to use there, the local group, and whether that is the first one.

    Collective over both groups the first time.
    """
    state = comm._state
    groups = state.intergroup
    if groups is None:
        errors.fail(errors.ERR_COMM, f"{comm.name or 'the communicator'} is not an intercommunicator")
    with state.lock("@commctx_inter"):
        if state.hidden is None:
            state.hidden = _hidden(state, groups)
    dup, local = state.hidden
    return Intercomm(dup), 0, Intracomm(local), groups.sides.mine.start == 0


def _hidden(state: CommState, groups: Intergroup) -> tuple[Comm, Comm]:
    dup = CommState()
    bridge.fill_alike(dup, groups, bridge.duplicate(groups), state.errhandler)
    local = CommState().fill(bridge.own_side(groups), state.errhandler)
    return Intercomm._refer(dup), Intracomm._refer(local)

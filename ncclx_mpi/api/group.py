"""Groups: ordered sets of world ranks. Everything here is local."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Self

from ncclx_mpi import errors
from ncclx_mpi.api.handle import Handle, constant, instance, integer, is_constant
from ncclx_mpi.constants import IDENT, PROC_NULL, SIMILAR, UNDEFINED, UNEQUAL
from ncclx_mpi.state import State

if TYPE_CHECKING:
    from ncclx_mpi.api.session import Session


class GroupState(State):
    """The world ranks of a group, in rank order."""

    __slots__ = ("me", "ranks")
    WHAT = "group"
    ERROR = errors.ERR_GROUP
    ranks: tuple[int, ...]
    me: int

    def __init__(self, ranks: Iterable[int] | None = None, me: int = -1) -> None:
        if ranks is not None:
            self.ranks = tuple(ranks)
            self.me = me


_NULL = GroupState()
_EMPTY = GroupState(())


class Group(Handle):
    """Group of processes."""

    __slots__ = ()
    _NULL = _NULL
    _STATE = (GroupState,)
    _state: GroupState

    def __new__(cls, group: Group | None = None) -> Self:
        """Create a handle of the same group, or a null one."""
        return cls._copy(group, "group")

    @classmethod
    def _of(cls, ranks: Iterable[int], me: int) -> Self:
        """Return the group of these world ranks, seen by world rank `me`."""
        ranks = tuple(ranks)
        return cls._refer(GroupState(ranks, me) if ranks else _EMPTY)

    @classmethod
    def Create_from_session_pset(cls, session: Session, pset_name: str) -> Group:
        """Create a new group from session and process set."""
        from ncclx_mpi.api.session import Session  # it makes groups, too

        instance(session, Session)
        return session.Create_group(pset_name)

    def Free(self) -> None:
        """Free a group."""
        self._state.ranks  # noqa: B018  (raises if it is null or was freed)
        if self._state is not _EMPTY:
            self._state.empty()
        if not is_constant(self):
            self._become_null()

    def Get_size(self) -> int:
        """Return the number of processes in a group."""
        return len(self._state.ranks)

    @property
    def size(self) -> int:
        """Number of processes."""
        return self.Get_size()

    def Get_rank(self) -> int:
        """Return the rank of this process in a group, UNDEFINED if it is no member."""
        ranks = self._state.ranks
        return ranks.index(self._state.me) if self._state.me in ranks else UNDEFINED

    @property
    def rank(self) -> int:
        """Rank of this process."""
        return self.Get_rank()

    def Translate_ranks(self, ranks: Sequence[int] | None = None, group: Group | None = None) -> list[int]:
        """Translate ranks in a group to those in another group, by default the world's."""
        mine = self._state.ranks
        wanted = range(len(mine)) if ranks is None else [integer(rank, "ranks") for rank in ranks]
        if group is None:
            return [_world_rank(mine, rank) for rank in wanted]
        where = {world: rank for rank, world in enumerate(group._state.ranks)}
        return [PROC_NULL if rank == PROC_NULL else where.get(_world_rank(mine, rank), UNDEFINED) for rank in wanted]

    def Compare(self, group: Group) -> int:
        """Compare two groups."""
        mine, theirs = self._state.ranks, group._state.ranks
        if mine == theirs:
            return IDENT
        return SIMILAR if sorted(mine) == sorted(theirs) else UNEQUAL

    def Dup(self) -> Self:
        """Duplicate a group."""
        return self._derive(self._state.ranks)

    @classmethod
    def Union(cls, group1: Group, group2: Group) -> Self:
        """Create a new group from the union of two existing groups."""
        first, second = group1._state.ranks, group2._state.ranks
        return cls._of(dict.fromkeys(first + second), _me(group1, group2))

    @classmethod
    def Intersection(cls, group1: Group, group2: Group) -> Self:
        """Create a new group from the intersection of two existing groups."""
        second = set(group2._state.ranks)
        return cls._of((rank for rank in group1._state.ranks if rank in second), _me(group1, group2))

    Intersect = Intersection

    @classmethod
    def Difference(cls, group1: Group, group2: Group) -> Self:
        """Create a new group from the difference of two existing groups."""
        second = set(group2._state.ranks)
        return cls._of((rank for rank in group1._state.ranks if rank not in second), _me(group1, group2))

    def Incl(self, ranks: Sequence[int]) -> Self:
        """Create a new group by including listed members."""
        return self._derive(self._state.ranks[rank] for rank in self._checked(ranks))

    def Excl(self, ranks: Sequence[int]) -> Self:
        """Create a new group by excluding listed members."""
        out = set(self._checked(ranks))
        return self._derive(world for rank, world in enumerate(self._state.ranks) if rank not in out)

    def Range_incl(self, ranks: Sequence[tuple[int, int, int]]) -> Self:
        """Create a new group by including ranges of members, each (first, last, stride)."""
        return self.Incl(_expand(ranks))

    def Range_excl(self, ranks: Sequence[tuple[int, int, int]]) -> Self:
        """Create a new group by excluding ranges of members, each (first, last, stride)."""
        return self.Excl(_expand(ranks))

    def _derive(self, world_ranks: Iterable[int]) -> Self:
        return self._of(world_ranks, self._state.me)

    def _checked(self, ranks: Sequence[int]) -> list[int]:
        """Return `ranks` as ints, each a rank of this group and none twice."""
        size = len(self._state.ranks)
        checked = [integer(rank, "ranks") for rank in ranks]
        for rank in checked:
            if not 0 <= rank < size:
                errors.fail(errors.ERR_RANK, f"rank {rank} is not in this group of {size}")
        if len(set(checked)) != len(checked):
            errors.fail(errors.ERR_RANK, f"ranks {checked} name a member twice")
        return checked


def _world_rank(ranks: tuple[int, ...], rank: int) -> int:
    if rank == PROC_NULL:
        return PROC_NULL
    if not 0 <= rank < len(ranks):
        errors.fail(errors.ERR_RANK, f"rank {rank} is not in this group of {len(ranks)}")
    return ranks[rank]


def _me(group1: Group, group2: Group) -> int:
    """World rank of this process; GROUP_EMPTY does not know it."""
    return max(group1._state.me, group2._state.me)


def _expand(triplets: Sequence[Any]) -> list[int]:
    """Return all ranks of ranges (first, last, stride), `last` included."""
    ranks: list[int] = []
    for triplet in triplets:
        first, last, stride = (integer(value, "ranks") for value in triplet)
        if stride == 0:
            errors.fail(errors.ERR_ARG, f"range ({first}, {last}, {stride}) has stride 0")
        ranks.extend(range(first, last + (1 if stride > 0 else -1), stride))
    return ranks


GROUP_NULL = constant(Group(), "GROUP_NULL")
GROUP_EMPTY = constant(Group._refer(_EMPTY), "GROUP_EMPTY")

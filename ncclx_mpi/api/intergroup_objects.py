"""Collectives on Python objects between two groups: the bytes of each pickle, and then the pickles, straight to who gets them."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

from ncclx_mpi import collectives
from ncclx_mpi.api import neighbor_objects
from ncclx_mpi.api.communicator import CommState
from ncclx_mpi.api.intergroup import Intergroup, edges_of
from ncclx_mpi.api.op import SUM, Op
from ncclx_mpi.collectives import Neighborhood, intergroup
from ncclx_mpi.collectives.shm_oneshot import ALLGATHER, ALLTOALL, BCAST, GATHER, SCATTER
from ncclx_mpi.p2p.engine import NativeComm

Reduction = Op | Callable[[Any, Any], Any]

_LOCK = "intergroup_objects"


class IntergroupObjects:
    """Methods of Intercomm: collectives on Python objects."""

    __slots__ = ()
    _state: CommState

    def bcast(self, obj: Any, root: int = 0) -> Any:
        """Broadcast an object of the root, which passes `MPI.ROOT`, to all processes of the other group; None in its own."""
        groups = self._groups
        place = groups.root(root)
        if place == groups.native.rank:
            self._give_all("bcast", BCAST, place, (), tuple(groups.sides.theirs), obj)
            return None
        return self._take_one("bcast", BCAST, place)

    def gather(self, sendobj: Any, root: int = 0) -> list[Any] | None:
        """Gather the objects of the other group at the root, which passes `MPI.ROOT`."""
        groups = self._groups
        place = groups.root(root)
        if place == groups.native.rank:
            return self._give_all("gather", GATHER, place, tuple(groups.sides.theirs), (), None)
        self._give_all("gather", GATHER, place, (), () if place < 0 else (place,), sendobj)
        return None

    def scatter(self, sendobj: Sequence[Any] | None, root: int = 0) -> Any:
        """Scatter the objects of the root, which passes `MPI.ROOT`, to the processes of the other group."""
        groups = self._groups
        place = groups.root(root)
        if place == groups.native.rank:
            self._give_each("scatter", SCATTER, place, (), sendobj)
            return None
        return self._take_one("scatter", SCATTER, place)

    def allgather(self, sendobj: Any) -> list[Any]:
        """Gather the objects of the other group at all processes."""
        peers = tuple(self._groups.sides.theirs)
        return self._give_all("allgather", ALLGATHER, 0, peers, peers, sendobj)

    def alltoall(self, sendobj: Sequence[Any]) -> list[Any]:
        """Exchange an object with every process of the other group."""
        return self._give_each("alltoall", ALLTOALL, 0, tuple(self._groups.sides.theirs), sendobj)

    def reduce(self, sendobj: Any, op: Reduction = SUM, root: int = 0) -> Any | None:
        """Reduce the objects of the other group, in the order of its ranks, at the root, which passes `MPI.ROOT`."""
        objects = self.gather(sendobj, root)
        return None if objects is None else functools.reduce(op, objects)

    def allreduce(self, sendobj: Any, op: Reduction = SUM) -> Any:
        """Reduce the objects of the other group, in the order of its ranks, at all processes."""
        return functools.reduce(op, self.allgather(sendobj))

    @property
    def _groups(self) -> Intergroup:
        groups = self._state.intergroup
        assert groups is not None
        return groups

    def _take_one(self, name: str, kind: int, root: int) -> Any:
        """Return what the root sends to this rank; None of no root."""
        found = self._give_all(name, kind, root, () if root < 0 else (root,), (), None)
        return found[0] if found else None

    def _give_each(self, name: str, kind: int, root: int, sources: tuple[int, ...], objects: Sequence[Any] | None) -> list[Any]:
        """Send an object to each rank of the other group; return those of `sources`."""
        peers = tuple(self._groups.sides.theirs)
        return self._exchange(name, kind, root, edges_of(sources, peers), neighbor_objects.one_for_each(objects, peers))

    def _give_all(
        self, name: str, kind: int, root: int, sources: tuple[int, ...], destinations: tuple[int, ...], obj: Any
    ) -> list[Any]:
        """Send one object to all `destinations`; return those of `sources`."""
        parts = neighbor_objects.same_for_all(obj, destinations)
        return self._exchange(name, kind, root, edges_of(sources, destinations), parts)

    def _exchange(self, name: str, kind: int, root: int, edges: Neighborhood, sent: neighbor_objects.Parts) -> list[Any]:
        with self._state.lock(_LOCK):
            move = functools.partial(_move, self._groups.native, name, kind, max(root, 0))
            return neighbor_objects.exchange(move, edges, sent)


def _move(native: NativeComm, name: str, kind: int, root: int, *edges_and_memory: Any) -> None:
    task = name, kind, *edges_and_memory, root
    collectives.run(intergroup.inter_exchange(native, *task))

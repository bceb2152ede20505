"""Communicators with a process topology: grids, graphs and distributed graphs. They are made by :mod:`ncclx_mpi.api.comm_topology`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Self, TypeVar

from ncclx_mpi.api import communicator
from ncclx_mpi.api.comm import Comm
from ncclx_mpi.api.comm_neighbor import NeighborCollectives
from ncclx_mpi.api.handle import integer
from ncclx_mpi.api.intracomm import Intracomm
from ncclx_mpi.api.topology import Cartesian, DistributedGraph, Graph, items
from ncclx_mpi.collectives import Neighborhood

Kind = TypeVar("Kind", Cartesian, Graph, DistributedGraph)


class Topocomm(NeighborCollectives, Intracomm):
    """Topology intracommunicator."""

    __slots__ = ()
    _EXPECTED: ClassVar[str] = "a topology communicator"
    _KINDS: ClassVar[tuple[type[Any], ...]] = (Cartesian, Graph, DistributedGraph)

    def __new__(cls, comm: Comm | None = None) -> Self:
        """Create a handle of the same communicator, or a null one."""
        self = cls._copy(comm, "comm")
        if self and not isinstance(self._state.topology, cls._KINDS):
            raise TypeError(f"expecting {cls._EXPECTED}")
        return self

    def _topology(self, kind: type[Kind]) -> Kind:
        """What the ranks of this communicator are arranged in."""
        topology = self._state.topology
        assert isinstance(topology, kind)
        return topology

    @property
    def _neighborhood(self) -> Neighborhood:
        topology = self._state.topology
        assert topology is not None
        return topology.neighborhood

    @property
    def degrees(self) -> tuple[int, int]:
        """Number of incoming and outgoing neighbors."""
        return self.indegree, self.outdegree

    @property
    def indegree(self) -> int:
        """Number of incoming neighbors."""
        return len(self._neighborhood.sources)

    @property
    def outdegree(self) -> int:
        """Number of outgoing neighbors."""
        return len(self._neighborhood.destinations)

    @property
    def inoutedges(self) -> tuple[list[int], list[int]]:
        """Incoming and outgoing neighbors."""
        return self.inedges, self.outedges

    @property
    def inedges(self) -> list[int]:
        """Incoming neighbors."""
        return list(self._neighborhood.sources)

    @property
    def outedges(self) -> list[int]:
        """Outgoing neighbors."""
        return list(self._neighborhood.destinations)


class Cartcomm(Topocomm):
    """Cartesian topology intracommunicator."""

    __slots__ = ()
    _EXPECTED = "a Cartesian communicator"
    _KINDS = (Cartesian,)

    @property
    def _grid(self) -> Cartesian:
        return self._topology(Cartesian)

    def Get_dim(self) -> int:
        """Return number of dimensions."""
        return len(self._grid.dims)

    @property
    def dim(self) -> int:
        """Number of dimensions."""
        return self.Get_dim()

    @property
    def ndim(self) -> int:
        """Number of dimensions."""
        return self.Get_dim()

    def Get_topo(self) -> tuple[list[int], list[int], list[int]]:
        """Return information on the cartesian topology: dimensions, periods, and the coordinates of this process."""
        return self.dims, self.periods, self.coords

    @property
    def topo(self) -> tuple[list[int], list[int], list[int]]:
        """Topology information."""
        return self.Get_topo()

    @property
    def dims(self) -> list[int]:
        """Dimensions."""
        return list(self._grid.dims)

    @property
    def periods(self) -> list[int]:
        """Periodicity."""
        return [int(each) for each in self._grid.periods]

    @property
    def coords(self) -> list[int]:
        """Coordinates."""
        return self._grid.coords(self._grid.rank)

    def Get_cart_rank(self, coords: Sequence[int]) -> int:
        """Translate logical coordinates to ranks."""
        return self._grid.rank_at(items(coords, "coords", self.Get_dim()))

    def Get_coords(self, rank: int) -> list[int]:
        """Translate ranks to logical coordinates."""
        return self._grid.coords(integer(rank, "rank"))

    def Shift(self, direction: int, disp: int) -> tuple[int, int]:
        """Return a process ranks for data shifting with `Sendrecv`."""
        return self._grid.shift(integer(direction, "direction"), integer(disp, "disp"))

    def Sub(self, remain_dims: Sequence[bool]) -> Cartcomm:
        """Return a lower-dimensional Cartesian topology."""
        remains = [bool(each) for each in items(remain_dims, "remain_dims", self.Get_dim())]
        color, part = self._grid.without(remains)
        made: Cartcomm = self._with_topology(part.kind, communicator.split(self._state.native, color, part.rank), part)
        return made


class Graphcomm(Topocomm):
    """General graph topology intracommunicator."""

    __slots__ = ()
    _EXPECTED = "a general graph communicator"
    _KINDS = (Graph,)

    @property
    def _graph(self) -> Graph:
        return self._topology(Graph)

    def Get_dims(self) -> tuple[int, int]:
        """Return the number of nodes and edges."""
        return len(self._graph.index), len(self._graph.edges)

    @property
    def dims(self) -> tuple[int, int]:
        """Number of nodes and edges."""
        return self.Get_dims()

    @property
    def nnodes(self) -> int:
        """Number of nodes."""
        return self.dims[0]

    @property
    def nedges(self) -> int:
        """Number of edges."""
        return self.dims[1]

    def Get_topo(self) -> tuple[list[int], list[int]]:
        """Return index and edges."""
        return self.index, self.edges

    @property
    def topo(self) -> tuple[list[int], list[int]]:
        """Topology information."""
        return self.Get_topo()

    @property
    def index(self) -> list[int]:
        """Index."""
        return list(self._graph.index)

    @property
    def edges(self) -> list[int]:
        """Edges."""
        return list(self._graph.edges)

    def Get_neighbors_count(self, rank: int) -> int:
        """Return number of neighbors of a process."""
        return len(self.Get_neighbors(rank))

    @property
    def nneighbors(self) -> int:
        """Number of neighbors."""
        return self.Get_neighbors_count(self._graph.rank)

    def Get_neighbors(self, rank: int) -> list[int]:
        """Return list of neighbors of a process."""
        return self._graph.neighbors(integer(rank, "rank"))

    @property
    def neighbors(self) -> list[int]:
        """Neighbors."""
        return self.Get_neighbors(self._graph.rank)


class Distgraphcomm(Topocomm):
    """Distributed graph topology intracommunicator."""

    __slots__ = ()
    _EXPECTED = "a distributed graph communicator"
    _KINDS = (DistributedGraph,)

    def Get_dist_neighbors_count(self) -> tuple[int, int, bool]:
        """Return adjacency information for a distributed graph topology: both degrees, and whether edges have weights."""
        graph = self._topology(DistributedGraph)
        return len(graph.sources), len(graph.destinations), graph.weights is not None

    def Get_dist_neighbors(self) -> tuple[list[int], list[int], tuple[list[int], list[int]] | None]:
        """Return adjacency information for a distributed graph topology: sources, destinations, and the weights of both."""
        graph = self._topology(DistributedGraph)
        weights = None if graph.weights is None else (list(graph.weights[0]), list(graph.weights[1]))
        return list(graph.sources), list(graph.destinations), weights


Comm._WITH_TOPOLOGY.update({Cartesian.kind: Cartcomm, Graph.kind: Graphcomm, DistributedGraph.kind: Distgraphcomm})

"""Making communicators whose ranks are neighbours. What these can do is in :mod:`ncclx_mpi.api.topocomm`.

With ``reorder`` the ranks tell each other where they are, and are numbered anew if neighbours come nearer by it
(:mod:`ncclx_mpi.locality.placement`); else they stay as they are.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from ncclx_mpi import errors, late
from ncclx_mpi.api import communicator, topology
from ncclx_mpi.api.communicator import CommState
from ncclx_mpi.api.info import INFO_NULL, Info
from ncclx_mpi.api.topology import Cartesian, DistributedGraph, Graph, Topology, items
from ncclx_mpi.constants import DIST_GRAPH, UNDEFINED, UNWEIGHTED, WEIGHTS_EMPTY
from ncclx_mpi.p2p.engine import NativeComm

if TYPE_CHECKING:
    from ncclx_mpi.api import edges, localities
    from ncclx_mpi.api.topocomm import Cartcomm, Distgraphcomm, Graphcomm
else:
    edges, localities = late.module("ncclx_mpi.api.edges"), late.module("ncclx_mpi.api.localities")


class Topologies:
    """Methods of Intracomm: communicators with a process topology, and where a rank would be in one."""

    __slots__ = ()
    _state: CommState
    _WITH_TOPOLOGY: ClassVar[dict[int, type[Any]]]

    def Create_cart(self, dims: Sequence[int], periods: Sequence[bool] | bool | None = None, reorder: bool = False) -> Cartcomm:
        """Create cartesian communicator; ranks beyond the grid get a null one."""
        native = self._state.native
        made: Cartcomm = self._arranged(topology.cartesian(dims, periods, native.size, native.rank), "Create_cart", reorder)
        return made

    def Create_graph(self, index: Sequence[int], edges: Sequence[int], reorder: bool = False) -> Graphcomm:
        """Create graph communicator; ranks beyond the graph get a null one."""
        native = self._state.native
        made: Graphcomm = self._arranged(topology.graph(index, edges, native.size, native.rank), "Create_graph", reorder)
        return made

    def Create_dist_graph_adjacent(
        self,
        sources: Sequence[int] | None,
        destinations: Sequence[int] | None,
        sourceweights: Sequence[int] | int | None = None,
        destweights: Sequence[int] | int | None = None,
        info: Info = INFO_NULL,
        reorder: bool = False,
    ) -> Distgraphcomm:
        """Create distributed graph communicator; each rank gives the edges that it has."""
        native = self._state.native
        into, out_of = (items([] if ranks is None else ranks, "edges") for ranks in (sources, destinations))
        weights = _pair(_weights(sourceweights, len(into)), _weights(destweights, len(out_of)), native.rank)
        return self._distributed(edges.adjacent(native, into, out_of, weights), "Create_dist_graph_adjacent", reorder)

    def Create_dist_graph(
        self,
        sources: Sequence[int],
        degrees: Sequence[int],
        destinations: Sequence[int],
        weights: Sequence[int] | int | None = None,
        info: Info = INFO_NULL,
        reorder: bool = False,
    ) -> Distgraphcomm:
        """Create distributed graph communicator; each rank gives some edges, its own or others'."""
        native, origins = self._state.native, items(sources, "sources")
        counts = items(degrees, "degrees", len(origins))
        if min(counts, default=0) < 0:
            errors.fail(errors.ERR_ARG, f"rank {native.rank}: Create_dist_graph: degree {min(counts)} is negative")
        ends = items(destinations, "destinations", sum(counts))
        graph = edges.scattered(native, origins, counts, ends, _weights(weights, len(ends)))
        return self._distributed(graph, "Create_dist_graph", reorder)

    def Cart_map(self, dims: Sequence[int], periods: Sequence[bool] | bool | None = None) -> int:
        """Determine optimal process placement on a cartesian topology, as far as ranks have told each other where they are.

        Nothing is communicated: after a call that does, such as `Create_cart` with `reorder` or a split by resources, it is what those know.
        """
        state = self._state
        grid = topology.cartesian(dims, periods, state.size, state.rank)
        return _place(state.rank, grid.seats(state.localities[: grid.size]))

    def Graph_map(self, index: Sequence[int], edges: Sequence[int]) -> int:
        """Determine optimal process placement on a graph topology; see `Cart_map`."""
        state = self._state
        graph = topology.graph(index, edges, state.size, state.rank)
        return _place(state.rank, graph.seats(state.localities[: graph.size]))

    def _distributed(self, graph: DistributedGraph, name: str, reorder: bool) -> Distgraphcomm:
        """Make a communicator with a graph of which each rank knows its own edges."""
        native = self._state.native
        seats: Sequence[int] = ()
        if reorder:
            seats = edges.seats(native, graph, localities.exchange(self._state, name))
        created: NativeComm | None
        if list(seats) == list(range(len(seats))):
            created = communicator.duplicate(native)
        else:
            graph, created = edges.moved(native, graph, seats), self._of(seats)
        made: Distgraphcomm = self._with_topology(DIST_GRAPH, created, graph)
        return made

    def _arranged(self, shape: Cartesian | Graph, name: str, reorder: bool) -> Any:
        """Make a communicator with a grid or graph that all ranks know."""
        rows = localities.exchange(self._state, name) if reorder else ()
        created = self._of(shape.seats(rows[: shape.size]))
        return self._with_topology(shape.kind, created, shape if created is None else shape.seen_by(created.rank))

    def _of(self, ranks: Sequence[int]) -> NativeComm | None:
        """Make a communicator of these ranks; None for all others."""
        native = self._state.native
        return communicator.create(native, [native.world_ranks[rank] for rank in ranks])

    def _with_topology(self, kind: int, native: NativeComm | None, found: Topology) -> Any:
        """Return the handle of a communicator with a topology, null for a rank that is not in it."""
        if native is None:
            return self._WITH_TOPOLOGY[kind]()
        state = CommState().fill(native, self._state.errhandler)
        state.topology = found
        return self._WITH_TOPOLOGY[kind]._refer(state)


def _place(rank: int, seats: Sequence[int]) -> int:
    """Which vertex a rank is, UNDEFINED for one that is none."""
    return seats.index(rank) if rank in seats else UNDEFINED


def _weights(given: Any, degree: int) -> list[int] | None:
    """Weights of so many edges, None for edges without."""
    if given is None or (isinstance(given, int) and given == UNWEIGHTED):
        return None
    if isinstance(given, int) and given == WEIGHTS_EMPTY:
        if degree:
            raise ValueError(f"weights: empty, and there are {degree} edges")
        return []
    weights = items(given, "weights", degree)
    wrong = [weight for weight in weights if not 0 <= weight < 1 << 31]
    if wrong:
        errors.fail(errors.ERR_ARG, f"weight {wrong[0]} of an edge is not from 0 to 2**31 - 1")
    return weights


def _pair(into: list[int] | None, out_of: list[int] | None, rank: int) -> tuple[list[int], list[int]] | None:
    """Weights of both kinds of edge; None for a graph without."""
    if into is None and out_of is None:
        return None
    if into is None or out_of is None:
        errors.fail(
            errors.ERR_ARG,
            f"rank {rank}: Create_dist_graph_adjacent: only one of sourceweights and destweights is given; give both, "
            "MPI.WEIGHTS_EMPTY where there are no edges, or MPI.UNWEIGHTED for both",
        )
    return into, out_of

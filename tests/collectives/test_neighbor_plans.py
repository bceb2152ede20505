"""Plans of neighbourhood collectives on random graphs and on grids, proved, and run symbolically in adversarial orders."""

from __future__ import annotations

import random
from collections import Counter
from itertools import accumulate

from hypothesis import given
from hypothesis import strategies as st

from ncclx_mpi.api.topology import Cartesian
from ncclx_mpi.collectives import Neighborhood
from ncclx_mpi.collectives.neighbor_alltoall import linear
from ncclx_mpi.collectives.plan import INPUT
from ncclx_mpi.constants import PROC_NULL
from ncclx_mpi.simulate import proof
from ncclx_mpi.simulate.promises import Given, Promise, Promised
from tests.collectives.simulator import Cells, Simulation

Edge = tuple[int, int, int, int]
"""From, to, which of those between the two, cells."""


@st.composite
def graphs(draw: st.DrawFn) -> tuple[int, list[Edge]]:
    """Edges between up to 7 ranks, several between two and to a rank itself among them, some with nothing to send."""
    size = draw(st.integers(1, 7))
    rank = st.integers(0, size - 1)
    seen: Counter[tuple[int, int]] = Counter()
    edges = []
    for source, target, length in draw(st.lists(st.tuples(rank, rank, st.integers(0, 3)), max_size=20)):
        edges.append((source, target, seen[source, target], length))
        seen[source, target] += 1
    return size, edges


def exchanged(size: int, sent: list[list[Edge]], received: list[list[Edge]], seed: int) -> None:
    """Check that every rank gets the cells of all edges into it, where each is in its list `received`."""
    plans, buffers, promises = [], [], []
    starts_of = [
        dict(zip(map(_name, out_of), accumulate((edge[3] for edge in out_of), initial=0), strict=False)) for out_of in sent
    ]
    for rank in range(size):
        out_of, into = sent[rank], received[rank]
        lengths, expected = [edge[3] for edge in out_of], [edge[3] for edge in into]
        peers = tuple(edge[0] for edge in into), tuple(edge[1] for edge in out_of)
        neighborhood = Neighborhood(*peers, tuple(range(len(into))))
        starts, places = list(accumulate(lengths, initial=0)), list(accumulate(expected, initial=0))
        plans.append(linear.plan(rank, neighborhood, lengths, starts[:-1], expected, places[:-1]))
        buffers.append((cells_of(out_of), [None] * places[-1]))
        promised = [
            Promised(place, edge[3], range(edge[0], edge[0] + 1), starts_of[edge[0]][_name(edge)])
            for edge, place in zip(into, places, strict=False)
        ]
        promises.append(Promise([Given(INPUT, 0, starts[-1], 0)], promised, (starts[-1], places[-1])))
    assert not proof.check(plans, promises)
    Simulation(plans, buffers, seed).run()
    assert [output for _, output in buffers] == [cells_of(into) for into in received]


def _name(edge: Edge) -> tuple[int, int, int]:
    return edge[:3]


def cells_of(edges: list[Edge]) -> Cells:
    return [f"{source}>{target}#{which}.{cell}" for source, target, which, length in edges for cell in range(length)]


@given(graphs(), st.integers(0, 1000), st.randoms(use_true_random=False))
def test_edges_between_two_ranks_meet_in_their_order(graph: tuple[int, list[Edge]], seed: int, dice: random.Random) -> None:
    """However the lists of both ends mix edges of different peers: of those between two ranks the order is the same."""
    size, edges = graph
    sent = [[edge for edge in edges if edge[0] == rank] for rank in range(size)]
    received = [mixed([edge for edge in edges if edge[1] == rank], dice) for rank in range(size)]
    exchanged(size, sent, received, seed)


def mixed(edges: list[Edge], dice: random.Random) -> list[Edge]:
    """The same edges in another order, but those from one rank in the order that they have."""
    peers = [edge[0] for edge in edges]
    dice.shuffle(peers)
    rest = {peer: iter([edge for edge in edges if edge[0] == peer]) for peer in peers}
    return [next(rest[peer]) for peer in peers]


@given(st.lists(st.tuples(st.integers(1, 4), st.booleans()), max_size=3), st.integers(0, 1000))
def test_what_goes_to_the_rank_before_comes_from_the_rank_behind(shape: list[tuple[int, bool]], seed: int) -> None:
    """On any grid, also where both are the same rank, or this one; nothing is written for neighbours that do not exist."""
    dims, periods = tuple(extent for extent, _ in shape), tuple(circle for _, circle in shape)
    size = Cartesian(dims, periods, 0).size
    grids = [Cartesian(dims, periods, rank) for rank in range(size)]
    plans, buffers, wanted, promises = [], [], [], []
    for rank, grid in enumerate(grids):
        edges = grid.neighborhood
        counts = [0 if peer == PROC_NULL else 2 for peer in edges.sources]
        offsets = [2 * edge for edge in range(len(counts))]
        plans.append(linear.plan(rank, edges, counts, offsets, counts, offsets))
        buffers.append(([f"{rank}.{cell}" for cell in range(2 * len(counts))], ["kept"] * (2 * len(counts))))
        wanted.append(
            [
                "kept" if peer == PROC_NULL else f"{peer}.{2 * (edge ^ 1) + cell}"
                for edge, peer in enumerate(edges.sources)
                for cell in range(2)
            ]
        )
        length = 2 * len(counts)
        came = [(2 * edge, peer) for edge, peer in enumerate(edges.sources) if peer != PROC_NULL]
        promised = [Promised(place, 2, range(peer, peer + 1), place ^ 2) for place, peer in came]
        promises.append(Promise([Given(INPUT, 0, length, 0)], promised, (length, length)))
    assert not proof.check(plans, promises)
    Simulation(plans, buffers, seed).run()
    assert [output for _, output in buffers] == wanted

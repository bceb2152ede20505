"""How the ranks of a communicator agree on a distributed graph. Both functions are collective.

Each takes one alltoall of a number for every rank, and an allgather, so that all raise, or learn, the same. What the edges are takes
two alltoallv more where ranks give edges that are not their own.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NoReturn

import numpy as np
import numpy.typing as npt

from ncclx_mpi import collectives, errors
from ncclx_mpi.api.topology import DistributedGraph, unequal
from ncclx_mpi.locality import placement
from ncclx_mpi.locality.levels import Row
from ncclx_mpi.p2p.engine import NativeComm
from numba_kernels.layout import WORD

Words = npt.NDArray[np.int64]
_FROM, _TO, _WEIGHT = range(3)
"""Columns of an edge."""


def adjacent(
    comm: NativeComm, sources: Sequence[int], destinations: Sequence[int], weights: tuple[list[int], list[int]] | None
) -> DistributedGraph:
    """Return the graph of which every rank gives its own edges; what neighbours say of each other need not agree."""
    _check_ranks(comm, "Create_dist_graph_adjacent", [*sources, *destinations])
    expected = np.bincount(np.array(sources, dtype=np.int64), minlength=comm.size)
    told = _alltoall(comm, np.bincount(np.array(destinations, dtype=np.int64), minlength=comm.size))
    wrong = np.flatnonzero(told != expected)
    verdict = [int(wrong[0]), int(told[wrong[0]]), int(expected[wrong[0]])] if len(wrong) else [-1, 0, 0]
    table = _allgather(comm, [*verdict, len(destinations)])
    found = next((rank for rank in range(comm.size) if table[rank, 0] >= 0), None)
    mismatch = "" if found is None else unequal(int(table[found, 0]), found, int(table[found, 1]), int(table[found, 2]))
    each = None if weights is None else (tuple(weights[0]), tuple(weights[1]))
    return DistributedGraph(tuple(sources), tuple(destinations), each, mismatch, int(table[:, 3].max()))


def scattered(
    comm: NativeComm, sources: Sequence[int], degrees: Sequence[int], destinations: Sequence[int], weights: Sequence[int] | None
) -> DistributedGraph:
    """Return the graph of which every rank gives some edges, its own or others'.

    The edges of a rank are in the order of who gave them, and of one giver as it gave them: so both ends of several edges between two
    ranks have these in the same order.
    """
    _check_ranks(comm, "Create_dist_graph", [*sources, *destinations])
    is_weighted = _agree_on_weights(comm, len(destinations), weights is not None)
    edges = np.zeros((len(destinations), 3), dtype=np.int64)
    edges[:, _FROM] = np.repeat(np.array(sources, dtype=np.int64), np.array(degrees, dtype=np.int64))
    edges[:, _TO] = destinations
    if weights is not None:
        edges[:, _WEIGHT] = weights
    into, out_of = _bring(comm, edges, _TO), _bring(comm, edges, _FROM)
    each = (_column(into, _WEIGHT), _column(out_of, _WEIGHT)) if is_weighted else None
    degree = int(_allgather(comm, [len(out_of)]).max())
    return DistributedGraph(_column(into, _FROM), _column(out_of, _TO), each, "", degree)


def seats(comm: NativeComm, graph: DistributedGraph, rows: Sequence[Row]) -> Sequence[int]:
    """Which rank should be which of the graph; rank 0 learns of all edges, and tells the others. A weight counts as bytes, at least one."""
    weights = np.ones(len(graph.destinations), np.int64) if graph.weights is None else np.array(graph.weights[1], np.int64)
    mine = np.empty((len(graph.destinations), 3), dtype=np.int64)
    mine[:, _FROM], mine[:, _TO], mine[:, _WEIGHT] = comm.rank, graph.destinations, np.maximum(weights, 1)
    rest = np.where(np.arange(comm.size) == 0, mine.nbytes, 0)
    told = _alltoall(comm, rest)
    found = np.empty(comm.size, dtype=np.int64)
    if comm.rank == 0:
        every = np.empty((int(told.sum()) // (3 * WORD), 3), dtype=np.int64)
        collectives.gatherv(comm, mine.ctypes.data, mine.nbytes, every.ctypes.data, told.tolist(), _starts(told), 0)
        found[:] = placement.on_graph(
            placement.edges_of(comm.size, [(one, other, nbytes) for one, other, nbytes in every.tolist()]), rows
        )
    else:
        collectives.gatherv(comm, mine.ctypes.data, mine.nbytes, 0, [], [], 0)
    collectives.bcast(comm, found.ctypes.data, found.nbytes, 0)
    return list(found.tolist())


def moved(comm: NativeComm, graph: DistributedGraph, seats: Sequence[int]) -> DistributedGraph:
    """Return the edges of the rank of the graph that this rank becomes: whoever gave them brings them."""
    into, out_of = ((), ()) if graph.weights is None else graph.weights
    words = [len(graph.sources), graph.weights is not None, *graph.sources, *graph.destinations, *into, *out_of]
    given = np.array(words, dtype=np.int64)
    is_there = np.arange(comm.size) == seats[comm.rank]
    sizes = np.where(is_there, given.nbytes, 0)
    told = _alltoall(comm, sizes)
    brought = np.empty(int(told.sum()) // WORD, dtype=np.int64)
    collectives.alltoallv(
        comm, given.ctypes.data, sizes.tolist(), _starts(sizes), brought.ctypes.data, told.tolist(), _starts(told)
    )
    count, is_weighted, *rest = brought.tolist()
    ends = len(rest) // 2 if is_weighted else len(rest)
    weights = (tuple(rest[ends : ends + count]), tuple(rest[ends + count :])) if is_weighted else None
    return DistributedGraph(tuple(rest[:count]), tuple(rest[count:ends]), weights, graph.mismatch, graph.degree)


def _column(edges: Words, column: int) -> tuple[int, ...]:
    return tuple(edges[:, column].tolist())


def _bring(comm: NativeComm, edges: Words, end: int) -> Words:
    """Bring each edge to the rank at one of its ends."""
    sent = np.ascontiguousarray(edges[np.argsort(edges[:, end], kind="stable")])
    sizes = np.bincount(edges[:, end], minlength=comm.size) * (edges.shape[1] * WORD)
    received = _alltoall(comm, sizes)
    brought = np.empty((int(received.sum()) // (edges.shape[1] * WORD), edges.shape[1]), dtype=np.int64)
    collectives.alltoallv(
        comm, sent.ctypes.data, sizes.tolist(), _starts(sizes), brought.ctypes.data, received.tolist(), _starts(received)
    )
    return brought


def _starts(sizes: Words) -> list[int]:
    """Where each block begins of some that lie one after the other."""
    return list((np.cumsum(sizes) - sizes).tolist())


def _agree_on_weights(comm: NativeComm, edges: int, has_weights: bool) -> bool:
    """Whether edges have weights: all ranks say so, or none, but for those that give no edges."""
    table = _allgather(comm, [edges, int(has_weights), 0])
    weighted = [rank for rank in range(comm.size) if table[rank, 1]]
    without = [rank for rank in range(comm.size) if table[rank, 0] and not table[rank, 1]]
    if weighted and without:
        errors.fail(
            errors.ERR_ARG,
            f"rank {comm.rank}: Create_dist_graph: rank {weighted[0]} gives weights, and rank {without[0]} edges without; all ranks give "
            "weights, or none does",
        )
    return bool(weighted)


def _check_ranks(comm: NativeComm, name: str, ranks: Sequence[int]) -> None:
    strangers = [rank for rank in ranks if not 0 <= rank < comm.size]
    if strangers:
        _refuse(comm, name, strangers[0])


def _refuse(comm: NativeComm, name: str, stranger: int) -> NoReturn:
    errors.fail(
        errors.ERR_RANK, f"rank {comm.rank}: {name}: an edge of rank {stranger} in a communicator of {comm.size}; ranks begin at 0"
    )


def _alltoall(comm: NativeComm, sent: Words) -> Words:
    """Send one number to every rank; returns what they send."""
    given, received = np.ascontiguousarray(sent, dtype=np.int64), np.empty(comm.size, dtype=np.int64)
    collectives.alltoall(comm, given.ctypes.data, received.ctypes.data, WORD)
    return received


def _allgather(comm: NativeComm, words: Sequence[int]) -> Words:
    """Return the words of all ranks, a row for each."""
    given, table = np.array(words, dtype=np.int64), np.empty((comm.size, len(words)), dtype=np.int64)
    collectives.allgather(comm, given.ctypes.data, given.nbytes, table.ctypes.data)
    return table

"""Neighbor alltoall(v, w) and allgather(v): every rank sends to each of its destinations at once, and receives from each of its sources.

::

    rank r -- block k of what it sends --> destination k
    rank r <-- block k of what it gets --- source k

What a rank has with itself is copied. Messages between two ranks that have several edges meet by the order of
:class:`~ncclx_mpi.collectives.neighborhood.Neighborhood`. Of an allgather all blocks that are sent are the same memory.
With d destinations T = alpha + d * m * beta. Neighbours are few and known to their two ends only, so there is no other plan, and nothing
to choose: it has no row in :mod:`ncclx_mpi.algorithms`. Blocking calls inside a node need none where the ranks agree (:mod:`.shm_edges`).
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

from ncclx_mpi.collectives.neighborhood import Neighborhood
from ncclx_mpi.collectives.plan import INPUT, OUTPUT, Builder, Plan, Shape, columns
from ncclx_mpi.constants import PROC_NULL


def plan(
    rank: int,
    neighborhood: Neighborhood,
    send_counts: Sequence[int],
    send_offsets: Sequence[int],
    counts: Sequence[int],
    offsets: Sequence[int],
) -> Plan:
    """Steps of `rank`; all in bytes, one entry for each destination and for each source."""
    return _shape(rank, neighborhood).fill(send_counts, send_offsets, counts, offsets)


@functools.lru_cache(maxsize=64)
def _shape(rank: int, neighborhood: Neighborhood) -> Shape:
    steps = Builder()
    sources, destinations, arrivals = neighborhood.sources, neighborhood.destinations, neighborhood.arrivals
    indegree, outdegree = len(sources), len(destinations)
    send_counts, send_offsets, counts, offsets = columns(outdegree, outdegree, indegree, indegree)
    for index in arrivals:
        if sources[index] not in (PROC_NULL, rank):
            steps.recv(sources[index], (OUTPUT, offsets[index]), counts[index])
    for index, peer in enumerate(destinations):
        if peer not in (PROC_NULL, rank):
            steps.send(peer, (INPUT, send_offsets[index]), send_counts[index])
    for source, destination in neighborhood.to_itself(rank):
        steps.copy((OUTPUT, offsets[source]), (INPUT, send_offsets[destination]), send_counts[destination])
    return steps.shape()

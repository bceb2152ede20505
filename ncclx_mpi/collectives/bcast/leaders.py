"""Bcast by node, in segments that follow each other: the message comes to each node once.

::

    nodes A, B, C of four ranks, root A1:    A1 > C0   A1 > B0                   a binomial tree among one rank of each node
                                             A1 > A3 > A0, A1 > A2   B0 > B2 > B3 ...   and one on each node, below that rank

The root speaks for its node, the first rank for each other one. A rank passes a segment on as soon as it has it, to other nodes first.
T = ceil(log2 k) * (alpha' + m * beta') between k nodes, and ceil(log2 p) * alpha for the last segment on nodes of p ranks.
"""

from __future__ import annotations

import functools

from ncclx_mpi.collectives.bcast.binomial import family
from ncclx_mpi.collectives.plan import OUTPUT, Builder, Plan
from ncclx_mpi.nodes import NodeMap, one_node

SEGMENT = 256 << 10


@functools.lru_cache(maxsize=128)
def plan(rank: int, size: int, nbytes: int, root: int, nodes: NodeMap | None = None) -> Plan:
    """Steps of `rank`: OUTPUT holds the message, at the root from the start."""
    steps = Builder()
    parent, children = _ways(rank, root, nodes or one_node(size))
    for start in range(0, nbytes, SEGMENT):
        length = min(SEGMENT, nbytes - start)
        have = -1 if parent < 0 else steps.recv(parent, (OUTPUT, start), length)
        for child in children:
            steps.send(child, (OUTPUT, start), length, [have])
    return steps.build()


def _ways(rank: int, root: int, nodes: NodeMap) -> tuple[int, list[int]]:
    """The rank that a rank gets the message from, -1 for the root, and those that it gives it to."""
    (home, at), (node, index) = nodes.place[root], nodes.place[rank]
    mates, first = nodes.ranks[node], at if node == home else 0
    parent, children = family((index - first) % len(mates), len(mates))
    ways = [mates[(child + first) % len(mates)] for child in children]
    if parent >= 0:
        return mates[(parent + first) % len(mates)], ways
    parent, children = family((node - home) % nodes.number, nodes.number)
    leaders = [root if other == home else ranks[0] for other, ranks in enumerate(nodes.ranks)]
    far = [leaders[(child + home) % nodes.number] for child in children]
    return leaders[(parent + home) % nodes.number] if parent >= 0 else -1, far + ways

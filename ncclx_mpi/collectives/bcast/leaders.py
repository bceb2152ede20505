"""Bcast by node, in segments that follow each other: the message comes to each node once.

::

    nodes A, B, C of four ranks, root A1:    A1 > C0   A1 > B0                   a binomial tree among one rank of each node
                                             A1 > A3 > A0, A1 > A2   B0 > B2 > B3 ...   and one on each node, below that rank

The root speaks for its node, the first rank for each other one. A rank passes a segment on as soon as it has it, to other nodes first.
T = ceil(log2 k) * (alpha' + m * beta') between k nodes, and ceil(log2 p) * alpha for the last segment on nodes of p ranks.
"""

from __future__ import annotations

import functools

from ncclx_mpi.collectives.leaders import ways
from ncclx_mpi.collectives.plan import OUTPUT, Builder, Plan
from ncclx_mpi.nodes import NodeMap, one_node

SEGMENT = 256 << 10


@functools.lru_cache(maxsize=128)
def plan(rank: int, size: int, nbytes: int, root: int, nodes: NodeMap | None = None) -> Plan:
    """Steps of `rank`: OUTPUT holds the message, at the root from the start."""
    steps = Builder()
    parent, children = ways(rank, root, nodes or one_node(size))
    for start in range(0, nbytes, SEGMENT):
        length = min(SEGMENT, nbytes - start)
        have = -1 if parent < 0 else steps.recv(parent, (OUTPUT, start), length)
        for child in children:
            steps.send(child, (OUTPUT, start), length, [have])
    return steps.build()

"""Bcast along a chain of all ranks, in segments that follow each other: every rank but the last one sends the message once.

::

    nodes A, B of two ranks, root A1:    A1 > A0 > B0 > B1      segment after segment

The algorithm for large messages where every rank has a link of its own: a pipe, once it is full. The ranks of a node follow each other, those
of the root's node first. T = (n - 2) * (alpha + s * beta) + m / s * alpha + m * beta for segments of s bytes.
"""

from __future__ import annotations

import functools

from ncclx_mpi import costs
from ncclx_mpi.collectives.plan import OUTPUT, Builder, Plan
from ncclx_mpi.nodes import NodeMap, one_node

SEGMENT = costs.CHAIN_MOST


@functools.lru_cache(maxsize=64)
def plan(rank: int, size: int, nbytes: int, root: int, nodes: NodeMap | None = None) -> Plan:
    """Steps of `rank`: OUTPUT holds the message, at the root from the start."""
    steps, ranks = Builder(), _in_a_row(root, nodes or one_node(size))
    place, segment = ranks.index(rank), min(SEGMENT, max(costs.CHAIN_LEAST, nbytes // costs.CHAIN_PARTS))
    for start in range(0, nbytes, segment):
        length, have = min(segment, nbytes - start), -1
        if place > 0:
            have = steps.recv(ranks[place - 1], (OUTPUT, start), length)
        if place < size - 1:
            steps.send(ranks[place + 1], (OUTPUT, start), length, [have])
    return steps.build()


def _in_a_row(root: int, nodes: NodeMap) -> list[int]:
    """All ranks from the root on, node by node."""
    home, first = nodes.place[root]
    mates, others = nodes.ranks[home], [*nodes.ranks[home + 1 :], *nodes.ranks[:home]]
    return [*mates[first:], *mates[:first], *(rank for ranks in others for rank in ranks)]

"""Bcast for large messages by node: every rank of a node brings its part of the message to the other nodes.

::

    nodes A, B of two ranks, root A0:    A0 > A1              scatter on the root's node: A1 gets the second half
                                         A0 > B0   A1 > B1    each half along its own column, a binomial tree
                                         A0 > A1, B0 <> B1    allgather on each node

Described by Traeff and Hunold (2020). All links of a node are used, and m bytes come to each node. Halves go in chunks that follow each
other. Where nodes have unequal numbers of ranks, there are as many parts as the smallest has ranks.
T = alpha + ceil(log2 k) * alpha' + (p - 1) * alpha for the last chunk; 2 m * beta on a node, and ceil(log2 k) * m * beta' between k nodes.
"""

from __future__ import annotations

import functools

from ncclx_mpi.collectives.bcast.binomial import family
from ncclx_mpi.collectives.full_lane import lanes_of
from ncclx_mpi.collectives.plan import OUTPUT, Builder, Plan
from ncclx_mpi.nodes import NodeMap, one_node

CHUNK = 256 << 10


@functools.lru_cache(maxsize=64)
def plan(rank: int, size: int, nbytes: int, root: int, nodes: NodeMap | None = None) -> Plan:
    """Steps of `rank`: OUTPUT holds the message, at the root from the start."""
    steps, nodes = Builder(), nodes or one_node(size)
    (home, _), (node, index) = nodes.place[root], nodes.place[rank]
    mates, number = nodes.ranks[node], nodes.number
    lanes = lanes_of(nbytes, 1, nodes.fewest, CHUNK)
    parent, children = family((node - home) % number, number)
    for pieces in zip(*lanes, strict=True):
        there = -1
        if rank == root:
            for lane, (start, length) in enumerate(pieces):
                if mates[lane] != root:
                    steps.send(mates[lane], (OUTPUT, start), length)
        if index < len(pieces):
            start, length = pieces[index]
            column = nodes.column(index)
            if rank != root:
                origin = column[(parent + home) % number] if parent >= 0 else root
                there = steps.recv(origin, (OUTPUT, start), length)
            for child in children:
                steps.send(column[(child + home) % number], (OUTPUT, start), length, [there])
            for mate in mates:
                if mate not in (rank, root):
                    steps.send(mate, (OUTPUT, start), length, [there])
        for lane, (start, length) in enumerate(pieces):
            if rank != root and lane != index:
                steps.recv(mates[lane], (OUTPUT, start), length)
    return steps.build()

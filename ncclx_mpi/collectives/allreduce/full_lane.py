"""Allreduce by node: every rank of a node has its part of the way between nodes, so that all their links are used at once.

::

    nodes A, B of two ranks           A0  A1  |  B0  B1
    on a node, reduce-scatter:        A0 <-> A1, B0 <-> B1     half a message each: A0 and B0 hold the first half, A1 and B1 the second
    between nodes, in each column:    A0 <-> B0, A1 <-> B1     reduce-scatter and allgather of that half
    on a node, allgather:             A0 <-> A1, B0 <-> B1

Described by Traeff and Hunold (2020). Only what must crosses: 2 (k - 1) / k * m bytes out of a node, of k nodes, however many ranks p it has.
Where nodes have unequal numbers of ranks, there are as many columns as the smallest has ranks; all others give to them, and take from them.
Blocks go in chunks, so that one crosses while the next one is reduced on the node.

A block is reduced by one rank of each node, then by one rank of its column, node by node, so all get the same bits; where ranks of a node
do not follow each other, their order is lost. T = 2 (p - 1) * alpha + 2 (p - 1) / p * m * beta + m * gamma on a node, and between nodes
2 (k - 1) * alpha' + 2 (k - 1) / k * m * beta', of a link that the ranks of a node share.
"""

from __future__ import annotations

import functools

from ncclx_mpi.collectives.full_lane import FullLane, lanes_of
from ncclx_mpi.collectives.plan import OUTPUT, Builder, Plan
from ncclx_mpi.nodes import NodeMap, one_node

CHUNK = 1 << 20


@functools.lru_cache(maxsize=32)
def plan(rank: int, size: int, count: int, itemsize: int, nodes: NodeMap | None = None) -> Plan:
    """Steps of `rank`. In place, INPUT is OUTPUT: what arrives there comes after it has been sent."""
    steps, nodes = Builder(), nodes or one_node(size)
    lanes = lanes_of(count, itemsize, nodes.fewest, CHUNK)
    way = FullLane(steps, rank, nodes, lanes, itemsize)
    for use in range(len(lanes[0])):
        sent, there = way.reduce_on_node(use)
        if way.column:
            there = _spread(way, use, way.reduce_in_column(use, there))
        _share(way, use, sent, there)
    return steps.build()


def _spread(way: FullLane, use: int, done: int) -> int:
    """Exchange the results of the column; returns the step after which the own chunk is complete."""
    steps, parts, size = way.steps, way.parts(use), len(way.column)
    there = [done]
    for turn in range(1, size):
        origin, target = (way.node - turn) % size, (way.node + turn) % size
        steps.send(way.column[target], (OUTPUT, parts[way.node].start), parts[way.node].length, [done])
        there.append(steps.recv(way.column[origin], (OUTPUT, parts[origin].start), parts[origin].length))
    return steps.join(there)


def _share(way: FullLane, use: int, sent: dict[int, int], there: int) -> None:
    """Give the own chunk to the ranks of the node, and take theirs."""
    steps, size = way.steps, len(way.mates)
    for turn in range(1, size):
        origin, target = (way.index - turn) % size, (way.index + turn) % size
        if way.column:
            piece = way.lanes[way.index][use]
            steps.send(way.mates[target], (OUTPUT, piece.start), piece.length, [there])
        if origin < len(way.lanes):
            piece = way.lanes[origin][use]
            steps.recv(way.mates[origin], (OUTPUT, piece.start), piece.length, [sent[origin]])

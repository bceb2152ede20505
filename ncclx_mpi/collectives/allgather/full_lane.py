"""Allgather(v) by node: each rank brings its block to its column on the other nodes, which spread what comes there.

::

    nodes A, B of two ranks    between nodes, in each column:   A0 <> B0   A1 <> B1     blocks of their own
                               on a node:                       A0 <> A1   B0 <> B1     blocks of the whole column

Described by Traeff and Hunold (2020). Each block comes to each node once. Ranks without a column, on nodes that have more ranks than
the smallest, give their blocks to one of the node that has. T = (k - 1) * (alpha' + m * beta') for each rank between k nodes, and
k (p - 1) * (alpha + m * beta) on nodes of p ranks.
"""

from __future__ import annotations

import functools

from ncclx_mpi.collectives.plan import INPUT, OUTPUT, Builder, Counts, Plan, Shape, columns
from ncclx_mpi.nodes import NodeMap, one_node


def plan(rank: int, size: int, counts: Counts, offsets: Counts, in_place: bool, nodes: NodeMap | None = None) -> Plan:
    """Steps of `rank`. `counts` and `offsets` are bytes of each rank's block in OUTPUT."""
    return _shape(rank, nodes or one_node(size), in_place).fill(counts, offsets)


@functools.lru_cache(maxsize=64)
def _shape(rank: int, nodes: NodeMap, in_place: bool) -> Shape:
    steps, lanes = Builder(), nodes.fewest
    counts, offsets = columns(nodes.size, nodes.size)
    node, index = nodes.place[rank]
    mates, source = nodes.ranks[node], (OUTPUT, offsets[rank]) if in_place else (INPUT, 0)
    if not in_place:
        steps.copy((OUTPUT, offsets[rank]), source, counts[rank])

    def exchange(origin: int, target: int, outgoing: list[tuple[int, int]], incoming: list[int]) -> list[tuple[int, int]]:
        """Send blocks that are there after a step; returns those that come, with the steps by which they do."""
        for block, there in outgoing:
            place = source if block == rank else (OUTPUT, offsets[block])
            steps.send(target, place, counts[block], [there])
        return [(block, steps.recv(origin, (OUTPUT, offsets[block]), counts[block])) for block in incoming]

    if index >= lanes:
        steps.send(mates[index % lanes], source, counts[rank])
        own = []
    else:
        own = [(rank, -1)]
        for mate in mates[index + lanes :: lanes]:
            own.append((mate, steps.recv(mate, (OUTPUT, offsets[mate]), counts[mate])))
    have = list(own)
    for turn in range(1, nodes.number if own else 1):
        origin, target = (node - turn) % nodes.number, (node + turn) % nodes.number
        have += exchange(nodes.ranks[origin][index], nodes.ranks[target][index], own, list(nodes.ranks[origin][index::lanes]))
    for turn in range(1, len(mates)):
        origin, target = (index - turn) % len(mates), (index + turn) % len(mates)
        met = [nodes.ranks[(node - turn) % nodes.number] for turn in range(nodes.number)] if origin < lanes else []
        blocks = [block for ranks in met for block in ranks[origin::lanes]]
        exchange(
            mates[origin],
            mates[target],
            [(block, there) for block, there in have if block != mates[target]],
            [block for block in blocks if block != rank],
        )
    return steps.shape()

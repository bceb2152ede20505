"""Barrier by node: one rank of each node speaks for it.

::

    A1 > A0   A3 > A2 > A0       binomial trees on the nodes, to the leaders
    A0 > B0 > C0 > A0 ...        dissemination among them: to the next, the next but one, the next but three ...
    A0 > A2 > A3   A0 > A1       and down the same trees

T = 2 ceil(log2 p) * alpha on nodes of p ranks, and ceil(log2 k) * alpha' between k of them.
"""

from __future__ import annotations

import functools

from ncclx_mpi.collectives.barrier.dissemination import disseminate
from ncclx_mpi.collectives.leaders import Tree
from ncclx_mpi.collectives.plan import Builder, Plan
from ncclx_mpi.nodes import NodeMap, one_node


@functools.lru_cache(maxsize=128)
def plan(rank: int, size: int, nodes: NodeMap | None = None) -> Plan:
    """Steps of `rank`."""
    steps = Builder()
    tree = Tree(steps, rank, nodes or one_node(size))
    there = tree.gather_signals()
    if tree.index == 0:
        there = disseminate(steps, tree.leaders, tree.node, there)
    tree.spread_signals(there)
    return steps.build()

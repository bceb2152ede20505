"""Allreduce for small arrays by node: one rank of each node speaks for it.

::

    nodes A, B, C of four ranks:   A1 > A0   A3 > A2 > A0      binomial trees, to the leaders A0, B0, C0
                                   A0 <> B0 <> C0              recursive doubling among them
                                   A0 > A2 > A3   A0 > A1      and down the same trees

As few messages as there can be go between nodes. Each leader reduces its node, lower ranks on the left, and all leaders get the same bits.
T = 2 ceil(log2 p) * (alpha + m * beta) on nodes of p ranks, and log2 k * (alpha' + m * beta') between k of them, as
:mod:`ncclx_mpi.collectives.allreduce.recursive_doubling` has it where k is no power of two.
"""

from __future__ import annotations

import functools

from ncclx_mpi.collectives.allreduce.recursive_doubling import double
from ncclx_mpi.collectives.leaders import Tree
from ncclx_mpi.collectives.plan import Builder, Plan
from ncclx_mpi.nodes import NodeMap, one_node


@functools.lru_cache(maxsize=128)
def plan(rank: int, size: int, count: int, itemsize: int, nodes: NodeMap | None = None) -> Plan:
    """Steps of `rank`. In place, INPUT is OUTPUT: it is written after everything in it has been sent."""
    steps, nbytes = Builder(), count * itemsize
    tree = Tree(steps, rank, nodes or one_node(size))
    source, there = tree.reduce(nbytes)
    if tree.index == 0:
        there = double(steps, tree.leaders, tree.node, nbytes, source, there)
    tree.bcast(nbytes, there)
    return steps.build()

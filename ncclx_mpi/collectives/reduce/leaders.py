"""Reduce by node, in segments that follow each other: what a node gives leaves it once, reduced.

::

    nodes A, B, C of four ranks, root A1:    A2 > A1   A0 > A3 > A1   B3 > B2 > B0   B1 > B0 ...   a binomial tree on each node
                                             B0 > A1   C0 > A1                                     and one among a rank of each node

The root speaks for its node, the first rank for each other one. A rank reduces a segment of its children, those on its node first, and passes
it on while the next one comes. T = ceil(log2 p) * (alpha + m * (beta + gamma)) on nodes of p ranks, and between k of them
ceil(log2 k) * (alpha' + m * (beta' + gamma)).
"""

from __future__ import annotations

import functools

from ncclx_mpi.collectives.full_lane import Piece, Rooms, lanes_of
from ncclx_mpi.collectives.leaders import ways
from ncclx_mpi.collectives.plan import INPUT, OUTPUT, TEMP, Builder, Place, Plan
from ncclx_mpi.nodes import NodeMap, one_node

SEGMENT = 256 << 10


@functools.lru_cache(maxsize=128)
def plan(rank: int, size: int, count: int, itemsize: int, root: int, nodes: NodeMap | None = None) -> Plan:
    """Steps of `rank`. In place at the root, INPUT is OUTPUT."""
    steps = Builder()
    parent, children = ways(rank, root, nodes or one_node(size))
    (segments,) = lanes_of(count, itemsize, 1, SEGMENT)
    pieces = len(children) + (parent >= 0 and bool(children))
    rooms = Rooms(steps, pieces, max(piece.length for piece in segments), len(segments))
    for use, piece in enumerate(segments):
        have, done = _reduce_children(steps, rooms, use, piece, children, is_root=parent < 0)
        if parent >= 0:
            done = steps.send(parent, have, piece.length, [done])
        elif not children:
            steps.copy((OUTPUT, piece.start), have, piece.length)
        rooms.leave(use, done)
    return steps.build()


def _reduce_children(steps: Builder, rooms: Rooms, use: int, piece: Piece, children: list[int], is_root: bool) -> tuple[Place, int]:
    """Reduce a segment of this rank and its children; returns where it is then, and after which step."""
    have, done = (INPUT, piece.start), -1
    places, after = rooms.of(use)
    total = (OUTPUT, piece.start) if is_root or not children else (TEMP, places[-1])
    for child, place in zip(reversed(children), places, strict=False):
        came = steps.recv(child, (TEMP, place), piece.length, [after])
        done = steps.reduce(total, have, (TEMP, place), piece.length, [came, done])
        have = total
    return have, done

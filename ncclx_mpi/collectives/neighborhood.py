"""The neighbours of a rank in a process topology, and which of their messages meet."""

from __future__ import annotations

import weakref
from array import array
from collections import Counter
from collections.abc import Sequence

from ncclx_mpi.constants import PROC_NULL
from ncclx_mpi.p2p.engine import NativeComm
from ncclx_mpi.p2p.layout import OPERATIONS
from numba_kernels.layout import WORD, words
from numba_kernels.rows import NamedTuple

NEIGHBOR_ALLGATHER, NEIGHBOR_ALLTOALL = (OPERATIONS.index(name) for name in ("neighbor_allgather", "neighbor_alltoall"))
"""Kinds of collective."""

EDGES = words("Edges", "way indegree outdegree destinations sources own")
"""The edges of a rank for compiled code: how all ranks go along theirs (:mod:`.neighbor_alltoall.shm_edges`), blocks of a buffer that is
received and of one that is sent, and how many rows of `EDGE` follow for edges to other ranks, from them, and to itself."""
EDGE = words("Edge", "rank index which")
"""The rank at the other end, and the index of the block. Of an edge from a rank: which of those it is that the two have, in the order in
which that rank has them. Of one to itself: the index of the block that is received, and ``which`` is that of the one that is sent."""
PART = words("Part", "address nbytes layout")
"""A block: where it is, its bytes when packed, and the address of its layout (:data:`numba_kernels.pylayouts.LAYOUT`), 0 without gaps."""


class Neighborhood(NamedTuple):
    """The edges of one rank.

    Attributes
    ----------
    sources, destinations
        The rank at the other end of each edge into this rank, and out of it, in the order of the blocks of a buffer; PROC_NULL where
        there is none.
    arrivals
        Every index of `sources`, so ordered that what comes from a rank over several edges comes in the order in which that rank has them
        among its destinations. On a circle of two ranks both neighbours are the same one, and what it sends to its left comes from the right.
    degree
        The most edges that lead out of any rank, if all ranks know that; else 0.
    """

    sources: tuple[int, ...]
    destinations: tuple[int, ...]
    arrivals: tuple[int, ...]
    degree: int = 0

    def to_itself(self, rank: int) -> list[tuple[int, int]]:
        """Return (index of the source, index of the destination) of each edge from `rank` to itself."""
        into = [index for index in self.arrivals if self.sources[index] == rank]
        out_of = [index for index, peer in enumerate(self.destinations) if peer == rank]
        return list(zip(into, out_of, strict=True))

    def words(self, rank: int) -> array[int]:
        """The edges of `rank` as :data:`EDGES`."""
        nobody = (PROC_NULL, rank)
        destinations = [(peer, index, 0) for index, peer in enumerate(self.destinations) if peer not in nobody]
        sources, seen = [], Counter[int]()
        for index in self.arrivals:
            peer = self.sources[index]
            if peer not in nobody:
                sources.append((peer, index, seen[peer]))
                seen[peer] += 1
        own = [(rank, source, destination) for source, destination in self.to_itself(rank)]
        numbers = [0, len(self.sources), len(self.destinations), len(destinations), len(sources), len(own)]
        return array("q", [*numbers, *(word for row in (*destinations, *sources, *own) for word in row)])


_known: weakref.WeakKeyDictionary[NativeComm, tuple[Neighborhood, array[int]]] = weakref.WeakKeyDictionary()


def introduce(comm: NativeComm, neighborhood: Neighborhood) -> None:
    """Let compiled code find the edges of this rank in a communicator."""
    known = _known.get(comm)
    if known is None or known[0] != neighborhood:
        edges = neighborhood.words(comm.rank)
        _known[comm] = neighborhood, edges
        comm.set_word("edges", edges.buffer_info()[0])


def parts(address: int, sizes: Sequence[int], offsets: Sequence[int]) -> array[int]:
    """Blocks without gaps, in bytes, as :data:`PART`: at least one."""
    rows = [(address + offset, nbytes, 0) for nbytes, offset in zip(sizes, offsets, strict=True)]
    return array("q", [word for row in rows or [(0, 0, 0)] for word in row])


assert (PART.address, PART.nbytes, PART.layout, PART.total) == (0, WORD, 2 * WORD, 3 * WORD)

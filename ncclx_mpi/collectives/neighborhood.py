"""The neighbours of a rank in a process topology, and which of their messages meet."""

from __future__ import annotations

from typing import NamedTuple

from ncclx_mpi.p2p.layout import OPERATIONS

NEIGHBOR_ALLGATHER, NEIGHBOR_ALLTOALL = (OPERATIONS.index(name) for name in ("neighbor_allgather", "neighbor_alltoall"))
"""Kinds of collective."""


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
    """

    sources: tuple[int, ...]
    destinations: tuple[int, ...]
    arrivals: tuple[int, ...]

    def to_itself(self, rank: int) -> list[tuple[int, int]]:
        """Return (index of the source, index of the destination) of each edge from `rank` to itself."""
        into = [index for index in self.arrivals if self.sources[index] == rank]
        out_of = [index for index, peer in enumerate(self.destinations) if peer == rank]
        return list(zip(into, out_of, strict=True))

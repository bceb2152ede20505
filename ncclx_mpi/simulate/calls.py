"""A call of a collective as data, from which the plan of each rank follows."""

from __future__ import annotations

from collections.abc import Callable
from itertools import accumulate

from ncclx_mpi.algorithms import Algorithm
from ncclx_mpi.collectives.plan import Plan
from ncclx_mpi.collectives.select import function_of
from ncclx_mpi.nodes import nodes_of
from numba_kernels.rows import NamedTuple

Blocks = tuple[tuple[int, ...], tuple[int, ...]]
"""Bytes, and byte offset, of the block of each rank."""


class Call(NamedTuple):
    """What all ranks call alike.

    Attributes
    ----------
    size
        Ranks.
    nbytes
        What each rank gives, in bytes, as in :class:`~ncclx_mpi.algorithms.Case`: all that a root scatters; 0 of a barrier.
    itemsize
        Bytes of an element of a reduction.
    root
        Of a collective that has one.
    in_place
        Whether what is given lies where the result goes, on all ranks, or at the root of a gather or scatter.
    is_exclusive
        Of a scan: whether it is an exscan.
    counts
        Bytes of the block of each rank, for calls with counts; of an alltoall, from rank i to rank j, ``counts[(i + j) % size]``, or in
        place, where both directions have the same, and else ``counts[(i + 2 * j) % size]``. `nbytes` is not looked at then.
    gap
        Bytes between two blocks that are no block's.
    nodes
        The number of the node of each rank, for plans that are told; empty: they are on one.
    """

    size: int
    nbytes: int
    itemsize: int = 1
    root: int = 0
    in_place: bool = False
    is_exclusive: bool = False
    counts: tuple[int, ...] = ()
    gap: int = 0
    nodes: tuple[int, ...] = ()

    @property
    def share(self) -> int:
        """Bytes of whole elements for each rank of what one gives."""
        return self.nbytes // self.itemsize // self.size * self.itemsize

    def blocks(self, nbytes: int) -> Blocks:
        """Blocks of all ranks: those of a call with counts, or else of `nbytes` each."""
        return self._laid_out(self.counts or (nbytes,) * self.size)

    def outgoing(self, rank: int) -> Blocks:
        """What a rank sends to each in an alltoall."""
        step = 1 if self.in_place else 2
        return self._exchanged([rank + step * other for other in range(self.size)])

    def incoming(self, rank: int) -> Blocks:
        """What a rank gets of each in an alltoall."""
        step = 1 if self.in_place else 2
        return self._exchanged([other + step * rank for other in range(self.size)])

    def _exchanged(self, indices: list[int]) -> Blocks:
        if not self.counts:
            return self.blocks(self.share)
        return self._laid_out(tuple(self.counts[index % self.size] for index in indices))

    def _laid_out(self, counts: tuple[int, ...]) -> Blocks:
        return counts, tuple(accumulate((count + self.gap for count in counts[:-1]), initial=0))


def plan_of(row: Algorithm, call: Call, rank: int) -> Plan:
    """Return the steps of a rank in a call that goes by a plan."""
    told = {"nodes": nodes_of(call.nodes)} if call.nodes and row.by_node is not None else {}
    return function_of(row)(rank, call.size, *_ARGUMENTS[row.collective](call, rank), **told)


def _elements(call: Call, rank: int) -> tuple[int, int]:
    return call.nbytes // call.itemsize, call.itemsize


def _at_root(call: Call, rank: int) -> tuple[int, bool]:
    return call.root, call.in_place and rank == call.root


_ARGUMENTS: dict[str, Callable[[Call, int], tuple[object, ...]]] = {
    "barrier": lambda call, rank: (),
    "bcast": lambda call, rank: (call.nbytes, call.root),
    "reduce": lambda call, rank: (*_elements(call, rank), call.root),
    "allreduce": _elements,
    "gather": lambda call, rank: (*call.blocks(call.nbytes), *_at_root(call, rank)),
    "scatter": lambda call, rank: (*call.blocks(call.share), *_at_root(call, rank)),
    "allgather": lambda call, rank: (*call.blocks(call.nbytes), call.in_place),
    "alltoall": lambda call, rank: (*call.outgoing(rank), *call.incoming(rank), call.in_place),
    "reduce_scatter": lambda call, rank: (call.blocks(call.share)[0], call.itemsize),
    "scan": lambda call, rank: (*_elements(call, rank), call.is_exclusive),
}
"""What a plan takes behind rank and size."""

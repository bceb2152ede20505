"""Collectives between the two groups of an intercommunicator, as plans on a communicator of all their ranks.

::

    exchange         every rank -- a block for each rank that it sends to --> ranks of the other group
    bcast            root --> other group, down a binomial tree of both
    allreduce        own group: block b of its input --> rank b, which reduces it; rank b -- its block --> every rank of the other group
    reduce           the same, and only the root gets the blocks
    reduce_scatter   the same, block b to rank b mod m of the other group, which cuts it as that group wants it and passes the pieces on

Gather, scatter, allgather and alltoall, with counts and without, are exchanges: they differ in who sends to whom. Of a reduction of m bytes
between groups of p and q ranks, each rank moves m * (p - 1) / p bytes within its group and m * q / p, or m / p, to the other one; operands
are combined in the order of ranks, always.

Plans count the ranks of the own group first and those of the other group behind them, so that both groups write the same ones;
:meth:`Sides.on_union` turns these numbers into ranks of the communicator.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

from ncclx_mpi.collectives.bcast import binomial
from ncclx_mpi.collectives.executor import Collective
from ncclx_mpi.collectives.neighbor_alltoall import linear
from ncclx_mpi.collectives.neighborhood import Neighborhood
from ncclx_mpi.collectives.plan import FIELDS, OUTPUT, STEP, TEMP, Builder, Numbers, Plan, Shape, columns, no_steps, offsets_of
from ncclx_mpi.collectives.reduce_scatter.pairwise import Exchange, even_edges, lengths_between
from ncclx_mpi.collectives.shm_oneshot import ALLREDUCE, BCAST, REDUCE, REDUCE_SCATTER
from ncclx_mpi.p2p.engine import NativeComm
from numba_kernels.layout import WORD
from numba_kernels.rows import NamedTuple


class Sides(NamedTuple):
    """The ranks of a communicator of both groups that are in the group of one of its ranks, and those in the other."""

    mine: range
    theirs: range

    def place(self, rank: int) -> int:
        """A rank of the communicator as a rank of its own group."""
        return rank - (self.mine if rank in self.mine else self.theirs).start

    def on_union(self, words: Numbers) -> Numbers:
        """Steps whose peers are counted through the own group and then the other one, with ranks of the communicator."""
        return _with_peers(words, [*self.mine, *self.theirs])


def inter_exchange(
    comm: NativeComm,
    name: str,
    kind: int,
    neighborhood: Neighborhood,
    send: int,
    send_counts: Sequence[int],
    send_offsets: Sequence[int],
    recv: int,
    counts: Sequence[int],
    offsets: Sequence[int],
    root: int,
) -> Collective:
    """A block to every destination, and one from every source: bytes and byte offsets of each."""
    plan = linear.plan(comm.rank, neighborhood, send_counts, send_offsets, counts, offsets)
    return Collective(comm, _in_words(name), kind, plan, (send, recv), root=root)


def inter_bcast(comm: NativeComm, sides: Sides, address: int, nbytes: int, root: int) -> Collective:
    """Bytes of the root to all ranks of the other group; the others of its own group give a root of -1."""
    plan = no_steps() if root < 0 else _bcast(comm.rank, sides, nbytes, root)
    return Collective(comm, _in_words("bcast"), BCAST, plan, (address, address), root=max(root, 0))


def inter_reduce(comm: NativeComm, sides: Sides, send: int, recv: int, count: int, itemsize: int, fn: int, root: int) -> Collective:
    """Reduction of `count` elements of the group without the root to the root; the others of its own group give a root of -1."""
    plan = no_steps()
    if root == comm.rank:
        blocks, _ = _even_blocks(count, itemsize, len(sides.theirs), 0)
        plan = _take_reduced(sides).fill(*blocks[:2])
    elif root >= 0:
        blocks, temp = _even_blocks(count, itemsize, len(sides.mine), sides.place(comm.rank))
        plan = _give_reduced(comm.rank, sides, root).fill(*blocks, temp=temp)
    return Collective(comm, _in_words("reduce"), REDUCE, plan, (send, recv), fn, itemsize, max(root, 0))


def inter_allreduce(comm: NativeComm, sides: Sides, send: int, recv: int, count: int, itemsize: int, fn: int) -> Collective:
    """Reduction of each group's `count` elements to every rank of the other group."""
    given, temp = _even_blocks(count, itemsize, len(sides.mine), sides.place(comm.rank))
    taken, _ = _even_blocks(count, itemsize, len(sides.theirs), 0)
    plan = _allreduce(comm.rank, sides).fill(*given, *taken[:2], temp=temp)
    return Collective(comm, _in_words("allreduce"), ALLREDUCE, plan, (send, recv), fn, itemsize)


def inter_reduce_scatter(
    comm: NativeComm, sides: Sides, send: int, recv: int, counts: Sequence[int], itemsize: int, fn: int
) -> Collective:
    """Reduction of each group's elements to the other group, block i of ``counts[i]`` elements to its rank i.

    Groups have counts of their own, of which the other one needs to know nothing but the sum.
    """
    plan = _reduce_scatter(comm.rank, sides, tuple(counts), itemsize)
    return Collective(comm, _in_words("reduce_scatter"), REDUCE_SCATTER, plan, (send, recv), fn, itemsize)


# Plans ------------------------------------------------------------------------------------------------------------


"""Of ranks that take no part: all count a collective, so that its messages are not mistaken for those of the next one."""


@functools.lru_cache(maxsize=64)
def _bcast(rank: int, sides: Sides, nbytes: int, root: int) -> Plan:
    members = [root, *(sides.mine if root in sides.theirs else sides.theirs)]
    return Plan(_with_peers(binomial.plan(members.index(rank), len(members), nbytes, 0).words, members), 0)


def _with_peers(words: Numbers, ranks: Sequence[int]) -> Numbers:
    """Steps whose peers are counted through some ranks, with these."""
    moved = words[:]
    for peer in range(STEP.peer // WORD, len(moved), len(FIELDS)):
        moved[peer] = ranks[moved[peer]]
    return moved


@functools.lru_cache(maxsize=64)
def _give_reduced(rank: int, sides: Sides, root: int) -> Shape:
    """Reduce the block of this rank, and send it to the root."""
    steps, (own, size) = Builder(), (sides.place(rank), len(sides.mine))
    counts, offsets, rooms = columns(size, size, size)
    exchange = Exchange(steps, own, counts, offsets, rooms)
    done, _ = exchange.reduce(exchange.scratch)
    steps.send(size + sides.place(root), exchange.scratch, counts[own], [done])
    return Shape(sides.on_union(steps.shape().words))


@functools.lru_cache(maxsize=64)
def _take_reduced(sides: Sides) -> Shape:
    """Receive every block of the other group's reduction."""
    steps, size, others = Builder(), len(sides.mine), len(sides.theirs)
    counts, offsets = columns(others, others)
    for other in range(others):
        steps.recv(size + other, (OUTPUT, offsets[other]), counts[other])
    return Shape(sides.on_union(steps.shape().words))


@functools.lru_cache(maxsize=64)
def _allreduce(rank: int, sides: Sides) -> Shape:
    steps, own, size, others = Builder(), sides.place(rank), len(sides.mine), len(sides.theirs)
    counts, offsets, rooms, their_counts, their_offsets = columns(size, size, size, others, others)
    exchange = Exchange(steps, own, counts, offsets, rooms)
    done, _ = exchange.reduce(exchange.scratch)
    for turn in range(others):
        other = (own + turn) % others
        steps.recv(size + other, (OUTPUT, their_offsets[other]), their_counts[other])
        steps.send(size + other, exchange.scratch, counts[own], [done])
    return Shape(sides.on_union(steps.shape().words))


@functools.lru_cache(maxsize=64)
def _reduce_scatter(rank: int, sides: Sides, counts: tuple[int, ...], itemsize: int) -> Plan:
    own, size, others = sides.place(rank), len(sides.mine), len(sides.theirs)
    wanted = [count * itemsize for count in offsets_of(counts)]
    given, taken = (even_edges(sum(counts), itemsize, parts) for parts in (size, others))
    steps = Builder()
    rooms = [steps.temp(given[own + 1] - given[own]) for _ in range(size)]
    exchange = Exchange(steps, own, lengths_between(given), given[:-1], rooms)
    done, _ = exchange.reduce(exchange.scratch)
    steps.send(size + own % others, exchange.scratch, given[own + 1] - given[own], [done])
    for block in range(others):
        first, end, holder = taken[block], taken[block + 1], block % size
        if holder == own:
            _pass_on(steps, own, size + block, first, end, wanted)
        else:
            low, high = max(first, wanted[own]), min(end, wanted[own + 1])
            steps.recv(holder, (OUTPUT, low - wanted[own]), max(0, high - low))
    plan = steps.build()
    return Plan(sides.on_union(plan.words), plan.temp)


def _even_blocks(count: int, itemsize: int, size: int, rank: int) -> tuple[list[list[int]], int]:
    """Values of a shape for `count` elements cut into `size` nearly equal blocks, and bytes in TEMP.

    Values: bytes and byte offset of each block, and rooms for that of `rank`.
    """
    edges = even_edges(count, itemsize, size)
    room = (edges[rank + 1] - edges[rank] + 63) // 64 * 64
    return [lengths_between(edges), edges[:-1], [room * index for index in range(size)]], room * size


def _pass_on(steps: Builder, own: int, source: int, first: int, end: int, wanted: Sequence[int]) -> None:
    """Receive bytes `first` to `end` of the other group's reduction, and give each rank of this group those that it wants of them."""
    room = steps.temp(end - first)
    have = steps.recv(source, (TEMP, room), end - first)
    for rank in range(len(wanted) - 1):
        low, high = max(first, wanted[rank]), min(end, wanted[rank + 1])
        place, nbytes = (TEMP, room + low - first), max(0, high - low)
        if rank == own:
            steps.copy((OUTPUT, low - wanted[rank]), place, nbytes, [have])
        else:
            steps.send(rank, place, nbytes, [have])


def _in_words(name: str) -> str:
    """What an operation is called in errors, which name ranks of the communicator of all."""
    return f"{name} of an intercommunicator (ranks count through both groups, the one with the lowest world rank first)"

"""Neighbourhood collectives that do not block, along edges between forked ranks: many at once, who waits for whom, and what goes wrong."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ncclx_mpi import collectives, errors
from ncclx_mpi.collectives import Neighborhood, Pending
from ncclx_mpi.p2p.engine import NativeComm
from tests.collectives.forked import Signals, die_in_the_middle, run_ranks
from tests.secret import secret_memory
from transports.shm.slots import BIG

LARGE = 100_000


def circle(comm: NativeComm) -> Neighborhood:
    """The rank before and the one behind, as on a periodic grid of one dimension."""
    edges = (comm.rank - 1) % comm.size, (comm.rank + 1) % comm.size
    return Neighborhood(edges, edges, (1, 0), 2)


class Halo:
    """What each rank gives to the one before, and to the one behind: so many bytes that tell who sent them, and to which side."""

    def __init__(self, comm: NativeComm, lengths: list[tuple[int, int]], salt: int = 0) -> None:
        self.comm, self.edges = comm, circle(comm)
        before, behind = self.edges.sources
        given, taken = list(lengths[comm.rank]), [lengths[before][1], lengths[behind][0]]
        self.send = np.concatenate([np.full(count, 20 * comm.rank + side + salt, np.uint8) for side, count in enumerate(given)])
        self.wanted = np.concatenate(
            [np.full(taken[0], 20 * before + 1 + salt, np.uint8), np.full(taken[1], 20 * behind + salt, np.uint8)]
        )
        self.recv = np.zeros_like(self.wanted)
        self.given, self.taken = given, taken

    @property
    def arguments(self) -> tuple[Any, ...]:
        return (
            self.edges, self.send.ctypes.data, self.given, [0, self.given[0]],
            self.recv.ctypes.data, self.taken, [0, self.taken[0]],
        )  # fmt: skip

    def check(self) -> None:
        assert (self.recv == self.wanted).all()


LENGTHS = (0, 1, 40, 700, 5_000, BIG // 2 - 12, BIG // 2, BIG + 1, 600_001)


def waited_in_reverse(comm: NativeComm, seed: int) -> None:
    """More than a ring of lines, or of payloads, can hold, between blocking ones; the first is waited for last."""
    pending, dice = Pending(comm), np.random.default_rng(seed)
    tables = [[tuple(map(int, dice.choice(LENGTHS, 2))) for _ in range(comm.size)] for _ in range(40)]
    halos = [Halo(comm, table, salt) for salt, table in enumerate(tables)]
    numbers = []
    for index, halo in enumerate(halos):
        numbers.append(pending.start("neighbor_alltoall", halo.arguments))
        if index % 16 == 15:
            collectives.barrier(comm)
    assert all(numbers)
    for number, halo in zip(reversed(numbers), reversed(halos), strict=True):
        pending.wait(number, "neighbor_alltoall")
        halo.check()


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("size", [1, 2, 3, 5])
def test_many_at_once(size: int, seed: int) -> None:
    run_ranks(size, waited_in_reverse, seed)


def gathered(comm: NativeComm) -> None:
    """Neighbor_allgather: one block for all, small and large, blocking ones in between."""
    pending, edges = Pending(comm), circle(comm)
    for turn, count in enumerate((1, 3000, LARGE, 600_001, 0)):
        send = np.full(count, 10 * turn + comm.rank, np.uint8)
        room = np.zeros(2 * count, np.uint8)
        arguments = edges, send.ctypes.data, count, room.ctypes.data, [count] * 2, [0, count]
        number = pending.start("neighbor_allgather", arguments)
        pending.wait(number, "neighbor_allgather")
        assert number
        assert (room == np.repeat([10 * turn + rank for rank in edges.sources], count)).all()
        room[:] = 0
        collectives.neighbor_allgather(comm, *arguments)
        assert (room == np.repeat([10 * turn + rank for rank in edges.sources], count)).all()


@pytest.mark.parametrize("size", [1, 2, 3])
def test_one_block_for_all(size: int) -> None:
    run_ranks(size, gathered)


def start_never_blocks(comm: NativeComm, length: int, are_started: Signals) -> None:
    """Rank 1 starts nothing before rank 0 has started all."""
    pending, halos = Pending(comm), [Halo(comm, [(length, length)] * comm.size, salt) for salt in range(40)]
    if comm.rank == 1:
        are_started.wait()
    numbers = [pending.start("neighbor_alltoall", halo.arguments) for halo in halos]
    if comm.rank == 0:
        are_started.give()
    for number, halo in zip(numbers, halos, strict=True):
        pending.wait(number, "neighbor_alltoall")
        halo.check()


@pytest.mark.parametrize("length", [8, 6000, LARGE])
def test_a_start_never_blocks(length: int) -> None:
    run_ranks(2, start_never_blocks, length, Signals())


def only_neighbors_matter(comm: NativeComm, length: int, is_over: Signals) -> None:
    """On a circle of five, rank 2 has its own when ranks 1 and 3 have started; rank 4 comes when it is through."""
    pending, halo = Pending(comm), Halo(comm, [(length, length)] * comm.size)
    if comm.rank == 4:
        is_over.wait()
    pending.wait(pending.start("neighbor_alltoall", halo.arguments), "neighbor_alltoall")
    halo.check()
    if comm.rank == 2:
        is_over.give()


def test_ranks_wait_for_their_neighbors_alone() -> None:
    run_ranks(5, only_neighbors_matter, 8, Signals())


def unknown_degree(comm: NativeComm) -> None:
    """They are plans until blocking ones have agreed, and then go by lines on all ranks."""
    pending, halo = Pending(comm), Halo(comm, [(8, 8)] * comm.size)
    halo.edges = halo.edges._replace(degree=0)
    assert pending.start("neighbor_alltoall", halo.arguments) == 0
    collectives.neighbor_alltoall(comm, *halo.arguments)
    halo.check()
    halo.recv[:] = 0
    number = pending.start("neighbor_alltoall", halo.arguments)
    assert number
    pending.wait(number, "neighbor_alltoall")
    halo.check()


def test_where_not_all_know_how_many_edges_there_are() -> None:
    run_ranks(3, unknown_degree)


def by_plans(comm: NativeComm) -> None:
    pending, halo = Pending(comm), Halo(comm, [(8, 8)] * comm.size)
    assert pending.start("neighbor_alltoall", halo.arguments) == 0


def test_where_nothing_is_copied_directly_they_are_plans() -> None:
    run_ranks(2, by_plans, copies="piped")


def refused(comm: NativeComm, sides: tuple[int, ...]) -> None:
    pending, halo = Pending(comm), Halo(comm, [(LARGE, LARGE + 1)] * comm.size)
    if comm.rank in sides:
        for name in ("send", "recv"):
            secret = secret_memory(len(getattr(halo, name)))
            secret[:] = getattr(halo, name)
            setattr(halo, name, secret)
    for _ in range(3):
        halo.recv[:] = 0
        number = pending.start("neighbor_alltoall", halo.arguments)
        while not pending.test(number, "neighbor_alltoall"):
            pass
        halo.check()


@pytest.mark.parametrize("sides", [(0,), (0, 1)])
def test_buffers_that_the_kernel_refuses_have_copies(sides: tuple[int, ...]) -> None:
    secret_memory(1)
    run_ranks(2, refused, sides)


def lengths_differ(comm: NativeComm, theirs: int, expected: int) -> None:
    """Rank 1 gives `theirs` bytes to the rank behind it where `expected` are expected: one finds out, and nobody hangs."""
    pending, halo = (
        Pending(comm),
        Halo(comm, [(8, theirs if rank == comm.rank == 1 else expected if rank == 1 else 8) for rank in range(3)]),
    )
    with pytest.raises(errors.Exception) as caught:
        pending.wait(pending.start("neighbor_alltoall", halo.arguments), "neighbor_alltoall")
        for _ in range(40):
            pending.wait(pending.start("barrier", ()), "barrier")
    assert caught.value.Get_error_class() in (errors.ERR_TRUNCATE, errors.ERR_OTHER)


@pytest.mark.parametrize(("theirs", "expected"), [(8, 16), (0, 16), (8, LARGE), (LARGE, 8), (LARGE, LARGE + 1)])
def test_lengths_that_differ(theirs: int, expected: int) -> None:
    run_ranks(3, lengths_differ, theirs, expected, timeout=5)


def blocking_meets_pending(comm: NativeComm) -> None:
    """A blocking one is another collective."""
    pending, halo = Pending(comm), Halo(comm, [(8, 8)] * comm.size)
    with pytest.raises(errors.Exception) as caught:
        if comm.rank == 0:
            pending.wait(pending.start("neighbor_alltoall", halo.arguments), "neighbor_alltoall")
        else:
            collectives.neighbor_alltoall(comm, *halo.arguments)
    assert caught.value.Get_error_class() == errors.ERR_OTHER


def test_ranks_that_disagree() -> None:
    run_ranks(2, blocking_meets_pending, timeout=5)


def one_is_killed(comm: NativeComm, are_started: Signals) -> None:
    """Rank 1 dies with half of its pieces copied: its neighbours are told, soon."""
    pending, halo = Pending(comm), Halo(comm, [(8_000_000, 8_000_000)] * comm.size)
    small = Halo(comm, [(8, 8)] * comm.size)
    pending.wait(pending.start("neighbor_alltoall", small.arguments), "neighbor_alltoall")
    number = pending.start("neighbor_alltoall", halo.arguments)
    die_in_the_middle(comm, are_started, lambda: pending.wait(number, "neighbor_alltoall"))


def test_a_rank_that_dies_in_the_middle_is_named() -> None:
    run_ranks(3, one_is_killed, Signals(3))

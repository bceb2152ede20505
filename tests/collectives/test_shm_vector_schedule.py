"""Non-blocking collectives with counts, block by block, between forked ranks: who waits for whom, and what goes wrong."""

from __future__ import annotations

import ctypes
import mmap
import os
import time
from collections.abc import Callable
from itertools import accumulate
from typing import Any

import numpy as np
import pytest

from ncclx_mpi import collectives, errors
from ncclx_mpi.collectives import Pending
from ncclx_mpi.p2p.engine import NativeComm
from ncclx_mpi.p2p.layout import PEER
from tests.collectives.forked import Signals, die_in_the_middle, give_up_in_the_middle, run_ranks
from tests.collectives.test_failures import raises
from tests.secret import secret_memory
from transports.shm.lane import LANE
from transports.shm.slots import BIG

LARGE = 100_000
Bytes = Any


class Exchange:
    """An alltoallv in which rank i gives ``length(i, j)`` bytes of value ``10 * i + j + salt`` to rank j."""

    def __init__(self, comm: NativeComm, length: Callable[[int, int], int], salt: int = 0) -> None:
        rank, ranks = comm.rank, range(comm.size)
        given, taken = [length(rank, other) for other in ranks], [length(other, rank) for other in ranks]
        self.send = np.concatenate([np.full(count, 10 * rank + other + salt, np.uint8) for other, count in enumerate(given)])
        self.wanted = np.concatenate([np.full(count, 10 * other + rank + salt, np.uint8) for other, count in enumerate(taken)])
        self.recv = np.zeros_like(self.wanted)
        self.arguments = self.send.ctypes.data, given, first(given), self.recv.ctypes.data, taken, first(taken)

    def check(self) -> None:
        assert (self.recv == self.wanted).all()


def first(counts: list[int]) -> list[int]:
    return [0, *accumulate(counts)][:-1]


def gather_arguments(comm: NativeComm, given: Bytes, counts: list[int], recv: Bytes, root: int = 0) -> tuple[Any, ...]:
    at_root = (recv.ctypes.data, counts, first(counts)) if comm.rank == root else (0, [], [])
    return given.ctypes.data, counts[comm.rank], *at_root, root


def scatter_arguments(comm: NativeComm, given: Bytes, counts: list[int], recv: Bytes, root: int = 0) -> tuple[Any, ...]:
    at_root = (given.ctypes.data, counts, first(counts)) if comm.rank == root else (0, [], [])
    return *at_root, recv.ctypes.data, counts[comm.rank], root


LENGTHS = (0, 1, 40, 700, 5_000, 15_000, BIG - 8, BIG, BIG + 1, 60_000, 600_001)
"""Within a line, a buffer of either kind, both sides of the border, more than a piece."""


def waited_in_reverse(comm: NativeComm, seed: int) -> None:
    """More than a ring of lines, or of payloads, can hold, between blocking ones; the first is waited for last."""
    pending, dice = Pending(comm), np.random.default_rng(seed)
    tables = [dice.choice(LENGTHS, (comm.size, comm.size), p=[0.2, *[0.08] * 10]) for _ in range(40)]
    exchanges = [Exchange(comm, lambda i, j, table=table: int(table[i, j]), index) for index, table in enumerate(tables)]
    numbers = []
    for index, exchange in enumerate(exchanges):
        numbers.append(pending.start("alltoallv", exchange.arguments))
        if index % 16 == 15:
            collectives.barrier(comm)
    assert all(numbers)
    for number, exchange in zip(reversed(numbers), reversed(exchanges), strict=True):
        pending.wait(number, "alltoallv")
        exchange.check()


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("size", [1, 2, 3, 5])
def test_many_at_once(size: int, seed: int) -> None:
    run_ranks(size, waited_in_reverse, seed)


def start_never_blocks(comm: NativeComm, length: int, are_started: Signals) -> None:
    """Rank 1 starts nothing before rank 0 has started all."""
    pending = Pending(comm)
    exchanges = [Exchange(comm, lambda i, j: length, salt) for salt in range(40)]
    if comm.rank == 1:
        are_started.wait()
    numbers = [pending.start("alltoallv", exchange.arguments) for exchange in exchanges]
    if comm.rank == 0:
        are_started.give()
    for number, exchange in zip(numbers, exchanges, strict=True):
        pending.wait(number, "alltoallv")
        exchange.check()


@pytest.mark.parametrize("length", [8, 6000, LARGE])
def test_a_start_never_blocks(length: int) -> None:
    run_ranks(2, start_never_blocks, length, Signals())


def only_neighbors_matter(comm: NativeComm, length: int, is_over: Signals) -> None:
    """Rank 2, to which nobody gives anything and which gives nothing, comes when the others are through."""
    pending = Pending(comm)
    exchange = Exchange(comm, lambda i, j: length if 2 not in (i, j) else 0)
    if comm.rank == 2:
        is_over.wait(0)
        is_over.wait(1)
    pending.wait(pending.start("alltoallv", exchange.arguments), "alltoallv")
    exchange.check()
    if comm.rank < 2:
        is_over.give(comm.rank)


@pytest.mark.parametrize("length", [8, LARGE])
def test_ranks_wait_for_those_alone_that_they_exchange_blocks_with(length: int) -> None:
    run_ranks(3, only_neighbors_matter, length, Signals(2))


def leaf_is_alone(comm: NativeComm, name: str, is_over: Signals) -> None:
    """Rank 2 comes when rank 1 is through: a leaf waits for nobody but the root."""
    pending, counts = Pending(comm), [LARGE + rank for rank in range(comm.size)]
    whole = np.concatenate([np.full(count, rank + 1, np.uint8) for rank, count in enumerate(counts)])
    part, room = np.full(counts[comm.rank], comm.rank + 1, np.uint8), np.zeros_like(whole)
    if comm.rank == 2:
        is_over.wait()
    if name == "gatherv":
        arguments = gather_arguments(comm, part, counts, room)
    else:
        wanted, part = part, np.zeros_like(part)
        arguments = scatter_arguments(comm, whole, counts, part)
    pending.wait(pending.start(name, arguments), name)
    if comm.rank == 1:
        is_over.give()
    if name == "scatterv":
        assert (part == wanted).all()
    elif comm.rank == 0:
        assert (room == whole).all()
    collectives.barrier(comm)


@pytest.mark.parametrize("name", ["gatherv", "scatterv"])
def test_a_leaf_waits_for_nobody_but_the_root(name: str) -> None:
    run_ranks(3, leaf_is_alone, name, Signals())


def refused(comm: NativeComm, sides: tuple[int, ...]) -> None:
    """Blocks in memory that the kernel does not copy, with gaps between them that nobody touches."""
    counts, offsets, pending = [LARGE + rank for rank in range(comm.size)], [7, LARGE + 50], Pending(comm)
    nbytes = 2 * LARGE + 100
    given, room = (secret_memory(nbytes) if comm.rank in sides else np.zeros(nbytes, np.uint8) for _ in range(2))

    def check(is_written: bool, other: Callable[[int], int]) -> None:
        wanted = np.full(nbytes, 99, np.uint8)
        for rank, (count, offset) in enumerate(zip(counts, offsets, strict=True)):
            if is_written:
                wanted[offset : offset + count] = other(rank)
        assert (room == wanted).all()
        room[:] = 99

    room[:] = 99
    is_root, at_root = comm.rank == 1, (counts, offsets) if comm.rank == 1 else ([], [])
    mine = [counts[comm.rank]] * 2
    for step in range(3):
        given[:] = 10 * step + comm.rank
        address = given.ctypes.data
        start = pending.start("gatherv", (address, counts[comm.rank], room.ctypes.data if is_root else 0, *at_root, 1))
        pending.wait(start, "gatherv")
        check(is_root, lambda rank, step=step: 10 * step + rank)
        start = pending.start("scatterv", (address if is_root else 0, *at_root, room.ctypes.data + 7, counts[comm.rank], 1))
        pending.wait(start, "scatterv")
        assert (room[7 : 7 + counts[comm.rank]] == 10 * step + 1).all() and (room[7 + counts[comm.rank] :] == 99).all()
        room[:] = 99
        start = pending.start("allgatherv", (address, counts[comm.rank], room.ctypes.data, counts, offsets))
        pending.wait(start, "allgatherv")
        check(True, lambda rank, step=step: 10 * step + rank)
        start = pending.start("alltoallv", (address, mine, [0, 50], room.ctypes.data, counts, offsets))
        while not pending.test(start, "alltoallv"):
            pass
        check(True, lambda rank, step=step: 10 * step + rank)


@pytest.mark.parametrize("sides", [(0,), (1,), (0, 1)])
def test_buffers_that_the_kernel_refuses_have_copies(sides: tuple[int, ...]) -> None:
    secret_memory(1)
    run_ranks(2, refused, sides)


def one_cannot_reach_the_others(comm: NativeComm, is_gone: Signals) -> None:
    """Rank 1 finds that it cannot copy although all said that they take part: what is small needs no copy."""
    pending, small = Pending(comm), Exchange(comm, lambda i, j: 100)
    if comm.rank == 1:
        np.asarray(comm.engine._peers).reshape(-1, PEER.total // 8)[:, LANE.reach // 8] = 1  # the kernel does not let it
    for _ in range(3):
        pending.wait(pending.start("alltoallv", small.arguments), "alltoallv")
        small.check()
    counts, recv, memory = [LARGE] * 2, np.zeros(2 * LARGE, np.uint8), mmap.mmap(-1, 2 * LARGE)
    at = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    number = pending.start("alltoallv", (at, counts, [0, LARGE], recv.ctypes.data, counts, [0, LARGE]))
    if comm.rank == 1:
        assert ctypes.CDLL(None).munmap(ctypes.c_void_p(at), ctypes.c_size_t(2 * LARGE)) == 0
        is_gone.give()
    else:
        is_gone.wait()
        assert "NCCLX_MPI_COPIES=piped" in raises(errors.ERR_BUFFER, lambda: pending.wait(number, "alltoallv"))
    os._exit(0)  # rank 1 has no memory where it believes to have some


def test_a_copy_that_the_kernel_refuses_says_so() -> None:
    run_ranks(2, one_cannot_reach_the_others, Signals())


def gather_lengths(comm: NativeComm, theirs: int, expected: int) -> None:
    counts = [8, theirs if comm.rank else expected]
    send, recv, pending = np.zeros(counts[comm.rank], np.uint8), np.zeros(sum(counts), np.uint8), Pending(comm)
    wait_for_error(comm, pending, "gatherv", gather_arguments(comm, send, counts, recv))


def scatter_lengths(comm: NativeComm, theirs: int, expected: int) -> None:
    counts = [8, expected if comm.rank else theirs]
    send, recv, pending = np.zeros(sum(counts), np.uint8), np.zeros(counts[comm.rank], np.uint8), Pending(comm)
    wait_for_error(comm, pending, "scatterv", scatter_arguments(comm, send, counts, recv))


def allgather_lengths(comm: NativeComm, theirs: int, expected: int) -> None:
    counts, pending = [8, theirs if comm.rank else expected], Pending(comm)
    send, recv = np.zeros(counts[comm.rank], np.uint8), np.zeros(sum(counts), np.uint8)
    arguments = send.ctypes.data, counts[comm.rank], recv.ctypes.data, counts, first(counts)
    wait_for_error(comm, pending, "allgatherv", arguments)


def exchange_lengths(comm: NativeComm, theirs: int, expected: int) -> None:
    pending = Pending(comm)
    exchange = Exchange(comm, lambda i, j: 8 if (i, j) != (1, 0) else theirs if comm.rank else expected)
    wait_for_error(comm, pending, "alltoallv", exchange.arguments)


def wait_for_error(comm: NativeComm, pending: Pending, name: str, arguments: tuple[Any, ...]) -> None:
    """Rank 0 or rank 1 finds out, and the other one does not hang, at the latest in what comes next."""
    with pytest.raises(errors.Exception) as caught:
        pending.wait(pending.start(name, arguments), name)
        for _ in range(40):
            pending.wait(pending.start("barrier", ()), "barrier")
    assert caught.value.Get_error_class() in (errors.ERR_TRUNCATE, errors.ERR_OTHER)


@pytest.mark.parametrize(("theirs", "expected"), [(8, 16), (8, LARGE), (LARGE, 8), (LARGE, LARGE + 1)])
@pytest.mark.parametrize("work", [gather_lengths, scatter_lengths, allgather_lengths, exchange_lengths])
def test_lengths_that_differ(work: Callable[..., None], theirs: int, expected: int) -> None:
    """Rank 1 gives (scatterv: gets) `theirs` bytes where `expected` are expected."""
    run_ranks(2, work, theirs, expected, timeout=5)


def disagree(comm: NativeComm, other: str) -> None:
    """Rank 1 calls another collective, of the same kind without counts, or the blocking one."""
    pending, exchange = Pending(comm), Exchange(comm, lambda i, j: 8)
    with pytest.raises(errors.Exception) as caught:
        if comm.rank == 0:
            pending.wait(pending.start("alltoallv", exchange.arguments), "alltoallv")
        elif other == "alltoall":
            arguments = exchange.send.ctypes.data, exchange.recv.ctypes.data, 8
            pending.wait(pending.start("alltoall", arguments), "alltoall")
        else:
            collectives.alltoallv(comm, *exchange.arguments)
    assert caught.value.Get_error_class() == errors.ERR_OTHER


@pytest.mark.parametrize("other", ["alltoall", "blocking"])
def test_ranks_that_disagree(other: str) -> None:
    run_ranks(2, disagree, other, timeout=5)


def one_is_killed(comm: NativeComm, are_started: Signals) -> None:
    """Rank 1 dies with half of its pieces copied: the others are told, soon."""
    pending, exchange = Pending(comm), Exchange(comm, lambda i, j: 8_000_000)
    small = Exchange(comm, lambda i, j: 8)
    pending.wait(pending.start("alltoallv", small.arguments), "alltoallv")
    number = pending.start("alltoallv", exchange.arguments)
    die_in_the_middle(comm, are_started, lambda: pending.wait(number, "alltoallv"))


def test_a_rank_that_dies_in_the_middle_is_named() -> None:
    run_ranks(3, one_is_killed, Signals(3))


def root_gives_up(comm: NativeComm, seen: Signals) -> None:
    """The root of a gatherv gives up while rank 1 pushes into its memory: nothing is written into it any more."""
    pending, counts = Pending(comm), [8, 200 << 20]
    room, given = np.zeros(sum(counts), np.uint8), np.full(counts[comm.rank], 7, np.uint8)
    collectives.barrier(comm)
    number = pending.start("gatherv", gather_arguments(comm, given, counts, room))
    if comm.rank == 0:
        while not room[8]:
            comm.engine.progress()
        pending.abandon()
        written = np.count_nonzero(room[8:])
        if 0 < written < counts[1]:
            seen.give(0)
        time.sleep(0.3)
        assert np.count_nonzero(room[8:]) == written
    else:
        try:
            pending.wait(number, "gatherv")
        except errors.Exception as error:
            assert error.Get_error_class() == errors.ERR_OTHER, error
            seen.give(1)


def test_nothing_writes_into_the_memory_of_a_rank_that_gave_up() -> None:
    give_up_in_the_middle(root_gives_up)

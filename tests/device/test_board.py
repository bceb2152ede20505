"""The board: ranks with arrays of either kind, in any position, conclude alike which way a collective goes; host ranks do not notice."""

from __future__ import annotations

import ctypes
import itertools
import random
from collections.abc import Callable

import numpy as np
import pytest

from ncclx_mpi import collectives, errors
from ncclx_mpi.collectives import shm_oneshot
from ncclx_mpi.device import board
from ncclx_mpi.p2p.engine import NativeComm
from numba_kernels import reduce
from numba_kernels.jit import entry
from tests.collectives.cases import Buffer, pattern
from tests.collectives.forked import run_ranks
from transports.shm.slots import DEVICE, device_words

WORDS = 4
Signature = tuple[int, int, int]
"""Kind, root, bytes."""


def propose(comm: NativeComm, signature: Signature) -> tuple[int, np.ndarray]:
    """Number of the collective, 0 for the host's way, minus a code; and what everybody showed."""
    mine = np.full(WORDS, 1000 * comm.rank + comm.word("sequence"), dtype=np.int64)
    table = np.zeros((comm.size, WORDS), dtype=np.int64)
    number = entry(board.meet)(comm.address, *signature, mine.ctypes.data, mine.nbytes, table.ctypes.data)
    return number, table


def word(comm: NativeComm, rank: int, name: str) -> ctypes.c_int64:
    slot = comm.engine.arena.base + comm.engine.arena.plan.slot(comm.slot)
    return ctypes.c_int64.from_address(entry(device_words)(slot, rank) + getattr(DEVICE, name))


def carry_out(comm: NativeComm, number: int, executors: int) -> int:
    """Every rank's part after an agreement, with the host in the place of streams."""
    word(comm, comm.rank, "ready").value = number
    if executors >> comm.rank & 1:
        code = entry(board.await_ready)(comm.address, number)
        if code:
            return code
        assert all(word(comm, rank, "ready").value == number for rank in range(comm.size))
        word(comm, comm.rank, "done").value = number
    return entry(board.await_done)(comm.address, number, executors)


def all_propose(comm: NativeComm) -> None:
    for turn in range(50):
        number, table = propose(comm, (shm_oneshot.ALLREDUCE, 0, 8))
        assert number == turn + 1
        np.testing.assert_array_equal(table, np.repeat([[1000 * rank + turn] for rank in range(comm.size)], WORDS, axis=1))
        assert carry_out(comm, number, 1 + turn % (2**comm.size - 1)) == 0
    collectives.barrier(comm)
    assert comm.word("sequence") == 51


@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_all_propose(size: int) -> None:
    run_ranks(size, all_propose)


def calls(comm: NativeComm, length: int, root: int) -> list[tuple[Signature, Callable[[], None]]]:
    """Collectives on the host with a check of each, under the signature with which a rank would propose it."""
    rank, size, everyone = comm.rank, comm.size, range(comm.size)
    together = np.concatenate([pattern(other, length, root) for other in everyone])

    def bcast() -> None:
        buffer = Buffer(pattern(rank, length, root))
        collectives.bcast(comm, buffer.address, length, root)
        buffer.check(pattern(root, length, root), "bcast")

    def gather() -> None:
        send, recv = Buffer(pattern(rank, length, root)), Buffer(length * size)
        collectives.gather(comm, send.address, length, recv.address, root)
        if rank == root:
            recv.check(together, "gather")

    def scatter() -> None:
        send, recv = Buffer(together), Buffer(length)
        collectives.scatter(comm, send.address, recv.address, length, root)
        recv.check(pattern(rank, length, root), "scatter")

    def allgather() -> None:
        send, recv = Buffer(pattern(rank, length, root)), Buffer(length * size)
        collectives.allgather(comm, send.address, length, recv.address)
        recv.check(together, "allgather")

    def alltoall() -> None:
        send, recv = Buffer(np.concatenate([pattern(rank, length, to) for to in everyone])), Buffer(length * size)
        collectives.alltoall(comm, send.address, recv.address, length)
        recv.check(np.concatenate([pattern(other, length, rank) for other in everyone]), "alltoall")

    def reduced() -> None:
        send, recv = np.full(length, rank + 1, dtype=np.int32), np.zeros(length, dtype=np.int32)
        add = reduce.address("sum", "i32")
        collectives.reduce(comm, send.ctypes.data, recv.ctypes.data, length, 4, add, True, root)
        assert rank != root or (recv == sum(range(1, size + 1))).all()

    return [
        ((shm_oneshot.BCAST, root, length), bcast),
        ((shm_oneshot.GATHER, root, length), gather),
        ((shm_oneshot.SCATTER, root, length), scatter),
        ((shm_oneshot.ALLGATHER, 0, length), allgather),
        ((shm_oneshot.ALLTOALL, 0, length), alltoall),
        ((shm_oneshot.REDUCE, root, 4 * length), reduced),
    ]


def mixed_kinds(comm: NativeComm, seed: int) -> None:
    """Each rank draws its kind for each call; rooted calls let the roots and leaves on the host run ahead."""
    agreed, dice = 0, random.Random(seed)
    for turn in range(120):
        length = dice.choice([1, 40, 500, 3000, 40_000])
        signature, on_host = calls(comm, length, turn % comm.size)[dice.randrange(6)]
        kinds = [dice.random() < 0.7 for _ in range(comm.size)]
        number = propose(comm, signature)[0] if kinds[comm.rank] else 0
        assert (number > 0) == all(kinds), f"turn {turn}: {number}, {kinds}"
        if number == 0:
            on_host()
            continue
        assert carry_out(comm, number, dice.randrange(1, 2**comm.size)) == 0
        agreed += 1
    collectives.barrier(comm)
    assert 0 < agreed < 120


@pytest.mark.parametrize(("size", "seed"), list(itertools.product([2, 3, 5], range(3))))
def test_mixed_kinds(size: int, seed: int) -> None:
    run_ranks(size, mixed_kinds, seed)


def one_host_rank(comm: NativeComm, host: int) -> None:
    """Every collective with one rank on the host, often enough that lines are used again."""
    for turn in range(12):
        for signature, on_host in calls(comm, 100, turn % comm.size):
            if comm.rank != host:
                assert propose(comm, signature)[0] == 0
            on_host()


@pytest.mark.parametrize(("size", "host"), [(2, 0), (2, 1), (3, 1), (3, 2)])
def test_one_rank_on_the_host_in_any_position(size: int, host: int) -> None:
    run_ranks(size, one_host_rank, host)


def one_passes_by(comm: NativeComm) -> None:
    """A rank with nothing to exchange passes by, and does something else; the others do not wait for its next collective."""
    everyone, leaver = range(comm.size), comm.size - 1
    counts = [8 * (rank != leaver and comm.rank != leaver) for rank in everyone]
    places = [8 * rank for rank in everyone]
    send, recv = np.full(comm.size, comm.rank), np.full(comm.size, -1)
    for _ in range(20):
        if comm.rank != leaver:
            assert propose(comm, (shm_oneshot.ALLTOALL, 0, 0))[0] == 0
        collectives.alltoallv(comm, send.ctypes.data, counts, places, recv.ctypes.data, counts, places)
        np.testing.assert_array_equal(recv, [rank if counts[rank] else -1 for rank in everyone])
        if comm.rank == leaver:
            request = comm.engine.start_recv(comm, recv.ctypes.data, 0, 0, 5)
            comm.engine.wait(request)
        elif comm.rank == 0:
            comm.engine.wait(comm.engine.start_send(comm, send.ctypes.data, 0, leaver, 5))


@pytest.mark.parametrize("size", [3, 4])
def test_a_rank_that_passes_by(size: int) -> None:
    run_ranks(size, one_passes_by, timeout=20)


def refusals(comm: NativeComm, seed: int) -> None:
    """Executors that cannot do their share send everybody the host's way, under the same number."""
    dice = random.Random(seed)
    for turn in range(60):
        signature, on_host = calls(comm, dice.choice([1, 500, 3000]), turn % comm.size)[dice.randrange(6)]
        executors = dice.randrange(1, 2**comm.size)
        refusing = [rank for rank in range(comm.size) if executors >> rank & 1 and dice.random() < 0.3]
        number, _ = propose(comm, signature)
        assert number in (turn + 1, 0 if refusing else turn + 1)  # 0: somebody had refused before this rank looked
        if number and comm.rank in refusing:
            entry(board.refuse)(comm.address, number)
        elif number:
            assert carry_out(comm, number, executors) == (board.ON_HOST if refusing else 0)
        if refusing:
            on_host()
    collectives.barrier(comm)


@pytest.mark.parametrize(("size", "seed"), list(itertools.product([2, 4], range(3))))
def test_refusals(size: int, seed: int) -> None:
    run_ranks(size, refusals, seed)


def mismatch(comm: NativeComm) -> None:
    number, _ = propose(comm, (shm_oneshot.BCAST if comm.rank else shm_oneshot.ALLREDUCE, 0, 8))
    with pytest.raises(errors.Exception, match=r"called (bcast|allreduce) .* called (bcast|allreduce)"):
        collectives.check(comm, -number, "bcast")
    with pytest.raises(errors.Exception, match="interrupted or failed"):
        collectives.barrier(comm)


def test_different_calls_are_an_error_on_both_sides() -> None:
    run_ranks(2, mismatch)
